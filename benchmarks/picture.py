"""Draws the README's picture from the JSON files of benchmarks/results/: python benchmarks/picture.py"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from record import RESULTS

PAIRS = ("memory+memory", "conv+conv", "transformer+transformer", "mlp+mlp")
MODES = {"two processes": "lightgray", "torchshare": "tab:blue"}


def rate(mode: dict[str, dict[str, float]], figure: str) -> tuple[float, list[list[float]]]:
    """The median, and its distances to the extremes as matplotlib wants them."""
    found = mode[figure]
    return found["median"], [[found["median"] - found["min"]], [found["max"] - found["median"]]]


def draw_pairs(axis: Any, summary: dict[str, Any]) -> None:
    """Steps per second of two equal jobs, relative to one such job alone."""
    for place, pair in enumerate(PAIRS):
        alone = summary[pair.split("+")[0]]["plain, glibc"]["rate"]["median"]
        for offset, (mode, color) in zip((-0.2, 0.2), MODES.items(), strict=True):
            median, spread = rate(summary[pair][f"{mode}, glibc"], "rate")
            spread = [[each / alone for each in side] for side in spread]
            bar = axis.barh(place + offset, median / alone, 0.38, xerr=spread, color=color, ecolor="dimgray")
            axis.bar_label(bar, fmt="%.2f", padding=4, fontsize=8)
    axis.axvline(1, color="black", lw=0.8)
    axis.set_yticks(range(len(PAIRS)), [pair.replace("+", " + ") for pair in PAIRS])
    axis.invert_yaxis()
    axis.set_xlim(0, 11)
    axis.set_xlabel("steps/s of both, one after the other = 1")


def draw_primary(axis: Any, modes: dict[str, Any]) -> None:
    """Step times of a primary that waits for its input half of the time, and the secondary's rate beside it."""
    for place, (figure, title) in enumerate(
        {"primary_slowdown": "primary's step time", "secondary_rate": "secondary's steps/s"}.items()
    ):
        for offset, (mode, color) in zip((-0.2, 0.2), MODES.items(), strict=True):
            median, spread = rate(modes[mode], figure)
            label = mode if place == 0 else None
            bar = axis.barh(1.5 * place + offset, median, 0.38, xerr=spread, color=color, ecolor="dimgray", label=label)
            axis.bar_label(bar, fmt="%.2f", padding=4, fontsize=8)
        axis.text(0.02, 1.5 * place - 0.48, title, fontsize=9)
    axis.axvline(1, color="black", lw=0.8)
    axis.set_yticks([])
    axis.set_ylim(2.5, -0.9)
    axis.set_xlim(0, 1.7)
    axis.set_xlabel("alone = 1")
    axis.set_title("a primary that waits for input, one core", fontsize=10)
    axis.legend(frameon=False, loc="lower right", fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "pairs.png")
    arguments = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    allocator, pairs = (json.loads((RESULTS / f"{name}.json").read_text()) for name in ("allocator", "pairs"))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3), width_ratios=[3, 2])
    draw_pairs(left, allocator["summary"])
    left.set_title("two equal jobs, two cores, glibc's malloc as it comes", fontsize=10)
    draw_primary(right, pairs["summary"]["input_bound+conv"])
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(arguments.output, dpi=110)


if __name__ == "__main__":
    main()
