"""Jobs that start, end and are cancelled at the same moments: nothing crashes, hangs or is lost."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import SOON_S, Gatekeeper, python, run_ops_for_ever, wait_until

import torchshare
from torchshare import _C, Job, JobFailed
from torchshare.runtime import closing, signals

pytestmark = pytest.mark.usefixtures("whole_exit")

# Loading


def ours(path: Path) -> None:
    _C.StepPackage(str(path))


def torchs(path: Path) -> None:
    torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)


OPENS = ("2", "56", "257")
"""Numbers of the system calls open and openat."""


@pytest.mark.parametrize("loader", [ours, torchs])
def test_compiled_packages_are_loaded_one_at_a_time(tmp_path: Path, loader: Callable[[Path], None]) -> None:
    """torch 2.11 reads every package into one static object; two concurrent threads crash once in a thousand times."""
    slow = tmp_path / "slow.pt2"
    os.mkfifo(slow)  # opening it blocks
    ended: list[str] = []

    def load(path: Path, loader: Callable[[Path], None]) -> None:
        with pytest.raises((ValueError, RuntimeError)):
            loader(path)
        ended.append(path.name)

    with torchshare.Runtime(device="cpu"):
        first = threading.Thread(target=load, args=(slow, ours))
        first.start()
        in_call = Path(f"/proc/self/task/{first.native_id}/syscall")
        wait_until(lambda: in_call.read_text().split()[0] in OPENS)  # it is loading
        second = threading.Thread(target=load, args=(tmp_path / "missing.pt2", loader))
        second.start()
        second.join(0.5)
        assert ended == []
        slow.write_text("")
        first.join(SOON_S)
        second.join(SOON_S)
    assert sorted(ended) == ["missing.pt2", "slow.pt2"]


# Starting


class SlowToReturn:
    """A C++ runtime whose `submit` returns long after the job has begun."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def submit(self, *arguments: Any) -> Any:
        job = self._handle.submit(*arguments)
        time.sleep(0.3)
        return job


def test_a_job_that_begins_before_submit_returns_has_all_it_needs() -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.start()
        runtime._handle = SlowToReturn(runtime._handle)  # type: ignore[assignment]
        job = runtime.submit(lambda job: [job.state, *(batch.data for batch in job.batches([1, 2]))], name="early")
        assert runtime.wait(SOON_S)["early"].value == ["running", 1, 2]
    assert job.result.steps == 2


def test_submit_while_the_runtime_closes_is_refused() -> None:
    closing = threading.Event()
    tried = threading.Event()

    def slow_to_end(job: Job) -> None:
        try:
            run_ops_for_ever(job)
        finally:
            closing.set()
            assert tried.wait(SOON_S)

    runtime = torchshare.Runtime(device="cpu")
    first = runtime.submit(slow_to_end, threads=1)
    runtime.start()
    wait_until(lambda: first.result.ops > 0)
    closer = threading.Thread(target=runtime.close)
    closer.start()
    assert closing.wait(SOON_S)
    with pytest.raises(RuntimeError, match="the runtime is closed"):
        runtime.submit(run_ops_for_ever, name="late", threads=1)
    tried.set()
    closer.join(SOON_S)
    assert [job.state for job in runtime.jobs] == ["cancelled"]


def test_start_without_room_for_threads_says_so_and_can_be_tried_again() -> None:
    """One thread per job: libgomp ends the process if it cannot create an intra-op thread."""
    done = python(
        "import resource, torchshare\n"
        "runtime = torchshare.Runtime(device='cpu')\n"
        "jobs = [runtime.submit(lambda job: job.name, name=f'job{i}', threads=1) for i in range(40)]\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))\n"
        "try:\n"
        "    runtime.start()\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "print({job.state for job in jobs} >= {'pending'})\n"
        "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)\n"
        "print([r.value for r in runtime.wait(300).values()] == [job.name for job in jobs])\n"
        "runtime.close()"
    )
    assert done.stdout.splitlines()[1:] == ["True", "True"], done.stderr
    assert "its thread cannot be created" in done.stdout or "can't start new thread" in done.stdout


# Ending


