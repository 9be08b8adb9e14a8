"""Which locks a forked child finds free: see Note [Locks at a fork] in isolation/fork_locks.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from conftest import SOON_S

from torchshare.isolation import fork_locks
from torchshare.isolation.script_modules import process_modules


@pytest.fixture(params=[threading.Lock, threading.RLock, threading.Condition])
def lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A variable of a module."""
    module: Any = ModuleType("has_a_lock")
    module.lock = request.param()
    monkeypatch.setitem(process_modules, "has_a_lock", module)
    monkeypatch.setattr(fork_locks, "_known", [])
    monkeypatch.setattr(fork_locks, "_searched", set(process_modules) - {"has_a_lock"})
    monkeypatch.setattr(fork_locks, "_modules", -1)
    monkeypatch.setattr(fork_locks, "_outlasted", set())
    return module.lock


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    holds, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            release.wait(SOON_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(SOON_S)
    try:
        yield
    finally:
        release.set()
        thread.join()


def looked() -> fork_locks.Looks:
    looks = fork_locks.Looks()
    while not looks.may_fork():
        time.sleep(0.01)
    return looks


def is_free_in_child(looks: fork_locks.Looks, lock: Any) -> bool:
    child = looks.fork(os.fork)
    if child == 0:
        os._exit(0 if lock.acquire(True, 5) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_lock_that_is_taken_after_the_last_look_is_free_in_the_child(lock: Any) -> None:
    looks = looked()
    with held_elsewhere(lock):
        assert is_free_in_child(looks, lock)


def test_a_fork_waits_for_a_lock_that_is_held_for_a_while(lock: Any) -> None:
    with held_elsewhere(lock):
        assert not fork_locks.Looks().may_fork()
    assert fork_locks.Looks().may_fork()


def test_one_that_is_held_for_long_is_free_in_the_child_if_it_knows_its_owner(
    lock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_locks, "_LONGEST_S", 0.2)
    with held_elsewhere(lock):
        assert is_free_in_child(looked(), lock) == (type(lock) is not type(threading.Lock()))


def test_a_lock_that_the_forking_thread_holds_stays_its_own_and_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, lock: Any
) -> None:
    monkeypatch.setattr(fork_locks, "_LONGEST_S", 3.0)
    with lock:
        for longest in (SOON_S, 2.9):
            begin = time.monotonic()
            looks = looked()
            assert time.monotonic() - begin < longest
            child = looks.fork(os.fork)
            if child == 0:
                os._exit(0 if type(lock) is not type(threading.Lock()) or not lock.acquire(blocking=False) else 1)
            assert os.waitpid(child, 0)[1] == 0


def test_a_condition_with_a_lock_of_another_package_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign:
        def acquire(self) -> bool:  # takes no arguments
            return True

        def release(self) -> None:
            pass

        def locked(self) -> bool:  # which conditions have, too, from Python 3.14 on
            return False

    module: Any = ModuleType("has_a_condition")
    module.condition = threading.Condition(Foreign())  # type: ignore[arg-type]
    monkeypatch.setitem(process_modules, "has_a_condition", module)
    monkeypatch.setattr(fork_locks, "_modules", -1)
    fork_locks.Looks().may_fork()
    assert module.condition not in fork_locks._known
