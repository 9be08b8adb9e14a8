"""Jobs on a Ray cluster on this machine: two nodes, with hosts on the CPU."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import equal, training
from conftest import run_one, torchshare_command, wait_until

from torchshare import cluster
from torchshare.cluster.queue_state import QueueSettings

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="needs Ray: pip install 'torchshare[ray]'")
from ray.cluster_utils import Cluster  # noqa: E402

from torchshare.cluster import actors, connection  # noqa: E402
from torchshare.cluster.actors import NAMESPACE, SCHEDULER  # noqa: E402
from torchshare.cluster.host import HostReport  # noqa: E402
from torchshare.cluster.host_actor import ClusterSettings  # noqa: E402
from torchshare.cluster.job_spec import JobSpec  # noqa: E402
from torchshare.cluster.journal import Journal  # noqa: E402

pytestmark = pytest.mark.timeout(300)
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
ALL_DONE_S = 120.0


class Local:
    """A Ray cluster of two nodes, with a scheduler."""

    def __init__(self, folder: Path, **queue: Any) -> None:
        self.settings = ClusterSettings(str(folder / "storage"), QueueSettings(**queue), every=1, device="cpu")
        self.open()

    def open(self) -> None:
        self.ray = Cluster(initialize_head=True, head_node_args=NODE)
        ray.init(self.ray.address, log_to_driver=False, logging_level="ERROR")  # on the head's raylet
        self.add_node()
        cluster.up(self.ray.address, self.settings)

    def add_node(self) -> None:
        self.node = self.ray.add_node(**{key: NODE[key] for key in ("num_cpus", "object_store_memory")})

    def close(self) -> None:
        ray.shutdown()
        self.ray.shutdown()

    def wait_for_hosts(self, count: int = 2) -> None:
        wait_until(lambda: sum(host["up"] for host in cluster.hosts()) >= count, 60)

    def journal(self) -> list[dict[str, Any]]:
        lines = Path(self.settings.storage, "journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def pid(self, device: int) -> int:
        host = cluster.hosts()[device]
        actor = ray.get_actor(f"host-{host['node']}-{host['index']}", NAMESPACE)
        return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=30))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    found = Local(tmp_path_factory.mktemp("cluster"), policy="pair-srsf")
    try:
        found.wait_for_hosts()
        yield found
    finally:
        found.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def submit(target: Callable[..., Any] | str, name: str, **options: Any) -> cluster.Handle:
    return cluster.submit(target, name=name, threads=1, **options)


def is_running(job: cluster.Handle, steps: int = 1) -> Callable[[], bool]:
    return lambda: job.state == "running" and job.status()["steps"] >= steps


def test_jobs_end_with_the_weights_of_jobs_alone(local: Local) -> None:
    jobs = [submit(training(seed=number), f"identical{number}") for number in range(5)]
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(seed=number)).value)
        assert "".join(job.logs()).endswith(f"job identical{number} has trained\n")


def test_a_script_and_its_log(local: Local, folder: Path) -> None:
    (folder / "train.py").write_text("import os, sys\nprint('in', os.getcwd(), sys.argv[1:])\n")
    job = submit("train.py --epochs 3", "script", folder=folder)
    assert job.result(ALL_DONE_S) is None
    assert f"in {folder} ['--epochs', '3']\n" in "".join(job.logs(follow=True))
    assert cluster.job("script").state == "finished"


def test_the_command(local: Local, folder: Path) -> None:
    (folder / "train.py").write_text("import sys\nprint('trained')\nsys.exit(int(sys.argv[1]))\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return torchshare_command("cluster", *words, folder=folder)

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
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    assert {"ok", "bad"} <= {event["name"] for event in events}
    long = submit(training(1000, 0.05), "stopped")
    wait_until(is_running(long), 60)
    assert run("stop", "stopped").stdout in ("Job 'stopped' is cancelling\n", "Job 'stopped' was cancelled\n")
    wait_until(lambda: long.state == "cancelled", 30)
    done = run("stop", "none")
    assert (done.returncode, done.stderr) == (2, "torchshare: error: job 'none': there is no such job\n")


def test_what_cannot_run(local: Local, folder: Path) -> None:
    submit(training(1), "twice")
    with pytest.raises(ValueError, match="job 'twice': job names must be unique; a job of that name is "):
        submit(training(1), "twice")
    with pytest.raises(ValueError, match="job 'large': gpus must be at most 2, the cluster's devices; got 3"):
        submit(training(1), "large", gpus=3)
    with pytest.raises(cluster.JobError, match=r"job 'missing' failed: target 'missing.py': no such file"):
        submit("missing.py", "missing", folder=folder).result(ALL_DONE_S)
    with pytest.raises(cluster.JobError, match=r"job 'raises' failed: ZeroDivisionError: division by zero"):
        submit(lambda job: 1 / 0, "raises").result(ALL_DONE_S)
    assert "1 / 0" in "".join(cluster.job("raises").logs())
    with pytest.raises(ValueError, match="job 'none': there is no such job"):
        cluster.job("none")


def test_cancelling_pending_and_running_jobs_and_giving_up_to_wait(local: Local) -> None:
    jobs = [submit(training(1000, 0.05), f"long{number}", priority="primary") for number in range(4)]
    for job in jobs:
        wait_until(is_running(job), 60)
    waiting = submit(training(), "waiting")
    with pytest.raises(TimeoutError, match=r"job 'waiting' has not ended after 0.1 s: it is pending"):
        waiting.result(0.1)
    assert jobs[0].status()["beside"] in {job.name for job in jobs}
    for job in [waiting, *jobs]:
        job.cancel()
    for job in [waiting, *jobs]:
        with pytest.raises(cluster.JobError, match=f"job '{job.name}' was cancelled"):
            job.result(30)


@pytest.mark.slow
def test_a_process_that_is_killed(local: Local, folder: Path) -> None:
    """Jobs of the host go on from their checkpoints; others do not notice."""
    marks = folder / "marks"
    jobs = [submit(training(60, 0.02, number, marks), f"killed{number}") for number in range(3)]
    for job in jobs:
        wait_until(is_running(job, 20), 60)
    device = next(host["device"] for host in cluster.hosts() if len(host["jobs"]) == 2)
    os.kill(local.pid(device), signal.SIGKILL)
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(60, 0, number)).value)
    assert sorted(job.status()["attempt"] for job in jobs) == [1, 2, 2]
    assert sum("resumes at step" in "".join(job.logs()) for job in jobs) == 2
    assert marks.read_text() == "end\n" * 3


@pytest.mark.slow
def test_a_scheduler_that_is_killed(local: Local) -> None:
    job = submit(training(60, 0.02), "through")
    wait_until(is_running(job), 60)
    actor = ray.get_actor(SCHEDULER, NAMESPACE)
    for _ in range(2):
        pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        after = submit(training(), f"after{pid}")  # waits for the new one
    assert equal(job.result(ALL_DONE_S), run_one(training(60)).value)
    assert job.status()["attempt"] == 1
    assert equal(after.result(ALL_DONE_S), run_one(training()).value)


def test_a_second_scheduler_is_refused(local: Local) -> None:
    code = f"""
