"""Threads, file descriptors and memory of a process that runs random jobs for a long time; see tests/soak.py.

python benchmarks/soak.py --minutes 30
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from pathlib import Path

import torch

from record import RESULTS, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from soak import MIB, Baselines, one_round, settled

COLUMNS = ("minutes", "rounds", "threads", "descriptors", "memory_mib")


def plot(samples: list[list[float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    minutes, _, *columns = zip(*samples, strict=True)
    figure, axes = pyplot.subplots(len(columns), figsize=(8, 5), sharex=True)
    for axis, name, column in zip(axes, ("threads", "file descriptors", "memory, MiB"), columns, strict=True):
        axis.plot(minutes, column, drawstyle="steps-post")
        axis.set_ylim(0, 1.2 * max(column))
        axis.set_ylabel(name)
    axes[-1].set_xlabel(f"minutes; {samples[-1][1]:.0f} runtimes of up to three jobs")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    logging.getLogger("torchshare").setLevel(logging.CRITICAL)  # failures of jobs are expected
    torch.set_num_threads(1)
    chance, alone = random.Random(arguments.seed), Baselines("cpu")
    samples: list[list[float]] = []
    begin = time.monotonic()
    rounds = 0
    while (minutes := (time.monotonic() - begin) / 60) < arguments.minutes:
        if minutes * 6 >= len(samples):  # every ten seconds
            threads, descriptors, memory = settled()
            samples.append([minutes, rounds, threads, descriptors, memory / MIB])
            print(*(f"{name} {value:.1f}" for name, value in zip(COLUMNS, samples[-1], strict=True)), flush=True)
        one_round(chance, alone)
        rounds += 1
    write("soak", {"seed": arguments.seed, "columns": COLUMNS, "samples": samples}, arguments.output)
    plot(samples, arguments.output / "soak.png")


if __name__ == "__main__":
    main()
