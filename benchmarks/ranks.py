"""How much of the time that a primary waits for its other ranks a secondary can use, and what the primary loses.

Two ranks on gloo, each on a core of its own. The primary is

- `ddp`, whose last rank sleeps in each step, so that the first waits for it in the all-reduce;
- `gpipe` or `1f1b`, a pipeline of two stages of equal work, with torch's schedules. With p stages and m micro-batches,
  each waits (p - 1) / (m + p - 1) of the time (GPipe, arXiv 1811.06965), if messages take none: here 1/5.

The waiting time is the primary's on the first rank when it runs alone. Of it, a secondary uses its rate beside the
primary, divided by its own rate alone. Modes take turns in each repetition. Writes ranks.json.

    torchrun --standalone --nproc-per-node=2 benchmarks/ranks.py --window 5 --repetitions 3
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import torchshare

from jobs import conv_net
from record import interleaved, parser, shown, spread, write

SLOW_S = 0.03
MICRO_BATCHES = 4
POLICIES = ("priority", "strict", "best_fit")
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
Step = Callable[[], None]


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


def data_parallel() -> Step:
    is_slow = dist.get_rank() == dist.get_world_size() - 1
    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(256, 512)

    def step() -> None:
        if is_slow:
            time.sleep(SLOW_S)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline(schedule: str) -> Step:
    rank, stages = dist.get_rank(), dist.get_world_size()
    stage = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    runs = SCHEDULES[schedule](
        PipelineStage(stage, rank, stages, torch.device("cpu")), MICRO_BATCHES, loss_fn=nn.functional.mse_loss
    )
    x = torch.randn(64 * MICRO_BATCHES, 512)

    def step() -> None:
        if rank == 0:
            runs.step(x)
        else:
            runs.step(target=x)
        optimizer.step()
        optimizer.zero_grad()

    return step


def primary(job: torchshare.Job, kind: str, seconds: float) -> Measured:
    """All ranks stop at the same step."""
    dist.init_process_group("gloo")
    step = data_parallel() if kind == "ddp" else pipeline(kind)
    window, goes_on = Window(job, seconds), torch.ones(1)
    while goes_on:
        step()
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


def run(seconds: float, policy: str, kind: str | None, beside: bool) -> dict[str, Measured]:
    """What the primary, if there is a kind, and the secondary measured."""
    with torchshare.Runtime(device="cpu", policy=policy) as runtime:
        if kind is not None:
            runtime.submit(lambda job: primary(job, kind, seconds), name="primary", priority="primary", threads=1)
        if beside:
            runtime.submit(lambda job: secondary(job, seconds), name="secondary", threads=1)
        return {name: result.value for name, result in runtime.wait().items()}


def repeat(kind: str, seconds: float) -> dict[str, Any]:
    """One repetition: the primary alone, the secondary alone, and both under each policy."""
    alone = run(seconds, "priority", kind, beside=False)["primary"]
    solo = run(seconds, "priority", None, beside=True)["secondary"]
    policies = {}
    for policy in POLICIES:
        both = run(seconds, policy, kind, beside=True)
        policies[policy] = {
            "loss": alone.rate / both["primary"].rate - 1,
            "used": both["secondary"].rate / solo.rate / alone.waiting,
        }
    return {"waiting": alone.waiting, "policies": policies}


def summary(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    policies = {
        policy: {
            figure: spread([each["policies"][policy][figure] for each in repetitions]) for figure in ("loss", "used")
        }
        for policy in POLICIES
    }
    return {"waiting": spread([each["waiting"] for each in repetitions]), "policies": policies}


def main() -> None:
    options = parser(__doc__, repetitions=3, window=5.0)
    options.add_argument("--kinds", nargs="+", choices=["ddp", *SCHEDULES], default=["ddp", *SCHEDULES])
    arguments = options.parse_args()
    rank = int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    raw = interleaved(arguments.kinds, arguments.repetitions, lambda kind: repeat(kind, arguments.window))
    if rank != 0:
        return
    summaries = {kind: summary(repetitions) for kind, repetitions in raw.items()}
    write("ranks", {"summary": summaries, "repetitions": raw}, arguments.output)
    for kind, figures in summaries.items():
        print(f"{kind}: the primary alone waits {shown(figures['waiting'])} of the time")
        for policy, of_policy in figures["policies"].items():
            print(f"  {policy:9} primary's loss {shown(of_policy['loss'])}, used of that {shown(of_policy['used'])}")


if __name__ == "__main__":
    main()
