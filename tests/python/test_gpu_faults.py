"""What goes wrong on a GPU, and what is left standing. Each device that is lost is a process's own."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch
from conftest import Gatekeeper, python

import torchshare
from torchshare import Job, _core

pytestmark = pytest.mark.gpu

MIB = 2**20
SLEEP_CYCLES = 1_000_000_000  # of torch.cuda._sleep: about half a second


def last_error() -> int:
    """Of the calling thread, as torch reads it after a kernel launch."""
    return ctypes.CDLL(None).cudaPeekAtLastError()  # torch has loaded the library for all


def test_asking_whether_work_is_done_leaves_no_error_behind() -> None:
    def look(_job: Job) -> list[int]:
        x = torch.ones(4, device="cuda")
        torch.cuda._sleep(SLEEP_CYCLES)
        errors = []
        for _ in range(20):  # the gate asks for the times of ops that the device has not come to
            x.add_(1)
            errors.append(last_error())
        return errors

    with torchshare.Runtime(device="cuda", policy="best_fit") as runtime:
        runtime.submit(look, threads=1)
        assert runtime.wait(300)["look"].value == [0] * 20


LOST = """
import time, torch, torchshare
from torch import nn
from threading import Event

ready = Event()

def looks_up(job):
    embedding = nn.Embedding(4, 4, device="cuda")
    for _ in range(30):
        torch.ones(4, device="cuda").add_(1)
    ready.set()
    found = embedding(torch.tensor([9], device="cuda"))
    time.sleep({host_s})
    return found.sum().item()

def other(job):
    side = torch.cuda.Stream()
    x = torch.ones(64, 64, device="cuda")
    ready.wait()
    while True:
        for _ in range(16):
            x = (x @ x).clamp_(-1, 1)
            x.record_stream(side)
        torch.cuda.synchronize()
        time.sleep(0.002)  # a gap for a lower job

with torchshare.Runtime(device="cuda", policy="{policy}") as runtime:
    runtime.submit(looks_up, priority="{first}")
    runtime.submit(other, priority="{second}")
    results = runtime.wait(300, check=False)
    for name in ("looks_up", "other"):
        print(results[name].state, "device-side assert" in str(results[name].exception))
    try:
        runtime.submit(other, name="late")
    except RuntimeError as error:
        print(error)
try:
    torchshare.Runtime(device="cuda")
except RuntimeError as error:
    print(error)
with torchshare.Runtime(device="cpu") as runtime:
    runtime.submit(lambda job: torch.ones(2).sum().item(), name="cpu")
    print(runtime.wait(300)["cpu"].value)
"""


@pytest.mark.parametrize(("first", "second", "host_s"), [("primary", "secondary", 0.5), ("secondary", "primary", 0)])
@pytest.mark.parametrize("policy", _core.gate_policy_names())
def test_an_asynchronous_error_fails_both_jobs_and_the_process_goes_on(
    policy: str, first: str, second: str, host_s: float
) -> None:
    done = python(LOST.format(policy=policy, first=first, second=second, host_s=host_s), timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    *jobs, late, again, cpu = done.stdout.splitlines()
    assert jobs == ["failed True"] * 2
    assert late == again
    assert late.startswith("device 'cuda:0' is lost to this process (CUDA error: device-side assert triggered)")
    assert cpu == "2.0"


UNNAMED = """
import torch, torchshare
from threading import Event

ready, lost = Event(), Event()

def looks_up(job):
    weight = torch.ones(4, 4, device="cuda")
    ready.wait()
    try:
        torch.nn.functional.embedding(torch.tensor([9], device="cuda"), weight).sum().item()
    finally:
        lost.set()

def other(job):
    torch.ones(4, device="cuda")
    ready.set()
    lost.wait()
    try:
        torch.ones(4, device="cuda").sum().item()
    except RuntimeError:
        raise {error}("CUBLAS_STATUS_EXECUTION_FAILED") from None

with torchshare.Runtime(device="cuda") as runtime:
    runtime.submit(looks_up)
    runtime.submit(other)
    print(repr(runtime.wait(300, check=False)["other"].exception))
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "RuntimeError",
            "CUBLAS_STATUS_EXECUTION_FAILED (the device is lost: device 'cuda:0' is lost to this process (CUDA",
        ),
        ("KeyError", "KeyError('CUBLAS_STATUS_EXECUTION_FAILED')"),
    ],
)
def test_a_job_whose_library_says_only_that_it_failed_is_told_of_the_lost_device(error: str, said: str) -> None:
    """cuBLAS does, on a GPU, if another job has caused the error."""
    done = python(UNNAMED.format(error=error), timeout=300)
    assert said in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("freed", ["during the capture", "after it"])
def test_memory_that_another_stream_uses_is_kept_while_another_job_captures(freed: str) -> None:
    """torch 2.11 forgets what `record_stream` said during a capture of any thread, if the tensor is freed in it."""
    keeper = Gatekeeper()
    ended = threading.Event()

    def captures(job: Job) -> None:
        y = torch.ones(8, device="cuda").add_(1)
        torch.cuda.synchronize()

        def work() -> None:
            y.add_(1)
            keeper.pause()

        job._context.handle.capture(work)
        ended.set()

    def uses(_job: Job) -> tuple[bool, bool, bool]:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        torch.zeros(MIB, device="cuda").mul_(2)  # loads the kernels, which may wait for the whole device
        assert keeper.reached.wait(300)
        with torch.cuda.stream(side):
            x = torch.ones(MIB, device="cuda")
        main.wait_stream(side)
        torch.cuda._sleep(SLEEP_CYCLES)
        twice = x * 2
        x.record_stream(main)
        at = x.data_ptr()
        if freed == "after it":
            keeper.release.set()
            assert ended.wait(300)
        del x
        keeper.release.set()
        assert ended.wait(300)
        with torch.cuda.stream(side):
            again = torch.zeros(MIB, device="cuda")
        taken = again.data_ptr() == at
        torch.cuda.synchronize()
        with torch.cuda.stream(side):  # but not for ever
            later = [torch.zeros(MIB, device="cuda") for _ in range(2)]
        return taken, at in [tensor.data_ptr() for tensor in later], bool((twice == 2).all())

    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(captures, threads=1)
        runtime.submit(uses, threads=1)
        results = runtime.wait(300)
    assert results["uses"].value == (False, True, True)
