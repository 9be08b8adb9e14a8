"""gc.disable() in a job."""

from __future__ import annotations

import gc
import timeit
import weakref
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest
from conftest import SOON_S, run_one

import torchshare
from torchshare import Job

ENOUGH = 100_000  # objects; a collection comes after some hundreds


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    is_enabled = gc.isenabled()
    gc.enable()
    assert is_enabled


class Node:
    def __init__(self) -> None:
        self.itself = self


def cycles_are_collected() -> bool:
    gone = weakref.ref(Node())
    _kept: list[list[int]] = [[] for _ in range(ENOUGH)]  # Python 3.14 collects just after a call, such as `gone()`
    return gone() is None


def runs(first: Callable[[Job], Any], second: Callable[[Job], Any]) -> list[Any]:
    with torchshare.Runtime(device="cpu") as runtime:
        jobs = [runtime.submit(first, name="first"), runtime.submit(second, name="second")]
        runtime.wait(timeout=SOON_S)
    return [job.result.value for job in jobs]


def test_it_stays_on_for_the_other_job() -> None:
    is_off, looked = Event(), Event()

    def switches_off(_job: Job) -> bool:
        gc.disable()
        is_off.set()
        assert looked.wait(SOON_S)
        return gc.isenabled()

    def looks(_job: Job) -> tuple[bool, bool]:
        assert is_off.wait(SOON_S)
        found = gc.isenabled(), cycles_are_collected()
        looked.set()
        return found

    assert runs(switches_off, looks) == [False, (True, True)]


def test_it_is_off_once_all_have_switched_it_off_and_on_when_one_has_ended() -> None:
    first_off, looked, second_off = Event(), Event(), Event()

    def ends(_job: Job) -> bool:
        gc.disable()
        first_off.set()
        assert second_off.wait(SOON_S)
        found = cycles_are_collected()
        looked.set()
        return found

    def goes_on(job: Job) -> bool:
        assert first_off.wait(SOON_S)
        gc.disable()
        second_off.set()
        assert looked.wait(SOON_S)
        gc.enable()
        return cycles_are_collected()

    assert runs(ends, goes_on) == [False, True]


def test_a_job_that_ends_with_it_off_leaves_it_on() -> None:
    def ends(_job: Job) -> None:
        gc.disable()

    def later(job: Job) -> bool:
        return gc.isenabled() and cycles_are_collected()

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(ends, name="ends")
        job = runtime.submit(later, name="later", start="after:ends")
        runtime.wait(timeout=SOON_S)
    assert job.result.value


def test_a_thread_that_outlives_its_job_switches_it_off_for_no_other() -> None:
    ended, is_off, looked = Event(), Event(), Event()

    def lives_on() -> None:
        assert ended.wait(SOON_S)
        gc.disable()
        is_off.set()
        assert looked.wait(SOON_S)

    def ends(_job: Job) -> None:
        Thread(target=lives_on, daemon=True).start()

    def looks(_job: Job) -> tuple[bool, bool]:
        ended.set()
        assert is_off.wait(SOON_S)
        found = gc.isenabled(), cycles_are_collected()
        looked.set()
        return found

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(ends, name="ends")
        job = runtime.submit(looks, name="looks", start="after:ends")
        runtime.wait(timeout=SOON_S)
    assert job.result.value == (True, True)


def test_alone_a_job_switches_it_off_also_in_its_threads() -> None:
    def function(_job: Job) -> list[bool]:
        found = []
        thread = Thread(target=lambda: [gc.disable(), found.append(cycles_are_collected())])
        thread.start()
        thread.join()
        found.append(gc.isenabled())
        gc.enable()
        timeit.timeit(lambda: None, number=1)  # switches it off meanwhile
        return [*found, gc.isenabled(), cycles_are_collected()]

    assert run_one(function).value == [False, False, True, True]


def test_what_the_program_has_switched_off_stays_off() -> None:
    gc.disable()
    try:
        assert run_one(lambda _job: gc.isenabled()).value is False
        assert not gc.isenabled()
    finally:
        gc.enable()
