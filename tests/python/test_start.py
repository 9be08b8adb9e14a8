"""Start conditions: when jobs start, and which conditions are refused."""

from __future__ import annotations

import itertools
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Gatekeeper, decisions, wait_until

import torchshare
from torchshare import Job

BATCH = torch.ones(2, 2)


def steps(count: int):
    return lambda job: [list(batch) for batch in job.batches([BATCH] * count)]


def test_jobs_start_together_by_default():
    with torchshare.Runtime() as runtime:
        jobs = [runtime.submit(steps(3), name=name) for name in "ab"]
        assert [job.state for job in jobs] == ["pending", "pending"]
        runtime.wait(300)
        assert decisions(runtime, "b") == ["start: now"]


def test_after_starts_when_the_other_has_ended_or_failed():
    for function, state in ((steps(2), "finished"), (lambda job: 1 / 0, "failed")):
        with torchshare.Runtime() as runtime:
            runtime.submit(lambda job, f=function: f(job), name="second", start="after:first")  # a forward reference
            runtime.submit(function, name="first")
            results = runtime.wait(300, check=False)
            assert results["first"].state == state
            assert decisions(runtime, "second") == [
                f"start: after:first: job 'first' {state} after {results['first'].steps} steps"
            ]


def test_step_starts_at_that_step_of_the_primary():
    gatekeeper = Gatekeeper()

    def primary(job: Job) -> None:
        for index, batch in enumerate(job.batches([BATCH] * 10)):
            list(batch)
            if index == 4:
                gatekeeper.pause()  # in the fifth step, after four

    with torchshare.Runtime() as runtime:
        runtime.submit(primary, priority="primary")
        early = runtime.submit(steps(1), name="early", start="step:4")
        late = runtime.submit(steps(1), name="late", start="step:5")
        runtime.start()
        assert gatekeeper.reached.wait(300)
        wait_until(lambda: early.state == "finished" and late.state == "delayed")
        gatekeeper.release.set()
        runtime.wait(300)
        assert decisions(runtime, "late") == ["start: step:5: job 'primary' has done 5 steps"]


def test_a_step_that_never_comes_starts_when_the_primary_ends():
    with torchshare.Runtime() as runtime:
        runtime.submit(steps(3), name="primary", priority="primary")
        runtime.submit(steps(1), name="late", start="step:1000")
        runtime.wait(300)
        assert decisions(runtime, "late") == ["start: step:1000: job 'primary' finished after 3 steps"]


def test_seconds_count_from_submission():
    with torchshare.Runtime() as runtime:
        began = time.monotonic()
        runtime.submit(lambda job: time.monotonic(), name="late", start=0.2)
        assert runtime.wait(300)["late"].value - began >= 0.2


def test_a_time_that_has_passed_is_now():
    gatekeeper = Gatekeeper()

    def primary(job: Job) -> None:
        for index, batch in enumerate(job.batches([BATCH] * 3)):
            list(batch)
            if index == 2:
                gatekeeper.pause()  # after two steps

    with torchshare.Runtime() as runtime:
        runtime.submit(primary, priority="primary")
        runtime.start()
        assert gatekeeper.reached.wait(300)
        for start in ("step:0", "step:1", "step:2", 0, 1e-9):
            runtime.submit(steps(1), name=f"at {start}", start=start)
        wait_until(lambda: {job.state for job in runtime.jobs[1:]} == {"finished"})
        gatekeeper.release.set()
        runtime.wait(300)


