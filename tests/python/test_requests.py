"""Jobs that answer requests, as programs write them: a queue, a generator, clients in threads of their own."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from conftest import SOON_S, run_ops_for_ever, wait_until
from request_jobs import asked, serve
from torch import nn

import torchshare
from torchshare import Job, Request
from torchshare.serving.requests import source_of


def doubles(job: Job, source: Any, **options: Any) -> list[int]:
    """Answers twice the data. Returns the rows of each batch."""
    rows = []
    for request in job.requests(source, **options):
        rows.append(request.rows)
        request.answer(request.data * 2)
    return rows


def test_each_request_in_a_queue_gets_its_answer() -> None:
    requests, source = asked([torch.full((2,), float(i)) for i in range(20)])
    result = serve(lambda job: doubles(job, source))
    assert [float(each.result(0)[0]) for each in requests] == [2.0 * i for i in range(20)]
    assert result.requests is not None and (result.requests.answered, result.requests.failed) == (20, 0)
    assert result.steps == 0  # a request is no step


def test_requests_come_from_an_iterable_or_a_callable() -> None:
    def generated() -> Iterator[Any]:
        yield from (torch.ones(1), torch.ones(3))

    def called(seconds: float) -> Any:
        assert seconds >= 0
        return left.pop() if left else None

    answers: list[Any] = []

    def keep(job: Job) -> None:
        for request in job.requests(generated()):
            answers.append(request.data.sum())
            request.answer(None)
        for request in job.requests(called):
            answers.append(request.data)
            request.answer(None)

    left = ["b", "a"]
    assert serve(keep).requests.answered == 4  # type: ignore[union-attr]
    assert answers == [1.0, 3.0, "a", "b"]


def test_clients_in_threads_get_answers_while_a_training_runs() -> None:
    source: queue.Queue[Request | None] = queue.Queue()
    answers: list[float] = []

    def client(number: int) -> None:
        for index in range(5):
            request = Request(torch.full((1,), 10.0 * number + index))
            source.put(request)
            answers.append(float(request.result(SOON_S)))

    def train(job: Job) -> int:
        done = 0
        while not over.is_set():
            torch.randn(32, 32) @ torch.randn(32, 32)
            done += 1
        return done

    over = threading.Event()
    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    with torchshare.Runtime("cpu", policy="strict") as runtime:
        server = runtime.submit(lambda job: doubles(job, source), name="server", priority="primary")
        training = runtime.submit(train, name="training")
        runtime.start()
        for each in clients:
            each.start()
        for each in clients:
            each.join(SOON_S)
        # The server waits for requests, and the training goes on.
        before = training.result.ops
        wait_until(lambda: training.result.ops >= before + 100, SOON_S)
        source.put(None)
        over.set()
        runtime.wait()
    assert sorted(answers) == sorted(2.0 * (10 * number + index) for number in range(4) for index in range(5))
    assert server.result.requests is not None and server.result.requests.answered == 20
    assert training.result.value > 0


def test_times_are_those_that_the_program_would_measure() -> None:
    source: queue.Queue[Request | None] = queue.Queue()
    least: list[float] = []
    most: list[float] = []

    def slow(job: Job) -> None:
        former = time.monotonic()
        for request in job.requests(source):
            begin = time.monotonic()
            time.sleep(0.02)
            least.append(time.monotonic() - begin)
            request.answer(request.data)
            most.append(time.monotonic() - former)
            former = time.monotonic()

    for _ in range(10):
        source.put(Request("hello"))
    source.put(None)
    requests = serve(slow).requests
    assert requests is not None
    assert sum(least) / 10 <= requests.service.mean <= sum(most) / 10
    # All came at once, before the job ran: each waited for those before it.
    assert requests.latency.mean > 4.5 * 0.02
    assert requests.latency.mean == pytest.approx(requests.service.mean + requests.queued.mean)
    assert requests.service.p50 <= requests.service.p95 <= requests.service.p99


def test_requests_that_wait_are_answered_together_up_to_so_many_rows() -> None:
    model = nn.Linear(3, 2)
    requests, source = asked([torch.full((1 + index % 3, 3), float(index)) for index in range(6)])  # 12 rows
    batches: list[int] = []

    def infer(job: Job) -> None:
        for batch in job.requests(source, max_batch=4):
            batches.append(batch.rows)
            with torch.no_grad():
                batch.answer(model(batch.data))

    result = serve(infer)
    assert batches == [3, 4, 2, 3]
    assert result.requests is not None and result.requests.answered == 6
    for each in requests:
        assert torch.allclose(each.result(0), model(each.data))


def test_a_request_waits_for_others_only_so_long() -> None:
    source: queue.Queue[Request | None] = queue.Queue()
    seen: list[int] = []

    def infer(job: Job) -> None:
        for batch in job.requests(source, max_batch=2, max_wait=0.01):
            seen.append(batch.rows)
            batch.answer(batch.data)

    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(infer, name="server", priority="primary")
        runtime.start()
        alone = Request(torch.ones(1))
        source.put(alone)
        assert alone.result(SOON_S) == 1.0
        source.put(None)
        runtime.wait()
    assert seen == [1]


def test_requests_of_other_shapes_and_larger_ones_are_answered_alone() -> None:
    data = [torch.ones(1, 2), torch.ones(1, 3), {"x": torch.ones(1, 3)}, torch.ones(9, 3), torch.ones(2, 3), "text"]
    requests, source = asked(data)
    rows: list[int] = []

    def infer(job: Job) -> None:
        for batch in job.requests(source, max_batch=4, max_wait=0.01):
            rows.append(batch.rows)
            batch.answer(batch.data)

    serve(infer)
    assert rows == [1, 1, 1, 9, 2, 1]
    assert [type(each.result(0)) for each in requests] == [type(each) for each in data]


def test_an_answer_with_another_number_of_rows_is_refused() -> None:
    requests, source = asked([torch.ones(1), torch.ones(2)])

    def wrong(job: Job) -> None:
        for batch in job.requests(source, max_batch=8):
            batch.answer(batch.data[:1])

    with pytest.raises(ValueError, match=r"job 'server': the answer must have 3 rows, as the requests have, got 1"):
        serve(wrong)
    for each in requests:
        with pytest.raises(RuntimeError, match="was not answered"):
            each.result(0)


# Faults.


def test_a_request_that_fails_fails_alone() -> None:
    requests, source = asked([torch.ones(2, 3), torch.ones(2, 5), torch.ones(2, 3)])
    model = nn.Linear(3, 1)

    def infer(job: Job) -> None:
        for request in job.requests(source):
            try:
                request.answer(model(request.data))
            except RuntimeError as error:
                request.fail(error)

    result = serve(infer)
    assert requests[0].result(0).shape == requests[2].result(0).shape == (2, 1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        requests[1].result(0)
    assert result.requests is not None and (result.requests.answered, result.requests.failed) == (2, 1)


def test_a_loop_that_raises_fails_all_that_wait() -> None:
    requests, source = asked([torch.ones(1)] * 100)

    def fails(job: Job) -> None:
        for _request in job.requests(source):
            raise ZeroDivisionError("in the handler")

    with pytest.raises(ZeroDivisionError):
        serve(fails)
    for each in requests:
        with pytest.raises(RuntimeError, match="a request was not answered"):
            each.result(0)


def test_a_source_that_raises_fails_the_job_and_the_request_in_hand() -> None:
    def broken() -> Iterator[Request]:
        yield first
        raise ConnectionError("the source is gone")

    first = Request(1)
    kept: list[Any] = []

    def keeps(job: Job) -> None:
        for request in job.requests(broken()):
            kept.append(request)

    with pytest.raises(ConnectionError, match="the source is gone"):
        serve(keeps)
    with pytest.raises(RuntimeError, match="a request was not answered"):
        first.result(0)


def test_a_request_that_the_loop_leaves_out_fails() -> None:
    requests, source = asked([1, 2, 3])

    def odd_only(job: Job) -> None:
        for request in job.requests(source):
            if request.data % 2:
                request.answer(request.data)

    result = serve(odd_only)
    assert [requests[0].result(0), requests[2].result(0)] == [1, 3]
    with pytest.raises(RuntimeError, match="it was dropped"):
        requests[1].result(0)
    assert result.requests is not None and result.requests.failed == 1


def test_a_client_that_goes_away_loses_nothing_of_others() -> None:
    requests, source = asked([torch.ones(1), torch.full((1,), 2.0), torch.full((1,), 3.0)])
    requests[1].cancel()
    result = serve(lambda job: doubles(job, source, max_batch=8))
    assert [float(requests[0].result(0)), float(requests[2].result(0))] == [2.0, 6.0]
    assert result.value == [2] and result.requests is not None and result.requests.answered == 2


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_with_100_requests_waiting_a_job_that_is_stopped_leaves_none_without_an_error(how: str) -> None:
    requests, source = asked([torch.ones(1)] * 100)
    busy = threading.Event()

    def hangs(job: Job) -> None:
        for _request in job.requests(source):
            busy.set()
            while True:
                torch.ones(1)

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(hangs, name="server", priority="primary")
        runtime.start()
        assert busy.wait(SOON_S)
        job.cancel() if how == "cancel" else runtime.close()
        for each in requests:
            with pytest.raises(RuntimeError, match="was not answered"):
                each.result(SOON_S)


def test_a_job_that_waits_for_requests_can_be_cancelled() -> None:
    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(lambda job: doubles(job, queue.Queue()), name="server", priority="primary")
        runtime.start()
        job.cancel()
        runtime.wait(SOON_S)
    assert job.state == "cancelled"


@pytest.mark.slow
def test_a_wait_for_a_simple_queue_ends_however_late_its_thread_gets_a_core() -> None:
    """CPython forgets a timeout that passes inside SimpleQueue.get: the job saw no cancel, and max_wait did not end."""
    queues = [queue.SimpleQueue[Request]() for _ in range(20_000)]

    def wait_for_each() -> None:
        for each in queues:
            with contextlib.suppress(queue.Empty):
                source_of("job 'server'", each).get(1e-9)

    thread = threading.Thread(target=wait_for_each, daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert not thread.is_alive()


def test_a_suspended_job_answers_after_it_is_resumed() -> None:
    source: queue.Queue[Request | None] = queue.Queue()
    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(lambda job: doubles(job, source), name="server", priority="primary")
        runtime.start()
        first, second = Request(torch.ones(1)), Request(torch.ones(1))
        source.put(first)
        assert first.result(SOON_S) == 2.0
        job.suspend()
        wait_until(lambda: job.state == "suspended", SOON_S)
        source.put(second)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        job.resume()
        assert second.result(SOON_S) == 2.0
        source.put(None)
        runtime.wait()


def test_a_loop_can_be_left_and_begun_again() -> None:
    source: queue.Queue[Request | None] = queue.Queue()
    first, second = Request(torch.ones(1)), Request(torch.ones(1))

    def twice(job: Job) -> None:
        source.put(first)
        for request in job.requests(source):
            request.answer(request.data)
            break
        source.put(second)
        source.put(None)
        doubles(job, source)

    result = serve(twice)
    assert (first.result(0), second.result(0)) == (1.0, 2.0)
    assert result.requests is not None and result.requests.answered == 2


def test_a_request_that_did_not_fit_is_answered_by_the_next_loop() -> None:
    requests, source = asked([torch.ones(1, 2), torch.ones(1, 3)])

    def leaves(job: Job) -> None:
        for batch in job.requests(source, max_batch=2):
            batch.answer(batch.data)
            break
        doubles(job, source, max_batch=2)

    serve(leaves)
    assert requests[0].result(0).shape == (1, 2)
    assert float(requests[1].result(0).sum()) == 6.0


def test_many_requests_and_loops_need_no_memory() -> None:
    source: queue.Queue[Any] = queue.Queue()

    def counts(job: Job) -> int:
        answered = 0
        for _ in range(100):
            for number in range(100):
                source.put(number)
            source.put(None)
            for request in job.requests(source):
                request.answer(None)
                answered += 1
        return answered

    def twice(job: Job) -> int:
        counts(job)  # fills the timeline, for example
        before = memory()
        answered = counts(job)
        assert memory() - before < 2 * 2**20  # 10,000 requests, 100 loops
        return answered

    memory = lambda: psutil.Process().memory_info().rss  # noqa: E731
    result = serve(twice, timeline_capacity=1000)
    assert result.value == 10_000
    assert result.requests is not None and result.requests.answered == 20_000


def test_a_job_with_a_callable_source_that_never_ends_does_end() -> None:
    def first_only(job: Job) -> None:
        for request in job.requests(lambda _seconds: torch.ones(1)):
            request.answer(None)
            break

    result = serve(first_only)
    assert result.requests is not None and result.requests.answered == 1


def test_a_forked_child_answers_no_request_of_its_parent() -> None:
    requests, source = asked([torch.ones(1), torch.ones(1)])

    def forks(job: Job) -> list[int]:
        codes = []
        for request in job.requests(source):
            child = os.fork()
            if child == 0:
                os._exit(7)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            request.answer(request.data * 2)
        return codes

    assert serve(forks).value == [7, 7]
    assert [float(each.result(0)) for each in requests] == [2.0, 2.0]


CTRL_C = """
import os, queue, signal, threading, torch, torchshare
source, requests = queue.Queue(), [torchshare.Request(torch.ones(1)) for _ in range(100)]
busy = threading.Event()
for each in requests:
    source.put(each)

