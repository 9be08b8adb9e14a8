"""How much of the time that a primary waits in collectives a secondary can use, and what the primary loses. Two ranks,
each on a core of its own; the last one is slow: it sleeps in each step of the primary, so the first one waits for it.

    torchrun --standalone --nproc-per-node=2 benchmarks/ranks.py --window 5 --repetitions 3
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchshare

from jobs import conv_net

SLOW_S = 0.03
POLICIES = ("priority", "strict", "best_fit")


class Rate:
    """Steps per second after a warm-up."""

    def __init__(self, window: float) -> None:
        self._begin = time.monotonic() + 1.0
        self._end = self._begin + window
        self._steps: list[float] = []

    def step(self) -> bool:
        """Called after each step; returns whether to go on."""
        now = time.monotonic()
        if now >= self._begin:
            self._steps.append(now)
        return now < self._end

    def value(self) -> float:
        return (len(self._steps) - 1) / (self._steps[-1] - self._steps[0])


def primary(window: float) -> float:
    """Returns its rate. All ranks stop at the same step."""
    dist.init_process_group("gloo")
    is_slow = dist.get_rank() == dist.get_world_size() - 1
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rate, x = Rate(window), torch.randn(256, 512)
    goes_on = torch.ones(1)
    while goes_on:
        if is_slow:
            time.sleep(SLOW_S)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        goes_on.fill_(float(rate.step()))
        dist.broadcast(goes_on, 0)
    return rate.value()


def secondary(window: float) -> float:
    """Returns its rate. Knows nothing of other ranks."""
    model, batch = conv_net(16), torch.randn(4, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rate = Rate(window)
    while rate.step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return rate.value()


def run(window: float, policy: str, jobs: str) -> dict[str, float]:
    with torchshare.Runtime(device="cpu", policy=policy) as runtime:
        if "p" in jobs:
            runtime.submit(lambda job: primary(window), name="p", priority="primary", threads=1)
        if "s" in jobs:
            runtime.submit(lambda job: secondary(window), name="s", threads=1)
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
    for _ in range(arguments.repetitions):
        alone = run(arguments.window, "priority", "p")["p"]
        solo = run(arguments.window, "priority", "s")["s"]
        for policy in POLICIES:
            both = run(arguments.window, policy, "ps")
            losses[policy].append(alone / both["p"] - 1)
            used[policy].append(both["s"] / solo / (SLOW_S * alone))
    for policy in POLICIES if rank == 0 else ():
        print(
            f"{policy}: primary's loss {median(losses[policy]):.1%} ({min(losses[policy]):.1%} to "
            f"{max(losses[policy]):.1%}), secondary used {median(used[policy]):.0%} of its waiting time"
        )


if __name__ == "__main__":
    main()
