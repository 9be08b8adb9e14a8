"""No client of a job waits for ever, and those that have given up count."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
import torch
from conftest import SOON_S, run_one, wait_until
from torch import Tensor

import torchshare
from torchshare import Job, Request


def double(data: Any) -> Tensor:
    """The answer to a request with a tensor "x", or to a tensor."""
    return 2 * (data["x"] if isinstance(data, dict) else data).to_dense()


def answer_all(asked: list[Request], function: Callable[[Any], Tensor] = double) -> Callable[[Job], None]:
    """A job that answers these requests in batches of eight, of those that come within a moment."""
    source: queue.Queue[Request | None] = queue.Queue()
    for request in (*asked, None):
        source.put(request)

    def serve(job: Job) -> None:
        for batch in job.requests(source, max_batch=8, max_wait=0.01):
            batch.answer_with(function)

    return serve


@pytest.mark.parametrize(
    "odd",
    [
        lambda: {"x": torch.ones(1, 3), "mask": numpy.ones(3)},
        lambda: {"x": torch.ones(1, 3), "mask": numpy.zeros(3)},
        lambda: torch.ones(1, 3).to_sparse(),
        lambda: {"x": torch.ones(1, 3), "scale": torch.tensor(2.0)},
    ],
)
def test_requests_that_cannot_be_joined_are_answered_by_themselves(odd: Callable[[], Any]) -> None:
    """Comparing two arrays, or joining a sparse tensor with a dense one, failed the job, and its clients waited."""
    asked = [Request(data) for data in (torch.ones(1, 3), odd(), odd(), torch.ones(1, 3), odd())]
    run_one(answer_all(asked))
    for request in asked:
        assert torch.equal(request.result(SOON_S), torch.full((1, 3), 2.0))


def test_a_request_that_cannot_be_read_fails_alone() -> None:
    class Unreadable(torch.Tensor):
        def size(self, *_: Any) -> Any:
            raise ValueError("no size")

    asked = [Request(torch.ones(1, 3)), Request(torch.ones(1, 3).as_subclass(Unreadable)), Request(torch.ones(1, 3))]
    run_one(answer_all(asked))
    assert [asked[0].result(SOON_S).sum(), asked[2].result(SOON_S).sum()] == [6, 6]
    with pytest.raises(ValueError, match="no size"):
        asked[1].result(SOON_S)


def test_a_batch_that_is_larger_than_the_memory_is_answered_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    asked = [Request(torch.ones(1, 2**20)) for _ in range(3)]
    run_one(answer_all(asked, lambda data: data.sum(1)), memory_budget=10 * 2**20)
    assert [request.result(SOON_S).item() for request in asked] == [2**20] * 3
    assert "a batch of 3 requests failed and is answered one by one" in caplog.text


@contextmanager
def running(serve: Callable[[Job], None], **options: Any) -> Iterator[Job]:
    """The job alone in a runtime. At the end, waits for the job, which may fail."""
    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(serve, threads=1, **options)
        runtime.start()
        yield job
        runtime.wait(300, check=False)


def told(asked: list[Request], seconds: float = SOON_S) -> list[str]:
    """How each request ended."""
    deadline = time.monotonic() + seconds
    found = []
    for request in asked:
        try:
            request.result(max(0.0, deadline - time.monotonic()))
            found.append("answered")
        except TimeoutError:
            found.append("waits")
        except RuntimeError as error:
            found.append("ended" if "the job has ended" in str(error) else str(error))
    return found


def test_a_cancelled_job_whose_function_waits_for_its_clients_ends() -> None:
    """The pool's end waits for the clients, which wait for the job."""
    source: queue.Queue[Request] = queue.Queue()
    asked = [Request(torch.ones(1, 1)) for _ in range(100)]
    taken = threading.Event()

    def ask(request: Request) -> Any:
        source.put(request)
        return request.result()

    def serve(job: Job) -> None:
        with ThreadPoolExecutor(100) as clients:
            for request in asked:
                clients.submit(ask, request)
            for _ in job.requests(source):
                wait_until(lambda: source.qsize() == 99)
                taken.set()
                while True:
                    torch.ones(4)

    with running(serve) as job:
        assert taken.wait(SOON_S)
        job.cancel()
        assert told(asked) == ["ended"] * 100
        wait_until(lambda: job.state == "cancelled")


