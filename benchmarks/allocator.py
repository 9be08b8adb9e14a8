"""Measures what caching large blocks of memory is worth, beside other allocators, alone and in pairs.

Each run is a fresh process (or two), warmed up, and counts steps in one window of time; the modes alternate, forwards
and backwards in turn. glibc runs as users have it and tuned by environment variables (`STEADY_MALLOC`); the others are
preloaded if they are installed (`apt-get install libtcmalloc-minimal4 libjemalloc2 libmimalloc2.0`), with jemalloc also
told to keep what is freed. torchshare runs with glibc as users have it, with its cache and without.
Rates are relative to the first mode of a repetition: plain Python, or two processes, with glibc as users have it.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from pairs import collect, in_threads, in_torchshare, in_window_of_parent, launch
from record import STEADY_MALLOC, interleaved, parser, shown, spread, write

SOLO = ("memory", "conv", "transformer", "lstm", "mlp", "tiny", "conv:8", "conv:128", "conv:512")
PAIRS = ("memory+memory", "conv+conv", "transformer+transformer", "conv+tiny", "mlp+mlp")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
ALLOCATORS: dict[str, dict[str, str]] = {
    "glibc": {},
    "glibc tuned": STEADY_MALLOC,
    "tcmalloc": {"LD_PRELOAD": str(LIBRARIES / "libtcmalloc_minimal.so.4")},
    "jemalloc": {"LD_PRELOAD": str(LIBRARIES / "libjemalloc.so.2")},
    "jemalloc that keeps": {"LD_PRELOAD": str(LIBRARIES / "libjemalloc.so.2"), "MALLOC_CONF": "dirty_decay_ms:-1"},
    "mimalloc": {"LD_PRELOAD": str(LIBRARIES / "libmimalloc.so.2")},
}
OURS: dict[str, dict[str, Any]] = {
    "torchshare": {},
    "torchshare, sub-batches": {"sub_batch": 8},
    "torchshare, no cache": {"cache_memory": False},
}


class FaultMeter:
    """Counts the steps and the page faults of a thread between two instants of time.monotonic()."""

    def __init__(self, start: float, end: float) -> None:
        self._start, self._end = start, end
        self._faults: list[int] = []

    def step_done(self) -> bool:
        now = time.monotonic()
        if self._start <= now < self._end:
            self._faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt)
        return now < self._end

    def figures(self) -> dict[str, float]:
        steps = len(self._faults)
        faults = (self._faults[-1] - self._faults[0]) / (steps - 1) if steps > 1 else 0.0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"rate": steps / (self._end - self._start), "faults_per_step": faults, "peak_mib": peak}


def work(kinds: list[str], mode: str) -> list[dict[str, float]]:
    """Runs one or two jobs in this process, in the window given by the parent; returns their figures."""
    run = in_torchshare({}, **OURS[mode]) if mode in OURS else in_threads
    return [meter.figures() for meter in in_window_of_parent(kinds, FaultMeter, run)]


def measure(kinds: list[str], mode: str, allocator: str, window: float) -> dict[str, float]:
    """The sum of the jobs' rates, the mean of their faults, and the peak memory of all processes."""
    environment = {**os.environ, **ALLOCATORS[allocator]}
    apart = mode == "two processes"
    groups = [[kind] for kind in kinds] if apart else [kinds]
    processes = [launch(__file__, [group, mode], os.cpu_count() or 1, environment=environment) for group in groups]
    figures = collect(processes, window)
    peaks = [each["peak_mib"] for each in figures]
    return {
        "rate": sum(each["rate"] for each in figures),
        "slower_rate": min(each["rate"] for each in figures),
        "faults_per_step": statistics.mean(each["faults_per_step"] for each in figures),
        "peak_mib": sum(peaks) if apart else peaks[0],
    }


def modes(jobs: str, full: bool) -> list[tuple[str, str]]:
    """What is run: a mode and an allocator. All allocators only if `full`."""
    there = [name for name, env in ALLOCATORS.items() if Path(env.get("LD_PRELOAD", "/")).exists()]
    allocators = there if full else ["glibc", "glibc tuned"]
    plain = "two processes" if "+" in jobs else "plain"
    found = [(plain, allocator) for allocator in allocators]
    if "+" in jobs:
        found.append(("two threads", "glibc"))
    return found + [(mode, "glibc") for mode in OURS if full or mode == "torchshare"]


def summary(repetitions: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    first = next(iter(repetitions[0]))
    return {
        mode: {
            "rate": spread([each[mode]["rate"] for each in repetitions]),
            "relative": spread([each[mode]["rate"] / each[first]["rate"] for each in repetitions]),
            "faults_per_step": spread([each[mode]["faults_per_step"] for each in repetitions]),
            "peak_mib": spread([each[mode]["peak_mib"] for each in repetitions]),
        }
        for mode in repetitions[0]
    }


def plot(summaries: dict[str, Any], path: Path) -> None:
    """Relative rates, one row per pair or job, one bar per mode."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(summaries), figsize=(8, 0.6 + 0.26 * sum(map(len, summaries.values()))),
                                   height_ratios=[len(found) + 1 for found in summaries.values()], sharex=True,
                                   squeeze=False)  # fmt: skip
    for axis, (jobs, found) in zip(axes[:, 0], summaries.items(), strict=True):
        rates = [figures["relative"] for figures in found.values()]
        medians = [rate["median"] for rate in rates]
        spreads = [[rate["median"] - rate["min"] for rate in rates], [rate["max"] - rate["median"] for rate in rates]]
        colors = ["tab:blue" if mode.startswith("torchshare,") else "lightgray" for mode in found]
        axis.barh(list(found), medians, xerr=spreads, color=colors, ecolor="dimgray", error_kw={"lw": 0.8})
        axis.axvline(1, color="black", lw=0.8)
        axis.invert_yaxis()
        axis.set_title(jobs, loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
    axes[-1, 0].set_xlabel("steps/s, relative to glibc as users have it (median, extremes)", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    options = parser(__doc__, repetitions=4, window=3.0)
    options.add_argument("--jobs", nargs="+", default=[*PAIRS, *SOLO], help='"conv", "conv:128", "conv+tiny"')
    options.add_argument("--all-allocators", nargs="*", default=["memory+memory", "conv+conv", "memory", "conv"])
    arguments = options.parse_args()
    if arguments.work:
        print(json.dumps(work(*json.loads(arguments.work))))
        return
    directions = {jobs: itertools.cycle((1, -1)) for jobs in arguments.jobs}

    def repeat(jobs: str) -> dict[str, dict[str, float]]:
        found = modes(jobs, jobs in arguments.all_allocators)
        figures = {each: measure(jobs.split("+"), *each, arguments.window) for each in found[:: next(directions[jobs])]}
        return {f"{mode}, {allocator}": figures[mode, allocator] for mode, allocator in found}

    raw = interleaved(arguments.jobs, arguments.repetitions, repeat)
    summaries = {jobs: summary(repetitions) for jobs, repetitions in raw.items()}
    write("allocator", {"summary": summaries, "repetitions": raw}, arguments.output)
    plot(summaries, arguments.output / "allocator.png")
    for jobs, found_modes in summaries.items():
        for mode, found_figures in found_modes.items():
            cells = "  ".join(f"{name} {shown(figure)}" for name, figure in found_figures.items())
            print(f"{jobs:24}{mode:36}{cells}")


if __name__ == "__main__":
    main()
