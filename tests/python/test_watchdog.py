"""Jobs that are stuck are named in a warning."""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import Ran, run_ops_for_ever, script, wait_until

import torchshare
from torchshare import Job

STUCK_S = 0.2
LONG_S = 4 * STUCK_S


@pytest.fixture
def named(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """The warnings that name a job as stuck."""
    caplog.set_level(logging.WARNING, "torchshare")
    return lambda job: [text for text in caplog.messages if text.startswith(f"job '{job}' is stuck")]


def run(function: Callable[[Job], Any], **options: Any) -> None:
    with torchshare.Runtime(device="cpu", **{"stuck_after": STUCK_S, **options}) as runtime:
        runtime.submit(function, name="a", threads=1)
        runtime.wait(300)


def blocks_on_a_lock(_job: Job) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=LONG_S)


def sleeps(_job: Job) -> None:
    time.sleep(LONG_S)


def computes(_job: Job) -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("function", [blocks_on_a_lock, sleeps, computes])
def test_a_stuck_job_is_named_once_with_its_stack(
    function: Callable[[Job], None], named: Callable[[str], list[str]]
) -> None:
    run(function)
    [warning] = named("a")
    first, second, *_ = warning.splitlines()
    assert re.fullmatch(r"job 'a' is stuck: for 0\.\d+ s it ended no op and did not wait for input; it is in", first)
    assert f'File "{__file__}"' in second
    assert f"in {function.__name__}" in second


def test_a_job_that_goes_on_and_is_stuck_again_is_named_again(named: Callable[[str], list[str]]) -> None:
    def twice(_job: Job) -> None:
        for _ in range(2):
            time.sleep(LONG_S)
            torch.ones(2).add_(1)

    run(twice)
    assert len(named("a")) == 2


def test_a_job_that_polls_is_named(named: Callable[[str], list[str]]) -> None:
    def polls(_job: Job) -> None:
        for _ in range(100):
            time.sleep(LONG_S / 100)

    run(polls)
    assert len(named("a")) == 1


def slow_loader() -> Iterator[torch.Tensor]:
    for _ in range(2):
        time.sleep(LONG_S)
        yield torch.ones(2)


def test_a_job_that_waits_for_input_is_not_named(named: Callable[[str], list[str]]) -> None:
    run(lambda job: list(job.batches(slow_loader())))
    assert named("a") == []


def test_a_job_whose_loader_cannot_be_opened_no_longer_waits_for_it(named: Callable[[str], list[str]]) -> None:
    class Loader:
        def __iter__(self) -> Iterator[torch.Tensor]:
            raise OSError("no such data set")

    def goes_on(job: Job) -> None:
        with pytest.raises(OSError, match="no such data set"):
            list(job.batches(Loader()))
        time.sleep(LONG_S)

    run(goes_on)
    assert len(named("a")) == 1


def test_a_job_that_is_suspended_is_not_named(named: Callable[[str], list[str]]) -> None:
    with torchshare.Runtime(device="cpu", stuck_after=STUCK_S) as runtime:
        job = runtime.submit(run_ops_for_ever, name="a", threads=1)
        runtime.start()
        wait_until(lambda: job.result.ops > 0)
        job.suspend()
        time.sleep(LONG_S)
        job.cancel()
    assert named("a") == []


def test_a_job_that_is_kept_at_the_gate_or_has_not_started_is_not_named(named: Callable[[str], list[str]]) -> None:
    end = threading.Event()

    def busy(_job: Job) -> None:
        x = torch.ones(4)
        while not end.is_set():
            x.add_(1)

    with torchshare.Runtime(device="cpu", policy="strict", grace=1, stuck_after=STUCK_S) as runtime:
        first = runtime.submit(busy, name="first", priority="primary", threads=1)
        runtime.start()
        wait_until(lambda: first.result.ops > 0)
        kept = runtime.submit(lambda job: torch.ones(4).add_(1), name="kept", threads=1)
        runtime.submit(busy, name="later", start="after:kept", threads=1)
        wait_until(lambda: kept.state == "running")
        time.sleep(LONG_S)
        assert kept.result.ops == 0
        end.set()
        runtime.wait(300)
    assert named("first") == named("kept") == named("later") == []


@pytest.mark.parametrize("stuck_after", [0, 60])
def test_a_job_may_be_stuck_for_so_long(stuck_after: float, named: Callable[[str], list[str]]) -> None:
    run(sleeps, stuck_after=stuck_after)
    assert named("a") == []


def test_the_command_line_has_the_option(tmp_path: Any) -> None:
    script(tmp_path, "a.py", f"import time\ndef pause():\n    time.sleep({LONG_S})\npause()\n")
    ran = Ran(tmp_path, "--stuck-after", str(STUCK_S), "a.py")
    assert ran.code == 0, ran.text()
    assert [line for line in ran.lines if "is stuck" in line and "'a'" in line]
    assert "in pause" in ran.text()


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="stuck_after must be a non-negative number of seconds, got -1"):
        torchshare.Runtime(device="cpu", stuck_after=-1)


def handles(function: Callable[[], object], calls: int) -> Callable[[Job], None]:
    """A server whose handlers run in threads of their own."""

    def serve(job: Job) -> None:
        served = job.serve(function)
        threads = [threading.Thread(target=served) for _ in range(calls)]
        for thread in threads:
            thread.start()
        end = threading.Event()
        end.wait(LONG_S)
        for thread in threads:
            thread.join()

    return serve


def test_a_server_that_nobody_asks_is_not_stuck(named: Callable[[str], list[str]]) -> None:
    run(handles(lambda: None, calls=0))
    assert named("a") == []


def test_a_server_that_waits_for_an_iterator_is_not_stuck(named: Callable[[str], list[str]]) -> None:
    def requests() -> Iterator[int]:
        inbox: queue.Queue[int] = queue.Queue()
        threading.Timer(LONG_S, lambda: inbox.put(1)).start()
        yield inbox.get()

    def serve(job: Job) -> None:
        for request in job.requests(requests()):
            request.answer(0)

    run(serve)
    assert named("a") == []


def test_a_server_whose_handler_is_stuck_is_named_with_its_stack(named: Callable[[str], list[str]]) -> None:
    lock = threading.Lock()
    lock.acquire()

    def waits_for_a_lock() -> None:
        lock.acquire(timeout=LONG_S)

    run(handles(waits_for_a_lock, calls=1))
    [warning] = named("a")
    assert "in waits_for_a_lock" in warning
    assert "in a request" in warning.splitlines()[0]
