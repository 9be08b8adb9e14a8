"""Runs steps and calls of Python code, for instructions.py: under callgrind, the instructions of each case are dumped
under its name. Its argument is the library of cpp/counting.cpp. Each case runs some times before it is counted."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterable

import torch

import torchshare

BEFORE = 50
TIMES = 200
_names: list[bytes] = []  # callgrind reads them later


def count(counting: ctypes.CDLL, name: str, steps: Iterable[object]) -> None:
    for number, _ in enumerate(steps):
        if number == BEFORE:
            counting.torchshare_count_begin()
        elif number == BEFORE + TIMES:
            _names.append(f"{name} x{TIMES}".encode())
            counting.torchshare_count_end(_names[-1])


def calls(function: Callable[[], None]) -> Iterable[None]:
    return (function() for _ in range(BEFORE + TIMES + 1))


def run(counting: ctypes.CDLL) -> None:
    batches = [torch.ones(2)] * (BEFORE + TIMES + 1)
    served: list[Callable[[], None]] = []
    ready, over = threading.Event(), threading.Event()

    def nothing() -> None:
        pass

    def trains(job: torchshare.Job) -> None:
        count(counting, "job: a batch without ops", (batch.data for batch in job.batches(batches)))

    def serves(job: torchshare.Job) -> None:
        served.append(job.serve(nothing))
        ready.set()
        over.wait()

    count(counting, "plain: a batch without ops", iter(batches))
    count(counting, "plain: a call", calls(nothing))
    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(trains, threads=1)
        runtime.wait()
        runtime.submit(serves, threads=1)
        runtime.start()
        ready.wait()
        count(counting, "served: a call", calls(served[0]))
        over.set()


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.disable()
    run(ctypes.CDLL(sys.argv[1]))
