"""Compares `start="auto"` with always now, always after and the secondary first, on pairs of known length.

All modes of a repetition run one after the other in this process; figures are ratios within a repetition. The best in
hindsight is the least average JCT of the three fixed modes in that repetition. JCT counts from the start of both."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torchshare
from torchshare.profiles.profile import Profile
from torchshare.profiling.measure import measure
from torchshare.profiling.measurement import Candidate

from jobs import StepMeter, train
from record import RESULTS, shown, spread, steady_malloc, write

# Per pair: (kind, threads, seconds alone) of the primary and of the secondary.
Job = tuple[str, int, float]
PAIRS: dict[str, tuple[Job, Job]] = {
    "large + large": (("conv", 2, 4.0), ("conv", 2, 4.0)),
    "large + tiny": (("conv", 1, 4.0), ("tiny", 1, 4.0)),
    "input-bound + large": (("input_bound", 1, 4.0), ("conv", 2, 4.0)),
    "short + long": (("tiny", 1, 1.5), ("tiny", 1, 6.0)),
    "long + short": (("tiny", 1, 6.0), ("tiny", 1, 1.5)),
    "memory + compute": (("memory", 1, 4.0), ("conv", 1, 4.0)),
}
FIXED = ("now", "after", "secondary first")
MODES = (*FIXED, "auto, cold", "auto, profiles")
NAMES = ("primary", "secondary")
ENDLESS = 1 << 40  # steps


def job(kind: str, threads: int, steps: int) -> Any:
    return lambda job: train(kind, StepMeter(steps), job, threads)


def profiles(pair: tuple[Job, Job], window: float) -> list[Profile]:
    candidates = [
        Candidate(name, job(kind, threads, ENDLESS), threads)
        for name, (kind, threads, _) in zip(NAMES, pair, strict=True)
    ]
    return measure(candidates, splits=1, window=window, rounds=2)[0]


def run(pair: tuple[Job, Job], steps: list[int], mode: str, known: list[Profile]) -> dict[str, Any]:
    """The JCTs of both, in seconds, and the decisions."""
    starts = {
        "now": ("now", "now"),
        "after": ("now", "after:primary"),
        "secondary first": ("after:secondary", "now"),
    }.get(mode, ("now", "auto"))
    with torchshare.Runtime() as runtime:
        for index, (kind, threads, _) in enumerate(pair):
            runtime.submit(
                job(kind, threads, steps[index]),
                name=NAMES[index],
                priority=NAMES[index],
                start=starts[index],
                threads=threads,
                steps=steps[index],
                profile=known[index] if mode == "auto, profiles" else None,
            )
        began = time.monotonic_ns()
        runtime.wait()
        events = runtime.events()
    ends = {name: end for kind, name, _, end, _, detail in events if kind == "state" and detail == "finished"}
    decisions = [
        [round((begin - began) / 1e9, 3), name, detail]
        for kind, name, begin, _, _, detail in events
        if kind == "decision" and "auto" in detail
    ]
    return {"jct": [(ends[name] - began) / 1e9 for name in NAMES], "decisions": decisions}


def average(run: dict[str, Any]) -> float:
    return float(sum(run["jct"]) / 2)


def summary(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Per mode: average JCT in seconds, and its ratios to the best in hindsight and to one after the other."""
    found = {}
    for mode in repetitions[0]:
        best = [min(average(r[fixed]) for fixed in FIXED) for r in repetitions]
        found[mode] = {
            "average_jct_s": spread([average(r[mode]) for r in repetitions]),
            "vs_best": spread([average(r[mode]) / b for r, b in zip(repetitions, best, strict=True)]),
            "vs_after": spread([average(r[mode]) / average(r["after"]) for r in repetitions]),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--window", type=float, default=2.0, help="seconds per measurement of a profile")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    steady_malloc()
    for kind in ("conv", "tiny", "memory", "input_bound"):
        train(kind, StepMeter(3))  # warms up torch
    raw: dict[str, Any] = {}
    for name in arguments.pairs:
        pair = PAIRS[name]
        known = profiles(pair, arguments.window)
        alone = [profile.alone[0].step_s.median for profile in known]
        steps = [round(seconds / step) for (_, _, seconds), step in zip(pair, alone, strict=True)]
        ratios = known[0].partners[0].beside[0]
        raw[name] = {"steps": steps, "ratios": [ratios.ratio, ratios.partner_ratio], "repetitions": []}
        for number in range(arguments.repetitions):
            raw[name]["repetitions"].append({mode: run(pair, steps, mode, known) for mode in MODES})
            print(f"{name}: repetition {number + 1} of {arguments.repetitions}", file=sys.stderr)
    summaries = {name: summary(data["repetitions"]) for name, data in raw.items()}
    write("auto", {"summary": summaries, "pairs": raw}, arguments.output)
    for name, modes in summaries.items():
        ratios = " and ".join(f"{ratio:.2f}" for ratio in raw[name]["ratios"])
        print(f"{name}: ratios {ratios}, steps {raw[name]['steps']}")
        for mode, figures in modes.items():
            print(f"  {mode:16}", "  ".join(f"{key} {shown(figure)}" for key, figure in figures.items()))


if __name__ == "__main__":
    main()
