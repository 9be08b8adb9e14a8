"""Requests to a job on a GPU: whose stream they run on, and when they have their answers."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from conftest import SOON_S
from gpu_jobs import MIB, SLEEP_CYCLES
from torch import nn

import torchshare
from torchshare import Job, Request

pytestmark = pytest.mark.gpu


def test_an_answer_is_given_when_the_device_has_computed_it() -> None:
    source: queue.Queue[Request | None] = queue.Queue()
    pending: list[bool] = []

    def serve(job: Job) -> None:
        for request in job.requests(source):
            x = request.data.cuda()
            torch.cuda._sleep(SLEEP_CYCLES // 10)
            answer = x * 2
            pending.append(not torch.cuda.current_stream().query())
            request.answer(answer)
            pending.append(not torch.cuda.current_stream().query())

    with torchshare.Runtime("cuda") as runtime:
        job = runtime.submit(serve, name="server", priority="primary")
        runtime.start()
        for number in range(3):
            request = Request(torch.full((MIB,), float(number)))
            source.put(request)
            answer = request.result(SOON_S)  # read on this thread's stream, without a synchronization
            assert bool((answer == 2 * number).all())
        source.put(None)
        runtime.wait()
    assert pending == [True, False] * 3
    requests = job.result.requests
    assert requests is not None and requests.service.p50 > 0.01  # with the time on the device


def test_requests_of_a_batch_get_their_rows_when_the_device_has_computed_them_all() -> None:
    requests = [Request(torch.full((rows, MIB // 4), float(rows))) for rows in (1, 2, 3)]
    source: queue.Queue[Request | None] = queue.Queue()
    for each in (*requests, None):
        source.put(each)
    was_computed: list[list[bool]] = []
    computed: list[torch.cuda.Event] = []

    def serve(job: Job) -> None:
        def double(x: torch.Tensor) -> torch.Tensor:
            answer = x.cuda() * 2
            torch.cuda._sleep(SLEEP_CYCLES // 10)
            computed.append(torch.cuda.current_stream().record_event())
            was_computed.append([computed[-1].query(), *(each.done() for each in requests)])
            return answer

        for batch in job.requests(source, max_batch=8):
            batch.answer_with(double)

    with torchshare.Runtime("cuda") as runtime:
        job = runtime.submit(serve, name="server", priority="primary")
        runtime.start()
        for rows, each in enumerate(requests, start=1):
            answer = each.result(SOON_S)
            assert computed[-1].query()
            # read on this thread's stream, without a synchronization
            assert answer.shape == (rows, MIB // 4) and bool((answer == 2 * rows).all())
        runtime.wait()
    assert was_computed == [[False] * 4]  # one batch
    assert job.result.requests is not None and job.result.requests.answered == 3


@pytest.mark.parametrize("policy", ["priority", "strict"])
def test_requests_of_all_threads_run_on_the_jobs_stream_beside_a_training(policy: str) -> None:
    ready, over = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    def serve(job: Job) -> None:
        model = nn.Linear(16, 16).cuda().eval()
        found["stream"], found["model"] = torch.cuda.current_stream(), model

        @torch.no_grad()
        def infer(x: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Stream]:
            return model(x.cuda()), torch.cuda.current_stream()

        found["infer"] = job.serve(infer)
        ready.set()
        assert over.wait(SOON_S)

    def train(_job: Job) -> None:
        model = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while not over.is_set():
            optimizer.zero_grad()
            model(torch.randn(32, 64, device="cuda")).square().mean().backward()
            optimizer.step()

    data = [torch.randn(4, 16) for _ in range(32)]
    with torchshare.Runtime("cuda", policy=policy) as runtime:
        job = runtime.submit(serve, name="server", priority="primary", threads=1)
        runtime.submit(train, name="training", threads=1)
        runtime.start()
        assert ready.wait(SOON_S)
        outside = torch.cuda.current_stream()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(found["infer"], data))
        assert torch.cuda.current_stream() == outside
        over.set()
        runtime.wait()
    assert {stream for _, stream in answers} == {found["stream"]} != {outside}
    for x, (answer, _) in zip(data, answers, strict=True):
        assert torch.equal(answer, found["model"](x.cuda()))
    assert job.result.requests is not None and job.result.requests.answered == len(data)


def test_a_call_in_a_servers_thread_seeds_the_jobs_generator_and_waits_for_the_job_alone() -> None:
    ready, busy, over = threading.Event(), threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    def sample(seed: int) -> tuple[list[float], bool]:
        torch.manual_seed(seed)
        drawn = torch.rand(3, device="cuda")
        torch.cuda.synchronize()
        return drawn.tolist(), found["slept"].query()

    def serve(job: Job) -> None:
        found["infer"] = job.serve(sample)
        ready.set()
        assert over.wait(SOON_S)

    def occupy(_job: Job) -> None:
        torch.cuda._sleep(20 * SLEEP_CYCLES)
        found["slept"] = torch.cuda.current_stream().record_event()
        busy.set()
        assert over.wait(SOON_S)

    state = torch.cuda.get_rng_state()
    with torchshare.Runtime("cuda") as runtime:
        runtime.submit(serve, name="server", priority="primary")
        runtime.submit(occupy, name="other")
        runtime.start()
        assert ready.wait(SOON_S) and busy.wait(SOON_S)
        with ThreadPoolExecutor(1) as pool:
            (first, slept), (second, _), (again, _) = pool.map(found["infer"], [1, 2, 1])
        over.set()
        runtime.wait()
    assert not slept, "waited for the other job"
    assert first == again != second
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_served_call_returns_when_the_device_has_computed_its_answer() -> None:
    ready, over = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    def double(x: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event, bool]:
        x = x.cuda()
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        answer = x * 2
        computed = torch.cuda.current_stream().record_event()
        return answer, computed, computed.query()

    def serve(job: Job) -> None:
        found["double"] = job.serve(double)
        found["own"] = found["double"](torch.ones(MIB))
        found["own is computed"] = found["own"][1].query()
        ready.set()
        assert over.wait(SOON_S)

    def call(number: int) -> tuple[bool, bool, bool]:
        answer, computed, was_computed = found["double"](torch.full((MIB,), float(number)))
        is_computed = computed.query()
        # read on this thread's stream, without a synchronization
        return was_computed, is_computed, bool((answer == 2 * number).all())

    with torchshare.Runtime("cuda") as runtime:
        job = runtime.submit(serve, name="server", priority="primary")
        runtime.start()
        assert ready.wait(SOON_S)
        with ThreadPoolExecutor(1) as pool:
            calls = list(pool.map(call, range(3)))
        over.set()
        runtime.wait()
    assert calls == [(False, True, True)] * 3
    assert (found["own"][2], found["own is computed"]) == (False, True)  # in the job's own thread
    requests = job.result.requests
    assert requests is not None and requests.service.p50 > 0.01  # with the time on the device
