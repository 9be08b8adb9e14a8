"""Memory budgets: allocations beyond a budget are refused, in that job only."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_one
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import torchshare
from torchshare import Job

MIB = 2**20


def step(job: Job, width: int, rows: int = 64) -> float:
    model = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for batch in job.batches([(torch.ones(rows, 16), torch.ones(rows, 1))] * 3):
        loss = batch.backward(lambda x, y: F.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def test_an_allocation_beyond_the_budget_is_refused_in_that_job_only() -> None:
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: step(job, 100_000), name="large", memory_budget=8 * MIB, resplit=False, threads=1)
        runtime.submit(lambda job: step(job, 200), name="small", priority="primary", memory_budget=8 * MIB, threads=1)
        results = runtime.wait(300, check=False)
    error = results["large"].exception
    assert isinstance(error, torchshare.BudgetExceeded)
    assert isinstance(error, torch.OutOfMemoryError)
    assert str(error).startswith("job 'large': memory budget exceeded: requested 24.41 MiB, 6.")  # activations
    assert "of 8.00 MiB in use" in str(error)
    assert 6 * MIB < results["large"].memory_peak <= 8 * MIB
    assert results["small"].state == "finished"
    assert 0 < results["small"].memory_peak <= 8 * MIB


def in_a_thread() -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.empty, 4 * MIB).result()


def mapped() -> Tensor:
    with tempfile.NamedTemporaryFile() as file:
        torch.save(torch.from_numpy(np.zeros(4 * MIB, np.float32)), file.name)
        return torch.load(file.name, mmap=True)


@pytest.mark.parametrize(
    ("make", "counted"),
    [
        (lambda: torch.empty(4 * MIB), True),
        (lambda: torch.empty(4 * MIB).numpy(), True),
        (lambda: torch.from_numpy(np.zeros(4 * MIB, np.float32)), False),
        (lambda: torch.UntypedStorage(16 * MIB), False),
        (mapped, False),
        (in_a_thread, False),
    ],
    ids=["tensor", "its array", "array", "storage", "mapped", "thread"],
)
def test_what_a_budget_counts_is_what_the_readme_says(make: Callable[[], Any], counted: bool) -> None:
    def body(job: Job) -> object:
        del job
        return make()

    if counted:
        with pytest.raises(torchshare.BudgetExceeded):
            run_one(body, memory_budget=8 * MIB)
    else:
        run_one(body, memory_budget=8 * MIB)


def test_memory_that_becomes_shared_is_no_longer_counted() -> None:
    def body(job: Job) -> None:
        del job
        kept = [torch.empty(MIB).share_memory_() for _ in range(4)]
        assert len(kept) == 4

    run_one(body, memory_budget=6 * MIB)


@pytest.mark.parametrize("where", ["forward", "backward", "update"])
def test_a_job_continues_after_a_refusal_in_any_phase(where: str) -> None:
    # Weights of 4 MiB; the product and the gradient take as much each, Adam's state twice as much.
    limit = {"forward": 7, "backward": 7, "update": 11}[where]

    def train(job: Job) -> str:
        weights = torch.ones(MIB, requires_grad=True)
        optimizer = torch.optim.Adam([weights], foreach=False)
        reached = "forward"
        try:
            loss = (weights * 2).sum() if where == "forward" else weights.sum()
            reached = "backward"
            loss.backward()
            reached = "update"
            optimizer.step()
            reached = "the end"
        except torchshare.BudgetExceeded:
            weights.grad = None
            optimizer.state.clear()
            loss = None
            small = torch.ones(8, requires_grad=True)
            (small * 3).sum().backward()
            assert torch.equal(small.grad, torch.full((8,), 3.0))
        return reached

    assert run_one(train, memory_budget=limit * MIB).value == where
    assert run_one(train, memory_budget=64 * MIB).value == "the end"


def test_a_smaller_sub_batch_fits() -> None:
    def train(job: Job, sub_batch: int | None) -> float:
        model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 1))
        for batch in job.batches([(torch.ones(512, 64), torch.ones(512, 1))], sub_batch):
            return batch.backward(lambda x, y: F.mse_loss(model(x), y)).item()
        raise AssertionError

    with pytest.raises(torchshare.BudgetExceeded):
        run_one(lambda job: train(job, None), memory_budget=12 * MIB, resplit=False)
    assert run_one(lambda job: train(job, 64), memory_budget=12 * MIB).value > 0


def test_workers_of_a_loader_have_memory_of_their_own() -> None:
    def train(job: Job) -> int:
        data = TensorDataset(torch.ones(8, 1000))
        full = torch.ones(2 * MIB // 4 - 10_000)
        seen = sum(len(x) for (x,) in DataLoader(data, batch_size=2, num_workers=1))
        return seen + len(full) * 0

    assert run_one(train, memory_budget=2 * MIB + 40_000, timeout=300).value == 8


def test_a_profiler_works_in_a_metered_job() -> None:
    def profiled(job: Job) -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            torch.ones(100).add(1)
        return [event.key for event in profiler.key_averages()]

    assert "aten::add" in run_one(profiled, meter_memory=True).value


@pytest.mark.parametrize("budget", [0, -1, 1.5, "1GB", True, 2**64])
def test_invalid_budgets_are_refused(budget: Any) -> None:
    with torchshare.Runtime() as runtime, pytest.raises(ValueError, match=r"job 'a': memory_budget must be"):
        runtime.submit(print, name="a", memory_budget=budget)


@pytest.mark.parametrize(("floats", "collections"), [(2**20, 1), (2**10, 0)])
def test_what_a_job_leaves_in_cycles_is_collected_if_it_is_large(floats: int, collections: int) -> None:
    """A full collection stops the other job. Each end of a job ran one, which took 0.17 s."""
    generations: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    def leaves(job: Job) -> bool:
        cycle: list[object] = [torch.zeros(floats)]
        cycle.append(cycle)
        return torch.distributed.is_initialized()

    gc.collect()
    gc.disable()
    gc.callbacks.append(count)
    try:
        with torchshare.Runtime() as runtime:
            job = runtime.submit(leaves, name="leaves", meter_memory=True)
            runtime.wait(300)
            held = job._context.handle.memory_held
    finally:
        gc.callbacks.remove(count)
        gc.enable()
    assert generations.count(2) == collections
    assert (held == 0) == (collections == 1)
