"""The queue of a cluster, with hosts that are only played."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from torchshare.cluster import job_queue
from torchshare.cluster.host_report import JobReport
from torchshare.cluster.job_queue import JobQueue
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Journal, Superseded
from torchshare.cluster.learned import Learned, StepTimes
from torchshare.cluster.queue_state import QueueState
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
        return self.queue.progress(JobReport(name, attempt, "running", steps, **more), time)

    def save(self, name: str) -> None:
        """The job has begun to write checkpoints."""
        assert self.progress(name, self.queue.jobs[name].attempt, 0.0, 1, can_save=True)

    def states(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in self.queue.rows()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_jobs_wait_for_hosts_and_share_them_two_at_a_time(path: Path) -> None:
    cluster = Cluster(path)
    for name in "abc":
        assert cluster.queue.submit(spec(name)) == name
    assert cluster.act() == []
    cluster.add_host(0)
    assert cluster.act() == ["start a 0", "start b 0"]
    assert cluster.queue.rows()[0]["beside"] == "b"
    cluster.add_host(1)
    assert cluster.act() == ["start c 1"]
    for name in "abc":
        cluster.end(name)
    assert cluster.act() == []
    assert set(cluster.states().values()) == {"finished"}


def test_a_name_is_taken_but_the_same_submission_twice_is_one_job(path: Path) -> None:
    queue = Cluster(path, 1).queue
    queue.submit(spec("a"))
    assert queue.submit(spec("a")) == "a"
    assert len(queue.jobs) == 1
    with pytest.raises(ValueError, match="job 'a': job names must be unique; a job of that name is pending"):
        queue.submit(spec("a", submission="other"))
    assert queue.submit(spec("a", submission="third"), number=True) == "a-2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 3}, "job 'a': gpus must be at most 2, the cluster's devices, got 3"),
        ({"memory": 2000}, "job 'a': memory must be at most 1000, that of a device, got 2000"),
        ({"priority": "high"}, "priority must be 'primary', 'secondary' or 'level-0' to 'level-9', got 'high'"),
        ({"model": ["a"]}, "job 'a': model must be a string, got ['a']"),
        ({"name": ["a"]}, "job '['a']': name must be a string, got ['a']"),
        ({"priority": 1}, "job 'a': priority must be a string, got 1"),
        (
            {"env": {1: "x", "a": "y"}},
            "job 'a': env must be a dict of JSON values with strings as keys, got {1: 'x', 'a': 'y'}",
        ),
        ({"gpus": None}, "job 'a': gpus must be a positive integer below 2**31, got None"),
        ({"gpus": 1.0}, "job 'a': gpus must be a positive integer below 2**31, got 1.0"),
        ({"memory": -5}, "job 'a': memory must be a positive integer below 2**63, got -5"),
        ({"duration": "5"}, "job 'a': duration must be a positive number of seconds, at most 1e12, got '5'"),
        ({"duration": float("nan")}, "job 'a': duration must be a positive number of seconds, at most 1e12, got nan"),
        ({"ratios": {"y": [1.0]}}, "job 'a': cannot be accepted: not enough values to unpack"),
        ({"ratios": [1.0]}, "job 'a': cannot be accepted: 'list' object has no attribute"),
        ({"options": {"lr": float("inf")}}, "job 'a': cannot be accepted: Out of range float values"),
    ],
)
def test_a_submission_that_is_refused_is_not_in_the_journal(path: Path, options: Any, message: str) -> None:
    cluster = Cluster(path, 2, memory=1000)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        cluster.queue.submit(JobSpec(**{**vars(spec("a")), **options}))
    assert path.read_bytes() == before
    cluster.open()
    assert cluster.states() == {}


def test_a_submission_is_in_the_queue_as_the_journal_has_it(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", env={"env_vars": {1: "x", "a": "y"}}, options={"betas": (0.9, 0.99)}))
    kept = cluster.queue.jobs["a"].spec
    cluster.open()
    assert cluster.queue.jobs["a"].spec == kept


def test_an_event_that_cannot_be_applied_is_dropped_and_closes_the_journal(path: Path) -> None:
    cluster = Cluster(path, 1)
    before = path.read_bytes()
    with pytest.raises(KeyError):
        cluster.queue._record({"event": "start", "job": "none", "attempt": 1, "gpus": [0]})
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="the journal is closed"):
        cluster.queue.actions()
    cluster.open()
    assert cluster.queue.submit(spec("a")) == "a"


def test_a_job_is_cancelled_while_it_is_pending_running_and_suspended(path: Path) -> None:
    cluster = Cluster(path, 1, policy="srsf")
    for name in ("running", "pending"):
        cluster.queue.submit(spec(name, duration=1000))
    cluster.act()
    cluster.save("running")
    cluster.queue.submit(spec("short", duration=10))
    assert cluster.act() == ["suspend running 0", "start short 0"]
    assert cluster.states() == {"running": "suspended", "pending": "pending", "short": "running"}
    for name in ("pending", "running"):
        cluster.queue.cancel(name)
        assert cluster.states()[name] == "cancelled"
    cluster.queue.cancel("short")
    assert cluster.states()["short"] == "cancelling"
    assert cluster.act() == ["cancel short 0"]
    cluster.queue.cancel("short")
    assert set(cluster.states().values()) == {"cancelled"}
    with pytest.raises(ValueError, match="job 'none': there is no such job"):
        cluster.queue.cancel("none")


def test_a_job_that_finishes_before_its_cancellation_has_finished(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a"))
    cluster.act()
    cluster.queue.cancel("a")
    cluster.end("a")
    assert cluster.act() == []
    assert cluster.states() == {"a": "finished"}


def test_a_gang_starts_and_ends_on_all_its_devices(path: Path) -> None:
    cluster = Cluster(path, 2)
    for name, gpus in (("gang", 2), ("other", 2), ("third", 2)):
        cluster.queue.submit(spec(name, gpus=gpus))
    assert cluster.act() == ["start gang 0", "start gang 1", "start other 0", "start other 1"]
    assert cluster.queue.rows()[0]["device"] == "node:0 node:1"
    cluster.queue.left("gang", 1, "finished", gpu=1)
    assert cluster.states()["gang"] == "running"
    cluster.open()
    assert cluster.act() == []
    cluster.queue.left("gang", 1, "finished", gpu=0)
    assert cluster.states()["gang"] == "finished"
    for gpu in (0, 1):
        del cluster.on[gpu]["gang"]
    assert cluster.act() == ["start third 0", "start third 1"]


@pytest.mark.parametrize("gangs", [{"a": 2, "b": 2, "c": 3}, {"a": 4, "b": 2, "c": 2}])
def test_a_gang_shares_with_at_most_one_other_gang(path: Path, gangs: dict[str, int]) -> None:
    cluster = Cluster(path, 4, policy="sjf-ffs", interference=1.0)
    for name, gpus in gangs.items():
        cluster.queue.submit(spec(name, gpus=gpus))
    cluster.queue.submit(spec("single"))
    cluster.act()
    assert cluster.states() == {"a": "running", "b": "running", "c": "pending", "single": "running"}
    cluster.end("a")
    cluster.act()
    assert cluster.states()["c"] == "running"


def test_a_rank_that_fails_ends_the_gang(path: Path) -> None:
    cluster = Cluster(path, 2)
    cluster.queue.submit(spec("gang", gpus=2))
    cluster.act()
    cluster.queue.left("gang", 1, "failed", "ValueError: bad", gpu=1)
    del cluster.on[1]["gang"]
    assert cluster.act() == ["cancel gang 0"]
    row = cluster.queue.rows()[0]
    assert (row["state"], row["error"]) == ("failed", "rank 1: ValueError: bad")


def test_a_gang_that_fails_and_does_not_stop_is_not_run_again(path: Path) -> None:
    cluster = Cluster(path, 3)
    for name in ("gang", "partner"):
        cluster.queue.submit(spec(name, gpus=3))
    cluster.act()
    cluster.queue.left("gang", 1, "failed", "ValueError: bad", gpu=1)
    assert [(action.what, action.gpu) for action in cluster.queue.actions()] == [("cancel", 0), ("cancel", 2)]
    for gpu in (0, 2):
        cluster.queue.host_lost(gpu, "it had not stopped", crashed=True, blamed="gang")
    row = cluster.queue.rows()[0]
    assert (row["state"], row["error"]) == ("failed", "rank 1: ValueError: bad")
    assert cluster.queue.jobs["partner"].crashes == 0
    cluster.open()
    assert cluster.states()["gang"] == "failed"


def test_a_gang_that_does_not_stop_to_be_suspended_is_given_up_the_third_time(path: Path) -> None:
    cluster = Cluster(path, 2)
    cluster.queue.submit(spec("gang", gpus=2))
    cluster.act()
    for attempt in (1, 2, 3):
        cluster.queue.left("gang", attempt, "suspended", gpu=1)
        cluster.queue.host_lost(0, "it had not stopped", crashed=True, blamed="gang")
        cluster.on = {0: {}, 1: {}}
        cluster.add_host(0, f"{attempt}")
        cluster.act()
    row = cluster.queue.rows()[0]
    assert (row["state"], row["error"]) == ("failed", "its host ended 3 times, at last: it had not stopped")


def test_a_gang_is_accepted_while_a_host_starts_again(path: Path) -> None:
    cluster = Cluster(path, 2)
    cluster.lose(1)
    cluster.queue.submit(spec("gang", gpus=2))
    assert cluster.act() == []
    cluster.add_host(1, "again")
    assert cluster.act() == ["start gang 0", "start gang 1"]


def test_a_gang_whose_rank_is_lost_starts_again_once(path: Path) -> None:
    """Another rank has failed, because of that."""
    cluster = Cluster(path, 2)
    cluster.queue.submit(spec("gang", gpus=2))
    cluster.act()
    for attempt in (1, 2, 3):
        assert cluster.queue.jobs["gang"].attempt == attempt
        cluster.queue.left("gang", attempt, "failed", "RuntimeError: Connection closed by peer", gpu=0)
        del cluster.on[0]["gang"]
        cluster.lose(1)
        assert cluster.queue.jobs["gang"].crashes == attempt
        cluster.add_host(1, f"{attempt}")
        cluster.act()
    row = cluster.queue.rows()[0]
    assert (row["state"], row["error"]) == ("failed", "its host ended 3 times, at last: killed")


def test_a_gang_is_cancelled_and_suspended_as_one(path: Path) -> None:
    cluster = Cluster(path, 2, policy="srsf")
    cluster.queue.submit(spec("gang", gpus=2, duration=1000))
    cluster.act()
    cluster.save("gang")
    cluster.queue.submit(spec("short", duration=10))
    assert cluster.act() == ["suspend gang 0", "suspend gang 1", "start short 0"]
    assert cluster.states() == {"gang": "suspended", "short": "running"}
    cluster.end("short")
    assert cluster.act() == ["start gang 0", "start gang 1"]
    cluster.queue.cancel("gang")
    assert cluster.act() == ["cancel gang 0", "cancel gang 1"]
    assert cluster.states()["gang"] == "cancelled"


def test_a_job_that_saves_nothing_is_not_suspended(path: Path) -> None:
    cluster = Cluster(path, 1, policy="srsf")
    cluster.queue.submit(spec("long", duration=1000))
    cluster.act()
    cluster.queue.submit(spec("short", duration=10))
    assert cluster.act() == []
    cluster.save("long")
    assert cluster.act() == ["suspend long 0", "start short 0"]


def test_higher_priorities_go_first(path: Path) -> None:
    cluster = Cluster(path, policy="fifo")
    for name, priority in (("a", "secondary"), ("b", "level-3"), ("c", "primary")):
        cluster.queue.submit(spec(name, priority=priority))
    cluster.add_host(0)
    order = []
    for _ in range(3):
        order += cluster.act()
        cluster.end(order[-1].split()[1])
    assert order == ["start c 0", "start a 0", "start b 0"]


def test_a_job_that_crashes_its_host_three_times_alone_is_given_up(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a"))
    for number in range(3):
        assert cluster.act() == ["start a 0"]
        cluster.lose(0)
        cluster.add_host(0, f"{number}")
        assert cluster.act() == (["start a 0"] if number < 2 else [])
        if number < 2:
            cluster.lose(0, crashed=False)  # with its node: nobody's fault
            cluster.add_host(0, f"{number} again")
    row = cluster.queue.rows()[0]
    assert (row["state"], row["error"]) == ("failed", "its host ended 3 times, at last: killed")


def test_a_job_that_crashed_the_process_is_blamed_and_its_partner_is_not(path: Path) -> None:
    """After three times, both had failed."""
    cluster = Cluster(path, 1)
    for name in ("guilty", "innocent"):
        cluster.queue.submit(spec(name))
    assert cluster.act() == ["start guilty 0", "start innocent 0"]
    for number in range(3):
        cluster.lose(0, blamed="guilty")
        cluster.add_host(0, f"{number}")
        assert cluster.act() == (["start guilty 0"] if number < 2 else ["start innocent 0"])
    assert cluster.states() == {"guilty": "failed", "innocent": "running"}
    innocent = cluster.queue.jobs["innocent"]
    assert (innocent.crashes, innocent.is_suspect) == (0, False)
    cluster.queue.submit(spec("third"))
    assert cluster.act() == ["start third 0"]


@pytest.mark.parametrize("compacts", [False, True])
def test_each_of_two_suspects_runs_alone_and_only_crashes_alone_count(path: Path, compacts: bool) -> None:
    """It is not known which crashed the process: after three times, both had failed."""
    cluster = Cluster(path, 1)
    for name in ("guilty", "innocent"):
        cluster.queue.submit(spec(name))
    assert cluster.act() == ["start guilty 0", "start innocent 0"]
    cluster.lose(0)
    assert [job.crashes for job in cluster.queue.jobs.values()] == [0, 0]
    if compacts:
        assert cluster.queue.compact(after=0)
    cluster.open()
    for number in range(3):
        cluster.add_host(0, f"{number}")
        assert cluster.act() == ["start guilty 0"]
        cluster.lose(0)
    cluster.add_host(0, "last")
    assert cluster.states() == {"guilty": "failed", "innocent": "suspended"}
    assert cluster.act() == ["start innocent 0"]
    assert cluster.queue.jobs["innocent"].crashes == 0
    cluster.queue.submit(spec("third"))
    assert cluster.act() == []
    assert cluster.queue.rows()[1]["error"] == "runs alone: killed"
    assert cluster.progress("innocent", 2, 0.0, 5, can_save=True, has_saved=True)
    assert cluster.act() == ["start third 0"]
    assert cluster.queue.rows()[1]["error"] == ""


def test_a_new_checkpoint_begins_the_count_of_crashes_anew(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a"))
    for number in range(6):
        assert cluster.act() == ["start a 0"]
        attempt = cluster.queue.jobs["a"].attempt
        cluster.progress("a", attempt, 0.0, number, can_save=True, has_saved=number % 2 == 1)
        cluster.lose(0)
        cluster.add_host(0, f"{number}")
        cluster.open()
        assert cluster.queue.jobs["a"].crashes == 1 + (number % 2 == 0 and number > 0)
    assert cluster.states() == {"a": "suspended"}


def test_a_crash_for_which_another_job_is_blamed_suspects_nobody(path: Path) -> None:
    """Such as one that should not have been there, and did not stop."""
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a"))
    cluster.act()
    cluster.lose(0, blamed="stray")
    assert (cluster.queue.jobs["a"].crashes, cluster.queue.jobs["a"].is_suspect) == (0, False)


def test_a_gang_that_is_a_suspect_runs_alone(path: Path) -> None:
    cluster = Cluster(path, 2)
    for name in ("gang", "other"):
        cluster.queue.submit(spec(name, gpus=2))
    assert len(cluster.act()) == 4
    cluster.lose(1, blamed="gang")
    cluster.add_host(1, "again")
    cluster.queue.submit(spec("single"))
    assert cluster.act() == ["cancel gang 0", "cancel other 0", "start gang 0", "start gang 1"]
    cluster.end("gang")
    assert {line.split()[1] for line in cluster.act()} == {"other", "single"}


def test_jobs_of_a_lost_host_go_on_elsewhere(path: Path) -> None:
    cluster = Cluster(path, 2)
    for name in "ab":
        cluster.queue.submit(spec(name))
    assert cluster.act() == ["start a 0", "start b 1"]
    cluster.lose(0, crashed=False)
    assert cluster.act() == ["start a 1"]


def test_time_in_which_the_cluster_was_down_is_no_run_time(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", duration=None))
    cluster.act()
    for _ in range(10):
        cluster.now += 10
        cluster.queue.heard(0)
    events = path.read_text()
    assert 3 <= events.count('"heard", "gpus": [0]') <= 4
    cluster.open()
    cluster.now += 1e6  # the cluster is down
    cluster.lose(0, crashed=False)
    assert 60 <= cluster.queue.rows()[0]["ran_s"] <= 100
    assert cluster.queue.spans()[0][3] - cluster.queue.spans()[0][2] <= 100
    run = cluster.queue._state.live.progress(0)[2]
    assert 60 <= run <= 100
    cluster.add_host(0, "again")
    cluster.act()
    cluster.now += 50
    cluster.queue.heard(0)
    cluster.end("a")
    assert 110 <= cluster.queue.rows()[0]["ran_s"] <= 150
    assert cluster.queue._state.learned.duration("m") == cluster.queue.rows()[0]["ran_s"]
    cluster.open()
    assert 110 <= cluster.queue.rows()[0]["ran_s"] <= 150


def test_a_job_that_ended_unheard_is_no_model_of_the_next(path: Path) -> None:
    """How long it ran is not known: neither until the scheduler came back, nor until its host was heard last."""
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", duration=None))
    cluster.act()
    cluster.now += 1e6
    cluster.queue.left("a", 1, "finished", gpu=0, heard=cluster.queue.hosts[0].heard)
    assert cluster.states() == {"a": "finished"}
    assert cluster.queue.rows()[0]["ran_s"] == 0
    assert cluster.queue._state.learned.duration("m") == 3600


def test_a_queue_of_many_models_grows_with_the_pairs_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had a table of all pairs, which each new model made anew."""
    asked, ratio = [], Learned.ratio
    monkeypatch.setattr(Learned, "ratio", lambda self, *pair: asked.append(pair) or ratio(self, *pair))
    state = QueueState(QueueSettings())
    for number in range(100):
        job = vars(spec(f"a{number}", model=f"m{number}"))
        state.apply({"event": "submit", "time": float(number), "job": job})
    state.apply({"event": "ratio", "time": 100.0, "model": "m7", "partner": "m99", "ratio": 3.0})
    state.apply({"event": "ratio", "time": 100.0, "model": "new", "partner": "m7", "ratio": 2.0})
    assert asked == [("m7", "m99"), ("new", "m7")]
    assert state.learned.pairs == set(asked)


