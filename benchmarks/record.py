"""The environment and the statistics in every benchmark's JSON."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"

# By default, glibc returns large blocks to the system and faults their pages in again: 300 to 6,500 times per step of
# the conv job, depending on other allocations (benchmarks/allocator.py). Tuned so, it keeps them.
STEADY_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def steady_malloc() -> None:
    """Restarts this program with `STEADY_MALLOC` if it is not set: glibc reads it only at the start."""
    if any(os.environ.get(name) != value for name, value in STEADY_MALLOC.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **STEADY_MALLOC})


def parser(doc: str | None, repetitions: int, window: float) -> argparse.ArgumentParser:
    """The options of benchmarks that start themselves again, with `--work`, for each measurement."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--repetitions", type=int, default=repetitions)
    found.add_argument("--window", type=float, default=window, help="seconds")
    found.add_argument("--output", type=Path, default=RESULTS)
    found.add_argument("--work", help=argparse.SUPPRESS)
    return found


def summarize(name: str, doc: str | None, measure: Callable[[], list[dict[str, Any]]]) -> None:
    """The program of a benchmark whose only option is where it writes the rows that `measure` returns."""
    options = argparse.ArgumentParser(description=doc)
    options.add_argument("--output", type=Path, default=RESULTS)
    output = options.parse_args().output
    write(name, {"summary": measure()}, output)


def environment() -> dict[str, Any]:
    """The machine, its GPU, the versions, the commit (`COMMIT` where there is no repository) and the command."""
    models = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    # not asked of torch, which would open a context here and keep it
    gpu = printed("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    return {
        "machine": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("COMMIT") or printed("git", "rev-parse", "--short", "HEAD"),
        "command": "python " + " ".join(sys.argv),
        **({"gpu": gpu} if gpu else {}),
    }


def printed(*command: str) -> str:
    """What the command prints; nothing if it is not installed."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def spread(values: list[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def interleaved(names: Iterable[str], repetitions: int, measure: Callable[[str], Any]) -> dict[str, list[Any]]:
    """The results of `measure(name)` per name and repetition; each repetition measures all names."""
    raw: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(1, repetitions + 1):
        for name, measured in raw.items():
            measured.append(measure(name))
            print(f"{name}: repetition {number} of {repetitions}", file=sys.stderr)
    return raw


def shown(figure: dict[str, float], digits: int = 2) -> str:
    """`1.02 (0.99-1.05)`: the median, and the extremes."""
    return f"{figure['median']:.{digits}f} ({figure['min']:.{digits}f}-{figure['max']:.{digits}f})"


def write(name: str, figures: dict[str, Any], folder: Path) -> None:
    """Writes `figures` and the environment to `folder/name.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"environment": environment(), **figures}, indent=2)
    (folder / f"{name}.json").write_text(text + "\n")
