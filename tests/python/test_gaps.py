"""policy="best_fit": op profiles, filled gaps, the report, and replays of recorded ops."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_one, wait_until

import torchshare
from torchshare import Job
from torchshare.profiles.ops import Op, Ops, OpTrace, Time
from torchshare.profiles.profile import Profile
from torchshare.profiling.replay import Machine, replay, step_alone_s

MACHINE = Machine(cores=2, shortest_gap_s=200e-6, wake_latency_s=50e-6)


def training(steps: int | None, pause: float = 0.003):
    """A small training whose loader takes `pause` seconds a batch; returns its weights."""

    def train(job: Job) -> torch.Tensor:
        weights = torch.randn(16, 16, requires_grad=True)
        optimizer = torch.optim.SGD([weights], lr=0.1)

        def loader():
            number = 0
            while steps is None or number < steps:
                if pause:
                    time.sleep(pause)
                yield torch.randn(8, 16)
                number += 1

        for batch in job.batches(loader()):
            batch.backward(lambda x: torch.nn.functional.dropout((x @ weights).tanh(), 0.3).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        return weights.detach()

    return train


@pytest.fixture(scope="module")
def profile() -> Profile:
    return torchshare.profile(training(None), name="a", splits=1, window=0.3, rounds=1, threads=1)


def pair(first: dict[str, Any] | None = None, steps: int = 60) -> tuple[Mapping[str, torchshare.Result], Any]:
    with torchshare.Runtime(policy="best_fit") as runtime:
        runtime.submit(training(steps), name="a", priority="primary", threads=1, seed=1, **(first or {}))
        runtime.submit(training(steps, 0), name="b", threads=1, seed=2)
        results = runtime.wait(300)
        (report,) = runtime.gap_report()
    return results, report


def test_both_jobs_have_the_weights_that_they_have_alone():
    results, _ = pair()
    for name, seed, pause in (("a", 1, 0.003), ("b", 2, 0)):
        assert torch.equal(results[name].value, run_one(training(60, pause), seed=seed).value)


def test_the_report_says_how_the_gaps_were_filled():
    found: list[Any] = []

    def is_measured() -> bool:
        """False where a job got no core for long."""
        found[:] = pair(steps=150)
        report = found[1]
        return 0.3 * report.ran_s < report.capacity_s < 1.5 * report.ran_s and report.gaps_filled > 0

    wait_until(is_measured)  # 3 ms of each step are gaps
    results, report = found
    assert report.job == "a"
    assert report.ops == results["a"].ops
    assert 0 < report.unknown_ops < report.ops / 2
    assert report.gaps_opened > 50
    assert report.filled_s > 0
    assert report.returns_into_filler <= report.gaps_filled
    assert 0 <= report.cost_s < report.ran_s
    text = str(report)
    assert text.startswith("a: gaps are ")
    assert f"of {report.ops} ops were not yet measured" in text


def test_other_policies_have_no_forecasts_and_no_report():
    with torchshare.Runtime(policy="strict") as runtime:
        runtime.submit(training(3), name="a", priority="primary")
        runtime.submit(training(3), name="b")
        runtime.wait(300)
        assert runtime.gap_report() == []


def test_the_profile_has_the_ops_of_a_step_with_their_times(profile: Profile):
    ops = profile.ops
    assert ops is not None
    texts = [op.op for op in ops.ops]
    assert "aten::mm(Float[8, 16], Float[16, 16])" in texts
    assert 5 <= ops.per_step <= 40
    gap_s = max(op.gap.mean for op in ops.ops if op.gap.count > 5) / 1e9
    assert gap_s >= 0.003  # the loader's pause
    assert 0 < ops.gap_share < 1


def test_ops_are_saved_and_loaded_with_the_profile(profile: Profile, tmp_path: Path):
    profile.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == profile
    data = json.loads((tmp_path / "p.json").read_text())
    data["ops"]["ops"][0]["context"] = "xyz"
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"invalid ops\.ops\.0\.context, got 'xyz'"):
        Profile.load(tmp_path / "p.json")


def test_with_a_profile_nothing_is_left_to_measure(profile: Profile):
    _, without = pair()
    _, known = pair({"profile": profile})
    assert known.unknown_ops < without.unknown_ops / 2


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_profile_that_is_wrong_by_a_factor_of_ten_hangs_nothing_and_changes_no_bits(profile: Profile, factor: float):
    def scaled(time: Time) -> Time:
        return time.model_copy(update={"mean": time.mean * factor, "spread": time.spread * factor})

    def wrong(op: Op) -> Op:
        return op.model_copy(update={"duration": scaled(op.duration), "gap": scaled(op.gap)})

    ops = profile.ops
    assert isinstance(ops, Ops)
    bad = profile.model_copy(update={"ops": ops.model_copy(update={"ops": [wrong(op) for op in ops.ops]})})
    results, _ = pair({"profile": bad})
    assert torch.equal(results["a"].value, run_one(training(60), seed=1).value)
    assert results["b"].state == "finished"


def test_a_starving_job_gets_in_after_max_wait():
    def busy(job: Job) -> None:
        x = torch.ones(256, 256)
        while True:
            torch.mm(x, x)

    for policy in ("strict", "best_fit"):
        with torchshare.Runtime(policy=policy, grace=1.0, max_wait=0.001) as runtime:
            first = runtime.submit(busy, name="first", priority="primary", threads=1)
            runtime.submit(training(3, 0), name="second", threads=1, start=0.1)
            runtime.start()
            deadline = time.monotonic() + 300
            while runtime.results["second"].state != "finished":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            first.cancel()


@pytest.mark.parametrize("max_wait", [0, -1, float("inf"), float("nan")])
def test_an_invalid_max_wait_is_refused(max_wait: float):
    with pytest.raises(ValueError, match=r"max_wait must be a positive number of seconds, got"):
        torchshare.Runtime(policy="best_fit", max_wait=max_wait)


def trace(job: str, steps: int, gap: float, idle: float, duration: float) -> OpTrace:
    """Steps of two ops, as in op_replay_test.cpp."""
    return OpTrace(
        job=job,
        threads=1,
        context=np.tile(np.array([1, 2], dtype=np.uint64), steps),
        gap=np.tile([gap, 1e-5], steps),
        idle=np.tile([idle, 0.0], steps),
        duration=np.full(2 * steps, duration),
        step_ends=np.arange(2, 2 * steps + 1, 2, dtype=np.uint64),
    )


def test_a_replay_has_the_steps_of_both_jobs():
    traces = [trace("a", 50, 0.010, 0.010, 0.001), trace("b", 50, 1e-5, 0.0, 0.002)]
    assert step_alone_s(traces[0]) == pytest.approx(0.01201)
    first, second = replay(traces, "best_fit", MACHINE)
    assert (first.job, first.priority, second.job, second.priority) == ("a", "primary", "b", "secondary")
    assert first.ratio == pytest.approx(1.0, abs=0.01)
    assert second.ratio is not None and second.ratio > 1.1
    assert second.waited_s > 0
    busy, kept_out = replay([trace("a", 50, 1e-5, 0.0, 0.001), traces[1]], "strict", MACHINE)
    assert busy.ratio == pytest.approx(1.0, abs=0.01)
    assert kept_out.step_s is None and kept_out.ratio is None


def test_recorded_ops_add_up_to_the_job_that_they_are_of():
    with torchshare.Runtime() as runtime:
        job = runtime.submit(training(40), name="a", priority="primary", threads=1, record_ops=True)
        runtime.wait(300)
        ends = [end for kind, _, _, end, _, _ in runtime.events() if kind == "step"]
    recorded = OpTrace(job="a", threads=1, **job._context.handle.op_trace())
    assert len(recorded.context) == job.result.ops
    assert len(recorded.step_ends) == 40
    assert step_alone_s(recorded) == pytest.approx(np.diff(ends).mean() / 1e9, rel=0.1)
    assert recorded.idle.sum() == pytest.approx(job.result.input_s, rel=0.2)
    (alone,) = replay([recorded], "best_fit", MACHINE)
    assert alone.ratio == pytest.approx(1.0, abs=0.02)


def test_op_traces_are_saved_and_loaded_and_other_files_refused(tmp_path: Path):
    good = trace("a", 5, 1e-3, 0.0, 1e-3)
    good.save(tmp_path / "a.npz")
    loaded = OpTrace.load(tmp_path / "a.npz")
    assert loaded.job == "a" and np.array_equal(loaded.context, good.context)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    trace("a", 1, 1e-3, 0.0, 1e-3).save(tmp_path / "short.npz")
    for name, message in (
        ("none", "No such file"),
        ("cut", "is not an op trace"),
        ("text", "is not an op trace"),
        ("other", "is not an op trace"),
        ("short", "must have columns of equal length and at least 2 steps"),
    ):
        with pytest.raises(ValueError, match=rf"{name}\.npz.*{message}"):
            OpTrace.load(tmp_path / f"{name}.npz")


def test_ops_are_available_only_of_watched_jobs_that_have_ended():
    with torchshare.Runtime() as runtime:
        job = runtime.submit(training(2), name="a")
        runtime.wait(300)
        with pytest.raises(RuntimeError, match="job 'a': its ops are available only if they were watched"):
            job._context.handle.op_profiles()
