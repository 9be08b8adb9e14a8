"""Measures the overhead of the runtime on a job that runs alone: alternating blocks of steps in a job and in a thread.

The training step, model and thread count are the same; adjacent blocks in one process give a ratio: a job / a plain
thread, and a job whose ops are watched (policy="best_fit", the sharing stage) or all timed (the measuring stage) / a
job. The controls are ratios of equal blocks; they show the machine's noise.
"""

from __future__ import annotations

import argparse
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import torchshare

from jobs import train
from record import RESULTS, shown, spread, steady_malloc, write

STEPS = {"conv": 6, "tiny": 300}  # of a block


class BlockMeter:
    """Measures `steps` steps after a few to warm up."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._warm_up = max(2, steps // 10)
        self._begin = 0.0
        self._steps = steps
        self.seconds_per_step = 0.0

    def step_done(self) -> bool:
        if self._warm_up > 0:
            self._warm_up -= 1
            self._begin = time.perf_counter()
            return True
        self._left -= 1
        self.seconds_per_step = (time.perf_counter() - self._begin) / self._steps
        return self._left > 0


def in_plain_thread(kind: str) -> float:
    meter = BlockMeter(STEPS[kind])

    def body() -> None:
        torch.autograd.set_multithreading_enabled(False)
        train(kind, meter)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return meter.seconds_per_step


def in_job(kind: str, policy: str = "priority", record_ops: bool = False) -> float:
    meter = BlockMeter(STEPS[kind])
    with torchshare.Runtime(policy=policy) as runtime:
        runtime.submit(lambda job: train(kind, meter, job), priority="primary", threads=1, record_ops=record_ops)
    return meter.seconds_per_step


def watched(kind: str) -> float:
    return in_job(kind, policy="best_fit")


def timed(kind: str) -> float:
    return in_job(kind, record_ops=True)


def ratios(kind: str, rounds: int) -> dict[str, dict[str, float]]:
    order: list[Callable[[str], float]] = [in_plain_thread, in_job, watched, in_job, timed, in_job, in_plain_thread]
    times = [[run(kind) for run in order] for _ in range(rounds)]
    return {
        "torchshare": spread([(each[1] + each[5]) / (each[0] + each[6]) for each in times]),
        "control": spread([each[6] / each[0] for each in times]),
        "watched": spread([2 * each[2] / (each[1] + each[3]) for each in times]),
        "timed": spread([2 * each[4] / (each[3] + each[5]) for each in times]),
        "job_control": spread([2 * each[3] / (each[1] + each[5]) for each in times]),
        "step_ms": spread([1e3 * each[0] for each in times]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=45)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    steady_malloc()
    warnings.simplefilter("ignore")
    summary = {kind: ratios(kind, arguments.rounds) for kind in STEPS}
    write("overhead", {"summary": summary}, arguments.output)
    for kind, figures in summary.items():
        print(f"{kind:6}", "  ".join(f"{name} {shown(figure, 3)}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
