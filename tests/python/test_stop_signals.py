"""Ctrl-C and SIGTERM end the jobs of a program in order, and close its runtime once."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import SOON_S, launch, run_one

import torchshare
from torchshare.isolation import process_signals
from torchshare.runtime import signals

pytestmark = pytest.mark.usefixtures("whole_exit")

# A process or a test that gets no core is patient.
PATIENT = """
import os, sys, threading, time, torchshare
from torchshare.runtime import closing
closing.PATIENCE_S = 300
"""
CLEANS_UP = f"""{PATIENT}
def body(job):
    try:
        print("began", flush=True)
        while True: pass
    finally:
        print("cancelled", flush=True)
        while not os.path.exists("go on"): pass
        print("cleaned up", flush=True)
"""
NEVER_STOPS = f"""{PATIENT}
def body(job):
    print("began", flush=True)
    try:
        while True: time.sleep(0.01)
    except BaseException:
        print("cancelled", flush=True)
        threading.Event().wait()
"""
BY_THE_API = """
with torchshare.Runtime(device="cpu") as runtime:
    runtime.submit(body, threads=1)
    runtime.wait()
"""
WITHOUT_WITH = """
runtime = torchshare.Runtime(device="cpu")
runtime.submit(body, threads=1)
runtime.wait()
"""


WAITING = "waiting for jobs to stop: body; Ctrl-C again leaves them behind"


def signalled(process: subprocess.Popen[str], *signals: tuple[str, float, int]) -> None:
    """Sends each signal with a delay after the process has printed a certain line."""
    assert process.stdout is not None
    for line, delay, number in signals:
        printed = process.stdout.readline()
        assert line in printed, (printed, process.communicate(timeout=SOON_S))
        time.sleep(delay)
        process.send_signal(number)


def ended(process: subprocess.Popen[str], folder: Path, said: str, last: int | None = None) -> tuple[str, str]:
    """The further output. Once the process has said that on stderr, lets the job go on, or sends the last signal."""
    assert process.stderr is not None
    before = ""
    while said not in before:
        line = process.stderr.readline()
        assert line, before
        before += line
    if last is None:
        (folder / "go on").touch()
    else:
        process.send_signal(last)
    out, err = process.communicate(timeout=SOON_S)
    return out, before + err


def twice(gap: float) -> tuple[tuple[str, float, int], ...]:
    """Two Ctrl-C, the second after the first has reached the job: Python merges simultaneous ones."""
    return ("began", 0.1, signal.SIGINT), ("cancelled", gap, signal.SIGINT)


@pytest.mark.parametrize("gap", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("program", [BY_THE_API, WITHOUT_WITH], ids=["with", "without"])
def test_a_second_ctrl_c_does_not_interrupt_close(tmp_path: Path, program: str, gap: float) -> None:
    process = launch("-c", CLEANS_UP + program, folder=tmp_path)
    signalled(process, *twice(gap))
    out, err = ended(process, tmp_path, WAITING)
    assert (process.returncode, out) == (-signal.SIGINT, "cleaned up\n"), err
    assert err.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize("gap", [0.05, 0.1, 0.2])
def test_a_second_ctrl_c_at_the_command_line_does_not_interrupt_close(tmp_path: Path, gap: float) -> None:
    (tmp_path / "job.py").write_text(CLEANS_UP)
    process = launch("-m", "torchshare", "run", "job.py:body", "--timeline", "out.json", folder=tmp_path)
    signalled(process, *twice(gap))
    out, err = ended(process, tmp_path, WAITING)
    assert process.returncode == 130, err
    assert "cleaned up\n" in out and "cancelled" in out and "Traceback" not in err
    assert (tmp_path / "out.json").stat().st_size > 0


def test_a_third_ctrl_c_leaves_behind_what_does_not_stop(tmp_path: Path) -> None:
    process = launch("-c", NEVER_STOPS + BY_THE_API, folder=tmp_path)
    signalled(process, *twice(0.1))
    _, err = ended(process, tmp_path, WAITING, signal.SIGINT)
    assert process.returncode == -signal.SIGINT, err
    line = NEVER_STOPS.splitlines().index("        threading.Event().wait()") + 1
    assert f"job 'body' was cancelled, but its thread is still at <string>:{line} (body) and was left behind" in err


def test_sigterm_ends_the_jobs_in_order_and_keeps_what_they_did(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(CLEANS_UP)
    process = launch("-m", "torchshare", "run", "job.py:body", "--timeline", "out.json", folder=tmp_path)
    signalled(process, ("began", 0.1, signal.SIGTERM))
    out, err = ended(process, tmp_path, "")
    assert process.returncode == 143, err
    assert "cleaned up\n" in out and "cancelled" in out
    assert (tmp_path / "out.json").stat().st_size > 0


def test_sigterm_unwinds_a_program_with_a_runtime(tmp_path: Path) -> None:
    process = launch("-c", CLEANS_UP + BY_THE_API, folder=tmp_path)
    signalled(process, ("began", 0.1, signal.SIGTERM))
    out, err = ended(process, tmp_path, "")
    assert (process.returncode, out, err) == (143, "cancelled\ncleaned up\n", "")


def test_a_closed_runtime_restores_the_signal_handlers() -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    before = signal.getsignal(signal.SIGINT)
    run_one(lambda job: None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_while_handlers_are_restored_interrupts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    set_handler, came = process_signals.set_handler, False

    def interrupted(number: int, handler: Any) -> Any:
        nonlocal came
        former = set_handler(number, handler)
        if number == signal.SIGTERM and handler is signal.SIG_DFL and not came:
            came = True
            raise SystemExit(143)
        return former

    monkeypatch.setattr(process_signals, "set_handler", interrupted)
    with pytest.raises(SystemExit), signals.deferred():
        pass
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_programs_own_is_left_alone() -> None:
    former = signal.signal(signal.SIGTERM, mine := lambda *_: None)
    try:
        with torchshare.Runtime(device="cpu") as runtime:
            runtime.start()
            assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, former)
