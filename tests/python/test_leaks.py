"""A closed runtime leaks nothing."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import psutil
import pytest
import torch
from conftest import run_ops_for_ever

import torchshare
from torchshare import Job

MIB = 1 << 20


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def start_and_cancel(rounds: int) -> None:
    for index in range(rounds):
        with torchshare.Runtime(policy="strict" if index % 2 else "priority") as runtime:
            first = runtime.submit(run_ops_for_ever, name="a", priority="primary", threads=1)
            runtime.submit(run_ops_for_ever, name="b", start="after:a" if index % 3 else "now", threads=1)
            runtime.start()
            while index % 2 and first.result.ops == 0:
                pass  # every other round is cancelled while it works
            runtime.cancel()
            assert {result.state for result in runtime.wait(20).values()} == {"cancelled"}


def timers_gone() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()


@pytest.mark.slow
def test_a_thousand_starts_and_cancels_leak_neither_threads_nor_memory():
    process = psutil.Process()
    start_and_cancel(100)
    timers_gone()
    before = (threads(), process.memory_info().rss)
    start_and_cancel(1000)
    timers_gone()
    gc.collect()
    assert threads() <= before[0]
    assert process.memory_info().rss - before[1] < 16 * MIB


class Marker:
    """An object that a job's function references."""


def test_a_closed_runtime_releases_the_objects_of_its_jobs():
    def submit(runtime: torchshare.Runtime, **options: object) -> weakref.ref[Marker]:
        marker = Marker()

        def body(job: Job, held: Marker = marker) -> None:
            torch.ones(2)

        runtime.submit(body, **options)
        return weakref.ref(marker)

    with torchshare.Runtime() as runtime:
        finished = submit(runtime, name="finished")
        delayed = submit(runtime, name="delayed", start=1e6)
        runtime.start()
        while runtime.results["finished"].state != "finished":
            pass
        runtime.cancel()
        runtime.wait(20)
    with torchshare.Runtime() as never_started:
        pending = submit(never_started, name="pending")
        never_started.close()
    del runtime, never_started
    timers_gone()
    gc.collect()
    assert [finished(), delayed(), pending()] == [None, None, None]
