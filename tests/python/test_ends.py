"""What ends a program, and what a program may lack: each touches its own job alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from conftest import LOOP, Ran, launch, python, run_one, script, wait_until
from test_replacements import installed

import torchshare
from torchshare import Job

pytestmark = pytest.mark.usefixtures("whole_exit")


@pytest.mark.parametrize("watched", [False, True], ids=["", "-X faulthandler"])
@pytest.mark.parametrize(
    ("does", "status", "printed"),
    [
        ("pass", 0, ""),
        ("raise ValueError('in the child')", 1, "ValueError: in the child"),
        ("sys.exit('in the child')", 1, "in the child"),
        ("sys.exit(5)", 5, ""),
        (
            "threading.Thread(target=lambda: (time.sleep(0.1), print('in the child', flush=True))).start()",
            0,
            "in the child",
        ),
    ],
)
def test_a_forked_child_that_comes_back_from_its_function_ends(
    does: str, status: int, printed: str, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It aborted: "init_threadstate: thread state already initialized", and hung with faulthandler."""
    if watched:
        monkeypatch.setenv("PYTHONFAULTHANDLER", "1")  # as -X faulthandler
    done = python(
        "import os, sys, threading, time, torch, torchshare\n"
        "def forks(job):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        f"        {does}\n"
        "        return\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "def steps(job):\n"
        "    return sum(int(torch.ones(1)) for _ in range(100))\n"
        "with torchshare.Runtime(device='cpu') as runtime:\n"
        "    runtime.submit(steps, name='steps')\n"
        "    runtime.submit(forks, name='forks')\n"
        "    results = runtime.wait()\n"
        "print('ended', results['forks'].value, results['steps'].value)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"ended {status} 100"
    said = done.stdout.replace("ended", "") + done.stderr
    assert printed in said and ("Traceback" in said) == ("ValueError" in printed) and "init_threadstate" not in said


def test_a_forked_child_of_a_script_prints_what_it_exits_with_once(tmp_path: Path) -> None:
    forks = """
import os, sys
child = os.fork()
if child == 0:
    sys.exit("in the child")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-m", "torchshare", "run", "--output=prefix", script(tmp_path, "a.py", forks)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "a: 1"), done.stderr
    assert done.stderr.count("in the child") == 1


@pytest.mark.parametrize("rests", ["train(1)", "time.sleep(1000)", "lock.acquire()"])
def test_os_exit_in_a_thread_ends_its_job_alone(tmp_path: Path, rests: str) -> None:
    """As a watchdog does it, whatever the job's own thread does. It ended the process, with both jobs."""
    exits = f"""
import os, threading, time
lock = threading.Lock()
lock.acquire()
def exit_soon():
    time.sleep(0.2)
    open("exits", "w").close()
    os._exit(3)
threading.Thread(target=exit_soon, daemon=True).start()
while True:
    {rests}
"""
    waits = """
import os
while not os.path.exists("exits"):
    train(1)
train(20)
print("goes on")
"""
    command = ["run", "--json", script(tmp_path, "a.py", LOOP + exits), script(tmp_path, "b.py", LOOP + waits)]
    process = launch("-m", "torchshare", *command, folder=tmp_path)  # leaves a thread behind
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "b: goes on" in err, err
    assert "job 'a': os._exit(3) ends the job, not the process" in err
    states = [job["state"] for job in json.loads(out)["jobs"]]
    assert states == [{"train(1)": "failed"}.get(rests, "cancelled"), "finished"]


def test_a_script_starts_threads_and_processes_as_plain_python_does(tmp_path: Path) -> None:
    """The job's thread was a daemon: so were the threads that it started, which ended with it, in the middle of their
    work. Processes that it forked could not end, once it knew its thread."""
    starts = """
import multiprocessing, threading, time
def write(name):
    time.sleep(0.2)
    open(name, "w").close()
print(threading.current_thread().name, threading.main_thread() is threading.current_thread())
process = multiprocessing.get_context("fork").Process(target=write, args=("by_process",))
process.start()
process.join()
print(process.exitcode)
thread = threading.Thread(target=write, args=("by_thread",))
print(thread.daemon, threading.Thread(daemon=True).daemon)
thread.start()
"""
    plain, shared = tmp_path / "plain", tmp_path / "shared"
    for folder in (plain, shared):
        folder.mkdir()
    command = [sys.executable, script(plain, "a.py", starts)]
    expected = subprocess.run(command, cwd=plain, capture_output=True, text=True, check=True, timeout=300)
    ran = Ran(shared, "--output=prefix", script(shared, "a.py", starts))
    assert (ran.code, ran.of("a")) == (0, expected.stdout.splitlines()), ran.text()
    assert (shared / "by_process").exists() and (shared / "by_thread").exists()


EXECUTORS = """
import asyncio, concurrent.futures, multiprocessing, time
def write(name):
    time.sleep(0.2)
    open(name, "w").close()
    return name
async def in_default_executor():
    return await asyncio.get_running_loop().run_in_executor(None, write, "by_loop")
threads = concurrent.futures.ThreadPoolExecutor(1)
processes = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
loop = asyncio.new_event_loop()
print(threads.submit(write, "first").result(), loop.run_until_complete(in_default_executor()))
threads.submit(write, "by_thread")
processes.submit(write, "by_process")
"""
OF_LIBRARY = """
import joblib, pooled
print(joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-each) for each in range(3)), pooled.POOL.submit(abs, -4).result())
"""


@pytest.mark.parametrize(
    ("uses", "written"), [(EXECUTORS, {"first", "by_loop", "by_thread", "by_process"}), (OF_LIBRARY, set())]
)
def test_the_end_of_a_script_waits_for_no_executor_for_ever(tmp_path: Path, uses: str, written: set[str]) -> None:
    """As a program, which ends its executors when they have done what they were given. Those of libraries, such as the
    processes that joblib keeps, serve all scripts."""
    script(tmp_path, "site/pooled.py", "import concurrent.futures\nPOOL = concurrent.futures.ThreadPoolExecutor(1)\n")
    wait = (
        "import os, time\nwhile not os.path.exists('used'): time.sleep(0.01)\n"  # joblib fails in two threads at once
    )
    script(tmp_path, "first.py", uses + "open('used', 'w').close()\n")
    script(tmp_path, "second.py", wait + uses)
    code, _, text = installed(tmp_path, "first.py", "second.py")
    assert code == 0, text
    assert written <= set(os.listdir(tmp_path))


@pytest.mark.filterwarnings("ignore:.*use of fork")
def test_no_other_job_is_inside_an_op_while_a_job_forks() -> None:
    """A lock of torch that it held would be held for ever in the child, whose first op waited for it."""
    seen: list[bool] = []
    ended = threading.Event()

    def works(job: Job) -> None:
        x = torch.ones(200, 200)
        while not ended.is_set():
            x @ x

    def forks(job: Job) -> list[int]:
        handle = others[0]._context.handle
        wait_until(lambda: handle.stats().ops > 0)
        codes = []
        for _ in range(5):
            forking.append(job)
            child = os.fork()
            if child == 0:
                os._exit(int(torch.ones(3).sum()))
            forking.clear()
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        before = handle.stats().ops
        wait_until(lambda: handle.stats().ops > before)
        ended.set()
        return codes

    forking: list[Job] = []
    others: list[Job] = []
    os.register_at_fork(before=lambda: seen.append(others[0]._context.handle.is_in_op) if forking else None)
    with torchshare.Runtime(device="cpu", policy="strict", device_priority="none") as runtime:
        others.append(runtime.submit(works, name="works", threads=1))
        runtime.submit(forks, name="forks", threads=1, priority="secondary")
        assert runtime.wait(timeout=300)["forks"].value == [3] * 5
    assert seen == [False] * 5


def test_files_that_a_script_has_not_closed_are_written(tmp_path: Path) -> None:
    """They were empty: the garbage collector closed a file before its buffer was written. What a daemon says of values
    that are gone is not printed."""
    forgets = """
import csv, threading, time
import own
writer = csv.writer(open("main.csv", "w"))
writer.writerow([1])
values = [0]
def daemon():
    while True:
        values.append(values.pop())
threading.Thread(target=daemon, daemon=True).start()
"""
    script(tmp_path, "own.py", "log = open('own.txt', 'w')\nlog.write('logged')\ndef function(): pass")
    ran = Ran(tmp_path, script(tmp_path, "a.py", forgets), script(tmp_path, "b.py", "pass"))
    assert (ran.code, "Traceback" in ran.text()) == (0, False), ran.text()
    assert ((tmp_path / "main.csv").read_text(), (tmp_path / "own.txt").read_text()) == ("1\n", "logged")


def test_a_function_starts_threads_that_are_no_daemons() -> None:
    def body(job: Job) -> tuple[str, bool, threading.Thread]:
        return threading.current_thread().name, threading.Thread().daemon, threading.current_thread()

    name, is_daemon, thread = run_one(body).value
    assert (name, is_daemon) == ("alone", False)
    assert thread not in threading.enumerate()


PRINTS = "import subprocess, sys\nprint('printed', flush=True)\nsubprocess.run(['echo', 'by a child'])\n"


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (">&-", 0, "torchshare: stdout is closed: what is printed is lost"),
        (">&- 2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 1, "what the jobs print to stdout is lost from here on: No space left on device"),
    ],
)
def test_no_job_fails_by_a_stdout_that_cannot_be_written(
    tmp_path: Path, redirection: str, status: int, said: str
) -> None:
    """Both failed with `'NoneType' object has no attribute 'write'`, or "No space left on device"."""
    writes = "open(sys.argv[1], 'w').write('file')\nprint('printed', flush=True)\n"
    for name in ("a", "b"):
        script(tmp_path, f"{name}.py", PRINTS + writes)
    command = f"{sys.executable} -m torchshare run --timeline t.json 'a.py a.out' 'b.py b.out' {redirection}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    assert [(tmp_path / name).read_text() for name in ("a.out", "b.out")] == ["file", "file"]
    assert "failed" not in done.stderr and done.stderr.count("lost") == (said != "")
    assert said in done.stderr