def test_ratios_are_told_to_the_policy_one_by_one(path: Path) -> None:
    """As they are in a journal that was compacted."""
    for compacts in (False, True):
        cluster = Cluster(path.with_name(f"{compacts}"), 1)
        cluster.queue.submit(spec("a", model="x"))
        for pair in (("x", "y"), ("y", "x")):
            cluster.queue._record({"event": "ratio", "model": pair[0], "partner": pair[1], "ratio": 10.0})
        if compacts:
            assert cluster.queue.compact(after=0)
        cluster.queue.submit(spec("b", model="y"))
        cluster.queue.submit(spec("c", model="z"))
        assert cluster.act() == ["start a 0", "start c 0"]


def test_a_start_waits_until_the_job_before_has_left(path: Path) -> None:
    cluster = Cluster(path, 1, policy="srsf")
    cluster.queue.submit(spec("long", duration=1000))
    cluster.act()
    cluster.save("long")
    cluster.queue.submit(spec("short", duration=10))
    (suspend,) = cluster.queue.actions()
    assert (suspend.what, suspend.job.name) == ("suspend", "long")
    assert cluster.states()["long"] == "suspending"
    assert cluster.queue.actions() == []
    cluster.end("long", "suspended")
    assert cluster.act() == ["start short 0"]


