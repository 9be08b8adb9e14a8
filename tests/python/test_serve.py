"""Functions of a job that other threads call, as the handlers of a server do."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch
from conftest import SOON_S, wait_until
from request_jobs import Server, running
from torch import nn

import torchshare
from torchshare import _C, Job

ROOT = Path(__file__).parents[2]


def train(job: Job, over: threading.Event) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while not over.is_set():
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("policy", ["priority", "strict"])
def test_an_http_server_with_8_threads_answers_beside_a_training(policy: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).eval()

    @torch.no_grad()
    def infer(value: float) -> float:
        before = training.result.ops
        answer = float(model(torch.full((1, 4), value)))
        inside.append(training.result.ops - before)
        return answer

    def serve(job: Job) -> None:
        served = job.serve(infer)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    body = str(served(float(self.path[1:]))).encode()
                except ValueError as error:
                    self.send_error(400, str(error))
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            ports.append(server.server_address[1])
            servers.append(server)
            ready.set()
            server.serve_forever(0.01)

    def ask(number: int) -> float:
        with urlopen(f"http://127.0.0.1:{ports[0]}/{number}", timeout=SOON_S) as reply:
            return float(reply.read())

    ports: list[int] = []
    servers: list[ThreadingHTTPServer] = []
    ready, over = threading.Event(), threading.Event()
    inside: list[int] = []  # each request, the ops of the training
    with torchshare.Runtime("cpu", policy=policy) as runtime:
        job = runtime.submit(serve, name="server", priority="primary")
        training = runtime.submit(lambda job: train(job, over), name="training")
        runtime.start()
        assert ready.wait(SOON_S)
        before = job.result.ops
        ask(0)
        of_one = job.result.ops - before
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(ask, range(200)))
        ops = job.result.ops - before
        with pytest.raises(HTTPError, match="400"):
            urlopen(f"http://127.0.0.1:{ports[0]}/nonsense", timeout=SOON_S)
        over.set()
        servers[0].shutdown()
        runtime.wait()
    assert answers == [infer(float(number)) for number in range(200)]
    assert of_one >= 5  # full, addmm, relu, addmm, item
    assert ops == 201 * of_one
    if policy == "strict":
        assert sorted(inside[:201])[100] <= 1, inside  # the op that had begun before; a handler may have had no core
    requests = job.result.requests
    assert requests is not None and requests.answered == 201 and job.result.steps == 0
    assert 0 < requests.service.p50 <= requests.latency.p99


@pytest.mark.parametrize("how", ["loop", "served", "own thread"])
def test_under_strict_no_lower_op_begins_in_a_request(how: str) -> None:
    over, inbox = threading.Event(), queue.Queue[Any]()
    inside: list[int] = []

    def answer(_: int) -> None:
        before = lower.result.ops
        for _ in range(5):
            torch.ones(4) * 2
            until = time.monotonic() + 0.002
            while time.monotonic() < until:  # Python code
                pass
        inside.append(lower.result.ops - before)

    def serve(job: Job) -> None:
        served.append(job.serve(answer))
        if how == "own thread":
            for number in range(30):
                before = lower.result.ops
                wait_until(lambda before=before: lower.result.ops > before, SOON_S)
                served[0](number)
        for request in job.requests(inbox):
            request.answer(answer(request.data))
        over.set()

    def run_ops(_job: Job) -> None:
        while not over.is_set():
            torch.ones(16, 16) @ torch.ones(16, 16)

    served: list[Callable[..., None]] = []
    with torchshare.Runtime("cpu", policy="strict") as runtime:
        runtime.submit(serve, name="server", priority="primary", threads=1)
        lower = runtime.submit(run_ops, name="lower", threads=1)
        runtime.start()
        wait_until(lambda: served != [] and lower.result.ops > 0, SOON_S)
        for number in range(0 if how == "own thread" else 30):
            before = lower.result.ops
            wait_until(lambda before=before: lower.result.ops > before, SOON_S)
            if how == "served":
                served[0](number)
            else:
                request = torchshare.Request(number)
                inbox.put(request)
                request.result(SOON_S)
        inbox.put(None)
        runtime.wait()
    assert sorted(inside)[len(inside) // 2] <= 1, inside  # the op that had begun before


def test_under_strict_lower_ops_run_once_a_request_is_answered_though_the_loop_is_kept() -> None:
    inbox = queue.Queue[Any]()

    def serve(job: Job) -> None:
        loop = job.requests(inbox)
        next(loop).answer(None)
        before, until = lower.result.ops, time.monotonic() + SOON_S
        while lower.result.ops < before + 10:  # it trains, and the loop goes on later
            assert time.monotonic() < until, "kept out"
            torch.ones(4) * 2
            pause = time.monotonic() + 0.005
            while time.monotonic() < pause:
                pass
        loop.close()  # type: ignore[attr-defined]

    def run_ops(job: Job) -> None:
        while server.state != "finished":
            torch.ones(16, 16) @ torch.ones(16, 16)

    inbox.put(1)
    with torchshare.Runtime("cpu", policy="strict") as runtime:
        server = runtime.submit(serve, name="server", priority="primary", threads=1)
        lower = runtime.submit(run_ops, name="lower", threads=1)
        runtime.wait(SOON_S)


def test_any_thread_may_call_64_at_a_time() -> None:
    everyone = threading.Barrier(64)

    def double(x: torch.Tensor) -> torch.Tensor:
        everyone.wait(SOON_S)
        return x * 2

    server = Server(double)
    with running(server) as (job, _), ThreadPoolExecutor(64) as pool:
        answers = [float(each) for each in pool.map(server.call, torch.arange(64.0))]
    assert answers == [2.0 * number for number in range(64)]
    assert job.result.requests is not None and job.result.requests.answered == 64


def test_a_call_has_the_jobs_settings_and_what_it_has_replaced() -> None:
    def replace() -> None:
        nn.functional.relu = lambda x: x * 0 + 7  # type: ignore[assignment]
        torch.set_default_dtype(torch.float64)

    def look() -> tuple[float, torch.dtype]:
        x = torch.ones(1)
        return float(nn.functional.relu(x)), x.dtype

    server = Server(look, replace)
    with running(server):
        assert server.call() == (7.0, torch.float64)
    assert look() == (1.0, torch.float32)


def test_two_calls_at_a_time_draw_different_numbers_and_leave_the_programs_state() -> None:
    both = threading.Barrier(2)

    def draw() -> float:
        both.wait(SOON_S)
        return float(torch.rand(1))

    state = torch.get_rng_state()
    server = Server(draw)
    with running(server), ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(server.call) for _ in range(2))
        assert first.result(SOON_S) != second.result(SOON_S)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_call_that_seeds_draws_the_same_numbers_in_any_thread_and_leaves_the_jobs_state() -> None:
    def sample(seed: int) -> list[float]:
        torch.manual_seed(seed)
        return torch.rand(3).tolist()  # type: ignore[no-any-return]

    states: list[torch.Tensor] = []

    class Watched(Server):
        def __call__(self, job: Job) -> None:
            states.append(torch.get_rng_state())
            super().__call__(job)
            states.append(torch.get_rng_state())

    server = Watched(sample)
    with running(server), ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(server.call, [7, 8] * 6))
    with torch.random.fork_rng(devices=[]):
        assert answers == [sample(7), sample(8)] * 6
    assert torch.equal(*states)


def test_a_call_may_train_and_another_served_function_may_be_part_of_it() -> None:
    model = nn.Linear(2, 1)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        model(x).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad.clone()

    server = Server(gradient)
    with running(server) as (job, _):
        outer = server.call
        assert torch.equal(outer(torch.ones(3, 2)), torch.full((1, 2), 3.0))
    assert job.result.requests is not None and job.result.requests.answered == 1


def test_the_jobs_own_thread_and_threads_that_it_starts_may_call_it() -> None:
    def body(job: Job) -> list[float]:
        double = job.serve(lambda x: x * 2)
        answers = [double(1.0)]
        thread = threading.Thread(target=lambda: answers.append(double(2.0)))
        thread.start()
        thread.join()
        torch.rand(1)  # the thread has left the job's own as it was
        return answers

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(body, name="server", priority="primary")
        runtime.wait()
    assert job.result.value == [2.0, 4.0]
    assert job.result.requests is not None and job.result.requests.answered == 2


def test_a_thread_is_left_as_it_was() -> None:
    server = Server(lambda: torch.rand(1))
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with running(server):
        server.call()
        assert torch.equal(torch.rand(1), expected)
        assert torch.autograd._profiler_enabled() is False  # type: ignore[attr-defined]


# Faults.


def test_a_call_that_fails_fails_alone() -> None:
    def half(x: int) -> float:
        return 1 / x

    server = Server(half)
    with running(server) as (job, _):
        with pytest.raises(ZeroDivisionError):
            server.call(0)
        assert server.call(2) == 0.5
    requests = job.result.requests
    assert requests is not None and (requests.answered, requests.failed) == (1, 1)
    assert job.state == "finished"


def test_a_job_that_ends_waits_for_calls_and_refuses_later_ones() -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow() -> float:
        began.set()
        may_end.wait(SOON_S)
        return float(torch.ones(1))

    server = Server(slow)
    with torchshare.Runtime("cpu") as runtime, ThreadPoolExecutor(1) as pool:
        job = runtime.submit(server, name="server", priority="primary")
        runtime.start()
        assert server.ready.wait(SOON_S)
        answer = pool.submit(server.call)
        assert began.wait(SOON_S)
        server.stop()
        with pytest.raises(TimeoutError):
            runtime.wait(0.2)
        may_end.set()
        runtime.wait(SOON_S)
        assert answer.result(SOON_S) == 1.0 and job.state == "finished"
        with pytest.raises(RuntimeError, match=r"^job 'server': a request was not answered: the job has ended$"):
            server.call()


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_calls_of_a_job_that_is_stopped_end_in_an_error(how: str) -> None:
    began = threading.Barrier(9)

    def forever() -> None:
        began.wait(SOON_S)
        while True:
            torch.ones(4)

    server = Server(forever)
    with torchshare.Runtime("cpu") as runtime, ThreadPoolExecutor(8) as pool:
        job = runtime.submit(server, name="server", priority="primary")
        runtime.start()
        assert server.ready.wait(SOON_S)
        calls = [pool.submit(server.call) for _ in range(8)]
        began.wait(SOON_S)
        job.cancel() if how == "cancel" else runtime.close()
        for each in calls:
            with pytest.raises(RuntimeError, match=r"^job 'server': a request was not answered: the job was stopped$"):
                each.result(SOON_S)
        runtime.wait(SOON_S, check=False)
    assert job.state == "cancelled"


def test_calls_of_a_suspended_job_wait() -> None:
    server = Server(lambda: float(torch.ones(1)))
    with running(server) as (job, _), ThreadPoolExecutor(1) as pool:
        assert server.call() == 1.0
        job.suspend()
        answer = pool.submit(server.call)
        with pytest.raises(TimeoutError):
            answer.result(0.2)
        job.resume()
        assert answer.result(SOON_S) == 1.0


def test_a_thread_of_another_job_is_refused() -> None:
    server = Server(lambda: torch.ones(1))
    errors: list[str] = []

    def other(_job: Job) -> None:
        try:
            server.call()
        except RuntimeError as error:
            errors.append(str(error))

    with running(server) as (_, runtime):
        job = runtime.submit(other, name="other")
        wait_until(lambda: job.state == "finished", SOON_S)
    assert errors == ["job 'server': its served functions must not be called in a job, got job 'other'"]


def test_what_cannot_be_called_is_refused() -> None:
    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(lambda job: job.serve(3), name="server", priority="primary")  # type: ignore[arg-type]
        runtime.wait(check=False)
    assert str(job.result.exception) == "job 'server': function must be callable, got 3"


def test_outside_of_jobs_a_script_serves_and_takes_requests_as_plain_python() -> None:
    def double(x: float) -> float:
        return x * 2

    assert torchshare.serve(double) is double
    answers = []
    for request in torchshare.requests([1, 2]):
        request.answer(request.data)
        answers.append(request.requests[0].result(0))
    assert answers == [1, 2]


@pytest.mark.slow
def test_the_example_server_answers_over_http_beside_a_training(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "server.py"), "--seconds", "2", "--slo", "p95<5s"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    _, *rows = done.stdout.splitlines()
    assert [row[:28].rstrip() for row in rows] == ["alone", "beside a training", "beside it, p95<5s"]
    assert all(float(row.split()[-1]) > 0 for row in rows[1:])
    assert (tmp_path / "server.png").stat().st_size > 0
    report = (tmp_path / "server.html").read_text()
    assert "p95&lt;5s" in report


needs_raise = pytest.mark.skipif(not _C.may_raise_priority(), reason="no CAP_SYS_NICE, no RLIMIT_NICE")


def policy() -> int:
    return os.sched_getscheduler(0)


@needs_raise
def test_threads_of_a_lower_server_have_low_priority_in_a_call_while_a_higher_job_runs() -> None:
    over = threading.Event()

    def waits_for(wanted: int) -> bool:
        """Another thread sees that there is no higher job, and raises this one."""
        wait_until(lambda: policy() == wanted, SOON_S)
        return True

    alone, beside = Server(lambda: waits_for(os.SCHED_OTHER)), Server(lambda: waits_for(os.SCHED_IDLE))
    for server, trains in ((alone, False), (beside, True)):
        over.clear()
        with torchshare.Runtime("cpu", device_priority="idle") as runtime, ThreadPoolExecutor(1) as pool:
            runtime.submit(server, name="server", threads=1)
            if trains:
                runtime.submit(lambda job: train(job, over), name="higher", priority="primary", threads=1)
            runtime.start()
            assert server.ready.wait(SOON_S)
            assert pool.submit(server.call).result(SOON_S)
            assert pool.submit(policy).result(SOON_S) == os.SCHED_OTHER, "the thread is not the job's any more"
            over.set()
            server.stop()
            runtime.wait()


class HoldingServer(Server):
    """A server whose calls wait for `release`."""

    def __init__(self) -> None:
        super().__init__(self._hold)
        self.release = threading.Event()
        self.threads: list[int] = []

    def _hold(self) -> None:
        self.threads.append(threading.get_native_id())
        self.release.wait(SOON_S)

    def has(self, policy: int) -> bool:
        """Whether the thread of the first call has that scheduling policy."""
        return bool(self.threads) and os.sched_getscheduler(self.threads[0]) == policy


@needs_raise
def test_only_the_thread_that_answers_has_low_priority() -> None:
    """A higher job lowers the thread of a call, and its workers, which are found by its name. All threads that Python
    had started have the same name, and the main one: they were lowered, too."""
    over, server = threading.Event(), HoldingServer()
    with torchshare.Runtime("cpu", device_priority="idle") as runtime, ThreadPoolExecutor(2) as pool:
        runtime.submit(server, name="server", threads=1)
        runtime.start()
        try:
            assert server.ready.wait(SOON_S)
            pool.submit(server.call)
            wait_until(lambda: server.has(os.SCHED_OTHER), SOON_S)
            other = pool.submit(threading.get_native_id).result(SOON_S)
            runtime.submit(lambda job: train(job, over), name="higher", priority="primary", threads=1)
            wait_until(lambda: server.has(os.SCHED_IDLE), SOON_S)
            time.sleep(0.2)  # the others are lowered after it
            assert [os.sched_getscheduler(each) for each in (other, 0)] == [os.SCHED_OTHER, os.SCHED_OTHER]
        finally:
            server.release.set()
            over.set()
            server.stop()
            runtime.wait()


@needs_raise
def test_a_thread_of_the_job_that_calls_its_served_function_has_the_jobs_priority() -> None:
    """Such as a scheduler's that warms a model up. A call that another thread makes has the priority from the call."""
    over, release, threads, names = threading.Event(), threading.Event(), [], []

    def name() -> str:
        return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text()

    def hold() -> None:
        names.append(name())
        threads.append(threading.get_native_id())
        release.wait(SOON_S)

    def serves(job: Job) -> None:
        names.append(name())
        caller = threading.Thread(target=job.serve(hold))
        caller.start()
        caller.join()

    def has(policy: int) -> bool:
        return bool(threads) and os.sched_getscheduler(threads[0]) == policy

    with torchshare.Runtime("cpu", device_priority="idle") as runtime:
        runtime.submit(lambda job: train(job, over), name="higher", priority="primary", threads=1)
        server = runtime.submit(serves, name="server", threads=1)
        runtime.start()
        try:
            wait_until(lambda: has(os.SCHED_IDLE), SOON_S)
            over.set()
            wait_until(lambda: has(os.SCHED_OTHER), SOON_S)
            over.clear()
            runtime.submit(lambda job: train(job, over), name="second", priority="primary", threads=1)
            wait_until(lambda: has(os.SCHED_IDLE), SOON_S)
            server.cancel()
            wait_until(lambda: has(os.SCHED_OTHER), SOON_S)
        finally:
            release.set()
            over.set()
            runtime.wait(check=False)
    assert len(names) == 2 and len(set(names)) == 1


@needs_raise
def test_calls_of_a_lower_server_have_ordinary_priority_once_it_is_cancelled() -> None:
    over, server = threading.Event(), HoldingServer()
    with torchshare.Runtime("cpu", device_priority="idle") as runtime, ThreadPoolExecutor(1) as pool:
        job = runtime.submit(server, name="server", threads=1)
        runtime.submit(lambda job: train(job, over), name="higher", priority="primary", threads=1)
        runtime.start()
        assert server.ready.wait(SOON_S)
        call = pool.submit(server.call)
        wait_until(lambda: server.has(os.SCHED_IDLE), SOON_S)
        job.cancel()
        try:
            assert server.has(os.SCHED_OTHER)
        finally:
            server.release.set()
            with contextlib.suppress(RuntimeError):
                call.result(SOON_S)
            over.set()
            runtime.wait(check=False)
