"""Measures how well `max_slowdown` is kept, and compares the secondary's rate with the best fixed share.

Each repetition measures the primary alone, beside the secondary at each share of a sweep (`secondary_share`), and under
each bound. The perfect knob of a bound is the largest share of the sweep with as many 1 s windows within the bound as
the primary alone has, or 95 %, whichever is less. Windows are compared with the primary alone in the same repetition;
windows of the primary alone show the noise of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import torchshare

from jobs import StepMeter, train
from record import RESULTS, interleaved, shown, spread, steady_malloc, write

PAIRS = {  # kind and threads of the primary and of the secondary
    "tiny + tiny": (("tiny", 1), ("tiny", 1)),
    "conv + tiny": (("conv", 1), ("tiny", 1)),
    "memory + memory": (("memory", 1), ("memory", 1)),
}
BOUNDS = (0.02, 0.05, 0.10)
SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)
WINDOW_S = 1.0
WARM_UP_S = 3.0  # also of the control loop, which begins with a small share
ENDLESS = 1 << 40  # steps
ENOUGH = 0.95  # of windows within the bound


def run(pair: str, seconds: float, options: dict[str, float] | None) -> dict[str, Any]:
    """Runs the primary for a window after the warm-up, beside the secondary unless `options` is None."""
    (kind, threads), (other, other_threads) = PAIRS[pair]
    with torchshare.Runtime(**(options or {})) as runtime:
        jobs = [("primary", kind, threads), ("secondary", other, other_threads)]
        for name, what, intra_op in jobs if options is not None else jobs[:1]:
            runtime.submit(
                lambda job, what=what, intra_op=intra_op: train(what, StepMeter(ENDLESS), job, intra_op),
                name=name,
                priority=name,
                threads=intra_op,
            )
        runtime.start()
        time.sleep(WARM_UP_S + seconds)
        runtime.cancel()
        runtime.wait()
        events = runtime.events()
        reports = runtime.bound_report()
    ends = {
        name: np.array([end for kind, job, _, end, _, _ in events if kind == "step" and job == name]) / 1e9
        for name in ("primary", "secondary")
    }
    begin = ends["primary"][0] + WARM_UP_S
    steps = ends["primary"][ends["primary"] >= begin]
    others = ends["secondary"]
    periods = np.diff(steps)
    window = ((steps[1:] - begin) // WINDOW_S).astype(int)
    found: dict[str, Any] = {
        "windows": [float(periods[window == index].mean()) for index in range(window.max()) if (window == index).any()],
        "p50": float(np.quantile(periods, 0.5)),
        "p95": float(np.quantile(periods, 0.95)),
        "p99": float(np.quantile(periods, 0.99)),
        "mean": float(periods.mean()),
        "secondary_rate": float(((others >= begin) & (others <= steps[-1])).sum() / (steps[-1] - begin)),
    }
    if reports:
        found["own_inside"] = reports[0].windows_inside / reports[0].windows
        found["share"] = reports[0].share
    return found


def inside(run: dict[str, Any], alone: float, bound: float) -> float:
    """Share of the windows within the bound."""
    return float(np.mean([window <= (1 + bound) * alone for window in run["windows"]]))


def repeat(pair: str, seconds: float) -> dict[str, Any]:
    """One repetition. Runs alone are spread between the others, so that they include drift."""
    alone = [run(pair, seconds, None)]
    sweep = {str(share): run(pair, seconds / 2, {"secondary_share": share}) for share in SHARES}
    alone.append(run(pair, seconds, None))
    bounds = {}
    for bound in BOUNDS:
        bounds[str(bound)] = run(pair, seconds, {"max_slowdown": bound})
        alone.append(run(pair, seconds, None))
    return {"alone": alone, "sweep": sweep, "bounds": bounds}


def summary(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Per bound, over the repetitions."""
    found: dict[str, Any] = {}
    for bound in map(str, BOUNDS):
        rows = []
        for repetition in repetitions:
            limit = float(bound)
            alone = statistics.median(run["mean"] for run in repetition["alone"])
            kept = repetition["bounds"][bound]
            noise = statistics.fmean(inside(run, alone, limit) for run in repetition["alone"])
            enough = min(ENOUGH, noise)
            knobs = [run for run in repetition["sweep"].values() if inside(run, alone, limit) >= enough]
            perfect = max((run["secondary_rate"] for run in knobs), default=0.0)
            free = repetition["sweep"]["1.0"]
            rows.append(
                {
                    "windows_inside": inside(kept, alone, limit),
                    "windows_inside_alone": noise,
                    "windows_inside_by_its_own_count": kept.get("own_inside", 0.0),
                    "mean_slowdown": kept["mean"] / alone - 1,
                    "slowdown_without_bound": free["mean"] / alone - 1,
                    "p99_vs_p99_alone": kept["p99"] / statistics.median(run["p99"] for run in repetition["alone"]),
                    "secondary_vs_perfect_knob": kept["secondary_rate"] / perfect if perfect > 0 else 1.0,
                    "secondary_vs_no_bound": kept["secondary_rate"] / max(free["secondary_rate"], 1e-9),
                }
            )
        found[bound] = {name: spread([row[name] for row in rows]) for name in rows[0]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="per run; half of it in the sweep")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    steady_malloc()
    for kind in ("conv", "tiny", "memory"):
        train(kind, StepMeter(3))  # warms up torch
    raw = interleaved(arguments.pairs, arguments.repetitions, lambda pair: repeat(pair, arguments.seconds))
    summaries = {pair: summary(repetitions) for pair, repetitions in raw.items()}
    write("bound", {"summary": summaries, "repetitions": raw}, arguments.output)
    for pair, bounds in summaries.items():
        for bound, figures in bounds.items():
            print(f"{pair:16} {bound:5}", "  ".join(f"{name} {shown(figure)}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
