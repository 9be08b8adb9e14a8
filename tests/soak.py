"""Runs a thousand runtimes with random jobs that are suspended, resumed, cancelled or fail at random moments, and
programs that get Ctrl-C up to three times. Weights must equal those of a job alone; threads, file descriptors and
memory must not grow; no program may crash.

python tests/soak.py --rounds 1000 --programs 50 --seed 7 --device cuda
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch import nn

import torchshare
from torchshare import Job

POLICIES = ("priority", "strict", "best_fit", "resource")
KINDS = ("linear", "dropout", "conv", "graph")  # the last: "linear" with Job.graph, which on the CPU is the same
MIB = 1 << 20
GROWTH_MIB = 48  # allowed growth after the first tenth of the rounds
PATIENCE_S = 60


class Broken(RuntimeError):
    """Raised by jobs that are to fail."""


def build(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    if kind == "conv":
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
        return nn.Sequential(*layers), (1, 8, 8)
    layers = [nn.Linear(12, 16), nn.Dropout(0.2) if kind == "dropout" else nn.Tanh(), nn.Linear(16, 3)]
    return nn.Sequential(*layers), (12,)


def train(
    kind: str, steps: int, fails_at: int | None = None, device: str = "cpu"
) -> Callable[[Job], list[torch.Tensor]]:
    def body(job: Job) -> list[torch.Tensor]:
        with torch.device(device):
            model, shape = build(kind)
            loader = [(torch.randn(8, *shape), torch.randint(0, 3, (8,))) for _ in range(steps)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(model(x), y)

        loss = job.graph(loss_fn) if kind == "graph" else loss_fn
        for step, batch in enumerate(job.batches(loader, sub_batch=3)):
            if step == fails_at:
                raise Broken
            batch.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        assert loss is loss_fn or device == "cpu" or loss.fallback is None, loss.fallback
        return [parameter.detach().clone() for parameter in model.parameters()]

    return body


class Baselines:
    """The weights of each job alone on a device, computed once."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._known: dict[tuple[str, int, int], list[torch.Tensor]] = {}

    def of(self, kind: str, steps: int, seed: int) -> list[torch.Tensor]:
        key = kind, steps, seed
        if key not in self._known:
            eager = "linear" if kind == "graph" else kind
            with torchshare.Runtime(device=self.device) as runtime:
                runtime.submit(train(eager, steps, device=self.device), name="alone", threads=1, seed=seed)
                self._known[key] = runtime.wait(PATIENCE_S)["alone"].value
        return self._known[key]


def disturb(chance: random.Random, jobs: list[Job], stop: threading.Event) -> set[str]:
    """Suspends, resumes and cancels at random until all jobs have ended; returns the names of cancelled jobs."""
    cancelled: set[str] = set()
    while not stop.wait(chance.random() * 0.02):
        job = chance.choice(jobs)
        action = chance.choice(("suspend", "resume", "resume", "cancel", "nothing", "nothing"))
        if action == "cancel":
            cancelled.add(job.name)
        if action != "nothing":
            getattr(job, action)()
    for job in jobs:
        job.resume()
    return cancelled


def one_round(chance: random.Random, alone: Baselines) -> None:
    plans = {}
    with torchshare.Runtime(device=alone.device, policy=chance.choice(POLICIES), timeline_capacity=1000) as runtime:
        jobs = []
        for index in range(chance.choice((1, 2, 2, 2, 3))):
            kind, steps, seed = chance.choice(KINDS), chance.choice((2, 10, 30)), chance.randrange(2)
            fails_at = chance.randrange(steps) if chance.random() < 0.2 else None
            name = f"{kind}{index}"
            plans[name] = kind, steps, seed, fails_at
            options = {
                "start": chance.choice(("now", "now", 0.01, "auto")) if index else "now",
                "priority": f"level-{index * chance.choice((0, 1, 4))}",
                "seed": seed,
            }
            function = train(kind, steps, fails_at, alone.device)
            jobs.append(runtime.submit(function, name=name, threads=1, **options))
        runtime.start()
        stop = threading.Event()
        cancelled: set[str] = set()
        own = random.Random(chance.random())
        disturber = threading.Thread(target=lambda: cancelled.update(disturb(own, jobs, stop)))
        disturber.start()
        time.sleep(chance.random() * 0.3)
        stop.set()
        disturber.join()
        if chance.random() < 0.2:
            cancelled.update(plans)  # closed while they run
            runtime.close()
        results = runtime.wait(PATIENCE_S, check=False)
    for name, (kind, steps, seed, fails_at) in plans.items():
        result = results[name]
        if fails_at is not None and result.state == "failed":
            assert isinstance(result.exception, Broken), (name, result)
        elif result.state == "finished":
            expected = alone.of(kind, steps, seed)
            assert fails_at is None
            assert all(map(torch.equal, result.value, expected)), f"{name}: other weights than alone"
        else:
            assert result.state == "cancelled" and name in cancelled, (name, result, cancelled)


PROGRAM = """
import sys, torch, torchshare
sys.path.insert(0, {folder!r})
from soak import train
def endless(job):
    print("began", flush=True)
    while True:
        train({kind!r}, 30, device={device!r})(job)
with torchshare.Runtime(device={device!r}, policy={policy!r}) as runtime:
    runtime.submit(endless, name="a", priority="primary", threads=1)
    runtime.submit(endless, name="b", threads=1)
    runtime.wait()
"""


def one_program(chance: random.Random, device: str) -> None:
    kind, policy = chance.choice(KINDS), chance.choice(POLICIES)
    code = PROGRAM.format(folder=os.path.dirname(__file__), kind=kind, policy=policy, device=device)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        for _ in range(chance.choice((1, 2, 2, 3))):
            time.sleep(chance.random() * 0.2)
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()  # it trains for ever
    assert process.returncode == -signal.SIGINT, (process.returncode, err)


def census() -> tuple[int, int, int]:
    """Threads, file descriptors, and bytes of memory of this process."""
    gc.collect()
    folder = Path("/proc/self")
    counts = len(list((folder / "task").iterdir())), len(list((folder / "fd").iterdir()))
    return *counts, psutil.Process().memory_info().rss


def settled() -> tuple[int, int, int]:
    """Measured after the threads of the last round have ended."""
    before = census()
    while (time.sleep(0.2), after := census())[1][0] < before[0]:
        before = after
    return after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    logging.getLogger("torchshare").setLevel(logging.CRITICAL)  # failures of jobs are expected
    print(f"seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    alone = Baselines(arguments.device)
    torch.set_num_threads(1)
    for round_number in range(arguments.rounds):
        try:
            one_round(chance, alone)
        except BaseException:
            print(f"in round {round_number} of seed {arguments.seed}", file=sys.stderr)
            raise
        if round_number == arguments.rounds // 10:
            before = settled()
    after = settled()
    print(f"{arguments.rounds} rounds: threads, descriptors and memory were {before}, are {after}", flush=True)
    assert after[0] <= before[0] and after[1] <= before[1], "threads or file descriptors grow"
    assert after[2] - before[2] < GROWTH_MIB * MIB, "memory grows"
    for _ in range(arguments.programs):
        one_program(chance, arguments.device)
    print(f"{arguments.programs} programs ended by Ctrl-C")


if __name__ == "__main__":
    main()
