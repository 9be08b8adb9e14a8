"""Prints the README's tables from the JSON files of benchmarks/results/."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from record import RESULTS, shown


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pairs(summary: dict[str, Any]) -> str:
    rows = []
    for pair, modes in summary.items():
        for mode, figures in modes.items():
            versus = shown(figures["vs_two_processes"]) if "vs_two_processes" in figures else "-"
            idle = shown(figures["share_of_idle"]) if "share_of_idle" in figures else "-"
            slowdowns = [shown(figures["primary_slowdown"]), shown(figures["secondary_rate"])]
            makespan = f"{figures['makespan_computed']['median']:.2f}"
            rows.append([pair, mode, *slowdowns, shown(figures["aggregate"]), versus, makespan, idle])
    headings = [
        "pair",
        "mode",
        "primary slowdown",
        "secondary rate",
        "aggregate",
        "vs two processes",
        "makespan",
        "of idle time",
    ]
    return table(headings, rows)


def memory(summary: dict[str, float]) -> str:
    return table(["memory", "measured"], [[name, f"{value:.2f}"] for name, value in summary.items()])


def overhead(summary: dict[str, Any]) -> str:
    rows = [
        [kind, *(shown(figures[name], 3) for name in ("torchshare", "control"))] for kind, figures in summary.items()
    ]
    return table(["solo step", "inside a job / plain", "plain / plain"], rows)


def hook(summary: dict[str, Any]) -> str:
    rows = [[op, shown(figures["off_ns"], 0), shown(figures["added_ns"], 0)] for op, figures in summary.items()]
    return table(["op", "without, ns", "the hook adds, ns"], rows)


TABLES = {"pairs": pairs, "overhead": overhead, "hook": hook, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name, make in TABLES.items():
        path = arguments.results / f"{name}.json"
        if path.exists():
            record = json.loads(path.read_text())
            where = record["environment"]
            print(f"{make(record['summary'])}\n\n{where['machine']}, {where['cores']} cores, torch {where['torch']}, "
                  f"{where['date']}, commit {where['commit']}: `{where['command']}`\n")  # fmt: skip


if __name__ == "__main__":
    main()
