"""The cost of the op hook per op, from the Google Benchmark binary: its levels, randomly interleaved."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from record import RESULTS, shown, spread, write

LEVELS = {
    "added_ns": ("1", "0"),
    "watching_adds_ns": ("2", "1"),
    "timing_adds_ns": ("3", "1"),
}  # level, compared with which


def added(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Per op: nanoseconds without the hook; per repetition, the cost of the hook, of watching and of timing."""
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in report["benchmarks"]:
        op, hook = run["run_name"].split("/hook:")
        times[op][hook].append(run["cpu_time"])
    return {
        op: {
            "off_ns": spread(by_hook["0"]),
            **{
                name: spread([on - off for on, off in zip(by_hook[level], by_hook[base], strict=True)])
                for name, (level, base) in LEVELS.items()
            },
        }
        for op, by_hook in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    command = [
        arguments.binary,
        f"--benchmark_repetitions={arguments.repetitions}",
        "--benchmark_enable_random_interleaving=true",
        "--benchmark_min_time=0.05",
        "--benchmark_format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    report["benchmarks"] = [run for run in report["benchmarks"] if run["run_type"] == "iteration"]
    summary = added(report)
    write("hook", {"summary": summary}, arguments.output)
    for op, figures in summary.items():
        print(f"{op:12}", "  ".join(f"{name} {shown(figure, 0)}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
