"""Which multiprocessors of the emulated device jobs with `sms=` have: a GPU does not tell."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest
import torch

import torchshare
from torchshare import Job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("TORCHSHARE_EMULATOR" not in os.environ, reason="needs the emulated device"),
]

emulator = ctypes.CDLL(None)  # preloaded by run.sh
emulator.emulator_multiprocessors.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint)]


def multiprocessors(stream: torch.cuda.Stream) -> range:
    first = ctypes.c_uint()
    count = emulator.emulator_multiprocessors(stream.cuda_stream, ctypes.byref(first))
    return range(first.value, first.value + count)


def together(*sms: int | None) -> list[range | str]:
    """The multiprocessors of jobs that run at a time and have asked, one after the other, for so many; or the error."""
    everyone, mine = threading.Event(), [threading.Event() for _ in sms]

    def look(number: int, job: Job) -> range:
        own, opened = multiprocessors(torch.cuda.current_stream()), multiprocessors(torch.cuda.Stream())
        assert own == opened and len(own) == (job.sms or 0)
        mine[number].set()
        assert everyone.wait(300)
        return own

    with torchshare.Runtime("cuda") as runtime:
        runtime.start()
        jobs = []
        for number, count in enumerate(sms):
            jobs.append(runtime.submit(lambda job, n=number: look(n, job), name=f"job{number}", sms=count))
            while not mine[number].wait(0.01) and jobs[-1].state != "failed":
                pass
        everyone.set()
        runtime.wait(300, check=False)
    return [job.result.value if job.state == "finished" else str(job.result.exception) for job in jobs]


def test_jobs_have_no_multiprocessor_in_common() -> None:
    """Two jobs had the same first ones, and the rest of the GPU was idle."""
    first, second, third = together(40, 40, 16)
    assert not set(first) & set(second) and not set(first) & set(third) and not set(second) & set(third)
    assert [len(first), len(second), len(third)] == [40, 40, 16]
    assert together(40) == [first]  # a part is kept for the next job that asks for as many


def test_a_job_that_asks_for_more_than_is_left_is_refused() -> None:
    whole = torch.cuda.get_device_properties(0).multi_processor_count
    first, refused, rest = together(100, 100, 24)
    assert refused == (
        f"sms must be at most {whole - 104}, which other jobs have left of this GPU's {whole} multiprocessors, got 100"
    )
    assert not set(first) & set(rest)
    (alone,) = together(whole - 8)  # when no job has a part, the whole GPU is split anew
    assert len(alone) >= whole - 8
    assert together(whole + 1) == [f"sms must be from 1 to {whole}, the number of this GPU, got {whole + 1}"]


def test_a_job_without_a_part_may_use_all() -> None:
    part, everything = together(40, None)
    assert len(part) == 40 and len(everything) == 0
