"""NVIDIA's MPS, which runs kernels of several processes at the same time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

MPS_CONTROL = "nvidia-cuda-mps-control"


@contextlib.contextmanager
def multi_process_service() -> Iterator[dict[str, str]]:
    """Runs NVIDIA's MPS meanwhile, in a folder of its own; yields what its clients need in their environment.
    RuntimeError: why not."""
    if shutil.which(MPS_CONTROL) is None:
        raise RuntimeError(f"skipped: there is no {MPS_CONTROL}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        own = {f"CUDA_MPS_{what}_DIRECTORY": f"{folder}/{what.lower()}" for what in ("PIPE", "LOG")}
        environment = {**os.environ, **own}
        for path in own.values():
            Path(path).mkdir()
        said = Path(folder, "said")  # a file, for the daemon keeps what it inherits open
        try:
            with said.open("w") as log:
                done = subprocess.run([MPS_CONTROL, "-d"], env=environment, stdout=log, stderr=log, timeout=20)
            if done.returncode != 0:
                raise RuntimeError(f"skipped: {MPS_CONTROL} -d does not start: {said.read_text().strip()}")
            yield own
        finally:
            with said.open("a") as log:
                subprocess.run([MPS_CONTROL], input=b"quit\n", env=environment, stdout=log, stderr=log, timeout=20)