from pathlib import Path
from torchshare.cluster.journal import Journal
Journal(Path({local.settings.storage!r}, "journal.jsonl"), patience=0.5)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].endswith("journal.jsonl: another scheduler has it open")
    other = ClusterSettings(local.settings.storage, QueueSettings(policy="fifo"))
    with pytest.raises(ValueError, match="the cluster is up with other settings"):
        cluster.up(local.ray.address, other)


def test_a_scheduler_whose_journal_another_has(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "Journal", functools.partial(Journal, patience=0))
    second = actors.SchedulerActor(local.settings)
    for refused in (second.check, second.rows, lambda: second.cancel("a"), second.shut_down):
        with pytest.raises(ValueError, match="another scheduler has it open"):
            refused()


def test_a_client_without_an_answer_does_not_end_the_scheduler(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(_: str) -> None:
        raise ValueError("the cluster's scheduler does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "call", no_answer)
        with pytest.raises(ValueError, match="does not answer"):
            cluster.up(local.ray.address)
    time.sleep(1)
    assert cluster.hosts()


@pytest.mark.parametrize(("alive", "state"), [(True, "failed"), (False, "pending")])
def test_an_env_is_to_blame_only_if_the_node_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool, state: str
) -> None:
    monkeypatch.setattr(actors.SchedulerActor, "_serve", lambda self: None)
    nodes = [{"NodeID": "n", "Alive": alive, "Resources": {}}]
    monkeypatch.setattr(actors, "ray", types.SimpleNamespace(kill=lambda actor: None, nodes=lambda: nodes))
    scheduler = actors.SchedulerActor(ClusterSettings(str(tmp_path)))
    job = scheduler.submit(JobSpec("a", "id", "a.py", "/", "m", env={"env_vars": {"X": "1"}}), None, False)
    gpu = scheduler._queue.host_up("n", 0, "token")
    host = actors._Host("n", 0, None, replaced_for=job, gpu=gpu, error="why")
    scheduler._hosts["n", 0] = host
    scheduler._bury(host)
    assert scheduler.rows("a")[0]["state"] == state


def test_a_start_that_did_not_reach_the_host_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.SchedulerActor, "_serve", lambda self: None)
    scheduler = actors.SchedulerActor(ClusterSettings(str(tmp_path)))
    scheduler.submit(JobSpec("a", "id", "a.py", "/", "m"), None, False)
    host = actors._Host("n", 0, None)
    scheduler._take(host, HostReport("token", 0.0, [], "{}"))
    assert [action.attempt for action in scheduler._queue.actions()] == [1]
    scheduler._take(host, HostReport("token", 0.1, [], "{}"))
    assert scheduler.rows("a")[0]["state"] == "running"  # the host may not know it yet
    scheduler._queue.jobs["a"].began -= 100
    scheduler._take(host, HostReport("token", 99.0, [], "{}"))
    assert [action.attempt for action in scheduler._queue.actions()] == [2]


