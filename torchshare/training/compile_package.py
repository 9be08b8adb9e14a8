"""Compiles a traced graph in its own process: `python compile_package.py REQUEST PACKAGE`.

Inductor has process-wide state, holds the GIL for seconds and cannot be cancelled, so it runs outside the jobs'
process. This file imports torch only.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # before torch.export, which otherwise sees it half imported
from torch._inductor import config, cpu_vec_isa


def compile_request(request: dict[str, Any], package: Path) -> None:
    """Compiles `request`, made by `step_package.request_of`, to the file `package`."""
    inputs = tuple(
        torch.empty_strided(size, stride, dtype=dtype, device=device)
        for size, stride, dtype, device in request["inputs"]
    )
    torch.set_num_threads(request["threads"])
    # Inductor compiles and runs a test program for each vector extension, which takes 12 s. The CPU's feature flags are
    # enough; extensions that only the test programs detect (bfloat16, AMX) stay unused.
    config.cpp.vec_isa_ok = True
    cpu_vec_isa.VecISA.check_build = lambda *_: False  # type: ignore[method-assign]
    rows = torch.export.Dim("rows", min=1)
    shapes = tuple({0: rows} if index in request["any_rows"] else None for index in range(len(inputs)))
    exported = torch.export.export(request["graph"], inputs, dynamic_shapes=shapes, strict=False)
    torch._inductor.aoti_compile_and_package(
        exported, package_path=str(package), inductor_configs={**request["options"]}
    )
    # A package that crashes when it is loaded, such as one built by a compiler with another C++ library than torch's,
    # ends this process and not the jobs'. The line is then the last of the log.
    print("the package was compiled, but does not load", flush=True)
    torch._inductor.aoti_load_package(str(package))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compile_request(torch.load(sys.argv[1], weights_only=False), Path(sys.argv[2]))
