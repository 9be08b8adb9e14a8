"""Periodic jobs, as programs write them: a camera beside a training, two of them, a script, a loop that is left."""

from __future__ import annotations

import functools
import itertools
import queue
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SOON_S, Ran, completed, run_one, script, wait_until
from torch import nn

import torchshare
from torchshare import Job, Result

PERIOD_S = 0.02


def periodic(function: Any, *, period: float = PERIOD_S, policy: str = "edf", **options: Any) -> Result:
    with torchshare.Runtime("cpu", policy=policy) as runtime:
        runtime.submit(function, name="camera", period=period, threads=1, **options)
        return runtime.wait(timeout=SOON_S)["camera"]


def counts(result: Result) -> tuple[int, int, int]:
    assert result.periods is not None
    return result.periods.met, result.periods.missed, result.periods.skipped


def test_units_are_released_once_per_period_with_the_items_of_the_source() -> None:
    seen, times = [], []

    def camera(job: Job) -> None:
        for frame in job.periods("abcde"):
            times.append(time.monotonic())
            seen.append(frame)
            torch.ones(4).sum()

    result = periodic(camera, period=0.1, deadline=100.0)
    assert seen == list("abcde")
    assert counts(result) == (5, 0, 0)
    assert times[-1] - times[0] > 0.39
    assert result.periods is not None and result.periods.response.p99 > 0
    assert result.steps == 0


def test_a_source_is_a_callable_or_nothing() -> None:
    left = queue.SimpleQueue[int]()
    for i in range(3):
        left.put(i)

    def take() -> int:
        if left.empty():
            raise StopIteration
        return left.get()

    def camera(job: Job) -> list[int]:
        taken = list(job.periods(take))
        return taken + list(itertools.islice(job.periods(), 2))  # a second loop of the same job

    assert periodic(camera, deadline=100.0).value == [0, 1, 2, 0, 1]


def test_a_loop_that_is_left_counts_its_last_unit_and_lets_others_run() -> None:
    def camera(job: Job) -> None:
        for i in job.periods():
            torch.ones(2).sum()
            if i == 4:
                break
        assert other.wait(SOON_S)  # runs ops for as long as this job stays

    other = threading.Event()

    def training(_: Job) -> None:
        for _ in range(1000):
            torch.ones(2).sum()
        other.set()

    with torchshare.Runtime("cpu", policy="edf") as runtime:
        runtime.submit(camera, period=PERIOD_S, deadline=100.0, threads=1)
        runtime.submit(training, threads=1)
        results = runtime.wait(timeout=SOON_S)
    assert sum(counts(results["camera"])) == 5


def test_units_that_are_late_are_missed_and_those_that_cannot_be_in_time_skipped() -> None:
    def camera(job: Job) -> list[int]:
        seen = []
        for i in job.periods(range(3)):
            seen.append(i)
            if i == 0:
                time.sleep(0.35)
        return seen

    result = periodic(camera, period=0.1)
    met, missed, skipped = counts(result)
    assert result.value == [0, 1, 2]  # no item is lost
    assert met + missed == 3 and missed >= 1 and skipped >= 2
    assert result.periods is not None and result.periods.worst_lateness_s > 0.2
    assert "ms late: it took" in result.periods.misses[0]
    assert "ms late: it took" in str(result.periods)


def test_two_periodic_jobs_and_a_training_keep_deadlines_and_weights() -> None:
    def train(_: Job) -> torch.Tensor:
        model = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(30):
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach().clone()

    def camera(job: Job) -> None:
        for _ in job.periods(range(20)):
            torch.ones(16, 16) @ torch.ones(16, 16)

    with torchshare.Runtime("cpu", policy="edf") as runtime:
        runtime.submit(camera, name="fast", period=0.02, deadline=100.0, unit_time=0.004, threads=1)
        runtime.submit(camera, name="slow", period=0.05, deadline=100.0, unit_time=0.01, threads=1)
        runtime.submit(train, name="train", threads=1, seed=3)
        results = runtime.wait(timeout=SOON_S)
        decisions = [event[-1] for event in runtime.events() if event[0] == "decision"]
    assert torch.equal(results["train"].value, run_one(train, seed=3).value)
    assert [results[name].priority for name in ("fast", "slow", "train")] == ["primary", "primary", "secondary"]
    assert counts(results["fast"])[0] == counts(results["slow"])[0] == 20
    assert any("deadline: accepted, with periodic jobs in 4" in text for text in decisions)


def test_the_report_and_the_metrics_have_the_deadlines_and_why_they_were_missed(tmp_path: Path) -> None:
    def camera(job: Job) -> None:
        for _ in job.periods(range(2)):
            time.sleep(0.06)

    with torchshare.Runtime("cpu", policy="edf") as runtime:
        runtime.submit(camera, name="camera", period=100.0, deadline=0.05, threads=1)
        runtime.start()
        wait_until(lambda: (found := runtime.results["camera"].periods) is not None and found.missed == 1)
        metrics = runtime.metrics()
        runtime.write_report(tmp_path / "report.html")
        runtime.cancel()
        runtime.wait(check=False)
    assert 'torchshare_deadlines_total{job="camera",outcome="missed"} 1.0' in metrics
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Deadlines</h2>" in page and re.search(r"ms late: it took \d", page)


