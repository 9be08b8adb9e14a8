"""A closed runtime leaks nothing, and an open one nothing of jobs that have ended."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import logging
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from conftest import run_ops_for_ever, wait_until

import torchshare
from torchshare import Job, JobFailed
from torchshare.context.results import ENDED
from torchshare.isolation import agreement, routing
from torchshare.runtime import closing, signals

MIB = 1 << 20


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def start_and_cancel(rounds: int) -> None:
    for index in range(rounds):
        with torchshare.Runtime(policy="strict" if index % 2 else "priority") as runtime:
            first = runtime.submit(run_ops_for_ever, name="a", priority="primary", threads=1)
            runtime.submit(run_ops_for_ever, name="b", start="after:a" if index % 3 else "now", threads=1)
            runtime.start()
            while index % 2 and first.result.ops == 0:
                pass  # every other round is cancelled while it works
            runtime.cancel()
            assert {result.state for result in runtime.wait(300).values()} == {"cancelled"}


def timers_gone() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


@pytest.mark.slow
def test_a_thousand_starts_and_cancels_leak_neither_threads_nor_memory():
    process = psutil.Process()
    start_and_cancel(100)
    timers_gone()
    before = (threads(), process.memory_info().rss)
    start_and_cancel(1000)
    timers_gone()
    gc.collect()
    wait_until(lambda: threads() <= before[0])  # the kernel lists a thread for a moment after it was joined
    assert process.memory_info().rss - before[1] < 16 * MIB


class Marker:
    """An object that a job's function references."""


def answers_in_a_loop(job: Job, count: int) -> Iterator[int]:
    for request in job.requests(itertools.repeat(0, count)):
        request.answer(0)
        yield 0


def answers_calls(job: Job, count: int) -> Iterator[int]:
    served = job.serve(lambda: 0)
    for _ in range(count):
        yield served()


