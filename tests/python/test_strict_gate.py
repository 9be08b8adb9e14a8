"""policy="strict": the secondary runs in the primary's gaps."""

from __future__ import annotations

import time

import pytest
import torch
from conftest import run_ops_for_ever, wait_until

import torchshare
from torchshare import Job


def busy(job: Job) -> None:
    x = torch.ones(256, 256)
    while True:
        torch.mm(x, x)


def sleeps(job: Job) -> None:
    while True:
        time.sleep(0.05)


def computes_in_python(job: Job) -> None:
    while True:
        sum(range(1000))


def loads(job: Job) -> None:
    def loader():
        while True:
            time.sleep(0.01)
            yield torch.ones(2)

    for batch in job.batches(loader()):
        list(batch)


def ops_in(seconds: float, primary, expected: int = 0) -> int:
    """The number of ops that a secondary runs beside `primary`; waits for at least `expected` ops."""
    with torchshare.Runtime(policy="strict", grace=0.005) as runtime:
        first = runtime.submit(primary, name="first", priority="primary", threads=1)
        second = runtime.submit(run_ops_for_ever, name="second", threads=1)
        runtime.start()
        wait_until(lambda: first.state == second.state == "running")
        before = second.result.ops
        time.sleep(seconds)
        wait_until(lambda: second.result.ops - before >= expected)
        ops = second.result.ops - before
        runtime.cancel()
        runtime.wait(300)
    return ops


@pytest.mark.parametrize("primary", [sleeps, computes_in_python, loads])
def test_the_secondary_makes_progress_whenever_the_primary_waits(primary):
    assert ops_in(0.0, primary, expected=20) >= 20


def test_a_busy_primary_keeps_the_secondary_out():
    """It may enter where the primary gets no core for the grace, which is not always so."""
    wait_until(lambda: ops_in(0.4, busy) * 20 < ops_in(0.4, sleeps))


def test_ops_that_hold_the_interpreter_lock_do_not_hang_a_gated_job():
    def lock_holders(job: Job) -> int:
        x = torch.ones(8, 8)
        for _ in range(300):
            x.as_strided((4, 4), (8, 1)).detach().select(0, 1)[1:].add_(1)
            torch.tensor([1.0, 2.0])  # lift_fresh
        return 1

    with torchshare.Runtime(policy="strict") as runtime:
        first = runtime.submit(busy, name="first", priority="primary", threads=1)
        runtime.submit(lock_holders, name="second", threads=1)
        runtime.start()
        wait_until(lambda: first.result.ops > 50)
        first.cancel()
        assert runtime.wait(300)["second"].value == 1
