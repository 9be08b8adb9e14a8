"""The scheduler of a cluster, with hosts that are only played."""

from __future__ import annotations

import errno
import functools
import os
import secrets
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchshare.cluster import scheduler as scheduler_module
from torchshare.cluster.host_actor import CannotStart, ShutDown
from torchshare.cluster.host_status import AttemptStatus, HostStatus
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Journal
from torchshare.cluster.remote_host import RemoteHost
from torchshare.cluster.scheduler import Scheduler
from torchshare.cluster.settings import ClusterSettings
from torchshare.cluster.storage import Outcome, Storage


class Played:
    """A host's actor: the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(remote=lambda *arguments: self.calls.append((name, *arguments)))


class PlayedNodes:
    """One node without a GPU, unless it is not `alive`. Answers that are `ready` have come, and are themselves."""

    def __init__(self) -> None:
        self.alive = True
        self.started: list[Any] = []
        self.killed: list[Any] = []
        self.marks: list[str] = []
        self.ready: list[Any] = []
        self.while_starting: Callable[[], object] = lambda: None

    def living(self) -> dict[str, int]:
        return {"n": 0} if self.alive else {}

    def start(self, settings: ClusterSettings, node: str, index: int, mark: str, **_: Any) -> Played:
        self.while_starting()
        self.marks.append(mark)
        self.started.append(Played())
        return self.started[-1]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def wait(self, answers: list[Any], timeout: float) -> list[Any]:
        return self.ready

    def answer(self, reference: Any) -> Any:
        return reference

    def publish(self, queue: Any) -> None:
        pass

    def end_scheduler(self) -> None:
        self.killed.append("scheduler")


@pytest.fixture
def nodes() -> PlayedNodes:
    return PlayedNodes()


def opened(path: Path, nodes: PlayedNodes, **options: Any) -> Scheduler:
    return Scheduler(ClusterSettings(str(path)), nodes, **options)


def started(path: Path, nodes: PlayedNodes, *jobs: str) -> tuple[Scheduler, RemoteHost]:
    """A scheduler with one host, on which these jobs run."""
    scheduler = opened(path, nodes)
    for name in jobs:
        scheduler.submit([(JobSpec(name, name, f"{name}.py", "/", "m"), False)], {})
    host = scheduler._hosts["n", 0] = RemoteHost("n", 0, Played())
    status(scheduler, host)
    assert [action.what for action in scheduler._queue.actions()] == ["start"] * len(jobs)
    return scheduler, host


def status(scheduler: Scheduler, host: RemoteHost, *jobs: AttemptStatus, token: str = "token") -> None:
    scheduler._take(host, HostStatus(token, 0.0, list(jobs), "{}"))


@pytest.mark.parametrize(
    ("alive", "error", "states"),
    [
        ("n", "why", ["failed"]),
        ("", "why", ["pending"]),
        ("n", "its worker process has died", ["pending", "pending", "failed"]),
        ("n", "torchshare.cluster.storage.WrongStorage: /x has not the mark", ["pending"] * 4),
        ("n", "pip: [Errno 28] No space left on device", ["pending"] * 4),
    ],
)
def test_an_env_is_to_blame_only_if_the_node_lives_and_its_process_is_not_killed(
    tmp_path: Path, nodes: PlayedNodes, alive: str, error: str, states: list[str]
) -> None:
    """A process that is killed at its start is started again, three times in all."""
    nodes.alive = bool(alive)
    scheduler = opened(tmp_path, nodes)
    (job,) = scheduler.submit([(JobSpec("a", "id", "a.py", "/", "m", env={"env_vars": {"X": "1"}}), False)], {})
    for number, state in enumerate(states):
        gpu = scheduler._queue.host_up("n", 0, f"token{number}")
        host = RemoteHost("n", 0, None, replaced_for=job, gpu=gpu, error=error)
        scheduler._hosts["n", 0] = host
        scheduler._bury(host)
        assert scheduler.rows("a")[0]["state"] == state


def test_jobs_that_are_refused_leave_no_function_behind(tmp_path: Path, nodes: PlayedNodes) -> None:
    scheduler = opened(tmp_path, nodes)
    good, bad = JobSpec("a", "1", "a", "/", "m", pickled=True), JobSpec("b", "2", "b", "/", "m", gpus=9)
    with pytest.raises(ValueError, match=r"^job 'b': gpus must be at most 0"):
        scheduler.submit([(good, False), (bad, False)], {"1": b"x"})
    assert not list((tmp_path / "functions").glob("*"))
    for _ in range(2):
        assert scheduler.submit([(good, False)], {"1": b"x"}) == ["a"]
    assert [path.read_bytes() for path in (tmp_path / "functions").glob("*")] == [b"x"]


def test_jobs_that_ended_before_their_host_and_scheduler_died_do_not_run_again(
    tmp_path: Path, nodes: PlayedNodes
) -> None:
    def start() -> Scheduler:
        """With two hosts, whose processes are new."""
        scheduler = opened(tmp_path, nodes)
        for index in range(2):
            host = scheduler._hosts["n", index] = RemoteHost("n", index, Played())
            status(scheduler, host, token=secrets.token_hex(4))
        return scheduler

    scheduler = start()
    for name, gpus in (("gang", 2), ("single", 1), ("lost", 1)):
        scheduler.submit([(JobSpec(name, name, f"{name}.py", "/", "m", gpus=gpus), False)], {})
    assert [action.job.name for action in scheduler._queue.actions()] == ["gang", "gang", "single", "lost"]
    for name in ("gang.1.0", "gang.1.1", "single"):
        Storage(tmp_path).put_outcome(name, Outcome("finished"))
    scheduler._queue._journal.close()
    again = start()
    states = {row["name"]: (row["state"], row["attempt"]) for row in again.rows()}
    assert states == {"gang": ("finished", 1), "single": ("finished", 1), "lost": ("suspended", 1)}
    assert {name: job.crashes for name, job in again._queue.jobs.items()} == {"gang": 0, "single": 0, "lost": 1}


def test_a_job_that_does_not_stop_ends_the_process_and_is_blamed(tmp_path: Path, nodes: PlayedNodes) -> None:
    scheduler, host = started(tmp_path, nodes, "stuck", "partner")
    running = [AttemptStatus(name, 1, "running", 7) for name in ("stuck", "partner")]
    status(scheduler, host, *running)
    scheduler.cancel("stuck")
    assert [action.what for action in scheduler._queue.actions()] == ["cancel"]
    status(scheduler, host, AttemptStatus("stuck", 1, "running", 7, stops=True), running[1])
    assert host.actor.calls == []
    scheduler._queue.jobs["stuck"].stopped -= 1000
    status(scheduler, host, AttemptStatus("stuck", 1, "running", 7, stops=True), running[1])
    assert host.actor.calls == [("save_all",)]
    assert not host.is_reachable
    host.status = "saved"
    nodes.ready.append("saved")
    scheduler._poll()
    assert nodes.killed == [host.actor]
    states = [(row["state"], row["steps"]) for row in scheduler.rows()]
    assert states == [("cancelled", 7), ("suspended", 7)]
    assert scheduler._queue.jobs["partner"].crashes == 0
    scheduler._queue._journal.close()
    again = opened(tmp_path, nodes)
    assert [(row["state"], row["steps"]) for row in again.rows()] == states


def test_a_job_that_should_not_be_there_and_does_not_stop_ends_the_process(tmp_path: Path, nodes: PlayedNodes) -> None:
    scheduler, host = started(tmp_path, nodes)
    status(scheduler, host, AttemptStatus("stray", 3, "running"))
    assert host.actor.calls == [("stop", "stray", 3, False)]
    host.strays["stray", 3] -= 1000
    status(scheduler, host, AttemptStatus("stray", 3, "running", stops=True))
    assert host.actor.calls[1:] == [("save_all",)]


@pytest.mark.parametrize("suspend", [True, False])
def test_a_stop_that_did_not_reach_the_host_is_repeated(tmp_path: Path, nodes: PlayedNodes, suspend: bool) -> None:
    scheduler, host = started(tmp_path, nodes, "a")
    if suspend:
        scheduler._queue.jobs["a"].can_save = True
        scheduler._queue._state._obey(([0], []))  # the policy wants it
    else:
        scheduler.cancel("a")
    assert len(scheduler._queue.actions()) == 1
    status(scheduler, host, AttemptStatus("a", 1, "running"))
    assert host.actor.calls == [("stop", "a", 1, suspend)]
    status(scheduler, host, AttemptStatus("a", 1, "running", stops=True))
    assert len(host.actor.calls) == 1


def test_a_start_that_did_not_reach_the_host_is_repeated(tmp_path: Path, nodes: PlayedNodes) -> None:
    scheduler, host = started(tmp_path, nodes, "a")
    status(scheduler, host)
    assert scheduler.rows("a")[0]["state"] == "running"  # the host may not know it yet
    scheduler._queue.jobs["a"].began -= 100
    status(scheduler, host)
    assert [action.attempt for action in scheduler._queue.actions()] == [2]


def test_a_scheduler_that_is_shut_down_ends(tmp_path: Path, nodes: PlayedNodes) -> None:
    """Also if that fails. It would accept jobs, and never run them; nor does it until Ray has ended its process."""
    scheduler, host = started(tmp_path, nodes)
    scheduler.shut_down()
    assert nodes.killed == [host.actor, "scheduler"]
    for call in (scheduler.check, scheduler.rows, lambda: scheduler.submit([], {}), lambda: scheduler.cancel("a")):
        with pytest.raises(ShutDown):
            call()
    scheduler.shut_down()  # by a client that got no answer
    assert nodes.killed == [host.actor, "scheduler", "scheduler"]
    scheduler, host = started(tmp_path / "other", nodes)
    scheduler._queue._journal.close()
    with pytest.raises(ValueError, match="the journal is closed"):
        scheduler.shut_down()
    assert nodes.killed[3:] == [host.actor, "scheduler"]


def test_a_host_that_is_starting_when_the_queue_is_shut_down_is_ended(tmp_path: Path, nodes: PlayedNodes) -> None:
    scheduler = opened(tmp_path, nodes)
    shutting_down = threading.Thread(target=scheduler.shut_down)

    def shut_down() -> None:
        shutting_down.start()
        shutting_down.join(0.5)  # it has to wait for the host

    nodes.while_starting = shut_down
    scheduler._find_nodes()
    shutting_down.join(300)
    assert nodes.killed == [*nodes.started, "scheduler"]
    scheduler._nodes_due = 0.0
    scheduler._find_nodes()
    assert scheduler._hosts == {}


def test_a_host_that_cannot_start_says_why_and_waits_longer_each_time(
    tmp_path: Path, nodes: PlayedNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scheduler_module, "_NODES_S", 0.0)
    now = 0.0
    monkeypatch.setattr(scheduler_module, "time", types.SimpleNamespace(monotonic=lambda: now, time=time.time))
    scheduler = opened(tmp_path, nodes)
    for wait in (1.0, 2.0, 4.0):
        scheduler._find_nodes()
        host = scheduler._hosts["n", 0]
        host.error = "The actor died.\nNo module named 'torch'"
        scheduler._bury(host)
        assert f"host n:0 cannot start: No module named 'torch'; the next try is in {wait:g} s" in caplog.text
        row = {"device": None, "node": "n", "index": 0, "up": False, "jobs": [], "note": ""}
        assert scheduler.hosts() == [{**row, "error": "No module named 'torch'"}]
        now += wait - 0.5
        scheduler._find_nodes()
        assert scheduler._hosts == {}
        now += 0.5
    scheduler._find_nodes()
    host = scheduler._hosts["n", 0]
    host.status = _NoJobs("token", 0.0, [], "{}")
    nodes.ready.append(host.status)
    scheduler._poll()
    assert [(row["device"], row["up"], row["error"]) for row in scheduler.hosts()] == [(0, True, "")]


def no_space(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_was_full_is_tried_again(
    tmp_path: Path, nodes: PlayedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        scheduler = opened(tmp_path, nodes)
        with pytest.raises(CannotStart, match="No space left on device"):
            scheduler.check()
    scheduler._wait_for_storage()
    assert scheduler.check() == ClusterSettings(str(tmp_path))
    assert scheduler.rows() == []


def test_a_scheduler_waits_until_an_earlier_one_has_ended(
    tmp_path: Path, nodes: PlayedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "Journal", functools.partial(Journal, patience=0))
    earlier, _ = started(tmp_path, nodes, "a")
    later = opened(tmp_path, nodes)
    for refused in (later.check, later.rows, lambda: later.cancel("a"), later.shut_down):
        with pytest.raises(CannotStart, match="another scheduler has it open"):
            refused()
    earlier._queue._journal.close()
    later._wait_for_storage()
    assert later.rows("a")[0]["state"] == "running"


def test_the_job_whose_thread_crashed_the_process_is_blamed(tmp_path: Path, nodes: PlayedNodes) -> None:
    """As the process has written. Both had been, and were put together again."""
    scheduler, host = started(tmp_path, nodes, "guilty", "innocent")
    log = scheduler._storage.crash("token")
    log.parent.mkdir()
    log.write_text(
        '["job", 10, "innocent"]\n["left", 10, "innocent"]\n["job", 10, "guilty"]\n["job", 11, "innocent"]\n'
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x000000000000000b (most recent call first):\n  <no Python frame>\n\n"
        'Current thread 0x000000000000000a (most recent call first):\n  File "/home/train.py", line 7 in step\n'
    )
    host.error = "The actor died because its worker process has died."
    scheduler._bury(host)
    crashes = {name: (job.crashes, job.is_suspect) for name, job in scheduler._queue.jobs.items()}
    assert crashes == {"guilty": (1, True), "innocent": (0, False)}
    how = "job 'guilty' crashed the process: Segmentation fault at /home/train.py:7 (step)"
    assert scheduler.rows("guilty")[0]["error"] == f"runs alone: {how}"
    assert scheduler.rows("innocent")[0]["error"] == ""
    assert not log.exists()


@pytest.mark.parametrize("text", ["", '["job", 11, "a"]\nCurrent thread 0xa (most recent call first):\n', "garbage"])
def test_who_crashed_the_process_may_not_be_known(tmp_path: Path, nodes: PlayedNodes, text: str) -> None:
    scheduler, host = started(tmp_path, nodes, "a", "b")
    log = scheduler._storage.crash("token")
    log.parent.mkdir()
    log.write_text(text)
    host.error = "The actor died because its worker process has died."
    scheduler._bury(host)
    assert [(job.crashes, job.is_suspect) for job in scheduler._queue.jobs.values()] == [(0, True)] * 2


def test_a_host_that_no_longer_sees_the_storage_is_ended_and_its_jobs_go_on(
    tmp_path: Path, nodes: PlayedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, host = started(tmp_path, nodes, "a")
    host.status = _NoJobs("token", 0.0, [AttemptStatus("a", 1, "running")], "{}", refusal="/x is not the storage")
    nodes.ready.append(host.status)
    scheduler._poll()
    assert nodes.killed == [host.actor]
    assert scheduler.rows("a")[0]["state"] == "suspended"
    assert scheduler._queue.jobs["a"].crashes == 0
    again = scheduler._hosts["n", 0] = RemoteHost("n", 0, Played())
    again.error = "The actor died\n  File x\ntorchshare.cluster.storage.WrongStorage: /x is not the storage"
    scheduler._bury(again)
    assert [row["error"] for row in scheduler.hosts()] == ["/x is not the storage"]


def test_hosts_get_the_mark_in_the_storage(tmp_path: Path, nodes: PlayedNodes) -> None:
    """The same one, also from another scheduler: hosts outlive it."""
    for _ in range(2):
        scheduler = opened(tmp_path, nodes)
        scheduler._find_nodes()
        scheduler._queue._journal.close()
    first, second = nodes.marks
    Storage(tmp_path, first).check()
    assert first == second


def test_a_scheduler_that_comes_back_without_its_storage_waits_for_it(tmp_path: Path, nodes: PlayedNodes) -> None:
    """It made a new one, with an empty queue."""
    scheduler, _ = started(tmp_path / "storage", nodes, "a")
    scheduler._queue._journal.close()
    (tmp_path / "storage").rename(tmp_path / "away")
    again = opened(tmp_path / "storage", nodes, is_restarted=True)
    with pytest.raises(CannotStart, match=r"storage/journal.jsonl: there is no journal any more; is the storage there"):
        again.check()
    assert not (tmp_path / "storage").exists()
    (tmp_path / "away").rename(tmp_path / "storage")
    again._wait_for_storage()
    assert again.rows("a")[0]["state"] == "running"


def test_a_host_with_rays_niceness_is_told_of(tmp_path: Path, nodes: PlayedNodes) -> None:
    scheduler, host = started(tmp_path, nodes)
    assert [row["note"] for row in scheduler.hosts()] == [""]
    scheduler._take(host, HostStatus("token", 0.0, [], "{}", niceness=15))
    note = "niceness 15; Ray's own is 15: start it with RAY_worker_niceness=0"
    assert [row["note"] for row in scheduler.hosts()] == [note]


def test_what_a_host_did_unheard_is_no_run_time(tmp_path: Path, nodes: PlayedNodes) -> None:
    """The whole cluster was down, and one job had ended before."""
    scheduler, _ = started(tmp_path, nodes, "ended", "lost")
    Storage(tmp_path).put_outcome("ended", Outcome("finished"))
    scheduler._queue._journal.close()
    again = opened(tmp_path, nodes)
    state = again._queue._state
    again._queue._clock = lambda: time.time() + 1e6
    status(again, RemoteHost("n", 0, Played()), token="another")
    assert {row["name"]: row["state"] for row in again.rows()} == {"ended": "finished", "lost": "suspended"}
    assert all(row["ran_s"] < 1000 for row in again.rows())
    assert state.learned.duration("m") == 3600


class _NoJobs(HostStatus):
    __hash__ = object.__hash__


def test_a_host_that_hangs_is_given_up(tmp_path: Path, nodes: PlayedNodes) -> None:
    scheduler = opened(tmp_path, nodes)
    scheduler.submit([(JobSpec("a", "id", "a.py", "/", "m"), False)], {})
    no_jobs = _NoJobs("token", 0.0, [], "{}")
    actor = types.SimpleNamespace(status=types.SimpleNamespace(remote=lambda forget: no_jobs))
    host = scheduler._hosts["n", 0] = RemoteHost("n", 0, actor)
    scheduler._poll()
    host.asked -= 1000
    scheduler._poll()  # it has never answered: its env is being set up
    nodes.ready.append(host.status)
    scheduler._poll()
    nodes.ready.clear()
    assert [action.what for action in scheduler._queue.actions()] == ["start"]
    scheduler._poll()
    assert scheduler.rows("a")[0]["state"] == "running"
    host.asked -= 1000
    scheduler._poll()
    assert (nodes.killed, scheduler._hosts) == ([actor], {})
    assert scheduler.rows("a")[0]["state"] == "suspended"
    assert scheduler._queue.jobs["a"].crashes == 1