def test_a_job_whose_deadlines_cannot_be_met_is_refused_before_any_work() -> None:
    with torchshare.Runtime("cpu", policy="edf") as runtime:
        runtime.submit(lambda _: 1, name="first", period=0.1, unit_time=0.06)
        with pytest.raises(ValueError, match=r"^job 'second': its deadlines cannot be met: periodic jobs would need 1"):
            runtime.submit(lambda _: 2, name="second", period=0.1, unit_time=0.06)
        runtime.submit(lambda _: 3, name="second", period=0.1, unit_time=0.01)
        results = runtime.wait(timeout=SOON_S)
    assert results["second"].value == 3


def test_a_job_is_told_if_its_measured_units_cannot_keep_its_deadlines(caplog: pytest.LogCaptureFixture) -> None:
    def camera(job: Job) -> None:
        for _ in job.periods(range(200)):
            time.sleep(0.01)

    periodic(camera, period=0.005)
    told = [record.getMessage() for record in caplog.records if "cannot be met" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith("job 'camera': ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, "job 'camera': period must be a positive number of seconds, got 0"),
        ({"period": "1/30"}, "job 'camera': period must be a positive number of seconds, got '1/30'"),
        (
            {"period": 1.0, "deadline": -1},
            "job 'camera': deadline must be "
            'a time such as "2h", "90m" or "1h30m", or a positive number of seconds, got -1',
        ),
        ({"unit_time": 1.0}, "job 'camera': unit_time needs a period"),
        (
            {"period": 1.0, "unit_time": 2.0},
            "job 'camera': unit_time must be at most the deadline, 1000 ms, got 2000 ms",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with torchshare.Runtime("cpu") as runtime, pytest.raises(ValueError) as refused:
        runtime.submit(lambda _: None, name="camera", **options)
    assert str(refused.value) == message


def test_a_loop_in_the_wrong_place_or_of_the_wrong_source_is_refused() -> None:
    errors: list[str] = []

    def elsewhere(use: Any) -> None:
        def run() -> None:
            try:
                use()
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=run, name="helper")
        thread.start()
        thread.join()

    def camera(job: Job) -> None:
        with pytest.raises(TypeError, match=r"job 'camera': source must be an iterable, a callable or None, got 3"):
            job.periods(3)
        with pytest.raises(ValueError, match=r"job 'camera': period must be a positive number of seconds, got True"):
            job.periods(period=True)
        elsewhere(job.periods)
        elsewhere(lambda: next(job.periods()))
        job.periods()  # never used: the next loop runs
        loop = job.periods(range(2))
        for _ in loop:
            with pytest.raises(RuntimeError, match=r"job 'camera': a loop over its periods has not ended"):
                next(job.periods())
            break
        elsewhere(lambda: next(loop))

    periodic(camera, deadline=100.0)
    assert errors == ["job 'camera': its periods must be run in its own thread, got thread 'helper'"] * 3
    with pytest.raises(ValueError, match=r"job 'alone': period must be a positive number of seconds, got None"):
        run_one(lambda job: list(job.periods(range(2))))


def test_all_loops_of_a_job_have_one_period() -> None:
    def camera(job: Job) -> None:
        list(job.periods(range(2), period=0.01, deadline=100.0))
        list(job.periods(range(2), period=0.01, deadline=100.0))
        with pytest.raises(ValueError, match=r"job 'alone': period, .* must be the same for all its loops, got a"):
            job.periods(range(2), period=0.02)
        for period in (1e-10, 1e10):
            with pytest.raises(ValueError, match=r"job 'alone': period must be at least 1e-9 and below 1e9 seconds"):
                job.periods(range(2), period=period)

    run_one(camera)


def test_a_loop_may_be_closed_after_its_job_has_ended() -> None:
    """The loop's last unit read the device of the job's thread, which has ended."""
    kept: list[Any] = []

    def camera(job: Job) -> None:
        loop = job.periods()
        kept.append(loop)
        next(loop)

    periodic(camera, deadline=100.0)
    kept.pop().close()


def test_a_unit_that_stays_open_lets_others_run_once_it_is_very_late() -> None:
    ended = threading.Event()

    def camera(job: Job) -> None:
        loop = job.periods()
        next(loop)
        while not ended.is_set():  # it works on, with the unit open
            torch.ones(2).sum()

    def train(_: Job) -> None:
        for _ in range(100):
            torch.ones(2).sum()
        ended.set()

    with torchshare.Runtime("cpu", policy="edf") as runtime:
        runtime.submit(camera, period=PERIOD_S, threads=1)
        runtime.submit(train, threads=1)
        runtime.wait(timeout=SOON_S)


def test_a_job_that_was_suspended_before_a_release_skips_what_is_over() -> None:
    def camera(job: Job) -> list[int]:
        return [i for i in job.periods(range(3)) if began.set() is None]

    began = threading.Event()
    with torchshare.Runtime("cpu", policy="edf") as runtime:
        job = runtime.submit(camera, name="camera", period=0.1, deadline=0.05, threads=1)
        runtime.start()
        assert began.wait(SOON_S)
        job.suspend()
        wait_until(lambda: job.state == "suspended")
        time.sleep(0.5)
        job.resume()
        result = runtime.wait(timeout=SOON_S)["camera"]
    assert result.value == [0, 1, 2]
    assert counts(result)[2] >= 3


def test_an_exception_in_a_unit_ends_the_job_and_not_the_others() -> None:
    def camera(job: Job) -> None:
        for i in job.periods():
            if i == 2:
                raise ValueError("no frame")

    with torchshare.Runtime("cpu", policy="edf") as runtime:
        runtime.submit(camera, name="camera", period=PERIOD_S, threads=1)
        runtime.submit(lambda _: [torch.ones(2).sum() for _ in range(300)] and "done", name="train", threads=1)
        results = runtime.wait(timeout=SOON_S, check=False)
    assert results["camera"].state == "failed" and str(results["camera"].exception) == "no frame"
    assert results["train"].value == "done"


def test_a_job_that_waits_for_a_release_is_cancelled_at_once() -> None:
    def camera(job: Job) -> None:
        for _ in job.periods():
            began.set()

    began = threading.Event()
    with torchshare.Runtime("cpu", policy="edf") as runtime:
        job = runtime.submit(camera, period=1000.0)
        runtime.start()
        assert began.wait(SOON_S)
        start = time.monotonic()
        job.cancel()
        wait_until(lambda: job.state == "cancelled")
        assert time.monotonic() - start < 100


def test_periods_work_with_every_policy(policy: str) -> None:
    def camera(job: Job) -> None:
        for _ in job.periods(range(5)):
            torch.ones(8, 8) @ torch.ones(8, 8)

    assert counts(periodic(camera, policy=policy, deadline=100.0)) == (5, 0, 0)


CAMERA = """
import torch, torchshare
frames = 0
for frame in torchshare.periods(range(10), period=0.01, deadline=50):
    torch.ones(4, 4) @ torch.ones(4, 4)
    frames += 1
print("frames", frames)
"""


def test_a_script_is_the_same_without_torchshare_and_has_a_report_with_it(tmp_path: Path) -> None:
    script(tmp_path, "camera.py", CAMERA)
    script(tmp_path, "train.py", "import torch\nfor _ in range(100): torch.ones(3).sum()\nprint('trained')")
    assert completed("camera.py", folder=tmp_path).stdout == "frames 10\n"
    ran = Ran(
        tmp_path,
        "--policy",
        "edf",
        "--unit-time",
        "camera=0.002",
        "--period",
        "camera=0.02",
        "--deadline",
        "camera=100",
        "camera.py",
        "train.py",
    )
    assert ran.code == 0, ran.text()
    assert "frames 10" in ran.of("camera") and ran.of("train") == ["trained"]
    assert ran.jobs["camera"]["periods"]["met"] == 10
    assert ran.jobs["train"]["periods"] is None
    refused = Ran(
        tmp_path,
        "--policy",
        "edf",
        "--unit-time",
        "camera=0.2",
        "--period",
        "camera=0.3",
        "--deadline",
        "0.1",
        "camera.py",
    )
    assert refused.code == 2
    assert "job 'camera': unit_time must be at most the deadline, 100 ms, got 200 ms" in refused.text()


def test_a_profile_of_units_gives_the_unit_time(tmp_path: Path) -> None:
    def camera(job: Job) -> None:
        for _ in job.periods(period=0.05):
            time.sleep(0.005)

    found = torchshare.profile(camera, splits=1, window=0.5, rounds=1)
    assert found.requests is not None and found.requests.slo is None
    times = found.requests.times
    assert times.service_s[0] >= 0.005 and times.parallel == 1 and not times.is_back_to_back
    assert times.unit_time_s == pytest.approx(1.1 * times.service_s[-1], rel=0.1)
    found.save(tmp_path / "camera.json")
    with torchshare.Runtime("cpu", policy="edf") as runtime:
        submit = functools.partial(runtime.submit, camera, period=100.0, profile=tmp_path / "camera.json")
        submit(name="first")
        late = times.unit_time_s / 2
        with pytest.raises(ValueError, match=r"job 'second': unit_time must be at most the deadline, .* got [\d.]+ ms"):
            submit(name="second", deadline=late)
        submit(name="third", deadline=late, unit_time=late / 2)
        runtime.cancel()
        runtime.wait(check=False)


def test_units_too_few_for_a_profile_are_an_error() -> None:
    def camera(job: Job) -> None:
        for _ in job.periods(range(3), period=0.001):
            pass

    with pytest.raises(ValueError, match=r"job 'camera' must end at least \d+ units, got 3 in .* a longer --window"):
        torchshare.profile(camera, splits=1, window=0.1, rounds=1)
