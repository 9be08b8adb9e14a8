"""Streams, events and graphs that a job's own code makes with torch.cuda, beside another job."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpu_jobs import (
    MIB,
    SLEEP_CYCLES,
    alone,
    attention,
    conv,
    enters_beside,
    held_by_tensors,
    identical,
    on_gpu,
    run_pair,
    trainer,
)
from torch import Tensor, nn

import torchshare
from torchshare import Job

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*takes its statistics")]


def test_memory_used_on_another_stream_is_not_taken_too_early() -> None:
    def job(_job: Job) -> bool:
        side = torch.cuda.Stream()
        x = torch.ones(MIB, device="cuda") * 1  # loads the kernel, which may wait for the whole device
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES // 10)
            y = x * 2
        x.record_stream(side)
        del x
        torch.zeros(MIB, device="cuda")  # must not be x's memory yet
        torch.cuda.synchronize()
        return bool((y == 2).all())

    assert on_gpu(job)


def on_side_streams(_job: Job) -> list[Tensor]:
    """Trains two halves of a model on streams of their own, in the order that events and waits give."""
    with torch.device("cuda"):
        left, right = nn.Linear(32, 32), nn.Linear(32, 32)
        data = [torch.randn(16, 32) for _ in range(12)]
    optimizer = torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1)
    main, streams = torch.cuda.current_stream(), (torch.cuda.Stream(), torch.cuda.Stream())
    for x in data:
        parts = []
        for stream, half in zip(streams, (left, right), strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                y = half(x * 2).relu()
                parts.append(y)
            x.record_stream(stream)
        for stream, y in zip(streams, parts, strict=True):
            main.wait_event(stream.record_event())
            y.record_stream(main)
        (parts[0] * parts[1]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*left.parameters(), *right.parameters()]


def test_side_streams_train_as_alone(policy: str) -> None:
    expected = [tensor.cpu() for tensor in on_gpu(on_side_streams, seed=1)]
    results = run_pair(trainer(conv), on_side_streams, policy=policy)
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(expected, results["second"].value)


def test_more_streams_than_there_are() -> None:
    """Beyond 32 they are taken again in turn; work on each is waited for."""

    def job(_job: Job) -> list[float]:
        totals = []
        for number in range(40):
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(SLEEP_CYCLES // 1000)
                totals.append(torch.full((8,), float(number), device="cuda").sum())
        torch.cuda.synchronize()
        return [total.item() for total in totals]

    for result in run_pair(job, job).values():
        assert result.value == [8.0 * number for number in range(40)]


def test_the_current_stream_of_a_job_and_of_the_program() -> None:
    before = torch.cuda.current_stream()

    def look(_job: Job) -> list[int]:
        own, side = torch.cuda.current_stream(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            inside = torch.cuda.current_stream()
        assert inside == side != own == torch.cuda.current_stream()
        assert torch.cuda.default_stream() == own, "what DeepSpeed waits for"
        return [own.cuda_stream, side.cuda_stream]

    results = run_pair(look, look)
    used = [handle for result in results.values() for handle in result.value]
    assert len({0, *used}) == 5
    assert torch.cuda.current_stream() == before


def slow_ones(count: int) -> Tensor:
    """Ones that the device writes in 50 ms."""
    torch.cuda._sleep(SLEEP_CYCLES // 10)
    return torch.ones(count, device="cuda")


def test_a_job_reads_what_the_program_has_made() -> None:
    """On the stream where it submits and, until the start, on its default one: it read zeros."""
    made: list[Tensor] = []
    side = torch.cuda.Stream()
    with torchshare.Runtime(device="cuda") as runtime:
        with torch.cuda.stream(side):
            made.append(slow_ones(2))
            job = runtime.submit(lambda _: [float(each.sum()) for each in made], name="reads", threads=1)
        made.append(slow_ones(3))
        runtime.start()
        runtime.wait(60)
        assert job.result.value == [2, 3]


def uploads(_job: Job) -> float:
    """A prefetcher."""
    batches: queue.Queue[Tensor] = queue.Queue(1)
    host = torch.ones(5).pin_memory()

    def prefetch() -> None:
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        batches.put(host.to("cuda", non_blocking=True))

    threading.Thread(target=prefetch).start()
    return float(batches.get().sum())


def reads_in_a_pool(_job: Job) -> float:
    """A logger."""
    with ThreadPoolExecutor(1) as pool:
        return float(pool.submit(torch.Tensor.sum, slow_ones(5)).result())


def waits_in_a_thread(_job: Job) -> float:
    result = torch.zeros(5).pin_memory()

    def wait() -> None:
        result.copy_(slow_ones(5), non_blocking=True)
        torch.cuda.synchronize()

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    return float(result.sum())


@pytest.mark.parametrize("function", [uploads, reads_in_a_pool, waits_in_a_thread])
def test_threads_that_a_job_starts_work_on_its_stream(function: Callable[[Job], float]) -> None:
    """On the legacy stream, they did not wait for the job, nor the job for them."""
    assert on_gpu(function) == 5


def test_threads_that_a_job_starts_draw_from_its_random_state() -> None:
    """On the device, they drew from the process's."""

    def draw() -> list[float]:
        return [
            *torch.rand(3, device="cuda").tolist(),
            float(nn.functional.dropout(torch.ones(64, device="cuda")).sum()),
        ]

    def seeds_and_draws() -> list[float]:
        torch.cuda.manual_seed(3)
        return draw()

    def in_threads(_job: Job) -> list[list[float]]:
        with ThreadPoolExecutor(1) as pool:
            return [draw(), pool.submit(draw).result(), pool.submit(seeds_and_draws).result(), draw()]

    expected = on_gpu(lambda _job: [draw(), draw(), seeds_and_draws(), draw()])
    others = on_gpu(lambda _job: [draw(), draw(), seeds_and_draws(), draw()], seed=1)
    results = run_pair(in_threads, in_threads)
    assert [results["first"].value, results["second"].value] == [expected, others]


