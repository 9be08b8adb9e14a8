"""Signals that jobs handle: each job has its own handlers, and what they do is that job's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import Ran, launch, run_one, script, wait_until

import torchshare
from torchshare import Job

START = """
import os, signal, subprocess, sys, threading, time
import torch
def send(name):
    subprocess.run(["kill", f"-{name}", str(os.getpid())], check=True)
def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
def meet(*names):
    open(f"{sys.argv[1]}.there", "w").close()
    wait_for(lambda: all(os.path.exists(f"{name}.there") for name in names))
came = []
"""


def test_the_handlers_of_both_scripts_run_as_the_scripts(tmp_path: Path) -> None:
    handles = """
os.environ["WHO"] = sys.argv[1]
def handler(number, frame):
    print("handles", number, os.environ["WHO"], frame is not None)
    came.append(number)
signal.signal(signal.SIGUSR1, handler)
assert signal.getsignal(signal.SIGUSR1) is handler
meet("a", "b")
if sys.argv[1] == "a":
    send("USR1")
wait_for(lambda: came)
print("done")
"""
    each = script(tmp_path, "each.py", START + handles)
    ran = Ran(tmp_path, f"a={each} a", f"b={each} b")
    assert (ran.code, ran.states()) == (0, ["finished", "finished"]), ran.text()
    for job in "ab":
        assert ran.of(job) == [f"handles {signal.SIGUSR1:d} {job} True", "done"]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("action", "ending"),
    [
        ("sys.exit(7)", "job 'a' called sys.exit(7)"),
        ("os._exit(7)", "job 'a' called sys.exit(7)"),
        ("raise OSError('by the handler')", "OSError: by the handler"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize("rests", ["torch.ones(4).sum()", "sum(range(1000))", "time.sleep(1000)"])
def test_what_a_handler_raises_ends_its_job_alone(tmp_path: Path, action: str, ending: str, rests: str) -> None:
    handles = f"""
def handler(*_):
    {action}
signal.signal(signal.SIGUSR1, handler)
threading.Timer(0.2, send, ["USR1"]).start()
try:
    while True:
        {rests}
finally:
    print("cleans up", threading.current_thread() is threading.main_thread())
"""
    a = script(tmp_path, "a.py", START + handles)
    b = script(tmp_path, "b.py", START + "wait_for(lambda: os.path.exists('ended'))\nprint('goes on')")
    end = threading.Timer(1.5, (tmp_path / "ended").touch)
    end.start()
    ran = Ran(tmp_path, a, b)
    assert (ran.code, ran.states()) == (1, ["failed", "finished"]), ran.text()
    assert ending in ran.text()
    assert (ran.of("a")[0], ran.of("b")) == ("cleans up True", ["goes on"])


def test_an_exception_of_a_handler_may_be_caught(tmp_path: Path) -> None:
    """A limit of time, as many programs set it."""
    limits = """
class Limit(Exception):
    def __init__(self, number, reason):
        super().__init__(number, reason)
def limit(number, frame):
    raise Limit(number, "too slow")
signal.signal(signal.SIGALRM, limit)
for attempt in range(2):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        while True:
            torch.ones(4).sum()
    except Limit as error:
        print(type(error) is Limit, error.args)
print(signal.getitimer(signal.ITIMER_REAL), signal.alarm(100), signal.alarm(0))
"""
    ran = Ran(tmp_path, "--output=prefix", script(tmp_path, "a.py", START + limits))
    assert ran.code == 0, ran.text()
    assert ran.of("a") == [f"True ({signal.SIGALRM:d}, 'too slow')"] * 2 + ["(0.0, 0.0) 0 100"]


def test_each_script_has_a_timer_of_its_own(tmp_path: Path) -> None:
    often = """
