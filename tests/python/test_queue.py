"""The queue of `torchshare run`: how many jobs run at once, and in which order they start."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from conftest import torchshare_command
from test_plan import profile

from torchshare.cli.queue import queue
from torchshare.profiles.profile import Profile, device_name
from torchshare.runtime.options import JobOptions, RuntimeOptions
from torchshare.scripts.option_reader import OptionReader

SCRIPT = r"""
import sys, time, torch
log = open("log.txt", "a", buffering=1)
log.write("+\n")
weights = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(3):
    weights.sum().backward()
    optimizer.step()
while open("log.txt").read().count("+") < int(sys.argv[1]):  # until others run beside it
    time.sleep(0.01)
time.sleep(0.1)
log.write("-\n")
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    for name in "abcd":
        (tmp_path / f"{name}.py").write_text(SCRIPT)
    return tmp_path


def started(err: str) -> str:
    """The jobs of the line about the queue, in order."""
    (line,) = [line for line in err.splitlines() if "jobs run at once" in line]
    return line.rpartition(": ")[2]


def most_at_once(folder: Path) -> int:
    marks = (folder / "log.txt").read_text().replace("\n", "")
    assert marks.count("+") == marks.count("-") == 4
    return max(marks[:end].count("+") - marks[:end].count("-") for end in range(len(marks) + 1))


def write_profiles(folder: Path, **seconds: float) -> list[str]:
    """Profiles of jobs that were not measured together, as --profile arguments."""
    for name, each in seconds.items():
        here = {"device": device_name(), "torch": torch.__version__}
        profile(name, each, **here).save(folder / f"{name}.json")
    return [word for name in seconds for word in ("--profile", f"{name}={name}.json")]


def test_of_four_scripts_two_run_at_once_in_the_order_given(scripts: Path):
    done = torchshare_command("run", *(f"{name}.py 2" for name in "abcd"), folder=scripts)
    assert done.returncode == 0, done.stderr
    line = "2 of 4 jobs run at once (--max-concurrent), in the order given, as 'a' has no --profile: a, b, c, d"
    assert f"torchshare: {line}" in done.stderr.splitlines()
    assert most_at_once(scripts) == 2


def test_max_concurrent_is_an_option(scripts: Path):
    done = torchshare_command("run", "--max-concurrent", "1", *(f"{name}.py 1" for name in "abcd"), folder=scripts)
    assert done.returncode == 0, done.stderr
    assert most_at_once(scripts) == 1
    (scripts / "log.txt").unlink()
    done = torchshare_command("run", "--max-concurrent", "4", *(f"{name}.py 4" for name in "abcd"), folder=scripts)
    assert "at once" not in done.stderr  # no job waits
    assert most_at_once(scripts) == 4


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_the_former_name_is_taken_with_a_warning(source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    reader = OptionReader(argparse.ArgumentParser())
    reader.add_jobs(JobOptions)
    reader.add(RuntimeOptions, "the runtime")
    (tmp_path / "jobs.toml").write_text('resident = 3\n[jobs.a]\nrun = "a.py"\n')
    words = {"flag": ["a.py", "--resident", "3"], "file": [str(tmp_path / "jobs.toml")]}.get(source, ["a.py"])
    given = reader.read(reader.parser.parse_args(words), {"TORCHSHARE_RESIDENT": "3"} if source == "variable" else {})
    assert given.options == {"max_concurrent": 3}
    assert caplog.messages == ["option resident is now max_concurrent; the next release does not take the old name"]
    assert "--resident" not in reader.parser.format_help()


def test_profiles_give_the_order_and_the_primary(scripts: Path):
    profiles = write_profiles(scripts, a=100, b=25, c=50, d=10)
    done = torchshare_command(
        "run", "--max-concurrent", "1", *profiles, *(f"{name}.py 1" for name in "abcd"), folder=scripts
    )
    assert done.returncode == 0, done.stderr
    assert started(done.stderr) == "d, b, c, a"
    rows = [line.split()[:3] for line in done.stdout.splitlines()[1:]]
    assert rows == [["d", "primary", "finished"], *([name, "secondary", "finished"] for name in "bca")]


def test_without_a_plan_the_order_is_as_given(tmp_path: Path):
    def saved(name: str, of: Profile) -> str:
        of.save(tmp_path / name)
        return str(tmp_path / name)

    known = {name: {"profile": saved(name, profile(name, s))} for name, s in (("a", 100), ("b", 50), ("c", 10))}
    assert queue(known, None).names == ["c", "b", "a"]
    assert queue({**known, "c": {**known["c"], "steps": 100_000}}, None).names == ["b", "a", "c"]
    for other, reason in (
        ({}, "'x' has no --profile"),
        ({"profile": saved("x", profile("x", 1, steps=None))}, "job 'x': its profile has no number of steps"),
        ({"profile": saved("y", profile("a", 1))}, "profiles must be of different jobs, got two of 'a'"),
        ({"profile": "no.json"}, "profile no.json: No such file"),
    ):
        found = queue({**known, "x": other}, None)
        assert found.names == ["a", "b", "c", "x"] and reason in found.reason
    assert queue(known, 3) is None
