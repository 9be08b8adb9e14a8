"""Threads that a job starts itself: random numbers are the job's, and so is what it has replaced."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import torch
from conftest import run_one
from test_shared_torch import both
from torch import nn
from torch.nn import functional as F

from torchshare import Job


def drawn() -> list[float]:
    """Of every kind, in the calling thread."""
    torch_drawn = [
        float(torch.randn(1)),
        float(nn.functional.dropout(torch.ones(64)).sum()),
        float(torch.randperm(99)[0]),
    ]
    return [*torch_drawn, random.random(), float(numpy.random.rand())]


def in_thread(function: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def prefetched(_job: Job) -> list[list[float]]:
    """A prefetcher that adds noise, in a pool; and one thread that starts another."""
    with ThreadPoolExecutor(1) as pool:
        return [
            *(pool.submit(drawn).result() for _ in range(20)),
            drawn(),
            in_thread(lambda: in_thread(drawn)),
            in_thread(lambda: torch.manual_seed(3).initial_seed() and drawn()),
        ]


def test_threads_draw_from_the_random_state_of_their_job():
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[2]
    alone = run_one(prefetched, seed=0).value
    assert both(prefetched, prefetched) == [alone, alone]
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[2]
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def test_a_job_draws_as_a_program_would():
    def program() -> list[list[float]]:
        torch.manual_seed(5)
        random.seed(5)
        numpy.random.seed(5)
        with ThreadPoolExecutor(1) as pool:
            return [drawn(), pool.submit(drawn).result(), drawn()]

    assert run_one(lambda _job: program()).value == in_thread(program)


def test_threads_find_what_their_job_has_replaced():
    def replaces(_job: Job) -> float:
        F.relu = lambda x: x * 7  # type: ignore[assignment]
        return float(in_thread(lambda: F.relu(torch.ones(()))))

    assert both(replaces, lambda _job: float(in_thread(lambda: F.relu(torch.ones(()))))) == [7.0, 1.0]


def test_a_thread_may_outlive_its_job():
    go_on, drawn_after = threading.Event(), []

    def late() -> None:
        go_on.wait(300)
        drawn_after.append(float(torch.randn(1)))

    def starts(_job: Job) -> threading.Thread:
        thread = threading.Thread(target=late, daemon=True)
        thread.start()
        return thread

    thread = run_one(starts).value
    go_on.set()
    thread.join(60)
    assert len(drawn_after) == 1
