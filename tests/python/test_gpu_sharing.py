"""Jobs that share a GPU train what they train alone, bit for bit, whatever the policy, options and kind of step."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Gatekeeper
from gpu_jobs import Train, alone, attention, conv, identical, on_gpu, run_pair, trainer
from torch import Tensor, nn
from torch.nn import functional as F

import torchshare
from torchshare import Job

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*takes its statistics")]


def check_pair(options: dict[str, Any] | None = None, expected: dict[str, Any] | None = None, **training: Any) -> None:
    """A pair of jobs that train so, in a runtime with these options, ends with the weights of each job alone.
    `expected`: how the jobs alone train; default: the same."""
    results = run_pair(trainer(conv, **training), trainer(attention, **training), timeout=300, **options or {})
    kind = training if expected is None else expected
    for job, make, seed in (("first", conv, 0), ("second", attention, 1)):
        wanted, got = alone(make, seed, **kind), results[job].value
        others = [i for i, (a, b) in enumerate(zip(wanted, got, strict=True)) if not identical([a], [b])]
        assert not others, f"of {len(got)} tensors, {others} differ: {[wanted[i].cpu() - got[i].cpu() for i in others]}"


@pytest.mark.parametrize("sub_batch", [None, 8])
def test_both_jobs_end_with_the_weights_they_have_alone(policy: str, sub_batch: int | None) -> None:
    check_pair({"policy": policy}, sub_batch=sub_batch)


def test_other_seeds_have_other_weights() -> None:
    assert not identical(alone(conv, 0), alone(conv, 9))


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "strict", "grace": 0.0},
        {"policy": "strict", "max_wait": 1e-3},
        {"policy": "best_fit", "run_ahead": 1e-6},
        {"policy": "priority", "device_priority": "none"},
        {"max_slowdown": 0.05},
        {"secondary_share": 0.5},
    ],
    ids=str,
)
def test_options_change_no_weights(options: dict[str, Any]) -> None:
    check_pair(options)


@pytest.mark.parametrize("start", ["step:3", "after:first", 0.05, "auto"])
def test_a_start_changes_no_weights(start: str | float) -> None:
    with torchshare.Runtime(device="cuda") as runtime:
        runtime.submit(trainer(conv), name="first", priority="primary", threads=1, seed=0)
        runtime.submit(trainer(attention), name="second", threads=1, seed=1, start=start)
        results = runtime.wait(90)
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)


@pytest.mark.parametrize("last", [16, 5])
def test_both_jobs_may_have_graphs(last: int) -> None:
    """The weights are those of eager; of an uneven last batch, there are two more captures."""
    check_pair(graph=True, last=last, expected={"last": last})


def test_graphs_of_the_primary_beside_an_eager_secondary(policy: str) -> None:
    results = run_pair(trainer(conv, graph=True), trainer(attention), policy=policy)
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:Using `torch.compile\\(module\\)` when there are global hooks")
@pytest.mark.parametrize("sub_batch", [None, 8])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_models_in_both_jobs(backend: str, sub_batch: int | None) -> None:
    torch._dynamo.reset()  # else a second size of batch is compiled with dynamic shapes
    check_pair({"policy": "strict"}, backend=backend, sub_batch=sub_batch, epochs=1)


@pytest.mark.parametrize("policy", ["strict", "best_fit"])
def test_a_third_job_comes_while_two_run(policy: str) -> None:
    """Its level is between theirs; the first goes on once it is there, so that all three overlap."""
    keeper = Gatekeeper()
    first = trainer(conv, at_step=lambda step: keeper.pause() if step == 2 else None)
    third_at_work = threading.Event()
    third = trainer(conv, at_step=lambda step: third_at_work.set() if step == 2 else None)
    with torchshare.Runtime(device="cuda", policy=policy) as runtime:
        runtime.submit(first, name="first", priority="primary", threads=1, seed=0)
        runtime.submit(trainer(attention), name="second", priority="level-2", threads=1, seed=1)
        runtime.start()
        assert keeper.reached.wait(300)
        runtime.submit(third, name="third", threads=1, seed=2)
        assert third_at_work.wait(300)
        keeper.release.set()
        results = runtime.wait(90)
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)
    assert identical(alone(conv, 2), results["third"].value)


def test_runtimes_one_after_the_other() -> None:
    for policy in ("strict", "priority"):
        check_pair({"policy": policy})


def test_two_runtimes_at_once() -> None:
    with torchshare.Runtime(device="cuda", policy="strict") as a, torchshare.Runtime(device="cuda") as b:
        for seed, runtime in enumerate((a, b)):
            runtime.submit(trainer(conv), name="first", priority="primary", threads=1, seed=seed)
            runtime.submit(trainer(attention), name="second", threads=1, seed=seed)
            runtime.start()
        results = a.wait(90), b.wait(90)
    for seed, found in enumerate(results):
        assert identical(alone(conv, seed), found["first"].value)
        assert identical(alone(attention, seed), found["second"].value)


def test_best_fit_reports_the_gaps_that_it_filled() -> None:
    with torchshare.Runtime(device="cuda", policy="best_fit") as runtime:
        runtime.submit(trainer(conv, epochs=6), name="first", priority="primary", threads=1, seed=0)
        runtime.submit(trainer(attention, epochs=6), name="second", threads=1, seed=1)
        runtime.wait(90)
        (report,) = runtime.gap_report()
    assert str(report).startswith("first: gaps are ")
    assert report.ops > 1000
    assert 0 < report.unknown_ops < report.ops
    assert report.filled_s > 0


def test_a_lower_job_launches_no_further_ahead_than_it_may() -> None:
    for _ in range(2):  # the second job gets the stream of the first, on which markers were recorded
        keeper = Gatekeeper()

        def low(_job: Job, keeper: Gatekeeper = keeper) -> int:
            x = torch.ones(512, 512, device="cuda")
            assert keeper.reached.wait(300)
            launched = []
            for _ in range(50):
                x @ x
                launched.append(torch.cuda.current_stream().record_event())
            unfinished = sum(not event.query() for event in launched)
            keeper.release.set()
            return unfinished

        pair = run_pair(lambda _, keeper=keeper: keeper.pause(), low, policy="strict", run_ahead=1e-6)
        assert pair["second"].value <= 2


def test_ops_are_timed_on_the_device() -> None:
    """A long kernel is known as long although its launch is short, and the shorter one as shorter."""

    def work(job: Job) -> list[float]:
        large = torch.ones(1024, 1024, device="cuda")
        small = torch.ones(16, 16, device="cuda")
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        times = []
        for _ in job.batches([[large]] * 8):
            begin.record()
            large @ large
            end.record()
            small @ small
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return times

    with torchshare.Runtime(device="cuda", policy="best_fit") as runtime:
        job = runtime.submit(work, name="first", priority="primary", threads=1, record_ops=True)
        expected = runtime.wait(300)["first"].value
    long, short = sorted((p.duration.mean / 1e9 for p in job._context.handle.op_profiles()), reverse=True)[:2]
    assert min(expected) / 3 < long < max(expected) * 3
    assert short < long / 2


def test_profiles_are_measured() -> None:
    def endless(job: Job) -> None:
        with torch.device("cuda"):
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
            batch = [torch.randn(64, 64)]
        for each in job.batches(itertools.repeat(batch)):
            each.backward(lambda x: model(x).square().mean())

    found = torchshare.profile(endless, endless, partner_name="partner", threads=1, splits=2, window=0.1, rounds=1)
    assert torch.cuda.get_device_name(0) in found.device
    whole, half = found.alone
    assert 0 < half.memory_bytes < whole.memory_bytes
    assert found.partners[0].beside[0].ratio > 0


def stepwise(make_optimizer: Callable[..., torch.optim.Optimizer], compiled: bool, falls_back: bool) -> Train:
    """Trains with `job.compiled_step`, or in eager."""

    def train(job: Job) -> list[Tensor]:
        with torch.device("cuda"):
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
            data = [(torch.randn(16, 64), torch.randint(0, 4, (16,))) for _ in range(20)]
        optimizer = make_optimizer(model.parameters(), lr=0.01)

        def loss_fn(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y)

        step = job.compiled_step(model, loss_fn, optimizer, data[0]) if compiled else None
        for batch in job.batches(data, sub_batch=8):
            if step is not None:
                step(batch)
                continue
            batch.backward(loss_fn)
            optimizer.step()
            optimizer.zero_grad()
        assert step is None or (step.fallback is not None) == falls_back, step.fallback
        return list(model.parameters())

    return train


def test_a_step_that_cannot_be_compiled_trains_as_eager_does() -> None:
    eager = [tensor.cpu() for tensor in on_gpu(stepwise(torch.optim.RMSprop, False, True), seed=0)]
    results = run_pair(stepwise(torch.optim.RMSprop, True, True), trainer(attention))
    assert identical(eager, results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_steps_in_both_jobs() -> None:
    job = stepwise(torch.optim.AdamW, True, False)
    expected = [[tensor.cpu() for tensor in on_gpu(job, seed=seed, timeout=300)] for seed in (0, 1)]
    results = run_pair(job, job, timeout=300, policy="strict")
    for tensors, result in zip(expected, results.values(), strict=True):
        assert identical(tensors, result.value)