class _NoJobs(HostReport):
    __hash__ = object.__hash__


def test_a_host_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.SchedulerActor, "_serve", lambda self: None)
    killed: list[Any] = []
    ready: list[Any] = []
    fake = types.SimpleNamespace(kill=killed.append, nodes=list, wait=lambda *_, **__: (ready, []), get=lambda it: it)
    monkeypatch.setattr(actors, "ray", fake)
    scheduler = actors.SchedulerActor(ClusterSettings(str(tmp_path)))
    scheduler.submit(JobSpec("a", "id", "a.py", "/", "m"), None, False)
    no_jobs = _NoJobs("token", 0.0, [], "{}")
    report = types.SimpleNamespace(remote=lambda forget: no_jobs)
    actor = types.SimpleNamespace(report=report)
    host = scheduler._hosts["n", 0] = actors._Host("n", 0, actor)
    scheduler._poll()
    host.asked -= 1000
    scheduler._poll()  # it has never answered: its env is being set up
    ready.append(host.report)
    scheduler._poll()
    ready.clear()
    assert [action.what for action in scheduler._queue.actions()] == ["start"]
    scheduler._poll()
    assert scheduler.rows("a")[0]["state"] == "running"
    host.asked -= 1000
    scheduler._poll()
    assert (killed, scheduler._hosts) == ([actor], {})
    assert scheduler.rows("a")[0]["state"] == "suspended"
    assert scheduler._queue.jobs["a"].crashes == 1


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

    wait_until(lambda: "torchshare_ended_jobs" in metrics(), 30)


def test_a_client_that_goes_away(local: Local, folder: Path) -> None:
    code = f"""
from torchshare import cluster
from cluster_jobs import training
cluster.connect({local.ray.address!r})
job = cluster.submit(training(20, 0.02), name="orphan", threads=1)
print("submitted", flush=True)
job.result()
"""
    client = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"submitted\n"
    client.kill()
    client.communicate()
    assert equal(cluster.job("orphan").result(ALL_DONE_S), run_one(training(20)).value)


@pytest.mark.slow
def test_kills_at_random_moments(local: Local, folder: Path) -> None:
    """Of hosts and of the scheduler. Every job ends once."""
    chance = random.Random(1)
    marks = folder / "marks"
    jobs = [submit(training(40, 0.02, number, marks), f"random{number}") for number in range(6)]
    for _ in range(6):
        time.sleep(chance.uniform(0, 4))
        if chance.random() < 0.5:
            actor = ray.get_actor(SCHEDULER, NAMESPACE)
        else:
            host = chance.choice([host for host in cluster.hosts() if host["up"]])
            actor = ray.get_actor(f"host-{host['node']}-{host['index']}", NAMESPACE)
        with contextlib.suppress(ray.exceptions.RayError, ProcessLookupError):
            os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=10), signal.SIGKILL)
    finished = 0
    for number, job in enumerate(jobs):
        try:
            value = job.result(ALL_DONE_S)
        except cluster.JobError as error:
            assert "its host ended 3 times" in str(error)
        else:
            finished += 1
            assert equal(value, run_one(training(40, 0, number)).value)
    assert finished <= len(marks.read_text().splitlines()) <= len(jobs)
    ends = [e["job"] for e in local.journal() if e["event"] == "left" and e["state"] == "finished"]
    assert len(ends) == len(set(ends))


@pytest.mark.slow
def test_a_node_that_is_killed(local: Local) -> None:
    jobs = [submit(training(60, 0.02, number), f"moved{number}") for number in range(4)]
    for job in jobs:
        wait_until(is_running(job, 20), 60)
    local.ray.remove_node(local.node, allow_graceful=False)
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(60, 0, number)).value)
    assert [event["crashed"] for event in local.journal() if event["event"] == "lost"][-1] is False  # no job's fault
    local.add_node()
    local.wait_for_hosts()


@pytest.mark.slow
def test_the_queue_goes_on_after_the_whole_cluster_was_killed(local: Local) -> None:
    jobs = [submit(training(60, 0.02, number), f"again{number}") for number in range(5)]
    for job in jobs[:4]:
        wait_until(is_running(job, 20), 60)
    ray.shutdown()
    for node in [local.node, local.ray.head_node]:
        local.ray.remove_node(node, allow_graceful=False)
    local.ray.shutdown()
    time.sleep(1)
    local.open()
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(60, 0, number)).value)
