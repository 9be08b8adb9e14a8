"""`torchshare run` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import completed, launch, torchshare_command

from torchshare import _C, __version__
from torchshare.cli import doctor

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

def steps(job):
    weights = torch.ones(4, 2, requires_grad=True)
    for batch in job.batches(iter(lambda: torch.ones(8, 4), None)):
        batch.backward(lambda x: (x @ weights).sum())

def many(job):
    weights = torch.ones(4, 2, requires_grad=True)
    for batch in job.batches([torch.ones(8, 4)] * 3000):
        batch.backward(lambda x: (x @ weights).sum())
        time.sleep(0.0005)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A folder with a script, and a module that it imports."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "helper.py").write_text("ROWS = 8\n")
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    return tmp_path


def in_a_process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return completed("-m", "torchshare", *arguments, folder=folder)


def test_two_functions_of_a_file_train_together(jobs: Path):
    done = in_a_process(
        "run", "jobs.py:train", "b=jobs.py:train", "--start", "step:5", "--sub-batch", "b=3", folder=jobs
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:5] for line in done.stdout.partition("\n\n")[0].splitlines()]
    assert rows[1:] == [["train", "primary", "finished", "20", "20"], ["b", "secondary", "finished", "20", "60"]]
    assert "b: finished, 20 steps" in done.stderr  # plain lines when piped
    assert "\x1b" not in done.stderr + done.stdout


def test_a_module_is_found_from_the_current_folder(jobs: Path):
    assert in_a_process("run", "jobs:train", folder=jobs).returncode == 0


def test_json_is_one_document_on_stdout(jobs: Path):
    done = torchshare_command("run", "jobs.py:train", "jobs.py:fail", "--json", "--timeline", "t.json", folder=jobs)
    assert done.returncode == 1
    train, fail = json.loads(done.stdout)["jobs"]
    assert (train["name"], train["state"], train["steps"], train["error"]) == ("train", "finished", 20, None)
    assert set(train["metrics"]) == {"loss"}
    assert (fail["state"], fail["error"]) == ("failed", "RuntimeError: broken on purpose")
    assert "job 'fail' failed after 0 steps" in done.stderr and done.stderr.count("Traceback") == 1
    assert json.loads((jobs / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize("functions", [("for_ever", "for_ever"), ("sleep", "for_ever")])
def test_ctrl_c_stops_both_and_writes_the_timeline(jobs: Path, functions: tuple[str, str]):
    first, second = functions
    command = ["run", f"a=jobs.py:{first}", f"b=jobs.py:{second}", "--timeline", "t.json", "--threads", "1"]
    process = launch("-m", "torchshare", *command, folder=jobs)
    assert process.stdout is not None
    assert "for_ever runs" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out.count("cancelled") == 2 and "Traceback" not in err
    assert json.loads((jobs / "t.json").read_text())["traceEvents"]


BAD_INPUT = {
    "unknown function": (["jobs.py:trian"], "jobs.py has no function 'trian', only fail, for_ever, many, sleep,"),
    "not a function": (["jobs.py:model_count"], "jobs.py has no function 'model_count'"),
    "no file": (["gone.py:train"], "no such file gone.py"),
    "no module": (["gone.jobs:train"], "no module named 'gone'"),
    "no target": (["jobs"], 'target must be "train.py --epochs 3", '),
    "two of one name": (
        ["jobs.py:train", "jobs.py:train"],
        "job names must be unique, got 'train' twice; name one with NAME=",
    ),
    "primary": (["jobs.py:train", "--primary", "x"], "--primary names job 'x', must be one of train"),
    "start of nobody": (["jobs.py:train", "--start", "x=now"], "--start names job 'x', must be one of train"),
    "start": (["jobs.py:train", "--start", "train=soon"], "job 'train': start must be 'now'"),
    "start after": (["jobs.py:train", "--start", "train=after:x"], "job 'train': start 'after:x' names no job"),
    "sub-batch": (
        ["jobs.py:train", "--sub-batch", "0"],
        "job 'train': sub_batch must be a positive integer, got 0",
    ),
    "threads": (["jobs.py:train", "--threads", "two"], "--threads must be an integer from 1 to 1024, got two"),
    "bound": (
        ["jobs.py:train", "--max-slowdown", "-1"],
        "max_slowdown must be from 0 to 1, such as 0.05 for 5 %, got -1",
    ),
    "percent": (
        ["jobs.py:train", "--max-slowdown", "5"],
        "max_slowdown must be from 0 to 1, such as 0.05 for 5 %, got 5",
    ),
    "profile": (["jobs.py:train", "--profile", "no.json"], "job 'train': profile no.json: No such file"),
    "steps": (["jobs.py:train", "--steps", "-3"], "job 'train': steps must be a non-negative integer, got -3"),
    "timeline": (
        ["jobs.py:train", "--timeline", "no/t.json"],
        "--timeline must be a file in an existing folder, got no/t.json",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_clear_line_before_any_job_starts(jobs: Path, arguments: list[str], message: str):
    done = torchshare_command("run", *arguments, folder=jobs)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("torchshare: error: ") and message in line


def test_an_error_in_the_users_own_file_shows_where(jobs: Path):
    done = in_a_process("run", "broken.py:train", folder=jobs)
    assert done.returncode == 2
    assert 'broken.py", line 1' in done.stderr and "No module named 'no_such_thing'" in done.stderr


def test_a_bound_is_reported_after_the_table(jobs: Path):
    command = ("run", "jobs.py:many", "b=jobs.py:many", "--max-slowdown", "0.5", "--threads", "1")
    done = torchshare_command(*command, folder=jobs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("many: slowdown within 0.5 in ")
    (bound,) = json.loads(torchshare_command(*command, "--json", folder=jobs).stdout)["bounds"]
    assert bound["job"] == "many" and bound["windows"] >= 1


QUICK = ("--window", "0.1", "--rounds", "1", "--splits", "2", "--threads", "1", "--cache", "cache")


def test_profiles_are_measured_kept_used_and_measured_again_when_the_code_changes(jobs: Path):
    pair = ("profile", "jobs.py:steps", "--with", "b=jobs.py:steps", *QUICK)
    outputs = ("--output", "a.json", "--partner-output", "b.json")
    done = torchshare_command(*pair, "--steps", "900", "--partner-steps", "100", *outputs, folder=jobs)
    assert done.returncode == 0, done.stderr
    assert "steps as the primary beside b" in done.stdout
    assert "round 1: steps in 2 beside b in 1: ratios" in done.stderr
    assert len(list((jobs / "cache").iterdir())) == 2

    again = torchshare_command(*pair, "--json", folder=jobs)
    assert "using cached profiles" in again.stderr
    assert json.loads(again.stdout) == json.loads((jobs / "a.json").read_text())

    planned = torchshare_command("plan", "a.json", "b.json", folder=jobs)
    assert planned.returncode == 0, planned.stderr
    assert "'b' " in planned.stdout and "Average completion" in planned.stdout

    command = ("run", "jobs.py:many", "b=jobs.py:train", "--start", "auto", "--threads", "1")
    shared = torchshare_command(*command, "--profile", "many=a.json", "--profile", "b=b.json", folder=jobs)
    assert shared.returncode == 0, shared.stderr

    (jobs / "jobs.py").write_text(JOBS + "# changed\n")
    stale = torchshare_command(*command, "--profile", "many=a.json", folder=jobs)
    assert stale.returncode == 2
    assert "job 'many': its profile cannot be used: the job's code has changed since" in stale.stderr
    done = torchshare_command("profile", "jobs.py:steps", *QUICK, folder=jobs)
    assert "measuring 'steps' again: the job's code has changed since" in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["jobs.py:trian"], 2, "jobs.py has no function 'trian'"),
        (["jobs.py:steps", "--with", "jobs.py:steps"], 2, "job names must differ, both are 'steps'"),
        (["jobs.py:steps", "--splits", "0"], 2, "splits must be from 1 to 16, got 0"),
        (["jobs.py:steps", "--partner-output", "b.json"], 2, "--partner-output needs a partner, pass --with"),
        (["jobs.py:steps", "--output", "no/p.json"], 2, "--output must be a file in an existing folder, got no/p.json"),
        (["jobs.py:fail"], 1, "job 'fail' failed after 0 steps: RuntimeError: broken on purpose"),
    ],
)
def test_a_profile_that_cannot_be_measured_says_why(jobs: Path, arguments: list[str], code: int, message: str):
    done = torchshare_command("profile", *arguments, "--cache", "cache", folder=jobs)
    assert done.returncode == code
    assert message in done.stderr
    assert not (jobs / "cache").exists()


def test_ctrl_c_ends_a_measurement_and_writes_nothing(jobs: Path):
    process = launch("-m", "torchshare", "profile", "jobs.py:for_ever", "--cache", "cache", folder=jobs)
    assert process.stdout is not None
    assert "for_ever runs" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in err and "Traceback" not in err
    assert not (jobs / "cache").exists()


def test_help_and_version_say_what_there_is(tmp_path: Path):
    assert "run jobs together" in in_a_process("--help", folder=tmp_path).stdout
    assert in_a_process("--version", folder=tmp_path).stdout.startswith(f"torchshare {__version__} (built")
    assert in_a_process(folder=tmp_path).returncode == 2


def test_profile_writes_traces_and_replay_runs_them(jobs: Path):
    cache = jobs / "cache"
    options = ["--threads", "1", "--window", "0.1", "--rounds", "1", "--splits", "1", "--cache", str(cache)]
    done = torchshare_command("profile", "a=jobs.py:steps", "--trace", "a.npz", "--json", *options, folder=jobs)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ops"]["ops"]
    assert "every op timed" in done.stderr
    done = torchshare_command("replay", "a.npz", "a.npz", "--policy", "strict,best_fit", "--cores", "2", folder=jobs)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "policy",
        "job",
        "priority",
        "alone",
        "ms",
        "step",
        "ms",
        "ratio",
        "steps",
        "waited",
        "s",
    ]
    assert [line.split()[:3] for line in lines[1:]] == [
        [policy, "a", priority] for policy in ("strict", "best_fit") for priority in ("primary", "secondary")
    ]
    done = torchshare_command("replay", "a.npz", "--json", "--no-device-priority", folder=jobs)
    assert set(json.loads(done.stdout)) == {"best_fit", "edf", "priority", "resource", "strict"}
    for arguments, message in (
        (["none.npz"], "op trace none.npz: No such file"),
        (["a.npz", "--policy", "fair"], "--policy must be all or one of best_fit, edf, priority, resource, strict"),
        (["a.npz", "--cores", "0"], "--cores must be from 1 to 65536, got 0"),
        (["a.npz", "--grace", "7"], "--grace must be between 0 and 1 seconds, got 7"),
        (["a.npz"] * 11, "replay needs 1 to 10 op traces, got 11"),
    ):
        done = torchshare_command("replay", *arguments, folder=jobs)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_run_with_best_fit_says_how_the_gaps_were_filled(jobs: Path):
    command = ["run", "a=jobs.py:many", "b=jobs.py:train", "--policy", "best_fit", "--threads", "1"]
    done = torchshare_command(*command, folder=jobs)
    assert done.returncode == 0, done.stderr
    assert "a: gaps are " in done.stdout
    (gaps,) = json.loads(torchshare_command(*command, "--json", folder=jobs).stdout)["gaps"]
    assert gaps["job"] == "a" and gaps["ops"] > 0


def test_doctor_prints_the_plan_of_the_gpus_benchmarks(tmp_path: Path):
    command = [sys.executable, "-m", "torchshare", "doctor", "--gpu-plan"]
    script = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run_all.sh"
    for stages in ([], ["headline-1", "build"]):
        planned = subprocess.run([script, "--plan", *stages], capture_output=True, text=True, check=True).stdout
        assert subprocess.check_output([*command, *stages], text=True, cwd=tmp_path) == planned
        assert "at most" in planned


def test_doctor_has_no_plan_without_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_RUN_ALL", tmp_path / "run_all.sh")
    done = torchshare_command("doctor", "--gpu-plan", folder=tmp_path)
    assert done.returncode == 2 and done.stderr.splitlines() == [
        "torchshare: error: --gpu-plan needs a checkout with torchshare installed in place, there is no "
        f"{tmp_path / 'run_all.sh'}"
    ]


def test_doctor_says_what_a_gpu_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gpu = SimpleNamespace(name="H100", multi_processor_count=132, total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda.Stream, "priority_range", lambda: (0, -5))
    for version, green in ((13000, "yes"), (12040, "no"), (0, "no")):
        monkeypatch.setattr(_C, "cuda_driver_version", lambda version=version: version)
        done = torchshare_command("doctor", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "H100, 132 SMs, 80.0 GiB" in done.stdout
        assert f"for CUDA {version // 1000}.{version % 1000 // 10}; green contexts: {green}" in done.stdout
