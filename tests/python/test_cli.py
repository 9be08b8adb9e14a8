"""`torchshare run` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOBS = """
import time, torch
from torch import nn
from helper import ROWS

model_count = 0

def train(job):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in job.batches([torch.randn(ROWS, 4)] * 20):
        loss = batch.backward(lambda x: model(x).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
    job.log(loss=loss)

def fail(job):
    raise RuntimeError("broken on purpose")

def for_ever(job):
    print("for_ever runs", flush=True)
    x = torch.ones(3)
    while True:
        x.add_(1)

def sleep(job):
    time.sleep(1000)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A folder with a script and a module that it imports."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "helper.py").write_text("ROWS = 8\n")
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    return tmp_path


def torchshare(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchshare", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_two_functions_of_a_file_train_together(jobs: Path):
    done = torchshare("run", "jobs.py:train", "b=jobs.py:train", "--start", "step:5", "--sub-batch", "b=3", folder=jobs)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:5] for line in done.stdout.splitlines()]
    assert rows[1:] == [["train", "primary", "finished", "20", "20"], ["b", "secondary", "finished", "20", "60"]]
    assert "b: finished, 20 steps" in done.stderr  # plain lines when piped
    assert "\x1b" not in done.stderr + done.stdout


def test_a_module_is_found_from_the_current_folder(jobs: Path):
    assert torchshare("run", "jobs:train", folder=jobs).returncode == 0


def test_json_is_one_document_on_stdout(jobs: Path):
    done = torchshare("run", "jobs.py:train", "jobs.py:fail", "--json", "--timeline", "t.json", folder=jobs)
    assert done.returncode == 1
    train, fail = json.loads(done.stdout)["jobs"]
    assert (train["name"], train["state"], train["steps"], train["error"]) == ("train", "finished", 20, None)
    assert set(train["metrics"]) == {"loss"}
    assert (fail["state"], fail["error"]) == ("failed", "RuntimeError: broken on purpose")
    assert "job 'fail' failed after 0 steps" in done.stderr and done.stderr.count("Traceback") == 1
    assert json.loads((jobs / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize("functions", [("for_ever", "for_ever"), ("sleep", "for_ever")])
def test_ctrl_c_stops_both_within_two_seconds_and_writes_the_timeline(jobs: Path, functions: tuple[str, str]):
    first, second = functions
    command = ["run", f"a=jobs.py:{first}", f"b=jobs.py:{second}", "--timeline", "t.json", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "torchshare", *command],
        cwd=jobs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "for_ever runs" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 2.0
    assert process.returncode == 130
    assert out.count("cancelled") == 2 and "Traceback" not in err
    assert json.loads((jobs / "t.json").read_text())["traceEvents"]


BAD_INPUT = {
    "unknown function": (["jobs.py:trian"], "jobs.py has no function 'trian'; it has fail, for_ever, sleep, train"),
    "not a function": (["jobs.py:model_count"], "jobs.py has no function 'model_count'"),
    "no file": (["gone.py:train"], "no file gone.py"),
    "no module": (["gone.jobs:train"], "no module named 'gone'"),
    "no function": (["jobs.py"], "expected pkg.module:function or file.py:function"),
    "two of one name": (["jobs.py:train", "jobs.py:train"], "two jobs are named 'train'; give one another name: NAME="),
    "primary": (["jobs.py:train", "--primary", "x"], "--primary names job 'x'; expected one of train"),
    "start of nobody": (["jobs.py:train", "--start", "x=now"], "--start names job 'x'; expected one of train"),
    "start": (["jobs.py:train", "--start", "train=soon"], "job 'train': start 'soon': expected 'now'"),
    "start after": (["jobs.py:train", "--start", "train=after:x"], "job 'train': start 'after:x' names no job"),
    "sub-batch": (
        ["jobs.py:train", "--sub-batch", "0"],
        "job 'train': sub_batch is 0; expected a whole number of rows",
    ),
    "threads": (["jobs.py:train", "--threads", "two"], "--threads two: expected a whole number"),
    "timeline": (
        ["jobs.py:train", "--timeline", "no/t.json"],
        "--timeline no/t.json: expected a file in a folder that",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_clear_line_before_any_job_starts(jobs: Path, arguments: list[str], message: str):
    done = torchshare("run", *arguments, folder=jobs)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("torchshare: error: ") and message in line


def test_an_error_in_the_users_own_file_shows_where(jobs: Path):
    done = torchshare("run", "broken.py:train", folder=jobs)
    assert done.returncode == 1
    assert 'broken.py", line 1' in done.stderr and "No module named 'no_such_thing'" in done.stderr


def test_help_and_version_say_what_there_is(tmp_path: Path):
    assert "run jobs together" in torchshare("--help", folder=tmp_path).stdout
    assert torchshare("--version", folder=tmp_path).stdout.startswith("torchshare 0.1.0 (built")
    assert torchshare(folder=tmp_path).returncode == 2