def test_the_upload_of_a_thread_is_no_part_of_a_graph_that_is_captured_meanwhile() -> None:
    """Each launch of the graph would repeat it."""
    capturing, uploaded = threading.Event(), queue.Queue[Tensor]()

    def trains(job: Job) -> tuple[float, str | None]:
        weights = torch.ones(4, device="cuda", requires_grad=True)
        total = torch.zeros(5, device="cuda")

        def upload() -> None:
            assert capturing.wait(30)
            total.add_(torch.ones(5).pin_memory().to("cuda", non_blocking=True))
            uploaded.put(total)

        def loss_fn(x: Tensor) -> Tensor:
            if torch.cuda.is_current_stream_capturing():
                capturing.set()
                time.sleep(0.2)  # the thread comes to its ops
            return (x * weights).sum()

        loss = job.graph(loss_fn)
        threading.Thread(target=upload).start()
        for batch in job.batches([torch.ones(2, 4, device="cuda")] * 3):
            batch.backward(loss)
        return float(uploaded.get(timeout=30).sum()), loss.fallback

    assert on_gpu(trains) == (5, None)


STREAMS = {
    "of priority": lambda: torch.cuda.Stream(priority=-1),  # FSDP's
    "of any device": lambda: torch.Stream("cuda"),  # of DDP's optimizer hook
    "of an extension": lambda: torch.cuda.ExternalStream(torch.Stream("cuda").native_handle),
    "default": torch.cuda.default_stream,  # DeepSpeed's
    "of torch's pool": lambda: torch._C._CudaStreamBase(priority=0),
}


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("synchronize", [torch.cuda.synchronize, torch.accelerator.synchronize])
def test_every_stream_that_is_current_in_a_job_is_the_jobs(
    make: Callable[[], torch.cuda.Stream], synchronize: Callable[[], None]
) -> None:
    """`synchronize` returned at once."""

    def copies(_job: Job) -> float:
        stream, result, former = make(), torch.zeros(5).pin_memory(), torch.cuda.current_stream()
        x = torch.ones(5, device="cuda")
        stream.wait_stream(former)
        torch.accelerator.set_stream(stream)
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        result.copy_(x, non_blocking=True)
        torch.accelerator.set_stream(former)
        synchronize()
        return float(result.sum())

    assert on_gpu(copies) == 5


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_the_end_of_a_job_waits_for_every_stream(make: Callable[[], torch.cuda.Stream]) -> None:
    def leaves(_job: Job) -> Tensor:
        torch.accelerator.set_stream(make())
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        return torch.ones(5).pin_memory().to("cuda", non_blocking=True)

    assert float(on_gpu(leaves).sum()) == 5


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_the_gate_sees_the_work_of_every_stream(make: Callable[[], torch.cuda.Stream]) -> None:
    """Under "strict", a lower job ran beside it."""

    def launch(_job: Job) -> torch.cuda.Event:
        torch.accelerator.set_stream(make())
        torch.cuda._sleep(SLEEP_CYCLES // 2)
        torch.ones(1, device="cuda")  # an op; to sleep is none
        return torch.cuda.current_stream().record_event()

    assert enters_beside(launch) is False


def test_a_lower_job_is_let_in_once_every_stream_of_the_higher_is_done() -> None:
    """It waited for a marker on a stream that had none."""
    launched, entered = threading.Event(), threading.Event()

    def high(_job: Job) -> bool:
        for stream in (torch.cuda.Stream(), torch._C._CudaStreamBase(priority=0)):
            with torch.cuda.stream(stream):
                torch.ones(1, device="cuda")
        torch.cuda.synchronize()
        launched.set()
        return entered.wait(30)

    def low(_job: Job) -> None:
        assert launched.wait(300)
        torch.ones(1, device="cuda")
        entered.set()

    assert run_pair(high, low, policy="strict")["first"].value


def graphed(in_capture: Callable[[], None]) -> Callable[[Job], str | None]:
    """A job that trains with a graph and calls `in_capture` while it is captured. Returns why it fell back to eager."""

    def train(job: Job) -> str | None:
        weights = torch.ones(4, device="cuda", requires_grad=True)

        def loss_fn(x: Tensor) -> Tensor:
            if torch.cuda.is_current_stream_capturing():
                in_capture()
            return (x * weights).sum()

        loss = job.graph(loss_fn)
        for batch in job.batches([torch.ones(2, 4, device="cuda")] * 3):
            batch.backward(loss)
        return loss.fallback

    return train


def test_no_marker_is_recorded_on_a_stream_that_is_captured() -> None:
    """Nor is the stream asked for its work: both would fail the capture, or become a part of it."""
    capturing = threading.Event()

    def pauses() -> None:
        capturing.set()
        time.sleep(0.2)  # the other job comes to its op

    def low(_job: Job) -> None:
        assert capturing.wait(300)
        torch.ones(1, device="cuda")

    assert run_pair(graphed(pauses), low, policy="strict")["first"].value is None


def test_a_capture_forbids_nothing_to_another_job() -> None:
    """CUDA's default mode fails the capture, and the call of the other thread."""
    capturing, over = threading.Event(), threading.Event()

    def waits() -> None:
        capturing.set()
        assert over.wait(30)

    def other(_job: Job) -> float:
        assert capturing.wait(300)
        try:
            x = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
            torch.cuda.current_stream().record_event().synchronize()
            torch.cuda.current_stream().record_event().query()
            torch.cuda.synchronize()
            torch.cuda.mem_get_info()
            return int(x.sum()) + float(torch.ones(5).pin_memory().to("cuda", non_blocking=True).sum())
        finally:
            over.set()

    assert [each.value for each in run_pair(graphed(waits), other).values()] == [None, 64 * MIB + 5]


def asks_the_device(job: Job, graph: bool) -> list[Tensor]:
    """Trains with dropout and a loss that waits for the device, which a capture forbids."""
    model = conv().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_fn(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        return loss * (2.0 if loss.item() > 0 else 1.0)

    loss = job.graph(loss_fn) if graph else loss_fn
    for batch in job.batches([torch.randn(16, 3, 8, 8, device="cuda") for _ in range(4)]):
        batch.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert not graph or loss.fallback is not None  # type: ignore[attr-defined]
    return [*model.state_dict().values(), torch.rand(4, device="cuda")]


@pytest.mark.filterwarnings("ignore:.*run in eager, not as a graph")
def test_after_a_capture_that_failed_a_job_is_as_before() -> None:
    """Its numbers, its memory, its thread's last error; and the gate sees when it is done."""
    launched, entered = threading.Event(), threading.Event()
    before = held_by_tensors()

    def high(job: Job) -> tuple[list[Tensor], int, int, bool]:
        weights = [each.cpu() for each in asks_the_device(job, graph=True)]
        last_error = ctypes.CDLL(None).cudaPeekAtLastError()  # torch has loaded the library for all
        torch.cuda.synchronize()
        launched.set()
        return weights, last_error, torch.cuda.Stream().cuda_stream, entered.wait(30)

    def low(_job: Job) -> None:
        assert launched.wait(300)
        torch.ones(1, device="cuda")
        entered.set()

    weights, last_error, stream, has_entered = run_pair(high, low, policy="strict")["first"].value
    assert identical(on_gpu(lambda job: asks_the_device(job, graph=False), seed=0), weights)
    assert last_error == 0 and stream != 0 and has_entered
    assert held_by_tensors() <= before + MIB


def test_a_job_does_not_wait_for_the_programs_later_work() -> None:
    """CUDA makes streams wait for the legacy one, unless they are made not to."""
    begun, launched = threading.Event(), threading.Event()
    done: list[torch.cuda.Event] = []

    def job(_job: Job) -> bool:
        x = torch.ones(4, device="cuda")
        begun.set()
        assert launched.wait(300)
        x.add_(1)
        torch.cuda.current_stream().record_event().synchronize()
        return done[0].query()

    with torchshare.Runtime(device="cuda") as runtime:
        submitted = runtime.submit(job, name="adds", threads=1)
        runtime.start()
        assert begun.wait(300)
        torch.cuda._sleep(SLEEP_CYCLES)
        done.append(torch.cuda.current_stream().record_event())
        launched.set()
        runtime.wait(60)
    assert submitted.result.value is False


def test_the_gate_sees_a_kernel_that_is_not_an_op_on_a_stream_that_the_job_has_opened() -> None:
    def launch(_job: Job) -> torch.cuda.Event:
        torch.ones(1, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(SLEEP_CYCLES // 2)
            return torch.cuda.current_stream().record_event()

    assert enters_beside(launch) is False


@pytest.mark.parametrize("synchronize", [torch.cuda.synchronize, torch.accelerator.synchronize])
def test_a_thread_of_a_job_waits_for_that_job_only(synchronize: Callable[[], None]) -> None:
    launched, waited = threading.Event(), threading.Event()

    def other(_job: Job) -> bool:
        torch.cuda._sleep(SLEEP_CYCLES)
        done = torch.cuda.current_stream().record_event()
        launched.set()
        assert waited.wait(30)
        return done.query()

    def waits(_job: Job) -> None:
        assert launched.wait(30)
        thread = threading.Thread(target=synchronize)
        thread.start()
        thread.join()
        waited.set()

    assert run_pair(other, waits)["first"].value is False


def test_events_order_work_across_jobs(policy: str) -> None:
    """A buffer of neither job goes to and fro; only events say when its value is there."""
    shared = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    to, fro = queue.Queue[torch.cuda.Event](), queue.Queue[torch.cuda.Event]()
    rounds = 10

    def player(mine: queue.Queue[torch.cuda.Event], theirs: queue.Queue[torch.cuda.Event], begins: bool) -> None:
        for number in range(rounds):
            if number or not begins:
                torch.cuda.current_stream().wait_event(mine.get(timeout=30))
            torch.cuda._sleep(SLEEP_CYCLES // 500)
            shared.mul_(2).add_(1)
            theirs.put(torch.cuda.current_stream().record_event())

    run_pair(lambda _: player(to, fro, True), lambda _: player(fro, to, False), policy=policy)
    assert shared.unique().tolist() == [2.0 ** (2 * rounds) - 1]


def test_a_job_that_always_synchronizes_trains_as_alone(policy: str) -> None:
    waits = trainer(conv, at_step=lambda _: torch.cuda.synchronize())
    results = run_pair(waits, trainer(attention, at_step=lambda _: torch.cuda.synchronize("cuda")), policy=policy)
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)


def test_events_time_the_jobs_own_work() -> None:
    def times(_job: Job) -> tuple[float, float]:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start = time.monotonic()
        begin.record()
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        end.record()
        was_done = end.query()
        end.synchronize()
        assert not was_done
        assert end.query()
        return begin.elapsed_time(end) / 1e3, time.monotonic() - start

    results = run_pair(trainer(conv), times)
    on_device, by_clock = results["second"].value
    assert 0.01 < on_device < by_clock
    assert identical(alone(conv, 0), results["first"].value)


def test_a_job_that_captures_itself_is_told_to_use_job_graph() -> None:
    """Nothing is captured, and nothing of it is left: the job and the one beside it train on as alone."""
    message = (
        r"job '{}': torch.cuda.graph is not supported in a job; job.graph\(loss_fn\) captures forward and backward"
    )

    def tries(make: Callable[[], nn.Module]) -> Callable[[Job], list[Tensor]]:
        def job(job: Job) -> list[Tensor]:
            def capture(step: int) -> None:
                stream = torch.cuda.current_stream()
                for begin in (
                    lambda: torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__(),
                    lambda: torch.cuda.CUDAGraph().capture_begin(),
                ):
                    with pytest.raises(RuntimeError, match=message.format(job.name)):
                        begin()
                assert torch.cuda.current_stream() == stream
                assert not torch.cuda.is_current_stream_capturing()

            return trainer(make, graph=True, at_step=capture)(job)

        return job

    results = run_pair(tries(conv), tries(attention))
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)
    results = run_pair(tries(conv), trainer(attention))
    assert identical(alone(attention, 1), results["second"].value)

    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torchshare.Runtime(device="cuda"), torch.cuda.graph(graph):
        y = x * 2
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [6.0] * 8


def test_ops_in_a_block_on_some_multiprocessors_come_after_those_before_and_before_later_ones() -> None:
    def passes_on(job: Job) -> list[float]:
        seen = []
        for value in range(6):
            torch.cuda._sleep(SLEEP_CYCLES // 20)
            x = torch.full((MIB,), float(value), device="cuda")
            with job.on_sms(8 * (1 + value % 2)):
                torch.cuda._sleep(SLEEP_CYCLES // 20)
                y = x + 1
                del x  # its memory is the next one's, which the job's own stream fills
            x = torch.zeros(MIB, device="cuda")
            seen.append(float((y * 2 + x).mean()))
        return seen

    assert on_gpu(passes_on) == [2.0 * (value + 1) for value in range(6)]


def test_a_training_has_the_same_weights_with_its_forward_in_such_a_block() -> None:
    """Its backward runs on the forward's stream, as in plain torch."""

    def train(job: Job, on_sms: int | None) -> list[Tensor]:
        model = conv().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in job.batches([torch.randn(16, 3, 8, 8, device="cuda") for _ in range(5)], sub_batch=8):

            def loss_fn(x: Tensor) -> Tensor:
                with contextlib.nullcontext() if on_sms is None else job.on_sms(on_sms):
                    return model(x).square().mean()

            batch.backward(loss_fn)
            optimizer.step()
            optimizer.zero_grad()
        return [each.detach().cpu() for each in model.parameters()]

    expected = on_gpu(lambda job: train(job, None), seed=3)
    together = run_pair(lambda job: train(job, 16), lambda job: train(job, 24))
    assert identical(on_gpu(lambda job: train(job, 16), seed=3), expected)
    assert [result.state for result in together.values()] == ["finished"] * 2


def test_a_block_on_some_multiprocessors_is_in_the_budget_and_in_synchronize_and_at_the_gate() -> None:
    def allocates(job: Job) -> None:
        with job.on_sms(8):
            torch.ones(64 * MIB, device="cuda")

    with pytest.raises(torchshare.BudgetExceeded, match="job 'alone': memory budget exceeded"):
        on_gpu(allocates, memory_budget=32 * MIB)

    def copies(job: Job) -> float:
        result = torch.zeros(5).pin_memory()
        with job.on_sms(8):
            x = torch.ones(5, device="cuda")
            torch.cuda._sleep(SLEEP_CYCLES // 10)
            result.copy_(x, non_blocking=True)
        torch.cuda.synchronize()
        return float(result.sum())

    assert on_gpu(copies) == 5

    def launch(job: Job) -> torch.cuda.Event:
        with job.on_sms(8):
            torch.cuda._sleep(SLEEP_CYCLES // 2)
            torch.ones(1, device="cuda")  # an op; to sleep is none
            return torch.cuda.current_stream().record_event()

    assert enters_beside(launch) is False


def test_a_block_on_some_multiprocessors_is_refused_where_it_cannot_be() -> None:
    def refused(job: Job) -> tuple[str | None, str | None]:
        for sms in (0, -1, "8", True, 1.5, 2**40):
            with pytest.raises(ValueError, match=r"job 'alone': sms must be a positive integer below"), job.on_sms(sms):
                pass
        with (
            pytest.raises(ValueError, match=r"job 'alone': sms must be from 1 to \d+, .* got 100000"),
            job.on_sms(10**5),
        ):
            pass
        errors: queue.Queue[str] = queue.Queue()

        def elsewhere() -> None:
            try:
                with job.on_sms(8):
                    pass
            except RuntimeError as error:
                errors.put(str(error))

        thread = threading.Thread(target=elsewhere, name="helper")
        thread.start()
        thread.join()
        assert errors.get() == "job 'alone': on_sms must be used in its own thread, got thread 'helper'"
        weights = torch.ones(4, device="cuda", requires_grad=True)

        def loss_fn(x: Tensor) -> Tensor:
            with job.on_sms(8):
                return (x * weights).sum()

        inside, around = job.graph(loss_fn), job.graph(lambda x: (x * weights).sum())
        for batch in job.batches([torch.ones(2, 4, device="cuda")] * 3):
            batch.backward(inside)
        for batch in job.batches([torch.ones(2, 4, device="cuda")] * 3):
            with job.on_sms(8):
                batch.backward(around)
        assert float(weights.grad.sum()) == 48
        return inside.fallback, around.fallback

    with pytest.warns(UserWarning, match="run in eager"):
        inside, around = on_gpu(refused)
    assert "on_sms must not begin while a graph is being captured" in inside
    assert "a graph must not be captured in a block of on_sms" in around
