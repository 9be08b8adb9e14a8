"""Measures the fit of the step-time model: each job alone in smaller and smaller sub-batches; leave-one-out errors."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from torchshare.profiling.measure import measure
from torchshare.profiling.measurement import Candidate

from jobs import KINDS, StepMeter, train
from record import RESULTS, spread, steady_malloc, write

ENDLESS = 1 << 40  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=float, default=1.5, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    steady_malloc()
    errors: dict[str, list[float]] = {}
    profiles = {}
    for kind in KINDS:
        train(kind, StepMeter(3))  # warms up torch
        job = Candidate(kind, lambda job, kind=kind: train(kind, StepMeter(ENDLESS), job), threads=1)
        ((profile,), _) = measure([job], splits=arguments.splits, window=arguments.window, rounds=arguments.rounds)
        errors[kind] = profile.fit.left_out_errors
        profiles[kind] = profile.model_dump()
        steps = ", ".join(f"{1e3 * size.step_s.median:.2f}" for size in profile.alone)
        print(f"{kind:12} steps {steps} ms; left-out errors {', '.join(f'{e:.1%}' for e in errors[kind])}")
    everything = [error for of_kind in errors.values() for error in of_kind]
    found = {kind: spread(of_kind) for kind, of_kind in errors.items()} | {"all": spread(everything)}
    write("fit", {"summary": found, "profiles": profiles}, arguments.output)
    print(f"median over all jobs and sizes: {statistics.median(everything):.1%}")


if __name__ == "__main__":
    main()
