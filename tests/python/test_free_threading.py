"""A Python without the GIL. What needs one runs in `make test-free-threaded`; the rest anywhere."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

import torchshare
from torchshare import _C, Job
from torchshare.context import interpreter_lock
from torchshare.torch_versions import is_one_of

free_threaded = pytest.mark.skipif(
    not interpreter_lock.IS_FREE_THREADED, reason="needs a free-threaded Python: make test-free-threaded"
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the command would start, in an interpreter that could do without the GIL."""
    found: list[list[str]] = []
    monkeypatch.setattr(interpreter_lock, "IS_FREE_THREADED", True)
    monkeypatch.setattr(sys, "_xoptions", {})
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "torchshare", "run", "a.py"])
    monkeypatch.setattr(os, "execv", lambda _path, words: found.append(words))
    monkeypatch.delenv("PYTHON_GIL", raising=False)
    return found


def test_the_command_starts_again_with_the_gil_off(asked: list[list[str]]) -> None:
    interpreter_lock.start_without()
    assert asked == [[sys.executable, "-X", "gil=0", "-m", "torchshare", "run", "a.py"]]


@pytest.mark.parametrize("by", ["the environment", "an option"])
def test_a_user_who_has_chosen_is_left_alone(asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "an option":
        monkeypatch.setattr(sys, "_xoptions", {"gil": "1"})
    else:
        monkeypatch.setenv("PYTHON_GIL", "1")
    interpreter_lock.start_without()
    assert asked == []


@pytest.mark.parametrize("on", [True, False])
def test_a_gil_that_was_turned_on_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, on: bool
) -> None:
    monkeypatch.setattr(interpreter_lock, "IS_FREE_THREADED", True)
    monkeypatch.setattr(interpreter_lock, "_has_warned", False)
    monkeypatch.setattr(interpreter_lock, "_is_chosen", lambda: False)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: on, raising=False)
    monkeypatch.setitem(sys.modules, "triton", sys)
    with caplog.at_level(logging.WARNING, "torchshare"):
        for _ in range(2):
            torchshare.Runtime(device="cpu").close()
    expected = ["(triton, which torch's optimizers import, turns it on)"] if on else []
    assert [message[message.index("(") : message.index(")") + 1] for message in caplog.messages] == expected


def test_where_a_thread_is() -> None:
    """As for the warning of a stuck job."""
    inside, done = threading.Event(), threading.Event()

    def waits() -> None:
        inside.set()
        done.wait(60)

    thread = threading.Thread(target=waits)
    thread.start()
    assert inside.wait(60) and thread.ident is not None
    (place,) = [place for place in _C.stack_of(thread.ident) if place[0] == __file__]
    assert place[2] == "waits" and isinstance(place[1], int)
    done.set()
    thread.join()
    assert _C.stack_of(thread.ident) == []
    assert _C.stack_of(threading.get_ident())[-1][2] == "test_where_a_thread_is"


def unchosen(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter as users do who do not know of PYTHON_GIL."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=200)


@free_threaded
def test_torchshare_leaves_the_gil_off() -> None:
    done = unchosen("-c", "import sys; from torchshare import _C; print(sys._is_gil_enabled())")
    assert (done.stdout, done.stderr) == ("False\n", "")


@free_threaded
def test_the_command_has_the_gil_off() -> None:
    done = unchosen("-m", "torchshare", "doctor")
    assert done.returncode == 0 and "free-threaded, GIL off" in done.stdout, done.stderr


@free_threaded
@pytest.mark.skipif(is_one_of(torch.__version__, ">=2.13"), reason="dynamo's cache has a lock")
def test_torch_compile_is_refused_in_a_job() -> None:
    def body(job: Job) -> None:
        torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(body, name="a")
        result = runtime.wait(120, check=False)["a"]
    assert f"job 'a': torch.compile in a job needs torch 2.13 or the GIL, got torch {torch.__version__}" in str(
        result.exception
    )


@free_threaded
def test_jobs_of_small_ops_run_at_once() -> None:
    """With the GIL, one thread at a time is in Python: two that never leave it would not see each other go on."""
    counts = [0, 0]

    both = threading.Barrier(2)

    def body(index: int) -> Any:
        def run(job: Job) -> bool:
            both.wait(120)
            other = counts[1 - index]
            for _ in range(2_000_000):
                counts[index] += 1
            return counts[1 - index] > other

        return run

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e3)
    try:
        with torchshare.Runtime(device="cpu") as runtime:
            for index in range(2):
                runtime.submit(body(index), name=str(index), start="now")
            results = runtime.wait(300)
    finally:
        sys.setswitchinterval(interval)
    assert any(results[str(index)].value for index in range(2))
