"""Instructions on the hot paths, counted by callgrind: what no other program on the machine changes.

Prints how many instructions a call of each case in cpp/instructions.cpp and instructions_of_steps.py takes in plain
torch, and how many more it takes in a job. `--check` compares them with those that benchmarks/results/instructions.json
has from the same torch and compiler, and fails if one has grown by more than 3 %, or by more than 10 % where other
threads of Python's or the runtime's are counted, too; without it, they are recorded there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from record import RESULTS, printed, write

ALLOWANCE = 0.03
ALLOWANCE_OF_STEPS = 0.10
LEAST = 5  # instructions, which an allocator's state may add
_CASE = re.compile(r"^desc: Trigger: Client Request: (.+) x(\d+)$", re.MULTILINE)
_COUNT = re.compile(r"^summary: (\d+)$", re.MULTILINE)


def counted(*command: str | Path) -> dict[str, float]:
    """Instructions per call of each case of a program, in order."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        callgrind = ["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=out", *command]
        subprocess.run(callgrind, cwd=folder, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
        dumps = [path for path in Path(folder).iterdir() if path.suffix]  # the rest is in `out`
        for path in sorted(dumps, key=lambda path: int(path.suffix[1:])):
            text = path.read_text(errors="replace")
            if "Client Request: before\n" in text:  # what counting.cpp dumps when it begins
                continue
            case, total = _CASE.search(text), _COUNT.search(text)
            assert case is not None and total is not None, path
            found[case[1]] = int(total[1]) / int(case[2])
    return found


def added(counts: dict[str, float]) -> dict[str, dict[str, float]]:
    """Per case of plain torch: its instructions, and how many more the same takes in a job, by how it is run there."""
    table: dict[str, dict[str, float]] = {}
    for name, count in counts.items():
        how, _, case = name.rpartition(": ")
        figures = table.setdefault(case, {})
        figures[how or "job"] = count - figures.get("plain", 0.0)
    return table


def grown(recorded: dict[str, float], counts: dict[str, float], allowance: float = ALLOWANCE) -> list[str]:
    """The cases that take more instructions than was recorded and is allowed."""
    return [
        f"{name}: {counts[name]:,.0f} instructions, {before:,.0f} before"
        for name, before in recorded.items()
        if name in counts and counts[name] > before * (1 + allowance) + LEAST
    ]


def made_with() -> dict[str, str]:
    """What else the counts depend on. Not the processor: valgrind's own has AVX2."""
    return {
        "torch": torch.__version__,
        "compiler": printed("g++", "--version").partition("\n")[0],
        "valgrind": printed("valgrind", "--version"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    binary, made = arguments.binary.resolve(), made_with()
    of_steps = [sys.executable, Path(__file__).resolve().with_name("instructions_of_steps.py")]
    counting = binary.with_name("libtorchshare_counting.so")
    counts, steps = counted(binary), counted("--instr-atstart=no", *of_steps, counting)
    for case, figures in added(counts | steps).items():
        print(f"{case:22}", "  ".join(f"{how} {'' if how == 'plain' else '+'}{n:,.0f}" for how, n in figures.items()))
    if not arguments.check:
        write("instructions", {"made_with": made, "counts": counts, "steps": steps}, arguments.output)
        return
    recorded: dict[str, Any] = json.loads((RESULTS / "instructions.json").read_text())
    if recorded["made_with"] != made:
        print(f"not compared: recorded with {recorded['made_with']}, here {made}")
    elif more := grown(recorded["counts"], counts) + grown(recorded["steps"], steps, ALLOWANCE_OF_STEPS):
        raise SystemExit("more instructions than recorded: " + "; ".join(more))


if __name__ == "__main__":
    main()