def test_requests_of_a_batch_that_was_not_joined_are_told_that_the_job_has_ended() -> None:
    source: queue.Queue[Request] = queue.Queue()
    asked = [Request(torch.ones(1, 2**20)) for _ in range(3)]
    for request in asked:
        source.put(request)

    def serve(job: Job) -> None:
        for batch in job.requests(source, max_batch=3):
            batch.answer(1)
            while True:
                torch.ones(4)

    with running(serve, memory_budget=10 * 2**20) as job:
        assert asked[0].result(SOON_S) == 1
        job.cancel()
        assert told(asked) == ["answered", "ended", "ended"]


@pytest.mark.parametrize("ends", ["raises", "is cancelled"])
def test_requests_in_a_list_are_told_that_the_job_has_ended(ends: str) -> None:
    asked = [Request(torch.ones(1, 1)) for _ in range(100)]
    taken = threading.Event()

    def serve(job: Job) -> None:
        for request in job.requests(asked):
            request.answer(1)
            taken.set()
            if ends == "raises":
                raise ValueError("broken on purpose")
            while True:
                torch.ones(4)

    with running(serve) as job:
        assert taken.wait(SOON_S)
        if ends != "raises":
            job.cancel()
        assert told(asked) == ["answered"] + ["ended"] * 99


def test_the_end_of_one_job_leaves_a_queue_to_another_that_reads_it() -> None:
    source: queue.Queue[Request | None] = queue.Queue()
    first, rest = Request(0), [Request(number) for number in range(1, 100)]
    taken, goes_on = threading.Event(), threading.Event()

    def ends(job: Job) -> None:
        for request in job.requests(source):
            request.answer(0)
            taken.set()
            assert goes_on.wait(SOON_S)
            return

    def replica(job: Job) -> None:
        requests = job.requests(source)
        assert taken.wait(SOON_S)
        for request in rest:
            source.put(request)
        goes_on.set()
        while other.state != "finished":
            time.sleep(0.001)
        source.put(None)
        for request in requests:
            request.answer(request.data)

    source.put(first)
    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(replica, threads=1)
        other = runtime.submit(ends, threads=1)
        runtime.wait(300)
    assert [request.result(0) for request in rest] == list(range(1, 100))


@pytest.mark.parametrize("waits_in", ["queue", "service"])
def test_requests_that_clients_have_given_up_are_late(waits_in: str) -> None:
    """Clients that wait for 20 ms only: none got an answer in time, and the promise was reported as kept."""
    source: queue.Queue[Request | None] = queue.Queue()
    asked = [Request(torch.ones(1, 1)) for _ in range(50)]

    def give_up(request: Request) -> None:
        with pytest.raises(TimeoutError):
            request.result(0.02)
        request.cancel()

    def serve(job: Job) -> None:
        if waits_in == "queue":
            for request in asked:
                source.put(request)
            for request in asked:
                give_up(request)
            source.put(None)
        else:
            for request in (*asked, None):
                source.put(request)
        for batch in job.requests(source):
            give_up(batch.requests[0])
            batch.answer(batch.data)

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(serve, threads=1, priority="primary", slo="p90<20ms")
        done = threading.Event()
        runtime.submit(lambda _: done.wait(SOON_S), threads=1, name="other")
        runtime.start()
        wait_until(lambda: job.state == "finished")
        done.set()
        runtime.wait(300)
        told = [detail for kind, *_, detail in runtime.events() if kind == "decision" and "slo" in detail]
    found = job.result.requests
    assert found is not None
    expected = (0, 50) if waits_in == "queue" else (50, 0)
    assert (found.answered, found.given_up, found.late, found.late_share) == (*expected, 50, 1.0)
    assert any("lower jobs are held" in each for each in told), told
    assert "50 late (100.00%)" in str(found)


def test_a_queue_that_cannot_be_waited_for_is_refused_at_once() -> None:
    def serve(job: Job) -> None:
        with pytest.raises(TypeError, match=r"source must have get\(timeout=...\), as queue.Queue has, got multiproc"):
            job.requests(multiprocessing.get_context("fork").SimpleQueue())

    run_one(serve)


def test_a_loop_for_each_request_keeps_nothing() -> None:
    def serve(job: Job) -> int:
        for number in range(1000):
            for request in job.requests([number]):
                request.answer(number)
            for request in job.requests(lambda _: 1):
                request.answer(number)
                break
        return len(job._context.serving.sources)

    assert run_one(serve).value == 0
