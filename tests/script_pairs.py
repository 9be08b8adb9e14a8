"""Runs scripts together, each pair in a process forked for it, so that torch is imported once.

Reads a case as JSON from each line of its input, {"scripts": [path], "folder": path}, and writes what came of it:

    {"status": exit status of `torchshare run`, null if it hung, "printed": what it printed}
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from torchshare.__main__ import main

IMPORTED = ("torch._dynamo", "torchshare.cli.run", "torchshare.isolation.script_patches", "torchshare.runtime.runtime")
LIMIT_S = 60


def started(scripts: list[str], folder: Path, printed: int) -> int:
    """The exit status of `torchshare run`, in a process that is its own group and is to end with that status."""
    os.setsid()
    os.chdir(folder)
    for descriptor in (1, 2):
        os.dup2(printed, descriptor)
    return main(["run", "--threads", "1", *scripts])


def ended(process: int) -> int | None:
    """Its exit status; None if it had to be killed. Kills what it has left behind."""
    deadline = time.monotonic() + LIMIT_S
    while (found := os.waitpid(process, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if found[0] == 0:
        os.waitpid(process, 0)
        return None
    return os.waitstatus_to_exitcode(found[1])


def run_cases() -> int:
    for line in sys.stdin:
        case: dict[str, Any] = json.loads(line)
        with open(f"{case['folder']}.txt", "w+") as printed:
            process = os.fork()
            if process == 0:
                return started(case["scripts"], Path(case["folder"]), printed.fileno())
            status = ended(process)
            printed.seek(0)
            print(json.dumps({"status": status, "printed": printed.read()}), flush=True)
    return 0


if __name__ == "__main__":
    for name in IMPORTED:  # what each of the processes would import, in seconds
        importlib.import_module(name)
    torch.set_num_threads(1)  # a forked process has no threads of a pool
    sys.exit(run_cases())