def test_the_ops_of_a_job_that_was_left_behind_are_not_read() -> None:
    release = threading.Event()
    with torchshare.Runtime(device="cpu", policy="best_fit") as runtime:
        job = runtime.submit(lambda job: (torch.ones(3), release.wait(SOON_S)), name="stuck", threads=1)
        runtime.start()
        wait_until(lambda: job.result.ops > 0)
        runtime.close()
        with pytest.raises(RuntimeError, match="job 'stuck': its ops are available only if they were"):
            job._context.handle.op_profiles()
        release.set()
        wait_until(lambda: job._context.handle.has_left)
        assert job._context.handle.op_profiles() is not None
        assert (job.state, job.result.value) == ("cancelled", None), "what it does later changes nothing"


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_job_that_is_to_end_has_ordinary_priority(end: str) -> None:
    seen: list[int] = []
    gatekeeper = Gatekeeper()

    ended = threading.Event()

    def body(job: Job) -> None:
        thread = threading.get_native_id()
        wait_until(lambda: os.sched_getscheduler(thread) == os.SCHED_IDLE)  # once the other runs
        gatekeeper.reached.set()
        try:
            run_ops_for_ever(job)
        finally:
            seen.append(os.sched_getscheduler(thread))
            ended.set()

    def above(job: Job) -> None:
        while not ended.wait(0.001):
            torch.ones(1).add_(1)  # else it seems to wait for the other, which is then raised

    with torchshare.Runtime(device="cpu", device_priority="idle") as runtime:
        job = runtime.submit(body, threads=1)
        runtime.submit(above, priority="primary", threads=1)
        runtime.start()
        assert gatekeeper.reached.wait(SOON_S)
        job.cancel() if end == "cancel" else runtime.close()
        wait_until(lambda: job.state == "cancelled")
    if not _C.may_raise_priority():
        pytest.skip("priorities cannot be raised here: no CAP_SYS_NICE, no RLIMIT_NICE")
    assert seen == [os.SCHED_OTHER]


@contextlib.contextmanager
def started_processes() -> Iterator[list[int]]:
    """Pids of a loader's worker, a process that another thread has forked, a shell and the shell's child."""
    with contextlib.ExitStack() as ends:
        loader = torch.utils.data.DataLoader(range(1000), num_workers=1, multiprocessing_context="fork")
        items = iter(loader)
        shell = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        ends.callback(shell.communicate)
        ends.callback(shell.kill)
        orphan = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        helper = threading.Thread(target=orphan.start)
        helper.start()
        helper.join()  # its child is another thread's now
        ends.callback(orphan.join)
        ends.callback(orphan.kill)
        assert shell.stdout is not None
        grandchild = int(shell.stdout.readline())
        ends.callback(os.kill, grandchild, signal.SIGKILL)
        yield [items._workers[0].pid, orphan.pid, shell.pid, grandchild]


@pytest.mark.filterwarnings("ignore:.*use of fork")
def test_processes_that_a_secondary_has_started_are_raised_with_it() -> None:
    """They kept its idle priority when the primary had ended. One that has chosen its priority itself keeps it."""
    low, ended = threading.Event(), threading.Event()

    def body(job: Job) -> None:
        thread = threading.get_native_id()
        with contextlib.ExitStack() as ends:
            ends.callback(low.set)
            while True:  # on a busy machine the primary seems to wait now and then: what starts then is not low
                wait_until(lambda: os.sched_getscheduler(thread) == os.SCHED_IDLE)
                with contextlib.ExitStack() as attempt:
                    pids = attempt.enter_context(started_processes())
                    if os.SCHED_IDLE in map(os.sched_getscheduler, pids):
                        ends.push(attempt.pop_all())
                        break
            chosen = subprocess.Popen(["nice", "-n", "3", "sleep", "1000"])
            ends.callback(chosen.wait)
            ends.callback(chosen.kill)
            wait_until(lambda: os.getpriority(os.PRIO_PROCESS, chosen.pid) == niceness + 3)
            os.sched_setscheduler(chosen.pid, os.SCHED_BATCH, os.sched_param(0))
            low.set()
            assert ended.wait(SOON_S)
            wait_until(lambda: {os.sched_getscheduler(pid) for pid in pids} == {os.SCHED_OTHER})
            assert os.sched_getscheduler(chosen.pid) == os.SCHED_BATCH

    def above(job: Job) -> None:
        while not low.wait(0.001):
            torch.ones(1).add_(1)  # else it seems to wait for the other, which is then raised

    if not _C.may_raise_priority():
        pytest.skip("priorities cannot be raised here: no CAP_SYS_NICE, no RLIMIT_NICE")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with torchshare.Runtime(device="cpu", device_priority="idle") as runtime:
        runtime.submit(body, name="below", threads=1)
        primary = runtime.submit(above, priority="primary", threads=1)
        runtime.start()
        wait_until(lambda: primary.state == "finished")
        ended.set()
        runtime.wait(timeout=300)


