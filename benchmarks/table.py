"""Prints the README's tables from the JSON files of benchmarks/results/."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from record import RESULTS, shown


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pairs(summary: dict[str, Any]) -> str:
    rows = []
    for pair, modes in summary.items():
        for mode, figures in modes.items():
            versus = shown(figures["vs_two_processes"]) if "vs_two_processes" in figures else "-"
            idle = shown(figures["share_of_idle"]) if "share_of_idle" in figures else "-"
            slowdowns = [shown(figures["primary_slowdown"]), shown(figures["secondary_rate"])]
            makespan = f"{figures['makespan_computed']['median']:.2f}"
            rows.append([pair, mode, *slowdowns, shown(figures["aggregate"]), versus, makespan, idle])
    headings = [
        "pair",
        "mode",
        "primary slowdown",
        "secondary rate",
        "aggregate",
        "vs two processes",
        "makespan",
        "of idle time",
    ]
    return table(headings, rows)


def allocator(summary: dict[str, Any]) -> str:
    rows = [
        [
            jobs,
            mode.removesuffix(", glibc") if mode.startswith("torchshare") else mode,
            shown(figures["rate"], 1),
            shown(figures["relative"]),
            f"{figures['faults_per_step']['median']:,.0f}",
            f"{figures['peak_mib']['median']:,.0f}",
        ]
        for jobs, modes in summary.items()
        for mode, figures in modes.items()
    ]
    return table(["jobs", "mode, allocator", "steps/s", "relative", "page faults per step", "peak MiB"], rows)


def compiled(summary: dict[str, Any]) -> str:
    columns = ["primary", "secondary", "aggregate", "vs_two_processes", "vs_eager_sharing"]
    rows = [
        [pair, mode, *(shown(rates[column]) for column in columns)]
        for pair, figures in summary["pairs"].items()
        for mode, rates in figures["modes"].items()
    ]
    headings = ["pair", "mode", "primary", "secondary", "aggregate", "vs two processes", "vs eager sharing"]
    alone = {kind: ratio for figures in summary["pairs"].values() for kind, ratio in figures["alone"].items()}
    kinds = [
        [kind, shown(alone[kind]), f"{times['cold_s']:.1f}", f"{times['cached_s']:.2f}"]
        for kind, times in summary["building"].items()
    ]
    solo = table(["job", "compiled / eager, alone", "compiled in, s", "from the cache, s"], kinds)
    return table(headings, rows) + "\n\n" + solo


def memory(summary: dict[str, float]) -> str:
    return table(["memory", "measured"], [[name, f"{value:.2f}"] for name, value in summary.items()])


def out_of_memory(summary: dict[str, Any]) -> str:
    return table(["part", "figure", "measured"], [[part, *row] for part in summary for row in _rows(summary[part])])


def priority(summary: dict[str, Any]) -> str:
    rows = [
        [beside, how, shown(jobs["primary"]), shown(jobs["secondary"])]
        for beside, priorities in summary.items()
        for how, jobs in priorities.items()
    ]
    return table(["cores", "device_priority", "primary", "secondary"], rows)


def _rows(figure: Any, name: str = "") -> list[list[str]]:
    if isinstance(figure, dict) and "median" not in figure:
        return [row for key, value in figure.items() for row in _rows(value, f"{name}, {key}".removeprefix(", "))]
    if isinstance(figure, dict):
        return [[name, shown(figure, 3)]]
    return [[name, f"{figure:.3g}" if isinstance(figure, float) else str(figure)]]


def overhead(summary: dict[str, Any]) -> str:
    names = {
        "torchshare": "inside a job / plain",
        "control": "plain / plain",
        "watched": "watched / inside a job",
        "timed": "every op timed / inside a job",
        "job_control": "inside / inside",
    }
    rows = [[kind, *(shown(figures[name], 3) for name in names)] for kind, figures in summary.items()]
    return table(["solo step", *names.values()], rows)


def hook(summary: dict[str, Any]) -> str:
    names = {
        "off_ns": "without, ns",
        "added_ns": "the hook adds, ns",
        "watching_adds_ns": "watching adds, ns",
        "timing_adds_ns": "timing adds, ns",
    }
    rows = [[op, *(shown(figures[name], 0) for name in names)] for op, figures in summary.items()]
    return table(["op", *names.values()], rows)


def gaps(summary: dict[str, Any]) -> str:
    names = {
        "mean": "primary's mean / alone",
        "p50": "p50",
        "p95": "p95",
        "p99": "p99",
        "mean_vs_plain": "faster than plain, times",
        "secondary_vs_plain": "secondary / plain",
        "aggregate": "aggregate",
    }
    rows = [
        [primary, mode, *(shown(figures[name]) for name in names)]
        for primary, modes in summary.items()
        for mode, figures in modes.items()
    ]
    return table(["primary", "mode", *names.values()], rows)


def fikit(summary: dict[str, Any]) -> str:
    """A row per pair and way to share other than the default."""
    shared = {
        "mean_speedup": "high: mean, times faster than default",
        "p99_speedup": "p99, times faster",
        "mean_vs_alone": "mean / alone",
        "low_ratio": "low: rate / default",
        "mispredicted": "gaps mispredicted",
    }
    rows = [
        [
            *(pair, mode, *(shown(figures[name]) if name in figures else "-" for name in shared)),
            *(shown(modes[stage]["cost"]) if stage in modes else "-" for stage in ("watched", "timed")),
        ]
        for pair, modes in summary.items()
        for mode, figures in modes.items()
        if "mean_speedup" in figures and mode != "two processes"
    ]
    return table(["high + low", "mode", *shared.values(), "alone: watched / plain", "timed / plain"], rows)


def inference(summary: dict[str, Any]) -> str:
    """A row per model and way to run it. Times in ms."""
    times = [f"{what} {name}" for what in ("latency", "service") for name in ("p50", "p99")]
    columns = [*((time, mode) for time in times for mode in ("alone_ms", "beside_ms"))]
    compared = [
        ("service reported / own", f"{until}, {mode}")
        for until in ("computed", "given")
        for mode in ("alone", "beside")
    ]
    rows = [
        [kind, how, *(shown(figures[what][mode]) for what, mode in (*columns, *compared)), shown(figures["training"])]
        for kind, ways in summary.items()
        for how, figures in ways.items()
    ]
    headings = [f"{what}, {mode.removesuffix('_ms')}" for what, mode in (*columns, *compared)]
    return table(["model", "way", *headings, "the training's steps/s"], rows)


def replay(summary: dict[str, Any]) -> str:
    def cell(errors: dict[str, float] | None) -> str:
        return shown({name: 100 * value for name, value in errors.items()}, 0) if errors else "kept out"

    rows = [
        [pair, policy, cell(jobs["primary"]), cell(jobs["secondary"])]
        for pair, policies in summary.items()
        for policy, jobs in policies.items()
    ]
    return table(["pair", "policy", "primary's step, predicted / measured - 1, %", "secondary's, %"], rows)


def fit(summary: dict[str, Any]) -> str:
    rows = [[kind, shown({name: 100 * value for name, value in errors.items()}, 1)] for kind, errors in summary.items()]
    return table(["job", "error of the step time on a size left out, %"], rows)


def auto(summary: dict[str, Any]) -> str:
    rows = [
        [pair, mode, *(shown(figures[name]) for name in ("average_jct_s", "vs_best", "vs_after"))]
        for pair, modes in summary.items()
        for mode, figures in modes.items()
    ]
    return table(["pair", "mode", "average JCT, s", "vs best in hindsight", "vs one after the other"], rows)


def bound(summary: dict[str, Any]) -> str:
    names = {
        "windows_inside": "windows inside",
        "windows_inside_alone": "the primary alone",
        "mean_slowdown": "mean slowdown",
        "slowdown_without_bound": "without a bound",
        "secondary_vs_perfect_knob": "secondary vs perfect knob",
        "secondary_vs_no_bound": "vs no bound",
    }
    rows = [
        [pair, f"{float(limit):.0%}", *(shown(figures[name]) for name in names)]
        for pair, limits in summary.items()
        for limit, figures in limits.items()
    ]
    return table(["pair", "bound", *names.values()], rows)


SHOWN_RATIOS = (1.0, 1.1, 1.3, 1.5, 1.7, 2.0)
STUDY_ROWS = (  # the policy, the part of the study, what the row is called
    ("sjf-ffs", "uniform", "sjf-ffs"),
    ("sjf-bsbf", "uniform", "sjf-bsbf"),
    ("srsf", "uniform", "srsf"),
    ("pair-srsf", "uniform", "**pair-srsf**"),
    ("pair-srsf", "estimates off by sigma 0.5", "pair-srsf, estimates off by sigma 0.5"),
    ("pair-srsf", "no durations", "pair-srsf, no durations known"),
)


def percent(change: dict[str, float]) -> str:
    return f"{100 * change['mean']:+.0f}"


def simulator_study(summary: dict[str, Any]) -> str:
    """Changes of average and p99 JCT against Tiresias, in percent."""
    rows = []
    for jobs in (160, 240, 320):
        for policy, part, title in STUDY_ROWS:
            here = {
                row["ratio"]: row["policies"][policy]["vs tiresias"] for row in summary[part] if row["jobs"] == jobs
            }
            cells = [f"{percent(here[r]['avg_jct_s'])} / {percent(here[r]['p99_jct_s'])}" for r in SHOWN_RATIOS]
            rows.append([str(jobs), title, *cells])
    by_ratio = table(["jobs", "policy", *(f"ratio {ratio}" for ratio in SHOWN_RATIOS)], rows)
    parts = [simulator_gavel(summary["gavel"]), simulator_sizes(summary["uniform"]), simulator_generated(summary)]
    return "\n\n".join([by_ratio, *parts])


def simulator_deadlines(summary: list[dict[str, Any]]) -> str:
    """The share of jobs that each policy rejects or misses."""
    settings = list(dict.fromkeys((row["ratio"], row["estimate_error"]) for row in summary))
    titles = [f"ratio {ratio}" + (f", estimates off by sigma {error}" if error else "") for ratio, error in settings]
    cells = {
        (row["policy"], row["ratio"], row["estimate_error"]): f"{row['lost']:.1%}"
        + (f" ({row['rejected']} + {row['missed']})" if row["rejected"] else "")
        for row in summary
    }
    policies = dict.fromkeys(row["policy"] for row in summary)
    rows = [[policy, *(cells[policy, ratio, error] for ratio, error in settings)] for policy in policies]
    return table(["policy", *titles], rows)


def simulator_failures(summary: list[dict[str, Any]]) -> str:
    """The average JCT of each policy, by the mean time between failures and between checkpoints."""
    settings = list(dict.fromkeys((row["mtbf"], row["checkpoint_every"]) for row in summary))
    titles = [f"MTBF {mtbf}, every {every}" if mtbf else "no failures" for mtbf, every in settings]
    cells = {(row["policy"], row["mtbf"], row["checkpoint_every"]): f"{row['avg_jct_s']:,.0f}" for row in summary}
    policies = dict.fromkeys(row["policy"] for row in summary)
    rows = [[policy, *(cells[policy, mtbf, every] for mtbf, every in settings)] for policy in policies]
    return table(["policy", *titles], rows)


def simulator_workflows(summary: list[dict[str, Any]]) -> str:
    """Completion times of workflows and jobs, without and with ranking by the critical path."""
    titles = ["workflows", "load", "ranked by path", "average workflow", "average JCT", "makespan", "preempted"]
    names = ("avg_workflow_s", "avg_jct_s", "makespan_s")
    rows = [
        [row["shape"], str(row["load"]), "yes" if row["rank_by_path"] else "no"]
        + [f"{row[name]:,.0f}" for name in names]
        + [f"{row['preemptions']:.1f}"]
        for row in summary
    ]
    return table(titles, rows)


def stages(summary: list[dict[str, Any]]) -> str:
    """Times of decisions by the planner of workflows, and how much dearer plans are where the search was cut short."""
    rows = [
        [
            f"{row['shape']}, {row['partners']} partners",
            str(row["limit"]),
            *(f"{row['ms'][each]:.1f}" for each in ("median", "p90", "max")),
            f"{row['nodes']['median']:,.0f}",
            f"{row['cut']:.0%}",
            f"{row['largest_excess']:.1%}",
        ]
        for row in summary
    ]
    return table(
        ["stages", "limit / least", "ms, median", "p90", "largest", "nodes", "cut short", "dearer by up to"], rows
    )


def simulator_gavel(rows: list[dict[str, Any]]) -> str:
    policies = ("sjf-ffs", "sjf-bsbf", "srsf", "pair-srsf")
    cells = [
        [str(row["jobs"]), row["gpu"]]
        + [
            f"{percent(row['policies'][p]['vs tiresias']['avg_jct_s'])} / "
            f"{percent(row['policies'][p]['vs tiresias']['p99_jct_s'])}"
            for p in policies
        ]
        for row in rows
    ]
    return table(["jobs", "ratios measured on", *policies], cells)


def simulator_sizes(rows: list[dict[str, Any]]) -> str:
    """Average JCT in seconds of small (at most 4 GPUs) and large jobs."""
    policies = ("tiresias", "sjf-bsbf", "srsf", "pair-srsf")
    cells = []
    for row in rows:
        if row["jobs"] == 240 and row["ratio"] in (1.1, 1.5, 2.0):
            means = [row["policies"][policy]["mean"] for policy in policies]
            cells.append(
                [str(row["ratio"]), *(f"{mean['avg_jct_small_s']:,} / {mean['avg_jct_large_s']:,}" for mean in means)]
            )
    return table(["240 jobs, ratio", *(f"{policy}, small / large" for policy in policies)], cells)


def simulator_generated(summary: dict[str, Any]) -> str:
    """Average JCT in seconds on generated traces by the number of GPUs, and of Philly's jobs."""
    cells: dict[tuple[str, str], list[str]] = {}
    for part, title in (("generated", "generated"), ("philly on few GPUs", "Philly's")):
        for row in summary[part]:
            for policy, found in row["policies"].items():
                same = cells.setdefault((f"{title}, {row['gpus']} GPUs", policy), [])
                same.append(f"{found['mean']['avg_jct_s']:,}")
    ratios = [f"ratio {row['ratio']}" for row in summary["philly on few GPUs"]]
    return table(["jobs", "policy", *ratios], [[*names, *values] for names, values in cells.items()])


