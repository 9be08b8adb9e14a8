"""The interpreter ends while jobs run."""

from __future__ import annotations

import pytest
from conftest import python

pytestmark = pytest.mark.usefixtures("whole_exit")

ENDS_SLOWLY = """
import select, sys, threading, time, torch, torchshare
began = threading.Event()
big = torch.ones(500, 500)
class Slow:
    def __init__(self): self.sleep = time.sleep
    def __del__(self): self.sleep(2.5)  # the interpreter ends meanwhile
sys.slow = Slow()
runtime = torchshare.Runtime(device="cpu")
job = runtime.submit(body, threads=1)
runtime.start()
began.wait()
"""


@pytest.mark.parametrize(
    "body",
    [
        "select.select([], [], [], 2.5)",
        "while True:\n        try: select.select([], [], [], 0.02)\n        except BaseException: pass",
        "while True:\n        try: torch.ones(3)\n        except BaseException: pass",
        "while True:\n        try: big @ big\n        except BaseException: pass",
        "with torchshare._C.Unhooked():\n        while True:\n"
        "            try: any(big @ big is None for _ in iter(int, 1))\n            except BaseException: pass",
    ],
    ids=["sleeps", "swallows everything", "swallows everything, in ops", "in long ops", "in ops that are not gated"],
)
def test_a_thread_that_was_left_behind_does_not_abort_the_interpreters_end(body: str) -> None:
    done = python(f"def body(job):\n    began.set()\n    {body}\n{ENDS_SLOWLY}")
    assert done.returncode == 0, done.stderr


def test_a_thread_left_behind_outside_its_body_does_not_abort_it_either() -> None:
    done = python(
        "class Body:\n"
        "    def __call__(self, job):\n"
        "        global body\n"
        "        del body\n"
        "        began.set()\n"
        "    def __del__(self):\n"  # dropped by the job's thread after the body
        "        select.select([], [], [], 2.5)\n"
        f"body = Body(){ENDS_SLOWLY}"
    )
    assert done.returncode == 0, done.stderr


ENDS_AT_RANDOM = """
import os, random, sys, time, torch, torchshare, torch._dynamo
random.seed(7)

def raises(job):
    while True:
        try: torch.ones(2) @ torch.ones(3)
        except RuntimeError: pass

def fails(job):
    time.sleep(0.01)
    torch.ones(2) @ torch.ones(3)

def computes(job):
    x = torch.ones(200, 200, requires_grad=True)
    while True: (x @ x).tanh().sum().backward()

def counts(job):
    while True: sum(range(1000))

for number in range(30):
    delay = random.uniform(0, 0.05)
    child = os.fork()
    if child == 0:
        runtime = torchshare.Runtime(device="cpu", policy=random.choice(["priority", "strict", "best_fit"]))
        for body in (raises, fails, computes, counts):
            runtime.submit(body, threads=1)
        runtime.start()
        time.sleep(delay)
        sys.exit()  # the interpreter ends as usual
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended != 0:
        print("child", number, "ended with", ended, "after", delay)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_interpreter_ends_at_any_moment_of_its_jobs() -> None:
    """Forked, because importing torch takes seconds."""
    done = python(ENDS_AT_RANDOM, timeout=800)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Fatal" not in done.stderr and "terminate" not in done.stderr