def test_what_a_lost_host_tells_late(path: Path) -> None:
    cluster = Cluster(path, 1)
    for name in "ab":
        cluster.queue.submit(spec(name))
    cluster.act()
    cluster.lose(0)
    cluster.queue.left("a", 1, "cancelled")
    cluster.queue.left("b", 1, "finished")
    assert cluster.states() == {"a": "suspended", "b": "finished"}


def test_nothing_is_done_on_hosts_that_the_caller_cannot_reach(path: Path) -> None:
    cluster = Cluster(path, 2)
    for name in "ab":
        cluster.queue.submit(spec(name))
    assert [action.gpu for action in cluster.queue.actions({1})] == [1]
    assert cluster.queue.actions(set()) == []
    assert [action.gpu for action in cluster.queue.actions()] == [0]


def test_jobs_with_different_environments_do_not_share_a_process(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", duration=10))
    cluster.queue.submit(spec("b", duration=50, env={"env_vars": {"X": "1"}}))
    cluster.queue.submit(spec("c", duration=60, env={"env_vars": {"X": "1"}}))
    assert cluster.act() == ["start a 0"]
    cluster.end("a")
    assert cluster.act() == ["replace b 0", "start b 0", "start c 0"]


def test_measured_ratios_decide_about_the_next_pair(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", model="x"))
    cluster.act()
    for second in range(5):
        cluster.progress("a", 1, float(second), 10 * second + 1)
    cluster.queue.submit(spec("b", model="y"))
    assert cluster.act() == ["start b 0"]
    cluster.queue.compact(after=0)
    for second in range(5, 30):
        cluster.progress("a", 1, float(second), 41 + second - 5)
    row = cluster.queue.rows()[0]
    assert row["slowdown"] == pytest.approx(10)
    assert row["predicted_slowdown"] == pytest.approx(10)
    assert cluster.queue.rows()[1]["predicted_slowdown"] == 1.1  # not measured
    cluster.queue.submit(spec("c", model="y"))
    cluster.end("b")
    cluster.open()
    assert cluster.act() == []  # c would make a 10 times as slow


def test_the_start_of_a_resumed_job_is_no_step(path: Path) -> None:
    """It reports the steps of earlier attempts before it has done any."""
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", model="x"))
    cluster.act()
    cluster.save("a")
    cluster.queue.left("a", 1, "suspended", steps=50)
    cluster.on[0].clear()
    assert cluster.act() == ["start a 0"]
    for second, done in [(0, 0), (60, 0), *((60 + second, 10 * second + 1) for second in range(5))]:
        cluster.progress("a", 2, float(second), 50 + done, can_save=True, earlier_steps=50)
    cluster.queue.submit(spec("b", model="y"))
    assert cluster.act() == ["start b 0"]
    for second in range(25):
        cluster.progress("a", 2, float(65 + second), 91 + second, can_save=True, earlier_steps=50)
    row = cluster.queue.rows()[0]
    assert row["slowdown"] == pytest.approx(10)
    assert row["steps"] == 115


def test_pairs_that_were_not_measured_have_the_ratios_of_a_profile(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", model="x", ratios={"y": [1.2, 10.0]}))
    cluster.queue.submit(spec("b", model="y"))
    assert cluster.act() == ["start a 0"]  # a would make b 10 times as slow
    cluster.open()
    learned = cluster.queue._state.learned
    assert (learned.ratio("x", "y"), learned.ratio("y", "x"), learned.ratio("x", "z")) == (1.2, 10.0, 1.1)
    learned.set_ratio("y", "x", 1.5)
    assert learned.ratio("y", "x") == 1.5


def test_pairs_of_the_same_models_that_differ_do_not_fill_the_journal(path: Path) -> None:
    cluster = Cluster(path, 2)
    steps = dict.fromkeys("abcd", 0)

    def observe(seconds: int, steps_of_c: int) -> None:
        for _ in range(seconds):
            cluster.now += 1
            for name in cluster.states():
                steps[name] += steps_of_c if name == "c" else 100
                cluster.progress(name, 1, cluster.now, steps[name])

    started = []
    for names, model in (("ac", "x"), ("bd", "y")):
        for name in names:
            cluster.queue.submit(spec(name, model=model))
        started += cluster.act()
        observe(10, 100)
    assert len(started) == 4
    observe(100, 50)
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert 2 <= events.count("ratio") < 10


def test_a_scheduler_that_has_nothing_to_do_notices_another(path: Path) -> None:
    queue = Cluster(path, 1).queue
    assert queue.actions() == []
    with path.open("a") as file:
        file.write('{"event": "cut')
    with pytest.raises(Superseded):
        queue.actions()


@pytest.mark.parametrize("lost", [False, True])
def test_the_steps_of_jobs_are_kept(path: Path, lost: bool) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a"))
    cluster.act()
    if lost:
        cluster.progress("a", 1, 0.0, 20)
        cluster.lose(0)
    else:
        cluster.queue.left("a", 1, "finished", steps=20)
    for _ in range(2):
        assert cluster.queue.rows()[0]["steps"] == 20
        cluster.open()


@pytest.mark.parametrize(("compacts", "devices"), [(False, "devices"), (True, "devices"), (True, "place")])
def test_a_compacted_journal_has_the_same_state(path: Path, compacts: bool, devices: str) -> None:
    """Also one that an earlier version has compacted, which called the devices of a job its place."""
    cluster = Cluster(path, 2, policy="srsf")

    def rows() -> list[dict[str, Any]]:
        """And what the policy knows. The next report has the steps."""
        state = cluster.queue._state
        live = [[state.live.gpus(job.number), state.live.progress(job.number)] for job in state.open.values()]
        return [*({**row, "steps": 0} for row in cluster.queue.rows()), {"live": live}]

    for number in range(20):
        cluster.queue.submit(spec(f"ended{number}", duration=10.0))
        cluster.now += 5
        cluster.act()
        cluster.end(f"ended{number}")
    for name, duration, gpus in (("gang", 500.0, 2), ("long", 1500.0, 1), ("waits", 2000.0, 1)):
        cluster.queue.submit(spec(name, duration=duration, gpus=gpus))
        cluster.act()
    cluster.save("gang")
    cluster.now += 100
    before, size = rows(), path.stat().st_size
    assert not cluster.queue.compact()
    if compacts:
        assert cluster.queue.compact(after=0)
        assert path.stat().st_size < size
    assert rows() == before
    path.write_text(path.read_text().replace('"devices"', f'"{devices}"'))
    cluster.open()
    assert rows() == before
    cluster.queue.submit(spec("short", duration=10.0))
    assert cluster.act() == ["suspend gang 0", "suspend gang 1", "start long 1", "start short 0"]
    cluster.open()
    for name in ("short", "long"):
        cluster.end(name)
    assert cluster.act() == ["start gang 0", "start gang 1"]


def test_a_journal_that_cannot_be_compacted_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler ended, was started again, and ended again."""
    cluster = Cluster(path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert not cluster.queue.compact(after=1)
    assert not cluster.queue.compact(after=10_000)
    cluster.queue.submit(spec("a"))
    assert cluster.act() == ["start a 0"]
    assert cluster.queue.compact(after=1)
    cluster.open()
    assert cluster.states() == {"a": "running"}


def test_a_journal_is_compacted_before_there_are_jobs(path: Path) -> None:
    cluster = Cluster(path, 1)
    assert cluster.queue.compact(after=0)
    cluster.open()
    cluster.queue.submit(spec("a"))
    assert cluster.act() == ["start a 0"]


@pytest.mark.parametrize("policy", ["fifo", "sjf-bsbf", "pair-srsf", "tiresias"])
@pytest.mark.parametrize("compacts", [False, True])
def test_a_job_that_waits_starts_although_the_scheduler_is_killed_and_nothing_happens(
    path: Path, compacts: bool, policy: str
) -> None:
    cluster = Cluster(path, 1, policy=policy, interference=3.0)
    cluster.queue.submit(spec("a"))
    cluster.now += 65
    cluster.queue.submit(spec("b"))
    assert cluster.act() == ["start a 0"]
    cluster.end("a")
    if compacts:
        assert cluster.queue.compact(after=0)
    cluster.open()
    cluster.now += 60
    assert cluster.act() == ["start b 0"]


@pytest.mark.parametrize("compacts", [False, True])
def test_jobs_that_wait_keep_their_order_in_a_compacted_journal(path: Path, compacts: bool) -> None:
    """A device that was added since would change it."""
    cluster = Cluster(path, 2, interference=3.0)
    for name, duration, later in (("runs", 100.0, 0), ("long", 1000.0, 3200), ("short", 930.0, 0)):
        cluster.queue.submit(spec(name, duration=duration, gpus=2))
        cluster.act()
        cluster.now += later
    cluster.add_host(2)
    if compacts:
        assert cluster.queue.compact(after=0)
    cluster.end("runs")
    assert cluster.act() == ["start short 0", "start short 1"]
    cluster.open()
    assert cluster.act() == []


def test_a_job_that_the_policy_would_not_have_started_is_suspended_only_if_it_saves(path: Path) -> None:
    """Another version had the journal before."""
    cluster = Cluster(path, 1, policy="fifo")
    for name in "ab":
        cluster.queue.submit(spec(name))
    cluster.queue._record({"event": "start", "job": "b", "attempt": 1, "gpus": [0]})
    cluster.on[0]["b"] = 1
    assert cluster.act() == []
    cluster.save("b")
    assert cluster.act() == ["suspend b 0", "start a 0"]


def test_a_compacted_journal_forgets_jobs_that_ended_long_ago(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "_KEPT", 3)
    cluster = Cluster(path, 1)
    for number in range(5):
        cluster.queue.submit(spec(f"a{number}"))
        cluster.act()
        cluster.end(f"a{number}")
    assert cluster.queue.compact(after=0)
    assert list(cluster.states()) == ["a2", "a3", "a4"]
    assert {span[0] for span in cluster.queue.spans()} == {"a2", "a3", "a4"}
    cluster.open()
    assert list(cluster.states()) == ["a2", "a3", "a4"]
    assert cluster.queue.submit(spec("a0")) == "a0"


@pytest.mark.parametrize(
    "event",
    [
        {"event": "unknown", "time": 0.0},
        {"event": "start", "time": 0.0},
        {"event": "submit", "time": 0.0, "job": {**vars(spec("a")), "memory": -5}},
    ],
)
def test_a_journal_of_another_version_is_refused(path: Path, event: dict[str, Any]) -> None:
    path.write_text(f"{json.dumps(event)}\n")
    with pytest.raises(ValueError, match=f"event 1 .{event['event']}.: cannot be applied"):
        Cluster(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interference": 0.5}, "interference must be a number of at least 1, got 0.5"),
        ({"restart_cost": -1}, "restart_cost must be a number of at least 0, got -1"),
        ({"restart_cost": float("nan")}, "restart_cost must be a number of at least 0, got nan"),
        ({"memory": -5}, re.escape("memory must be a non-negative integer below 2**63, got -5")),
    ],
)
def test_settings_of_a_queue_are_checked(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QueueSettings(**settings)  # type: ignore[arg-type]


def test_step_times_leave_out_the_moments_in_which_the_partner_changes() -> None:
    times = StepTimes()
    for time, steps, partner in [(0, 0, None), (50, 1, None), (60, 101, None), (90, 111, "y"), (100, 161, "y")]:
        times.observe(time, steps, partner)
    assert times.slowdown("y") == pytest.approx(2)
    times.restart()
    times.observe(1000, 3, "y")
    assert times.slowdown("y") == pytest.approx(2)
    assert times.slowdown("z") is None


@pytest.mark.parametrize("policy", ["fifo", "sjf-bsbf", "pair-srsf", "tiresias"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_every_job_ends_once(path: Path, policy: str, seed: int) -> None:
    """Hosts crash and come back, the scheduler is killed, jobs are cancelled, at random."""
    chance = random.Random(seed)
    cluster = Cluster(path, 3, policy=policy)
    cluster.compacts = seed % 2 == 1
    names = [f"job{number}" for number in range(40)]
    for name in names:
        gpus = chance.choice([1, 1, 2]) if len(cluster.on) > 1 else 1
        cluster.queue.submit(spec(name, duration=chance.uniform(10, 500), model=chance.choice("xyz"), gpus=gpus))
        _something_happens(cluster, chance)
    for _ in range(2000):
        if all(state in ENDED for state in cluster.states().values()):
            break
        _something_happens(cluster, chance)
    states = cluster.states()
    assert sorted(states) == sorted(names)
    assert set(states.values()) <= set(ENDED)
    if cluster.compacts:
        return
    ends = [e for e in journaled(cluster) if e["event"] == "left" and e["state"] == "finished"]
    assert len({e["job"] for e in ends}) == sum(state == "finished" for state in states.values())
    assert len({(e["job"], e["gpu"]) for e in ends}) == len(ends)


def journaled(cluster: Cluster) -> list[dict[str, Any]]:
    cluster.open()
    return cluster.journal.events


def _something_happens(cluster: Cluster, chance: random.Random) -> None:
    cluster.now += chance.uniform(0, 30)
    cluster.act()
    before = cluster.states()
    running = [name for jobs in cluster.on.values() for name in jobs]
    what = chance.random()
    if what < 0.05 and len(cluster.on) > 1:
        cluster.lose(chance.choice(list(cluster.on)), crashed=chance.random() < 0.5)
    elif what < 0.15 and len(cluster.on) < 3:
        cluster.add_host(next(i for i in range(3) if i not in cluster.on), str(cluster.now))
    elif what < 0.25:
        if cluster.compacts:
            assert cluster.queue.compact(after=0)
        wanted = {name: job.wanted for name, job in cluster.queue.jobs.items()}
        cluster.open()
        assert cluster.states() == before
        assert {name: job.wanted for name, job in cluster.queue.jobs.items()} == wanted
    elif what < 0.28:
        cluster.queue.cancel(chance.choice(list(cluster.queue.jobs)))
    elif what < 0.5 and running:
        cluster.save(chance.choice(running))
    elif running:
        cluster.end(chance.choice(running))
    cluster.act()
