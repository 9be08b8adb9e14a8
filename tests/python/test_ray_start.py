"""The first try of `torchshare cluster`: nothing runs yet, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_jobs import SCRIPT
from conftest import wait_until

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ray[default]>=2.40'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Command:
    """`torchshare cluster`, of a user without an earlier cluster."""
    environment = {key: value for key, value in {**os.environ, "HOME": str(tmp_path)}.items() if key != "RAY_ADDRESS"}

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        given = [sys.executable, "-m", "torchshare", "cluster", *words]
        return subprocess.run(given, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)

    return command


def test_submit_starts_all_that_is_needed_and_down_ends_it(tmp_path: Path, run: Command) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run("list")
    assert done.returncode == 2
    assert done.stderr.startswith("torchshare: error: there is no Ray cluster on this machine")
    try:
        done = run("submit", "train.py 3 0.05")
        assert (done.returncode, done.stderr) == (0, "Job 'train' is submitted\nJob 'train' has finished\n")
        assert "trained\n" in done.stdout
        assert run("submit", "--no-wait", "long=train.py 400 0.05").returncode == 0
        wait_until(lambda: " running " in run("list").stdout, 60)
        assert run("down").returncode == 0
        assert "there is no Ray cluster" in run("list").stderr
        assert run("up").returncode == 0
        done = run("logs", "-f", "long")
        assert "resumes at step" in done.stdout
        assert done.stdout.endswith("trained\n")
        rows = [line.split() for line in run("list").stdout.splitlines()]
        assert ["long", "finished"] in [row[:2] for row in rows]
        assert 'crashed": true' not in (tmp_path / ".torchshare" / "cluster" / "journal.jsonl").read_text()
    finally:
        run("down")


def test_rays_client_submits_from_elsewhere(tmp_path: Path, run: Command) -> None:
    """With an address that begins with ray://."""
    (tmp_path / "jobs.toml").write_text('[jobs.a]\nrun = "train.py 3 0.01"\n')
    (tmp_path / "train.py").write_text(SCRIPT)
    try:
        assert run("up").returncode == 0
        client = ("--address", "ray://127.0.0.1:10001")
        done = run("submit", *client, "jobs.toml")
        assert (done.returncode, done.stderr) == (0, "Job 'a' is submitted\nJob 'a' has finished\n")
        assert "trained\n" in done.stdout
        assert " finished " in run("list", *client).stdout
        assert run("logs", *client, "b").stderr.startswith("torchshare: error: ")
        assert run("down", *client).returncode == 0
        done = run("list", *client)
        assert done.stderr.startswith("torchshare: error: there is no Ray cluster at ray://127.0.0.1:10001: ")
        assert done.stderr.count("\n") == 1
    finally:
        run("down")


def test_a_journal_that_is_refused_leaves_no_ray_behind(tmp_path: Path, run: Command) -> None:
    journal = tmp_path / ".torchshare" / "cluster" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"event": "a"}\n{"event": \n{"event": "b"}\n')
    done = run("up")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"torchshare: error: {journal}:2: the journal is damaged")
    assert not (journal.parent / "ray.pid").exists()
    assert "there is no Ray cluster" in run("list").stderr
