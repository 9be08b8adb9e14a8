"""Which multiprocessors of the emulated device jobs with `sms=` have: CUDA has no call that tells."""

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


def multiprocessors(stream: torch.cuda.Stream) -> set[int]:
    """Those that the stream may use; none: it may use all."""
    may_use = (ctypes.c_bool * torch.cuda.get_device_properties(0).multi_processor_count)()
    emulator.emulator_multiprocessors(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(may_use))
    return {number for number, used in enumerate(may_use) if used}


def together(*sms: int | None) -> list[set[int] | str]:
    """The multiprocessors of jobs that run at a time and have asked, one after the other, for so many; or the error."""
    everyone, mine = threading.Event(), [threading.Event() for _ in sms]

    def look(number: int, job: Job) -> set[int]:
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
    """Before, two jobs had the same first ones, and the rest of the GPU was idle."""
    parts = together(40, 40, 16)
    assert [len(part) for part in parts] == [40, 40, 16]
    assert len(set().union(*parts)) == 96


def test_a_job_that_asks_for_more_than_is_left_is_refused() -> None:
    whole = torch.cuda.get_device_properties(0).multi_processor_count
    first, refused, rest = together(100, 100, 24)
    assert refused == (
        f"sms must be at most {whole - 104}, which other jobs have left of this GPU's {whole} multiprocessors, got 100"
    )
    assert not first & rest
    assert [len(part) for part in together(whole)] == [whole]
    assert together(whole + 1) == [f"sms must be from 1 to {whole}, the number of this GPU, got {whole + 1}"]


def test_what_a_job_gives_back_serves_others_beside_one_that_runs() -> None:
    begun, done = threading.Event(), threading.Event()

    def lasts(_job: Job) -> set[int]:
        own = multiprocessors(torch.cuda.current_stream())
        begun.set()
        assert done.wait(300)
        return own

    with torchshare.Runtime("cuda") as runtime:
        job = runtime.submit(lasts, sms=64)
        runtime.start()
        assert begun.wait(300)
        others = [together(sms)[0] for sms in (16, 24, 32, 68, 8)]
        done.set()
        runtime.wait(300)
    assert [len(part) for part in others] == [16, 24, 32, 68, 8]
    assert not job.result.value & set().union(*others)


def test_a_job_without_a_part_may_use_all() -> None:
    part, everything = together(40, None)
    assert len(part) == 40 and not everything
