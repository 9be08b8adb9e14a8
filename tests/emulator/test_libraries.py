"""What torch links of NVIDIA's libraries is emulated, or aborts with its name."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("TORCHSHARE_EMULATOR" not in os.environ, reason="needs the emulated CUDA device"),
]


@pytest.mark.parametrize(
    ("function", "library"),
    [("cusparseCreate", "cuSPARSE"), ("cufftCreate", "cuFFT"), ("cusolverDnCreate", "cuSOLVER"),
     ("cudnnBackendExecute", "cuDNN"), ("cudaMallocAsync", "the CUDA runtime")],
)  # fmt: skip
def test_what_is_not_emulated_aborts_with_its_name(function: str, library: str) -> None:
    call = f"import ctypes; ctypes.CDLL(None).{function}()"
    done = subprocess.run([sys.executable, "-S", "-c", call], capture_output=True, text=True)
    assert done.returncode < 0
    assert done.stderr == f"emulator: {function} ({library}) is not emulated; see tests/emulator/README.md\n"


def test_no_function_is_left_to_nvidias_libraries() -> None:
    sys.path.insert(0, str(Path(__file__).parent / "libraries"))
    try:
        import generate
    finally:
        sys.path.pop(0)
    torch_lib = Path(torch.__file__).parent / "lib"
    emulator = Path(os.environ["TORCHSHARE_EMULATOR"]) / "libtorchshare_emulator.so"
    defined = set(generate.symbols(emulator, "--dynamic", "--defined-only"))
    needed = {name for library in torch_lib.glob("lib*.so") for name, _ in generate.needed_from(library)}
    missing = {name.partition("@")[0] for name in needed - defined}
    assert {name for name in missing if not generate.NEEDS_NO_DEVICE.fullmatch(name)} == set()
    assert len(needed) > 500


def test_a_product_of_cublas_is_a_hollow_kernel() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
        cublas = ctypes.CDLL(None)
        assert cublas.cublasSgemm_v2(handle) == 0
    stream.synchronize()
    name = ctypes.create_string_buffer(100)
    assert cublas.emulator_take_hollow(name, ctypes.c_size_t(100))
    assert name.value == b"cublasSgemm_v2"