def test_wait_and_close_inside_a_job_are_refused() -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda job: runtime.wait(), name="waits")
        runtime.submit(lambda job: runtime.close(), name="closes")
        with pytest.raises(JobFailed, match=r"job 'waits': wait\(\) would wait for this job itself") as caught:
            runtime.wait(SOON_S)
    assert "job 'closes': close() would wait for this job itself" in str(caught.value)


def test_a_runtime_that_is_dropped_on_a_jobs_thread_is_closed_by_another() -> None:
    done = python(
        "import gc, torchshare\n"
        "def drop(job):\n"
        "    global runtime\n"
        "    del runtime\n"
        "    gc.collect()\n"
        "    return 'dropped'\n"
        "runtime = torchshare.Runtime(device='cpu')\n"
        "job = runtime.submit(drop)\n"
        "runtime.start()\n"
        "import time\n"
        "while job.state not in ('finished', 'cancelled', 'failed'): time.sleep(0.01)\n"
        "print(job.state)"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() in ("finished", "cancelled")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class EndlesslyUnprintable(Exception):
    def __str__(self) -> str:
        raise EndlesslyUnprintable


@pytest.mark.parametrize("error", [Unprintable, EndlesslyUnprintable])
def test_an_exception_that_cannot_be_printed_is_still_a_failure(error: type[Exception]) -> None:
    def body(job: Job) -> None:
        raise error

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(body, name="a")
        with pytest.raises(JobFailed, match=rf"job 'a' failed after 0 steps: {error.__name__}: \(its __str__ failed\)"):
            runtime.wait(SOON_S)


def test_sys_exit_in_a_job_keeps_its_message(caplog: pytest.LogCaptureFixture) -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda job: sys.exit("no data at /mnt"), name="a")
        with pytest.raises(JobFailed, match="SystemExit: no data at /mnt"):
            runtime.wait(SOON_S)
    assert "job 'a' called sys.exit('no data at /mnt') after 0 steps" in caplog.text


def test_a_second_close_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "PATIENCE_S", SOON_S)
    saved = threading.Event()

    def body(job: Job) -> None:
        try:
            run_ops_for_ever(job)
        finally:
            spin(0.5)
            saved.set()

    runtime = torchshare.Runtime(device="cpu")
    job = runtime.submit(body, threads=1)
    runtime.start()
    wait_until(lambda: job.result.ops > 0)
    first = threading.Thread(target=runtime.close)
    first.start()
    time.sleep(0.1)
    runtime.close()
    assert saved.is_set() and job.state == "cancelled"
    first.join()


@pytest.mark.parametrize("has_core", [True, False])
def test_close_does_not_count_the_time_in_which_a_jobs_thread_had_no_core(has_core: bool) -> None:
    """On a busy machine, jobs were left behind in the middle of their clean-up."""
    looks = 0

    def wait(_seconds: float) -> bool:
        nonlocal looks
        looks += 1
        return False

    def stats() -> SimpleNamespace:
        return SimpleNamespace(core_wait_s=0.0 if has_core else looks * signals.CHECK_S)

    closer = Mock(_handle=Mock(wait=wait), jobs=[Mock(handle=Mock(stats=stats))])
    closing.Closer._wait(closer, signals.Stops())
    assert looks * signals.CHECK_S == pytest.approx(closing.PATIENCE_S * (1 if has_core else 20), rel=0.1)


