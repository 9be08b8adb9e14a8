"""Packages of compiled steps and models: a cache on disk, and the process that fills it."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout

from torchshare import _C
from torchshare.durable.cache import CacheUnusable, check_file, own_folder
from torchshare.training import compile_package
from torchshare.training.traced import Traced, Untraceable

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")

_FORMAT = 2  # part of the cache key
_POLL_S = 0.02


def package_of(traced: Traced, threads: int, job: JobContext) -> Path:
    """The package of a traced step or model. If the cache has none, compiles it and checks it against eager. Called in
    the job's thread.

    Raises:
        Untraceable: if the cache cannot be used, the compiler fails, its package does not load, or the compiled step
            differs from eager.
    """
    try:
        return _cached(traced, request_of(traced, threads), job)
    except (CacheUnusable, OSError) as error:
        raise Untraceable(f"the cache of compiled steps cannot be used: {error}") from None


def _cached(traced: Traced, request: dict[str, Any], job: JobContext) -> Path:
    folder, key = own_folder("steps"), _key(request)
    # handle.sleep() ends at a cancel, and lets lower jobs run.
    with (
        _locked(folder / f"{key}.lock", job.handle.sleep),
        tempfile.TemporaryDirectory(dir=folder, prefix="compile-") as scratch,
    ):
        package = _intact(folder, key)
        if package is None:
            compiled = _compile(request, Path(scratch), job)
            traced.check(load_package(compiled).run)
            package = folder / _name(key, compiled)
            os.replace(compiled, package)
    return package


def _name(key: str, package: Path) -> str:
    """The file name of a package in the cache, which has the digest of its contents."""
    return f"{key}.{hashlib.sha256(package.read_bytes()).hexdigest()}.pt2"


def _intact(folder: Path, key: str) -> Path | None:
    """The package in the cache. Deletes one that is damaged or that someone else may have written."""
    for package in folder.glob(f"{key}.*.pt2"):
        try:
            check_file(package)
            if package.name == _name(key, package):
                return package
            reason = "its contents have changed"
        except (CacheUnusable, OSError) as error:
            reason = str(error)
        log.warning("the package %s is compiled again: %s", package, reason)
        package.unlink(missing_ok=True)
    return None


def load_package(path: Path, runners: int = 1) -> _C.StepPackage:
    """`runners`: calls of the package that can run at a time."""
    try:
        return _C.StepPackage(str(path), runners)
    except (ValueError, RuntimeError) as error:
        path.unlink(missing_ok=True)  # the next run compiles it again
        raise Untraceable(f"its package cannot be loaded: {error}") from None


def request_of(traced: Traced, threads: int) -> dict[str, Any]:
    """The input of compile_package.py; also determines the cache key."""
    has_rows = traced.data and traced.data[0].dim() > 0 and not traced.any_rows
    rows = f" of {traced.data[0].shape[0]} rows" if has_rows else ""
    first = len(traced.inputs) - len(traced.data)
    any_rows = [first + index for index in traced.any_rows]
    return {
        "graph": traced.graph,
        "inputs": [(tuple(t.shape), t.stride(), t.dtype, t.device.type) for t in traced.inputs],
        "any_rows": any_rows,
        "threads": threads,
        "options": {
            "cpp.threads": threads,
            "aot_inductor.metadata": {
                "torchshare.torch": torch.__version__.split("+")[0],
                "torchshare.inputs": "\n".join(
                    _C.tensor_spec(tensor, index in any_rows) for index, tensor in enumerate(traced.inputs)
                ),
                "torchshare.name": f"compiled {traced.kind}{rows}",
            },
        },
    }


def _key(request: dict[str, Any]) -> str:
    parts = (
        _FORMAT,
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        request["graph"].code,
        request["inputs"],
        request["options"],
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _compile(request: dict[str, Any], folder: Path, job: JobContext) -> Path:
    name = request["options"]["aot_inductor.metadata"]["torchshare.name"]
    log.info("job '%s': compiling '%s' (%d ops), once", job.name, name, len(request["graph"].graph.nodes))
    begin = time.monotonic()
    request_file, package, output_file = folder / "request.pt", folder / "step.pt2", folder / "log"
    try:
        torch.save(request, request_file)
    except RuntimeError as error:  # of torch's writer, for any error of the file system
        raise Untraceable(f"its graph cannot be written: {str(error).partition(chr(10))[0]}") from None
    with output_file.open("w") as output:
        # Run as a file, not as `-m torchshare...`, which would import torchshare.
        process = Popen(
            [sys.executable, compile_package.__file__, str(request_file), str(package)],
            stdout=output,
            stderr=output,
            cwd=folder,
            env={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "inductor"),  # caches precompiled headers
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
            },
        )
        try:
            while process.poll() is None:
                job.handle.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0 or not package.exists():
        lines = output_file.read_text().strip().splitlines()
        raise Untraceable(f"the compiler failed: {lines[-1][:200] if lines else process.returncode}")
    log.info("job '%s': compiled '%s' in %.0f s", job.name, name, time.monotonic() - begin)
    return package


@contextmanager
def _locked(path: Path, sleep: Callable[[float], None]) -> Iterator[None]:
    """Holds a file lock, across processes: two jobs with the same step compile it once."""
    lock = FileLock(path, thread_local=False)
    while not lock.is_locked:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()
