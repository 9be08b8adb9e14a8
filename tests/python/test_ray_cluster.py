"""Jobs on a Ray cluster on this machine: two nodes, with hosts on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from cluster_jobs import equal, training
from conftest import run_one, torchshare_command, wait_until

from torchshare import cluster
from torchshare.cluster.settings import QueueSettings

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ray[default]>=2.40'")
from ray_cluster import ALL_DONE_S, Local, is_running, submit  # noqa: E402

from torchshare.cluster import connection  # noqa: E402
from torchshare.cluster.settings import ClusterSettings  # noqa: E402

pytestmark = pytest.mark.timeout(300)


def test_jobs_end_with_the_weights_of_jobs_alone(local: Local) -> None:
    jobs = [submit(training(seed=number), f"identical{number}") for number in range(5)]
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(seed=number)).value)
        assert "".join(job.logs()).endswith(f"job identical{number} has trained\n")


def test_a_job_has_what_its_predecessors_returned(local: Local) -> None:
    first = submit(lambda job: 7, "first")
    second = submit(lambda job: job.after["first"].value + 1, "second", after=["ok:first"])
    assert second.result(ALL_DONE_S) == 8
    assert first.state == "finished"


def test_the_command(local: Local, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('trained')\nsys.exit(int(sys.argv[1]))\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return torchshare_command("cluster", *words, folder=tmp_path)

    done = run("submit", "ok=train.py 0")
    assert (done.returncode, done.stderr) == (0, "Job 'ok' is submitted\nJob 'ok' has finished\n")
    assert "trained\n" in done.stdout
    done = run("submit", "--duration", "5", "bad=train.py 3")
    assert (done.returncode, done.stderr) == (1, "Job 'bad' is submitted\nJob 'bad' has failed: SystemExit: 3\n")
    assert "trained\n" in run("logs", "-f", "ok").stdout
    rows = {line.split()[0]: line for line in run("list").stdout.splitlines()}
    assert rows["ok"].split()[1] == "finished"
    assert rows["bad"].endswith("SystemExit: 3")
    assert "jobs: " in run("status").stdout
    assert len(json.loads(run("status", "--json", "--timeline", "out.json").stdout)["devices"]) >= 2
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert {"ok", "bad"} <= {event["name"] for event in events}
    long = submit(training(1000, 0.05), "stopped")
    wait_until(is_running(long))
    with pytest.raises(TimeoutError, match=r"job 'stopped' has not ended after 0.1 s: it is running"):
        long.result(0.1)
    assert run("stop", "stopped").stdout in ("Job 'stopped' is cancelling\n", "Job 'stopped' was cancelled\n")
    with pytest.raises(cluster.JobError, match="job 'stopped' was cancelled"):
        long.result(30)
    done = run("stop", "none")
    assert (done.returncode, done.stderr) == (2, "torchshare: error: job 'none': there is no such job\n")


def test_what_a_client_is_told(local: Local) -> None:
    submit(training(1), "twice")
    with pytest.raises(ValueError, match="job 'twice': job names must be unique; a job of that name is "):
        submit(training(1), "twice")
    with pytest.raises(cluster.JobError, match=r"job 'raises' failed: ZeroDivisionError: division by zero"):
        submit(lambda job: 1 / 0, "raises").result(ALL_DONE_S)
    assert "1 / 0" in "".join(cluster.job("raises").logs())
    with pytest.raises(ValueError, match="job 'none': there is no such job"):
        cluster.job("none")


def test_a_client_that_goes_away_during_down(local: Local) -> None:
    """The scheduler has ended all the same, and the next `up` starts one."""
    with contextlib.suppress(ValueError):  # it may end before it has answered
        connection.call("shut_down")
    with pytest.raises(ValueError, match="the cluster is not up"):
        connection.call("check")
    cluster.up(local.ray.address, local.settings)
    assert submit(lambda job: 3, "after-down").result(ALL_DONE_S) == 3
    local.wait_for_hosts()


def test_other_settings_than_those_of_the_scheduler_are_refused(local: Local) -> None:
    other = ClusterSettings(local.settings.storage, QueueSettings(policy="fifo"))
    with pytest.raises(ValueError, match="the cluster is up with other settings"):
        cluster.up(local.ray.address, other)


def test_a_client_without_an_answer_does_not_end_the_scheduler(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(_: str) -> None:
        raise ValueError("the cluster's scheduler does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "call", no_answer)
        with pytest.raises(ValueError, match="does not answer"):
            cluster.up(local.ray.address)
    time.sleep(1)
    assert cluster.hosts()


@pytest.mark.slow
def test_environments_and_metrics(local: Local) -> None:
    """Jobs with another `env` get a process of their own."""
    env = {"env_vars": {"COLOUR": "red"}}
    plain, red = (submit(lambda job: os.environ.get("COLOUR"), name, env=e) for name, e in (("p", {}), ("r", env)))
    assert (plain.result(ALL_DONE_S), red.result(ALL_DONE_S)) == (None, "red")
    bad = submit(lambda job: 0, "bad-env", env={"working_dir": "/no/such/folder"})
    with pytest.raises(cluster.JobError, match="job 'bad-env' failed: its env cannot be set up: "):
        bad.result(ALL_DONE_S)
    assert submit(lambda job: 3, "after-bad").result(ALL_DONE_S) == 3

    def metrics() -> str:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        pages = [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes]
        return "".join(urllib.request.urlopen(page, timeout=5).read().decode() for page in pages)

    def are_exported() -> bool:
        with contextlib.suppress(OSError):  # Ray's agent is not up yet
            return "torchshare_ended_jobs" in metrics()
        return False

    wait_until(are_exported, 30)


def test_another_address_is_refused(local: Local) -> None:
    with pytest.raises(
        ValueError, match=r"address must be [0-9.:]+, to which this process is connected, got 10.0.0.1:6"
    ):
        cluster.submit("train.py", address="10.0.0.1:6")
    cluster.connect(local.ray.address.replace("127.0.0.1", "localhost"))
