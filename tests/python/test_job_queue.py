"""The queue of a cluster, with hosts that are only played."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from queue_cluster import Cluster, journaled, spec
from queue_cluster import journal_path as journal_path

from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Superseded
from torchshare.cluster.learned import Learned, StepTimes
from torchshare.cluster.queue_state import QueueState
from torchshare.cluster.settings import QueueSettings

GIB = 2**30


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


def splits(cluster: Cluster) -> dict[str, int]:
    return {row["name"]: row["sub_batches"] for row in cluster.queue.rows()}


def test_a_job_may_be_split_to_fit_beside_another_until_it_starts_again(path: Path) -> None:
    cluster = Cluster(path, 2, policy="sjf-bsbf", interference=1.0, memory=12 * GIB)
    large = {"memory": 8 * GIB, "fixed_memory": 0.2, "duration": 1000.0}
    cluster.queue.submit(spec("a", **large))
    cluster.queue.submit(spec("other", **large))
    assert cluster.act() == ["start a 0", "start other 1"]
    cluster.queue.submit(spec("whole", **large))
    assert cluster.act() == []
    cluster.queue.submit(spec("b", **large, sub_batches=8))
    assert cluster.act() == ["start b 0"]
    for _ in range(2):
        assert splits(cluster) == {"a": 1, "other": 1, "whole": 1, "b": 4}
        cluster.open()  # a restarted head
    assert cluster.queue.compact(after=1)
    cluster.open()
    assert cluster.act() == []
    assert splits(cluster)["b"] == 4
    cluster.end("a")
    assert cluster.act() == ["start whole 0"], "beside what a quarter of b's batches needs"
    assert splits(cluster) == {"a": 1, "other": 1, "whole": 1, "b": 4}
    cluster.end("other")
    cluster.end("whole")
    cluster.lose(0)
    assert cluster.act() == ["start b 1"]
    assert splits(cluster)["b"] == 1


@pytest.mark.parametrize(("restart_cost", "done"), [(60.0, ["suspend b 0", "start b 0"]), (1000.0, [])])
def test_a_split_job_that_is_alone_starts_again_whole_if_that_saves_more_than_it_costs(
    path: Path, restart_cost: float, done: list[str]
) -> None:
    settings = {"policy": "pair-srsf", "interference": 1.0, "memory": 12 * GIB, "restart_cost": restart_cost}
    cluster = Cluster(path, 1, **settings)
    large = {"memory": 8 * GIB, "fixed_memory": 0.2, "fixed_time": 0.1, "sub_batches": 4}
    cluster.queue.submit(spec("a", **large, duration=1000.0))
    cluster.queue.submit(spec("b", **large, duration=2000.0))
    assert cluster.act() == ["start a 0", "start b 0"]
    assert splits(cluster) == {"a": 1, "b": 4}
    for name in "ab":
        cluster.save(name)
    cluster.end("a")  # what is left of b takes 30 % longer in four sub-batches
    assert cluster.act() == done
    assert splits(cluster) == {"a": 1, "b": 1 if done else 4}
    cluster.open()
    assert cluster.act() == []


def test_a_job_is_not_split_if_it_would_end_later_than_one_after_the_other(path: Path) -> None:
    """It stays split when its partner has ended."""
    cluster = Cluster(path, 1, policy="sjf-bsbf", interference=1.0, memory=12 * GIB)
    large = {"memory": 8 * GIB, "fixed_memory": 0.2, "fixed_time": 0.1, "sub_batches": 4}
    cluster.queue.submit(spec("a", **large, duration=100.0))
    assert cluster.act() == ["start a 0"]
    cluster.queue.submit(spec("b", **large, duration=1000.0))
    assert cluster.act() == [], "30 % of 1000 s is more than the 100 s that it would wait"
    cluster.end("a")
    assert cluster.act() == ["start b 0"]
    assert splits(cluster) == {"a": 1, "b": 1}


def test_a_job_waits_for_its_predecessors(path: Path) -> None:
    cluster = Cluster(path, 1, policy="fifo")
    cluster.queue.submit(spec("a"))
    cluster.queue.submit(spec("b", after=["afterok:a"]))
    cluster.queue.submit(spec("c", after=["b", "any:a"]))
    cluster.queue.submit(spec("d"))
    assert cluster.act() == ["start a 0"]
    for _ in range(2):
        assert {row["name"]: row["after"] for row in cluster.queue.rows()} == {
            "a": [],
            "b": ["a"],
            "c": ["b", "a"],
            "d": [],
        }
        cluster.open()
    assert cluster.queue.compact(after=1)
    cluster.end("a")
    assert cluster.act() == ["start b 0"], "it was submitted before d"
    cluster.open()
    cluster.end("b", "failed", "why")
    assert cluster.act() == ["start c 0"], "any end will do"
    cluster.end("c")
    assert cluster.act() == ["start d 0"]


def test_a_job_whose_predecessor_did_not_finish_is_cancelled_with_its_name(path: Path) -> None:
    cluster = Cluster(path, 1, policy="fifo")
    for name, after in (("a", []), ("b", ["ok:a"]), ("c", ["ok:b", "ok:a"]), ("d", ["c"])):
        cluster.queue.submit(spec(name, after=after))
    cluster.act()
    cluster.end("a", "failed", "why")
    assert cluster.act() == ["start d 0"]
    errors = {row["name"]: (row["state"], row["error"]) for row in cluster.queue.rows()}
    waited = "it waited for job '{}', which {}"
    assert errors["b"] == ("cancelled", waited.format("a", "has failed"))
    assert errors["c"] == ("cancelled", waited.format("a", "has failed"))
    assert cluster.queue.row(cluster.queue.jobs["c"])["after"] == []
    with pytest.raises(ValueError, match=r"^job 'e': after names job 'b', which was cancelled$"):
        cluster.queue.submit(spec("e", after=["ok:b"]))
    cluster.queue.submit(spec("e", after=["b"]))
    assert cluster.act() == [], "fifo shares no device"


def test_a_job_whose_predecessors_end_together_is_cancelled_and_not_started(path: Path) -> None:
    cluster = Cluster(path, 1, policy="fifo")
    for name, after in (("train", []), ("eval", ["ok:train"]), ("report", ["ok:train", "any:eval"]), ("d", [])):
        cluster.queue.submit(spec(name, after=after))
    cluster.queue.cancel("train")
    assert cluster.act() == ["start d 0"]
    assert cluster.states() == dict.fromkeys(("train", "eval", "report"), "cancelled") | {"d": "running"}


@pytest.mark.parametrize("how", ["finished", "cancelled"])
def test_jobs_that_have_waited_for_the_same_one_come_to_the_policy_together(path: Path, how: str) -> None:
    cluster = Cluster(path, 1, policy="sjf")
    cluster.queue.submit(spec("a"))
    cluster.queue.submit(spec("long", after=["a"], duration=1000.0))
    cluster.queue.submit(spec("short", after=["a"], duration=10.0))
    cluster.act()
    if how == "cancelled":
        cluster.queue.cancel("a")
    else:
        cluster.end("a")
    assert cluster.act()[-1] == "start short 0"


@pytest.mark.parametrize("after", [[], ["a"]])
def test_a_job_that_has_waited_makes_none_late_either(path: Path, after: list[str]) -> None:
    """As if it came at that moment: it has no deadline itself."""
    cluster = Cluster(path, 1, policy="edf", interference=1.99)
    cluster.queue.submit(spec("a", duration=50.0))
    cluster.act()
    cluster.now += 10
    cluster.queue.submit(spec("d", duration=100.0, deadline=190.0))
    cluster.queue.submit(spec("s", duration=100.0, priority="primary", after=after))
    cluster.now += 40
    cluster.end("a")
    assert cluster.act() == ["start d 0"]


def test_a_job_that_waits_can_be_cancelled(path: Path) -> None:
    cluster = Cluster(path, 1)
    for name, after in (("a", []), ("b", ["a"]), ("c", ["ok:b"]), ("d", ["b"])):
        cluster.queue.submit(spec(name, after=after))
    cluster.queue.cancel("b")
    assert cluster.states() == {"a": "pending", "b": "cancelled", "c": "cancelled", "d": "pending"}
    cluster.act()
    cluster.queue.cancel("a")
    cluster.act()
    cluster.open()
    assert cluster.states() == dict.fromkeys("abc", "cancelled") | {"d": "running"}


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (["x"], "after names job 'x', which the queue does not have"),
        (["b"], "after names job 'b', which the queue does not have"),
        (["ok:"], "after must be '<job>', 'any:<job>' or 'ok:<job>', got 'ok:'"),
        ([5], "after must be a job's name or several, got [5]"),
    ],
)
def test_predecessors_that_cannot_be_are_refused(path: Path, after: list[Any], message: str) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"^job 'b': {re.escape(message)}$"):
        cluster.queue.submit(spec("b", after=after))
    assert path.read_bytes() == before


def test_predecessors_may_be_given_as_submissions(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", submission="1234"))
    cluster.queue.submit(spec("b", after=["ok:1234", "a"]))
    assert cluster.queue.jobs["b"].waits_for == {"a": True}


def test_a_long_chain_of_jobs_is_cancelled_at_once(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("0"))
    for number in range(1, 1500):
        cluster.queue.submit(spec(str(number), after=[f"ok:{number - 1}"]))
    cluster.queue.cancel("0")
    assert set(cluster.states().values()) == {"cancelled"}


def test_the_ends_of_predecessors_are_kept_as_long_as_they_are_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchshare.cluster.job_queue._KEPT", 0)
    cluster = Cluster(path, 1, policy="fifo")
    for name, after in (("a", []), ("b", []), ("c", ["a", "b"])):
        cluster.queue.submit(spec(name, after=after))
    cluster.act()
    cluster.end("a", "failed", "why")
    cluster.act()
    assert cluster.queue.compact(after=1)
    cluster.end("b")
    (start,) = cluster.queue.actions()
    found = [(each.name, each.state, each.error, each.outcome) for each in start.predecessors]
    assert found == [("a", "failed", "why", "a"), ("b", "finished", "", "b")]
    cluster.queue.left("c", 1, "finished", gpu=0)
    assert cluster.queue.compact(after=1)
    assert not cluster.queue.jobs


@pytest.mark.parametrize("policy", ["edf", "pair-edf"])
@pytest.mark.parametrize("how", ["finished", "cancelled"])
def test_a_job_that_has_waited_makes_none_late_even_if_it_has_a_deadline(path: Path, policy: str, how: str) -> None:
    """When its predecessors end was not known when it was accepted."""
    cluster = Cluster(path, 1, policy=policy, interference=1.99)
    cluster.queue.submit(spec("a", duration=50.0, deadline=60.0))
    assert cluster.act() == ["start a 0"]
    cluster.queue.submit(spec("hopeless", after=["a"], deadline=1.0))
    cluster.queue.submit(spec("hurts", after=["a"], deadline=155.0))
    cluster.queue.submit(spec("b", deadline=165.0))
    cluster.now += 50
    if how == "finished":
        cluster.end("a")
    else:
        cluster.queue.cancel("a")
    assert cluster.act()[-1] == "start b 0"
    assert cluster.queue.compact(after=1)
    cluster.queue.submit(spec("c", deadline=205.0))
    cluster.now += 100
    cluster.end("b")
    assert cluster.act()[-1] == "start c 0", "those whose deadlines were dropped come after it"
    deadlines = {row["name"]: row["deadline"] for row in cluster.queue.rows()}
    assert deadlines["b"] == "met" and deadlines["hopeless"] == "missed"


def test_a_deadline_that_was_dropped_is_not_in_a_new_journal(path: Path) -> None:
    cluster = Cluster(path, 1, policy="edf")
    cluster.queue.submit(spec("a"))
    cluster.queue.submit(spec("b", after=["a"], deadline=1.0))
    cluster.act()
    cluster.now += 100
    cluster.end("a")
    assert cluster.act() == ["start b 0"]
    assert cluster.queue.compact(after=1)
    cluster.lose(0, crashed=False)  # b waits again, with a new rank
    cluster.queue.submit(spec("c", deadline=1000.0))
    cluster.add_host(0, "again")
    assert cluster.act() == ["start c 0"]


def test_a_job_that_has_waited_keeps_a_deadline_that_it_can_meet(path: Path) -> None:
    cluster = Cluster(path, 1, policy="edf")
    cluster.queue.submit(spec("a", deadline=150.0))
    cluster.queue.submit(spec("b", after=["a"], deadline=250.0))
    assert cluster.act() == ["start a 0"]
    cluster.queue.submit(spec("c", duration=10.0))
    cluster.now += 100
    cluster.end("a")
    assert cluster.act() == ["start b 0"]
    cluster.now += 100
    cluster.end("b")
    assert [row["deadline"] for row in cluster.queue.rows()] == ["met", "met", None]


def test_ratios_are_not_learned_from_jobs_that_are_split(path: Path) -> None:
    cluster = Cluster(path, 1, policy="sjf-bsbf", interference=1.0, memory=12 * GIB)
    large = {"memory": 8 * GIB, "fixed_memory": 0.2, "sub_batches": 8}
    cluster.queue.submit(spec("a", **large))
    cluster.act()
    for second in range(1, 41):
        cluster.progress("a", 1, second, second)
    cluster.queue.submit(spec("b", **large, model="n"))
    assert cluster.act() == ["start b 0"]
    assert splits(cluster) == {"a": 1, "b": 4}
    for second in range(41, 101):
        cluster.progress("a", 1, second, 40 + second // 4)
        cluster.progress("b", 1, second, second)
    cluster.end("a")
    for second in range(101, 201):
        cluster.progress("b", 1, second, second)
    assert all(event["event"] != "ratio" for event in journaled(cluster))


def test_the_most_sub_batches_are_a_power_of_two(path: Path) -> None:
    cluster = Cluster(path, 1)
    for wrong in (0, 3, 256, True, 2.0):
        with pytest.raises(ValueError, match=r"^job 'a': sub_batches must be one of 1, 2, 4, .*128, got "):
            cluster.queue.submit(spec("a", sub_batches=wrong))


def test_a_job_that_would_miss_its_deadline_is_refused_and_not_in_the_journal(path: Path) -> None:
    cluster = Cluster(path, 1, policy="edf")
    cluster.queue.submit(spec("a", deadline=110.0))
    before = path.read_bytes()
    message = (
        "job 'b': deadline 2m30s would be missed: it is predicted to end after 3m20s; a later deadline, more devices "
        "or a submission when fewer jobs wait would help"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cluster.queue.submit(spec("b", deadline=150.0))
    with pytest.raises(
        ValueError,
        match=r"^job 'c': deadline 1m would make job 'a' miss its own: it would end 30s late; a later",
    ):
        cluster.queue.submit(spec("c", duration=30.0, model="new", deadline=60.0))
    assert path.read_bytes() == before
    cluster.queue.submit(spec("d", deadline=200.0))
    cluster.queue.submit(spec("e"))  # without a deadline, a job is never refused
    assert cluster.states() == dict.fromkeys("ade", "pending")


def test_deadlines_are_in_the_journal_and_met_or_missed(path: Path) -> None:
    cluster = Cluster(path, 1, policy="pair-edf", interference=2.0)
    for name, deadline in (("a", 110.0), ("b", 250.0), ("c", 310.0), ("d", None)):
        cluster.queue.submit(spec(name, deadline=deadline))

    def deadlines() -> list[str | None]:
        return [row["deadline"] for row in cluster.queue.rows()]

    assert cluster.act() == ["start a 0"]
    for _ in range(2):
        assert deadlines() == ["open", "open", "open", None]
        assert [row["deadline_s"] for row in cluster.queue.rows()] == [110.0, 250.0, 310.0, None]
        cluster.open()  # a restarted head
    with pytest.raises(ValueError, match=r"^job 'e': deadline 3m21s would make job 'b' miss its own"):
        cluster.queue.submit(spec("e", deadline=201.0))
    cluster.now += 100
    cluster.end("a")
    assert cluster.act() == ["start b 0"]
    cluster.now += 151
    assert deadlines() == ["met", "missed", "open", None]
    assert cluster.queue.compact(after=1)
    cluster.open()
    assert deadlines() == ["met", "missed", "open", None]
    cluster.end("b")
    assert cluster.act() == ["start c 0"]
    cluster.end("c", "failed")
    assert deadlines() == ["met", "missed", "missed", None]


def test_with_other_policies_a_deadline_refuses_nothing(path: Path) -> None:
    cluster = Cluster(path, 1)
    cluster.queue.submit(spec("a", deadline=1.0))
    cluster.now += 2
    assert cluster.queue.rows()[0]["deadline"] == "missed"


def test_the_forecast_changes_nothing_that_the_journal_has_not(path: Path) -> None:
    """After refused jobs with new models and envs, decisions are those that a reader of the journal makes."""
    cluster = Cluster(path, 2, policy="pair-edf")
    for number in range(12):
        cluster.now += 10
        env = {"pip": [str(number % 2)]}
        options = {"model": f"m{number}", "duration": 50.0 + 20 * (number % 5), "env": env}
        deadline = None if number % 3 == 2 else 140.0
        try:
            cluster.queue.submit(spec(f"j{number}", deadline=deadline, **options))
        except ValueError as error:
            assert "would" in str(error)
    states, wanted = cluster.states(), {name: job.wanted for name, job in cluster.queue.jobs.items()}
    assert len(states) < 12
    cluster.open()
    assert cluster.states() == states
    assert {name: job.wanted for name, job in cluster.queue.jobs.items()} == wanted
