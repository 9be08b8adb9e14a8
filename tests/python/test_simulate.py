"""The simulator from Python and from the command line."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pages
import pytest
from conftest import torchshare_command

from torchshare import _core
from torchshare.__main__ import main
from torchshare.cluster.page import write_queue
from torchshare.report import numbers
from torchshare.simulation import tables
from torchshare.simulation.generated import at_load, generate, parse_mix, with_deadlines
from torchshare.simulation.job_trace import Limits, Trace
from torchshare.simulation.ratios import uniform
from torchshare.simulation.simulate import Case, Setting, Sweep, simulate, simulate_all, summarize

FIGURES = {
    "avg_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "makespan_s",
    "avg_queue_s",
    "gpu_utilization",
    "preemptions",
    "shared_fraction",
    "jobs",
}


def random_trace(jobs: int, seed: int = 0, *, gap_s: float = 40, gpus: int = 8) -> Trace:
    random = np.random.default_rng(seed)
    return Trace(
        source=f"seed {seed}",
        names=[f"job-{index}" for index in range(jobs)],
        arrival=np.cumsum(random.exponential(gap_s, jobs)),
        duration=random.lognormal(5, 1.2, jobs),
        gpus=np.minimum(gpus, 2 ** random.integers(0, 4, jobs)).astype(np.int32),
        memory_gib=np.zeros(jobs),
        models=[""] * jobs,
    )


def case(policy: str, trace: Trace, ratio: float = 1.2, **setting) -> Case:
    return Case(trace, policy, uniform(ratio), Setting(gpus=8, **setting), f"{ratio:g}")


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    trace = random_trace(60)
    path = tmp_path / "trace.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["job", "arrival_s", "gpus", "duration_s", "memory_gib", "model"])
        rows.writerows(zip(trace.names, trace.arrival, trace.gpus, trace.duration, [""] * 60, [""] * 60, strict=True))
    return path


def test_figures_are_what_their_names_say():
    two = Trace(
        "two", ["a", "b"], np.array([0.0, 10.0]), np.array([100.0, 50.0]), np.array([8, 8]), np.zeros(2), [""] * 2
    )
    figures = simulate(case("fifo", two)).figures
    assert figures["avg_jct_s"] == (100 + 140) / 2
    assert figures["median_jct_s"] == 120
    assert figures["p99_jct_s"] == pytest.approx(100 + 0.99 * 40)
    assert figures["makespan_s"] == 150
    assert figures["avg_queue_s"] == 90 / 2
    assert figures["gpu_utilization"] == 1
    assert figures["shared_fraction"] == 0
    shared = simulate(case("sjf-ffs", two, 1.5)).figures
    # Together from 10 s on, when the first has 90 s left: the second takes 75 s.
    assert shared["avg_jct_s"] == pytest.approx((125 + 75) / 2)
    assert shared["shared_fraction"] == pytest.approx(150 / 200)


@pytest.mark.parametrize("policy", _core.cluster_policy_names())
def test_equal_seeds_give_equal_results_on_both_cores(policy):
    cases = [case(policy, random_trace(300, seed), estimate_error=0.5, seed=3) for seed in (0, 0, 1, 1)]
    outcomes = simulate_all(cases)
    assert np.array_equal(outcomes[0].jct, outcomes[1].jct)
    assert np.array_equal(outcomes[2].jct, outcomes[3].jct)
    assert not np.array_equal(outcomes[0].jct, outcomes[2].jct)


@pytest.mark.parametrize("policy", _core.cluster_policy_names())
def test_jobs_that_are_alike_run_in_the_order_of_the_trace(policy):
    jobs = 50
    alike = Trace(
        "alike", [""] * jobs, np.zeros(jobs), np.full(jobs, 60.0), np.full(jobs, 8), np.zeros(jobs), [""] * jobs
    )
    jct = simulate(case(policy, alike, ratio=2.0)).jct
    assert np.array_equal(jct, np.sort(jct))
    assert jct[-1] == pytest.approx(60.0 * jobs)


def test_a_hundred_thousand_jobs():
    trace = random_trace(100_000, gap_s=400)
    outcome = simulate(case("sjf", trace))
    assert np.isfinite(outcome.jct).all() and (outcome.jct > trace.duration - 1e-6).all()
    busy = outcome.figures["gpu_utilization"] * outcome.figures["makespan_s"] * 8
    assert busy == pytest.approx((trace.duration * trace.gpus).sum())


def test_another_seed_gives_other_estimates():
    a, b = (simulate(case("sjf", random_trace(200), estimate_error=0.5, seed=seed)).jct for seed in (1, 2))
    assert not np.array_equal(a, b)


def test_better_knowledge_is_no_worse_for_shortest_first():
    trace = random_trace(400, gap_s=60)
    exact, rough, none = (
        simulate(case("srsf", trace, estimate_error=error)).figures["avg_jct_s"] for error in (0.0, 1.0, None)
    )
    assert exact < rough
    assert exact < none


def test_a_sweep_goes_through_its_values():
    sweep = Sweep.parse("interference=1.0:2.0:0.1")
    assert sweep.values == [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0]
    assert Sweep.parse("restart-cost=0:60:30").apply(Setting(), 30.0).restart_cost == 30
    for wrong in ("x=1:2:1", "interference=1:2", "interference=2:1:0.1", "interference=1:2:0", "interference=1:2:x"):
        with pytest.raises(ValueError, match="must be NAME=FROM:TO:STEP"):
            Sweep.parse(wrong)


def test_several_traces_are_averaged_with_their_spread():
    outcomes = simulate_all([case("fifo", random_trace(50, seed)) for seed in range(3)])
    (row,) = summarize(outcomes)
    values = [outcome.figures["avg_jct_s"] for outcome in outcomes]
    assert row["avg_jct_s"] == pytest.approx(np.mean(values))
    assert row["avg_jct_s_spread"] == [min(values), max(values)]
    assert row["jobs"] == 150


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_policy_is_in_the_json(capsys, trace_file):
    code, out, _ = run(capsys, "--trace", trace_file, "--gpus", 8, "--json")
    rows = json.loads(out)["policies"]
    assert code == 0
    names = ["fifo", "fifo-backfill", "sjf", "srtf", "srsf", "tiresias", "sjf-ffs", "sjf-bsbf", "pair-srsf"]
    names += ["edf", "pair-edf"]
    assert [row["policy"] for row in rows] == names
    assert all(row.keys() >= FIGURES for row in rows)
    assert all(row["jobs"] == 60 for row in rows)


def test_the_table_compares_with_tiresias(capsys, trace_file):
    code, out, err = run(capsys, "--trace", trace_file, "--gpus", 8, "--policy", "tiresias", "--policy", "pair-srsf")
    assert code == 0
    assert "vs tiresias" in out
    assert "pair-srsf" in out
    assert err == ""


def test_a_policy_that_is_named_twice_runs_once(capsys, trace_file):
    arguments = ("--policy", "fifo,fifo", "--policy", "fifo")
    _, out, _ = run(capsys, "--trace", trace_file, "--gpus", 8, "--json", *arguments)
    (row,) = json.loads(out)["policies"]
    assert (row["traces"], row["jobs"]) == (1, 60)


def test_a_sweep_has_a_row_per_value_and_policy(capsys, trace_file, tmp_path):
    plot = tmp_path / "sweep.png"
    arguments = ("--policy", "srsf,sjf-bsbf", "--sweep", "interference=1:2:0.5", "--plot", plot)
    code, out, _ = run(capsys, "--trace", trace_file, "--gpus", 8, "--json", *arguments)
    rows = json.loads(out)["policies"]
    assert code == 0
    assert [(row["policy"], row["interference"]) for row in rows[:2]] == [("srsf", "1"), ("sjf-bsbf", "1")]
    assert len(rows) == 6
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_plot_and_timeline_show_every_job(capsys, trace_file, tmp_path):
    plot, timeline = tmp_path / "plot.png", tmp_path / "timeline.json"
    arguments = ("--policy", "pair-srsf", "--plot", plot, "--timeline", timeline)
    assert run(capsys, "--trace", trace_file, "--gpus", 8, *arguments)[0] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {event["name"] for event in events} == {f"job-{index}" for index in range(60)}
    assert all(event["dur"] >= 0 and 0 <= event["tid"] // 2 < 8 for event in events)
    for thread in {event["tid"] for event in events}:
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == thread)
        # Perfetto nests spans of one thread: two jobs on one GPU need two.
        assert all(before[1] <= after[0] * (1 + 1e-12) for before, after in itertools.pairwise(spans)), thread


def test_bad_rows_stop_it_or_are_counted(capsys, trace_file):
    trace_file.write_text(trace_file.read_text() + "job-60,0,1,10,,\n")
    code, out, err = run(capsys, "--trace", trace_file, "--gpus", 8)
    assert (code, out) == (2, "")
    assert "trace.csv:62: column 'arrival_s' must ascend, got 0 after" in err
    code, out, err = run(capsys, "--trace", trace_file, "--gpus", 8, "--skip-bad-rows", "--policy", "fifo")
    assert code == 0
    assert "skipped 1 bad rows" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "best"], "--policy must be all or one of fifo"),
        (["--gpus", "0"], "--gpus must be from 1 to 1e+06, got 0"),
        (["--gpus", "6"], "--gpus must be a multiple of the 4"),
        (["--interference", "0.5"], "interference ratio must be a number from 1 to 1e+06, got 0.5"),
        (["--interference", "nowhere.csv"], "nowhere.csv: No such file"),
        (["--restart-cost", "-1"], "--restart-cost must be from 0 to 1e+09, got -1"),
        (["--estimate-error", "some"], "--estimate-error must be a number or none, got some"),
        (["--estimate-error", "nan"], "--estimate-error must be from 0 to 10, got nan"),
        (["--fixed-memory", "1.5"], "--fixed-memory must be from 0 to 1, got 1.5"),
        (["--fixed-time", "0.5"], "--fixed-time needs --gpu-memory, got --fixed-time 0.5 without it"),
        (
            ["--sub-batches", "1", "--gpu-memory", "0"],
            "--sub-batches needs --gpu-memory, got --sub-batches 1 without it",
        ),
        (["--gpu-type", "v100"], "--gpu-type needs a table as --interference, got --gpu-type v100 without it"),
        (["--model-as", "a=b"], "--model-as needs a table as --interference, got --model-as a=b without it"),
        (["--gpu-type", "v100", "--sweep", "interference=1:2:1"], "--gpu-type needs a table as --interference"),
        (["--sub-batches", "3"], "--sub-batches must be one of 1, 2, 4, 8, got 3"),
        (["--sub-batches", "9" * 99], "--sub-batches must be one of 1, 2, 4, 8, got 99999"),
        (["--gpu-memory", "-1"], "--gpu-memory must be from 0 to 1e+09, got -1"),
        (["--sweep", "gpus=1:2:1"], "--sweep must be NAME=FROM:TO:STEP"),
        (["--sweep", "interference=0.5:1:0.5"], "interference ratio must be a number from 1 to 1e+06, got 0.5"),
        (["--plot", "nowhere/plot.png"], "--plot must be a file in an existing folder, got nowhere/plot.png"),
        (["--plot", "plot.txt"], "--plot must end in .png, .svg or .pdf, got plot.txt"),
        (["--timeline", "t.json"], "--timeline needs a single simulation"),
        (["--trace-format", "adaptdl"], "needs --runtimes FILE"),
    ],
)
def test_bad_arguments_are_named_before_anything_runs(capsys, trace_file, arguments, message):
    defaults = [] if "--gpus" in arguments else ["--gpus", "8"]
    code, out, err = run(capsys, "--trace", trace_file, *defaults, *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--trace", "adaptdl:241/6"],
            "--trace must be a file, adaptdl:JOBS or adaptdl:JOBS/N with JOBS one of 80, 160",
        ),
        (["--trace", "adaptdl:240/9"], "and N from 1 to 8, got adaptdl:240/9"),
        (["--trace", "adaptdl:240/"], "got adaptdl:240/"),
        (["--trace", "adaptdl:240/6", "--gpus", "16"], "adaptdl:240/6:25: column 'num_replicas' must be at most 16"),
        (["--trace", "adaptdl:240/6", "--load", "1"], "--load needs --generate JOBS, got --load 1.0 without it"),
        (
            ["--trace", "adaptdl:240/6", "--sweep", "load=1:2:1"],
            "--sweep needs --generate JOBS, got --sweep load=1:2:1",
        ),
        (
            ["--trace", "adaptdl:240/6", "--trace-format", "philly"],
            "--trace-format needs a --trace that is a file, got --trace-format philly without it",
        ),
        (
            ["--trace", "adaptdl:240/6", "--runtimes", "r.csv"],
            "--runtimes needs a --trace that is a file, got --runtimes",
        ),
        (["--trace", "t.csv", "--runtimes", "r.csv"], "--runtimes needs --trace-format adaptdl, got --runtimes r.csv"),
        (["--generate", "9", "--trace-format", "csv"], "--trace-format needs a --trace that is a file, got"),
        (["--generate", "9", "--runtimes", "r.csv"], "--runtimes needs a --trace that is a file, got --runtimes r.csv"),
        (["--generate", "9", "--skip-bad-rows"], "--skip-bad-rows needs --trace, got --skip-bad-rows without it"),
        (["--generate", "9", "--gpu-memory", "16"], "--gpu-memory needs --mix adaptdl, got --gpu-memory 16.0 without"),
        (["--generate", "9", "--mix", "1:1:9:1", "--gpu-memory", "16"], "--gpu-memory needs --mix adaptdl"),
        (
            ["--generate", "9", "--interference", "p.csv"],
            "--interference needs --mix adaptdl, got --interference p.csv",
        ),
        (
            ["--generate", "9", "--deadlines", "3"],
            "--deadlines must be LOW-HIGH with 1 <= LOW <= HIGH <= 1000, got '3'",
        ),
        (["--generate", "9", "--deadlines", "3-2"], "--deadlines must be LOW-HIGH with 1 <= LOW <= HIGH"),
        (["--generate", "9", "--deadlines", "0.5-2"], "--deadlines must be LOW-HIGH with 1 <= LOW <= HIGH"),
        (["--generate", "0"], "--generate must be from 1 to 1e+06, got 0"),
        (["--generate", "9", "--load", "0"], "--load must be from 0.001 to 1000, got 0"),
        (["--generate", "9", "--load", "nan"], "--load must be from 0.001 to 1000, got nan"),
        (["--generate", "9", "--sweep", "load=0:1:1"], "--load must be from 0.001 to 1000, got 0"),
        (["--generate", "9", "--load", "1", "--jobs-per-hour", "1"], "exclude each other"),
        (["--generate", "9", "--jobs-per-hour", "-1"], "--jobs-per-hour must be from 0.001 to 1e+09, got -1"),
        (["--generate", "9", "--mix", "1:1:10"], "GPUS:SHARE:MEDIAN_S:SIGMA,... got '1:1:10'"),
        (["--generate", "9", "--mix="], "--mix must be philly, adaptdl or GPUS:SHARE:MEDIAN_S:SIGMA,... got ''"),
        (["--generate", "9", "--mix", "1:1:10:1,2:1:nan:1"], "MEDIAN_S of --mix must be above 0, at most 1209600"),
        (["--generate", "9", "--mix", "1:1:2000000:1"], "1209600 (14 days), got '1:1:2000000:1'"),
        (["--generate", "9", "--mix", "0:1:1:1"], "GPUS of --mix must be from 1 to 1e+09, got '0:1:1:1'"),
        (["--generate", "9", "--mix", "1:0:1:1"], "SHARE of --mix must be above 0, at most 1e+09, got '1:0:1:1'"),
        (["--generate", "9", "--mix", "1:1:1:11"], "SIGMA of --mix must be from 0 to 10, got '1:1:1:11'"),
        (["--generate", "9", "--mix", ",".join(["1:1:10:1"] * 1001)], "--mix must have at most 1000 sizes, got 1001"),
        (["--generate", "9", "--mix", "256:1:10:1,128:1:10:1"], "at most 64 GPUs, the cluster's, got 128 or more"),
        (
            ["--generate", "9", "--mix", "adaptdl", "--gpu-memory", "0.1"],
            "--gpu-memory must be enough for one of AdaptDL's jobs, 3 GiB, got 0.1 GiB",
        ),
    ],
)
def test_a_wrong_trace_or_generator_is_named_in_one_line(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


DEADLINES = ("deadlines", "accepted", "rejected", "met", "missed", "avg_tardiness_s", "max_tardiness_s")


def test_a_deadline_is_a_column_of_the_trace(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    header = "job,arrival_s,gpus,duration_s,deadline_s\n"
    path.write_text(f"{header}a,0,1,100,110\nb,10,1,50,55\nc,20,1,5,\nd,30,1,200,300\n")
    one = ["--trace", path, "--gpus", "1", "--gpus-per-node", "1", "--restart-cost", "0"]
    code, out, _ = run(capsys, *one, "--policy", "edf,srtf,fifo", "--json")
    assert code == 0
    edf, srtf, fifo = json.loads(out)["policies"]
    # b would make a late; d runs from 100 to 300, and c, which has no deadline, after it.
    assert [edf[name] for name in DEADLINES] == [3, 2, 1, 2, 0, 0, 0]
    assert edf["avg_jct_s"] == pytest.approx((100 + 285 + 270) / 3)
    # a ends at 155, 45 s late; b at 65, in time; d at 355, 25 s late
    assert [srtf[name] for name in DEADLINES] == [3, 3, 0, 1, 2, pytest.approx(70 / 3), 45]
    # b ends at 150, 85 s late; d at 355
    assert [fifo[name] for name in DEADLINES] == [3, 3, 0, 1, 2, pytest.approx(110 / 3), 85]
    code, out, _ = run(capsys, *one, "--policy", "edf")
    assert out.splitlines()[1].split()[-8:] == ["deadlines", "rejected", "missed", "met", "avg", "late", "max", "late"]
    assert out.splitlines()[2].split()[-6:] == ["3", "1", "0", "2", "0", "0"]
    for bad in ("0", "-1", "soon"):
        path.write_text(f"{header}a,0,1,100,{bad}\n")
        code, out, err = run(capsys, *one)
        assert f"{path}:2: column 'deadline_s' must be a number > 0, got '{bad}'" in err
    path.write_text(f"{header}a,0,1,100,110\n")
    code, out, err = run(capsys, *one, "--deadlines", "2-3")
    assert f"--deadlines needs a trace without deadlines, got {path}, which has the column deadline_s" in err


def test_without_deadlines_nothing_is_said_about_them(capsys, trace_file):
    _, out, _ = run(capsys, "--trace", trace_file, "--gpus", "8", "--policy", "edf", "--json")
    assert not set(DEADLINES) & set(json.loads(out)["policies"][0])
    _, out, _ = run(capsys, "--trace", trace_file, "--gpus", "8", "--policy", "edf,pair-edf")
    assert "deadlines" not in out


def test_equal_seeds_give_equal_deadlines_and_another_seed_others(capsys):
    def deadlines(seed: int) -> list[float]:
        trace = with_deadlines(random_trace(50), (1.2, 3.0), seed)
        assert ((trace.deadline >= 1.2 * trace.duration) & (trace.deadline <= 3 * trace.duration)).all()
        return list(trace.deadline)

    assert deadlines(1) == deadlines(1)
    assert deadlines(1) != deadlines(2)


def some_deadlines(seed: int) -> Trace:
    """2 to 8 jobs on up to 8 GPUs; one in four has no deadline."""
    random = np.random.default_rng(seed)
    trace = with_deadlines(random_trace(int(random.integers(2, 9)), seed), (1.05, 3.0), seed)
    return replace(trace, deadline=np.where(random.random(len(trace.names)) < 0.25, np.inf, trace.deadline))


@pytest.mark.parametrize("policy", _core.cluster_policy_names())
def test_rejected_met_and_missed_are_all_jobs_with_deadlines(policy):
    keeps = policy in ("edf", "pair-edf")
    rejected = 0
    for seed in range(300):
        trace = some_deadlines(seed)
        if not np.isfinite(trace.deadline).any():
            continue
        outcome = simulate(case(policy, trace, 1 + seed % 9 / 10, restart_cost=seed % 3 * 5.0))
        figures = outcome.figures
        assert figures["deadlines"] == np.isfinite(trace.deadline).sum()
        assert figures["rejected"] + figures["met"] + figures["missed"] == figures["deadlines"]
        assert figures["accepted"] + figures["rejected"] == figures["deadlines"]
        assert figures["max_tardiness_s"] >= figures["avg_tardiness_s"] >= 0
        assert (figures["max_tardiness_s"] > 0) == (figures["missed"] > 0)
        assert np.isfinite(outcome.jct[np.isinf(trace.deadline)]).all(), "only a job with a deadline is rejected"
        if keeps:
            assert figures["missed"] == 0, f"seed {seed}"
        else:
            assert figures["rejected"] == 0
        rejected += figures["rejected"]
    assert (rejected > 20) == keeps


def test_a_trace_of_which_every_job_is_rejected_has_figures(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job,arrival_s,gpus,duration_s,deadline_s\na,0,1,100,90\nb,0,1,100,90\n")
    outputs = ["--report", tmp_path / "a.html", "--plot", tmp_path / "a.png"]
    code, out, _ = run(capsys, "--trace", path, "--policy", "edf,fifo", "--json", *outputs)
    assert code == 0
    edf = json.loads(out)["policies"][0]
    assert (edf["jobs"], edf["rejected"], edf["avg_jct_s"]) == (2, 2, 0)
    shown = pages.Page((tmp_path / "a.html").read_text())
    assert shown.tables["deadlines"][1] == ["edf", "2", "2", "0", "0", "0 s", "0 s"]
    assert "Most deadlines, 0 of 2, are met with edf." in shown.text


def test_estimates_that_are_wrong_make_accepted_jobs_late():
    trace = with_deadlines(random_trace(200, gap_s=20), (1.2, 3.0), 0)
    figures = simulate(case("pair-edf", trace, estimate_error=0.5)).figures
    assert figures["missed"] > 0
    assert figures["rejected"] + figures["met"] + figures["missed"] == 200


def test_pair_edf_loses_fewer_jobs_than_edf_and_policies_without_deadlines(capsys):
    """On the eight traces of 240 jobs, with deadlines of 1.2 to 3 times the time alone: jobs rejected or late. At a
    ratio of 2, where sharing gains nothing, it loses more than pair-srsf (benchmarks/results/README.md)."""
    for ratio in ("1.1", "1.25", "1.5"):
        policies = "edf,pair-edf,sjf-bsbf,pair-srsf"
        _, out, _ = run(
            capsys, "--trace", "adaptdl:240", "--deadlines", "1.2-3", "--policy", policies, "--interference", ratio,
            "--json",
        )  # fmt: skip
        lost = {row["policy"]: row["rejected"] + row["missed"] for row in json.loads(out)["policies"]}
        assert lost["pair-edf"] < min(lost["edf"], lost["sjf-bsbf"], lost["pair-srsf"]), ratio


CHAIN = "job,arrival_s,gpus,duration_s,after\n"


def test_a_job_starts_when_those_that_it_waits_for_have_ended(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    # `test` waits for a job that comes later in the file; `tune` for a name with a space; `free` for none.
    rows = "train,0,1,100,\ntest,0,1,50,train clean\nfree,0,1,10,\nclean,5,1,200,\n"
    rows += "my job,6,1,1,\ntune,7,1,5,my job;train;\n"
    for ends in ("\n", "\r\n"):
        path.write_bytes((CHAIN + rows).replace("\n", ends).encode())
        code, out, _ = run(capsys, "--trace", path, "--policy", "fifo", "--json")
        assert code == 0
        (row,) = json.loads(out)["policies"]
        assert row["avg_jct_s"] == pytest.approx((100 + 255 + 10 + 200 + 1 + 98) / 6)
        assert row["avg_blocked_s"] == pytest.approx((205 + 93) / 6)
        assert (row["avg_queue_s"], row["avg_wait_s"]) == (0, row["avg_blocked_s"])
        assert row["unreached"] == 0
    code, out, _ = run(capsys, "--trace", path, "--policy", "fifo")
    assert out.splitlines()[1].split()[-2:] == ["avg", "blocked"]
    assert out.splitlines()[2].split()[-1] == "50"


def test_waiting_counts_from_the_time_a_job_is_eligible():
    """On one GPU, b waits 100 s for a and then 40 s for c."""
    trace = replace(
        random_trace(3), names=["a", "c", "b"], arrival=np.array([0.0, 1.0, 2.0]), gpus=np.full(3, 8, np.int32),
        duration=np.array([100.0, 40.0, 10.0]), after=[(), (), ("a",)],
    )  # fmt: skip
    figures = simulate(case("fifo", trace)).figures
    assert figures["avg_blocked_s"] == pytest.approx(98 / 3)
    assert figures["avg_queue_s"] == pytest.approx((99 + 40) / 3)
    assert figures["avg_wait_s"] == pytest.approx((98 + 99 + 40) / 3)
    assert figures["avg_jct_s"] == pytest.approx((100 + 139 + 148) / 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,0,1,1,\nb,0,1,1,A\n", "{path}:3: job 'b' waits for 'A', which is not in the trace"),
        ("a,0,1,1,c b\nb,0,1,1,\n", "{path}:2: job 'a' waits for 'c', which is not in the trace"),
        ("a,0,1,1,a\n", "{path}: jobs must not wait for each other, got 'a' after 'a'"),
        ("z,0,1,1,c\na,0,1,1,c\nb,0,1,1,a\nc,0,1,1,b;z2\nz2,0,1,1,\n",
         "{path}: jobs must not wait for each other, got 'c' after 'b' after 'a' after 'c'"),
    ],
)  # fmt: skip
def test_unknown_predecessors_and_cycles_are_refused(capsys, tmp_path, rows, message):
    path = tmp_path / "trace.csv"
    path.write_text(CHAIN + rows)
    for more in ((), ("--skip-bad-rows",)):
        code, out, err = run(capsys, "--trace", path, *more)
        assert (code, out, err) == (2, "", f"torchshare: error: {message.format(path=path)}\n")


def test_a_long_cycle_is_shown_in_part(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(CHAIN + "".join(f"{job},0,1,1,{(job + 1) % 1000}\n" for job in range(1000)))
    code, _, err = run(capsys, "--trace", path)
    assert (code, len(err.splitlines())) == (2, 1)
    assert err.endswith("'0' after '1' after '2' after '3' after '4' after '5' after '6' after '7' after '8' after '9' "
                        "after ... after '0'\n")  # fmt: skip


def test_a_job_behind_a_rejected_one_is_counted(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "job,arrival_s,gpus,duration_s,deadline_s,after\na,0,1,100,50,\nb,0,1,1,,a\nc,0,1,1,9,b\nd,0,1,1,,\n"
    )
    _, out, _ = run(capsys, "--trace", path, "--policy", "edf", "--json")
    (row,) = json.loads(out)["policies"]
    assert (row["jobs"], row["rejected"], row["unreached"], row["avg_jct_s"]) == (4, 2, 1, 1)


def test_ranking_by_the_critical_path_changes_pair_srsf_alone(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(CHAIN + "a,0,8,10,\nb,0,8,100,\nc,0,8,500,a\n")
    arguments = ("--trace", path, "--gpus", 8, "--policy", "srsf,pair-srsf", "--interference", 2, "--json")
    without, ranked = (json.loads(run(capsys, *arguments, *more)[1])["policies"] for more in ((), ("--rank-by-path",)))
    assert [row["avg_jct_s"] for row in without] == [pytest.approx((10 + 110 + 610) / 3)] * 2
    assert ranked[0] == without[0]
    assert ranked[1]["avg_jct_s"] == pytest.approx((110 + 100 + 610) / 3)
    code, _, err = run(capsys, "--trace", "adaptdl:80/1", "--rank-by-path")
    assert code == 2
    assert "--rank-by-path needs a --trace with the column after, got --rank-by-path without it" in err


@pytest.mark.parametrize("policy", ["edf", "pair-edf"])
def test_no_accepted_job_is_late_where_jobs_wait_for_others(policy):
    rejected = unreached = 0
    for seed in range(300):
        trace = some_deadlines(seed)
        random = np.random.default_rng(seed)
        names = trace.names
        after = [(names[random.integers(job)],) if job and random.random() < 0.4 else () for job in range(len(names))]
        waiting = case(policy, replace(trace, after=after), 1 + seed % 9 / 10, restart_cost=seed % 3 * 5.0)
        figures = simulate(waiting).figures
        assert figures.get("missed", 0) == 0, f"seed {seed}"
        rejected += figures.get("rejected", 0)
        unreached += figures["unreached"]
    assert rejected > 100 and unreached > 0


def test_without_dependencies_nothing_is_said_about_them(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(CHAIN + "a,0,1,100,\nb,0,1,100, \n")
    _, out, _ = run(capsys, "--trace", path, "--policy", "fifo", "--json")
    assert not {"avg_blocked_s", "avg_wait_s", "unreached"} & set(json.loads(out)["policies"][0])


def test_a_gpu_that_leaves_takes_its_job_back_to_the_last_checkpoint(capsys, tmp_path):
    trace, failures = tmp_path / "trace.csv", tmp_path / "failures.csv"
    trace.write_text("job,arrival_s,gpus,duration_s\na,0,4,100\nb,0,4,100\n")
    # a is on the first node, moves to the third at 35, and to what is left of both at 48; GPU 3 is away twice at once.
    failures.write_text("leaves_s,returns_s,gpu,node\r\n48,,9,\r\n35,45,,0\r\n38,60,3,\r\n")
    arguments = ("--trace", trace, "--gpus", 12, "--policy", "fifo", "--failures", failures, "--json")
    (row,) = json.loads(run(capsys, *arguments, "--checkpoint-every", "30s")[1])["policies"]
    assert row["makespan_s"] == 48 + 10 + 70
    assert (row["interruptions"], row["preemptions"]) == (2, 0)
    assert row["lost_gpu_s"] == pytest.approx(4 * (5 + 3))
    assert row["gpus_away"] == pytest.approx((4 * 10 + 15 + 128 - 48) / (12 * 128))
    (row,) = json.loads(run(capsys, *arguments)[1])["policies"]
    assert (row["makespan_s"], row["lost_gpu_s"]) == (48 + 10 + 100, pytest.approx(4 * (35 + 3)))


def test_failures_are_drawn_by_their_seed_and_alike_for_all_policies(capsys):
    arguments = ["--generate", 100, "--gpus", 16, "--json", "--checkpoint-every", "5m"]
    arguments += ["--mix", "1:1:600:1,4:1:600:1", "--failures", "mtbf=10m,repair=5m,nodes=0.5"]
    first, again, other = (run(capsys, *arguments, "--seed", seed)[1] for seed in (1, 1, 2))
    assert first == again != other
    for row in json.loads(first)["policies"]:
        assert row["interruptions"] > 0 and row["lost_gpu_s"] > 0
        assert row["gpus_away"] == pytest.approx(5 / 10 * (0.5 + 0.5 * 4) / 16, rel=0.5)


@pytest.mark.parametrize("policy", _core.cluster_policy_names())
def test_with_dependencies_and_failures_every_job_ends_once(policy):
    """Beside a simple model: at any time at most two jobs are on a GPU, and none on one that is away."""
    interrupted = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        trace = random_trace(30, seed)
        order = random.permutation(30)
        after = {
            int(order[place]): int(order[random.integers(place)]) for place in range(1, 30) if random.random() < 0.5
        }
        names = [(trace.names[after[job]],) if job in after else () for job in range(30)]
        outages = [(int(gpu), 1, float(begin), float(begin) + 300) for gpu, begin in
                   zip(random.integers(8, size=20), random.uniform(0, 5000, 20), strict=True)]  # fmt: skip
        failing = case(policy, replace(trace, after=names), failures=_core.Failures(outages), checkpoint_every=60.0)
        outcome = simulate(replace(failing, record=True))
        assert np.isfinite(outcome.jct).all()
        ended, spans = outcome.jct + trace.arrival, outcome.spans
        for job in range(30):
            mine = [(begin, end) for number, begin, end, _ in spans if number == job]
            assert max(end for _, end in mine) == pytest.approx(ended[job])
            assert min(begin for begin, _ in mine) >= (ended[after[job]] if job in after else trace.arrival[job]) - 1e-6
        for gpu, _, begin, end in outages:
            assert not [span for span in spans if gpu in span[3] and span[1] < end and begin < span[2]]
        interrupted += outcome.figures["interruptions"]
    assert interrupted > 40


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ("mtbf=1h", "--failures must be mtbf=TIME,repair=TIME[,nodes=SHARE] or a CSV file, got mtbf=1h"),
        ("mtbf=1h,repair=1m,gpus=2", "--failures must be mtbf=TIME"),
        ("mtbf=1h,repair=1m,mtbf=2h", "--failures must be mtbf=TIME"),
        ("mtbf=soon,repair=1m", "mtbf of --failures must be a time such as"),
        ("mtbf=0.5s,repair=1m", "mtbf of --failures must be at least 1 s, got 0.5s"),
        ("mtbf=1h,repair=1m,nodes=2", "nodes of --failures must be from 0 to 1, got 2"),
        ("none.csv", "none.csv: No such file or directory"),
    ],
)
def test_failures_that_cannot_be_are_refused(capsys, trace_file, failures, message):
    code, out, err = run(capsys, "--trace", trace_file, "--failures", failures)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,2,3,1", "one of the columns 'gpu' and 'node' must have a number, got gpu '3' and node '1'"),
        ("1,2,,", "one of the columns 'gpu' and 'node' must have a number, got gpu '' and node ''"),
        ("1,2,8,", "column 'gpu' must be from 0 to 7, got '8'"),
        ("1,2,,2", "column 'node' must be from 0 to 1, got '2'"),
        ("5,5,1,", "column 'returns_s' must be a number > 5, got '5'"),
        ("-1,5,1,", "column 'leaves_s' must be a number >= 0, got '-1'"),
    ],
)
def test_bad_rows_of_failures_are_refused_with_their_line(capsys, trace_file, tmp_path, row, message):
    path = tmp_path / "failures.csv"
    path.write_text(f"leaves_s,returns_s,gpu,node\n1,2,0,\n{row}\n")
    code, _, err = run(capsys, "--trace", trace_file, "--gpus", 8, "--failures", path)
    assert (code, err) == (2, f"torchshare: error: {path}:3: {message}\n")


def test_a_job_that_failures_keep_from_ending_is_named(capsys, trace_file, tmp_path):
    path = tmp_path / "failures.csv"
    path.write_text("leaves_s,returns_s,gpu,node\n0,,7,\n")
    code, out, err = run(capsys, "--trace", trace_file, "--gpus", 8, "--policy", "fifo", "--failures", path)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "job 'job-" in err and "' waits for ever: it needs 8 GPUs, and 1 of 8 have left and do not return" in err
    code, _, err = run(capsys, "--trace", trace_file, "--gpus", 8, "--failures", "mtbf=2s,repair=1s")
    assert code == 2 and "was interrupted 1000 times since its last checkpoint (--failures)" in err
    code, _, err = run(capsys, "--trace", trace_file, "--checkpoint-every", "5m")
    assert "--checkpoint-every needs --failures, got --checkpoint-every 5m without it" in err


def test_users_have_their_gpu_seconds_and_those_with_least_come_first(capsys, tmp_path):
    """Jobs without a user are of one without a name."""
    path = tmp_path / "trace.csv"
    rows = "a,0,8,100, Ann\nb,0,8,100,Ann\nc,50,8,100,[b]ann\nd,60,4,10,\n"
    path.write_text("job,arrival_s,gpus,duration_s,user\n" + rows)
    arguments = ("--trace", path, "--gpus", 8, "--policy", "fifo")
    without, fair = (
        json.loads(run(capsys, *arguments, "--json", *more)[1])["policies"][0] for more in ((), ("--fair-users", "12h"))
    )
    assert without["user_gpu_s"] == fair["user_gpu_s"] == {"": 40, "Ann": 1600, "[b]ann": 800}
    assert without["avg_jct_s"] == pytest.approx((100 + 200 + 250 + 250) / 4)
    assert fair["avg_jct_s"] == pytest.approx((100 + 310 + 160 + 50) / 4)
    _, out, _ = run(capsys, *arguments)
    table = [line.split() for line in out.splitlines()[-4:]]
    assert table == [["GPU-hours", "fifo"], ["Ann", "0.4"], ["[b]ann", "0.2"], ["(none)", "0.0"]]


def test_the_table_of_users_has_those_with_most():
    trace = replace(random_trace(60), users=[f"u{job}" for job in range(60)])
    (row,) = summarize([simulate(case("fifo", trace))])
    shown = tables.users([row])
    first, *_, last = shown.columns[0].cells
    assert (shown.row_count, last) == (21, "40 others")
    assert row["user_gpu_s"][first] == max(row["user_gpu_s"].values())
    hours = sum(float(cell.replace(",", "")) for cell in shown.columns[1].cells)
    assert hours == pytest.approx(sum(row["user_gpu_s"].values()) / 3600, abs=21 * 0.05)


def test_names_that_differ_in_case_are_two_users(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"job,arrival_s,gpus,duration_s,user\r\na,0,1,100,Ann\r\nb,0,2,100,ann\r\n")
    (row,) = json.loads(run(capsys, "--trace", path, "--policy", "fifo", "--json")[1])["policies"]
    assert row["user_gpu_s"] == {"Ann": 100, "ann": 200}


def test_gpu_seconds_of_users_are_those_of_all_jobs():
    random = np.random.default_rng(0)
    users = [f"user {number}" for number in random.integers(5, size=100)]
    trace = replace(random_trace(100), users=users)
    for policy in _core.cluster_policy_names():
        outcome = simulate(case(policy, trace, fair_half_life=3600.0))
        assert np.isfinite(outcome.jct).all()
        alone = (trace.duration * trace.gpus).sum()
        used = sum(outcome.user_gpu_s.values())
        assert used == pytest.approx(alone) if policy in ("fifo", "fifo-backfill", "sjf") else used >= alone - 1e-6


def test_users_are_fair_only_with_their_column_and_a_time(capsys, trace_file):
    code, _, err = run(capsys, "--trace", trace_file, "--fair-users", "12h")
    assert code == 2
    assert "--fair-users needs a --trace with the column user, got --fair-users 12h without it" in err
    code, _, err = run(capsys, "--trace", trace_file, "--fair-users", "often")
    assert code == 2
    assert "--fair-users must be a time such as" in err
    _, out, _ = run(capsys, "--trace", trace_file, "--policy", "fifo", "--json")
    assert "user_gpu_s" not in json.loads(out)["policies"][0]


def test_more_jobs_share_in_sub_batches_than_whole(capsys):
    arguments = ("--trace", "adaptdl:160/1", "--policy", "sjf-ffs,sjf-bsbf,pair-srsf", "--json", "--gpu-memory", 16)
    whole, split, unlimited = (
        json.loads(run(capsys, *arguments, *more)[1])["policies"]
        for more in (("--sub-batches", 1), (), ("--gpu-memory", 0))
    )
    for each, other, free in zip(whole, split, unlimited, strict=True):
        assert each["shared_fraction"] < other["shared_fraction"] - 0.03, each["policy"]
        assert free["avg_jct_s"] != other["avg_jct_s"]


def test_generated_jobs_are_equal_for_equal_seeds_and_sweep_the_load(capsys):
    arguments = ("--generate", 100, "--mix", "1:3:100:1,8:1:50:0.5", "--policy", "fifo,sjf", "--json")
    first, again, other = (run(capsys, *arguments, "--seed", seed)[1] for seed in (1, 1, 2))
    assert first == again != other
    code, out, _ = run(capsys, *arguments, "--sweep", "load=0.5:2:0.5")
    rows = json.loads(out)["policies"]
    assert code == 0
    assert [(row["load"], row["policy"]) for row in rows[:3]] == [(0.5, "fifo"), (0.5, "sjf"), (1.0, "fifo")]
    waits = [row["avg_queue_s"] for row in rows if row["policy"] == "fifo"]
    assert waits == sorted(waits) and waits[0] < waits[-1]


def test_generated_jobs_that_do_not_fit_are_left_out_and_told(capsys):
    arguments = ("--policy", "fifo", "--generate", 50, "--gpus", 4)
    code, _, err = run(capsys, *arguments, "--mix", "1:3:100:1,8:1:50:0.5")
    assert (code, err) == (0, "torchshare: left out 25.00% of the mix, which do not fit the cluster\n")
    assert run(capsys, *arguments, "--mix", "1:3:100:1,4:1:50:0.5")[2] == ""
    assert "left out" in run(capsys, *arguments, "--mix", "adaptdl")[2]


def test_jobs_of_a_packaged_trace_that_do_not_fit_can_be_skipped(capsys):
    code, out, err = run(
        capsys, "--trace", "adaptdl:80/1", "--gpus", 8, "--policy", "fifo", "--json", "--skip-bad-rows"
    )
    assert code == 0
    (row,) = json.loads(out)["policies"]
    assert 0 < row["jobs"] < 80
    assert f"skipped {80 - row['jobs']} bad rows, the first: adaptdl:80/1:" in err


def test_a_sweep_of_the_load_draws_its_jobs_once(capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "torchshare.cli.simulate.generate", lambda *a, **k: drawn.append(generate(*a, **k)) or drawn[-1]
    )
    code, out, _ = run(capsys, "--generate", 50, "--sweep", "load=1:3:1", "--policy", "fifo", "--json")
    assert (code, len(drawn)) == (0, 1)
    assert [row["load"] for row in json.loads(out)["policies"]] == [1, 2, 3]
    other = generate(50, Limits(64), mix=parse_mix("philly"), load=3)
    assert at_load(drawn[0], 3).arrival == pytest.approx(other.arrival)


def test_generated_jobs_have_other_random_numbers_than_the_estimates():
    trace = generate(1000, Limits(2), mix=parse_mix("1:1:9:1,2:1:9:1"), seed=3)
    of_estimates = np.random.default_rng(3)  # as in `make_cluster`
    assert not np.array_equal(1 + of_estimates.choice(2, 1000, p=[0.5, 0.5]), trace.gpus)


def test_ctrl_c_ends_a_long_simulation(tmp_path):
    """A hundred thousand jobs and a strict queue: long enough to be interrupted."""
    trace = random_trace(100_000)
    path = tmp_path / "long.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["job", "arrival_s", "gpus", "duration_s"])
        rows.writerows(zip(trace.names, trace.arrival, trace.gpus, trace.duration, strict=True))
    code = (
        "import sys, torchshare.simulation.simulate as s, torchshare.__main__ as m\n"
        "real = s.simulate_all\n"
        "import torchshare.cli.simulate as c\n"
        "c.simulate_all = lambda *a: (print('go', file=sys.stderr, flush=True), real(*a))[1]\n"
        "sys.exit(m.main(sys.argv[1:]))"
    )
    options = ["--trace", str(path), "--gpus", "8", "--sweep", "restart-cost=0:100:1"]
    process = subprocess.Popen(  # without torch, as users run it
        [sys.executable, "-c", code, "simulate", *options],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "torchshare: interrupted\n")


def test_ctrl_c_while_the_simulations_are_being_queued_stops_them(monkeypatch):
    """Thousands of simulations take a while to queue: Ctrl-C stopped none of them then."""
    cores = os.cpu_count() or 1
    cases = [Case(random_trace(2000), "fifo", uniform(1.1), Setting(gpus=8), "1.1")] * (4 * cores)
    submit, shutdown = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown
    stopping = threading.Event()
    begun: set[int] = set()

    def interrupted(pool, run, index):
        if index == len(cases) - 1:
            raise KeyboardInterrupt
        return submit(pool, run, index)

    def stopped(pool, **options):
        stopping.set()
        shutdown(pool, **options)

    def progress(index, ended):
        begun.add(index)
        assert stopping.wait(300)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", stopped)
    with pytest.raises(KeyboardInterrupt):
        simulate_all(cases, progress)
    assert len(begun) <= cores


def test_ctrl_c_does_not_land_inside_the_pool(monkeypatch):
    """In `submit`, it may come between the taking of a lock and the block that releases it: then threads of the pool
    waited for it for ever, and the end for them."""
    cases = [Case(random_trace(20), "fifo", uniform(1.1), Setting(gpus=8), "1.1")] * 3
    submit = ThreadPoolExecutor.submit
    submitted = []

    def interrupted(pool, run, index):
        signal.raise_signal(signal.SIGINT)
        submitted.append(submit(pool, run, index))
        return submitted[-1]

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, the shell has it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate_all(cases)
    finally:
        signal.signal(signal.SIGINT, former)
    assert len(submitted) == len(cases)


def test_pair_srsf_beats_tiresias_and_sjf_bsbf_on_the_adaptdl_traces(capsys):
    """The claim of the README on 240 jobs, for small, medium and large ratios."""
    policies = "tiresias,sjf-bsbf,pair-srsf"
    sweep = ("--sweep", "interference=1.0:2.0:0.5")
    code, out, _ = run(capsys, "--trace", "adaptdl:240", "--policy", policies, *sweep, "--json")
    assert code == 0
    rows = {(row["policy"], row["interference"]): row for row in json.loads(out)["policies"]}
    for ratio in ("1", "1.5", "2"):
        ours, tiresias, bsbf = (rows[policy, ratio] for policy in ("pair-srsf", "tiresias", "sjf-bsbf"))
        assert ours["avg_jct_s"] <= 0.73 * tiresias["avg_jct_s"]
        assert ours["avg_jct_s"] <= 0.80 * bsbf["avg_jct_s"]
        assert ours["p99_jct_s"] <= tiresias["p99_jct_s"]


def test_a_report_compares_the_policies(trace_file: Path, tmp_path: Path) -> None:
    arguments = ["simulate", "--trace", str(trace_file), "--gpus", "8", "--policy", "fifo,tiresias,pair-srsf"]
    done = torchshare_command(*arguments, "--report", "out.html", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["policies"]
    shown = pages.Page((tmp_path / "out.html").read_text())
    assert len((tmp_path / "out.html").read_text()) < 300_000
    header, *table = shown.tables["policies"]
    baseline = rows[1]["avg_jct_s"]
    assert [cells[:3] for cells in table] == [
        [row["policy"], numbers.seconds(row["avg_jct_s"]), numbers.percent(row["avg_jct_s"] / baseline - 1)]
        for row in rows
    ]
    assert header[2] == "vs tiresias"
    gain = min(row["avg_jct_s"] for row in rows) / baseline
    assert f": {gain:.2f} times the average completion time of tiresias." in shown.text
    assert "average after" in shown.text
    assert any(name == "svg" for name, _ in shown.tags)
    if pages.browser() is not None:
        assert pages.rendered(tmp_path / "out.html", width=1280)[1] == []
    refused = torchshare_command(*arguments, "--report", str(trace_file), folder=tmp_path)
    assert refused.returncode == 2
    assert "--report must not be the input" in refused.stderr


def test_a_report_of_a_queue(tmp_path: Path) -> None:
    jobs = [
        {
            "name": name,
            "state": state,
            "priority": "secondary",
            "device": "n:0",
            "beside": None,
            "steps": 1200,
            "elapsed_s": 9.0,
            "ran_s": 8.0,
            "slowdown": slowdown,
            "predicted_slowdown": 1.1,
            "deadline": "met" if error else None,
            "error": error,
        }
        for name, state, slowdown, error in (("<b>a</b>", "running", 1.25, ""), ("b", "failed", None, "its host died"))
    ]
    hosts = [{"node": "n", "index": 0, "up": True, "jobs": ["<b>a</b>"]}]
    path = tmp_path / "queue.html"
    write_queue(path, jobs, hosts, [("<b>a</b>", 0, 100.0, 108.0), ("b", 0, 101.0, 103.0)])
    shown = pages.Page(path.read_text())
    assert "1 running, 1 failed" in shown.text
    assert "takes 1.25 times as long as alone" in shown.text
    assert "Deadlines: 1 met, 0 missed, 0 open." in shown.text
    first, second = shown.tables["jobs"][1:]
    assert first[:3] == ["<b>a</b>", "running", "secondary"]
    assert first[5:10] == ["1,200", "9 s", "8 s", "1.25", "1.1"]
    assert second[8:] == ["-", "1.1", "its host died"]
    assert any(name == "svg" for name, _ in shown.tags)
    many = [{**jobs[0], "name": f"{number}" + "<" * 150, "error": "<" * 5000} for number in range(2000)]
    write_queue(path, many, hosts, [(job["name"], number % 8, number, number + 5) for number, job in enumerate(many)])
    assert path.stat().st_size < 300_000
    write_queue(path, [], hosts, [])
    assert "No jobs." in pages.Page(path.read_text()).text
