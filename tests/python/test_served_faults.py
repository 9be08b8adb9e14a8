"""Served functions and loops over requests, in places where they could go wrong: async servers, functions that return
before their work is done, suspension, forks, memory."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import queue
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SOON_S, run_one, wait_until
from request_jobs import Server, asked, running

import torchshare
from torchshare import BudgetExceeded, Job, Request


async def coroutine(x: float) -> float:
    return x


def generator(count: int) -> Iterator[float]:
    for number in range(count):
        yield float(torch.ones(1) * number)


async def async_generator() -> AsyncIterator[float]:
    yield 1.0


class AsyncModel:
    async def __call__(self, x: float) -> float:
        return x

    def stream(self) -> Iterator[float]:
        yield 1.0


COROUTINE = "a coroutine function: run the model in a plain function, and await it with asyncio.to_thread"
GENERATOR = "a generator function: return the whole answer, or serve a function that computes one part of it"
ASYNC_GENERATOR = (
    "an async generator function: return the whole answer, or serve a function that computes one part of it, "
    "and await it with asyncio.to_thread"
)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (coroutine, COROUTINE),
        (functools.partial(functools.partial(coroutine), 1.0), COROUTINE),
        (AsyncModel(), COROUTINE),
        (functools.partial(AsyncModel(), 1.0), COROUTINE),
        (generator, GENERATOR),
        (AsyncModel().stream, GENERATOR),
        (torch.no_grad()(generator), GENERATOR),
        (async_generator, ASYNC_GENERATOR),
    ],
)
def test_a_function_that_returns_before_its_work_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeError) as error:
        run_one(lambda job: job.serve(function))
    assert str(error.value) == f"job 'alone': function must be a plain function, got {message}"
    with pytest.raises(TypeError) as error:
        torchshare.serve(function)  # as plain Python
    assert str(error.value) == f"torchshare.serve: function must be a plain function, got {message}"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: coroutine(1.0), "a coroutine: run the model in a plain function"),
        (lambda: torch.no_grad()(coroutine)(1.0), "a coroutine: run the model in a plain function"),  # type: ignore[no-untyped-call]
        (lambda: generator(3), "a generator: return the whole answer"),
        (lambda: async_generator(), "an async generator: return the whole answer"),
    ],
)
@pytest.mark.parametrize("thread", ["the job's own", "another"])
@pytest.mark.filterwarnings("error")  # "coroutine was never awaited"
def test_a_call_that_returns_before_its_work_fails(function: Callable[[], Any], message: str, thread: str) -> None:
    errors: list[str] = []

    class Called(Server):
        def __call__(self, job: Job) -> None:
            call = job.serve(self.function)
            if thread == "the job's own":
                fails(call)
            super().__call__(job)

    def fails(call: Callable[[], Any]) -> None:
        with pytest.raises(TypeError) as error:
            call()
        errors.append(str(error.value))

    server = Called(function)
    with running(server) as (job, _):
        if thread == "another":
            fails(server.call)
    assert len(errors) == 1 and errors[0].startswith(f"job 'server': function must return its answer, got {message}")
    assert job.result.requests is not None
    assert (job.result.requests.answered, job.result.requests.failed) == (0, 1)


def test_a_generator_that_a_call_returns_is_closed_in_the_call() -> None:
    closed: list[str] = []

    def begun() -> Iterator[int]:
        def numbers() -> Iterator[int]:
            try:
                yield 1
                yield 2
            finally:
                closed.append("closed")

        found = numbers()
        next(found)
        kept.append(found)
        return found

    kept: list[Iterator[int]] = []
    server = Server(begun)
    with running(server):
        with pytest.raises(TypeError, match="got a generator"):
            server.call()
        assert closed == ["closed"]


@pytest.mark.parametrize("how", ["to_thread", "run_in_executor"])
@pytest.mark.parametrize("place", ["the job's thread", "a thread of the job", "outside"])
def test_an_async_server_answers_with_a_served_function(how: str, place: str) -> None:
    """As uvicorn does: a loop accepts connections, and handlers await the model."""

    def infer(number: float) -> float:
        return float(torch.full((4,), number).sum())

    async def call(function: Callable[[float], float], number: float) -> float:
        if how == "to_thread":
            return await asyncio.to_thread(function, number)
        return await asyncio.get_running_loop().run_in_executor(None, function, number)

    async def serve_16(function: Callable[[float], float]) -> list[str]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answer = await call(function, float(await reader.readline()))
            writer.write(f"{answer}\n".encode())
            await writer.drain()
            writer.close()

        async def ask(port: int, number: int) -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{number}\n".encode())
            answer = await reader.readline()
            writer.close()
            return answer.decode().strip()

        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return list(await asyncio.gather(*(ask(port, number) for number in range(16))))

    class Async(Server):
        def __call__(self, job: Job) -> None:
            function = job.serve(self.function)
            if place == "the job's thread":
                answers.extend(asyncio.run(serve_16(function)))
            if place == "a thread of the job":
                thread = threading.Thread(target=lambda: answers.extend(asyncio.run(serve_16(function))))
                thread.start()
                thread.join()
            super().__call__(job)

    answers: list[str] = []
    server = Async(infer)
    with running(server) as (job, _):
        if place == "outside":
            answers.extend(asyncio.run(serve_16(server.call)))
    assert answers == [str(4.0 * number) for number in range(16)]
    assert job.result.requests is not None and job.result.requests.answered == 16
    assert job.result.ops >= 16 * 3  # full, sum, item


def test_service_times_of_calls_are_those_that_the_program_would_measure() -> None:
    inner: list[float] = []
    outer: list[float] = []

    def work(x: torch.Tensor) -> float:
        begin = time.monotonic()
        for _ in range(20):
            x = torch.sin(x)
        inner.append(time.monotonic() - begin)
        return float(x.sum())

    server = Server(work)
    with running(server) as (job, _):
        for _ in range(50):
            begin = time.monotonic()
            server.call(torch.ones(1000))
            outer.append(time.monotonic() - begin)
    requests = job.result.requests
    assert requests is not None and requests.answered == 50
    assert sum(inner) / 50 <= requests.service.mean <= requests.latency.mean <= sum(outer) / 50
    for percent in (50, 95, 99):
        rank = -(-50 * percent // 100) - 1  # quantiles are within 2.2 %, rounded up
        reported = getattr(requests.service, f"p{percent}")
        assert sorted(inner)[rank] <= reported <= 1.03 * sorted(outer)[rank]


def test_a_job_that_is_suspended_during_requests_stands_still_and_answers_after_it_is_resumed() -> None:
    """In a loop and in a served call."""
    source: queue.Queue[Request | None] = queue.Queue()
    over = threading.Event()
    ops = {"loop": 0, "call": 0}

    def work(where: str) -> str:
        while not over.is_set():
            torch.ones(4)
            ops[where] += 1
        torch.ones(4)
        return where

    class Both(Server):
        def __call__(self, job: Job) -> None:
            self.call = job.serve(self.function)
            self.ready.set()
            for request in job.requests(source):
                request.answer(work("loop"))

    server = Both(lambda: work("call"))
    with torchshare.Runtime("cpu", policy="strict") as runtime, ThreadPoolExecutor(1) as pool:
        job = runtime.submit(server, name="server", priority="primary", threads=1)
        runtime.start()
        assert server.ready.wait(SOON_S)
        call, request = pool.submit(server.call), Request(None)
        source.put(request)
        wait_until(lambda: min(ops.values()) > 0, SOON_S)
        job.suspend()
        before = dict(ops)
        wait_until(lambda: job.state == "suspended", SOON_S)
        time.sleep(0.2)  # thousands of ops, if they were let in
        assert all(ops[where] <= before[where] + 2 for where in ops), "each thread ends the op that it is in"
        over.set()
        with pytest.raises(TimeoutError):
            request.result(0.1)
        assert not call.done()
        job.resume()
        assert request.result(SOON_S) == "loop" and call.result(SOON_S) == "call"
        source.put(None)
        runtime.wait()
    assert job.result.requests is not None and job.result.requests.answered == 2


def test_a_forked_child_serves_and_loops_for_itself_and_cannot_answer_its_parents_request(tmp_path: Path) -> None:
    requests, source = asked([torch.ones(1), torch.ones(1)])

    def attempts(request: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[Any]:
        try:
            yield request.answer(0)
        except RuntimeError as error:
            yield str(error)
        yield float(function(torch.ones(1)))
        answers = []
        for each in torchshare.requests([1, 2]):
            each.answer(each.data * 10)
            answers.append(each.requests[0].result(0))
        yield answers
        yield float(torch.ones(4).sum())

    def forks(job: Job) -> list[Any]:
        double = job.serve(lambda x: x * 2)
        found = []
        for request in job.requests(source):
            child = os.fork()
            if child == 0:
                signal.alarm(int(SOON_S))  # ends a child that hangs
                (tmp_path / "found").write_text(json.dumps(list(attempts(request, double))))
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            found.append(json.loads((tmp_path / "found").read_text()))
            request.answer(request.data * 3)
        return found

    def train(job: Job) -> None:
        while not over.is_set():
            torch.ones(4)

    over = threading.Event()
    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(forks, name="server", priority="primary", threads=1)
        runtime.submit(train, name="training", threads=1)
        runtime.start()
        wait_until(lambda: job.state in ("finished", "failed"), SOON_S)
        over.set()
        runtime.wait()
    error = "job 'server': its requests must be taken and answered in its own thread, while it runs, got "
    for refused, *others in job.result.value:
        assert refused.startswith(error)
        assert others == [2.0, [10, 20], 4.0]
    assert [float(each.result(0)) for each in requests] == [3.0, 3.0]
    assert job.result.requests is not None and job.result.requests.answered == 2, "not those of the child"


def test_a_call_over_the_jobs_memory_budget_fails_alone() -> None:
    server = Server(lambda count: float(torch.ones(count).sum()))
    with running(server, memory_budget=8 << 20) as (job, _), ThreadPoolExecutor(2) as pool:
        assert pool.submit(server.call, 10).result(SOON_S) == 10.0
        with pytest.raises(BudgetExceeded, match=r"^job 'server': memory budget exceeded: requested 40.00 MiB"):
            pool.submit(server.call, 10 << 20).result(SOON_S)
        assert float(torch.ones(10 << 20).sum()) == 10 << 20, "the budget is the job's, not this thread's"
        assert pool.submit(server.call, 1 << 20).result(SOON_S) == 1 << 20
    requests = job.result.requests
    assert requests is not None and (requests.answered, requests.failed) == (2, 1)
    assert job.state == "finished"
