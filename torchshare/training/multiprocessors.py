"""Blocks of a job that run on some of the GPU's multiprocessors: `Job.on_sms`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.device import devices


@contextlib.contextmanager
def on_sms(job: JobContext, sms: int) -> Iterator[int]:
    """See Job.on_sms."""
    if current.job() is not job:
        thread = threading.current_thread().name
        raise RuntimeError(f"job '{job.name}': on_sms must be used in its own thread, got thread '{thread}'")
    if not isinstance(sms, int) or isinstance(sms, bool) or not 0 < sms < 2**31:
        raise ValueError(f"job '{job.name}': sms must be a positive integer below 2**31, got {sms!r}")
    try:
        part = job.handle.take_part(sms)  # given back as the block ends, with the last reference
    except ValueError as error:
        raise ValueError(f"job '{job.name}': {error}") from None
    with devices.CUDA.on_stream(part.stream, job.device):
        yield part.sms
