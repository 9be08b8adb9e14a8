"""Plans from profiles, on inputs with known results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchshare.__main__ import main
from torchshare.profiles.profile import Alone, Beside, Fit, Partner, Profile, Spread
from torchshare.profiling import plots
from torchshare.profiling.plan import PlanSettings, plan, write_ratios
from torchshare.simulation.ratios import read_ratios

MIB = 2**20


def spread(time: float) -> Spread:
    return Spread(median=time, q25=time, q75=time)


def profile(
    job: str, seconds: float, partners: dict[str, tuple[float, float]] | None = None, **changes: Any
) -> Profile:
    """A job of 100 steps; alone it takes 100 MiB in whole batches, half of that in two sub-batches, 10 % slower."""
    step = seconds / 100
    alone = [
        Alone(sub_batches=k, rows=8 // k, steps=9, step_s=spread(step * slow), sub_batch_s=spread(step / k),
              memory_bytes=100 * MIB // k) for k, slow in ((1, 1.0), (2, 1.1))
    ]  # fmt: skip
    beside = {
        name: [
            Beside(sub_batches=a, partner_sub_batches=b, ratio=own, partner_ratio=other)
            for a, b in ((1, 1), (2, 1), (1, 2))
        ]
        for name, (own, other) in (partners or {}).items()
    }
    fit = Fit(alpha_s=0, beta_s=step / 8, communication_s=0, delta=1, memory_fixed=0, memory_per_row=12.5 * MIB,
              left_out_errors=[])  # fmt: skip
    fields = {
        "job": job, "code": "", "device": "test", "torch": "2", "created": "today", "threads": 1, "batch": 8,
        "steps": 100, "set_up_s": 0.0, "alone": alone, "fit": fit,
        "partners": [Partner(job=name, role="primary", beside=pairs) for name, pairs in beside.items()],
    }  # fmt: skip
    return Profile(**{**fields, **changes})


NONE = PlanSettings()


def test_jobs_that_share_well_start_together():
    found = plan([profile("a", 100, {"b": (1.1, 1.2)}), profile("b", 50)], NONE)
    assert found.decision == "'b' starts now"
    assert found.ends == pytest.approx({"b": 60, "a": 60 + 100 - 60 / 1.1})
    assert found.average_s == pytest.approx(sum(found.ends.values()) / 2)
    assert found.one_by_one_s == pytest.approx((50 + 150) / 2)
    assert [(p.job, p.partner) for p in found.pieces] == [("a", "b"), ("b", "a"), ("a", None)]
    assert "ratios measured with 'a' as the primary" in found.reasons


def test_jobs_that_share_badly_run_one_after_the_other():
    found = plan([profile("a", 50, {"b": (2.0, 2.0)}), profile("b", 100)], NONE)
    assert found.decision == "'b' starts after 'a'"
    assert found.ends == {"a": 50, "b": 150}
    assert [(p.job, p.begin_s, p.end_s) for p in found.pieces] == [("a", 0, 50), ("b", 50, 150)]


def test_a_short_new_job_runs_first_and_the_other_is_suspended():
    found = plan([profile("a", 100, {"b": (2.0, 2.0)}), profile("b", 10)], PlanSettings(suspend_cost=3))
    assert found.decision == "'b' runs first, 'a' is suspended until it ends"
    assert found.ends == pytest.approx({"b": 10, "a": 113})


def test_a_bound_starts_the_new_job_later():
    found = plan(
        [profile("a", 100, {"b": (1.2, 1.0)}), profile("b", 100)], PlanSettings(max_slowdown=0.1, done={"a": 0})
    )
    assert found.decision == "'b' starts at step 50 of 'a'"
    assert found.ends["a"] == pytest.approx(110)


def test_a_deadline_of_either_job_moves_the_start():
    profiles = [profile("a", 100, {"b": (1.2, 1.2)}), profile("b", 1000)]
    found = plan(profiles, PlanSettings(deadlines={"a": 105}))
    assert found.decision == "'b' starts at step 75 of 'a'"  # 25 of its seconds take 30
    assert found.ends["a"] == pytest.approx(105)
    profiles = [profile("a", 100, {"b": (2.0, 2.0)}), profile("b", 100)]
    assert plan(profiles, NONE).decision == "'b' starts after 'a'"
    assert plan(profiles, PlanSettings(deadlines={"b": 110})).decision.startswith("'b' runs first")
    found = plan(profiles, PlanSettings(deadlines={"a": 110, "b": 110}))
    assert found.decision == "'b' starts after 'a', 90.0 s late: no plan keeps the deadlines"


def test_steps_that_were_done_count():
    found = plan(
        [profile("a", 100, {"b": (1.2, 1.0)}), profile("b", 100)], PlanSettings(max_slowdown=0.1, done={"a": 50})
    )
    assert found.decision == "'b' starts at step 75 of 'a'"
    assert found.ends["a"] == pytest.approx(55)


def test_little_memory_splits_the_batches():
    profiles = [profile("a", 100, {"b": (1.0, 1.0)}), profile("b", 100)]
    assert {p.sub_batches for p in plan(profiles, PlanSettings(memory=200 * MIB)).pieces} == {1}
    found = plan(profiles, PlanSettings(memory=160 * MIB))
    assert sorted(p.sub_batches for p in found.pieces if p.partner) == [1, 2]
    assert plan(profiles, PlanSettings(memory=120 * MIB)).pieces[0].sub_batches == 2
    assert plan(profiles, PlanSettings(memory=99 * MIB)).decision == "'b' starts after 'a'"
    with pytest.raises(ValueError, match=r"job 'b' needs .* bytes alone in 2 sub-batches"):
        plan(profiles, PlanSettings(memory=40 * MIB))


def test_ratios_below_one_are_noise():
    found = plan([profile("a", 100, {"b": (0.9, 0.8)}), profile("b", 100)], NONE)
    assert found.ends == {"a": 100, "b": 100}


def test_ratios_may_come_from_either_profile():
    swapped = plan([profile("a", 100), profile("b", 50, {"a": (1.2, 1.1)})], NONE)
    assert swapped.ends["b"] == pytest.approx(60)
    assert "ratios measured with 'b' as the primary" in swapped.reasons


def test_a_job_without_remaining_steps_ends_at_once():
    found = plan([profile("a", 100, {"b": (1.5, 1.5)}), profile("b", 50)], PlanSettings(done={"a": 100}))
    assert found.ends == {"a": 0, "b": 50}


def test_a_queue_pairs_jobs_that_share_well():
    a = profile("a", 100, {"b": (1.0, 1.0), "c": (3.0, 3.0)})
    found = plan([a, profile("b", 100, {"c": (3.0, 3.0)}), profile("c", 10)], NONE)
    assert found.ends == pytest.approx({"a": 110, "b": 110, "c": 10})
    assert found.decision == "in this order: c, a, b"
    assert found.exact
    assert found.one_by_one_s == pytest.approx((10 + 110 + 210) / 3)


def test_jobs_never_measured_together_do_not_share():
    found = plan([profile("a", 10), profile("b", 20), profile("c", 30)], NONE)
    assert found.ends == {"a": 10, "b": 30, "c": 60}
    assert "'a' and 'b' were not measured together, so they do not share" in found.reasons


@pytest.mark.parametrize(
    ("profiles", "settings", "message"),
    [
        ([profile("a", 1), profile("a", 1)], NONE, "profiles must be of different jobs, got two of 'a'"),
        ([profile("a", 1), profile("b", 1)], NONE, "no profile has 'a' beside 'b'"),
        ([profile("a", 1), profile("b", 1)], PlanSettings(steps={"x": 1}), "steps names job 'x', must be one of a, b"),
        (
            [profile("a", 1, steps=None, partners={"b": (1, 1)}), profile("b", 1)],
            NONE,
            "job 'a': its profile has no number of steps",
        ),
        ([profile("a", 1), profile("b", 1, device="gpu")], NONE, "'a' .test, torch 2. and 'b' .gpu, torch 2."),
        (
            [profile(name, 1) for name in "abc"],
            PlanSettings(max_slowdown=0.1),
            "max_slowdown, suspend_cost and deadlines need two profiles, got 3",
        ),
        ([profile(name, 1) for name in "abc"], PlanSettings(deadlines={"a": 1}), "deadlines need two profiles, got 3"),
        (
            [profile("a", 1), profile("b", 1)],
            PlanSettings(deadlines={"x": 1}),
            "deadlines names job 'x', must be one of a, b",
        ),
        (
            [profile("a", 1, {"b": (1, 1)}), profile("b", 1)],
            PlanSettings(max_slowdown=-1),
            "max_slowdown of job 'a' must be from 0 to 1, such as 0.05 for 5 %, got -1",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(profiles, settings, message):
    with pytest.raises(ValueError, match=message):
        plan(profiles, settings)


def test_the_table_of_ratios_is_the_simulators(tmp_path: Path):
    path = tmp_path / "pairs.csv"
    write_ratios([profile("a", 100, {"b": (1.1, 1.2)}), profile("b", 1, {"c": (0.9, 2.0)})], path)
    ratios = read_ratios(path, None, {})
    assert ratios.models == ["a", "b", "c"]
    assert ratios.matrix[0, 1] == 1.1
    assert ratios.matrix[1, 0] == 1.2
    assert ratios.matrix[1, 2] == 1.0


def test_the_chart_has_a_bar_for_each_piece():
    found = plan([profile("a", 100, {"b": (1.1, 1.2)}), profile("b", 50)], NONE)
    axes = plots.gantt(found).axes[0]
    assert [round(bar.get_width(), 3) for bar in axes.patches] == [60, 60, round(100 - 60 / 1.1, 3)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]


def written(folder: Path, *profiles: Profile) -> list[str]:
    for each in profiles:
        each.save(folder / f"{each.job}.json")
    return [str(folder / f"{each.job}.json") for each in profiles]


def test_the_verb_prints_the_plan_and_writes_its_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = written(tmp_path, profile("a", 100, {"b": (1.1, 1.2)}), profile("b", 50, steps=None))
    outputs = ["--png", str(tmp_path / "p.png"), "--ratios", str(tmp_path / "r.csv")]
    assert main(["plan", *paths, "--steps", "b=100", *outputs]) == 0
    text = capsys.readouterr().out
    assert "'b' starts now" in text
    assert "Average completion 82.7 s; one after the other, shortest first, 100.0 s (17% less)." in text
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert (tmp_path / "r.csv").read_text().splitlines()[1] == "a,b,1.1,1.2"
    assert main(["plan", *paths, "--steps", "b=100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decision"] == "'b' starts now"
    assert main(["plan", *paths, "--steps", "b=100", "--deadline", "a=1m45s"]) == 0
    assert "'b' starts at step 50 of 'a'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A"], "plan needs at least two profiles, got one"),
        (["A", "none.json"], "profile none.json: No such file"),
        (
            ["A", "B", "--steps", "b"],
            "--steps must be JOB=N with a non-negative integer N of at most 12 digits, got 'b'",
        ),
        (
            ["A", "B", "--done", "a=x"],
            "--done must be JOB=N with a non-negative integer N of at most 12 digits, got 'a=x'",
        ),
        (
            ["A", "B", "--deadline", "a=soon"],
            '--deadline must be JOB=TIME with a time such as "2h", "90m" or "1h30m", or a positive number of seconds, '
            "got 'a=soon'",
        ),
        (["A", "B", "--deadline", "2h"], "--deadline must be JOB=TIME with"),
        (["A", "B", "--png", "/nowhere/p.png"], "--png must be a file in an existing folder, got /nowhere/p.png"),
        (["A", "B", "--memory", "0.0001"], "job 'b' needs"),
    ],
)
def test_the_verb_refuses_invalid_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments, message):
    files = dict(zip("AB", written(tmp_path, profile("a", 1, {"b": (1, 1)}), profile("b", 1)), strict=True))
    assert main(["plan", *(files.get(argument, argument) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err
