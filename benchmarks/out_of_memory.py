"""Measures what it costs when memory is short: budgets, repeated batches, spilled jobs, checkpoints, restarts.

- `pair`: two conv jobs with one budget each, in sub-batches of B, B/2, B/4 and B/8 rows: peak memory, completion time
  and how many rows at once they end with. The budget does not hold B rows.
- `ready`: a step of a job that could repeat its batches (it has a budget) / one that only counts its memory.
- `repeated`: the time of a step whose batch is refused once and repeated, in steps of the job.
- `spill`: seconds per GiB to move a job's memory away and back, and the same for a plain copy to a file and from it.
- `checkpoint`: a step of a job that writes a checkpoint every 20 steps / one that writes none; from it, the share of
  the time at the default interval of 5 minutes.
- `restart`: from SIGKILL to the first new step of both jobs of `torchshare run --max-restarts`, beside the time from
  the start of the program to the first step.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

import torchshare
from torchshare import Job

from jobs import Training
from record import RESULTS, spread, steady_malloc, write

ROWS = 64
STEPS = 12
GIB, MIB = 1 << 30, 1 << 20


class Timed:
    """Records the time of each step, until there are `steps`."""

    def __init__(self, steps: int, at: Callable[[int], None] = lambda step: None) -> None:
        self.times: list[float] = []
        self._steps = steps
        self._at = at
        self._begin = time.perf_counter()

    def step_done(self) -> bool:
        now = time.perf_counter()
        self.times.append(now - self._begin)
        self._at(len(self.times))
        self._begin = time.perf_counter()
        return len(self.times) < self._steps


def run(kind: str, meter: Timed, **options: Any) -> torchshare.Result:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda job: Training(kind).run(meter, job), name="a", threads=1, **options)
        return runtime.wait()["a"]


def pair(repetitions: int) -> dict[str, Any]:
    whole = run(f"conv:{ROWS}", Timed(3), meter_memory=True).memory_peak
    budget = 2 * whole // 3
    found: dict[str, Any] = {"rows": ROWS, "peak_alone_mib": whole / MIB, "budget_mib": budget / MIB}
    for rows in (ROWS, ROWS // 2, ROWS // 4, ROWS // 8):
        seconds, peaks, ends = [], [], []
        for _ in range(repetitions):
            begin = time.perf_counter()
            with torchshare.Runtime(device="cpu") as runtime:
                jobs = [
                    runtime.submit(
                        lambda job: Training(f"conv:{ROWS}").run(Timed(STEPS), job),
                        **{"name": name, "threads": 1, "sub_batch": rows, "memory_budget": budget},
                    )
                    for name in ("a", "b")
                ]
                results = runtime.wait()
            seconds.append(time.perf_counter() - begin)
            peaks.append(max(result.memory_peak for result in results.values()) / MIB)
            ends.append(min(job._context.rows_at_once.of(rows) for job in jobs))
        found[f"sub_batch {rows}"] = {"s": spread(seconds), "peak_mib": spread(peaks), "rows_in_the_end": ends}
    return found


def ready(repetitions: int) -> dict[str, Any]:
    found = {}
    for kind, steps in (("conv:32", 12), ("tiny", 400), ("mlp", 300)):
        ratios = []
        for _ in range(3 * repetitions):
            times = []
            for options in ({"meter_memory": True}, {"memory_budget": 64 * GIB}, {"meter_memory": True}):
                meter = Timed(steps)
                run(kind, meter, **options)
                times.append(statistics.median(meter.times[steps // 4 :]))
            ratios.append(2 * times[1] / (times[0] + times[2]))
        found[kind] = spread(ratios)
    return found


def repeated(repetitions: int) -> dict[str, float]:
    costs = []
    for _ in range(repetitions):
        with torchshare.Runtime(device="cpu") as runtime:
            meters: list[Timed] = []

            def train(job: Job, meters: list[Timed] = meters) -> None:
                def at(step: int) -> None:
                    if step == STEPS - 1:
                        job._context.handle.refuse_memory_after(60)

                meters.append(Timed(STEPS, at))
                Training(f"conv:{ROWS}").run(meters[0], job)

            runtime.submit(train, name="a", threads=1, memory_budget=64 * GIB)
            runtime.wait()
        *before, last = meters[0].times
        costs.append(last / statistics.median(before[2:]))
    return spread(costs)


def spill(repetitions: int) -> dict[str, Any]:
    size = 512 * MIB
    seconds: dict[str, list[float]] = {"away": [], "back": [], "copy to a file": [], "copy from a file": []}

    def train(job: Job) -> None:
        net = nn.ParameterList([torch.randn(size // 32 // 4) for _ in range(32)])
        job.track(model=net)
        from torchshare.memory.spill import Spilled

        for _ in job.batches([torch.ones(1)] * repetitions):
            begin = time.perf_counter()
            spilled = Spilled(job._context)
            away = time.perf_counter()
            spilled.restore()
            seconds["away"].append((away - begin) * GIB / size)
            seconds["back"].append((time.perf_counter() - away) * GIB / size)

    for _ in range(2):
        with torchshare.Runtime(device="cpu") as runtime:
            runtime.submit(train, name="a", threads=1)
            runtime.wait()
        source = torch.randn(size // 4)
        for _ in range(repetitions):
            with tempfile.NamedTemporaryFile() as file:
                begin = time.perf_counter()
                kept = torch.from_file(file.name, shared=True, size=size // 4).copy_(source)
                away = time.perf_counter()
                torch.empty(size // 4).copy_(kept)
                seconds["copy to a file"].append((away - begin) * GIB / size)
                seconds["copy from a file"].append((time.perf_counter() - away) * GIB / size)
    rates = {
        "away": statistics.median(seconds["copy to a file"]) / statistics.median(seconds["away"]),
        "back": statistics.median(seconds["copy from a file"]) / statistics.median(seconds["back"]),
    }
    return {"s_per_gib": {name: spread(values) for name, values in seconds.items()}, "rate_of_a_copy": rates}


def checkpoint(repetitions: int) -> dict[str, Any]:
    every, steps = 20, 80
    ratios, costs = [], []
    for _ in range(3 * repetitions):
        times = []
        for writes in (False, True, False):
            with tempfile.TemporaryDirectory() as folder:
                options: Any = {"checkpoint": folder, "every": every} if writes else {}
                meter = Timed(steps)

                def train(job: Job, meter: Timed = meter) -> None:
                    training = Training("conv:16")
                    job.track(model=training.model, optimizer=training.optimizer)
                    training.run(meter, job)

                with torchshare.Runtime(device="cpu", **options) as runtime:
                    runtime.submit(train, name="a", threads=1)
                    runtime.wait()
                times.append(sum(meter.times[1:]) / (steps - 1))
        ratios.append(2 * times[1] / (times[0] + times[2]))
        costs.append((times[1] - (times[0] + times[2]) / 2) * every)
    return {
        "every_20_steps": spread(ratios),
        "s_per_checkpoint": spread(costs),
        "share_at_5_minutes": statistics.median(costs) / 300,
    }


SCRIPT = """
import sys, time, torch, torchshare
from torch import nn
torch.manual_seed(int(sys.argv[1]))
net = nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
torchshare.track(model=net, optimizer=optimizer)
for x in torchshare.batches([torch.randn(8, 64) for _ in range(4000)]):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
    with open(sys.argv[2], "a") as file:
        print(time.time(), file=file)
    time.sleep(0.005)