signal.signal(signal.SIGALRM, lambda *_: came.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
wait_for(lambda: len(came) >= 10)
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    seldom = """
signal.signal(signal.SIGALRM, lambda *_: came.append(1))
signal.setitimer(signal.ITIMER_REAL, 1000)
meet("a", "b")
wait_for(lambda: os.path.exists("ended"))
print(len(came), signal.setitimer(signal.ITIMER_REAL, 0)[0] > 900)
"""
    a = script(tmp_path, "a.py", START + "meet('a', 'b')" + often + "open('ended', 'w').close()")
    b = script(tmp_path, "b.py", START + seldom)
    signal.setitimer(signal.ITIMER_REAL, 500)  # may be that of pytest, which is set again for each test
    ran = Ran(tmp_path, f"{a} a", f"{b} b")
    assert ran.code == 0, ran.text()
    assert ran.of("b") == ["0 True"]
    assert 0 < signal.setitimer(signal.ITIMER_REAL, 0)[0] < 500


def test_a_signal_that_a_script_sends_itself_is_its_own(tmp_path: Path) -> None:
    sends = """
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
for send_itself in (lambda: os.kill(os.getpid(), signal.SIGUSR1), lambda: signal.raise_signal(signal.SIGUSR1)):
    send_itself()
print(came)  # at once, as in plain Python
os.kill(os.getpid(), signal.SIGTERM)
"""
    other = """
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
meet("b", "a")
wait_for(lambda: os.path.exists("ended"))
print(came)
"""
    a = script(tmp_path, "a.py", START + "meet('a', 'b')\nimport atexit; atexit.register(open, 'ended', 'w')" + sends)
    b = script(tmp_path, "b.py", START + other)
    ran = Ran(tmp_path, f"{a} a", f"{b} b")
    assert (ran.states(), ran.of("a")[0], ran.of("b")) == (["failed", "finished"], "[1, 1]", ["[]"]), ran.text()
    assert "job 'a': SIGTERM ends the job: it has no handler of it" in ran.text()


def test_the_event_loops_of_both_scripts_handle_signals(tmp_path: Path) -> None:
    """asyncio has a descriptor written to at a signal, of which a process has one."""
    loops = """
import asyncio
async def main():
    came = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, came.set)
    meet("a", "b")
    if sys.argv[1] == "a":
        send("USR1")
    await asyncio.wait_for(came.wait(), 300)
asyncio.run(main())
print("handled", signal.set_wakeup_fd(-1))
with open(os.devnull) as file:
    try:
        signal.set_wakeup_fd(file.fileno())
    except ValueError as error:
        print(error)
"""
    each = script(tmp_path, "each.py", START + loops)
    ran = Ran(tmp_path, f"a={each} a", f"b={each} b")
    assert (ran.code, ran.states()) == (0, ["finished", "finished"]), ran.text()
    for job in "ab":
        assert ran.of(job)[0] == "handled -1" and "must be in non-blocking mode" in ran.of(job)[1]


def test_signal_and_getsignal_answer_as_in_plain_python(tmp_path: Path) -> None:
    asks = """
print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.signal(signal.SIGTERM, print))
print(signal.getsignal(15) is print)
print(signal.signal(15, signal.SIG_DFL) is print, signal.getsignal(signal.SIGTERM))
for number, handler in ((signal.SIGTERM, 5), (signal.SIGKILL, print), (1000, print)):
    try:
        signal.signal(number, handler)
    except (TypeError, OSError, ValueError) as error:
        print(type(error).__name__, error)
def elsewhere():
    print(threading.current_thread() is threading.main_thread())
    try:
        signal.signal(signal.SIGTERM, print)
    except ValueError as error:
        print(error)
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
print(threading.current_thread() is threading.main_thread())
"""
    plain = subprocess.run(
        [sys.executable, script(tmp_path, "a.py", START + asks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    ran = Ran(tmp_path, "--output=prefix", "a.py")
    assert ran.code == 0, ran.text()
    assert ran.of("a") == plain.stdout.splitlines()


def test_a_job_enters_no_op_while_its_handler_runs() -> None:
    seen: list[int] = []

    def body(job: Job) -> None:
        def handler(*_: object) -> None:
            before = job.result.ops
            time.sleep(0.1)
            seen.append(job.result.ops - before)

        signal.signal(signal.SIGUSR1, handler)
        x = torch.ones(4)
        while not seen:
            x.add_(1)
        assert signal.getsignal(signal.SIGUSR1) is handler

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(body, threads=1)
        runtime.start()
        wait_until(lambda: job.result.ops > 0)
        os.kill(os.getpid(), signal.SIGUSR1)
        runtime.wait(timeout=300)
    assert seen == [0]


def test_a_handler_of_a_function_raises_in_its_job() -> None:
    def body(job: Job) -> None:
        def handler(*_: object) -> None:
            raise OSError("by the handler")

        signal.signal(signal.SIGUSR2, handler)
        subprocess.run(["kill", "-USR2", str(os.getpid())], check=True)
        while True:
            time.sleep(0.01)

    with pytest.raises(OSError, match="by the handler"):
        run_one(body)


def test_handlers_of_the_program_stay_and_are_called_too() -> None:
    came: list[str] = []
    former = signal.signal(signal.SIGUSR1, mine := lambda *_: came.append("program"))
    try:

        def body(job: Job) -> None:
            signal.signal(signal.SIGUSR1, lambda *_: came.append("job"))
            os.kill(os.getpid(), signal.SIGUSR1)
            subprocess.run(["kill", "-USR1", str(os.getpid())], check=True)
            wait_until(lambda: "program" in came)

        run_one(body)
        assert came == ["job", "job", "program"]
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, former)


LOOPS = "\nopen(f'{sys.argv[1]}.began', 'w').close()\nwhile True:\n    torch.ones(4).sum()\n"


@pytest.mark.parametrize("name", ["USR1", "USR2", "HUP", "ALRM", "TERM"])
def test_a_signal_that_no_script_handles_ends_the_jobs_in_order(tmp_path: Path, name: str) -> None:
    cleans = f"import atexit; atexit.register(print, 'cleans up'){LOOPS}"
    each = script(tmp_path, "each.py", START + cleans)
    process = launch("-m", "torchshare", "run", f"a={each} a", f"b={each} b", folder=tmp_path)
    wait_until(lambda: (tmp_path / "a.began").exists() and (tmp_path / "b.began").exists())
    number = getattr(signal, f"SIG{name}")
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number, err
    assert {"a: cleans up", "b: cleans up"} <= set(out.splitlines()), out
    assert [line.split()[0] for line in out.splitlines() if "cancelled" in line] == ["a", "b"], out


@pytest.mark.parametrize("second", ["TERM", "INT"])
def test_sigterm_is_the_handlers_once(tmp_path: Path, second: str) -> None:
    """The job with a handler goes on, the other one is cancelled; the next signal ends both."""
    handles = "signal.signal(signal.SIGTERM, lambda *_: print('handles', flush=True))"
    a = script(tmp_path, "a.py", START + handles + LOOPS)
    b = script(tmp_path, "b.py", START + LOOPS)
    process = launch("-m", "torchshare", "run", "--timeline", "t.json", f"{a} a", f"{b} b", folder=tmp_path)
    wait_until(lambda: (tmp_path / "a.began").exists() and (tmp_path / "b.began").exists())
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stderr is not None
    for line in process.stderr:
        if "SIGTERM is handled by 'a', and cancels 'b'" in line:
            break
    for line in process.stderr:
        if line.startswith("b: cancelled"):
            break
    assert process.stdout.readline() == "a: handles\n"
    process.send_signal(getattr(signal, f"SIG{second}"))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + getattr(signal, f"SIG{second}"), err
    assert "a: handles" not in out and (tmp_path / "t.json").stat().st_size > 0


def test_a_script_that_handles_sigterm_ends_by_itself(tmp_path: Path) -> None:
    handles = """
signal.signal(signal.SIGTERM, lambda *_: came.append(1))
open("began", "w").close()
while not came:
    torch.ones(4).sum()
print("saved")
"""
    process = launch("-m", "torchshare", "run", script(tmp_path, "a.py", START + handles), folder=tmp_path)
    wait_until((tmp_path / "began").exists)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out.splitlines()[0]) == (0, "saved"), err


# A signal that comes just before a system call is handled after it: no process here stays in one for long.
FORKS = """
import multiprocessing
def sleep(name="sleeps"):
    open(name, "w").close()
    for _ in range(10_000):
        time.sleep(0.01)
def fork(*names):
    child = multiprocessing.get_context("fork").Process(target=sleep, args=names)
    child.start()
    return child
def end(child):
    child.terminate()
    child.join()
    print(child.exitcode)
"""


@pytest.mark.filterwarnings("ignore:.*use of fork")
def test_a_forked_process_has_the_handlers_of_its_job(tmp_path: Path) -> None:
    ends = """
def began(name):
    child = fork(name)
    wait_for(lambda: os.path.exists(name))
    return child
end(began("first"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
end(began("second"))
"""
    ran = Ran(tmp_path, "--output=prefix", script(tmp_path, "a.py", START + FORKS + ends))
    assert (ran.code, ran.of("a")) == (0, [str(-signal.SIGTERM), "9"]), ran.text()


@pytest.mark.filterwarnings("ignore:.*use of fork")
def test_a_signal_to_a_process_that_is_being_forked_is_not_lost(tmp_path: Path) -> None:
    """Python ignores what a handler raises in a callback of os.register_at_fork."""
    ends = """
signals = [signal.SIGTERM]
os.register_at_fork(after_in_child=lambda: [os.kill(os.getpid(), number) for number in signals])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
child = fork()
child.join()
signals.clear()
print(child.exitcode)
for child in [fork() for _ in range(8)]:
    end(child)
"""
    ran = Ran(tmp_path, "--output=prefix", script(tmp_path, "a.py", START + FORKS + ends))
    assert (ran.code, ran.of("a")) == (0, ["9"] * 9), ran.text()


def test_a_second_signal_ends_a_handler_that_hangs(tmp_path: Path) -> None:
    hangs = """
def hang(*_):
    print("hangs", file=sys.stderr, flush=True)
    time.sleep(1000)
signal.signal(signal.SIGUSR1, hang)
"""
    process = launch("-m", "torchshare", "run", f"{script(tmp_path, 'a.py', START + hangs + LOOPS)} a", folder=tmp_path)
    wait_until((tmp_path / "a.began").exists)
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    for line in process.stderr:
        if "hangs" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, err


FAULTS = """
import faulthandler
name = sys.argv[1]
file = open(f"{name}.dump", "w")
def wait_here():
    open(f"{name}.waits", "w").close()
    wait_for(lambda: "wait_here" in open(f"{name}.dump").read())
"""


def test_both_scripts_dump_their_tracebacks_at_a_signal(tmp_path: Path) -> None:
    dumps = """
faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
meet("a", "b")
if name == "a":
    wait_for(lambda: os.path.exists("b.waits"))  # both dumps have its stack
    send("USR1")
wait_here()
assert faulthandler.unregister(signal.SIGUSR1) and not faulthandler.unregister(signal.SIGUSR1)
print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)
"""
    each = script(tmp_path, "each.py", START + FAULTS + dumps)
    ran = Ran(tmp_path, f"a={each} a", f"b={each} b")
    assert (ran.code, ran.of("a"), ran.of("b")) == (0, ["True"], ["True"]), ran.text()


def test_the_time_out_of_faulthandler_is_a_job_s_own(tmp_path: Path) -> None:
    """a dumps and exits, b is cancelled in time, c dumps and goes on."""
    dumps = """
meet("a", "b", "c")
if name == "a":
    faulthandler.dump_traceback_later(0.3, exit=True, file=file)
    while True:
        torch.ones(4).sum()
elif name == "b":
    faulthandler.dump_traceback_later(100, exit=True)
    wait_for(lambda: os.path.getsize("a.dump") and os.path.getsize("c.dump"))
    faulthandler.cancel_dump_traceback_later()
else:
    faulthandler.dump_traceback_later(0.1, repeat=True, file=file)
    wait_here()
print("done")
"""
    each = script(tmp_path, "each.py", START + FAULTS + dumps)
    ran = Ran(tmp_path, "--max-concurrent", "3", f"a={each} a", f"b={each} b", f"c={each} c")
    assert ran.states() == ["failed", "finished", "finished"], ran.text()
    assert [ran.of(name).count("done") for name in "abc"] == [0, 1, 1], ran.text()


def test_a_script_s_faulthandler_leaves_the_report_of_a_crash(tmp_path: Path) -> None:
    import faulthandler

    former = faulthandler.is_enabled()
    with (tmp_path / "report").open("w+") as report:
        faulthandler.enable(report)
        try:
            enables = """
assert not faulthandler.is_enabled()
faulthandler.enable(file)
assert faulthandler.is_enabled()
faulthandler.disable()
"""
            ran = Ran(tmp_path, "--output=prefix", f"{script(tmp_path, 'a.py', START + FAULTS + enables)} a")
            assert ran.code == 0, ran.text()
            assert faulthandler.is_enabled()
        finally:
            if former:
                faulthandler.enable()
            else:
                faulthandler.disable()
