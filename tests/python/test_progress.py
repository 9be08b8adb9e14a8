"""How the progress of a run is shown."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import script, torchshare_command

import torchshare
from torchshare.cli.progress import Progress

HOUR = 3600


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[list[tuple[float, str]]]:
    """The lines of a job of four hours that is not on a terminal, with the seconds since its start."""
    fields = dict.fromkeys((field.name for field in dataclasses.fields(torchshare.Result)), 0)
    clock, found = Clock(), []
    runtime = SimpleNamespace(results={})

    def update(progress: Progress, state: str) -> None:
        ran = clock.now - Clock.now
        of_run = {
            "name": "a",
            "state": state,
            "steps": 100 + int(ran),
            "earlier_steps": 100,
            "ran_s": ran,
            "metrics": {},
            "lateness_s": None,
        }
        runtime.results = {"a": torchshare.Result(**{**fields, **of_run})}
        progress.update()
        found.extend((ran, line) for line in capsys.readouterr().err.splitlines())

    with Progress(runtime, clock) as progress:
        for _ in range(4 * HOUR):
            update(progress, "running")
            clock.now += 1
        update(progress, "finished")
    yield found


def test_without_a_terminal_lines_become_rare(lines: list[tuple[float, str]]) -> None:
    at = [when for when, _ in lines]
    assert at[:6] == [0, 60, 180, 420, 900, 1860]
    assert len(at) == 20 and max(b - a for a, b in itertools.pairwise(at)) == 960
    assert lines[1][1] == "a: running, 160 steps, 1.0 steps/s"  # the rate is of this run
    assert lines[-1] == (4 * HOUR, f"a: finished, {100 + 4 * HOUR} steps, 1.0 steps/s")


def test_of_a_server_requests_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def serve(job: torchshare.Job) -> None:
        for request in job.requests(range(30), slo="p99<60s"):
            request.answer(0)

    with torchshare.Runtime("cpu") as runtime, Progress(runtime):
        runtime.submit(serve, threads=1)
        runtime.wait()
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"serve: finished, 30 requests, p99 \d+\.\d\d ms, 0 late", line)


def test_quiet_shows_no_progress(tmp_path: Path) -> None:
    script(tmp_path, "a.py", "print('hello')\n")
    loud = torchshare_command("run", "a.py", "b=a.py", folder=tmp_path)
    assert "b: finished, 0 steps" in loud.stderr
    quiet = torchshare_command("run", "--quiet", "a.py", "b=a.py", folder=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert "a: hello" in quiet.stdout and quiet.stdout.count("finished") == 2


def test_quiet_keeps_warnings(tmp_path: Path) -> None:
    script(tmp_path, "a.py", "import os\nos._exit(0)\n")
    done = torchshare_command("run", "--quiet", "a.py", "b=a.py", folder=tmp_path)
    assert done.stderr.count("ends the job, not the process") == 2
