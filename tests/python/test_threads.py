"""Threads that a job starts itself: random numbers, what it has replaced, and intra-op threads are the job's."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import torch
from conftest import Ran, run_one, script
from test_shared_torch import both
from torch import nn
from torch.nn import functional as F

import torchshare
from torchshare import Job
from torchshare.isolation import compiling


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


def test_a_thread_has_as_many_intra_op_threads_as_the_one_that_starts_it() -> None:
    """It had as many as another job had set last."""
    has_set, has_read = threading.Event(), threading.Event()

    def reads(_job: Job) -> int:
        torch.set_num_threads(3)
        assert has_set.wait(300)
        try:
            return int(in_thread(lambda: torch.get_num_threads()))
        finally:
            has_read.set()

    def sets(_job: Job) -> None:
        torch.set_num_threads(2)
        has_set.set()
        assert has_read.wait(300)

    assert both(reads, sets)[0] == 3


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
    thread.join(300)
    assert len(drawn_after) == 1


def test_a_thread_of_a_job_that_compiles_waits_for_another_jobs_turn() -> None:
    """It crashed the process: its context was taken for that of the job's own thread."""
    holds, waits = threading.Event(), threading.Event()

    def compiles(_job: Job) -> None:
        with compiling.turns():
            holds.set()
            assert waits.wait(300)
            time.sleep(0.3)

    def compiles_in_a_thread(_job: Job) -> None:
        def compile_one() -> None:
            waits.set()
            with compiling.turns():
                torch.ones(1)

        assert holds.wait(300)
        thread = threading.Thread(target=compile_one)
        thread.start()
        thread.join()

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(compiles, name="a", priority="primary")
        runtime.submit(compiles_in_a_thread, name="b")
        runtime.wait(300)


LISTS = """
import signal, sys, threading, time
def names():
    assert threading.active_count() == len(threading.enumerate())
    return sorted(thread.name for thread in threading.enumerate())
end = threading.Event()
seen = []
starter = threading.Thread(target=lambda: (threading.Thread(target=end.wait, name="second").start(), end.wait()))
starter.name = "first"
starter.start()
while len(names()) < 3:
    time.sleep(0.01)
print(names(), threading.main_thread() in threading.enumerate())
signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.main_thread() in threading.enumerate()))
signal.raise_signal(signal.SIGUSR1)
end.set()
while threading.active_count() > 1:
    time.sleep(0.01)
print(names(), seen)
"""


def test_a_script_lists_its_own_threads(tmp_path: Path) -> None:
    """A loop that waits for the other threads, or joins them, did not end."""
    script(tmp_path, "lists.py", LISTS)
    ran = Ran(tmp_path, "a=lists.py", "b=lists.py")
    assert ran.code == 0, ran.text()
    for name in "ab":
        assert ran.of(name) == ["['MainThread', 'first', 'second'] True", "['MainThread'] [True]"], ran.text()


def test_a_job_lists_its_own_threads() -> None:
    def lists(_job: Job) -> list[str]:
        assert threading.active_count() == len(threading.enumerate()) == 1
        assert threading.enumerate() == [threading.current_thread()]
        return in_thread(lambda: sorted(thread.name for thread in threading.enumerate()))

    assert [name.partition("-")[0] for name in run_one(lists).value] == ["Thread", "alone"]
