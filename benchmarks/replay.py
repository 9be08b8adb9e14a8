"""Compares the op replay with real runs: step times predicted from ops recorded alone, per pair and gate policy.

Every repetition records both jobs alone, then runs them together under each policy, one after the other in one process.
A prediction is compared with the job's mean step in a window in which both were warm."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import torchshare
from torchshare.cli.replay import this_machine
from torchshare.profiles.ops import OpTrace
from torchshare.profiling.replay import Machine, replay

from jobs import StepMeter, train
from record import RESULTS, shown, spread, steady_malloc, write

PAIRS = (("conv", "conv"), ("conv", "tiny"), ("memory", "conv"), ("input_bound", "conv"), ("input_bound", "tiny"))
POLICIES = ("priority", "strict", "best_fit")
FEWEST_STEPS = 5  # needed for a mean
ENDLESS = 1 << 40
WARM_UP_S = 1.0


def run(kinds: tuple[str, ...], policy: str, window: float, record_ops: bool = False) -> list[Any]:
    """Runs the jobs for a window; returns the runtime's jobs and the mean step time of each, None for too few steps."""
    with torchshare.Runtime(policy=policy) as runtime:
        jobs = [
            runtime.submit(
                lambda job, kind=kind: train(kind, StepMeter(ENDLESS), job),
                name=f"{index} {kind}",
                priority="secondary" if index else "primary",
                threads=1,
                record_ops=record_ops,
            )
            for index, kind in enumerate(kinds)
        ]
        runtime.start()
        time.sleep(WARM_UP_S)
        begin = time.monotonic_ns()
        time.sleep(window)
        end = time.monotonic_ns()
        runtime.cancel()
        runtime.wait()
        events = runtime.events()
    means = []
    for job in jobs:
        ends = [at for kind, name, _, at, _, _ in events if kind == "step" and name == job.name and begin <= at < end]
        means.append(float(np.diff(ends).mean()) / 1e9 if len(ends) > FEWEST_STEPS else None)
    return [jobs, means]


def recorded(kind: str, window: float) -> tuple[OpTrace, float | None]:
    """A job's ops alone, without the warm-up, and its mean step."""
    (job,), (mean,) = run((kind,), "priority", window, record_ops=True)
    columns = job._context.handle.op_trace()
    ends = columns["step_ends"]
    first = int(ends[len(ends) // 4])
    trace = {name: columns[name][first:] for name in ("context", "gap", "idle", "duration")}
    kept = (ends[ends > first] - first).astype(np.uint64)
    return OpTrace(job=kind, threads=1, step_ends=kept, **trace), mean


def repeat(pair: tuple[str, str], window: float, machine: Machine) -> dict[str, Any]:
    """Per policy: measured and predicted mean steps of both jobs."""
    traces = {kind: recorded(kind, window)[0] for kind in dict.fromkeys(pair)}
    found = {}
    for policy in POLICIES:
        _, means = run(pair, policy, window)
        predicted = replay([traces[kind] for kind in pair], policy, machine)
        found[policy] = {
            "measured": means,
            "predicted": [job.step_s for job in predicted],
            "alone": [job.step_alone_s for job in predicted],
        }
    return found


def summary(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """Per policy: errors of the predictions, without jobs that are kept out in both."""
    found: dict[str, Any] = {}
    for policy in POLICIES:
        found[policy] = {}
        for index, name in enumerate(("primary", "secondary")):
            errors = [
                run["predicted"][index] / run["measured"][index] - 1
                for run in (repetition[policy] for repetition in repetitions)
                if run["measured"][index] is not None and run["predicted"][index] is not None
            ]
            found[policy][name] = spread(errors) if errors else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    steady_malloc()
    machine = this_machine()
    raw: dict[str, list[Any]] = {" + ".join(pair): [] for pair in PAIRS}
    for number in range(arguments.repetitions):
        for pair in PAIRS:
            raw[" + ".join(pair)].append(repeat(pair, arguments.window, machine))
        print(f"repetition {number + 1} of {arguments.repetitions}", file=sys.stderr)
    summaries = {pair: summary(repetitions) for pair, repetitions in raw.items()}
    write("replay", {"summary": summaries, "repetitions": raw}, arguments.output)
    for pair, policies in summaries.items():
        for policy, jobs in policies.items():
            texts = [f"{name} {shown(errors) if errors else 'kept out'}" for name, errors in jobs.items()]
            print(f"{pair:20}{policy:10}", "  ".join(texts))


if __name__ == "__main__":
    main()
