"""Compares the simulator with the runtime: a trace of 12 jobs, run and simulated from measured times and ratios.

One device that runs two jobs at once: this machine's CPU. Both use the same policy objects: `LiveScheduler` is told of
arrivals and ends as they happen, `Simulator` computes them. Jobs of tiny ops are left out: the cost of the GIL to a
pair of them varies within seconds (1.6 to 2.0 here), so that no constant ratio describes it."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import torchshare
from torchshare import _core
from torchshare.simulation.job_trace import Trace
from torchshare.simulation.ratios import Ratios
from torchshare.simulation.simulate import Case, Setting, make_cluster, simulate

from jobs import Meter, StepMeter, train
from record import RESULTS, spread, steady_malloc, write

KINDS = {"wide": ("conv", 2), "conv": ("conv", 1), "input_bound": ("input_bound", 1)}  # the job, its threads
POLICIES = ("fifo", "sjf-ffs", "sjf-bsbf", "pair-srsf")
JOBS = 12
SETTING = Setting(gpus=1, gpus_per_node=1, restart_cost=0.0)
POLL_S = 0.005
WARM_UP_STEPS = 5


class StepTimer:
    """Ends a training after a window, which opens after the first steps; notes when the steps in it ended."""

    def __init__(self, window_s: float) -> None:
        self._made = time.perf_counter()
        self._window_s = window_s
        self._left = WARM_UP_STEPS
        self.ends: list[float] = []

    def step_done(self) -> bool:
        self._left -= 1
        if self._left > 0:
            return True
        self.ends.append(time.perf_counter())
        return self.ends[-1] - self.ends[0] < self._window_s

    @property
    def step_s(self) -> float:
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)

    @property
    def set_up_s(self) -> float:
        """The job's set-up time, until its steps took their usual time."""
        return max(0.0, self.ends[0] - self._made - WARM_UP_STEPS * self.step_s)


def submit(runtime: torchshare.Runtime, kind: str, meter: Meter, name: str) -> torchshare.Job:
    what, threads = KINDS[kind]
    return runtime.submit(lambda job: train(what, meter, job, threads), name=name, threads=threads)


def measure(kinds: tuple[str, ...], window_s: float) -> list[StepTimer]:
    """The meters of jobs that ran together."""
    with torchshare.Runtime() as runtime:
        runtime.start()
        meters = [StepTimer(window_s) for _ in kinds]
        for index, (kind, meter) in enumerate(zip(kinds, meters, strict=True)):
            submit(runtime, kind, meter, str(index))
        runtime.wait()
    return meters


@dataclass(frozen=True)
class Profiles:
    step_s: dict[str, float]  # alone
    set_up_s: dict[str, float]
    ratios: Ratios  # of each kind beside each


def measure_profiles(window_s: float) -> Profiles:
    """Measures each pair between two runs alone; uses the median."""
    alone: dict[str, list[StepTimer]] = {kind: [] for kind in KINDS}
    matrix = np.ones((len(KINDS), len(KINDS)))
    for (a, kind_a), (b, kind_b) in itertools.combinations_with_replacement(enumerate(KINDS), 2):
        alone[kind_a] += measure((kind_a,), window_s)
        alone[kind_b] += measure((kind_b,), window_s)
        together = measure((kind_a, kind_b), window_s)
        ratios = [meter.step_s / alone[kind][-1].step_s for meter, kind in zip(together, (kind_a, kind_b), strict=True)]
        matrix[a, b], matrix[b, a] = np.maximum(ratios if a != b else [statistics.fmean(ratios)] * 2, 1.0)
    return Profiles(
        {kind: statistics.median(meter.step_s for meter in meters) for kind, meters in alone.items()},
        {kind: statistics.median(meter.set_up_s for meter in meters) for kind, meters in alone.items()},
        Ratios(list(KINDS), matrix),
    )


def make_trace(profiles: Profiles, seed: int) -> tuple[Trace, list[int]]:
    """Twelve jobs of 1 to 6 s that arrive faster than one device can run them, and the steps of each."""
    random = np.random.default_rng(seed)
    models = [str(kind) for kind in random.permutation(np.repeat(list(KINDS), JOBS // len(KINDS)))]
    wanted = random.uniform(1, 6, JOBS)
    steps = [round(duration / profiles.step_s[kind]) for duration, kind in zip(wanted, models, strict=True)]
    durations = [
        profiles.set_up_s[kind] + count * profiles.step_s[kind] for count, kind in zip(steps, models, strict=True)
    ]
    trace = Trace(
        source="live",
        names=[f"{kind}-{index}" for index, kind in enumerate(models)],
        arrival=np.cumsum(random.exponential(2.0, JOBS)),
        duration=np.array(durations),
        gpus=np.ones(JOBS, dtype=np.int32),
        memory_gib=np.zeros(JOBS),
        models=models,
    )
    return trace, steps


def run_live(trace: Trace, steps: list[int], ratios: Ratios, policy: str) -> list[float]:
    """Runs the trace under `policy`; returns the JCT of each job."""
    scheduler = _core.LiveScheduler(make_cluster(trace, ratios, SETTING), policy)
    ended: dict[int, float] = {}
    jobs: dict[int, torchshare.Job] = {}
    to_come = list(range(JOBS))

    with torchshare.Runtime() as runtime:
        runtime.start()
        began = time.perf_counter()

        def obey(orders: tuple[list[int], list[int]]) -> None:
            suspend, start = orders
            for index in suspend:
                jobs[index].suspend()
            for index in start:
                if index in jobs:
                    jobs[index].resume()
                else:
                    jobs[index] = submit(runtime, trace.models[index], StepMeter(steps[index]), trace.names[index])

        while len(ended) < JOBS:
            time.sleep(POLL_S)
            now = time.perf_counter() - began
            for index, job in list(jobs.items()):
                if index not in ended and job.state == "finished":
                    ended[index] = now
                    obey(scheduler.end(index, now))
            while to_come and trace.arrival[to_come[0]] <= now:
                obey(scheduler.arrive([to_come.pop(0)], now))
        runtime.wait()
    return [ended[index] - trace.arrival[index] for index in range(JOBS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--window", type=float, default=2.0, metavar="S", help="per measured pair (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="traces (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for simulator_live.json")
    arguments = parser.parse_args()
    steady_malloc()
    for kind in KINDS:
        measure((kind,), 0.5)  # warms up torch
    rows: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        profiles = measure_profiles(arguments.window)
        trace, steps = make_trace(profiles, seed)
        for policy in POLICIES:
            live = run_live(trace, steps, profiles.ratios, policy)
            simulated = simulate(Case(trace, policy, profiles.ratios, SETTING, "measured")).jct.tolist()
            rows.append(
                {
                    "seed": seed,
                    "policy": policy,
                    "live_avg_jct_s": float(np.mean(live)),
                    "simulated_avg_jct_s": float(np.mean(simulated)),
                    "error": float(np.mean(simulated) / np.mean(live) - 1),
                    "step_alone_s": profiles.step_s,
                    "set_up_s": profiles.set_up_s,
                    "ratios": profiles.ratios.matrix.round(3).tolist(),
                }
            )
            print(json.dumps({name: rows[-1][name] for name in list(rows[-1])[:5]}))
    errors = {policy: spread([row["error"] for row in rows if row["policy"] == policy]) for policy in POLICIES}
    write("simulator_live", {"summary": errors, "runs": rows}, arguments.out)
    print(f"ratios of {', '.join(KINDS)}: {rows[-1]['ratios']}")


if __name__ == "__main__":
    main()
