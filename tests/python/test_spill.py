"""Suspended jobs whose memory is moved off the device."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import run_one, wait_until
from torch import Tensor, nn
from torch.nn import functional as F

import torchshare
from torchshare import Job

MIB = 2**20
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def wide(job: Job, at: Callable[[int], None] = lambda number: None, steps: int = 12) -> list[Tensor]:
    """Trains in sub-batches, with gradients over two batches; calls `at` in each. Returns losses and state."""
    device = job._context.device or "cpu"
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(8, 50_000), nn.BatchNorm1d(50_000), nn.Tanh(), nn.Linear(50_000, 1)).to(device)
    tied = net[0].weight.T  # a view
    optimizer = torch.optim.Adam(net.parameters())
    job.track(model=net, optimizer=optimizer)
    data = [(torch.randn(8, 8, device=device), torch.randn(8, 1, device=device)) for _ in range(steps)]
    losses = []
    for number, batch in enumerate(job.batches(data, sub_batch=4)):
        for index, sub in enumerate(batch):
            at(2 * number + index)
            loss = F.mse_loss(net(sub.x), sub.y) * sub.weight
            loss.backward()
            losses.append(loss.detach())
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(tied, net[0].weight.T)
    return [tensor.cpu() for tensor in (*losses, *net.state_dict().values())]


@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_freed_and_comes_back_bit_identical(device: str) -> None:
    """Suspended twice at once, between sub-batches of one batch, and between batches."""
    alone = run_one(wide, device=device).value
    held: list[int] = []

    def watched(job: Job) -> list[Tensor]:
        def at(place: int) -> None:
            held.append(job._context.handle.memory_held)
            if place in (7, 12, 13):
                job.suspend(spill=True)
                job.suspend(spill=True)

        return wide(job, at)

    with torchshare.Runtime(device=device) as runtime:
        job = runtime.submit(watched, name="a", threads=1, meter_memory=True)
        runtime.start()
        for place in (7, 12, 13):
            wait_until(lambda place=place: len(held) > place and job.state == "suspended")  # type: ignore[misc]
            assert job._context.handle.memory_held < held[-1] / 4
            time.sleep(0.05)
            assert job.state == "suspended"
            job.resume()
        results = runtime.wait(300)
    assert all(map(torch.equal, results["a"].value, alone))


def test_random_rounds_are_bit_identical_and_leak_nothing() -> None:
    alone = run_one(lambda job: wide(job, steps=60)).value
    stop = threading.Event()

    def disturb(job: Job) -> None:
        dice = random.Random(1)
        while not stop.is_set():
            job.suspend(spill=dice.random() < 0.8)
            time.sleep(dice.random() * 0.01)
            job.resume()
            time.sleep(dice.random() * 0.02)

    def spills(job: Job) -> list[Tensor]:
        """By itself, too: the other thread may get no core."""
        return wide(job, lambda place: job.suspend(spill=True) if place % 10 == 9 else None, steps=60)

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(spills, name="a", threads=1, meter_memory=True)
        runtime.start()
        thread = threading.Thread(target=disturb, args=(job,))
        thread.start()
        try:
            wait_until(lambda: job.state in ("finished", "failed"))
        finally:
            stop.set()
            thread.join()
        results = runtime.wait(300)
    assert job._context.moves > 3
    assert all(map(torch.equal, results["a"].value, alone))


def test_cancel_and_end_while_spilled() -> None:
    """A cancelled job has its tensors again when it cleans up; a finished job is not suspended."""
    cleaned = []

    def train(job: Job) -> None:
        net = nn.Linear(1000, 100)
        before = net.weight.detach().clone()
        job.track(model=net)
        try:
            for batch in job.batches([torch.ones(2, 1000)] * 1000):
                job.suspend(spill=True)
                batch.backward(lambda x: net(x).sum())
        finally:
            cleaned.append(torch.equal(net.weight, before))

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(train, name="a", threads=1)
        runtime.start()
        wait_until(lambda: job.state == "suspended")
        job.cancel()
        wait_until(lambda: job.state == "cancelled")
        job.suspend(spill=True)
        job.resume()
        assert job.state == "cancelled"
    assert cleaned == [True]


def test_a_job_waits_for_memory_when_it_is_resumed(caplog: Any) -> None:
    def train(job: Job) -> list[Tensor]:
        return wide(job, lambda place: job.suspend(spill=True) if place == 9 else None)

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(train, name="a", threads=1, meter_memory=True)
        runtime.start()
        wait_until(lambda: job.state == "suspended")
        job._context.handle.refuse_memory_after(1)
        job.resume()
        value = runtime.wait(300)["a"].value
    assert "job 'a': is resumed, and waits for memory" in caplog.text
    assert all(map(torch.equal, value, run_one(wide).value))


def test_without_room_the_memory_stays(caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchshare.memory.spill.tempfile.tempdir", "/nowhere")

    def train(job: Job) -> list[Tensor]:
        return wide(job, lambda place: job.suspend(spill=True) if place == 9 else None)

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(train, name="a", threads=1)
        runtime.start()
        wait_until(lambda: job.state == "suspended")
        job.resume()
        value = runtime.wait(300)["a"].value
    assert "job 'a': is suspended, but its memory stays on the device" in caplog.text
    assert all(map(torch.equal, value, run_one(wide).value))


def test_a_job_that_tracks_nothing_is_told_that_its_memory_stays(caplog: Any) -> None:
    def train(job: Job) -> None:
        for number, _ in enumerate(job.batches([torch.ones(2)] * 3)):
            if number == 0:
                job.suspend(spill=True)

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(train, name="a", threads=1)
        runtime.start()
        wait_until(lambda: job.state == "suspended")
        job.resume()
        runtime.wait(300)
    assert "job 'a': is suspended, but its memory stays on the device: pass what it holds to job.track" in caplog.text


@pytest.mark.parametrize("refused", [False, True])
def test_a_job_that_is_cancelled_as_it_is_resumed_has_its_tensors(refused: bool) -> None:
    """An emptied tensor would crash the process. Also if at first there is no memory for them."""
    sums: list[float] = []

    def train(job: Job) -> None:
        layers = nn.ModuleList(nn.Linear(500, 500) for _ in range(30))
        expected = [layer.weight.sum().item() for layer in layers]
        job.track(model=layers)
        try:
            for batch in job.batches([torch.ones(2, 500)] * 1000):
                job.suspend(spill=True)
                list(batch)
        finally:
            sums[:] = [layer.weight.sum().item() - before for layer, before in zip(layers, expected, strict=True)]

    for delay in (0.0, 0.003, 0.01, 0.03):
        sums.clear()
        with torchshare.Runtime(device="cpu") as runtime:
            job = runtime.submit(train, name="a", threads=1, meter_memory=True)
            runtime.start()
            wait_until(lambda job=job: job.state == "suspended")
            if refused:
                job._context.handle.refuse_memory_after(1)
            job.resume()
            time.sleep(delay)
            job.cancel()
            wait_until(lambda job=job: job.state == "cancelled")
        assert sums == [0.0] * 30


def test_a_plain_suspension_after_a_spill_is_kept() -> None:
    moving = threading.Event()

    class Slow(nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            moving.set()
            time.sleep(0.2)
            return super().parameters(recurse)

    def train(job: Job) -> None:
        net = Slow(10, 10)
        job.track(model=net)
        for batch in job.batches(itertools.repeat(torch.ones(2, 10))):
            list(batch)
            time.sleep(0.001)

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(train, name="a", threads=1)
        runtime.start()
        wait_until(lambda: job.result.steps > 3)
        job.suspend(spill=True)
        assert moving.wait(300)
        job.resume()
        job.suspend()
        wait_until(lambda: job.state == "suspended")
        steps = job.result.steps
        time.sleep(0.3)
        assert (job.state, job.result.steps) == ("suspended", steps)
        job.cancel()


def test_another_job_runs_in_the_place_of_a_spilled_one() -> None:
    def spilled(job: Job) -> list[Tensor]:
        return wide(job, lambda place: job.suspend(spill=True) if place == 9 else None)

    def resume(job: Job) -> None:
        wait_until(lambda: first.state == "suspended")  # its memory is free a moment earlier
        first.resume()

    with torchshare.Runtime(device="cpu", max_concurrent=1) as runtime:
        first = runtime.submit(spilled, name="a", threads=1)
        runtime.submit(resume, name="b", threads=1)
        results = runtime.wait(300)
    assert all(map(torch.equal, results["a"].value, run_one(wide).value))
