"""Timers of jobs: a process has one, and its alarm may come when the timer that it is for is no longer set."""

from __future__ import annotations

import pytest
from conftest import python

LATE_ALARM = """
import os, signal, threading, time
import torchshare

came, handled, expired = [], [], threading.Event()
signal.signal(signal.SIGALRM, lambda *_: came.append("program"))
signal.setitimer(signal.ITIMER_REAL, 1000)
reads, writes = os.pipe()


def wait_for(condition):
    while not condition():
        time.sleep(0.01)


def late(job):
    signal.signal(signal.SIGALRM, lambda *_: came.append("late"))
    handled.append(job)
    wait_for(lambda: "blocked" in handled)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(0.1)
    THEN


def other(job):
    signal.signal(signal.SIGALRM, lambda *_: came.append("other"))
    handled.append(job)
    wait_for(lambda: "end" in came)


def release():
    wait_for(lambda: expired.is_set() or jobs[0].state == "finished")
    os.write(writes, b"x")


with torchshare.Runtime() as runtime:
    jobs = [runtime.submit(job, name=job.__name__) for job in (late, other)]
    runtime.start()
    wait_for(lambda: len(handled) == 2)
    threading.Thread(target=release).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # other threads note it and do not wake this one
    handled.append("blocked")
    os.read(reads, 1)  # Python runs no handler meanwhile
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    print(came)
    signal.raise_signal(signal.SIGALRM)
    print(sorted(came))
    came.append("end")
print(0 < signal.setitimer(signal.ITIMER_REAL, 0)[0] < 1000)
"""


@pytest.mark.parametrize(
    ("then", "alarmed"),
    [
        ("expired.set()", ["late"]),  # the alarm is in time
        ("signal.setitimer(signal.ITIMER_REAL, 0); expired.set()", []),
        ("signal.setitimer(signal.ITIMER_REAL, 500); expired.set()", []),
        ("signal.alarm(0); expired.set()", []),
        ("return", []),  # the end of a job
    ],
)
def test_an_alarm_of_a_timer_that_is_no_longer_set_runs_no_handler(then: str, alarmed: list[str]) -> None:
    stays = "" if then == "return" else '; wait_for(lambda: "end" in came)'
    ran = python(LATE_ALARM.replace("THEN", then + stays))
    from_elsewhere = ["other", "program"] if then == "return" else ["late", "other", "program"]
    assert ran.stdout.splitlines() == [str(alarmed), str(sorted(alarmed + from_elsewhere)), "True"], ran.stderr


def test_an_alarm_of_a_timer_that_the_last_job_leaves_does_not_end_the_program() -> None:
    """Without a handler of the program, SIGALRM would end it."""
    ends = """
import signal, time
import torchshare
def job(job):
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
for _ in range(20):
    with torchshare.Runtime() as runtime:
        runtime.submit(job)
print("ends")
"""
    ran = python(ends)
    assert (ran.returncode, ran.stdout) == (0, "ends\n"), ran.stderr
