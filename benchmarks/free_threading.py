"""Pairs of jobs of small ops with the GIL and without it, interleaved.

Two interpreters: this one, and a free-threaded one (`make free-threaded`), each with its own torch. Two jobs run as two
processes, in two threads of plain torch, and in torchshare; and each alone. Rates are divided by those of two processes
of this interpreter in the same repetition, and those of the free-threaded one by its own two processes, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from pairs import measure
from record import interleaved, parser, shown, spread, steady_malloc, write

PAIRS = {"tiny+tiny": ("tiny", "tiny"), "mlp+mlp": ("mlp", "mlp"), "conv+tiny": ("conv", "tiny")}
CORES = 2
MODES = ("two processes", "two threads", "torchshare")
FREE = Path(__file__).parents[1] / ".venv-free-threaded" / "bin" / "python"
DESCRIBE = """
import torch, torchshare
from torchshare.context import interpreter_lock
print(f"Python {interpreter_lock.described()}, torch {torch.__version__}")
"""


def repeat(pair: str, window: float, pythons: dict[str, list[str]]) -> dict[str, Any]:
    """One repetition: each kind alone and the pair in each mode, in each interpreter; steps per second."""
    kinds = list(PAIRS[pair])
    alone = {
        name: {kind: measure([kind], "alone", window, CORES, python)[0]["rate"] for kind in dict.fromkeys(kinds)}
        for name, python in pythons.items()
    }
    modes = {
        f"{mode}, {name}": [job["rate"] for job in measure(kinds, mode, window, CORES, python)]
        for mode in MODES
        for name, python in pythons.items()
    }
    return {"alone": alone, "modes": modes}


def aggregate(pair: str, repetition: dict[str, Any], mode: str) -> float:
    """The sum of both jobs' rates, each over its rate alone with the GIL."""
    alone = repetition["alone"]["GIL"]
    return sum(rate / alone[kind] for rate, kind in zip(repetition["modes"][mode], PAIRS[pair], strict=True))


def summary(pair: str, repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """For each mode, the rate over that of two processes; and each kind alone without the GIL over alone with it."""

    def over(mode: str, base: str) -> Any:
        return spread([aggregate(pair, r, mode) / aggregate(pair, r, base) for r in repetitions])

    found: dict[str, Any] = {}
    for mode in repetitions[0]["modes"]:
        found[mode] = {"vs_two_processes": over(mode, "two processes, GIL")}
        if mode.endswith("no GIL"):
            found[mode]["vs_own_two_processes"] = over(mode, "two processes, no GIL")
    for kind in repetitions[0]["alone"]["GIL"]:
        ratios = [r["alone"]["no GIL"][kind] / r["alone"]["GIL"][kind] for r in repetitions]
        found[f"{kind} alone, no GIL"] = {"vs_alone": spread(ratios)}
    return found


def main() -> None:
    options = parser(__doc__, repetitions=5, window=3.0)
    options.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    options.add_argument("--python", default=str(FREE), help="a free-threaded interpreter with torchshare")
    arguments = options.parse_args()
    steady_malloc()
    pythons = {"GIL": [sys.executable], "no GIL": [arguments.python, "-X", "gil=0"]}
    asked = subprocess.run([*pythons["no GIL"], "-c", DESCRIBE], check=True, capture_output=True, text=True)
    described = asked.stdout.strip()
    print(described)
    raw = interleaved(arguments.pairs, arguments.repetitions, lambda pair: repeat(pair, arguments.window, pythons))
    summaries = {pair: summary(pair, repetitions) for pair, repetitions in raw.items()}
    results = {"free_threaded": described, "summary": summaries, "repetitions": raw}
    write("free_threading", results, arguments.output)
    for pair, figures in summaries.items():
        for name, each in figures.items():
            print(f"{pair:12}{name:26}", "  ".join(f"{what} {shown(value)}" for what, value in each.items()))


if __name__ == "__main__":
    main()
