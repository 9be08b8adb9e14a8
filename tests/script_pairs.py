"""Runs scripts together, each pair in a process forked for it, so that torch is imported once. The two meet before
their first line and after each optimizer step, so they run at the same time however short they are.

Reads a case as JSON from each line of its input, {"scripts": [path], "folder": path}, and writes what came of it:

    {"status": exit status of `torchshare run`, null if it hung, "printed": what it printed, "overlap": the milliseconds
     from when both had begun an op until one had ended its last, by the timeline}
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchshare.__main__ import main
from torchshare.context import current
from torchshare.scripts.script import Script

IMPORTED = (
    *("torch._dynamo", "torch._functorch.aot_autograd", "torch.export._trace"),
    *("torchshare.cli.run", "torchshare.isolation.script_patches", "torchshare.runtime.runtime"),
)
LIMIT_S = 20
PATIENCE_S = 5.0  # for the other script


class Meetings:
    """Where two scripts wait for each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._came: Counter[str] = Counter()
        self._has_ended = False
        run = Script._run

        def accompanied(script: Script, context: Any) -> None:
            self.meet()
            try:
                run(script, context)
            finally:
                self._has_ended = True

        Script._run = accompanied  # type: ignore[method-assign]
        register_optimizer_step_post_hook(lambda *_: self.meet())

    def meet(self) -> None:
        """Returns once the other script has come as often, or has ended."""
        job = current.job()
        if job is None:
            return
        until = time.monotonic() + PATIENCE_S
        with self._changed:
            self._came[job.name] += 1
            self._changed.notify_all()
            while not self._has_ended and time.monotonic() < until:
                if len(self._came) == 2 and min(self._came.values()) >= self._came[job.name]:
                    return
                self._changed.wait(0.01)


def started(scripts: list[str], folder: Path, printed: int) -> int:
    """The exit status of `torchshare run`, in a process that is its own group and is to end with that status."""
    os.setsid()
    os.chdir(folder)
    for descriptor in (1, 2):
        os.dup2(printed, descriptor)
    Meetings()
    return main(["run", "--threads", "1", "--timeline", f"{folder}.json", *scripts])


def overlap(timeline: Path) -> float:
    """0 if one of two jobs has run no op, or there is no timeline."""
    events = json.loads(timeline.read_text())["traceEvents"] if timeline.exists() else []
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"]] += [event["ts"], event["ts"] + event["dur"]]
    if len(spans) < 2:
        return 0.0
    return float(min(map(max, spans.values())) - max(map(min, spans.values()))) / 1e3


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
            found = {"status": status, "printed": printed.read(), "overlap": overlap(Path(f"{case['folder']}.json"))}
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    for name in IMPORTED:  # what each of the processes would import, in seconds
        importlib.import_module(name)
    torch.set_num_threads(1)  # a forked process has no threads of a pool
    sys.exit(run_cases())
