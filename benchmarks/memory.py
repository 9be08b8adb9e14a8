"""Measures memory: a pair in one process and in two, a full timeline, and growth over many steps.

Peaks are of the proportional set size (PSS), which divides shared pages among the processes: a fair comparison for two
processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import psutil

from record import RESULTS, write

MIB = 1 << 20
STEPS = 30  # of the conv jobs
SETTLE_STEPS, GROWTH_STEPS = 2_000, 10_000
EVENTS = 1_000_000


def pss() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def peak_of(run: Any) -> int:
    """The peak PSS during `run()`, in bytes."""
    seen = [pss()]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.02):
            seen.append(pss())

    sampler = threading.Thread(target=sample)
    sampler.start()
    run()
    stop.set()
    sampler.join()
    return max(seen)


def train_alone() -> dict[str, int]:
    from jobs import StepMeter, train

    return {"peak": peak_of(lambda: train("conv", StepMeter(STEPS)))}


def train_pair() -> dict[str, int]:
    import torchshare

    from jobs import StepMeter, train

    def pair() -> None:
        with torchshare.Runtime() as runtime:
            for name in ("primary", "secondary"):
                runtime.submit(lambda job: train("conv", StepMeter(STEPS), job), name=name, priority=name, threads=1)

    return {"peak": peak_of(pair)}


def timeline() -> dict[str, int]:
    import torchshare

    process = psutil.Process()
    with torchshare.Runtime(timeline_capacity=EVENTS) as runtime:
        before = process.memory_info().rss

        def fill(job: torchshare.Job) -> None:
            while runtime._handle.dropped_events < 1000:
                for batch in job.batches([(1,)] * 10_000):
                    list(batch)

        runtime.submit(fill)
        runtime.wait()
        return {"events": EVENTS, "bytes": process.memory_info().rss - before}


def growth() -> dict[str, int]:
    import torchshare

    from jobs import StepMeter, train

    process = psutil.Process()
    seen: list[int] = []

    class Watch(StepMeter):
        def step_done(self) -> bool:
            if self.left in (GROWTH_STEPS, 1):
                seen.append(process.memory_info().rss)
            return super().step_done()

    with torchshare.Runtime(timeline_capacity=1000) as runtime:
        for name in ("primary", "secondary"):
            meter = (Watch if name == "primary" else StepMeter)(SETTLE_STEPS + GROWTH_STEPS)
            runtime.submit(lambda job, meter=meter: train("tiny", meter, job), name=name, priority=name, threads=1)
    return {"steps": GROWTH_STEPS, "bytes": seen[1] - seen[0]}


PARTS = {"alone": train_alone, "pair": train_pair, "timeline": timeline, "growth": growth}


def start(part: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, "--part", part], stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    return json.loads(process.communicate()[0])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        warnings.simplefilter("ignore")
        print(json.dumps(PARTS[arguments.part]()))
        return
    two = [start("alone"), start("alone")]
    two_processes = sum(finish(process)["peak"] for process in two)
    time.sleep(0.5)
    one_process = finish(start("pair"))["peak"]
    figures = {
        "two_processes_peak_mib": two_processes / MIB,
        "one_process_peak_mib": one_process / MIB,
        "one_vs_two": one_process / two_processes,
        "timeline_of_1e6_events_mib": finish(start("timeline"))["bytes"] / MIB,
        "growth_over_1e4_steps_mib": finish(start("growth"))["bytes"] / MIB,
    }
    write("memory", {"summary": figures}, arguments.output)
    for name, value in figures.items():
        print(f"{name:30}{value:10.2f}")


if __name__ == "__main__":
    main()
