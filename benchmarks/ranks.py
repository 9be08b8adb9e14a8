"""How much of the time that a primary waits in collectives a secondary can use, and what the primary loses. Two ranks,
each on a core of its own; the last one is slow: it sleeps in each step of the primary, so the first one waits for it.
The waiting time is the primary's when it runs alone. Of it, a secondary uses its rate beside the primary, divided by
its own rate alone.

    torchrun --standalone --nproc-per-node=2 benchmarks/ranks.py --window 5 --repetitions 3
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchshare

from jobs import conv_net

SLOW_S = 0.03
POLICIES = ("priority", "strict", "best_fit")


class Window:
    """Steps of a job and its waiting time, after a warm-up."""

    def __init__(self, job: torchshare.Job, window: float) -> None:
        self._job = job
        self._begin = time.monotonic() + 1.0
        self._end = self._begin + window
        self._steps: list[tuple[float, float]] = []  # the end of each, and the time waited until then

    def step(self) -> bool:
        """Called after each step; returns whether to go on."""
        now = time.monotonic()
        if now >= self._begin:
            self._steps.append((now, self._job.result.waited_s))
        return now < self._end

    def measured(self) -> Measured:
        (first, waited_before), (last, waited) = self._steps[0], self._steps[-1]
        return Measured((len(self._steps) - 1) / (last - first), (waited - waited_before) / (last - first))


@dataclass
class Measured:
    rate: float
    """Steps per second."""
    waiting: float
    """Fraction of the time."""


def primary(job: torchshare.Job, seconds: float) -> Measured:
    """All ranks stop at the same step."""
    dist.init_process_group("gloo")
    is_slow = dist.get_rank() == dist.get_world_size() - 1
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    window, x = Window(job, seconds), torch.randn(256, 512)
    goes_on = torch.ones(1)
    while goes_on:
        if is_slow:
            time.sleep(SLOW_S)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        goes_on.fill_(float(window.step()))
        dist.broadcast(goes_on, 0)
    return window.measured()


def secondary(job: torchshare.Job, seconds: float) -> Measured:
    """Knows nothing of other ranks."""
    model, batch = conv_net(16), torch.randn(4, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    window = Window(job, seconds)
    while window.step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return window.measured()


def run(seconds: float, policy: str, jobs: str) -> dict[str, Measured]:
    with torchshare.Runtime(device="cpu", policy=policy) as runtime:
        if "p" in jobs:
            runtime.submit(lambda job: primary(job, seconds), name="p", priority="primary", threads=1)
        if "s" in jobs:
            runtime.submit(lambda job: secondary(job, seconds), name="s", threads=1)
        return {name: result.value for name, result in runtime.wait().items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=float, default=5.0)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    losses: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    used: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    waiting: list[float] = []
    for _ in range(arguments.repetitions):
        alone = run(arguments.window, "priority", "p")["p"]
        solo = run(arguments.window, "priority", "s")["s"]
        waiting.append(alone.waiting)
        for policy in POLICIES:
            both = run(arguments.window, policy, "ps")
            losses[policy].append(alone.rate / both["p"].rate - 1)
            used[policy].append(both["s"].rate / solo.rate / alone.waiting)
    if rank == 0:
        print(f"the primary alone waits {median(waiting):.0%} of the time")
    for policy in POLICIES if rank == 0 else ():
        print(f"{policy}: primary's loss {spread(losses[policy])}, secondary used {spread(used[policy])} of that")


def spread(values: list[float]) -> str:
    return f"{median(values):.1%} ({min(values):.1%} to {max(values):.1%})"


if __name__ == "__main__":
    main()
