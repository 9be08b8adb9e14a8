"""The benchmarks' measuring code, on inputs with known results."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchshare.simulation.ratios import uniform
from torchshare.simulation.simulate import Case, Setting, simulate

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "simulator")]

import fikit  # noqa: E402
import inference  # noqa: E402
import instructions  # noqa: E402
import picture  # noqa: E402
import versions  # noqa: E402
from gpu import models  # noqa: E402

import auto  # noqa: E402
import bound  # noqa: E402
import cluster  # noqa: E402
import gaps  # noqa: E402
import hook  # noqa: E402
import inversion  # noqa: E402
import jobs  # noqa: E402
import live  # noqa: E402
import optimum  # noqa: E402
import pairs  # noqa: E402
import record  # noqa: E402
import replay  # noqa: E402
import speed  # noqa: E402
import study  # noqa: E402
import table  # noqa: E402


def test_spread_is_median_and_extremes():
    assert record.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert record.shown(record.spread([1.0, 2.0])) == "1.50 (1.00-2.00)"


def test_a_summary_normalises_within_each_repetition():
    repetitions = [
        {"alone": {"conv": {"rate": 1, "cpu": 1}}, "modes": {"two processes": [0.5, 0.5], "torchshare": [1.0, 0.6]}},
        {"alone": {"conv": {"rate": 1, "cpu": 1}}, "modes": {"two processes": [0.8, 0.8], "torchshare": [1.0, 0.6]}},
    ]
    figures = pairs.summary("conv+conv", repetitions)["torchshare"]
    assert figures["aggregate"] == {"median": 1.6, "min": 1.6, "max": 1.6}
    assert figures["vs_two_processes"]["min"] == pytest.approx(1.0)
    assert figures["vs_two_processes"]["max"] == pytest.approx(1.6)
    assert figures["primary_slowdown"]["median"] == figures["secondary_rate"]["median"] / 0.6 == 1.0


def test_the_secondarys_share_is_of_the_time_that_the_primary_leaves():
    alone = {"input_bound": {"rate": 1, "cpu": 0.4}, "conv": {"rate": 1, "cpu": 1.0}}
    figures = pairs.summary("input_bound+conv", [{"alone": alone, "modes": {"torchshare": [1.0, 0.54]}}])["torchshare"]
    assert figures["share_of_idle"]["median"] == pytest.approx(0.9)


def test_a_stalled_step_counts_by_its_time():
    figures = inversion.figures({"steps": [2.0] * 50 + [100.0], "close_s": 0.1})
    assert figures == {
        "p50": 2.0,
        "p99": 51.0,
        "p99.9": pytest.approx(95.1),
        "max": 100.0,
        "stalled": 0.5,
        "close_s": 0.1,
    }


@pytest.mark.parametrize(
    ("rates", "expected"), [((0.5, 0.5), 1.0), ((1.0, 1.0), 0.5), ((1.0, 0.0), 1.0), ((0.5, 0.25), 1.25)]
)
def test_makespan_is_relative_to_one_after_the_other(rates, expected):
    assert pairs.makespan(*rates) == pytest.approx(expected)


def test_the_hook_adds_what_lies_between_off_and_on():
    times = {0: (300.0, 320.0), 1: (310.0, 324.0), 2: (350.0, 364.0), 3: (410.0, 424.0)}
    runs = [(f"hot/hook:{level}", time) for level, both in times.items() for time in both]
    report = {"benchmarks": [{"run_name": name, "cpu_time": time} for name, time in runs]}
    figures = hook.added(report)["hot"]
    assert figures["added_ns"] == {"median": 7.0, "min": 4.0, "max": 10.0}
    assert figures["watching_adds_ns"]["median"] == 40.0
    assert figures["timing_adds_ns"]["median"] == 100.0


def test_a_meter_counts_the_steps_of_its_window_only():
    starved = pairs.WindowMeter(0.0, 1.0)
    assert not starved.step_done()  # long after the window
    assert starved.figures() == {"rate": 0.0, "cpu": 0.0}
    now = time.monotonic()
    early, inside = pairs.WindowMeter(now + 600, now + 601), pairs.WindowMeter(now - 1, now + 399)
    assert early.step_done() and inside.step_done() and inside.step_done()
    assert (early.figures()["rate"], inside.figures()["rate"]) == (0.0, pytest.approx(2 / 400))


def test_jobs_warm_up_as_they_are_measured(monkeypatch, capsys):
    events = []

    def window() -> str:
        events.append(capsys.readouterr().out)
        return "[0.0, 1.0]"

    monkeypatch.setattr("builtins.input", window)
    pairs.in_window_of_parent(["tiny", "conv"], pairs.WindowMeter, lambda kinds, meters: events.append(kinds))
    assert events == [["tiny", "conv"], "ready\n", ["tiny", "conv"]]


def test_a_primary_without_a_step_is_an_error(monkeypatch):
    monkeypatch.setattr(pairs, "launch", lambda *_, **__: None)
    monkeypatch.setattr(pairs, "collect", lambda *_: [{"rate": 0.0}, {"rate": 1.0}])
    with pytest.raises(RuntimeError, match=r"tiny\+conv, torchshare: tiny ended no step in 2.0 s; give a longer"):
        pairs.measure(["tiny", "conv"], "torchshare", 2.0, 2)


@pytest.mark.slow
def test_a_short_run_measures_and_its_table_prints(tmp_path: Path):
    options = [
        "--pairs",
        "tiny+tiny",
        "--modes",
        "two processes",
        "torchshare",
        "--repetitions",
        "1",
        "--window",
        "2",
    ]
    command = [sys.executable, BENCHMARKS / "pairs.py", *options, "--output", tmp_path]
    subprocess.run(command, check=True, capture_output=True, timeout=550)
    command = [sys.executable, BENCHMARKS / "table.py", "--results", tmp_path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.count("| tiny+tiny |") == 2
    assert table.table(["a"], [["1"]]) == "| a |\n| --- |\n| 1 |"


def test_a_change_is_of_the_means_and_its_spread_of_the_traces():
    assert study.change([50.0, 300.0], [100.0, 200.0]) == {"mean": 0.1667, "min": -0.5, "max": 0.5}


def test_versions_are_compared_within_each_repetition():
    former = [{"torch": "2.11.0", "figures": {"steps/s": rate}} for rate in (1.0, 2.0)]
    newer = [{"torch": "2.15.0", "figures": {"steps/s": rate}} for rate in (1.5, 2.0)]
    figures = versions.summary(former, newer)["steps/s"]
    assert figures["newer / former"] == {"median": 1.25, "min": 1.0, "max": 1.5}
    assert figures["former"]["median"] == 1.5


def test_the_pictures_are_drawn_from_the_recorded_results(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["picture.py", "--output", str(tmp_path)])
    picture.main()
    assert {each.name for each in tmp_path.iterdir()} == {"pairs.png", "gaps.png"}


def test_divisible_gpus_leave_no_gang_behind():
    trace = speed.generated(50)
    alone = float(trace.duration.mean())
    assert study.divisible_srsf(trace) >= alone * (1 - 1e-9)
    # Two gangs of 48 GPUs cannot run at once on 64: divisible, a third of the second runs beside the first.
    gangs = speed.Trace("two", ["a", "b"], np.zeros(2), np.full(2, 90.0), np.array([48, 48]), np.zeros(2), ["", ""])
    assert study.divisible_srsf(gangs) == pytest.approx((90 + 150) / 2)


def test_generated_traces_overload_the_cluster():
    trace = speed.generated(2000)
    assert (trace.gpus * trace.duration).sum() == pytest.approx(64 * 1.5 * trace.arrival[-1], rel=0.02)


def test_the_live_meter_leaves_the_set_up_out_of_the_step_time(monkeypatch):
    ends = itertools.count(0.05 + 0.01, 0.01)  # of steps of 0.01 s, after a set-up of 0.05 s
    clock = itertools.chain([0.0], itertools.islice(ends, live.WARM_UP_STEPS - 1, None))
    monkeypatch.setattr(live.time, "perf_counter", lambda: next(clock))
    meter = live.StepTimer(0.1)
    while meter.step_done():
        pass
    assert meter.step_s == pytest.approx(0.01)
    assert meter.set_up_s == pytest.approx(0.05)


def test_gavels_models_stand_for_every_application_of_adaptdl(tmp_path):
    models = sorted(set(study.GAVEL_MODELS.values()))
    pairs = [f'"{a}","{b}",1.2,1.3' for a in models for b in models]
    (tmp_path / "pairs.csv").write_text("\n".join(["job_a,job_b,xi_a,xi_b", *pairs]))
    ratios = study.read_ratios(tmp_path / "pairs.csv", None, study.GAVEL_MODELS)
    trace = study.read_load(240)[0]
    figures = study.compare([trace], ratios, [study.Setting()], ["tiresias", "sjf-bsbf"])
    assert figures["sjf-bsbf"]["vs sjf-bsbf"]["avg_jct_s"] == {"mean": 0.0, "min": 0.0, "max": 0.0}
    assert figures["tiresias"]["vs sjf-bsbf"]["avg_jct_s"]["mean"] != 0
    shared = study.simulate_all([study.Case(trace, "sjf-bsbf", ratios, study.Setting(), "v100")])[0]
    assert 0 < shared.figures["shared_fraction"] < 1


def best_average(instance: optimum.Instance) -> float:
    search = optimum.Search(instance, 1e12)
    search.run()
    assert search.is_complete
    return (search.best - float(instance.arrival.sum())) / instance.jobs


def alike(work: list[float], ratio: float, arrival: list[float] | None = None, gpus: int = 1) -> optimum.Instance:
    """Jobs of one GPU, with one ratio for all pairs."""
    jobs = len(work)
    arrivals = np.zeros(jobs) if arrival is None else np.array(arrival)
    return optimum.Instance(arrivals, np.array(work), np.ones(jobs, np.int32), np.full((jobs, jobs), ratio), gpus)


def test_a_linear_program_that_is_not_solved_is_no_bound(monkeypatch):
    solve = optimum.linprog
    monkeypatch.setattr(optimum, "linprog", lambda *words, **more: solve(*words, **{**more, "options": {"maxiter": 0}}))
    with pytest.raises(RuntimeError, match="linprog: status 1 after"):
        best_average(alike([5.0, 7.0, 9.0], 1.2, [0.0, 1.0, 2.0]))


def test_a_search_that_stops_early_bounds_the_optimum():
    """Also the searches of the last jobs, which bound the one of all jobs."""
    stopped = 0
    for seed in range(6):
        instance = optimum.generated(seed, sizes=(5, 5))
        whole = optimum.searched(instance, 1e12)
        assert whole.is_complete and whole.bound == whole.best
        for most in (8, 24, 60, 120):
            early = optimum.searched(instance, 1.05 * whole.best, most)
            stopped += not early.is_complete and early.bound < early.best * (1 - 1e-3)
            assert early.bound <= whole.best * (1 + 1e-6) and whole.best <= early.best * (1 + 1e-6)
    assert stopped > 0


@pytest.mark.parametrize("ratio", [1.0, 1.2, 1.4, 1.6])
def test_the_optimum_of_two_jobs_is_the_better_of_sharing_and_shortest_first(ratio):
    shared = (ratio * 10 + (15 + (ratio - 1) * 10)) / 2
    assert best_average(alike([10, 15], ratio)) == pytest.approx(min(shared, 10 + 15 / 2))


def test_the_optimum_without_sharing_is_shortest_remaining_time_first():
    for seed in range(5):
        random = np.random.default_rng(seed)
        arrival = np.append(0, np.sort(random.uniform(0, 30, 4)))
        instance = alike(list(random.uniform(1, 20, 5)), 9.0, list(arrival))
        assert best_average(instance) == pytest.approx(optimum.averages(instance)["srtf"])


def test_the_optimum_without_interference_is_that_of_twice_the_gpus():
    """Shortest first on four machines: the fifth job follows the shortest, and so on."""
    work = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert best_average(alike(work, 1.0, gpus=2)) == pytest.approx((1 + 2 + 3 + 4 + 6 + 8) / 6)


def test_a_gang_of_the_optimum_runs_at_its_slowest_place():
    ratios = np.array([[1.0, 1.1, 1.25], [1.0, 1.0, 9.0], [1.0, 9.0, 1.0]])
    gang = optimum.Instance(np.zeros(3), np.array([8.0, 10.0, 10.0]), np.array([2, 1, 1], np.int32), ratios, 2)
    speeds = {running: speed.tolist() for running, speed in optimum.configurations(gang)}
    assert speeds[frozenset({0, 1, 2})] == [1 / 1.25, 1, 1]
    assert speeds[frozenset({0, 1})] == [1 / 1.1, 1, 0]
    assert best_average(gang) == pytest.approx((10 + 10 + 10) / 3)


def test_no_policy_beats_the_optimum():
    for seed in (105, 116):
        run = optimum.measure(seed)
        assert run["is_complete"]
        assert 0 <= min(run["gaps"].values()) < max(run["gaps"].values())
        figures = optimum.summary([run, run])["pair-srsf"]
        assert figures["mean"] == pytest.approx(run["gaps"]["pair-srsf"])
    runs = [{"ratio": ratio, "gaps": {"fifo": 10 * ratio}} for ratio in (1.4, 1.1, 1.3, 1.2, 1.5)]
    assert [each["ratios"] for each in optimum.by_ratio(runs, ("fifo",))] == [
        [1.1, 1.1],
        [1.2, 1.2],
        [1.3, 1.3],
        [1.4, 1.5],
    ]
    assert optimum.by_ratio(runs, ("fifo",))[3]["fifo"] == pytest.approx(14.5)


def test_the_search_of_later_jobs_changes_no_optimum():
    for seed in (0, 1, 22):
        instance = optimum.generated(seed)
        known = min(optimum.averages(instance).values()) * instance.jobs + float(instance.arrival.sum())
        plain = optimum.Search(instance, known)
        plain.run()
        assert plain.is_complete
        bounded = optimum.searched(instance, known)
        assert bounded.best == pytest.approx(plain.best)
        assert bounded.programs <= plain.programs


def test_a_schedule_does_all_work_at_the_times_of_the_optimum():
    instance = optimum.generated(2)
    search = optimum.Search(instance, np.inf)
    search.run()
    now, left, ended = 0.0, instance.work.copy(), np.zeros(instance.jobs)
    for seconds, speeds in search.schedule():
        assert all(speeds[instance.arrival > now + 1e-3] == 0)
        now += seconds
        left -= speeds * seconds
        ended[(ended == 0) & (left < 1e-5 * instance.work)] = now
    assert ended.sum() == pytest.approx(search.best, rel=1e-4)


def test_a_plan_that_is_made_again_is_the_optimum_where_nothing_arrives_later():
    together = alike([5.0, 7.0, 9.0], 1.2)
    assert optimum.replanned(together) == pytest.approx(best_average(together))
    # Without interference, a plan that knows no later jobs is shortest remaining time first, and the optimum.
    later = alike([9.0, 7.0, 2.0], 9.0, [0.0, 1.0, 5.0])
    assert optimum.replanned(later) == pytest.approx(best_average(later))


def test_auto_is_compared_with_the_best_fixed_mode_of_its_own_repetition():
    def modes(now: float, after: float, chosen: float) -> dict[str, dict[str, list[float]]]:
        jct = {"now": now, "after": after, "secondary first": 99.0, "auto, cold": chosen, "auto, profiles": chosen}
        return {mode: {"jct": [time - 1, time + 1]} for mode, time in jct.items()}

    figures = auto.summary([modes(4, 8, 5), modes(10, 8, 8)])["auto, cold"]
    assert figures["vs_best"] == {"median": 1.125, "min": 1.0, "max": 1.25}
    assert figures["vs_after"] == {"median": 0.8125, "min": 0.625, "max": 1.0}
    assert figures["average_jct_s"]["median"] == 6.5


def test_a_bound_is_compared_with_the_primary_alone_and_the_best_share_within_it():
    def run(mean: float, rate: float = 0.0) -> dict[str, object]:
        return {"windows": [mean] * 10, "mean": mean, "p99": 2 * mean, "secondary_rate": rate}

    repetition = {
        "alone": [run(1.0)] * 3,
        "sweep": {"0.5": run(1.04, 50), "0.7": run(1.06, 70), "1.0": run(1.2, 100)},
        "bounds": {"0.02": run(1.01, 10), "0.05": run(1.04, 45), "0.1": run(1.2, 100)},
    }
    figures = bound.summary([repetition])
    assert figures["0.05"]["windows_inside"]["median"] == 1.0
    assert figures["0.05"]["windows_inside_alone"]["median"] == 1.0
    assert figures["0.05"]["secondary_vs_perfect_knob"]["median"] == pytest.approx(0.9)
    assert figures["0.05"]["mean_slowdown"]["median"] == pytest.approx(0.04)
    assert figures["0.05"]["slowdown_without_bound"]["median"] == pytest.approx(0.2)
    assert figures["0.05"]["secondary_vs_no_bound"]["median"] == pytest.approx(0.45)
    assert figures["0.1"]["windows_inside"]["median"] == 0.0
    assert figures["0.02"]["secondary_vs_perfect_knob"]["median"] == 1.0  # no share of the sweep is within it


def test_every_kind_of_job_trains():
    for kind in jobs.KINDS:
        jobs.train(kind, jobs.StepMeter(2))


def test_gaps_are_compared_with_alone_and_with_plain_sharing():
    def job(rate: float, times: list[float]) -> dict[str, object]:
        return gaps.condensed({"rate": rate, "times": times})

    alone = [job(10, [0.1] * 100), job(20, [0.05] * 100)]
    modes = {mode: [job(10, [0.11] * 99 + [0.3]), job(8, [0.12])] for mode in gaps.MODES}
    modes[gaps.PLAIN] = [job(5, [0.2] * 100), job(10, [0.1])]
    modes["strict"] = [job(10, [0.1] * 100), job(0, [])]
    figures = gaps.summary([{"alone": alone, "modes": modes}])
    assert figures["best fit"]["p50"]["median"] == pytest.approx(1.1)
    assert figures["best fit"]["p99"]["median"] > 1.1
    assert figures["best fit"]["mean_vs_plain"]["median"] == pytest.approx(0.2 / 0.1119)
    assert figures["best fit"]["secondary_vs_plain"]["median"] == pytest.approx(0.8)
    assert figures["best fit"]["aggregate"]["median"] == pytest.approx(1.4)
    assert figures["strict"]["secondary"]["median"] == 0.0


def test_requests_are_the_same_in_every_mode_and_come_no_sooner_than_they_arrive():
    start = time.monotonic()
    largest = torch.randn(8, 2)
    twice = [[next(arriving) for _ in range(5)] for arriving in (gaps.requests(largest, 1e3, start) for _ in range(2))]
    for (first, rows), (second, same_rows) in zip(*twice, strict=True):
        assert first == second and len(rows) == len(same_rows)
    assert time.monotonic() >= twice[0][-1][0]
    recorder = gaps.Recorder(time.monotonic() - 1, time.monotonic() + 300)
    now = time.monotonic()
    assert recorder.answered(now - 0.25, now)
    assert not recorder.answered(now, now + 301)
    assert recorder.times == [0.25]


def test_replay_errors_leave_out_jobs_that_were_kept_out():
    run = {"measured": [0.1, None], "predicted": [0.11, None], "alone": [0.1, 0.1]}
    figures = replay.summary([dict.fromkeys(replay.POLICIES, run)])
    assert figures["strict"]["primary"]["median"] == pytest.approx(0.1)
    assert figures["strict"]["secondary"] is None


def test_the_models_that_answer_requests_answer():
    for make, example in gaps.SERVED.values():
        assert make()(example()[:3]).shape == (3, 10)


def test_fikits_table_compares_with_default_sharing_and_with_alone():
    def job(rate: float, latency: float, **report: float) -> dict[str, Any]:
        return gaps.condensed({"rate": rate, "times": [latency] * 100, "report": report})

    filled = [job(10, 0.125, returns_into_filler=3, gaps_filled=4), job(18, 0.05)]
    repetition = {
        "alone": {"alone": job(10, 0.1), "watched": job(10, 0.1), "timed": job(10, 0.11)},
        "shared": {gaps.PLAIN: [job(10, 0.25), job(20, 0.05)], "best fit": filled, "best fit + SCHED_IDLE": filled},
    }
    summaries = {"a+b": fikit.summary([repetition])}
    figures = {name: found["median"] for name, found in summaries["a+b"]["best fit"].items()}
    assert figures == pytest.approx(
        {
            **{"mean_speedup": 2.0, "p99_speedup": 2.0, "mean_vs_alone": 1.25, "p99_vs_alone": 1.25},
            **{"low_ratio": 0.9, "mispredicted": 0.75},
        }
    )
    assert summaries["a+b"]["timed"]["cost"]["median"] == pytest.approx(1.1)
    assert [row.split(" | ")[:2] for row in table.fikit(summaries).splitlines()[2:]] == [
        ["| a+b", mode] for mode in ("best fit", "best fit + SCHED_IDLE")
    ]
    assert fikit.verdict(summaries)[0] == (
        "best fit: the high-priority model is 2.00 to 2.00 times faster than with default sharing, 2.00 in the median; "
        "the other has 0.90 to 0.90 of its rate there"
    )


def test_inference_compares_service_times_with_its_own_and_a_table_shows_it(tmp_path: Path, capsys, monkeypatch):
    def run(time: float, ratio: float) -> dict[str, Any]:
        over_own = {"computed": ratio, "given": 1.0}
        return {"latency": [2 * time], "service": [time], "reported_over_own": over_own, "rate": 100.0}

    repetition = {
        f"{how}, {mode}": run(time, ratio)
        for how in inference.HOW
        for mode, time, ratio in (("alone", 0.001, 1.01), ("beside", 0.004, 1.02))
    }
    summaries = {"tiny": inference.summary([repetition])}
    compiled = summaries["tiny"]["compiled"]
    assert compiled["service p50"]["slowdown"]["median"] == pytest.approx(4)
    assert [each["median"] for each in compiled["service reported / own"].values()] == [1.01, 1.02, 1.0, 1.0]
    monkeypatch.setattr(sys, "argv", ["table.py", "--results", str(tmp_path)])
    table.main()
    assert capsys.readouterr().out == "", "no results, no table"
    record.write("inference", {"summary": summaries}, tmp_path)
    table.main()
    heading, _, *rows = capsys.readouterr().out.splitlines()[:5]
    compared = "service reported / own"
    assert heading.endswith(f"| {compared}, given, alone | {compared}, given, beside | the training's steps/s |")
    assert [row.split(" | ")[1] for row in rows] == inference.HOW
    assert "| 1.01 (1.01-1.01) | 1.02 (1.02-1.02) | 1.00 (1.00-1.00) | 1.00 (1.00-1.00) | 100.00" in rows[-1]


@pytest.mark.parametrize("name", sorted({name for pair in fikit.PAIRS for name in pair.split("+")} - {"bert"}))
def test_the_models_of_fikits_table_classify_images(name: str):
    make = getattr(models, name)
    with torch.no_grad():
        assert make(True).eval()(torch.randn(2, 3, 64, 64)).shape == (2, models.CLASSES)


@pytest.mark.parametrize("policy", cluster.POLICIES)
def test_the_queue_of_a_cluster_decides_as_the_simulator_does(tmp_path, policy):
    setting = Setting(gpus=4, gpus_per_node=1, restart_cost=10.0)
    trace = cluster.make_trace(80, 4, 0, 600.0, 1.2)
    simulated = simulate(Case(trace, policy, uniform(cluster.RATIO), setting, "uniform")).jct
    played = cluster.Played(trace, 4, policy, tmp_path / "a", setting)
    assert played.run(0, 0) == pytest.approx(simulated.tolist(), rel=1e-6)
    killed = cluster.Played(trace, 4, policy, tmp_path / "b", setting)
    killed.run(8, 0)
    assert {row["state"] for row in killed.queue.rows()} == {"finished"}


def test_instructions_in_a_job_are_shown_beside_those_of_plain_torch() -> None:
    counts = {"plain: view": 100.0, "job: view": 130.0, "timed: view": 150.0, "a request's times": 20.0}
    assert instructions.added(counts) == {
        "view": {"plain": 100.0, "job": 30.0, "timed": 50.0},
        "a request's times": {"job": 20.0},
    }


def test_more_instructions_than_were_recorded_are_named() -> None:
    recorded = {"one": 1000.0, "two": 1000.0, "three": 10.0, "gone": 1.0}
    found = instructions.grown(recorded, {"one": 1036.0, "two": 1035.0, "three": 15.0, "new": 9.0})
    assert found == ["one: 1,036 instructions, 1,000 before"]
