"""Compiles a traced graph, in a process of its own: `python compile_package.py REQUEST PACKAGE`.

Inductor has process-wide state, takes the interpreter lock for seconds and cannot be cancelled; a process has none of
these problems. It imports torch alone.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # before torch.export, which otherwise finds half of it
from torch._inductor import config, cpu_vec_isa


def compile_request(request: dict[str, Any], package: Path) -> None:
    """`request`: see `step_package.request_of`."""
    inputs = tuple(
        torch.empty_strided(size, stride, dtype=dtype, device=device)
        for size, stride, dtype, device in request["inputs"]
    )
    torch.set_num_threads(request["threads"])
    # Inductor compiles a program for each vector extension, and runs Python to load it: 12 s. The processor's own word
    # is enough; what only those programs tell (bfloat16, AMX) is left alone.
    config.cpp.vec_isa_ok = True
    cpu_vec_isa.VecISA.check_build = lambda *_: False  # type: ignore[method-assign]
    exported = torch.export.export(request["graph"], inputs, strict=False)
    torch._inductor.aoti_compile_and_package(
        exported, package_path=str(package), inductor_configs={**request["options"]}
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compile_request(torch.load(sys.argv[1], weights_only=False), Path(sys.argv[2]))