def test_a_clock_that_jumps_delays_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As NTP sets it: all times are of the monotonic clock."""
    jumps = itertools.cycle([0.0, 4e9, 1.0, 2e9])
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, lambda: int(next(jumps)))
    options = {"max_slowdown": 0.1, "checkpoint": tmp_path, "every": "1s", "policy": "best_fit"}
    began, go_on = time.monotonic(), threading.Event()
    with torchshare.Runtime(device="cpu", **options) as runtime:
        first = runtime.submit(steps(50), name="first", priority="primary", threads=1)
        runtime.submit(steps(1), name="second", start=0.2, threads=1)
        runtime.submit(lambda job: go_on.wait(300), name="third", start="after:second", threads=1)
        with pytest.raises(TimeoutError):
            runtime.wait(0.01)
        go_on.set()
        runtime.wait(300)
    assert 0.2 <= time.monotonic() - began < 300
    assert 0 < first.result.ran_s < 300


def test_only_these_read_the_clock_that_jumps():
    """For the date in a profile or journal, and to compare times of processes on several machines."""
    root = Path(torchshare.__file__).parents[1]
    reads = re.compile(r"system_clock|CLOCK_REALTIME|gettimeofday|\btime\.time\(|\.now\(\)\.astimezone")
    sources = [path for kind in ("csrc/**/*.h", "csrc/**/*.cpp", "torchshare/**/*.py") for path in root.glob(kind)]
    assert len(sources) > 200
    assert sorted(path.name for path in sources if reads.search(path.read_text())) == [
        "journal.py",
        "page.py",
        "ranks.py",
        "scheduler.py",
        "subject.py",
    ]


@pytest.mark.parametrize("start", ["soon", "after:", "step:x", "step:-1", "-1", -1, float("nan"), float("inf")])
def test_invalid_conditions_are_refused_at_submission(start):
    with (
        torchshare.Runtime() as runtime,
        pytest.raises(ValueError, match=r"job 'a': start must be 'now', 'auto', 'after"),
    ):
        runtime.submit(steps(1), name="a", start=start)
    with (
        torchshare.Runtime() as runtime,
        pytest.raises(ValueError, match="job 'a': start must be a string or a number of seconds, got None"),
    ):
        runtime.submit(steps(1), name="a", start=None)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ({"a": "after:b"}, "job 'a': start 'after:b' names no job of this runtime"),
        ({"a": "after:a"}, "job 'a': start 'after:a' waits for itself"),
        ({"a": "after:b", "b": "after:a"}, "'a' -> 'b' -> 'a'"),
        ({"a": "after:b", "b": "after:c", "c": "after:a"}, "'a' -> 'b' -> 'c' -> 'a'"),
        ({"a": "step:1"}, "needs a job of the same or higher priority whose steps to count"),
    ],
)
def test_conditions_that_can_never_hold_are_refused_before_any_job_starts(starts, message):
    with torchshare.Runtime() as runtime:
        runtime.submit(steps(1), name="innocent", priority="level-3") if "step:1" not in starts.values() else None
        for name, start in starts.items():
            runtime.submit(steps(1), name=name, start=start)
        with pytest.raises(ValueError, match=message):
            runtime.start()
        assert {job.state for job in runtime.jobs} == {"pending"}
        runtime.cancel()


def test_a_job_submitted_later_follows_its_own_condition():
    gatekeeper = Gatekeeper()
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: gatekeeper.pause(), name="first", priority="primary")
        runtime.start()
        now = runtime.submit(steps(1), name="now")
        after = runtime.submit(steps(1), name="after", start="after:first")
        with pytest.raises(ValueError, match="names no job"):
            runtime.submit(steps(1), name="lost", start="after:nobody")
        wait_until(lambda: now.state == "finished" and after.state == "delayed")
        gatekeeper.release.set()
        assert list(runtime.wait(300)) == ["first", "now", "after"]


def test_jobs_run_two_at_a_time_in_order():
    lock = threading.Lock()
    running: set[str] = set()
    together: list[int] = []

    def watched(job: Job) -> None:
        with lock:
            running.add(job.name)
            together.append(len(running))
        steps(3)(job)
        time.sleep(0.05)  # so that others would start beside it
        with lock:
            running.remove(job.name)

    with torchshare.Runtime(max_concurrent=2) as runtime:
        for name in "abcde":
            runtime.submit(watched, name=name, priority="primary" if name == "d" else "secondary")
        results = runtime.wait(300)
        assert {result.state for result in results.values()} == {"finished"}
        assert max(together) <= 2
        starts = sorted(
            (begin, job, detail) for kind, job, begin, _, _, detail in runtime.events() if kind == "decision"
        )
        order = "".join(job for _, job, _ in starts)
        assert order in ("dabce", "adbce")  # d and a start together
        assert all(detail.startswith("start: now; places free: ") for _, _, detail in starts)


def test_a_queued_job_can_be_cancelled_or_awaited():
    gatekeeper = Gatekeeper()
    with torchshare.Runtime(max_concurrent=1) as runtime:
        after = runtime.submit(steps(1), name="after", start="after:queued", priority="primary")
        runtime.submit(lambda job: gatekeeper.pause(), name="first")
        queued = [runtime.submit(steps(1), name=name) for name in ("queued", "cancelled")]
        runtime.start()
        assert gatekeeper.reached.wait(300)
        wait_until(lambda: {job.state for job in (*queued, after)} == {"delayed"})
        queued[1].cancel()
        wait_until(lambda: queued[1].state == "cancelled")
        gatekeeper.release.set()
        results = runtime.wait(300)
        assert [results[name].state for name in ("after", "queued", "cancelled")] == [
            "finished",
            "finished",
            "cancelled",
        ]


def test_close_starts_no_job_that_waits():
    with torchshare.Runtime(max_concurrent=1) as runtime:
        for name in "abcdefgh":
            runtime.submit(lambda job: time.sleep(0.01) or [torch.ones(2).add_(1) for _ in iter(int, 1)], name=name)
        runtime.start()
        wait_until(lambda: runtime.jobs[0].state == "running")
        runtime.close()
        assert [name for name in "abcdefgh" if decisions(runtime, name)] == ["a"]


@pytest.mark.parametrize("max_concurrent", [0, -1, "2", 1.5, 2**64])
def test_max_concurrent_is_a_positive_integer(max_concurrent: object):
    with pytest.raises(
        ValueError, match=rf"max_concurrent must be a positive integer below 2\*\*31, got {max_concurrent!r}"
    ):
        torchshare.Runtime(max_concurrent=max_concurrent)  # type: ignore[arg-type]


def test_the_former_name_of_max_concurrent_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture):
    former: dict[str, Any] = {"resident": 1}
    with torchshare.Runtime(**former) as runtime:
        for name in "ab":
            runtime.submit(steps(1), name=name)
        runtime.wait(300)
        assert decisions(runtime, "b")[-1].endswith("places free: 1 of 1")
    assert "option resident is now max_concurrent; the next release does not take the old name" in caplog.messages