def test_a_runtime_is_started_once_by_many_threads() -> None:
    before = threading.active_count()
    for _ in range(20):
        runtime = torchshare.Runtime(device="cpu")
        together = threading.Barrier(4)

        def start(runtime: torchshare.Runtime = runtime, together: threading.Barrier = together) -> None:
            together.wait()
            runtime.start()

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        runtime.close()
    assert signals._open == 0
    wait_until(lambda: threading.active_count() <= before)


# Cancelling while process-wide locks are held


def cancel_inside(body: Callable[[Job], Any], inside: threading.Event) -> torchshare.Result:
    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(body, name="a", threads=1)
        runtime.start()
        assert inside.wait(SOON_S)
        job.cancel()
        return runtime.wait(SOON_S, check=False)["a"]


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize("how", ["python", "ops"])
def test_a_cancel_does_not_land_inside_logging(how: str) -> None:
    inside = threading.Event()
    written: list[str] = []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            inside.set()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                if how == "ops":
                    torch.ones(2).add_(1)
            written.append(record.getMessage())

    logger = logging.getLogger("test_lifecycle")
    logger.addHandler(handler := Slow())
    try:

        def body(job: Job) -> None:
            logger.error("whole")
            spin(SOON_S)

        assert cancel_inside(body, inside).state == "cancelled"
    finally:
        logger.removeHandler(handler)
    assert written == ["whole"]


def test_a_cancel_does_not_land_inside_a_fork() -> None:
    done = python(
        "import os, threading, time, torchshare\n"
        "inside, hooks = threading.Event(), []\n"
        "def slow():\n"
        "    if threading.current_thread() is threading.main_thread(): return\n"
        "    inside.set()\n"
        "    end = time.monotonic() + 0.5\n"
        "    while time.monotonic() < end: pass\n"
        "    hooks.append('before')\n"
        "os.register_at_fork(before=slow, after_in_parent=lambda: hooks.append('after'))\n"
        "def body(job):\n"
        "    os.fork() or os._exit(7)\n"  # the cancel is due after the fork
        "    while True: pass\n"
        "with torchshare.Runtime(device='cpu') as runtime:\n"
        "    job = runtime.submit(body, threads=1)\n"
        "    runtime.start()\n"
        "    assert inside.wait(300)\n"
        "    job.cancel()\n"
        "    state = runtime.wait(300)['body'].state\n"
        "hooks.append(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "print(state, hooks)"
    )
    assert (done.stdout.strip(), done.stderr) == ("cancelled ['before', 'after', 7]", "")


def test_a_cancel_that_is_lost_in_a_finalizer_is_repeated() -> None:
    inside = threading.Event()

    class Dropped:
        def __del__(self) -> None:
            inside.set()
            spin(SOON_S)  # the cancel ends this, and Python drops it

    def body(job: Job) -> None:
        dropped = Dropped()
        del dropped
        spin(2 * SOON_S)

    began = time.monotonic()
    assert cancel_inside(body, inside).state == "cancelled"
    assert time.monotonic() - began < SOON_S


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # raised by a partially constructed iterator
def test_a_cancel_while_workers_start_leaves_no_lock_behind() -> None:
    """At-fork handlers of the standard library hold logging's lock around every fork."""

    def body(job: Job) -> None:
        while True:
            loader = torch.utils.data.DataLoader(torch.arange(4), num_workers=1)  # type: ignore[arg-type]
            for batch in job.batches(loader):
                list(batch)

    for delay in (0.0, 0.005, 0.02, 0.05):
        with torchshare.Runtime(device="cpu") as runtime:
            job = runtime.submit(body, name="a", threads=1)
            runtime.start()
            wait_until(lambda job=job: job.result.ops > 0)  # type: ignore[misc]
            time.sleep(delay)
            job.cancel()
            assert runtime.wait(SOON_S, check=False)["a"].state == "cancelled"
        free = threading.Thread(target=logging.getLogger("test_lifecycle").debug, args=("free",))
        free.start()
        free.join(SOON_S)
        assert not free.is_alive()
