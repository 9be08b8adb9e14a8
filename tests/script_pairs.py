"""Runs scripts together: script_pairs.py FOLDER SCRIPT SCRIPT... writes their files into the folder and the timeline
beside it. Each has a higher priority than the next. They meet before their first line and after each optimizer step, so
they run at the same time however short they are.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchshare.__main__ import main
from torchshare.context import current
from torchshare.scripts.script import Script

PATIENCE_S = 30.0  # for the other scripts


class Meetings:
    """Where the scripts wait for each other."""

    def __init__(self, scripts: int) -> None:
        self._scripts = scripts
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
        """Returns once the other scripts have come as often, or one has ended."""
        job = current.job()
        if job is None:
            return
        until = time.monotonic() + PATIENCE_S
        with self._changed:
            self._came[job.name] += 1
            self._changed.notify_all()
            while not self._has_ended and time.monotonic() < until:
                if len(self._came) == self._scripts and min(self._came.values()) >= self._came[job.name]:
                    return
                self._changed.wait(0.01)


def run(folder: Path, scripts: list[str]) -> int:
    """The exit status of `torchshare run`."""
    os.chdir(folder)
    torch.set_num_threads(1)  # a forked process has no threads of a pool
    Meetings(len(scripts))
    lower = [f"--priority={Path(script).stem}=level-{level}" for level, script in enumerate(scripts) if level > 1]
    options = ["--threads", "1", "--max-concurrent", str(len(scripts)), "--timeline", f"{folder}.json"]
    return main(["run", *options, *lower, *scripts])


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
