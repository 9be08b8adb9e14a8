"""`torchshare cluster` from the first command on, as processes of their own, with a Ray that others have started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_jobs import SCRIPT
from conftest import wait_until

pytest.importorskip("ray", reason="needs Ray: pip install 'ray[default]>=2.40'")
from ray_cluster import NODE, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
Command = Callable[..., subprocess.CompletedProcess[str]]


def command_of(folder: Path, **environment: str) -> Command:
    """`torchshare cluster`, of a user without an earlier cluster."""

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        given = [sys.executable, "-m", "torchshare", "cluster", *words]
        own = {key: value for key, value in {**os.environ, "HOME": str(folder), **environment}.items() if value}
        return subprocess.run(given, cwd=folder, env=own, capture_output=True, text=True, timeout=180)

    return command


@pytest.fixture(scope="module")
def client_address() -> Iterator[tuple[str, str]]:
    """The address of a Ray, and that of its client server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # see docs/cluster.md
        cluster = Cluster(initialize_head=True, head_node_args={**NODE, "ray_client_server_port": port})
    yield cluster.address, f"ray://127.0.0.1:{port}"
    cluster.shutdown()


@pytest.fixture
def run(tmp_path: Path, client_address: tuple[str, str]) -> Iterator[Command]:
    found = command_of(tmp_path, RAY_ADDRESS=client_address[0])
    yield found
    found("down")


@pytest.mark.parametrize("words", [["up"], ["submit", "train.py"], ["list"]])
def test_without_ray_on_the_machine_one_line_says_how_to_start_it(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = command_of(tmp_path, RAY_ADDRESS="", RAY_TMPDIR=str(tmp_path))(*words)
    line = "there is no Ray cluster on this machine: `RAY_worker_niceness=0 ray start --head` starts one"
    assert (done.returncode, done.stderr) == (2, f"torchshare: error: {line}\n")


def test_a_queue_goes_on_after_down_and_up(tmp_path: Path, run: Command) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    not_up = "torchshare: error: the cluster is not up: run `torchshare cluster up`\n"
    assert run("list").stderr == not_up
    done = run("submit", "train.py 3 0.05")
    assert (done.returncode, done.stderr) == (0, "Job 'train' is submitted\nJob 'train' has finished\n")
    assert "trained\n" in done.stdout
    assert run("submit", "--no-wait", "long=train.py 400 0.05").returncode == 0
    wait_until(lambda: " running " in run("list").stdout)
    assert run("down").returncode == 0
    assert run("list").stderr == not_up
    assert run("up").returncode == 0
    done = run("logs", "-f", "long")
    assert "resumes at step" in done.stdout
    assert done.stdout.endswith("trained\n")
    rows = [line.split() for line in run("list").stdout.splitlines()]
    assert ["long", "finished"] in [row[:2] for row in rows]
    assert 'crashed": true' not in (tmp_path / ".torchshare" / "cluster" / "journal.jsonl").read_text()


def test_rays_client_submits_from_elsewhere(tmp_path: Path, run: Command, client_address: tuple[str, str]) -> None:
    """With an address that begins with ray://."""
    (tmp_path / "jobs.toml").write_text('[jobs.a]\nrun = "train.py 3 0.01"\n')
    (tmp_path / "train.py").write_text(SCRIPT)
    client = ("--address", client_address[1])
    done = run("submit", *client, "jobs.toml")
    assert (done.returncode, done.stderr) == (0, "Job 'a' is submitted\nJob 'a' has finished\n")
    assert "trained\n" in done.stdout
    assert " finished " in run("list", *client).stdout
    assert run("logs", *client, "b").stderr.startswith("torchshare: error: ")
    assert run("down", *client).returncode == 0
    done = run("list", "--address", "ray://127.0.0.1:1")
    assert done.stderr.startswith("torchshare: error: there is no Ray cluster at ray://127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1


def test_a_journal_that_is_refused_leaves_no_scheduler_behind(tmp_path: Path, run: Command) -> None:
    journal = tmp_path / ".torchshare" / "cluster" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"event": "a"}\n{"event": \n{"event": "b"}\n')
    done = run("up")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"torchshare: error: {journal}:2: the journal is damaged")
    assert "the cluster is not up" in run("list").stderr
