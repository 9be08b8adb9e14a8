"""Every policy on the AdaptDL traces: 160, 240 and 320 jobs, ratios 1.0 to 2.0, measured ratios, wrong durations. Some
policies on generated traces for clusters of three sizes, and on Philly's jobs on few GPUs."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchshare import _core
from torchshare.simulation.adaptdl import read_packaged
from torchshare.simulation.generated import generate, parse_mix
from torchshare.simulation.job_trace import Limits, Trace, read_trace
from torchshare.simulation.ratios import Ratios, read_ratios, uniform
from torchshare.simulation.simulate import Case, Outcome, Setting, simulate_all

from record import RESULTS, write

DATA = Path(__file__).parents[3] / "shared" / "data"
LOADS = (160, 240, 320)
AUTHORS = {160: "1.0", 240: "1.5", 320: "2.0"}  # the folders of the AdaptDL authors' own results
RATIOS = [round(1 + tenth / 10, 1) for tenth in range(11)]
ALL_POLICIES = _core.cluster_policy_names()
BASELINES = ("tiresias", "sjf-bsbf")
OURS = "pair-srsf"
FIGURES = ("avg_jct_s", "p99_jct_s", "avg_jct_small_s", "avg_jct_large_s")
FEW_POLICIES = ["tiresias", "srsf", "sjf-bsbf", OURS]  # for parts in which the others show nothing new
COMPARED = ("avg_jct_s", "p99_jct_s")
SEEDS = 5  # of the estimates' errors, and of generated traces
GENERATED_GPUS = (8, 16, 64)
PHILLY_GPUS = 400  # its jobs need 94 % of the time of these
FEW_RATIOS = (1.1, 1.3, 1.5, 1.6, 1.7, 1.8, 1.9)
# The AdaptDL applications are not in Gavel's table; each gets the ratios of the most similar model.
GAVEL_MODELS = {
    "bert": "Transformer (batch size 64)",
    "cifar10": "ResNet-18 (batch size 128)",
    "deepspeech2": "LM (batch size 40)",
    "imagenet": "ResNet-50 (batch size 64)",
    "ncf": "Recommendation (batch size 8192)",
    "yolov3": "ResNet-50 (batch size 32)",
}


def read_load(jobs: int) -> list[Trace]:
    return read_packaged(f"adaptdl:{jobs}", Limits(gpus=Setting.gpus))


def generate_traces(gpus: int) -> list[Trace]:
    mix = parse_mix("adaptdl")
    return [generate(240, Limits(gpus=gpus), mix=mix, load=2, seed=seed) for seed in range(SEEDS)]


def compare_few(traces: list[Trace], gpus: int) -> list[dict[str, Any]]:
    """Some policies at some ratios."""
    setting = Setting(gpus=gpus)
    return [
        {"gpus": gpus, "ratio": ratio, "policies": compare(traces, uniform(ratio), [setting], FEW_POLICIES)}
        for ratio in FEW_RATIOS
    ]


def compare(
    traces: list[Trace], ratios: Ratios, settings: list[Setting], policies: list[str] = ALL_POLICIES
) -> dict[str, Any]:
    """Per policy and figure: the mean over traces and settings, and the change relative to each baseline, of the means
    and as spread over the traces."""
    cases = [
        Case(trace, policy, ratios, each, "") for policy, trace, each in itertools.product(policies, traces, settings)
    ]
    outcomes = simulate_all(cases)
    by_policy: dict[str, list[Outcome]] = {policy: [] for policy in policies}
    for outcome in outcomes:
        by_policy[outcome.case.policy].append(outcome)
    values = {
        policy: {name: [outcome.figures[name] for outcome in same] for name in FIGURES}
        for policy, same in by_policy.items()
    }
    return {
        policy: {
            "mean": {name: round(statistics.fmean(mine[name])) for name in FIGURES},
            "preemptions_per_job": statistics.fmean(
                outcome.figures["preemptions"] / outcome.figures["jobs"] for outcome in by_policy[policy]
            ),
            **{f"vs {base}": {name: change(mine[name], values[base][name]) for name in COMPARED} for base in BASELINES},
        }
        for policy, mine in values.items()
    }


def change(mine: list[float], base: list[float]) -> dict[str, float]:
    """The relative change of the mean, and the least and greatest change of one trace."""
    each = [a / b - 1 for a, b in zip(mine, base, strict=True)]
    return {
        name: round(value, 4)
        for name, value in (("mean", sum(mine) / sum(base) - 1), ("min", min(each)), ("max", max(each)))
    }


def divisible_srsf(trace: Trace) -> float:
    """Average JCT of shortest remaining service first with divisible GPUs, without sharing and restart costs. Shows the
    cost of gangs and restarts to SRSF, and approximates a lower bound for policies that do not share."""
    order = np.argsort(trace.arrival)
    to_come = [[trace.arrival[i], trace.gpus[i], trace.duration[i]] for i in order]
    now, total, active = 0.0, 0.0, []
    while to_come or active:
        active.sort(key=lambda job: job[1] * job[2])
        left, pace = Setting.gpus, []
        for job in active:
            given = min(left, job[1])
            pace.append(given / job[1])
            left -= given
        until = min(
            [now + job[2] / rate for job, rate in zip(active, pace, strict=True) if rate > 0]
            + ([to_come[0][0]] if to_come else [])
        )
        for job, rate in zip(active, pace, strict=True):
            job[2] -= rate * (until - now)
        now = until
        total += sum(now - job[0] for job in active if job[2] <= 1e-6)
        active = [job for job in active if job[2] > 1e-6]
        while to_come and to_come[0][0] <= now:
            active.append(to_come.pop(0))
    return total / len(trace.names)


def authors(data: Path, jobs: int) -> dict[str, float]:
    """Mean JCT in the AdaptDL authors' own results, seconds. Pollux also changes the batch sizes and GPUs of jobs."""
    folder = data / "adaptdl" / "results-jobload"
    return {
        policy: json.loads((folder / f"{policy}-{AUTHORS[jobs]}" / "summary.json").read_text())["mean"]
        for policy in ("tiresias", "optimus", "pollux")
    }


