"""Profiles: measurements, fits, and invalid files."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_one

import torchshare
from torchshare import Job
from torchshare.profiles.ops import Ops
from torchshare.profiles.profile import Alone, Fit, Profile, Spread, as_profile, predict
from torchshare.profiling import measure as measuring
from torchshare.profiling.fit import fit
from torchshare.profiling.kept import Kept
from torchshare.profiling.measure import measure
from torchshare.profiling.measurement import FEWEST_STEPS, Candidate, Measurement, measured
from torchshare.profiling.subject import Subject

QUICK: dict[str, Any] = {"window": 0.1, "rounds": 1, "threads": 1}


def endless():
    while True:
        yield torch.ones(8, 4)


def linear(job: Job) -> None:
    weights = torch.ones(4, 2, requires_grad=True)
    for batch in job.batches(endless()):
        batch.backward(lambda x: (x @ weights).sum())


def linear_too(job: Job) -> None:
    linear(job)


def sizes(pieces: list[int], batch: int, model: Fit) -> list[Alone]:
    """The measurements of a job that follows the model exactly."""
    found = []
    for count in pieces:
        rows = batch // count
        step, compute = predict(model, count, rows), model.alpha_s + model.beta_s * rows
        memory = round(model.memory_fixed + model.memory_per_row * rows)
        spreads = [Spread(median=time, q25=time, q75=time) for time in (step, compute)]
        found.append(
            Alone(sub_batches=count, rows=rows, steps=9, step_s=spreads[0], sub_batch_s=spreads[1], memory_bytes=memory)
        )
    return found


def model(**changes: float) -> Fit:
    known = {"alpha_s": 1e-3, "beta_s": 2e-4, "communication_s": 4e-3, "delta": 1.0, "memory_fixed": 1e6}
    return Fit(**{**known, "memory_per_row": 5e4, "left_out_errors": [], **changes})


def test_a_profile_has_every_size_and_what_it_took():
    profile = torchshare.profile(linear, name="lin", steps=70, splits=3, **QUICK)
    assert (profile.job, profile.batch, profile.threads, profile.steps) == ("lin", 8, 1, 70)
    assert [(size.sub_batches, size.rows) for size in profile.alone] == [(1, 8), (2, 4), (4, 2)]
    for size in profile.alone:
        assert size.steps >= 5
        assert 0 < size.step_s.q25 <= size.step_s.median <= size.step_s.q75 < 60
        assert size.sub_batch_s.median <= size.step_s.median
        assert 100 < size.memory_bytes < 10_000
    assert len(profile.fit.left_out_errors) == 3
    assert profile.partners == []
    assert profile.refusal(linear) is None


def test_a_pair_has_the_ratios_of_both_by_size(monkeypatch: pytest.MonkeyPatch):
    run = measuring.measured
    step_s = {
        (None,): [0.1],
        (4,): [0.12],
        (None, None): [0.15, 0.4],
        (4, None): [0.18, 0.2],
        (None, 4): [0.3, 0.24],
    }

    def runs_of_known_length(candidates: Any, sub_batches: list[int | None], *rest: Any, **options: Any) -> Any:
        runs = run(candidates, sub_batches, *rest, **options)
        return [
            each.model_copy(update={"steps": [seconds] * 5})
            for each, seconds in zip(runs, step_s[tuple(sub_batches)], strict=True)
        ]

    monkeypatch.setattr(measuring, "measured", runs_of_known_length)
    profile = torchshare.profile(linear, linear_too, splits=2, partner_threads=1, **QUICK)
    (partner,) = profile.partners
    assert (partner.job, partner.role) == ("linear_too", "primary")
    found = {(pair.sub_batches, pair.partner_sub_batches): (pair.ratio, pair.partner_ratio) for pair in partner.beside}
    assert found == {
        (1, 1): pytest.approx((1.5, 4.0)),
        (2, 1): pytest.approx((1.5, 2.0)),
        (1, 2): pytest.approx((3.0, 2.0)),
    }


def measurement(step_s: float, **changes: Any) -> Measurement:
    known = {"sub_batches": [], "set_up": 0, "window": 2, "memory": 0, "rows": 8, "per_step": 1, "uses_batches": True}
    return Measurement(**{**known, "steps": [step_s] * 5, **changes})


def subject(**measured: Any) -> Subject:
    candidate = Candidate("linear", linear, 1)
    return Subject(candidate, Kept(None, candidate, 0.1, go_on=False), **measured)


def test_the_cost_of_recording_compares_the_runs_of_a_round():
    ops = Ops(per_step=3, measuring_cost=0, ops=[])
    recorded = [measurement(0.12, ops=ops), measurement(0.2, ops=ops)]
    whole = [measurement(0.1), measurement(0.2), measurement(9)]
    known = subject(batch=8, alone={1: whole}, recorded=recorded).profile()
    assert known.ops is not None and known.ops.measuring_cost == pytest.approx(0.1)


def test_the_smallest_batch_has_one_size():
    def one_row(job: Job) -> None:
        for batch in job.batches(iter(lambda: torch.ones(1, 2), None)):
            list(batch)

    assert [size.sub_batches for size in torchshare.profile(one_row, splits=3, **QUICK).alone] == [1]


def test_the_ratio_of_a_job_that_did_no_step_is_a_lower_bound():
    assert measurement(0, steps=[]).ratio(measurement(0.1)) == 20


@pytest.mark.parametrize("changes", [{}, {"alpha_s": 0.0}, {"communication_s": 0.0}, {"delta": 3.0}])
def test_the_fit_finds_the_model_that_made_the_times(changes):
    made = model(**changes)
    found = fit(sizes([1, 2, 4, 8], 64, made))
    assert max(found.left_out_errors) < 0.02
    for pieces in (1, 3, 16):
        rows = 64 / pieces
        assert predict(found, pieces, rows) == pytest.approx(predict(made, pieces, rows), rel=0.02)
    assert found.memory_fixed == pytest.approx(1e6, rel=1e-3)
    assert found.memory_per_row == pytest.approx(5e4, rel=1e-3)


def test_the_fit_reports_its_error_if_the_model_does_not_hold():
    alone = sizes([1, 2, 4], 64, model())
    odd = alone[1].model_copy(update={"step_s": Spread(median=1.0, q25=1.0, q75=1.0)})
    assert max(fit([alone[0], odd, alone[2]]).left_out_errors) > 0.5
    assert fit(alone[:2]).left_out_errors == []


def test_the_model_is_the_planners():
    made = model(delta=2.0)
    planners = torchshare._core.StepTimeModel(made.alpha_s, made.beta_s, made.communication_s, made.delta)
    for pieces in (1, 2, 4):
        assert planners.step(64, pieces) == pytest.approx(predict(made, pieces, 64 / pieces))


def made_profile(**changes: Any) -> Profile:
    alone = sizes([1, 2, 4], 64, model())
    return torchshare.profile(linear, splits=1, **QUICK).model_copy(update={"batch": 64, "alone": alone, **changes})


def test_save_and_load_are_inverses(tmp_path: Path):
    profile = torchshare.profile(linear, linear_too, splits=2, partner_threads=1, **QUICK)
    path = tmp_path / "p.json"
    profile.save(path)
    assert Profile.load(path) == profile
    assert json.loads(path.read_text())["schema_version"] == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("profiles") / "good.json"
    torchshare.profile(linear, linear_too, splits=1, partner_threads=1, **QUICK).save(path)
    return path.read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: "", "is not valid JSON"),
        (lambda text: "[1]", "must be of version 1, got None"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 7'), "must be of version 1, got 7"),
        (
            lambda text: text.replace('"median":', '"median": -1, "was":', 1),
            r"invalid alone\.0\.step_s\.median, got -1",
        ),
        (
            lambda text: text.replace('"median":', '"median": NaN, "was":', 1),
            r"invalid alone\.0\.step_s\.median, got nan",
        ),
        (
            lambda text: text.replace('"ratio":', '"ratio": 1e30, "was":', 1),
            r"invalid partners\.0\.beside\.0\.ratio, got 1e\+30",
        ),
        (
            lambda text: text.replace('"ratio":', '"ratio": 0, "was":', 1),
            r"invalid partners\.0\.beside\.0\.ratio, got 0",
        ),
        (lambda text: text.replace('"batch":', '"bitch":', 1), "batch"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(tmp_path: Path, saved: str, change, message: str):
    path = tmp_path / "p.json"
    path.write_text(change(saved))
    with pytest.raises(ValueError, match=rf"profile .*p\.json.*{message}"):
        Profile.load(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        Profile.load(tmp_path / "none.json")


def test_a_foreign_or_stale_profile_is_refused_at_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "their_job.py").write_text("def train(job): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("their_job")
    digest = torchshare.profiles.profile.code_digest(module.train)
    good = made_profile(code=digest)
    assert as_profile("a", good, module.train) is good
    (tmp_path / "their_job.py").write_text("def train(job): print()\n")
    with torchshare.Runtime() as runtime:
        for profile, message in (
            (good, "the job's code has changed since"),
            (made_profile(device="cuda: H200"), "measured on device 'cuda: H200', this is 'cpu"),
            (made_profile(torch="1.0"), "measured with torch 1.0, this is"),
        ):
            with pytest.raises(ValueError, match=f"job 'a': its profile cannot be used: .*{message}"):
                runtime.submit(module.train, name="a", profile=profile)
        assert runtime.jobs == ()
    sys.modules.pop("their_job")


def test_the_step_of_a_size_is_as_measured_else_by_the_fit():
    profile = made_profile(fit=model())
    assert profile.step_s(None) == profile.alone[0].step_s.median
    assert profile.step_s(16) == profile.alone[2].step_s.median
    assert profile.step_s(8) == pytest.approx(predict(model(), 8, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": 0}, "splits must be from 1 to 16, got 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"window": float("nan")}, "window must be a positive number of seconds, got nan"),
        ({"steps": -1}, "job 'linear': steps must be a non-negative integer, got -1"),
        ({"partner": linear}, "job names must differ, both are 'linear'"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        torchshare.profile(linear, **{**QUICK, **options})


def test_a_job_too_short_to_measure_is_refused():
    def short(job: Job) -> None:
        for batch in job.batches([torch.ones(8, 2)] * 5):
            list(batch)

    with pytest.raises(ValueError, match=r"job 'short' must do at least 9 steps, got 5 in"):
        torchshare.profile(short, **QUICK)


def test_a_job_whose_fewest_steps_end_with_the_window_is_measured():
    """Four steps are done when it has warmed up, three of them in the warm-up, and nine when the window is over."""

    def function(job: Job) -> None:
        for number, batch in enumerate(job.batches(itertools.repeat([torch.ones(2, 2)]))):
            list(batch)
            time.sleep({4: 0.15, 9: 0.2}.get(number, 0.0))

    (found,) = measured([Candidate("a", function, 1)], [None], window=0.2)
    assert len(found.steps) >= FEWEST_STEPS


def test_a_job_that_splits_its_own_batches_is_refused():
    def splits(job: Job) -> None:
        for batch in job.batches(endless(), sub_batch=2):
            list(batch)

    with pytest.raises(
        ValueError,
        match=r"job 'splits' must not pass sub_batch to job\.batches: it ran 4\.0 sub-batches per step instead of 1",
    ):
        torchshare.profile(splits, **QUICK)


def test_a_job_that_fails_and_a_partner_that_fails_are_named():
    def fails(job: Job) -> None:
        for number, batch in enumerate(job.batches(endless())):
            list(batch)
            if number == 2:
                raise RuntimeError("broken")

    with pytest.raises(torchshare.JobFailed, match="job 'fails' failed after 3 steps: RuntimeError: broken"):
        torchshare.profile(fails, **QUICK)
    with pytest.raises(torchshare.JobFailed, match="job 'fails'"):
        measure([Candidate("a", linear, 1), Candidate("fails", fails, 1)], splits=1, window=0.1, rounds=1)


def test_memory_is_the_jobs_own_and_counted_only_if_metered():
    def holds(job: Job) -> int:
        block = torch.ones(1000, 250)
        return len(block)

    assert run_one(holds, meter_memory=True).memory_peak == 1_000_000
    assert run_one(holds).memory_peak == 0