def test_a_user_without_a_name_may_run_jobs() -> None:
    """A uid without a passwd entry, as containers have it: torch could not name Inductor's cache, and no runtime could
    be opened. Simulated: other users cannot read this Python."""
    done = python(
        "import os, pwd\n"
        "for name in ('USER', 'LOGNAME', 'LNAME', 'USERNAME'):\n"
        "    os.environ.pop(name, None)\n"
        "def none(uid): raise KeyError(f'getpwuid(): uid not found: {uid}')\n"
        "pwd.getpwuid = none\n"
        "import torch, torchshare\n"
        "def train(job):\n"
        "    model = torch.nn.Linear(2, 2)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for batch in job.batches([torch.ones(4, 2)] * 3):\n"
        "        batch.backward(lambda x: model(x).sum())\n"
        "        optimizer.step()\n"
        "with torchshare.Runtime(device='cpu') as runtime:\n"
        "    runtime.submit(train, name='a')\n"
        "    print(runtime.wait()['a'].steps, os.environ['LOGNAME'] == str(os.getuid()))\n"
    )
    assert (done.returncode, done.stdout) == (0, "3 True\n"), done.stderr


def test_the_excepthook_of_each_script_is_called_with_its_own_frames(tmp_path: Path) -> None:
    hooks = """
import sys, traceback
def hook(kind, error, frames):
    print(sys.argv[1], kind.__name__, error, [frame.name for frame in traceback.extract_tb(frames)])
sys.excepthook = hook
def fail():
    raise ValueError("bad")
fail()
"""
    path = script(tmp_path, "hooks.py", hooks)
    ran = Ran(tmp_path, "--output=prefix", f"a={path} a", f"b={path} b")
    said = {name: [line for line in ran.of(name) if "ValueError" in line] for name in "ab"}
    assert said == {name: [f"{name} ValueError bad ['<module>', 'fail']"] for name in "ab"}, ran.text()
    assert [job["state"] for job in ran.jobs.values()] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("hook", "end", "said"),
    [
        ("lambda *_: print('called')", "sys.exit(3)", "called sys.exit(3)"),
        ("lambda *_: 1 / 0", "raise ValueError('bad')", "job 'a': error in sys.excepthook"),
    ],
)
def test_an_excepthook_is_for_failures_and_may_fail(tmp_path: Path, hook: str, end: str, said: str) -> None:
    ran = Ran(tmp_path, "--output=prefix", script(tmp_path, "a.py", f"import sys\nsys.excepthook = {hook}\n{end}"))
    assert (ran.code, ran.of("a")) == (1, []), ran.text()
    assert said in ran.text()
