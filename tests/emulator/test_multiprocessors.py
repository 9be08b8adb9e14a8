"""Which multiprocessors of the emulated device jobs with `sms=` have: CUDA has no call that tells."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchshare
from torchshare import Job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("TORCHSHARE_EMULATOR" not in os.environ, reason="needs the emulated device"),
]

emulator = ctypes.CDLL(None)  # preloaded by run.sh
emulator.emulator_inject.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]


def multiprocessors(stream: torch.cuda.Stream) -> set[int]:
    """Those that the stream may use; none: it may use all."""
    may_use = (ctypes.c_bool * torch.cuda.get_device_properties(0).multi_processor_count)()
    emulator.emulator_multiprocessors(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(may_use))
    return {number for number, used in enumerate(may_use) if used}


def run(*functions: Callable[[Job], Any], **options: Any) -> list[Any]:
    """Runs jobs together, the first as the primary. Returns their values."""
    with torchshare.Runtime("cuda") as runtime:
        for number, function in enumerate(functions):
            priority = "secondary" if number else "primary"
            runtime.submit(function, name=f"job{number}", priority=priority, threads=1, **options)
        return [result.value for result in runtime.wait(300).values()]


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


def test_multiprocessors_of_a_part_that_cannot_be_made_are_left() -> None:
    whole = torch.cuda.get_device_properties(0).multi_processor_count
    out_of_memory = 2
    emulator.emulator_inject(b"cuGreenCtxCreate", out_of_memory, 0, 1)
    (failed,) = together(120)  # which no other test has, so that its context is not there
    assert isinstance(failed, str) and failed.startswith("cuGreenCtxCreate: ")
    assert [len(part) for part in together(whole)] == [whole]


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


def test_a_block_has_its_multiprocessors_and_the_jobs_priority() -> None:
    def look(job: Job) -> None:
        outside = torch.cuda.current_stream()
        own = multiprocessors(outside)
        with job.on_sms(30) as granted:
            inside = torch.cuda.current_stream()
            assert len(multiprocessors(inside)) == granted == 32  # groups of 8
            assert not multiprocessors(inside) & own
            assert inside.priority == outside.priority != torch.cuda.Stream.priority_range()[0]
            with job.on_sms(16):  # the outer block's are taken
                assert not multiprocessors(torch.cuda.current_stream()) & (multiprocessors(inside) | own)
            assert torch.cuda.current_stream() == inside
        assert torch.cuda.current_stream() == outside
        with job.on_sms(32):
            assert torch.cuda.current_stream() == inside  # nothing is made anew
        assert job.sms == (len(own) or None)

    for sms in (None, 16):
        run(look, sms=sms)


def test_another_job_has_the_multiprocessors_of_a_block_when_it_ends_however_it_ends() -> None:
    whole = torch.cuda.get_device_properties(0).multi_processor_count
    inside, seen, over = (threading.Event() for _ in range(3))

    def first(job: Job) -> None:
        try:
            with job.on_sms(whole):
                inside.set()
                assert seen.wait(300)
                raise KeyError("kept, with its traceback")
        except KeyError as error:
            kept = error
            over.set()
        del kept

    def second(job: Job) -> int:
        assert inside.wait(300)
        message = f"job 'job1': sms must be at most 0, which other jobs have left of this GPU's {whole}"
        with pytest.raises(ValueError, match=message), job.on_sms(8):
            pass
        seen.set()
        assert over.wait(300)
        with job.on_sms(whole) as granted:
            return granted
        return 0

    assert run(first, second)[1] == whole


def test_a_job_with_many_blocks_keeps_one_stream_for_each_set_of_multiprocessors() -> None:
    def many(job: Job) -> set[int]:
        streams = set()
        for number in range(200):
            with job.on_sms(8 * (1 + number % 3)):
                streams.add(torch.cuda.current_stream().cuda_stream)
        return streams

    (streams,) = run(many)
    assert len(streams) == 3
