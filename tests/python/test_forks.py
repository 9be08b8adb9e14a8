"""Processes that are forked while jobs run."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import forked_draws
import numpy
import pytest
import torch
from conftest import Ran, completed, python, run_one, script

import torchshare

# From Python 3.12 on, a fork warns of the threads that torch, for one, has.
QUIET = "import warnings\nwarnings.filterwarnings('ignore', '.*use of fork')\n"


def test_a_forked_child_is_refused_its_parents_runtime_and_ends() -> None:
    done = python(
        "import os, sys, torchshare\n"
        "runtime = torchshare.Runtime(device='cpu')\n"
        "spin = lambda job: [None for _ in iter(job._context.handle.yield_point, 1)]\n"
        "runtime.submit(spin, name='spins', threads=1)\n"
        "runtime.start()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    for call in (runtime.wait, runtime.start, lambda: runtime.submit(print, name='b')):\n"
        "        try: call()\n"
        "        except RuntimeError as error: print(error)\n"
        "    sys.exit(3)\n"
        "print('child', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 'of', os.getpid())\n"
        "runtime.close()"
    )
    *refused, last = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert last.startswith("child 3 of ")
    parent = last.split()[-1]
    message = f"the runtime belongs to process {parent}; a forked process must open its own"
    assert refused == [message] * 3


def test_a_forked_child_may_have_a_runtime_of_its_own() -> None:
    """torch recreates its thread pool in the first call that sets the number of threads; concurrent jobs failed with
    "Invalid thread pool" (six jobs: in 2,096 of 2,230 children)."""
    done = python(
        QUIET + "import os, sys, torch, torchshare\n"
        "torch.set_num_threads(2)\n"
        "def train(job):\n"
        "    w = torch.ones(8, requires_grad=True)\n"
        "    for batch in job.batches([torch.ones(8)] * 3):\n"
        "        batch.backward(lambda x: (x * w).sum())\n"
        "    return w.grad.sum().item()\n"
        "def run():\n"
        "    with torchshare.Runtime(device='cpu') as runtime:\n"
        "        for i in range(6): runtime.submit(train, name=str(i), threads=1)\n"
        "        return {result.value for result in runtime.wait(300).values()}\n"
        "for _ in range(3):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        assert run() == {24.0}\n"
        "        sys.exit(0)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)"
    )
    assert (done.stdout.split(), done.stderr) == (["0"] * 3, "")


def test_a_forked_child_may_load_a_compiled_package_while_its_parent_does(tmp_path: Path) -> None:
    slow = tmp_path / "slow.pt2"
    os.mkfifo(slow)  # opening it blocks
    done = python(
        QUIET + "import os, signal, threading, time\n"
        "from torchshare import _C\n"
        "def load(path):\n"
        "    try: _C.StepPackage(path)\n"
        "    except ValueError: pass\n"
        f"first = threading.Thread(target=load, args=({str(slow)!r},))\n"
        "first.start()\n"
        "time.sleep(0.3)\n"  # it is loading
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(10)\n"
        "    load('missing.pt2')\n"
        "    os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        f"open({str(slow)!r}, 'w').close()\n"
        "first.join()"
    )
    assert (done.stdout.strip(), done.stderr) == ("3", "")


WAIT = """
import os, signal, subprocess, time
from pathlib import Path

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.01)
"""
FORKS = """
wait_for("ready")
child = os.fork()
if child == 0:
    signal.alarm(60)
    {child}
    os._exit(3)
Path("forked").touch()
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def beside(folder: Path, first: str, child: str) -> None:
    """Runs a script beside one that forks a child as soon as there is the file "ready"."""
    script(folder, "first.py", WAIT + first)
    script(folder, "forks.py", WAIT + FORKS.format(child=child))
    ran = Ran(folder, "first.py", "forks.py")
    assert (ran.code, ran.of("forks")) == (0, ["child 3"]), ran.text()


def test_a_process_that_another_job_forks_does_not_keep_a_pipe_open(tmp_path: Path) -> None:
    talks = """
command = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
Path("ready").touch()
wait_for("forked")
try:
    command.communicate(b"text", timeout=20)
finally:
    Path("done").touch()
"""
    beside(tmp_path, talks, "wait_for('done')")


def test_a_forked_child_finds_no_lock_of_a_module_held_by_another_job(tmp_path: Path) -> None:
    """torch holds it while it seeds its generators, and reads files meanwhile."""
    holds = """
import torch.mtia
with torch.mtia._initialization_lock:
    Path("ready").touch()
    time.sleep(0.5)
"""
    beside(tmp_path, holds, "import torch; torch.manual_seed(1)")


@pytest.mark.parametrize("seconds", [0.5, 4])
def test_a_forked_child_imports_what_another_job_is_importing(tmp_path: Path, seconds: float) -> None:
    """The fork waits for the end of the import, 2 s at most. Then the child begins it again."""
    script(tmp_path, "slow.py", f"import time\nready.set()\ntime.sleep({seconds})\nVALUE = 1\n")
    done = python(
        QUIET + "import builtins, os, signal, sys, threading, torchshare\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "builtins.ready = threading.Event()\n"
        "def imports(job):\n"
        "    import slow\n"
        "def forks(job):\n"
        "    ready.wait()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.alarm(60)\n"
        "        import slow\n"
        "        os._exit(2 + slow.VALUE)\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "with torchshare.Runtime(device='cpu') as runtime:\n"
        "    runtime.submit(imports, name='imports')\n"
        "    runtime.submit(forks, name='forks')\n"
        "    print(runtime.wait(300)['forks'].value)"
    )
    assert (done.stdout.strip(), done.stderr) == ("3", "")


@functools.cache
def plain_draws(seed: int) -> str:
    done = completed(forked_draws.__file__, str(seed))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.filterwarnings("ignore:.*use of fork")
def test_a_child_that_a_job_forks_goes_on_from_the_job_s_random_state() -> None:
    """Except that Python's `random` seeds itself in each forked process."""
    outside = torch.get_rng_state(), numpy.random.get_state()[1].tolist()
    with torchshare.Runtime(device="cpu") as runtime:
        for seed in (11, 12):
            runtime.submit(lambda job, seed=seed: forked_draws.everything(seed), name=f"{seed}", threads=1)
        results = runtime.wait(300)
    assert [str(results[name].value) for name in ("11", "12")] == [plain_draws(11), plain_draws(12)]
    assert plain_draws(11).count("False") == 1  # Python's `random` in the child
    assert torch.equal(torch.get_rng_state(), outside[0])
    assert numpy.random.get_state()[1].tolist() == outside[1]


def test_a_child_that_a_script_forks_goes_on_from_the_script_s_random_state(tmp_path: Path) -> None:
    program = script(tmp_path, "draws.py", Path(forked_draws.__file__).read_text())
    ran = Ran(tmp_path, f"a={program} 11", f"b={program} 12")
    assert (ran.code, ran.of("a"), ran.of("b")) == (0, [plain_draws(11)], [plain_draws(12)]), ran.text()


@pytest.mark.filterwarnings("ignore:.*use of fork")
def test_a_child_that_a_served_thread_forks_goes_on_from_the_thread_s_random_state() -> None:
    def answer(seed: int) -> str:
        torch.manual_seed(seed)
        return forked_draws.fork()

    answered = run_one(lambda job: job.serve(answer)(7), priority="primary").value
    drawn = torch.rand(2, generator=torch.Generator().manual_seed(7)).tolist()
    assert answered.startswith(f"[{drawn}, 7, ")
