"""Plans of workflows: stages that answer requests under one promise."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_auto import profile as step_profile

from torchshare import _core
from torchshare.__main__ import main
from torchshare.profiles.profile import Partner, Profile
from torchshare.profiles.requests import RequestTimes, ServedAlone, ServedBeside
from torchshare.profiling.workflow_plan import Stage, Workflow, WorkflowPlan, plan_workflow

reads_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML files need Python 3.11")


def full_batches(batch: int, service: float, idle: float = 0.0) -> RequestTimes:
    """Each takes as long; between them the job is idle."""
    made = RequestTimes.of([service] * 400, [service] * 400, batch / service * (1 - idle), batch, idle)
    assert made.parallel == batch
    return made


def stage_profile(
    batch: int, service: float, partners: dict[str, tuple[float, float]] | None = None, idle: float = 0.0
) -> Profile:
    """Partners with the time of a batch beside them, and the ratio of their step times."""
    made = step_profile("stage", service, "none")
    found = [
        Partner(
            job=name,
            role="primary",
            beside=[made.partners[0].beside[0].model_copy(update={"partner_ratio": ratio})],
            requests=ServedBeside(times=full_batches(batch, beside, idle), op_s=1e-4),
        )
        for name, (beside, ratio) in (partners or {}).items()
    ]
    served = ServedAlone(slo=None, times=full_batches(batch, service, idle))
    return made.model_copy(update={"partners": found, "requests": served})


def chain(**partners: tuple[float, float]) -> Workflow:
    """At 10 requests per second, the fourth comes 300 ms after the first."""
    detect = Stage("detect", [stage_profile(1, 0.010, partners), stage_profile(4, 0.020)])
    return Workflow(10, [detect, Stage("classify", [stage_profile(1, 0.010), stage_profile(4, 0.020)], ["detect"])])


def batches(plan: WorkflowPlan) -> list[int]:
    return [each.batch for each in plan.stages]


def test_batches_are_as_large_as_the_promise_leaves_time_for():
    loose = plan_workflow(chain(), "p99<500ms")
    assert batches(loose) == [4, 4]
    assert [each.max_wait_s for each in loose.stages] == [pytest.approx(0.3), 0]
    assert loose.cost_s == pytest.approx(0.010)
    assert 0.360 < loose.latency_s < 0.410  # one in 20 batches comes while another is answered
    tight = plan_workflow(chain(), "p99<200ms")
    assert batches(tight) == [1, 1]
    assert tight.cost_s == pytest.approx(0.020)
    assert tight.critical == ["detect", "classify"]
    assert tight.decision.startswith("p99<200ms holds: the longest path, detect > classify, takes ")


def test_the_promise_is_divided_into_those_of_stages():
    plan = plan_workflow(chain(), "p99<200ms")
    detect, classify = plan.stages
    assert (detect.ends_by_s, classify.ends_by_s) == (pytest.approx(0.1), pytest.approx(0.2))
    assert detect.slo == "p99.5<100.000ms"
    for each in plan.stages:
        assert _core.LatencyTarget(each.slo).limit == pytest.approx(each.budget_s, abs=1e-6)
        assert each.budget_s >= each.latency_s
    thirds = Workflow(10, [Stage(name, [stage_profile(1, 0.010)]) for name in "abc"])
    assert plan_workflow(thirds, "p99<100ms").stages[0].slo == "p99.6667<100.000ms"


def test_requests_at_random_times_wait_for_those_before():
    """As Pollaczek and Khinchine say: at a load of 0.8, they wait for 2 service times on average."""
    (stage,) = plan_workflow(Workflow(80, [Stage("a", [stage_profile(1, 0.010)])]), "p90<1s").stages
    assert 0.05 < stage.latency_s < 0.09  # alone 0.01


def test_a_partner_is_chosen_for_the_time_that_it_uses():
    """While a request takes 15 ms, it runs at 0.8 of its speed: 3 ms are lost, alone 10."""
    plan = plan_workflow(chain(train=(0.015, 1.25)), "p99<200ms")
    assert [each.partner for each in plan.stages] == ["train", None]
    assert plan.stages[0].cost_s == pytest.approx(0.003)
    assert "partners use 7 ms of the 20 ms of GPU time that a request takes" in plan.reasons
    slow = plan_workflow(chain(train=(0.015, 3.1)), "p99<200ms")
    assert [each.partner for each in slow.stages] == [None, None]


def test_a_partner_runs_as_alone_while_a_stage_is_idle():
    """Idle for half of the time, and 0.75 of the speed in all: 0.5 while requests are answered."""
    profile = stage_profile(1, 0.010, {"train": (0.010, 1 / 0.75)}, idle=0.5)
    (stage,) = plan_workflow(Workflow(10, [Stage("a", [profile])]), "p99<200ms").stages
    assert stage.partner == "train" and stage.cost_s == pytest.approx(0.005)


def test_a_partner_that_stands_still_or_holds_up_requests_is_not_chosen():
    profile = stage_profile(1, 0.010, {"train": (0.010, 1.0)})
    assert plan_workflow(Workflow(10, [Stage("a", [profile])]), "p99<1s").stages[0].partner == "train"
    (partner,) = profile.partners
    starved = partner.model_copy(update={"beside": [partner.beside[0].model_copy(update={"starved": True})]})
    profile = profile.model_copy(update={"partners": [starved]})
    assert plan_workflow(Workflow(10, [Stage("a", [profile])]), "p99<1s").stages[0].partner is None
    late = stage_profile(1, 0.010, {"train": (0.101, 1.0)})  # ever more requests wait
    assert plan_workflow(Workflow(10, [Stage("a", [late])]), "p99<9000s").stages[0].partner is None


def with_times(profile: Profile, **changes: Any) -> Profile:
    assert profile.requests is not None
    times = profile.requests.times.model_copy(update=changes)
    return profile.model_copy(update={"requests": ServedAlone(slo=None, times=times)})


def test_a_burst_takes_several_of_the_longest_batches():
    """Each of them may be one of the fiftieth that take 50 ms."""
    after = with_times(stage_profile(1, 0.010), service_s=[0.01] * 98 + [0.05] * 2)
    stages = [Stage("a", [stage_profile(4, 0.020)]), Stage("b", [after], ["a"])]
    burst = plan_workflow(Workflow(1, stages), "p98<10s").stages[1]
    alone = plan_workflow(Workflow(1, [Stage("b", [after])]), "p99<10s").stages[0]
    assert burst.latency_s == pytest.approx(alone.latency_s + 3 * 0.05)


def test_few_times_are_told():
    short = with_times(stage_profile(1, 0.010), service_s=[0.01] * 99 + [0.05])
    plan = plan_workflow(Workflow(10, [Stage("a", [short])]), "p99.9<200ms")
    assert "'a': a profile has 100 times, of which the longest stands for p99.9" in plan.reasons
    assert plan.stages[0].latency_s >= 0.05
    assert not any("stands for" in reason for reason in plan_workflow(chain(), "p99<500ms").reasons)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            [stage_profile(1, 0.2), stage_profile(4, 0.5)],
            "must answer 10 requests per second, got profiles of 8 at most",
        ),
        ([step_profile("train", 1)], "profiles must be of requests, got one of the steps of 'train'"),
        ([stage_profile(4, 0.1), stage_profile(4, 0.2)], "profiles must be of different batches, got two of 4"),
    ],
)
def test_what_cannot_be_a_stage_is_named(stage: list[Profile], message: str):
    with pytest.raises(ValueError, match=f"^stage 'a': {message}"):
        plan_workflow(Workflow(10, [Stage("a", stage)]), "p99<1s")


def test_batches_that_were_not_full_are_refused():
    profile = with_times(stage_profile(8, 0.1), per_s=32.0)
    with pytest.raises(
        ValueError, match=r"^stage 'a': profiles must be of full batches, got one with 3\.2 of 8 requests"
    ):
        plan_workflow(Workflow(10, [Stage("a", [profile])]), "p99<1s")


def test_a_promise_that_cannot_hold_names_the_least():
    with pytest.raises(ValueError, match=r"^the limit must be at least 4\d\.\d+ ms, got 15 ms; .*'detect' with 2"):
        plan_workflow(chain(), "p99<15ms")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for stage, batch in itertools.product(chain(train=(0.015, 1.25)).stages, (0, 1)):
        stage.profiles[batch].save(f"{stage.name}-{1 + 3 * batch}.json")
    return tmp_path


FILE = """
rate = 10
[stages.detect]
profiles = ["detect-1.json", "detect-4.json"]
[stages.classify]
profiles = ["classify-1.json", "classify-4.json"]
after = ["detect"]
"""


@reads_toml
def test_the_verb_prints_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("pipeline.toml").write_text(FILE)
    assert main(["plan", "--workflow", "pipeline.toml", "--slo", "p99<200ms"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("p99<200ms holds: the longest path, detect > classify, takes ")
    title = "stage max_batch max_wait s beside latency ms ends by ms slo GPU ms per request"
    assert " ".join(lines[1].split()) == title
    detect = lines[2].split()
    assert detect[:4] == ["detect", "1", "0", "train"] and detect[6].startswith("p99.5<")
    assert "A request takes 13 ms of GPU time that no other job uses." in lines
    assert "- 10 requests per second, taken to come at random times" in lines
    assert main(["plan", "--workflow", "pipeline.toml", "--slo", "p99<200ms", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [stage["partner"] for stage in found["stages"]] == ["train", None]
    assert found["exact"] is True


@reads_toml
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rate = 10\n", ""), "pipeline.toml: 'rate' is missing"),
        (("rate = 10", "rate = 0"), "pipeline.toml: invalid rate, got 0: must be greater than 0"),
        (("rate = 10", "rate = 10\nspeed = 1"), "pipeline.toml: unknown key 'speed'"),
        (
            ('["detect"]', '"detect"'),
            "pipeline.toml: invalid stages.classify.after, got 'detect': must be a valid list",
        ),
        (('["detect"]', '["x"]'), "stage 'classify': after must be of detect, classify, got 'x'"),
        (('["detect"]', '["classify"]'), "stage 'classify': after must not lead back to it"),
        (("classify-1", "gone"), "stage 'classify': profile gone.json: No such file or directory"),
        (("[stages.classify]", "[stages.classify"), "pipeline.toml: Expected ']' at the end of a table declaration"),
        ((FILE, "rate = 10"), "pipeline.toml: 'stages' is missing"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str
):
    Path("pipeline.toml").write_text(FILE.replace(*change))
    assert main(["plan", "--workflow", "pipeline.toml", "--slo", "p99<200ms"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"torchshare: error: {message}")


@reads_toml
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slo", "p99<1s", "--memory", "3"], "--workflow must be alone or with --slo and --json, got --memory"),
        (["--slo", "p99<1s", "detect-1.json"], "--workflow must be alone or with --slo and --json, got PROFILE.json"),
        ([], "--workflow needs --slo, such as 'p99<200ms'"),
        (["--slo", "p99"], "slo must be a percentile below 100"),
    ],
)
def test_the_verb_refuses_other_options(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
):
    Path("pipeline.toml").write_text(FILE)
    assert main(["plan", "--workflow", "pipeline.toml", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_search_is_cut_short():
    """Each stage's cheaper options are slower."""
    options = [_core.StageOption(1, None, 0.01 * k, 0.01 * k, 0.02 / k) for k in range(1, 9)]
    stages = [_core.WorkflowStage(str(i), [] if i == 0 else [i - 1], options) for i in range(8)]
    assert _core.plan_workflow(stages, 0.33, 1.0).exact
    assert not _core.plan_workflow(stages, 0.33, 1.0, max_nodes=10).exact
