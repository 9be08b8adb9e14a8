"""Jobs on a GPU that are suspended, resumed and cancelled, or that fail, beside jobs that must not notice."""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Gatekeeper, wait_until
from gpu_jobs import SLEEP_CYCLES, alone, attention, conv, held_by_tensors, identical, run_pair, trainer
from torch import Tensor

import torchshare
from torchshare import Job

sys.path.insert(0, str(Path(__file__).parents[1]))

import soak

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*takes its statistics")]


def test_random_moments(caplog: pytest.LogCaptureFixture) -> None:
    """Jobs start, are suspended, resumed and cancelled, and fail, up to three at a time; the others train as alone."""
    caplog.set_level(logging.CRITICAL, "torchshare")  # jobs fail here all the time
    baselines = soak.Baselines("cuda")
    for seed in range(20):
        soak.one_round(random.Random(seed), baselines)
    before = held_by_tensors()
    for seed in range(20, 24):
        soak.one_round(random.Random(seed), baselines)
    assert held_by_tensors() <= before + soak.MIB


def test_a_suspended_job_launches_nothing(policy: str) -> None:
    counter = torch.zeros((), device="cuda")
    torch.cuda.synchronize()

    def counts(_job: Job) -> None:
        while True:
            counter.add_(1)

    with torchshare.Runtime(device="cuda", policy=policy, max_wait=0.01) as runtime:
        job = runtime.submit(counts, threads=1)
        runtime.start()
        for _ in range(3):
            ops = job.result.ops
            wait_until(lambda ops=ops: job.result.ops > ops + 100)
            job.suspend()
            wait_until(lambda: job.state == "suspended")
            torch.cuda.synchronize()  # outside of jobs: the whole device
            before = counter.item()
            runtime.submit(trainer(conv, epochs=1), name=f"beside {ops}", priority="primary", threads=1)
            wait_until(lambda: len(runtime.jobs) > 1 and runtime.jobs[-1].state == "finished")
            assert counter.item() == before > 0
            job.resume()
            wait_until(lambda: job.state == "running")  # the state follows the job; it may still say "suspended"
        job.cancel()
        results = runtime.wait(60)
    assert results["counts"].state == "cancelled"
    expected = alone(conv, 0, epochs=1)
    assert all(identical(expected, result.value) for name, result in results.items() if name != "counts")


def test_a_cancel_while_a_graph_is_captured() -> None:
    """The job ends inside its capture; the other's graphs, and the next job's, are as ever."""
    keeper = Gatekeeper()

    def captures(job: Job) -> None:
        weights = torch.ones(4, device="cuda", requires_grad=True)
        passes = []

        def loss_fn(x: Tensor) -> Tensor:
            passes.append(x)
            if torch.cuda.is_current_stream_capturing():
                keeper.pause()
            return (weights * x).sum()

        loss = job.graph(loss_fn)
        for batch in job.batches([torch.ones(2, 4, device="cuda")] * 3):
            batch.backward(loss)

    with torchshare.Runtime(device="cuda") as runtime:
        job = runtime.submit(captures, threads=1)
        runtime.start()
        assert keeper.reached.wait(300)
        runtime.submit(trainer(conv), name="other", priority="primary", threads=1)
        job.cancel()
        keeper.release.set()
        results = runtime.wait(60)
    assert results["captures"].state == "cancelled"
    assert identical(alone(conv, 0), results["other"].value)
    results = run_pair(trainer(conv, graph=True), trainer(attention, graph=True))
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)


class Fails(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(_ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_ctx: object, _gradient: Tensor) -> Tensor:
        raise ArithmeticError("in backward")


def in_backward(_job: Job) -> None:
    Fails.apply(torch.ones(4, device="cuda", requires_grad=True)).sum().backward()


def in_forward(_job: Job) -> None:
    torch.ones(3, device="cuda") @ torch.ones(4, device="cuda")


def in_a_capture(job: Job) -> None:
    weights = torch.ones(4, device="cuda", requires_grad=True)

    def loss_fn(x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise ArithmeticError("in a capture")
        return (weights * x).sum()

    loss = job.graph(loss_fn)
    for batch in job.batches([torch.ones(2, 4, device="cuda")] * 3):
        batch.backward(loss)
    raise ArithmeticError(loss.fallback)


def with_work_queued(_job: Job) -> None:
    torch.cuda._sleep(SLEEP_CYCLES // 10)
    raise ArithmeticError("with work queued")


@pytest.mark.filterwarnings("ignore:.*run in eager, not as a graph")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (in_forward, "must match|size mismatch|inconsistent tensor size"),
        (in_backward, "in backward"),
        (in_a_capture, "in a capture"),
        (with_work_queued, "with work queued"),
    ],
)
def test_a_job_that_fails_ends_alone(function: Callable[[Job], None], message: str) -> None:
    results = run_pair(function, trainer(attention), check=False)
    assert results["first"].state == "failed"
    with pytest.raises((ArithmeticError, RuntimeError), match=message):
        raise results["first"].exception  # type: ignore[misc]
    assert identical(alone(attention, 1), results["second"].value)


def test_a_runtime_that_is_closed_in_the_middle() -> None:
    """Both jobs end; the next runtime finds their streams idle and trains as ever."""
    started = [threading.Event(), threading.Event()]

    def endless(index: int) -> Callable[[Job], None]:
        def run(_job: Job) -> None:
            x = torch.ones(256, 256, device="cuda")
            while True:
                x = (x @ x).clamp_(-1, 1)
                started[index].set()

        return run

    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(endless(0), name="a", priority="primary")
        runtime.submit(endless(1), name="b")
        runtime.start()
        assert all(event.wait(300) for event in started)
        runtime.close()
        assert [result.state for result in runtime.results.values()] == ["cancelled", "cancelled"]
    results = run_pair(trainer(conv), trainer(attention))
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)
