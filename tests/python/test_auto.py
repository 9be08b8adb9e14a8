"""`start="auto"` and the bound on the primary's slowdown, on real jobs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import run_one, wait_until

import torchshare
from torchshare import Job, JobFailed
from torchshare.profiles.profile import Alone, Beside, Partner, Profile, Spread, device_name
from torchshare.profiling.fit import fit


def training(steps: int | threading.Event | None, pause: float = 0.0):
    """A small training with dropout; returns its weights. It ends after `steps` steps, when the event `steps` is set,
    or when it is cancelled."""

    def count() -> Iterator[int]:
        if isinstance(steps, threading.Event):
            return itertools.takewhile(lambda _: not steps.is_set(), itertools.count())
        return itertools.count() if steps is None else iter(range(steps))

    def train(job: Job) -> torch.Tensor:
        weights = torch.randn(16, 16, requires_grad=True)
        data = (torch.randn(8, 16) for _ in count())
        optimizer = torch.optim.SGD([weights], lr=0.1)
        for batch in job.batches(data):
            batch.backward(lambda x: torch.nn.functional.dropout((x @ weights).tanh(), 0.3).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
            if pause:
                time.sleep(pause)
        return weights.detach()

    return train


def profile(job: str, step: float, partner: str | None = None, ratios: tuple[float, float] = (1, 1)) -> Profile:
    spread = Spread(median=step, q25=step, q75=step)
    beside = Beside(sub_batches=1, partner_sub_batches=1, ratio=ratios[0], partner_ratio=ratios[1])
    alone = Alone(sub_batches=1, rows=8, steps=9, step_s=spread, sub_batch_s=spread, memory_bytes=0)
    return Profile(
        job=job,
        code="",
        device=device_name(),
        torch=torch.__version__,
        created="today",
        threads=1,
        batch=8,
        steps=None,
        set_up_s=0,
        alone=[alone],
        partners=[Partner(job=partner, role="primary", beside=[beside])] if partner else [],
        fit=fit([alone]),
    )


def decisions(runtime: torchshare.Runtime, name: str | None = None) -> list[str]:
    return [
        detail
        for kind, job, _, _, _, detail in runtime.events()
        if kind == "decision" and (name is None or name == job) and "auto" in detail
    ]


def test_a_pair_without_profiles_is_probed_and_both_get_the_weights_they_have_alone():
    planned = threading.Event()
    with torchshare.Runtime() as runtime:
        jobs = [
            runtime.submit(training(planned), name="a", priority="primary", threads=1, seed=1),
            runtime.submit(training(planned), name="b", start="auto", threads=1, seed=2),
        ]
        runtime.start()
        for decision in ("auto: probe: steps of both", "auto: ratios"):
            wait_until(lambda decision=decision: any(decision in text for text in decisions(runtime)))
        steps = [job.result.steps for job in jobs]
        wait_until(lambda: any(job.result.steps > done + 500 for job, done in zip(jobs, steps, strict=True)))
        planned.set()
        runtime.wait(300)
    for seed, job in enumerate(jobs, start=1):
        shared = job.result
        assert shared.steps > 0
        assert torch.equal(shared.value, run_one(training(shared.steps), seed=seed).value)


def test_with_profiles_the_plan_is_followed_at_once():
    for ratios, starts_beside in (((1.1, 1.1), True), ((3.0, 3.0), False)):
        with torchshare.Runtime() as runtime:
            runtime.submit(
                training(50, 0.004), name="a", priority="primary", steps=50, profile=profile("pa", 0.005, "pb", ratios)
            )
            runtime.submit(training(50, 0.004), name="b", start="auto", steps=50, profile=profile("pb", 0.005))
            runtime.wait(300)
            first = decisions(runtime, "b")[0]
        if starts_beside:
            assert first.startswith("start: auto: ratios 1.1 and 1.1; after: 'b' ends at 0.5 s")
        else:
            assert first.startswith("stay: auto: ratios 3 and 3; after: ")


def test_a_short_job_runs_first_and_the_primary_is_held_meanwhile():
    with torchshare.Runtime() as runtime:
        primary = runtime.submit(
            training(None, 0.01),
            name="a",
            priority="primary",
            steps=9999,
            profile=profile("pa", 0.011, "pb", (3.0, 3.0)),
        )
        runtime.start()
        wait_until(lambda: primary.state == "running")
        secondary = runtime.submit(
            training(None, 0.01), name="b", start="auto", steps=100, profile=profile("pb", 0.011)
        )
        wait_until(lambda: primary.state == "suspended")
        wait_until(lambda: secondary.state == "running")
        steps = primary.result.steps
        wait_until(lambda: secondary.result.steps > 6)
        assert primary.result.steps <= steps + 1
        secondary.cancel()
        wait_until(lambda: primary.result.steps > steps + 10)
        assert decisions(runtime, "a")[-1] == "release: auto: its partner has ended"
        runtime.cancel()


def test_a_held_job_can_be_cancelled():
    with torchshare.Runtime() as runtime:
        runtime.submit(
            training(None), name="a", priority="primary", steps=100_000, profile=profile("pa", 0.01, "pb", (3.0, 3.0))
        )
        runtime.submit(training(None), name="b", start="auto", steps=100, profile=profile("pb", 0.01))
        runtime.start()
        wait_until(lambda: runtime.jobs[0].state == "suspended")
        wait_until(lambda: runtime.jobs[1].state == "running")
        runtime.jobs[0].cancel()
        wait_until(lambda: runtime.jobs[0].state == "cancelled")
        assert runtime.jobs[1].state == "running"
        runtime.cancel()
        wait_until(lambda: runtime.jobs[1].state == "cancelled")


def test_a_job_survives_the_failure_of_its_partner_in_the_probe():
    def fails(job: Job) -> None:
        for number, batch in enumerate(job.batches(itertools.repeat(torch.ones(4, 2)))):
            list(batch)
            if number == 5:
                raise RuntimeError("broken")

    for primary, secondary in ((training(200), fails), (fails, training(200))):
        with torchshare.Runtime() as runtime:
            runtime.submit(primary, name="a", priority="primary")
            runtime.submit(secondary, name="b", start="auto")
            with pytest.raises(JobFailed, match="broken"):
                runtime.wait(300)
            assert sorted(result.state for result in runtime.results.values()) == ["failed", "finished"]


def test_only_automatic_jobs_run_one_or_two_at_a_time():
    lock = threading.Lock()
    running = [0, 0]  # now, maximum

    def counted(job: Job) -> None:
        with lock:
            running[0] += 1
            running[1] = max(running)
        training(30)(job)
        with lock:
            running[0] -= 1

    with torchshare.Runtime() as runtime:
        for name in "abcde":
            runtime.submit(counted, name=name, start="auto", threads=1)
        results = runtime.wait(300)
    assert {result.state for result in results.values()} == {"finished"}
    assert 1 <= running[1] <= 2


def test_lengths_come_from_the_loader_the_epochs_or_the_user():
    def epochs(job: Job) -> None:
        for _ in range(3):
            for batch in job.batches([torch.ones(8, 2)] * 20):
                list(batch)

    known = {"priority": "primary", "profile": profile("pa", 0.01, "pb", (3.0, 3.0))}
    for length, expected in (({"epochs": 3}, "'a' at 0.5"), ({"steps": 60}, "'a' at 0.5"), ({}, "'a' at 0.1")):
        began = threading.Event()

        def first(job: Job, began: threading.Event = began) -> None:
            for batch_number, _ in enumerate(epochs_of(job)):
                if batch_number == 5:
                    began.set()
                    wait_until(lambda: decisions(runtime, "b") != [])

        def epochs_of(job: Job):
            for _ in range(3):
                for batch in job.batches([torch.ones(8, 2)] * 20):
                    yield list(batch)

        with torchshare.Runtime() as runtime:
            runtime.submit(first, name="a", **known, **length)
            runtime.start()
            assert began.wait(300)
            runtime.submit(epochs, name="b", start="auto", steps=10, profile=profile("pb", 0.01))
            runtime.wait(300)
            assert any(expected in text for text in decisions(runtime)), decisions(runtime)


@pytest.mark.parametrize("steps", [-1, 1.5, "many", True])
def test_invalid_lengths_are_refused(steps: Any):
    for what in ("steps", "epochs"):
        with (
            torchshare.Runtime() as runtime,
            pytest.raises(ValueError, match=f"job 'a': {what} must be a non-negative integer, got {steps!r}"),
        ):
            runtime.submit(training(1), name="a", **{what: steps})


def test_a_share_of_zero_keeps_lower_jobs_out_until_the_primary_ends():
    with torchshare.Runtime(secondary_share=0.0) as runtime:
        runtime.submit(training(200), name="a", priority="primary")
        runtime.submit(training(5), name="b", start="step:20")
        runtime.wait(300)
        events = runtime.events()
    ended = max(end for kind, job, _, end, _, _ in events if kind == "step" and job == "a")
    assert all(end >= ended for kind, job, _, end, _, _ in events if kind == "step" and job == "b")


def test_a_bound_is_kept_reported_and_changes_no_bits():
    alone = [run_one(training(1500, 0.001), seed=seed).value for seed in (1, 2)]
    with torchshare.Runtime(max_slowdown=0.5) as runtime:
        runtime.submit(training(1500, 0.001), name="a", priority="primary", threads=1, seed=1)
        runtime.submit(training(1500, 0.001), name="b", threads=1, seed=2)
        runtime.submit(training(50), name="c", priority="level-2", threads=1)
        results = runtime.wait(300)
        (report,) = runtime.bound_report()
        told = [detail for kind, _, _, _, _, detail in runtime.events() if kind == "decision" and "bound" in detail]
    assert torch.equal(results["a"].value, alone[0])
    assert torch.equal(results["b"].value, alone[1])
    assert report.job == "a"
    assert report.windows >= 1
    assert report.step_alone_s >= 0.001
    assert report.p50_s <= report.p95_s <= report.p99_s
    assert 0 <= report.share < 1
    assert report.others["b"] > 0
    assert "c" in report.others
    assert "slowdown within 0.5 in" in str(report)
    assert all(text.startswith("bound: lower jobs may run") for text in told)
    assert len(told) == report.windows


def test_without_a_bound_there_is_no_report():
    with torchshare.Runtime() as runtime:
        runtime.submit(training(5), name="a")
        runtime.wait(300)
        assert runtime.bound_report() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_slowdown": -0.1}, "max_slowdown must be from 0 to 1, such as 0.05 for 5 %, got -0.1"),
        ({"max_slowdown": float("nan")}, "max_slowdown must be from 0 to 1, such as 0.05 for 5 %, got nan"),
        ({"secondary_share": 1.5}, "secondary_share must be from 0 to 1, got 1.5"),
        ({"secondary_share": 0.5, "max_slowdown": 0.1}, "max_slowdown and secondary_share must not be given together"),
    ],
)
def test_invalid_bounds_are_refused(options: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        torchshare.Runtime(**options)