@pytest.mark.slow
@pytest.mark.parametrize("answers", [answers_in_a_loop, answers_calls])
def test_a_million_requests_take_no_memory(answers: Callable[[Job, int], Iterator[int]]) -> None:
    process, count = psutil.Process(), 1_000_000

    def serve(job: Job) -> int:
        done = answers(job, count)
        collections.deque(itertools.islice(done, count // 10), maxlen=0)
        before = process.memory_info().rss
        collections.deque(done, maxlen=0)
        return process.memory_info().rss - before

    with torchshare.Runtime("cpu", timeline_capacity=1000) as runtime:
        job = runtime.submit(serve, threads=1, slo="p99<1s")
        runtime.wait()
    assert job.result.requests is not None and job.result.requests.answered == count
    assert job.result.value < 4 * MIB


def test_a_closed_runtime_releases_the_objects_of_its_jobs():
    def submit(runtime: torchshare.Runtime, **options: object) -> weakref.ref[Marker]:
        marker = Marker()

        def body(job: Job, held: Marker = marker) -> None:
            torch.ones(2)

        runtime.submit(body, **options)
        return weakref.ref(marker)

    with torchshare.Runtime() as runtime:
        finished = submit(runtime, name="finished")
        delayed = submit(runtime, name="delayed", start=1e6)
        runtime.start()
        while runtime.results["finished"].state != "finished":
            pass
        runtime.cancel()
        runtime.wait(300)
    with torchshare.Runtime() as never_started:
        pending = submit(never_started, name="pending")
        never_started.close()
    del runtime, never_started
    timers_gone()
    wait_until(lambda: gc.collect() >= 0 and [finished(), delayed(), pending()] == [None, None, None])


# Jobs that have ended, in a runtime that is open


def tiny(job: Job) -> int:
    weights = torch.zeros(100, 100, requires_grad=True)
    for batch in job.batches([torch.ones(4, 100)]):
        batch.backward(lambda x: (x @ weights).sum())
    if int(job.name) % 10 == 9:
        raise ValueError(f"no {job.name}")
    return job.result.steps


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def run_two_at_a_time(runtime: torchshare.Runtime, numbers: range) -> None:
    running: list[Job] = []
    for number in numbers:
        while len(running) == 2:
            running = [job for job in running if job.state not in ENDED]
            time.sleep(0.001)
        running.append(runtime.submit(tiny, name=str(number), threads=1))
        runtime.start()


@pytest.mark.parametrize("jobs", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_runtime_forgets_the_jobs_that_have_ended(jobs: int) -> None:
    process = psutil.Process()
    with torchshare.Runtime("cpu", keep=5) as runtime:
        run_two_at_a_time(runtime, range(40))
        assert runtime.wait(300, check=False)
        gc.collect()
        before = threads(), descriptors(), process.memory_info().rss
        run_two_at_a_time(runtime, range(40, jobs))
        results = runtime.wait(300, check=False)
        gc.collect()
        wait_until(lambda: threads() <= before[0] and descriptors() <= before[1] and not runtime._closer.jobs)
        after = threads(), descriptors(), process.memory_info().rss
        steps = {job for kind, job, *_ in runtime.events() if kind == "step"}
        walked = len(runtime._closer.jobs), len(runtime._effects._jobs)
        last = runtime.submit(lambda job: "ran", name="last", start="after:3")
        assert runtime.wait(300, check=False)["last"].value == "ran"
    assert last.state == "finished"
    assert after[0] <= before[0]
    assert after[1] <= before[1]
    assert after[2] - before[2] < 8 * MIB + jobs * MIB // 20
    assert len(steps) == 5, "the events of the last five to end"
    assert steps >= set(map(str, range(jobs - 4, jobs))), "only one can end after those that were submitted later"
    assert walked[0] == 0
    assert walked[1] <= 2 + 5 + 1
    assert len(results) == jobs
    assert all(result.steps == 1 for result in results.values()), "results of all are kept"
    assert str(results["29"].exception) == "no 29"


def test_a_timeline_of_no_more_jobs_than_are_kept_is_whole() -> None:
    with torchshare.Runtime("cpu") as runtime:
        run_two_at_a_time(runtime, range(20))
        runtime.wait(300, check=False)
        steps = {job for kind, job, *_ in runtime.events() if kind == "step"}
        dropped = runtime._handle.dropped_events
    assert steps == {str(number) for number in range(20)}
    assert dropped == 0


def test_jobs_that_wait_in_a_queue_have_a_cache_each(tmp_path: Path) -> None:
    """There are 63 owners of memory."""
    with torchshare.Runtime("cpu", max_concurrent=1, keep=0) as runtime:
        for number in range(100):
            runtime.submit(lambda job: torch.ones(1 << 20).sum().item(), name=str(number), threads=1)
        results = runtime.wait(300)
        runtime.write_report(tmp_path / "run.html")  # without the events of any job
    assert all(result.memory_cached > 0 for result in results.values())


def in_its_closure(held: Marker) -> Callable[[Job], None]:
    def body(job: Job) -> None:
        assert held
        raise ValueError("lost")

    return body


def in_an_argument(held: Marker) -> Callable[[Job], None]:
    def body(held: Marker, job: Job) -> None:
        raise ValueError("lost")

    return functools.partial(body, held)


def in_what_it_calls(held: Marker) -> Callable[[Job], None]:
    def inner(own: Marker) -> None:
        try:
            raise OSError("no such file")
        except OSError as error:
            raise ValueError("lost") from error

    return lambda job: inner(held)


def tracked(held: Marker) -> Callable[[Job], None]:
    """And its batches may be repeated."""
    model = torch.nn.BatchNorm1d(4)
    model.held = held  # type: ignore[assignment]

    def body(job: Job) -> None:
        job.track(model=model)
        for batch in job.batches([torch.ones(4, 4)]):
            batch.backward(lambda x: model(x).sum())
        raise ValueError("lost")

    return body


@pytest.mark.parametrize("make", [in_its_closure, in_an_argument, in_what_it_calls, tracked])
def test_a_failed_job_keeps_its_traceback_and_nothing_that_it_used(make: Callable[[Any], Any]) -> None:
    def submit(runtime: torchshare.Runtime) -> weakref.ref[Marker]:
        marker = Marker()
        runtime.submit(make(marker), name="a", threads=1, memory_budget=1 << 30)
        return weakref.ref(marker)

    with torchshare.Runtime("cpu") as runtime:
        marker = submit(runtime)
        with pytest.raises(JobFailed, match=r"job 'a' failed after [01] steps: ValueError: lost") as caught:
            runtime.wait(300)
        wait_until(lambda: gc.collect() >= 0 and marker() is None)
    own, _, jobs_failed = "".join(traceback.format_exception(caught.value)).rpartition("direct cause")
    assert "Traceback (most recent call last)" in own
    assert f'{__file__}", line' in own
    assert '    raise ValueError("lost")' in own
    assert "JobFailed" in jobs_failed
    assert ('raise OSError("no such file")' in own) is (make is in_what_it_calls)


@pytest.mark.parametrize("end", ["cancelled", "finished"])
def test_a_job_that_has_ended_otherwise_keeps_nothing_that_it_used(end: str) -> None:
    def submit(runtime: torchshare.Runtime) -> weakref.ref[Marker]:
        marker = Marker()

        def body(job: Job, held: Marker = marker) -> None:
            if end == "cancelled":
                run_ops_for_ever(job)

        runtime.submit(body, name="a", threads=1)
        return weakref.ref(marker)

    with torchshare.Runtime("cpu") as runtime:
        marker = submit(runtime)
        runtime.start()
        if end == "cancelled":
            wait_until(lambda: runtime.results["a"].ops > 0)
            runtime.cancel()
        assert runtime.wait(300)["a"].state == end
        wait_until(lambda: gc.collect() >= 0 and marker() is None)


# Runtimes that are dropped


def drop(runtime: list[torchshare.Runtime]) -> None:
    """Leaves it to the garbage collector, and calls that."""
    gone: Any = runtime.pop()
    gone.itself = gone
    del gone
    gc.collect()


@pytest.mark.parametrize(
    "lock", [routing._lock, agreement._lock, signals._lock, logging._lock, threading._active_limbo_lock, None]
)
def test_a_runtime_that_is_dropped_while_any_lock_is_held_is_closed_by_another_thread(lock: Any) -> None:
    before = routing._open

    def collect() -> None:
        runtime = [torchshare.Runtime("cpu")]
        runtime[0].submit(run_ops_for_ever, name="a")
        runtime[0].start()
        with lock or contextlib.nullcontext():
            drop(runtime)
        ended.set()

    ended = threading.Event()
    threading.Thread(target=collect, daemon=True).start()
    assert ended.wait(300), "it waits for a lock that it holds"
    wait_until(lambda: routing._open == before)


def test_a_runtime_that_is_dropped_while_no_thread_can_be_started_is_closed_at_exit_not_by_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    before = routing._open
    with monkeypatch.context() as patch:
        runtime = [torchshare.Runtime("cpu")]
        runtime[0].submit(run_ops_for_ever, name="a")
        patch.setattr(closing, "_thread", SimpleNamespace(start_new_thread=fails))
        drop(runtime)
    assert routing._open == before + 1
    closing.Closer.close_all()
    assert routing._open == before


def test_a_runtime_that_is_dropped_without_close_is_named_in_a_warning() -> None:
    before = routing._open
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        closed = torchshare.Runtime("cpu")
        closed.close()
        drop([torchshare.Runtime("cpu")])
        runs = [torchshare.Runtime("cpu")]
        runs[0].submit(run_ops_for_ever, name="a")
        runs[0].start()
        drop(runs)
        del closed
        wait_until(lambda: routing._open == before)
        texts = sorted(str(each.message) for each in caught if "Runtime" in str(each.message))
    assert texts == [
        "a Runtime was dropped without close()",
        "a Runtime was dropped without close() while its jobs run: 'a'",
    ]
