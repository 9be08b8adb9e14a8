"""Deadlines of trainings: how automatic jobs are planned for them, and what is said of their outcome."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran, run_one, script, wait_until
from test_auto import decisions, profile, training

import torchshare
from torchshare import Job
from torchshare.runtime.options import JobOptions


def first_decision(ratio: float, **deadlines: str | float) -> str:
    """About 'b', which comes to 'a'. By their profiles, each takes 250 s alone; in fact they are over in a moment."""
    with torchshare.Runtime("cpu") as runtime:
        for name, priority, start in (("a", "primary", "now"), ("b", "secondary", "auto")):
            known = profile(f"p{name}", 5.0, "pb" if name == "a" else None, (ratio, ratio))
            given: JobOptions = {"priority": priority, "start": start, "deadline": deadlines.get(name)}
            runtime.submit(training(50), name=name, steps=50, profile=known, threads=1, **given)
        runtime.wait(300)
        return decisions(runtime, "b")[0]


def test_a_job_that_would_make_another_late_waits() -> None:
    assert first_decision(1.3).startswith("start: ")  # would end 'a' after 325 s
    assert first_decision(1.3, a="5m").startswith("stay: ")
    assert first_decision(1.3, a="10m").startswith("start: ")


def test_a_job_that_would_be_late_is_not_made_to_wait() -> None:
    assert first_decision(3.0).startswith("stay: ")  # after 'a', it would end after 500 s
    assert first_decision(3.0, b=300.0).startswith("start: ")


def test_of_jobs_that_wait_the_one_whose_deadline_comes_first_starts_first() -> None:
    over = threading.Event()
    with torchshare.Runtime("cpu", max_concurrent=1) as runtime:
        first = runtime.submit(training(over), name="first", threads=1)
        runtime.start()
        wait_until(lambda: first.result.steps > 0)
        for name, deadline in (("none", None), ("late", "3h"), ("soon", "2h")):
            runtime.submit(training(5), name=name, start="auto", deadline=deadline, threads=1)
        over.set()
        runtime.wait(300)
        starts = [job for kind, job, *_, detail in runtime.events() if kind == "decision" and "start" in detail]
    assert starts == ["first", "soon", "late", "none"]


def test_the_outcome_is_in_the_result_its_text_the_metrics_and_the_report(tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def train(job: Job) -> None:
        entered.set()
        go_on.wait(300)

    with torchshare.Runtime("cpu") as runtime:
        in_time = runtime.submit(train, name="in time", deadline="1h")
        late = runtime.submit(lambda job: go_on.wait(300), name="late", deadline=1e-6)
        without = runtime.submit(lambda job: None, name="without")
        never = runtime.submit(lambda job: None, name="never", start=1e6, deadline="1h")
        runtime.start()
        assert entered.wait(300)
        left = in_time.result.lateness_s
        assert left is not None and -3600 < left < 0
        assert re.fullmatch(r"now (59m\d+s|1h) before its deadline", in_time.result.deadline_kept or "")
        never.cancel()
        go_on.set()
        runtime.wait(300)
        text, metrics = str(runtime.results), runtime.metrics()
        runtime.write_report(tmp_path / "report.html")
    assert late.result.lateness_s is not None and late.result.lateness_s > 0
    assert without.result.lateness_s is None and without.result.deadline_kept is None
    assert re.search(r"^job 'in time': finished (59m\d+s|1h) before its deadline$", text, re.MULTILINE)
    assert re.search(r"^job 'late': finished [\d.e-]+s after its deadline$", text, re.MULTILINE)
    assert "job 'never': " not in text
    assert re.search(r'^torchshare_job_lateness_seconds\{job="in time"\} -3[56]', metrics, re.MULTILINE)
    assert 'torchshare_job_lateness_seconds{job="without"}' not in metrics
    page = (tmp_path / "report.html").read_text()
    assert re.search(r"<p>late: finished [\d.e-]+s after its deadline\.</p>", page)


def test_a_job_that_is_retried_keeps_the_deadline_of_its_submission() -> None:
    def fails_once(job: Job) -> None:
        if job.result.attempts == 1:
            raise RuntimeError("broken")

    result = run_one(fails_once, retries=1, deadline=0.5)
    assert result.attempts == 2
    assert result.lateness_s is not None and result.lateness_s > 0.5  # it waits for 1 s before it starts again


@pytest.mark.parametrize("deadline", [-1, 0, "soon", "2 h 5", True, float("nan"), float("inf")])
def test_an_invalid_deadline_is_refused(deadline: Any) -> None:
    with torchshare.Runtime("cpu") as runtime, pytest.raises(ValueError, match=r"job 'a': deadline must be a time su"):
        runtime.submit(training(1), name="a", deadline=deadline)


def test_a_deadline_that_cannot_be_kept_alone_is_refused(tmp_path: Path) -> None:
    given: dict[str, Any] = {"name": "a", "steps": 10_000, "profile": profile("pa", 1.0), "deadline": "2h"}
    with torchshare.Runtime("cpu") as runtime, pytest.raises(ValueError) as refused:
        runtime.submit(training(1), **given)
    assert str(refused.value) == (
        "job 'a': deadline must be at least 2h46m, which 10000 steps take alone as its profile says, got 2h"
    )
    with torchshare.Runtime("cpu", checkpoint=tmp_path) as runtime:  # it may go on from a checkpoint
        runtime.submit(training(1), **given)
        runtime.wait(300)


def test_a_periodic_job_has_no_deadline_of_the_whole_job() -> None:
    def camera(job: Job) -> None:
        with pytest.raises(ValueError, match=r"^job 'alone': deadline must be given to job.periods, or to submit with"):
            job.periods(range(2), period=0.01)

    run_one(camera, deadline=100.0)


def test_scripts_and_job_files_have_deadlines(tmp_path: Path) -> None:
    script(tmp_path, "train.py", "import torch\nfor _ in range(100): torch.ones(3).sum()")
    ran = Ran(tmp_path, "--deadline", "2h", "train.py")
    assert ran.code == 0, ran.text()
    assert -7200 < ran.jobs["train"]["lateness_s"] < 0
    script(tmp_path, "jobs.toml", '[jobs.a]\nrun = "train.py"\ndeadline = "1h30m"')
    ran = Ran(tmp_path, "jobs.toml")
    assert ran.code == 0, ran.text()
    assert -5400 < ran.jobs["a"]["lateness_s"] < -1800
    refused = Ran(tmp_path, "--deadline", "soon", "train.py")
    assert refused.code == 2
    assert 'job \'train\': deadline must be a time such as "2h", "90m" or "1h30m"' in refused.text()
    assert json.dumps(refused.jobs) == "{}"


def test_automatic_jobs_keep_a_deadline_and_their_weights() -> None:
    steps = 300
    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(training(steps, 0.004), name="a", steps=steps, seed=1, threads=1)
        job = runtime.submit(
            training(steps, 0.004), name="b", start="auto", steps=steps, seed=2, threads=1, deadline="10m"
        )
        runtime.start()
        wait_until(lambda: job.result.steps > 0)
        runtime.wait(300)
    assert job.result.lateness_s is not None and job.result.lateness_s < 0
    for seed, done in enumerate(runtime.jobs, start=1):
        assert done.result.value.equal(run_one(training(steps), seed=seed).value)
