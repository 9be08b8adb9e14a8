"""Thirty trainings of small models in a cluster's queue, beside the same workload in the simulator.

One node whose one device runs two jobs at once: two cores of this machine, one for each job, or its GPU (`--device
cuda`). What a start costs is measured before each policy's run, step times and ratios before and after it; the
simulator gets the medians, while the queue goes on from what it measures in the run. A shared machine may be slower in
the run than before and after it. So there is a second simulation with all durations multiplied by the one factor with
which its makespan is the real one. Needs Ray: pip install 'ray[default]>=2.40'"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import torchshare
from torchshare.cluster.settings import QueueSettings
from torchshare.simulation.job_trace import Trace
from torchshare.simulation.ratios import Ratios
from torchshare.simulation.simulate import Case, Setting, simulate

import small_models
from cluster import compared, plot, run_live, started
from record import RESULTS, steady_malloc, write

POLICIES = ("fifo", "sjf-bsbf", "pair-srsf")
LOAD = 1.5  # work that arrives, by what the device does alone
RESTART_S = 0.5
WARM_UP_STEPS = 5
SHORT = 20  # steps
ENDLESS = 1_000_000  # steps


class Windows:
    """The steps of trainings that run together, from when all are warm until each has run for some seconds."""

    def __init__(self, jobs: int, seconds: float) -> None:
        self._seconds = seconds
        self._steps = [0] * jobs
        self._ends: list[list[float]] = [[] for _ in range(jobs)]
        self.is_over = False

    def step_done(self, job: int) -> bool:
        """Whether the training goes on."""
        self._steps[job] += 1
        if min(self._steps) >= WARM_UP_STEPS:
            self._ends[job].append(time.perf_counter())
        return not self.is_over and any(not ends or ends[-1] - ends[0] < self._seconds for ends in self._ends)

    def step_s(self) -> list[float]:
        return [(ends[-1] - ends[0]) / (len(ends) - 1) for ends in self._ends]


def step_times(kinds: tuple[str, ...], device: str, seconds: float) -> list[float]:
    """The step times of trainings that run together."""
    windows = Windows(len(kinds), seconds)
    with torchshare.Runtime(device) as runtime:
        runtime.start()
        for index, kind in enumerate(kinds):

            def body(job: Any, index: int = index, kind: str = kind) -> None:
                try:
                    small_models.train(job, kind, ENDLESS, device, lambda: windows.step_done(index))
                finally:
                    windows.is_over = True

            runtime.submit(body, name=str(index), threads=1, priority="secondary")
        runtime.wait()
    return windows.step_s()


class Profiles:
    """Step times alone, and the ratio of each kind beside each: the median of all measurements so far."""

    def __init__(self, kinds: list[str], device: str, seconds: float) -> None:
        self.kinds, self._device, self._seconds = kinds, device, seconds
        self._alone: dict[str, list[float]] = {kind: [] for kind in kinds}
        self._beside: dict[tuple[str, str], list[float]] = {pair: [] for pair in itertools.product(kinds, kinds)}

    def measure(self) -> None:
        for a, b in itertools.combinations_with_replacement(self.kinds, 2):
            alone = [step_times((kind,), self._device, self._seconds)[0] for kind in (a, b)]
            together = step_times((a, b), self._device, self._seconds)
            for kind, step_s in zip((a, b), alone, strict=True):
                self._alone[kind].append(step_s)
            for pair, both, one in zip(((a, b), (b, a)), together, alone, strict=True):
                self._beside[pair].append(max(1.0, both / one))

    def add(self, later: Profiles) -> None:
        """The measurements of `later` count as well."""
        for kind, times in later._alone.items():
            self._alone[kind].extend(times)
        for pair, ratios in later._beside.items():
            self._beside[pair].extend(ratios)

    @property
    def step_s(self) -> dict[str, float]:
        return {kind: statistics.median(times) for kind, times in self._alone.items()}

    @property
    def ratios(self) -> Ratios:
        matrix = [[statistics.median(self._beside[a, b]) for b in self.kinds] for a in self.kinds]
        return Ratios(self.kinds, np.array(matrix))


@dataclass(frozen=True)
class Workload:
    kinds: list[str]
    steps: list[int]
    arrival: NDArray[np.float64]

    def trace(self, step_s: dict[str, float], start_s: float) -> Trace:
        """With durations from these times of a step, and of a start."""
        jobs = list(zip(self.kinds, self.steps, strict=True))
        return Trace(
            source="real",
            names=[f"{kind}-{index}" for index, kind in enumerate(self.kinds)],
            arrival=self.arrival,
            duration=np.array([start_s + steps * step_s[kind] for kind, steps in jobs]),
            gpus=np.ones(len(jobs), dtype=np.int32),
            memory_gib=np.zeros(len(jobs)),
            models=self.kinds,
        )


def make_workload(step_s: dict[str, float], start_s: float, jobs: int, mean_s: float, seed: int) -> Workload:
    """Jobs of a log-normal length that arrive at 1.5 times the rate at which one could run after the other."""
    chance = np.random.default_rng(seed)
    kinds = [str(kind) for kind in chance.permutation(np.resize(list(step_s), jobs))]
    wanted = chance.lognormal(0, 0.7, jobs)
    wanted *= mean_s / wanted.mean()
    steps = [max(1, round((each - start_s) / step_s[kind])) for each, kind in zip(wanted, kinds, strict=True)]
    arrival = np.cumsum(chance.exponential(mean_s / LOAD, jobs))
    return Workload(kinds, steps, arrival - arrival[0])


def target(kind: str, steps: int, device: str) -> Callable[[Any], None]:
    def training(job: Any) -> None:
        small_models.train(job, kind, steps, device)

    return training


def start_time(cluster: Any, device: str, step_s: dict[str, float]) -> float:
    """Seconds from a job's submission to its end, less its steps: the median of all kinds. Each ran before."""
    found = []
    for warm in (True, False):
        for kind in step_s:
            name = f"{kind}-{'first' if warm else 'second'}"
            cluster.submit(target(kind, SHORT, device), name=name, model=kind, threads=1, duration=1.0).result(120)
            if not warm:
                found.append(cluster.job(name).status()["elapsed_s"] - SHORT * step_s[kind])
    return statistics.median(found)