"""


def restart(repetitions: int) -> dict[str, Any]:
    """In seconds."""
    to_start, to_restart = [], []
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "train.py")
            script.write_text(SCRIPT)
            logs = [Path(folder, f"{name}.txt") for name in "ab"]
            commands = [
                f"{name}={script} {seed} {log}" for seed, (name, log) in enumerate(zip("ab", logs, strict=True))
            ]
            options = ["--max-restarts", "1", "--checkpoint", f"{folder}/kept", "--every", "20"]
            begin = time.time()
            process = subprocess.Popen(
                [sys.executable, "-m", "torchshare", "run", *options, *commands], stdout=subprocess.DEVNULL
            )
            while not all(log.exists() and len(log.read_text().splitlines()) > 100 for log in logs):
                time.sleep(0.05)
                if process.poll() is not None:
                    raise RuntimeError(f"torchshare run ended with {process.returncode}")
            to_start.append(max(float(log.read_text().split()[0]) for log in logs) - begin)
            (child,) = psutil.Process(process.pid).children()
            killed = time.time()
            os.kill(child.pid, signal.SIGKILL)
            while not all(float(log.read_text().split()[-1]) > killed for log in logs):
                time.sleep(0.02)
            firsts = [min(at for at in map(float, log.read_text().split()) if at > killed) for log in logs]
            to_restart.append(max(firsts) - killed)
            process.send_signal(signal.SIGTERM)
            process.wait()
    return {"start_to_first_step": spread(to_start), "kill_to_first_new_step": spread(to_restart)}


PARTS: dict[str, Callable[[int], Any]] = {
    "pair": pair,
    "ready": ready,
    "repeated": repeated,
    "spill": spill,
    "checkpoint": checkpoint,
    "restart": restart,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    steady_malloc()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    figures = {}
    for part in arguments.parts:
        figures[part] = PARTS[part](arguments.repetitions)
        print(f"{part} is done", file=sys.stderr)
    write("out_of_memory", {"summary": figures}, arguments.output)


if __name__ == "__main__":
    main()
