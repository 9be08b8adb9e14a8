"""On a real GPU. Skipped without one; with TORCHSHARE_REQUIRE_GPU=1 that is a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Gatekeeper, torchshare_command, wait_until
from gpu_jobs import MIB, SLEEP_CYCLES, alone, attention, conv, held_by_tensors, identical, on_gpu, trainer
from torch import Tensor, nn
from torch.nn import functional as F

import torchshare
from torchshare import _C, Job, _core

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*takes its statistics")]


def test_a_gpu_is_found() -> None:
    with torchshare.Runtime() as runtime:
        assert runtime.device == "cuda:0"


def test_doctor_knows_the_driver(tmp_path: Path) -> None:
    done = torchshare_command("doctor", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "green contexts: " in done.stdout
    assert _C.cuda_driver_version() >= 12000  # torch 2.11 needs it


@pytest.mark.parametrize("make", [conv, attention])
def test_a_graph_trains_as_eager_does(make: Callable[[], nn.Module]) -> None:
    assert identical(alone(make, 3), on_gpu(trainer(make, graph=True), seed=3))


def test_a_graph_that_was_captured_before_a_spill_is_not_launched_after_it() -> None:
    """Its tensors are elsewhere, and other memory is where they were."""
    jobs: list[Job] = []
    models: list[nn.Module] = []
    weights_at: list[int] = []

    def make() -> nn.Module:
        models.append(nn.Sequential(nn.Flatten(), nn.Linear(192, 20_000), nn.Tanh(), nn.Linear(20_000, 4)))
        return models[-1]

    def spill(step: int) -> None:
        if step == 0:
            jobs[0].track(model=models[0])
        if step in (3, 4):
            weights_at.append(models[0][1].weight.data_ptr())
        if step == 3:
            jobs[0].suspend(spill=True)

    with torchshare.Runtime(device="cuda") as runtime:
        jobs.append(runtime.submit(trainer(make, graph=True, at_step=spill), name="a", seed=3, threads=1))
        runtime.start()
        wait_until(lambda: jobs[0].state == "suspended")
        others = [torch.full((192 * 20_000,), torch.nan, device="cuda") for _ in range(8)]
        jobs[0].resume()
        value = runtime.wait(300)["a"].value
    assert weights_at[0] != weights_at[1] and all(other.isnan().all() for other in others)
    assert identical(on_gpu(trainer(make, graph=True), seed=3), value)


def test_a_graph_is_captured_once_for_each_shape_and_launched_as_one_op() -> None:
    def train(job: Job) -> tuple[list[int], int]:
        weights = torch.ones(4, device="cuda", requires_grad=True)
        rows: list[int] = []

        def loss_fn(x: Tensor) -> Tensor:
            rows.append(len(x))
            for _ in range(100):
                x = x * weights
            return x.sum()

        loss = job.graph(loss_fn)
        for batch in job.batches([torch.ones(size, 4, device="cuda") for size in (4, 2, 4, 2, 4)]):
            before = job.result.ops
            batch.backward(loss)
        return rows, job.result.ops - before

    rows, ops = on_gpu(train)
    assert rows == [4] * 4 + [2] * 4  # to warm up, and the capture
    assert ops < 10  # with the copies of its input and loss


def test_a_graph_that_waits_for_the_device_falls_back() -> None:
    def train(job: Job) -> str | None:
        weights = torch.ones(4, device="cuda", requires_grad=True)
        loss = job.graph(lambda x: (weights * x).sum() * (2.0 if x.sum().item() > 0 else 1.0))
        for batch in job.batches([torch.ones(2, 4, device="cuda")] * 3):
            batch.backward(loss)
        assert weights.grad is not None
        assert weights.grad.tolist() == [12.0] * 4
        return loss.fallback

    with pytest.warns(UserWarning, match="run in eager, not as a graph"):
        assert on_gpu(train) is not None


def test_the_losses_of_a_graph_are_kept() -> None:
    def train(job: Job) -> tuple[list[float], str | None]:
        weights = torch.ones(4, device="cuda", requires_grad=True)
        loss = job.graph(lambda x: (x * weights).sum())
        batches = job.batches([torch.full((2, 4), float(number), device="cuda") for number in range(5)])
        losses = [batch.backward(loss) for batch in batches]
        return [float(each) for each in losses], loss.fallback

    assert on_gpu(train) == ([8.0 * number for number in range(5)], None)


def test_backward_runs_on_the_jobs_own_thread() -> None:
    """By default, autograd has one thread per device, for all jobs."""

    def look(_job: Job) -> bool:
        x = torch.ones(4, device="cuda", requires_grad=True)
        threads: list[int] = []
        x.register_hook(lambda _gradient: threads.append(threading.get_ident()))
        (x * 2).sum().backward()
        return threads == [threading.get_ident()]

    assert on_gpu(look)


def test_each_job_has_a_stream_of_its_own_with_its_priority() -> None:
    def look(_job: Job) -> tuple[int, int, int]:
        own, side = torch.cuda.current_stream(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.ones(4, device="cuda").add_(1)
        torch.cuda.synchronize()
        return own.cuda_stream, own.priority, side.priority

    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(look, name="high", priority="primary")
        runtime.submit(look, name="low")
        results = runtime.wait(300)
    high, low = results["high"].value, results["low"].value
    assert 0 not in (high[0], low[0])
    assert high[0] != low[0]
    assert high[1] < low[1]  # CUDA's lower numbers go first
    assert (high[1], low[1]) == (high[2], low[2])


def test_random_numbers_are_those_of_plain_torch() -> None:
    def draw(_job: Job | None = None) -> list[Tensor]:
        x = torch.ones(2, 4, 8, 16, device="cuda")
        return [
            torch.rand(5, device="cuda"),
            F.dropout(x, 0.5),
            torch.randperm(32, device="cuda"),
            torch.multinomial(torch.ones(8, device="cuda"), 20, replacement=True),
            F.scaled_dot_product_attention(x.half(), x.half(), x.half(), dropout_p=0.5),
            torch.randint(0, 100, (7,), device="cuda"),
        ]

    before = torch.cuda.get_rng_state()
    in_job = on_gpu(draw, seed=11)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.manual_seed(11)
    assert identical(in_job, draw())

    def seeded(_job: Job) -> list[Tensor]:
        torch.manual_seed(11)
        return draw()

    assert identical(in_job, on_gpu(seeded, seed=5))


def test_a_job_waits_for_its_own_work_only() -> None:
    sleeping, looked = threading.Event(), threading.Event()

    def sleeper(_job: Job) -> None:
        for _ in range(4):
            torch.cuda._sleep(SLEEP_CYCLES)
        sleeping.set()
        assert looked.wait(300)

    def looker(_job: Job) -> float:
        x = torch.ones(4, device="cuda")
        x.mul_(1).add_(0).sum().item()  # loads the kernels, which may wait for the whole device
        assert sleeping.wait(300)
        begin = time.monotonic()
        x.add_(1)
        torch.cuda.synchronize()
        assert x.sum().item() == 8
        event = torch.cuda.Event()
        event.record()
        event.synchronize()
        took = time.monotonic() - begin
        looked.set()
        return took

    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(sleeper, name="sleeper")
        runtime.submit(looker, name="looker", priority="primary")
        assert runtime.wait(300)["looker"].value < 0.4  # the sleeper has some 2 s to go


def test_a_lower_job_waits_for_the_stream_of_a_higher_one() -> None:
    launched = threading.Event()

    def high(_job: Job) -> None:
        torch.cuda._sleep(SLEEP_CYCLES)
        launched.set()
        torch.cuda.current_stream().synchronize()

    def low(_job: Job) -> None:
        assert launched.wait(300)
        torch.ones(4, device="cuda")

    with torchshare.Runtime(device="cuda", policy="strict") as runtime:
        runtime.submit(high, priority="primary")
        runtime.submit(low)
        results = runtime.wait(300)
    assert results["low"].waited_s > 0.2  # for most of the sleep


def test_tensors_that_cross_running_jobs_are_refused() -> None:
    keeper = Gatekeeper()
    shared: list[Tensor] = []

    def maker(_job: Job) -> None:
        shared.append(torch.ones(4, device="cuda"))
        keeper.pause()

    def taker(_job: Job) -> None:
        assert keeper.reached.wait(300)
        try:
            shared[0] + 1
        finally:
            keeper.release.set()

    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(maker)
        runtime.submit(taker)
        results = runtime.wait(300, check=False)
    assert "was given a tensor of job 'maker'" in str(results["taker"].exception)
    assert results["maker"].state == "finished"


def test_an_exception_in_one_job_leaves_the_other_alone() -> None:
    def fails(_job: Job) -> None:
        torch.ones(3, device="cuda") @ torch.ones(4, device="cuda")

    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(fails, priority="primary")
        runtime.submit(trainer(attention), name="other", threads=1, seed=2)
        results = runtime.wait(300, check=False)
    assert isinstance(results["fails"].exception, RuntimeError)
    assert identical(results["other"].value, alone(attention, 2))


def test_a_cancel_in_the_middle_of_a_queue_of_kernels() -> None:
    def queues(_job: Job) -> None:
        x = torch.ones(512, 512, device="cuda")
        while True:
            x = (x @ x).clamp_(-1, 1)

    with torchshare.Runtime(device="cuda") as runtime:
        endless = runtime.submit(queues)
        runtime.submit(trainer(conv), name="other", priority="primary", threads=1, seed=0)
        runtime.start()
        wait_until(lambda: endless.result.ops > 200)
        endless.cancel()
        results = runtime.wait(60)
    assert results["queues"].state == "cancelled"
    assert identical(results["other"].value, alone(conv, 0))


def test_a_part_of_the_multiprocessors() -> None:
    whole = torch.cuda.get_device_properties(0).multi_processor_count

    def look(job: Job) -> tuple[int | None, list[Tensor]]:
        return job.sms, trainer(conv)(job)

    sms, weights = on_gpu(look, sms=16, seed=0)
    assert 16 <= sms < whole
    whole_gpu = alone(conv, 0)  # libraries may choose other kernels for another number
    assert all(torch.allclose(a.cpu(), b, atol=1e-4) for a, b in zip(weights, whole_gpu, strict=True))
    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(look, name="much", sms=100_000)
        assert runtime.wait(300, check=False)["much"].state == "failed"


def test_marks_are_cheap() -> None:
    for kind in ("write", "event"):
        put, look = _C.measure_marker_cost(kind, 1000)
        assert 0 <= look < put < 1e-3


def test_devices_without_a_gpu_of_that_number() -> None:
    with pytest.raises(ValueError, match=r"device must be one of .*, got 'cuda:99'"):
        torchshare.Runtime(device="cuda:99")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_minute_of_everything() -> None:
    """Jobs come, share, are suspended and cancelled; memory is given back, and the last ones train as the first."""
    expected = alone(conv, 0)
    deadline = time.monotonic() + 60
    held = []
    rounds = 0
    while time.monotonic() < deadline:
        policy = _core.gate_policy_names()[rounds % len(_core.gate_policy_names())]
        with torchshare.Runtime(device="cuda", policy=policy) as runtime:
            first = runtime.submit(trainer(conv), name="first", priority="primary", threads=1, seed=0)
            second = runtime.submit(trainer(attention, graph=rounds % 2 == 0), name="second", threads=1)
            runtime.start()
            wait_until(lambda first=first: first.result.steps > 2)
            second.suspend()
            second.resume()
            if rounds % 3 == 0:
                second.cancel()
            results = runtime.wait(60)
        assert identical(expected, results["first"].value)
        del results, first, second
        held.append(held_by_tensors())
        rounds += 1
    assert rounds > 10
    assert max(held[rounds // 2 :]) <= max(held[: rounds // 2]) + 4 * MIB
