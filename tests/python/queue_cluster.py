"""A cluster's queue with hosts that exist in the queue's belief only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchshare.cluster.host_status import AttemptStatus
from torchshare.cluster.job_queue import JobQueue
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Journal
from torchshare.cluster.queued_job import Action
from torchshare.cluster.settings import QueueSettings
from torchshare.context.results import ENDED


def spec(name: str, **options: Any) -> JobSpec:
    given = {"submission": name, "target": f"{name}.py", "folder": "/", "model": "m", "duration": 100.0}
    return JobSpec(name, **{**given, **options})


class Cluster:
    """A queue with its journal, and the hosts that it believes in: which job runs where, in which attempt."""

    def __init__(self, path: Path, hosts: int = 0, **settings: Any) -> None:
        self._path = path
        self._settings = QueueSettings(**settings)
        self.now = 1e9
        self.open()
        self.on: dict[int, dict[str, int]] = {}
        self.compacts = False
        self.fails = 0.0
        for index in range(hosts):
            self.add_host(index)

    def open(self) -> None:
        """Also again, after the scheduler was killed."""
        if hasattr(self, "journal"):
            self.journal.close()
        self.journal = Journal(self._path, patience=0)
        self.queue = JobQueue(self.journal, self._settings, lambda: self.now)

    def add_host(self, index: int, token: str = "first") -> int:
        gpu = self.queue.host_up("node", index, f"{token} {index}")
        self.on[gpu] = {}
        return gpu

    def lose(self, gpu: int, *, crashed: bool = True, blamed: str | None = None) -> None:
        self.queue.host_lost(gpu, "killed", crashed=crashed, blamed=blamed)
        del self.on[gpu]

    def act(self) -> list[str]:
        """Carries out what the queue orders; suspensions and cancellations happen at once."""
        done = []
        while actions := self.queue.actions():
            for action in actions:
                self._do(action)
                done.append(f"{action.what} {action.job.name} {action.gpu}")
        return done

    def _do(self, action: Action) -> None:
        jobs = self.on[action.gpu]
        if action.what == "start":
            others = [each[action.job.name] for each in self.on.values() if action.job.name in each]
            assert others == [action.attempt] * action.rank, "it runs twice"
            assert len(jobs) < 2
            ended = {each.name: each.state for each in action.predecessors}
            for text in action.job.after:
                how, _, name = text.partition(":")
                assert ended.pop(name) in (("finished",) if how == "ok" else ENDED)
            assert not ended
            jobs[action.job.name] = action.attempt
        elif action.what == "replace":
            assert not jobs
            self.queue.host_up("node", action.gpu, f"for {action.job.name}", self.queue.jobs[action.job.name].env)
        else:
            assert jobs.pop(action.job.name) == action.attempt
            state = {"suspend": "suspended"}.get(action.what, "cancelled")
            self.queue.left(action.job.name, action.attempt, state, gpu=action.gpu)

    def end(self, name: str, state: str = "finished", error: str = "") -> None:
        for gpu in [gpu for gpu, jobs in self.on.items() if name in jobs]:
            self.queue.left(name, self.on[gpu].pop(name), state, error, gpu=gpu)

    def progress(self, name: str, attempt: int, time: float, steps: int, **more: Any) -> bool:
        return self.queue.progress(AttemptStatus(name, attempt, "running", steps, **more), time)

    def save(self, name: str) -> None:
        """The job has begun to write checkpoints."""
        assert self.progress(name, self.queue.jobs[name].attempt, 0.0, 1, can_save=True)

    def states(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in self.queue.rows()}


@pytest.fixture(name="path")
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def journaled(cluster: Cluster) -> list[dict[str, Any]]:
    cluster.open()
    return cluster.journal.events
