"""Draws pairs.png, which is the README's, and gaps.png from the JSON files of benchmarks/results/:
python benchmarks/picture.py"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from record import RESULTS

PAIRS = ("memory+memory", "conv+conv", "transformer+transformer", "mlp+mlp")
MODES = {"two processes": "lightgray", "torchshare": "tab:blue"}
GAP_MODES = {  # color and marker: hollow ones are without torchshare
    "two processes": ("dimgray", "o"),
    "two processes, nice 19": ("tab:orange", "s"),
    "two processes, SCHED_IDLE": ("tab:red", "D"),
    "two threads": ("tab:purple", "^"),
    "torchshare": ("tab:blue", "o"),
    "strict": ("tab:cyan", "s"),
    "best fit": ("tab:olive", "D"),
    "best fit + SCHED_IDLE": ("tab:green", "^"),
}


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


def draw_gaps(axes: list[Any], primaries: dict[str, Any]) -> None:
    """One axis per primary: its 99th percentile against the secondary's rate, both relative to alone."""
    for axis, (primary, modes) in zip(axes, primaries.items(), strict=True):
        for mode, (color, marker) in GAP_MODES.items():
            (x, x_spread), (y, y_spread) = rate(modes[mode], "secondary"), rate(modes[mode], "p99")
            fill = "white" if mode.startswith("two") else color
            axis.errorbar(x, y, y_spread, x_spread, color=color, marker=marker, mfc=fill, label=mode, lw=0.7, ms=6)
        axis.axhline(1, color="black", lw=0.8)
        axis.set_yscale("log")
        axis.set_ylim(0.3, 20)
        axis.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        axis.minorticks_off()
        axis.set_xlim(-0.02, 1)
        axis.set_title(primary, fontsize=10)


def plots(width: float, height: float, **layout: Any) -> tuple[Any, Any]:
    """A figure and its axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), **layout)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    allocator, pairs, gaps = (
        json.loads((RESULTS / f"{name}.json").read_text())["summary"] for name in ("allocator", "pairs", "gaps")
    )
    figure, (left, right) = plots(9, 3, nrows=1, ncols=2, width_ratios=[3, 2])
    draw_pairs(left, allocator)
    left.set_title("two equal jobs, two cores, glibc's malloc as it comes", fontsize=10)
    draw_primary(right, pairs["input_bound+conv"])
    figure.tight_layout()
    figure.savefig(arguments.output / "pairs.png", dpi=110)

    figure, axes = plots(9, 6, nrows=2, ncols=3, sharex=True, sharey=True)
    draw_gaps(list(axes.flat), gaps)
    figure.supxlabel("secondary's rate, alone = 1", fontsize=10)
    figure.supylabel("primary's 99th percentile, alone = 1", fontsize=10)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="upper center", ncols=4, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(arguments.output / "gaps.png", dpi=110)


if __name__ == "__main__":
    main()
