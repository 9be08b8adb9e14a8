"""Trains a pair of jobs while one CUDA call fails, each case in a forked process.

Reads a case as JSON from each line of its input, {"policy", "call", "error", "skip"}, and writes what came of it:

    {"status": exit status, "jobs": {name: digest of the weights or the error's text}, "runtime": error or null,
     "left": names of threads that should have ended, "calls": {call: times} as far as the case asks for them}
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import re
import sys
import threading
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import torchshare
from torchshare import Job

sys.path.insert(0, str(Path(__file__).parents[1]))
from forked_case import Case, ends_of, in_fork, say

LIMIT_S = 60
PATIENCE_S = 10  # for a job that may have failed before it began
kept: list[Tensor] = []
both_trained = threading.Barrier(2)  # of a case's process
emulator = ctypes.CDLL(None)  # preloaded by run.sh
emulator.emulator_calls.restype = ctypes.c_uint64
emulator.emulator_inject.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]


def digest(tensors: list[Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)).hexdigest()


def pinned(tensor: Tensor) -> Tensor:
    """Never freed: where pinned memory is, torch records an event in a destructor, and aborts if that fails."""
    kept.append(tensor.pin_memory())
    return kept[-1]


def train(job: Job) -> str:
    """Ends with the device's work after both jobs have trained: a sticky error in the training of one is in both."""
    try:
        trained = digest(weights(job))
        with contextlib.suppress(threading.BrokenBarrierError):  # the other job has failed
            both_trained.wait(PATIENCE_S)
        torch.cuda.synchronize()
        return trained
    finally:
        both_trained.abort()


def weights(job: Job) -> list[Tensor]:
    """Of a few steps with sub-batches and a graph, copies from pinned memory, a side stream and a host wait."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [pinned(torch.randn(8, 8)) for _ in range(4)]
    side = torch.cuda.Stream()
    loss = job.graph(lambda x: model(x).square().mean())
    for batch in job.batches([x.to("cuda", non_blocking=True) for x in data], sub_batch=4):
        batch.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        scaled = [parameter.detach() * 2 for parameter in model.parameters()]
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return scaled


def name_of(task: Path) -> str:
    """Of a job's thread, and of its autograd's: ts1-first. Empty for a thread that has just ended."""
    try:
        return (task / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def jobs_threads() -> list[str]:
    return [name for name in map(name_of, Path("/proc/self/task").iterdir()) if re.match(r"ts\d+-", name)]


def run(case: Case) -> Case:
    jobs: dict[str, str | None] = {}
    failed = None
    if case.get("call"):
        emulator.emulator_inject(case["call"].encode(), case["error"], case["skip"], 1)
    try:
        with torchshare.Runtime(device="cuda", policy=case["policy"]) as runtime:
            runtime.submit(train, name="first", priority="primary", threads=1, seed=0, resplit=False)
            runtime.submit(train, name="second", threads=1, seed=1, resplit=False)
            results = runtime.wait(LIMIT_S, check=False)
            jobs = ends_of(results)
    except Exception as error:
        failed = say(error)
    left = jobs_threads()
    for _ in range(100):  # a thread that was joined may be listed for a moment
        if left:
            time.sleep(0.05)
            left = jobs_threads()
    calls = {name: emulator.emulator_calls(name.encode()) for name in case.get("count", [])}
    return {"jobs": jobs, "runtime": failed, "left": left, "calls": calls}


def main() -> None:
    # Loads the numerics, once. Asked by torch, this would forbid CUDA in the children.
    emulator.cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))
    with torchshare.Runtime(device="cpu"):
        pass  # a process's first runtime imports what it patches, for seconds; not in each child
    for line in sys.stdin:
        print(json.dumps(in_fork(run, json.loads(line), LIMIT_S + 10)), flush=True)


if __name__ == "__main__":
    main()
