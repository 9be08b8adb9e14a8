"""A case of a test in a process forked for it; of tests/faults and tests/emulator."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from torchshare import Results

Case = dict[str, Any]


def say(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def ends_of(results: Results) -> dict[str, str | None]:
    """What each job has returned, or its error's text."""
    return {
        name: result.value if result.exception is None else say(result.exception) for name, result in results.items()
    }


def in_fork(run: Callable[[Case], Case], case: Case, limit_s: float, stderr: int = 2) -> Case:
    """What `run` returns for the case, and the process's exit status. The process is killed after `limit_s`; what it
    prints goes to the descriptor `stderr`."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        os.dup2(stderr, 2)
        os.dup2(2, 1)  # our output is for outcomes
        outcome = run(case)
        os.write(writes, json.dumps(outcome).encode())
        os.close(writes)
        sys.stderr.flush()
        os._exit(0)
    os.close(writes)
    timer = threading.Timer(limit_s, lambda: os.kill(child, 9))
    timer.start()
    with os.fdopen(reads, "rb") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    timer.join()  # the next child is forked from a process with one thread
    return {"status": os.waitstatus_to_exitcode(status), **(json.loads(text) if text else {})}