def serve(job):
    for request in job.requests(source):
        busy.set()
        while True:
            torch.ones(1)

def ctrl_c():
    busy.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=ctrl_c).start()
try:
    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(serve, name="server", priority="primary")
        runtime.wait()
except KeyboardInterrupt:
    for each in requests:
        try:
            each.result(300)
        except RuntimeError as error:
            print(error)
"""


def test_after_ctrl_c_each_of_100_requests_has_an_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # pytest in the background ignores it
    )
    errors = done.stdout.splitlines()
    assert len(errors) == 100, done.stderr
    assert all(each.startswith("job 'server': a request was not answered: ") for each in errors)


# Bad input.


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (3, {}, "source must be a queue, an iterable or a callable, got 3"),
        (queue.Queue(), {"max_batch": 0}, "max_batch must be a positive integer, got 0"),
        (queue.Queue(), {"max_batch": True}, "max_batch must be a positive integer, got True"),
        (queue.Queue(), {"max_batch": 4, "max_wait": -1}, "max_wait must be from 0 to 60 seconds, got -1"),
        (queue.Queue(), {"max_wait": 0.1}, "max_wait must be 0 without max_batch, got 0.1"),
        (iter([1]), {"max_batch": 2}, "max_batch must be 1 for a source that is an iterable, got 2"),
    ],
)
def test_invalid_arguments_are_refused_at_once(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        serve(lambda job: job.requests(source, **options))
    assert str(error.value) == f"job 'server': {message}"


# Promises.


def test_a_promise_that_is_missed_alone_is_said_once_and_holds_the_lower_job(caplog: pytest.LogCaptureFixture) -> None:
    over, shares = threading.Event(), list[float]()

    def late() -> Iterator[int]:
        while (kept := job._context.handle.latency()) is None or not kept.cannot_hold:
            yield 1
        yield from range(3)

    def slow(job: Job) -> None:
        for request in job.requests(late(), slo="p90<1ms"):
            time.sleep(0.003)
            request.answer(None)
        shares.append(runtime._handle.pace()[0])
        over.set()

    def train(_job: Job) -> None:
        while not over.is_set():
            torch.ones(4)

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(slow, name="server", priority="primary")
        runtime.submit(train, name="training")
        runtime.wait(SOON_S)
    assert shares == [0.0]
    warnings = [record.message for record in caplog.records if "slo" in record.message]
    assert warnings == ["job 'server': slo 'p90<1ms' cannot be held, even alone; lower jobs wait until it holds again"]
    requests = job.result.requests
    assert requests is not None and requests.late == requests.answered and requests.slo == "p90<1ms"
    assert f"; p90<1ms: {requests.late} late (100.00%);" in str(requests)


def test_a_promise_that_holds_lets_the_lower_job_run_all_the_time() -> None:
    def quick(job: Job) -> float:
        for request in job.requests(range(1000), slo="p99<10s"):
            request.answer(None)
            time.sleep(0.0001)
        wait_until(lambda: runtime._handle.pace()[0] == 1.0, SOON_S)
        return float(runtime._handle.pace()[0])

    over = threading.Event()
    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(quick, name="server", priority="primary")
        runtime.submit(lambda _job: over.wait(SOON_S), name="training")
        runtime.start()
        wait_until(lambda: job.state == "finished", SOON_S)
        over.set()
        runtime.wait()
    assert job.result.value == 1.0


@pytest.mark.parametrize("learns", [False, True])
def test_a_bound_on_the_slowdown_of_a_server_is_one_on_its_answers(learns: bool) -> None:
    over, began, services = threading.Event(), list[float](), list[float]()

    def requests() -> Iterator[int]:
        for index in range(150):
            time.sleep(0.02)
            began.append(time.monotonic())
            yield index

    def serve(job: Job) -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for request in job.requests(requests()):
            time.sleep(0.002)
            if learns:
                model(torch.ones(1)).backward()
                optimizer.step()
            request.answer(None)
            services.append(time.monotonic() - began[-1])
        over.set()

    def train(_job: Job) -> None:
        while not over.is_set():
            torch.ones(4)

    with torchshare.Runtime("cpu", max_slowdown=0.5) as runtime:
        job = runtime.submit(serve, name="server", priority="primary")
        runtime.submit(train, name="training")
        runtime.wait(SOON_S)
        bound = job._context.handle.bound()
        (report,) = runtime.bound_report()
    assert bound is not None and bound.alone > 0.002
    assert bound.alone < max(0.015, *services)  # not the 22 ms between two requests
    assert (report.unit, report.step_alone_s) == ("request", bound.alone)
    assert 0.002 <= report.p50_s <= report.p99_s <= max(services)
    assert f"a request takes {1e3 * bound.alone:.2f} ms alone" in str(report)


@pytest.mark.parametrize("slo", ["fast", "p99", "p100<1s", "p99<0ms", "p99<20"])
def test_a_promise_that_cannot_be_read_is_refused(slo: str) -> None:
    with pytest.raises(ValueError, match=r"^job 'server': slo must be a percentile below 100 and a time"):
        serve(lambda job: job.requests([1], slo=slo))


def test_there_is_one_promise_per_job_and_no_other_rule_for_lower_jobs() -> None:
    def two(job: Job) -> None:
        job.requests([1], slo="p99<20ms")
        job.serve(abs, slo="p99<20ms")
        job.serve(abs, slo="p99<10ms")

    with pytest.raises(ValueError, match=r"slo must be the same for all its requests, got 'p99<10ms' after 'p99<20ms'"):
        serve(two)
    for options in ({"max_slowdown": 0.1}, {"secondary_share": 0.5}):
        with pytest.raises(
            ValueError, match=r"job 'server': slo must not be given with max_slowdown or secondary_share"
        ):
            serve(lambda job: job.requests([1], slo="p99<20ms"), **options)


def test_a_promise_can_be_an_option_of_the_job() -> None:
    _, source = asked([torch.ones(1)] * 3)
    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(lambda job: doubles(job, source), name="server", priority="primary", slo="p99<10s")
        runtime.wait()
        promised = job._context.handle.latency()
    assert promised is not None
    assert job.result.requests is not None and job.result.requests.slo == "p99<10s"

    def other(job: Job) -> None:
        job.requests([1], slo="p99<20ms")

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(other, name="server", slo="p99<10s")
        runtime.wait(check=False)
    assert str(job.result.exception) == (
        "job 'server': slo must be the same for all its requests, got 'p99<20ms' after 'p99<10s'"
    )


def test_a_promise_that_is_an_option_is_refused_before_any_job_runs() -> None:
    with torchshare.Runtime("cpu", max_slowdown=0.1) as runtime:
        with pytest.raises(ValueError, match=r"^job 'server': slo must be a percentile .*, got 'fast'$"):
            runtime.submit(lambda job: None, name="server", slo="fast")
        with pytest.raises(ValueError, match=r"^job 'server': slo must not be given with max_slowdown"):
            runtime.submit(lambda job: None, name="server", slo="p99<20ms")
        with pytest.raises(ValueError, match=r"^job 'server': slo must be a string, got 20$"):
            runtime.submit(lambda job: None, name="server", slo=20)  # type: ignore[arg-type]


def test_a_promise_of_a_job_without_requests_limits_nobody_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    over, shares = threading.Event(), list[float]()

    def train(_job: Job) -> None:
        for _ in range(100):
            torch.ones(4)
        shares.append(runtime._handle.pace()[0])
        over.set()

    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(lambda job: over.wait(SOON_S), name="server", priority="primary", slo="p99<20ms")
        runtime.submit(train, name="training")
        runtime.wait()
    assert shares == [1.0]
    assert [record.message for record in caplog.records if "slo" in record.message] == [
        "job 'server': slo='p99<20ms' had no effect: it has called neither job.requests nor job.serve"
    ]


# Bad input.


def test_a_batch_is_answered_in_the_jobs_thread() -> None:
    _, source = asked([1])
    errors: list[BaseException] = []

    def elsewhere(job: Job) -> None:
        def answer() -> None:
            try:
                request.answer(1)
            except RuntimeError as error:
                errors.append(error)

        for request in job.requests(source):  # noqa: B007
            thread = threading.Thread(target=answer, name="batcher")
            thread.start()
            thread.join()

    serve(elsewhere)
    assert str(errors[0]) == (
        "job 'server': its requests must be taken and answered in its own thread, while it runs, got thread 'batcher': "
        "run the loop in the job's function, and the server in a thread"
    )


def test_the_table_tells_of_requests() -> None:
    _, source = asked([torch.ones(1)] * 3)
    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(lambda job: doubles(job, source), name="server", priority="primary")
        table = str(runtime.wait())
    assert "job 'server': 3 requests answered; p50 / p95 / p99 in ms: latency " in table


def test_other_ranks_are_told_that_lower_jobs_may_run_at_any_time_while_nobody_asks() -> None:
    inbox: queue.Queue[Any] = queue.Queue()

    def serve(job: Job) -> None:
        for request in job.requests(inbox, slo="p99<1s"):
            request.answer(0)

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(serve, threads=1, priority="primary")
        lower = runtime.submit(run_ops_for_ever, threads=1, name="lower")
        runtime.start()
        wait_until(lambda: job._context.handle.latency() is not None)
        wait_until(lambda: lower.state == "running")  # an answer that no lower job runs beside changes no pace
        assert runtime._handle.pace()[0] == 1
        inbox.put(1)
        wait_until(lambda: job.result.requests is not None and job.result.requests.answered == 1)
        wait_until(lambda: runtime._handle.pace()[0] < 1)
        runtime.cancel()
        runtime.wait(check=False)
