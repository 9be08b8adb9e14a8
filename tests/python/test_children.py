"""Processes that jobs start, and wait for."""

from __future__ import annotations

import os
import pty
import time
from pathlib import Path

import pytest
from conftest import MEET, Ran, run_one, script

import torchshare

WAITS = """
import subprocess
meet("begun")
if who == "a":
    for number in range(3):
        if os.fork() == 0:
            time.sleep(0.2 * number)
            os._exit(number + 1)
    killed = subprocess.Popen(["sh", "-c", "kill -9 $$"])
    statuses = []
    while True:
        try:
            statuses.append(WAIT[1])
        except ChildProcessError:
            break
    print(sorted(map(os.waitstatus_to_exitcode, statuses)))
    meet("ended")
else:
    started = [subprocess.Popen(["sh", "-c", f"sleep 0.{i}; exit {i + 5}"]) for i in range(3)]
    meet("ended")
    print([each.wait() for each in started])
"""


@pytest.mark.parametrize(
    "wait", ["os.wait()", "os.waitpid(-1, 0)", "os.wait3(0)", "os.wait4(-1, 0)", "os.waitpid(0, 0)"]
)
def test_a_script_that_waits_for_any_process_gets_its_own(tmp_path: Path, wait: str) -> None:
    """The other's exit status was 0 to `subprocess`."""
    script(tmp_path, "waits.py", MEET + WAITS.replace("WAIT", wait))
    ran = Ran(tmp_path, "a=waits.py a", "b=waits.py b")
    assert (ran.code, ran.of("a"), ran.of("b")) == (0, ["[-9, 1, 2, 3]"], ["[5, 6, 7]"]), ran.text()


def test_a_job_may_look_whether_a_process_has_ended() -> None:
    def looks(_job: torchshare.Job) -> None:
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        child = os.fork()
        if child == 0:
            os.read(reads, 1)
            os._exit(3)
        assert os.waitpid(-1, os.WNOHANG) == (0, 0)
        assert os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is None
        os.write(writes, b"x")
        while (found := os.waitpid(-1, os.WNOHANG)) == (0, 0):
            time.sleep(0.01)
        assert found == (child, 3 << 8)
        with pytest.raises(ChildProcessError):
            os.wait()
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_ALL, 0, os.WEXITED)

    reads, writes = os.pipe()
    run_one(looks)


def test_a_job_waits_for_a_child_with_a_terminal_and_by_waitid() -> None:
    def waits(_job: torchshare.Job) -> list[int]:
        found = []
        for code in (3, 4):
            child, terminal = pty.fork()
            if child == 0:
                os._exit(code)
            found.append(os.waitstatus_to_exitcode(os.wait()[1]) if code == 3 else waited())
            os.close(terminal)
        return found

    def waited() -> int:
        status: int = os.waitid(os.P_ALL, 0, os.WEXITED).si_status  # type: ignore[union-attr]
        return status

    assert run_one(waits).value == [3, 4]


SIGCHLD = """
import signal, subprocess
calls, reaped = [], []
def reap(*_):
    calls.append(1)
    reaped.append(os.wait()[1])
if who == "a":
    signal.signal(signal.SIGCHLD, reap)
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.read(reads, 1)
        os._exit(3)
meet("begun")
if who == "b":
    subprocess.run(["true"], check=True)
meet("ran")
if who == "a":
    time.sleep(0.2)
    print(len(calls), reaped)
    os.write(writes, b"x")
    while not reaped:
        time.sleep(0.01)
    print(len(calls), reaped)
"""


def test_the_end_of_a_child_is_a_signal_to_its_job(tmp_path: Path) -> None:
    """A handler that waits for any process stopped its job, and all handlers, until one of its own ended."""
    script(tmp_path, "waits.py", MEET + SIGCHLD)
    ran = Ran(tmp_path, "a=waits.py a", "b=waits.py b")
    assert (ran.code, ran.of("a")) == (0, ["0 []", "1 [768]"]), ran.text()


LISTS = """
import multiprocessing, os, sys, time
context = multiprocessing.get_context(sys.argv[1])
if __name__ == "__main__":
    first = context.Process(target=time.sleep, args=(60,), name=sys.argv[2])
    first.start()
    open(sys.argv[2], "w").close()
    while not (os.path.exists("a") and os.path.exists("b")):
        time.sleep(0.01)
    print([each.name for each in multiprocessing.active_children()], [each.name for each in context.active_children()])
    open(f"{sys.argv[2]}.done", "w").close()
    while not (os.path.exists("a.done") and os.path.exists("b.done")):
        time.sleep(0.01)
    first.terminate()
    first.join()
    print(multiprocessing.active_children())
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_script_lists_its_own_processes(tmp_path: Path, method: str) -> None:
    script(tmp_path, "lists.py", LISTS)
    ran = Ran(tmp_path, *(f"{name}=lists.py {method} {name}" for name in "ab"))
    assert ran.code == 0, ran.text()
    for name in "ab":
        assert ran.of(name) == [f"['{name}'] ['{name}']", "[]"], ran.text()
