"""What the driver is asked for each op of a job, beyond what torch asks it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch

import torchshare
from torchshare import Job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("TORCHSHARE_EMULATOR" not in os.environ, reason="needs the emulated CUDA device"),
]

OPS = 1600
CALLS = ("cudaStreamQuery", "cudaEventQuery", "cudaEventRecord", "cudaStreamWaitEvent")

emulator = ctypes.CDLL(None)
emulator.emulator_calls.restype = ctypes.c_uint64
emulator.emulator_calls.argtypes = [ctypes.c_char_p]


def calls_of_adding(x: torch.Tensor) -> dict[str, int]:
    """How often each of the calls was made for `OPS` ops."""
    before = [emulator.emulator_calls(call.encode()) for call in CALLS]
    for _ in range(OPS):
        x.add_(1)
    after = [emulator.emulator_calls(call.encode()) for call in CALLS]
    return {call: end - begin for call, begin, end in zip(CALLS, before, after, strict=True)}


def calls_in_a_job(found: bool) -> dict[str, int]:
    def job(_job: Job) -> dict[str, int]:
        x = torch.zeros(8, device="cuda")
        if found:
            x.__cuda_array_interface__  # noqa: B018
            torch.cuda.synchronize()
            own = torch.cuda.current_stream()
            torch._C._cuda_setStream(stream_id=0, device_index=0, device_type=1)
            torch.cuda._sleep(100_000_000)
            torch.cuda.set_stream(own)
        x.add_(1)
        return calls_of_adding(x)

    with torchshare.Runtime(device="cuda") as runtime:
        submitted = runtime.submit(job, name="adds", threads=1)
        runtime.wait(120)
    return submitted.result.value


def test_a_job_that_stays_within_torch_looks_at_the_legacy_stream_before_one_op_in_16() -> None:
    calls = calls_in_a_job(found=False)
    assert calls["cudaStreamQuery"] <= OPS // 16 + 1 and calls["cudaEventQuery"] <= OPS // 16 + 1
    assert calls["cudaEventRecord"] == calls["cudaStreamWaitEvent"] == 0


def test_a_job_that_is_submitted_and_starts_leaves_nothing_on_the_legacy_stream() -> None:
    """Jobs that run beside it took the events for work of their own that was launched past torch."""
    torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    before = emulator.emulator_calls(b"cudaEventRecord")
    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(lambda _job: None, name="idle", threads=1)
        runtime.wait(120)
    assert emulator.emulator_calls(b"cudaEventRecord") == before


@pytest.mark.filterwarnings("ignore:.*legacy default stream")
def test_a_job_with_work_there_has_two_events_per_op() -> None:
    calls = calls_in_a_job(found=True)
    assert calls == {
        "cudaStreamQuery": 0,
        "cudaEventQuery": 0,
        "cudaEventRecord": 2 * OPS,
        "cudaStreamWaitEvent": 2 * OPS,
    }


def times(*calls: str) -> list[int]:
    return [emulator.emulator_calls(call.encode()) for call in calls]


def test_the_events_that_time_ops_are_used_again_and_destroyed() -> None:
    def job(_job: Job) -> None:
        x = torch.zeros(8, device="cuda")
        for _ in range(4000):  # two events each
            x.add_(1)

    before = times("cudaEventCreate", "cudaEventDestroy")
    with torchshare.Runtime(device="cuda", policy="best_fit") as runtime:
        runtime.submit(job, name="adds", threads=1, record_ops=True)
        runtime.wait(120)
    made, destroyed = (
        after - former for former, after in zip(before, times("cudaEventCreate", "cudaEventDestroy"), strict=True)
    )
    assert 0 < made <= 4096 and destroyed >= made


def priority_of_stream(priority: str) -> int:
    with torchshare.Runtime(device="cuda") as runtime:
        job = runtime.submit(lambda _job: torch.cuda.current_stream().priority, name="a", threads=1, priority=priority)
        runtime.wait(120)
    return job.result.value


def test_a_job_gets_the_stream_of_an_ended_one_of_its_priority() -> None:
    high, low = priority_of_stream("primary"), priority_of_stream("secondary")
    assert high < low
    before = times("cudaStreamCreateWithPriority")
    assert [priority_of_stream(each) for each in ("secondary", "primary", "primary")] == [low, high, high]
    assert times("cudaStreamCreateWithPriority") == before


LOST = """
import ctypes
import torch, torchshare

emulator = ctypes.CDLL(None)
emulator.emulator_calls.restype = ctypes.c_uint64

def allocates(job):
    side = torch.cuda.Stream()
    x = torch.ones(4, device="cuda")
    x.record_stream(side)
    del x  # from now on, the allocator asks whether the other stream is done
    emulator.emulator_lose_device(710)
    for _ in range(3):
        try:
            torch.cuda.caching_allocator_alloc(2**20)
        except RuntimeError as error:
            print(str(error).splitlines()[0], "|", emulator.emulator_calls(b"cudaEventQuery"))

with torchshare.Runtime(device="cuda") as runtime:
    runtime.submit(allocates, threads=1)
    runtime.wait(60, check=False)
"""


def test_the_allocator_is_not_asked_again_once_the_device_is_lost() -> None:
    """torch 2.11 leaves a null event in its list, and crashes at the next call."""
    ran = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    first, *others = ran.stdout.splitlines()
    assert "device-side assert" in first and others == [first, first]
