"""Requests that are answered together, of which some fail; and the sources that they come from."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import SOON_S
from request_jobs import asked, serve
from torch import nn

import torchshare
from torchshare import Job, Request, Result


def embeddings() -> nn.Embedding:
    return nn.Embedding(10, 4).eval().requires_grad_(False)


def outcome(request: Request) -> Any:
    """Its answer, or the type of its error."""
    try:
        return request.result(0)
    except Exception as error:
        return type(error)


def answered_with(function: Callable[[Any], Any], data: list[Any], max_batch: int = 100) -> tuple[list[Any], Result]:
    """What each request gets from a loop that answers batches with the function."""
    requests, source = asked(data)

    def loop(job: Job) -> None:
        for batch in job.requests(source, max_batch=max_batch):
            batch.answer_with(function)

    result = serve(loop)
    return [outcome(each) for each in requests], result


def counts(result: Result) -> tuple[int, int]:
    assert result.requests is not None
    return result.requests.answered, result.requests.failed


def test_a_request_that_fails_in_a_batch_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    model, sizes = embeddings(), list[int]()

    def infer(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return model(rows)  # type: ignore[no-any-return]

    indices = [[1], [2, 3], [99], [4, 5, 6], [7], [98, 1]]
    answers, result = answered_with(infer, [torch.tensor(each) for each in indices])
    for answer, each in zip(answers, indices, strict=True):
        if max(each) > 10:
            assert answer is IndexError
        else:
            assert torch.equal(answer, model(torch.tensor(each)))
    assert sizes == [10, 1, 2, 1, 3, 1, 2]
    assert counts(result) == (4, 2)
    warnings = [record.message for record in caplog.records if "one by one" in record.message]
    assert warnings == [
        "job 'server': a batch of 6 requests failed and is answered one by one, as each that fails will be: "
        "IndexError: index out of range in self"
    ]


def test_a_batch_that_does_not_fail_is_computed_once() -> None:
    sizes: list[int] = []

    def double(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return rows * 2

    answers, result = answered_with(double, [torch.full((2,), float(i)) for i in range(6)], max_batch=8)
    assert [float(each[0]) for each in answers] == [2.0 * i for i in range(6)]
    assert sizes == [8, 4] and counts(result) == (6, 0)


def test_where_all_requests_fail_each_has_its_own_error_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fails(rows: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(f"got {rows.tolist()}")

    requests, source = asked([torch.tensor([i]) for i in range(4)])

    def loop(job: Job) -> None:
        for batch in job.requests(source, max_batch=2):
            batch.answer_with(fails)

    assert counts(serve(loop)) == (0, 4)
    for number, each in enumerate(requests):
        with pytest.raises(ArithmeticError, match=rf"got \[{number}\]"):
            each.result(0)
    assert len([record for record in caplog.records if "one by one" in record.message]) == 1, "said once"


def test_a_request_without_a_batch_fails_alone_and_is_not_computed_twice() -> None:
    calls: list[int] = []

    def half(number: int) -> float:
        calls.append(number)
        return 1 / number

    answers, result = answered_with(half, [1, 0, 4], max_batch=1)
    assert answers == [1.0, ZeroDivisionError, 0.25]
    assert calls == [1, 0, 4] and counts(result) == (2, 1)


def test_an_answer_with_another_number_of_rows_is_computed_for_each_request_by_itself() -> None:
    def without_negative(rows: torch.Tensor) -> torch.Tensor:
        return rows[rows >= 0]

    answers, result = answered_with(without_negative, [torch.tensor([1, 2]), torch.tensor([3, -1]), torch.tensor([4])])
    assert [each.tolist() for each in answers] == [[1, 2], [3], [4]]
    assert counts(result) == (3, 0)


def test_an_answer_without_tensors_is_computed_for_each_request_by_itself() -> None:
    answers, result = answered_with(lambda rows: rows.tolist(), [torch.tensor([1, 2]), torch.tensor([3])])
    assert answers == [[1, 2], [3]] and counts(result) == (2, 0)
    answers, _ = answered_with(lambda rows: rows.sum(), [torch.tensor([1, 2]), torch.tensor([3])])
    assert [int(each) for each in answers] == [3, 3]


def test_a_function_that_answers_later_is_refused() -> None:
    async def later(_rows: torch.Tensor) -> None: ...

    _, source = asked([torch.ones(1)] * 2)

    def loop(job: Job) -> None:
        for batch in job.requests(source, max_batch=2):
            batch.answer_with(later)

    with pytest.raises(TypeError, match=r"^job 'server': function must be a plain function, got a coroutine function"):
        serve(loop)
    answers, _ = answered_with(lambda rows: (each for each in rows), [torch.ones(1)])
    assert answers == [TypeError]


def test_a_client_that_has_given_up_is_left_out_where_a_batch_is_repeated() -> None:
    requests, source = asked([torch.tensor([i]) for i in (1, 2, 99)])
    calls: list[list[int]] = []
    model = embeddings()

    def infer(rows: torch.Tensor) -> torch.Tensor:
        calls.append(rows.tolist())
        requests[1].cancel()
        return model(rows)  # type: ignore[no-any-return]

    def loop(job: Job) -> None:
        for batch in job.requests(source, max_batch=8):
            batch.answer_with(infer)

    assert counts(serve(loop)) == (1, 1)
    assert calls == [[1, 2, 99], [1], [99]]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_ends_a_job_is_no_error_of_a_request(error: BaseException) -> None:
    def ends(_rows: torch.Tensor) -> torch.Tensor:
        raise error

    requests, source = asked([torch.ones(1)] * 3)

    def loop(job: Job) -> None:
        for batch in job.requests(source, max_batch=2):
            batch.answer_with(ends)

    with pytest.raises(type(error)):
        serve(loop)
    for each in requests:
        with pytest.raises(RuntimeError, match="a request was not answered"):
            each.result(0)


@pytest.mark.parametrize("seen_as", ["Cancelled", "another error"])
def test_a_job_that_is_cancelled_repeats_no_batch(seen_as: str) -> None:
    """TorchScript turns `Cancelled` into a RuntimeError."""
    requests, source = asked([torch.ones(1)] * 3)
    busy, calls = threading.Event(), list[int]()

    def hangs(rows: torch.Tensor) -> torch.Tensor:
        calls.append(len(rows))
        busy.set()
        try:
            while True:
                torch.ones(1)
        except BaseException:
            if seen_as == "Cancelled":
                raise
            raise RuntimeError("in TorchScript") from None

    def loop(job: Job) -> None:
        for batch in job.requests(source, max_batch=8):
            batch.answer_with(hangs)

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(loop, name="server", priority="primary")
        runtime.start()
        assert busy.wait(SOON_S)
        job.cancel()
        runtime.wait(SOON_S, check=False)
    assert job.state == "cancelled" and calls == [3]
    for each in requests:
        with pytest.raises(RuntimeError, match="a request was not answered"):
            each.result(0)


def test_without_torchshare_a_request_fails_alone_too() -> None:
    requests, source = asked([torch.tensor([i]) for i in (1, 99)])
    model = embeddings()
    for batch in torchshare.requests(source, max_batch=8):
        batch.answer_with(model)
    assert torch.equal(requests[0].result(0), model(torch.tensor([1])))
    with pytest.raises(IndexError):
        requests[1].result(0)


# Sources.


def test_a_request_of_a_priority_queue_is_the_last_item_of_its_tuple() -> None:
    source: queue.PriorityQueue[Any] = queue.PriorityQueue()
    order = [(2, "c"), (1, "a"), (2, "d"), (1, "b")]  # those of one priority as they arrived
    requests = {name: (priority, Request(name)) for priority, name in order}
    source.put((2, None))  # the end, after all of its priority
    for each in reversed(list(requests.values())):
        source.put(each)
    seen: list[str] = []

    def loop(job: Job) -> None:
        for request in job.requests(source):
            seen.append(request.data)
            request.answer(request.data.upper())

    serve(loop)
    assert seen == ["a", "b", "c", "d"]
    assert [each.result(0) for _, each in requests.values()] == ["C", "A", "D", "B"]


def test_requests_in_tuples_that_a_job_does_not_take_fail() -> None:
    source: queue.PriorityQueue[Any] = queue.PriorityQueue()
    requests = [Request(number) for number in range(3)]
    for number, each in enumerate(requests):
        source.put((1, number, each))

    def first_only(job: Job) -> None:
        for request in job.requests(source):
            request.answer(request.data)
            break

    serve(first_only)
    assert requests[0].result(0) == 0
    for each in requests[1:]:
        with pytest.raises(RuntimeError, match="a request was not answered: the job has ended"):
            each.result(0)


def test_what_waits_behind_tuples_that_cannot_be_read_fails_when_the_job_ends() -> None:
    source: queue.Queue[Any] = queue.Queue()
    requests = [Request(number) for number in range(4)]
    for each in ((requests[0], 1), (requests[1], 1), requests[2], requests[3]):
        source.put(each)

    def loop(job: Job) -> None:
        for request in job.requests(source):
            request.answer(None)

    with pytest.raises(TypeError, match="a request in a tuple must be its last item"):
        serve(loop)
    assert [outcome(each) for each in requests] == [TypeError, TypeError, RuntimeError, RuntimeError]


def test_a_tuple_of_data_stays_a_tuple() -> None:
    seen: list[Any] = []

    def loop(job: Job) -> None:
        for request in job.requests([(1, 2), (3, None), ()]):
            seen.append(request.data)
            request.answer(None)

    serve(loop)
    assert seen == [(1, 2), (3, None), ()]


def test_a_request_at_another_place_of_a_tuple_is_refused_and_its_client_told() -> None:
    request = Request(1)
    source: queue.Queue[Any] = queue.Queue()
    source.put((request, 3))
    message = r"^job 'server': a request in a tuple must be its last item, as in \(priority, request\), got \(.*, 3\)$"
    with pytest.raises(TypeError, match=message):
        serve(lambda job: list(job.requests(source)))
    with pytest.raises(TypeError, match=message):
        request.result(0)


async def from_coroutine(_seconds: float) -> Any: ...


def from_generator() -> Iterator[int]:
    yield 1


async def from_async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            asyncio.Queue(),
            "source must be a queue that a thread can wait for, got asyncio.queues.Queue: "
            "put requests into a queue.Queue, and await asyncio.to_thread(request.result)",
        ),
        (from_coroutine, "source must be a queue, an iterable or a plain callable, got a coroutine function"),
        (from_generator, "source must be a queue, an iterable or a plain callable, got a generator function"),
        (
            from_async_generator,
            "source must be a queue, an iterable or a plain callable, got an async generator function",
        ),
    ],
)
def test_sources_that_no_thread_can_wait_for_are_refused_at_once(source: Any, message: str) -> None:
    with pytest.raises(TypeError) as error:
        serve(lambda job: job.requests(source))
    assert str(error.value) == f"job 'server': {message}"


def test_an_async_server_awaits_requests_as_the_error_says() -> None:
    source: queue.Queue[Request | None] = queue.Queue()

    async def handle(number: int) -> float:
        request = Request(torch.tensor([number]))
        source.put(request)
        return float(await asyncio.to_thread(request.result, SOON_S))

    async def handle_all() -> list[float]:
        return await asyncio.gather(*map(handle, range(8)))

    def loop(job: Job) -> None:
        for batch in job.requests(source, max_batch=8):
            batch.answer_with(lambda rows: rows * 2)

    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(loop, name="server", priority="primary")
        runtime.start()
        assert asyncio.run(handle_all()) == [2.0 * number for number in range(8)]
        source.put(None)
        runtime.wait()


def test_a_callable_that_raises_fails_the_job_and_the_request_in_hand() -> None:
    requests = [Request(1), Request(2)]
    left = list(requests)

    def broken(_seconds: float) -> Request:
        if not left:
            raise ConnectionError("the source is gone")
        return left.pop(0)

    kept: list[Any] = []

    def loop(job: Job) -> None:
        for request in job.requests(broken):
            kept.append(request)

    with pytest.raises(ConnectionError, match="the source is gone"):
        serve(loop)
    for each in requests:
        with pytest.raises(RuntimeError, match="a request was not answered: the job has ended"):
            each.result(0)


def test_a_queue_that_raises_leaves_none_of_its_100_requests_without_an_error() -> None:
    class Breaks(queue.Queue[Any]):
        broken = False

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if self.qsize() == 98 and not self.broken:
                self.broken = True
                raise ConnectionError("the queue is gone")
            return super().get(block, timeout)

    requests, source = asked([torch.ones(1)] * 100, Breaks())

    def loop(job: Job) -> None:
        for request in job.requests(source):
            request.answer(request.data)

    with pytest.raises(ConnectionError, match="the queue is gone"):
        serve(loop)
    outcomes = [outcome(each) for each in requests]
    assert [each for each in outcomes if not isinstance(each, torch.Tensor)] == [RuntimeError] * 97
