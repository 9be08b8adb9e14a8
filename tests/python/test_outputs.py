"""Files that the verbs write: whole or not at all, never over an input; results are printed in any case."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import torchshare_command
from test_plan import profile

from torchshare.cli import profile_cache
from torchshare.context.names import escaped
from torchshare.durable.files import file_stem

TRACE = "job,arrival_s,gpus,duration_s\na,0,1,10\nb,1,1,10\n"
JOBS = """
import torch
def steps(job):
    for batch in job.batches([torch.ones(8, 2)] * 1000000):
        batch.backward(lambda x: x.sum() * torch.ones((), requires_grad=True))
"""
QUICK = ("--window", "0.05", "--rounds", "1", "--splits", "1", "--threads", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    profile("a", 100, {"b": (1.1, 1.2)}).save(tmp_path / "a.json")
    profile("b", 50).save(tmp_path / "b.json")
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plan a.json b.json --ratios a.json", "--ratios must not be the input a.json, got a.json"),
        ("plan a.json b.json --ratios ./folder/../b.json", "--ratios must not be the input b.json, got folder/../b.json"),  # noqa: E501
        ("plan a.json b.json --ratios x.png --png x.png", "--ratios must not be --png, got x.png"),
        ("plan a.json b.json --png folder", "--png must end in .png, .svg or .pdf, got folder"),
        ("plan a.json b.json --png x.foo", "--png must end in .png, .svg or .pdf, got x.foo"),
        ("plan a.json b.json --ratios folder", "--ratios must be a file in an existing folder, got folder"),
        ("simulate --trace trace.csv --timeline trace.csv", "--timeline must not be the input trace.csv, got trace.csv"),  # noqa: E501
        ("profile jobs.py:steps --output jobs.py", "--output must not be the input jobs.py, got jobs.py"),
        ("profile jobs.py:steps --output x --trace x", "--trace must not be --output, got x"),
        ("profile jobs.py:steps --cache jobs.py", "--cache must be a folder, got jobs.py"),
        ("run jobs.py:steps --timeline jobs.py", "--timeline must not be the input jobs.py, got jobs.py"),
    ],
)  # fmt: skip
def test_an_output_that_would_destroy_an_input_is_refused(folder: Path, words: str, message: str) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    done = torchshare_command(*words.split(), folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"torchshare: error: {message}\n"
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


FULL = "No space left on device"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("plan a.json b.json --ratios full.csv", "Average completion"),
        ("plan a.json b.json --png full.png", "Average completion"),
        ("simulate --trace trace.csv --policy fifo --timeline full.csv", "fifo"),
        ("simulate --trace trace.csv --plot full.png", "fifo"),
        (f"profile jobs.py:steps {' '.join(QUICK)} --cache cache --output full.csv --trace t.npz", "batches of 8"),
        (f"profile jobs.py:steps {' '.join(QUICK)} --cache cache --trace full.csv", "batches of 8"),
        ("run --timeline full.csv a=short.py", "finished"),
    ],
)
def test_results_are_printed_though_a_file_cannot_be_written(folder: Path, words: str, printed: str) -> None:
    for name in ("full.csv", "full.png"):
        (folder / name).symlink_to("/dev/full")
    (folder / "short.py").write_text("pass\n")
    done = torchshare_command(*words.split(), folder=folder)
    assert done.returncode == 1
    assert printed in done.stdout
    assert FULL in done.stderr and "Traceback" not in done.stderr
    if "profile" in words:
        assert len(list((folder / "cache").iterdir())) == 1
    assert ("t.npz" in words) == (folder / "t.npz").exists()


def test_a_full_disk_below_the_results_is_a_line(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "torchshare", "simulate", "--trace", "trace.csv"]
        done = subprocess.run(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == f"torchshare: error: cannot write the results: {FULL}\n"


def test_an_interrupted_timeline_leaves_no_part_of_it(folder: Path) -> None:
    """With a limit on the size of files, as a full disk would."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    (folder / "out.csv").write_text("old")
    command = [sys.executable, "-m", "torchshare", "simulate", "--trace", "trace.csv", "--policy", "fifo"]
    command += ["--timeline", "out.csv"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 1 and "fifo" in done.stdout
    assert done.stderr == "torchshare: error: cannot write out.csv: File too large\n"
    assert (folder / "out.csv").read_text() == "old"
    assert not [path for path in folder.iterdir() if path.name.startswith(".torchshare")]


# Names


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "..", ".hidden", "a\0b", "a\nb", "x" * 300, "\udc80"])
def test_a_name_is_no_path(name: str, tmp_path: Path) -> None:
    path = profile_cache.cache_path(tmp_path, name, "train.py", 1, 3)
    assert path.parent == tmp_path and path.name[0] != "."
    path.write_text("")
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / file_stem(name)).write_text("")


def test_names_are_shown_escaped_and_are_no_markup(tmp_path: Path) -> None:
    profile("[red]a[/blue]\x1b[2J", 100, {":smile:\n": (1.1, 1.2)}).save(tmp_path / "a.json")
    profile(":smile:\n", 50).save(tmp_path / "b.json")
    for words in ("plan a.json b.json", "plan a.json b.json --memory 0"):
        done = torchshare_command(*words.split(), folder=tmp_path)
        assert "\x1b" not in done.stdout + done.stderr
        assert r":smile:\n" in done.stdout + done.stderr
        if done.returncode == 0:
            assert r"[red]a[/blue]\x1b[2J" in done.stdout
        else:
            assert len(done.stderr.splitlines()) == 1


def test_a_jobs_name_is_escaped_in_tables_lines_and_files(tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text("print('hello')\n")
    (tmp_path / "jobs.toml").write_text('[jobs."a\\u001b[2J"]\nrun = "say.py"\n[jobs.b]\nrun = "say.py"\n')
    done = torchshare_command("run", "jobs.toml", folder=tmp_path)
    assert (done.returncode, "\x1b" in done.stdout + done.stderr) == (0, False)
    assert r"a\x1b[2J: hello" in done.stdout and r"a\x1b[2J: finished" in done.stderr
    assert torchshare_command("run", "jobs.toml", "--output", "logs", folder=tmp_path).returncode == 0
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["a%1B%5B2J.log", "b.log"]


def test_escapes() -> None:
    assert escaped("plain é 日") == "plain é 日"
    assert escaped("a\x1b[2J\n\u202e\udc80") == r"a\x1b[2J\n\u202e\udc80"
    assert json.dumps(escaped("a\nb", keep="\n")) == json.dumps("a\nb")
