"""Jobs that are stuck are named in a warning."""

from __future__ import annotations

import builtins
import functools
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


Named = Callable[..., list[str]]


@pytest.fixture
def named(caplog: pytest.LogCaptureFixture) -> Named:
    """The warnings that name a job as stuck: all, or those in a certain function. A job may also be named for as long
    as it gets no core, elsewhere."""
    caplog.set_level(logging.WARNING, "torchshare")

    def found(job: str, function: str = "") -> list[str]:
        texts = [text for text in list(caplog.messages) if text.startswith(f"job '{job}' is stuck")]
        return [text for text in texts if f"in {function}" in text]

    return found


def run(function: Callable[[Job], Any], **options: Any) -> None:
    with torchshare.Runtime(device="cpu", **{"stuck_after": STUCK_S, **options}) as runtime:
        runtime.submit(function, name="a", threads=1)
        runtime.wait(300)


def set_once(event: threading.Event, condition: Callable[[], object]) -> None:
    """Sets it some time after the condition has come to hold, in another thread."""

    def waits() -> None:
        wait_until(lambda: bool(condition()))
        time.sleep(LONG_S)  # it could be named again meanwhile
        event.set()

    threading.Thread(target=waits, daemon=True).start()


def blocks_on_a_lock(end: threading.Event, _job: Job) -> None:
    torch.ones(1)
    end.wait()


def sleeps(end: threading.Event, _job: Job) -> None:
    torch.ones(1)
    while not end.is_set():
        time.sleep(LONG_S)


def computes(end: threading.Event, _job: Job) -> None:
    torch.ones(1)
    while not end.is_set():
        pass


@pytest.mark.parametrize("function", [blocks_on_a_lock, sleeps, computes])
def test_a_stuck_job_is_named_once_with_its_stack(
    function: Callable[[threading.Event, Job], None], named: Named
) -> None:
    end = threading.Event()
    set_once(end, lambda: named("a", function.__name__))
    run(functools.partial(function, end))
    [warning] = named("a", function.__name__)
    first, second, *_ = warning.splitlines()
    said = re.fullmatch(r"job 'a' is stuck: for (\S+) s it ended no op and did not wait for input; it is in", first)
    assert said is not None and float(said[1]) >= STUCK_S
    assert f'File "{__file__}"' in second
    assert f"in {function.__name__}" in second


def test_a_job_that_goes_on_and_is_stuck_again_is_named_again(named: Named) -> None:
    def twice(_job: Job) -> None:
        for count in (1, 2):
            torch.ones(2).add_(1)
            wait_until(lambda count=count: len(named("a", "twice")) == count)  # type: ignore[misc]

    run(twice)


def test_a_job_that_polls_is_named(named: Named) -> None:
    def polls(_job: Job) -> None:
        while not named("a"):
            time.sleep(LONG_S / 100)
        for _ in range(100):
            time.sleep(LONG_S / 100)

    run(polls)
    assert len(named("a")) == 1


def slow_loader() -> Iterator[torch.Tensor]:
    for _ in range(2):
        time.sleep(LONG_S)
        yield torch.ones(2)


def test_a_job_that_waits_for_input_is_not_named(named: Named) -> None:
    run(lambda job: list(job.batches(slow_loader())))
    assert named("a", "slow_loader") == []


def test_a_job_whose_loader_cannot_be_opened_no_longer_waits_for_it(named: Named) -> None:
    class Loader:
        def __iter__(self) -> Iterator[torch.Tensor]:
            raise OSError("no such data set")

    def goes_on(job: Job) -> None:
        with pytest.raises(OSError, match="no such data set"):
            list(job.batches(Loader()))
        torch.ones(1)
        wait_until(lambda: named("a", "goes_on") != [])

    run(goes_on)


def test_a_job_that_is_suspended_is_not_named(named: Named) -> None:
    with torchshare.Runtime(device="cpu", stuck_after=STUCK_S) as runtime:
        job = runtime.submit(run_ops_for_ever, name="a", threads=1)
        runtime.start()
        wait_until(lambda: job.result.ops > 0)
        job.suspend()
        wait_until(lambda: job.state == "suspended")
        before = named("a")
        time.sleep(LONG_S)
        assert named("a") == before
        job.cancel()


def test_a_job_that_is_kept_at_the_gate_or_has_not_started_is_not_named(named: Named) -> None:
    def busy(_job: Job) -> None:
        x = torch.ones(4)
        while not end.is_set():
            x.add_(1)

    def waits_at_the_gate(_job: Job) -> None:
        torch.ones(4)

    kept_out = False
    while not kept_out:  # it is let in where the first job gets no core for the grace
        end = threading.Event()
        with torchshare.Runtime(device="cpu", policy="strict", grace=1, stuck_after=STUCK_S) as runtime:
            first = runtime.submit(busy, name="first", priority="primary", threads=1)
            runtime.start()
            wait_until(lambda: first.result.ops > 0)  # noqa: B023
            kept = runtime.submit(waits_at_the_gate, name="kept", threads=1)
            runtime.submit(busy, name="later", start="after:kept", threads=1)
            wait_until(lambda: kept.state == "running")  # noqa: B023
            time.sleep(LONG_S)
            kept_out = kept.result.ops == 0
            end.set()
            runtime.wait(300)
    assert named("kept", "waits_at_the_gate") == named("later") == []


@pytest.mark.parametrize("stuck_after", [0, 60])
def test_a_job_may_be_stuck_for_so_long(stuck_after: float, named: Named) -> None:
    run(lambda _job: time.sleep(LONG_S), stuck_after=stuck_after)
    assert named("a") == []


class Sets(logging.Handler):
    """Sets an event once a job is named in that function."""

    def __init__(self, event: threading.Event, function: str) -> None:
        super().__init__()
        self.event, self.function = event, function

    def emit(self, record: logging.LogRecord) -> None:
        if "is stuck" in record.getMessage() and f"in {self.function}" in record.getMessage():
            self.event.set()


def test_the_command_line_has_the_option(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "end", end := threading.Event(), raising=False)
    monkeypatch.setattr(logging.getLogger("torchshare"), "handlers", [Sets(end, "pause")])
    pauses = "import builtins, torch\ndef pause():\n    torch.ones(1)\n    builtins.end.wait()\npause()\n"
    ran = Ran(tmp_path, "--stuck-after", str(STUCK_S), script(tmp_path, "a.py", pauses))
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


def test_a_server_that_nobody_asks_is_not_stuck(named: Named) -> None:
    run(handles(lambda: None, calls=0))
    assert named("a", "serve") == []


def test_a_server_that_waits_for_an_iterator_is_not_stuck(named: Named) -> None:
    def requests() -> Iterator[int]:
        inbox: queue.Queue[int] = queue.Queue()
        threading.Timer(LONG_S, lambda: inbox.put(1)).start()
        yield inbox.get()

    def serve(job: Job) -> None:
        for request in job.requests(requests()):
            request.answer(0)

    run(serve)
    assert named("a", "requests") == []


def test_a_server_whose_handler_is_stuck_is_named_with_its_stack(named: Named) -> None:
    end = threading.Event()

    def waits_for_a_lock() -> None:
        end.wait()

    set_once(end, lambda: named("a", "waits_for_a_lock"))
    run(handles(waits_for_a_lock, calls=1))
    [warning] = named("a", "waits_for_a_lock")
    assert "in a request" in warning.splitlines()[0]
