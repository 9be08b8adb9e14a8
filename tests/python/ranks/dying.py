"""One of two ranks, without torchrun, which would end the other one. The rank `dying.py RANK` dies while it tells the
other of a decision: the first one of a suspension, the other one of a cancellation."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from lines import line
from store import RANK

import torchshare
from torchshare.runtime.ranks import Ranks


def reduce_for_ever(job) -> None:
    dist.init_process_group("gloo")
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.001)


def work_for_ever(job) -> None:
    while True:
        torch.ones(1)
        time.sleep(0.001)


def die(ranks: Ranks, what: str, job: str, text: str) -> None:
    """Between the two halves of sending a message."""
    ranks._store.add("messages", 1)
    os.kill(os.getpid(), signal.SIGKILL)


def watch_late(ranks: Ranks, watch=Ranks._watch) -> None:
    """The other rank may be dead by then."""
    time.sleep(1)
    watch(ranks)


if int(sys.argv[1]) != RANK:
    Ranks._watch = watch_late
try:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(reduce_for_ever, name="a", priority="primary")
        b = runtime.submit(work_for_ever, name="b")
        runtime.start()
        while b.result.ops < 100:
            time.sleep(0.01)
        if int(sys.argv[1]) == RANK:
            Ranks._send = die
            (b.cancel if RANK else b.suspend)()
        runtime.wait(timeout=300)
except RuntimeError as error:
    line(f"{type(error).__name__}: {error}")
line(f"{[job.state for job in runtime.jobs]}")
