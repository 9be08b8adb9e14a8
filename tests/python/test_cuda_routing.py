"""torch.cuda inside jobs, with fakes for the GPU; and behaviour without a GPU."""

from __future__ import annotations

import functools
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import run_one

import torchshare
from torchshare import _C, Job
from torchshare.isolation import cuda


class Stand:
    """A C++ job on GPU 0."""

    def __init__(self) -> None:
        self.synchronized = 0
        self.device_generator = SimpleNamespace(device=torch.device("cuda:0"), name="own")

    def synchronize(self) -> None:
        self.synchronized += 1

    def open_stream(self) -> int:
        return 77

    main_stream = 88


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def in_job(body: Any) -> Any:
    def run(job: Job) -> Any:
        handle, job._context.handle = job._context.handle, Stand()  # type: ignore[assignment]
        try:
            return body(job._context.handle)
        finally:
            job._context.handle = handle

    return run_one(run).value


def test_synchronize_waits_for_the_jobs_own_streams() -> None:
    devices: list[Any] = []
    synchronize = functools.partial(cuda._synchronize, devices.append)

    def body(handle: Stand) -> int:
        for device in (None, 0, "cuda", torch.device("cuda:0")):
            synchronize(device)
        assert devices == []
        synchronize(1)
        return handle.synchronized

    assert in_job(body) == 4
    assert devices == [1]  # another device is not routed
    synchronize()
    assert devices == [1, None]  # nor are calls outside jobs


def test_the_jobs_generator_stands_for_its_devices_default() -> None:
    defaults = tuple(SimpleNamespace(device=torch.device(f"cuda:{i}"), name=f"default {i}") for i in range(2))
    generators: Any = cuda._RoutedGenerators(defaults)  # type: ignore[arg-type]
    assert in_job(lambda _: [generators[i].name for i in range(2)]) == ["own", "default 1"]
    assert [generators[i].name for i in range(2)] == ["default 0", "default 1"]
    assert len(generators) == 2


def test_streams_that_a_job_opens_are_its_own() -> None:
    made: list[tuple[Any, ...]] = []
    new: Any = functools.partial(cuda._new_stream, lambda cls, *args, **kwargs: made.append((args, kwargs)))
    stream = torch.cuda.Stream

    def body(_handle: Stand) -> None:
        new(stream)
        new(stream, priority=-1)
        new(stream, device=1)
        new(torch.cuda.ExternalStream, stream_ptr=5)

    in_job(body)
    new(stream)
    own, with_priority, elsewhere, external, outside = made
    assert own == with_priority == ((), {"stream_ptr": 77})
    assert elsewhere == ((1, 0), {})
    assert external == ((None, 0), {"stream_ptr": 5})
    assert outside == ((None, 0), {})


def test_while_another_gpu_is_current_nothing_is_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default stream there was the job's own of GPU 0, and `synchronize` did not wait for GPU 1."""
    asked: list[Any] = []
    default_stream = functools.partial(cuda._default_stream, lambda device: asked.append(device) or "torch's")
    new: Any = functools.partial(cuda._new_stream, lambda cls, *args, **kwargs: (args, kwargs))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle: handle)

    def body(handle: Stand) -> None:
        assert default_stream() == default_stream(1) == default_stream("cuda") == "torch's"
        cuda._synchronize(asked.append)
        cuda._synchronize(asked.append, "cuda:1")
        assert handle.synchronized == 0
        assert new(torch.cuda.Stream) == ((None, 0), {})
        assert default_stream(0) == 88
        cuda._synchronize(asked.append, 0)
        assert handle.synchronized == 1

    in_job(body)
    assert asked == [None, 1, "cuda", None, "cuda:1"]


def test_a_job_on_the_cpu_waits_for_the_gpu_that_it_uses() -> None:
    """`synchronize` returned at once."""
    asked: list[Any] = []
    assert run_one(lambda _job: cuda._synchronize(asked.append)).value is None
    assert asked == [None]


@pytest.mark.skipif(torch.version.cuda is None or "built without CUDA" in _C.cuda_status(), reason="built without CUDA")
class TestCudaBuild:
    """This build contains the CUDA objects, and they load without a driver."""

    def test_it_needs_torchs_cuda_libraries_and_no_driver(self) -> None:
        listed = subprocess.run(["readelf", "-d", _C.__file__], capture_output=True, text=True, check=True).stdout
        needed = {line.split("[")[1].rstrip("]") for line in listed.splitlines() if "NEEDED" in line}
        assert {"libtorch_cuda.so", "libc10_cuda.so"} <= needed
        assert any(name.startswith("libcudart.so.") for name in needed)
        assert not any(name.startswith("libcuda.so") for name in needed)

    def test_it_says_why_there_is_no_gpu(self) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        with pytest.raises(ValueError, match=r"device must be one of 0 GPUs \(built with CUDA .*no device"):
            torchshare.Runtime(device="cuda")


def test_without_a_gpu_auto_is_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with torchshare.Runtime(device="auto") as runtime:
        assert runtime.device == "cpu"


@pytest.mark.parametrize("device", ["cuda:x", "gpu", "", "cuda:-1"])
def test_invalid_devices_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match=rf"device '{device}': expected|device must be .*, got '{device}'"):
        torchshare.Runtime(device=device)


def test_options_that_need_a_gpu_are_refused_on_the_cpu() -> None:
    with pytest.raises(ValueError, match=r"run_ahead needs an asynchronous device \(cuda\), got 'cpu'"):
        torchshare.Runtime(device="cpu", run_ahead=1e-3)
    with (
        torchshare.Runtime(device="cpu") as runtime,
        pytest.raises(ValueError, match="job 'a': sms must be at least 1 and needs a GPU, got 8 on device 'cpu'"),
    ):
        runtime.submit(print, name="a", sms=8)

    def block(job: Job) -> None:
        with pytest.raises(ValueError, match="job 'alone': on_sms needs a GPU, got device 'cpu'"), job.on_sms(8):
            pass

    run_one(block)
    for value in (0, -1.0, 2, float("nan")):
        with pytest.raises(ValueError, match="run_ahead must be"):
            torchshare.Runtime(run_ahead=value)
