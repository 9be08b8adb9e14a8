"""Measures what a secondary's priority is worth beside ordinary processes that keep every core busy, and without them.

The priorities of `device_priority`, interleaved; each run is a fresh process. Rates are divided by the rate alone in
the same repetition, beside the same processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from pairs import WindowMeter, collect, in_threads, in_torchshare, in_window_of_parent, launch
from record import interleaved, parser, shown, spread, write

KINDS = ["conv", "conv"]
PRIORITIES = ("idle", "nice", "none")
CORES = os.cpu_count() or 1


def work(kinds: list[str], priority: str) -> list[dict[str, float]]:
    """Runs one job alone, or two in a runtime; returns their figures."""
    run = in_threads if len(kinds) == 1 else in_torchshare({"device_priority": priority})
    return [meter.figures() for meter in in_window_of_parent(kinds, WindowMeter, run)]


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def repeat(beside: str, window: float) -> dict[str, list[float]]:
    """Relative rates of the primary and the secondary, per priority."""
    with busy(CORES if beside == "busy" else 0):
        alone = collect([launch(__file__, [KINDS[:1], ""], CORES)], window)[0]["rate"]
        return {
            priority: [job["rate"] / alone for job in collect([launch(__file__, [KINDS, priority], CORES)], window)]
            for priority in PRIORITIES
        }


def main() -> None:
    arguments = parser(__doc__, repetitions=5, window=4.0).parse_args()
    if arguments.work:
        print(json.dumps(work(*json.loads(arguments.work))))
        return
    raw = interleaved(("busy", "free"), arguments.repetitions, lambda beside: repeat(beside, arguments.window))
    summary: dict[str, Any] = {
        beside: {
            priority: {
                job: spread([each[priority][index] for each in found])
                for index, job in enumerate(("primary", "secondary"))
            }
            for priority in PRIORITIES
        }
        for beside, found in raw.items()
    }
    write("priority", {"summary": summary, "repetitions": raw}, arguments.output)
    for beside, priorities in summary.items():
        for priority, jobs in priorities.items():
            print(f"{beside:6}{priority:6}", "  ".join(f"{job} {shown(figure)}" for job, figure in jobs.items()))


if __name__ == "__main__":
    main()
