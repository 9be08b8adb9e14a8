"""Jobs that share a GPU train what they train alone, bit for bit, whatever the policy, options and kind of step."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from conftest import Gatekeeper
from gpu_jobs import alone, attention, conv, identical, run_pair, trainer

import torchshare
from torchshare import Job

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*takes its statistics")]


def check_pair(options: dict[str, Any] | None = None, expected: dict[str, Any] | None = None, **training: Any) -> None:
    """A pair of jobs that train so, in a runtime with these options, ends with the weights of each job alone.
    `expected`: how the jobs alone train; default: the same."""
    results = run_pair(trainer(conv, **training), trainer(attention, **training), timeout=300, **options or {})
    kind = training if expected is None else expected
    assert identical(alone(conv, 0, **kind), results["first"].value)
    assert identical(alone(attention, 1, **kind), results["second"].value)


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
        {"policy": "priority", "device_priority": False},
        {"max_slowdown": 0.05},
        {"secondary_share": 0.5},
    ],
    ids=str,
)
def test_options_change_no_weights(options: dict[str, Any]) -> None:
    check_pair(options, epochs=2)


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
@pytest.mark.parametrize(("policy", "sub_batch"), [("priority", None), ("strict", 8)])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_models_in_both_jobs(backend: str, policy: str, sub_batch: int | None) -> None:
    torch._dynamo.reset()  # else a second size of batch is compiled with dynamic shapes
    check_pair({"policy": policy}, backend=backend, sub_batch=sub_batch, epochs=1)


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
        assert keeper.reached.wait(60)
        runtime.submit(third, name="third", threads=1, seed=2)
        assert third_at_work.wait(60)
        keeper.release.set()
        results = runtime.wait(90)
    assert identical(alone(conv, 0), results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)
    assert identical(alone(conv, 2), results["third"].value)


def test_runtimes_one_after_the_other() -> None:
    for policy in ("strict", "priority"):
        check_pair({"policy": policy}, epochs=1)


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
        runtime.submit(trainer(conv), name="first", priority="primary", threads=1, seed=0)
        runtime.submit(trainer(attention), name="second", threads=1, seed=1)
        runtime.wait(90)
        (report,) = runtime.gap_report()
    assert str(report).startswith("first: gaps are ")
    assert report.ops > 1000
    assert report.unknown_ops < report.ops / 2


def test_ops_are_timed_on_the_device() -> None:
    """A long kernel is known as long although its launch is short, and the shorter one as shorter."""

    def work(job: Job) -> float:
        large = torch.ones(1024, 1024, device="cuda")
        small = torch.ones(16, 16, device="cuda")
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in job.batches([[large]] * 8):
            begin.record()
            large @ large
            end.record()
            small @ small
            end.synchronize()
        return begin.elapsed_time(end) / 1e3

    with torchshare.Runtime(device="cuda", policy="best_fit") as runtime:
        job = runtime.submit(work, name="first", priority="primary", threads=1, record_ops=True)
        expected = runtime.wait(60)["first"].value
    long, short = sorted((p.duration.mean / 1e9 for p in job._context.handle.op_profiles()), reverse=True)[:2]
    assert expected / 3 < long < expected * 3
    assert short < long / 2