def simulator_live(summary: dict[str, Any]) -> str:
    rows = [[policy, shown({k: 100 * v for k, v in error.items()}, 1)] for policy, error in summary.items()]
    return table(["policy", "simulated against real average JCT, %"], rows)


def inversion(summary: dict[str, Any]) -> str:
    figures = ["p50", "p99", "p99.9", "max", "stalled", "close_s", "crashed"]
    rows = [[mode, *(shown(found[figure]) for figure in figures)] for mode, found in summary.items()]
    headings = [
        *(f"{name}, ms" for name in figures[:4]),
        "share of the time in stalls",
        "close(), s",
        "crashed at exit",
    ]
    return table(["beside an ordinary process per core", *headings], rows)


TABLES = {
    "pairs": pairs,
    "allocator": allocator,
    "overhead": overhead,
    "hook": hook,
    "memory": memory,
    "out_of_memory": out_of_memory,
    "priority": priority,
    "gaps": gaps,
    "fikit": fikit,
    "inference": inference,
    "replay": replay,
    "fit": fit,
    "auto": auto,
    "bound": bound,
    "inversion": inversion,
    "compiled": compiled,
    "simulator_study": simulator_study,
    "simulator_live": simulator_live,
    "simulator_deadlines": simulator_deadlines,
    "simulator_failures": simulator_failures,
    "simulator_workflows": simulator_workflows,
    "stages": stages,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name, make in TABLES.items():
        path = arguments.results / f"{name}.json"
        if path.exists():
            record = json.loads(path.read_text())
            where = record["environment"]
            print(f"{make(record['summary'])}\n\n{where['machine']}, {where['cores']} cores, torch {where['torch']}, "
                  f"{where['date']}, commit {where['commit']}: `{where['command']}`\n")  # fmt: skip


if __name__ == "__main__":
    main()
