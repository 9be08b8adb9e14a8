"""A policy like Pollux (Qiao et al., OSDI 21), which changes the GPUs and the batches of jobs by their goodput.

Like Pollux: every minute it maximizes the power mean, with exponent -1, of the jobs' speed-ups over a fair share of the
GPUs. A job whose GPUs would change counts less, by the time that it has lost to restarts; it gets at most twice the
GPUs that it has had. A node has at most one job that spans nodes.

Unlike Pollux: greedy steps instead of a genetic algorithm; jobs have 1, 2 or 4 GPUs of a node, or whole nodes; the
model of a step is known from the start instead of learned while the job runs."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchshare.simulation.goodput import GPUS_PER_NODE, Goodput, goodput
from torchshare.simulation.job_trace import Trace

NAME = "like pollux"
RESTART_COST_S = 30.0  # AdaptDL's
_INTERVAL_S = 60.0
_LEAST_SPEEDUP = 1e-3  # of a job without GPUs, in the mean


@dataclass
class AdaptiveJob:
    """A job whose GPUs and batch change; see `Goodput` for sizes, batches and progress. Times in seconds."""

    goodput: Goodput
    arrival: float
    size: int = 0
    batch: int = 0
    nodes: list[int] = field(default_factory=list)
    most_gpus: int = 0  # so far
    service: float = 0.0  # GPU-seconds so far
    restarts: int = 0
    restart_left: float = 0.0
    progress: float = 0.0
    epoch: int = 0
    ended: float = math.nan

    def best(self) -> tuple[list[float], list[int]]:
        return self.goodput.best(self.size, self.batch, self.epoch)

    def move(self, size: int, nodes: list[int]) -> None:
        """Gives it other GPUs, or none, and the best batch for them."""
        if size > 0 and self.most_gpus > 0 and (size, nodes) != (self.size, self.nodes):
            self.restarts += 1
            self.restart_left = RESTART_COST_S
        _, batches = self.best()
        self.size, self.batch, self.nodes = size, batches[size], nodes
        self.most_gpus = max(self.most_gpus, self.goodput.gpus[size])

    def run(self, now: float, seconds: float) -> None:
        """Runs it from `now` on."""
        self.service += seconds * self.goodput.gpus[self.size]
        waited = min(self.restart_left, seconds)
        self.restart_left -= waited
        left = seconds - waited if self.size > 0 else 0.0
        while left > 0:
            rate = self.goodput.rate(self.size, self.batch, self.epoch)
            to_end = (self.goodput.ends[self.epoch] - self.progress) / rate
            if to_end > left:
                self.progress += left * rate
                return
            left -= to_end
            self.progress = self.goodput.ends[self.epoch]
            self.epoch += 1
            if self.epoch == len(self.goodput.ends):
                self.ended = now + seconds - left
                return


def simulate_adaptive(trace: Trace, nodes: int) -> NDArray[np.float64]:
    """The completion times of the jobs in seconds, from arrival, on nodes of 4 GPUs. Of the trace only arrivals and
    applications count. Raises ValueError for an application that is not AdaptDL's."""
    jobs = [
        AdaptiveJob(goodput(model), arrival)
        for model, arrival in zip(trace.models, trace.arrival.tolist(), strict=True)
    ]
    now, left = 0.0, jobs
    while left:
        present = sorted((job for job in left if job.arrival <= now), key=lambda job: (job.service, job.arrival))
        sizes = allot(present, nodes * GPUS_PER_NODE, now)
        for job, size, placed in zip(present, sizes, place(present, sizes, nodes), strict=True):
            job.move(size, placed)
            job.run(now, _INTERVAL_S)
        now += _INTERVAL_S
        left = [job for job in left if math.isnan(job.ended)]
    return np.array([job.ended - job.arrival for job in jobs])


def allot(jobs: Sequence[AdaptiveJob], gpus: int, now: float) -> list[int]:
    """The sizes of the jobs with the greatest mean, which is found in steps: each gives one job more GPUs, so that the
    mean gains most per GPU; of equal gains, the first job. With exponent -1, the mean is greatest where the sum of the
    costs, 1 / speed-up, is least."""
    costs = [_costs(job, math.ceil(gpus / len(jobs)), now) for job in jobs]
    sizes = [0] * len(jobs)
    free = gpus
    steps: list[tuple[float, int, int]] = []

    def offer(index: int) -> None:
        held, cost, counts = sizes[index], costs[index], jobs[index].goodput.gpus
        best = (0.0, 0, 0)
        for size in range(held + 1, len(cost)):
            more = counts[size] - counts[held]
            if more > free:
                break
            best = min(best, ((cost[size] - cost[held]) / more, index, size))
        if best[0] < 0:
            heapq.heappush(steps, best)

    for index in range(len(jobs)):
        offer(index)
    while steps:
        _, index, size = heapq.heappop(steps)
        more = jobs[index].goodput.gpus[size] - jobs[index].goodput.gpus[sizes[index]]
        if more <= free:
            free -= more
            sizes[index] = size
        offer(index)
    return sizes


def _costs(job: AdaptiveJob, fair: int, now: float) -> list[float]:
    """The cost of each size that the job may have."""
    expected, _ = job.best()
    base = next(rate for rate, gpus in zip(expected[::-1], job.goodput.gpus[::-1], strict=True) if 0 < gpus <= fair)
    allowed = sum(gpus <= max(1, 2 * job.most_gpus) for gpus in job.goodput.gpus)
    age = now - job.arrival
    kept = max(0.0, age - job.restarts * RESTART_COST_S) / (age + RESTART_COST_S)
    factors = [1.0 if job.most_gpus == 0 or size == job.size else kept for size in range(allowed)]
    return [1 / (rate / base * factor + _LEAST_SPEEDUP) for rate, factor in zip(expected, factors, strict=False)]


def place(jobs: Sequence[AdaptiveJob], sizes: Sequence[int], nodes: int) -> list[list[int]]:
    """The nodes of each job: its own, if its size stays and larger jobs do not need them, else those with the fewest
    free GPUs that are enough. Largest jobs first, so that all fit: sizes divide a node, or are whole nodes."""
    wanted = [job.goodput.gpus[size] for job, size in zip(jobs, sizes, strict=True)]
    own = [job.nodes if size == job.size else [] for job, size in zip(jobs, sizes, strict=True)]
    free = [GPUS_PER_NODE] * nodes
    staying = [sum(node in mine for mine in own) for node in range(nodes)]
    placed: list[list[int]] = [[] for _ in jobs]
    for index in sorted(range(len(jobs)), key=lambda index: (-wanted[index], not own[index])):
        on_each = min(wanted[index], GPUS_PER_NODE)
        if on_each == 0:
            break
        placed[index] = own[index]
        if not own[index] or any(free[node] < on_each for node in own[index]):
            fitting = [node for node in range(nodes) if free[node] >= on_each]
            placed[index] = sorted(fitting, key=lambda node: (free[node], staying[node]))[: wanted[index] // on_each]
        for node in placed[index]:
            free[node] -= on_each
    return placed