def with_the_same_makespan(case: Case, makespan_s: float) -> tuple[float, Any]:
    """The factor of all durations with which the simulated makespan is this one, or jumps from less to more, because
    the policy decides otherwise; and the JCT of each job with it."""

    def simulated(factor: float) -> Any:
        return simulate(replace(case, trace=replace(case.trace, duration=factor * case.trace.duration))).jct

    low, high = 0.25, 4.0
    for _ in range(30):
        factor = (low + high) / 2
        is_long = (case.trace.arrival + simulated(factor)).max() > makespan_s
        low, high = (low, factor) if is_long else (factor, high)
    return low, simulated(low)


def run(policy: str, workloads: list[Workload], arguments: argparse.Namespace) -> dict[str, Any]:
    """One run of the workload, which the first run makes, with measurements before and after it, while the cluster is
    up."""
    device, setting = arguments.device, Setting(gpus=1, gpus_per_node=1, restart_cost=RESTART_S)
    profiles, later = (Profiles(arguments.kinds, device, arguments.window) for _ in range(2))
    queue = QueueSettings(policy, restart_cost=RESTART_S)
    storage = tempfile.TemporaryDirectory(dir=arguments.storage, ignore_cleanup_errors=True)  # Ray may still write
    with storage as folder, started(folder, queue, device) as cluster:
        profiles.measure()
        before = profiles.step_s
        start_s = start_time(cluster, device, before)
        if not workloads:
            workloads.append(make_workload(before, start_s, arguments.jobs, arguments.seconds, arguments.seed))
        workload = workloads[0]
        targets = [target(*each, device) for each in zip(workload.kinds, workload.steps, strict=True)]
        jct = run_live(cluster, workload.trace(before, start_s), targets, profiles.ratios)
        restarts = sum(row["attempt"] - 1 for row in cluster.jobs())
        later.measure()
    profiles.add(later)
    ratios = profiles.ratios
    trace = workload.trace(profiles.step_s, start_s)
    case = Case(trace, policy, ratios, setting, "measured")
    simulated = simulate(case)
    factor, matched = with_the_same_makespan(case, float((trace.arrival + jct).max()))
    print(f"{policy} with durations x {factor:.3f}: ", end="")
    return {
        "with_the_same_makespan": {"factor": factor, **compared(policy, jct, matched)},
        **compared(policy, jct, simulated.jct),
        "restarts": restarts,
        "simulated_restarts": simulated.figures["preemptions"],
        "start_s": start_s,
        "step_ms": {kind: 1e3 * seconds for kind, seconds in profiles.step_s.items()},
        "drift": {kind: later.step_s[kind] / before[kind] - 1 for kind in before},
        "ratios": ratios.matrix.round(3).tolist(),
        "jobs": trace.names,
        "duration_s": trace.duration.round(3).tolist(),
        "arrival_s": trace.arrival.round(3).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--policies", nargs="+", default=POLICIES, help=f"default: {' '.join(POLICIES)}")
    parser.add_argument("--kinds", nargs="+", choices=small_models.KINDS, default=list(small_models.KINDS))
    parser.add_argument("--jobs", type=int, default=30, metavar="N", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=7, metavar="S", help="mean length, default: %(default)s")
    parser.add_argument("--window", type=float, default=0.5, metavar="S", help="of a measurement, default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.add_argument("--storage", metavar="DIR", help="folder for the journals (default: the system's)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    steady_malloc()
    workloads: list[Workload] = []
    rows = [run(policy, workloads, arguments) for policy in arguments.policies]
    write("real_jobs", {"kinds": arguments.kinds, "restart_cost_s": RESTART_S, "runs": rows}, arguments.output)
    plot({"runs": rows}, arguments.output / "real_jobs.png")


if __name__ == "__main__":
    sys.exit(main())
