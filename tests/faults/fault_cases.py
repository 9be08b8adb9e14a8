"""Trains a pair of jobs while one fault comes true, each case in a forked process.

Reads a case as JSON from each line of its input, {"policy", "start", "kind", "position"}, and writes what came of it:

    {"status": exit status, "jobs": {name: digest of the weights or the error's text}, "runtime": error or null,
     "left": names of threads that should have ended, "chances": number of chances, "error": what it wrote to stderr}
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchshare
from torchshare import Job

sys.path.insert(0, str(Path(__file__).parents[1]))
from forked_case import Case, ends_of, in_fork, say

LIMIT_S = 100
KINDS = ("none", "allocation", "tensor", "thread", "throw", "delay")  # as in faults.cpp
faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
faults.faults_arm.argtypes = [ctypes.c_int, ctypes.c_uint64]
faults.faults_chances.restype = ctypes.c_uint64


def train(job: Job) -> str:
    """A few steps with sub-batches, random numbers, and a weight large enough for the cache of blocks."""
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Dropout(), nn.Linear(1024, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in job.batches([torch.randn(8, 64) for _ in range(3)], sub_batch=4):
        batch.backward(lambda x: model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()


def train_jobs(policy: str, start: str) -> dict[str, str | None]:
    with torchshare.Runtime(device="cpu", policy=policy) as runtime:
        second: list[Job] = []

        def train_first(job: Job) -> str:
            try:
                second[0].suspend()
                return train(job)
            finally:
                try:
                    second[0].resume()
                except MemoryError:  # the fault
                    second[0].resume()
                    raise

        options: dict[str, Any] = {"threads": 1, "resplit": False, "memory_budget": 2**26}
        runtime.submit(train_first, name="first", priority="primary", seed=0, **options)
        second.append(runtime.submit(train, name="second", start=start, seed=1, record_ops=True, **options))
        results = runtime.wait(LIMIT_S, check=False)
        runtime.events()
        return ends_of(results)


def threads() -> list[str]:
    """The threads of torchshare, C++'s and Python's."""
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith("ts")]


def run(case: Case) -> Case:
    jobs: dict[str, str | None] = {}
    failed = None
    faults.faults_arm(KINDS.index(case["kind"]), case["position"])
    try:
        jobs = train_jobs(case["policy"], case["start"])
    except Exception as error:
        failed = say(error)
    chances = faults.faults_chances()
    faults.faults_arm(0, 0)
    until = time.monotonic() + 60
    while threads() and time.monotonic() < until:  # a thread that was joined may be listed for a moment
        time.sleep(0.005)
    return {"jobs": jobs, "runtime": failed, "left": threads(), "chances": chances}


def with_errors(case: Case) -> Case:
    """What came of it, with the end of what was written to stderr."""
    with tempfile.TemporaryFile() as errors:
        outcome = in_fork(run, case, LIMIT_S + 10, errors.fileno())
        errors.seek(0)
        return {"error": errors.read().decode(errors="replace")[-4000:], **outcome}


def main() -> None:
    with torchshare.Runtime(device="cpu", policy="best_fit") as runtime:
        # What a process does once is not repeated in each child. Without a backward: torch forbids it in children then.
        runtime.submit(lambda job: list(job.batches([torch.ones(2)])), name="warm-up", threads=1, memory_budget=2**26)
    for line in sys.stdin:
        print(json.dumps(with_errors(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