def study(data: Path) -> dict[str, Any]:
    known = Setting(restart_cost=10)
    rough = [replace(known, estimate_error=0.5, seed=seed) for seed in range(SEEDS)]
    blind = replace(known, estimate_error=None)
    uniform_rows, estimate_rows, none_rows, gavel_rows = [], [], [], []
    lower: dict[str, Any] = {}
    for jobs in LOADS:
        traces = read_load(jobs)
        for ratio in RATIOS:
            about = {"jobs": jobs, "ratio": ratio}
            uniform_rows.append({**about, "policies": compare(traces, uniform(ratio), [known])})
            estimate_rows.append({**about, "policies": compare(traces, uniform(ratio), rough, FEW_POLICIES)})
            none_rows.append({**about, "policies": compare(traces, uniform(ratio), [blind], FEW_POLICIES)})
        for gpu in ("v100", "p100", "k80"):
            ratios = read_ratios(data / "gavel" / "derived_pairs_1gpu.csv", gpu, GAVEL_MODELS)
            gavel_rows.append({"jobs": jobs, "gpu": gpu, "policies": compare(traces, ratios, [known])})
        lower[str(jobs)] = {
            "durations_alone_s": statistics.fmean(float(trace.duration.mean()) for trace in traces),
            "divisible_srsf_s": statistics.fmean(map(divisible_srsf, traces)),
            "authors_s": authors(data, jobs),
        }
    philly = read_trace(data / "adaptdl" / "traces" / "philly.csv", "philly", Limits(gpus=PHILLY_GPUS))
    costs = [
        {
            "restart_cost_s": cost,
            "policies": compare(read_load(240), uniform(1.25), [Setting(restart_cost=cost)], FEW_POLICIES),
        }
        for cost in (0, 10, 30, 60, 120)
    ]
    return {
        "uniform": uniform_rows,
        "estimates off by sigma 0.5": estimate_rows,
        "no durations": none_rows,
        "gavel": gavel_rows,
        "generated": [row for gpus in GENERATED_GPUS for row in compare_few(generate_traces(gpus), gpus)],
        "philly on few GPUs": compare_few([philly], PHILLY_GPUS),
        "restart cost": costs,
        "references": lower,
    }


def targets(rows: list[dict[str, Any]]) -> list[str]:
    """One line per target, met or not."""
    lines = []
    for jobs in LOADS:
        mine = [row["policies"][OURS] for row in rows if row["jobs"] == jobs]
        worst = {
            "average JCT against tiresias": max(row["vs tiresias"]["avg_jct_s"]["mean"] for row in mine),
            "average JCT against sjf-bsbf": max(row["vs sjf-bsbf"]["avg_jct_s"]["mean"] for row in mine),
            "p99 against tiresias": max(row["vs tiresias"]["p99_jct_s"]["mean"] for row in mine),
        }
        lines += [f"{jobs} jobs, the worst ratio: {name} {value:+.1%}" for name, value in worst.items()]
    return lines


def plot(rows: list[dict[str, Any]]) -> Figure:
    """Average and p99 JCT against Tiresias over the ratio, a column per load."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    axes = figure.subplots(2, len(LOADS), sharex=True, sharey="row")
    shown = [name for name in rows[0]["policies"] if name not in ("fifo", "fifo-backfill", "tiresias")]
    for column, jobs in enumerate(LOADS):
        here = [row for row in rows if row["jobs"] == jobs]
        for line, (figure_name, title) in enumerate((("avg_jct_s", "average JCT"), ("p99_jct_s", "p99 JCT"))):
            panel = axes[line][column]
            for policy in shown:
                changes = [row["policies"][policy]["vs tiresias"][figure_name] for row in here]
                ratios = [row["ratio"] for row in here]
                (drawn,) = panel.plot(
                    ratios,
                    [100 * each["mean"] for each in changes],
                    label=policy,
                    lw=2.5 if policy == OURS else 1.3,
                    marker="o" if policy == OURS else None,
                )
                if policy in (OURS, "sjf-bsbf"):
                    low, high = ([100 * each[end] for each in changes] for end in ("min", "max"))
                    panel.fill_between(ratios, low, high, color=drawn.get_color(), alpha=0.12)
            panel.axhline(0, color="black", lw=0.8)
            panel.grid(alpha=0.3)
            panel.set(title=f"{title}, {jobs} jobs", xlabel="interference ratio")
            if column == 0:
                panel.set_ylabel("against Tiresias, %")
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(shown), frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for simulator_study.json and .png")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print(f"{parser.prog}: skipped, for the traces are not in {arguments.data}")
        return
    summary = study(arguments.data)
    write("simulator_study", {"summary": summary}, arguments.out)
    plot(summary["uniform"]).savefig(arguments.out / "simulator_study.png", dpi=80)
    print("\n".join(targets(summary["uniform"])))
    print("with estimates off by sigma 0.5:")
    print("\n".join(targets(summary["estimates off by sigma 0.5"])))


if __name__ == "__main__":
    main()
