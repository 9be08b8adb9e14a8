"""Jobs that a cluster's queue gets together, and arrays of jobs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from queue_cluster import Cluster, journaled, spec
from queue_cluster import journal_path as journal_path

from torchshare.cluster.job_spec import JobSpec


def together(*specs: JobSpec) -> list[tuple[JobSpec, bool]]:
    return [(each, False) for each in specs]


def test_jobs_that_are_submitted_together_are_decided_about_together(path: Path) -> None:
    cluster = Cluster(path, 1, policy="sjf")
    last = spec("last", duration=1.0, after=["ok:short"])
    names = cluster.queue.submit_all(together(spec("long"), spec("short", duration=10.0), last))
    assert names == ["long", "short", "last"]
    assert journaled(cluster)[-1]["event"] == "submit_all"
    assert cluster.act() == ["start short 0"], "one by one, the first would have started"
    cluster.end("short")
    cluster.open()
    assert cluster.act() == ["start last 0"]


@pytest.mark.parametrize(
    ("third", "message"),
    [
        (spec("a", submission="2"), "job names must be unique; one of that name is submitted with it"),
        (spec("known", submission="2"), "job names must be unique; a job of that name is pending"),
        (spec("c", gpus=2), "gpus must be at most 1, the cluster's devices, got 2"),
        (spec("c", after=["x"]), "after names job 'x', which the queue does not have"),
        (spec("c", deadline=150.0), "deadline 2m30s would be missed: it is predicted to end after 3m20s"),
        (spec("c", duration=50.0, deadline=100.0), "deadline 1m40s would make job 'a' miss its own: it would end 30s"),
    ],
)
def test_if_one_of_the_jobs_is_refused_none_is_in_the_queue(path: Path, third: JobSpec, message: str) -> None:
    cluster = Cluster(path, 1, policy="edf")
    cluster.queue.submit(spec("known"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"^job '{third.name}': {re.escape(message)}"):
        cluster.queue.submit_all(together(spec("a", deadline=120.0), spec("b", after=["ok:a"]), third))
    assert path.read_bytes() == before
    assert cluster.states() == {"known": "pending"}


@pytest.mark.parametrize("after", [[], ["any:p"]])
def test_of_jobs_that_arrive_together_those_with_deadlines_come_first(path: Path, after: list[str]) -> None:
    """The others are let in only if they make none of them late."""
    cluster = Cluster(path, 2, policy="pair-edf", restart_cost=0.0, interference=1.5)
    if after:
        cluster.queue.submit(spec("p", duration=1000.0))
    free = spec("free", duration=10.0, after=after)
    gangs = [
        spec(name, duration=30.0, gpus=2, deadline=limit, after=after) for name, limit in (("d", 37.0), ("e", 61.0))
    ]
    cluster.queue.submit_all(together(free, *gangs))
    if after:
        cluster.queue.cancel("p")
    cluster.act()
    progress = [cluster.queue._state.live.progress(cluster.queue.jobs[name].number) for name in "de"]
    assert [deadline_dropped for *_, deadline_dropped in progress] == [False, False]
    for name in "de":
        cluster.now += 30
        cluster.end(name)
        cluster.act()
    rows = {row["name"]: row for row in cluster.queue.rows()}
    assert (rows["d"]["deadline"], rows["e"]["deadline"]) == ("met", "met")
    assert rows["free"]["state"] == "running"


@pytest.mark.parametrize("given", [{"env": {"x": {1}}}, {"fixed_time": "x"}])
def test_what_no_journal_can_hold_is_refused_before_deadlines_are_looked_at(path: Path, given: dict[str, Any]) -> None:
    cluster = Cluster(path, 1, policy="edf")
    with pytest.raises(ValueError, match=r"^job 'a': cannot be accepted: "):
        cluster.queue.submit(spec("a", deadline=1e4, **given))


def test_jobs_that_were_submitted_together_are_submitted_once(path: Path) -> None:
    """A client that gets no answer sends them again."""
    cluster = Cluster(path, 1)
    given = [(spec("a", submission="1"), True), (spec("a", submission="2", after=["ok:1"]), True)]
    for _ in range(2):
        assert cluster.queue.submit_all(given) == ["a", "a-2"]
        cluster.open()
    assert cluster.queue.jobs["a-2"].waits_for == {"a": True}
    assert cluster.queue.submit_all([]) == []
    assert cluster.queue.submit_all([(spec("b", submission="3"), True)] * 2) == ["b", "b"]


def array(name: str, count: int, at_once: int = 0, **options: Any) -> list[tuple[JobSpec, bool]]:
    return [
        (spec(f"{name}_{index}", array=name, array_id=f"id {name}", index=index, at_once=at_once, **options), False)
        for index in range(count)
    ]


def test_of_an_array_no_more_jobs_run_at_once_than_it_says(path: Path) -> None:
    cluster = Cluster(path, 3, policy="fifo")
    names = cluster.queue.submit_all(array("sweep", 5, at_once=2))
    assert names == [f"sweep_{index}" for index in range(5)]
    assert cluster.act() == ["start sweep_0 0", "start sweep_1 1"]
    assert [row["held"] for row in cluster.queue.rows()] == [False, False, True, True, True]
    cluster.queue.submit(spec("other"))
    assert cluster.act() == ["start other 2"]
    cluster.end("sweep_1")
    assert cluster.act() == ["start sweep_2 1"]
    cluster.end("sweep_0", "failed", "x")
    assert cluster.act() == ["start sweep_3 0"]
    cluster.queue.cancel("sweep_4")
    cluster.end("sweep_2")
    assert cluster.act() == []
    cluster.queue.submit_all(array("all", 4))
    assert [row["held"] for row in cluster.queue.rows()][-4:] == [False] * 4, "without a limit, all wait for devices"


@pytest.mark.parametrize("compacts", [False, True])
def test_an_array_goes_on_after_a_restart(path: Path, compacts: bool) -> None:
    cluster = Cluster(path, 2, policy="fifo")
    cluster.queue.submit(spec("data"))
    cluster.queue.submit_all(array("sweep", 4, at_once=1, after=["ok:data"]))
    for end, started in (
        ("", "data"),
        ("data", "sweep_0"),
        ("sweep_0", "sweep_1"),
        ("sweep_1", "sweep_2"),
        ("sweep_2", "sweep_3"),
    ):
        if end:
            cluster.end(end)
        if compacts:
            assert cluster.queue.compact(after=0)
        cluster.open()
        assert [each.split()[1] for each in cluster.act()] == [started]
    cluster.end("sweep_3")
    assert set(cluster.states().values()) == {"finished"}


@pytest.mark.parametrize("compacts", [False, True])
def test_a_suspended_job_keeps_its_place_in_its_array(path: Path, compacts: bool) -> None:
    cluster = Cluster(path, 1, policy="srsf")
    cluster.queue.submit_all(array("sweep", 3, at_once=1, duration=10_000.0))
    cluster.act()
    cluster.save("sweep_0")
    cluster.queue.submit(spec("short", duration=1.0))
    assert cluster.act() == ["suspend sweep_0 0", "start short 0"]
    if compacts:
        assert cluster.queue.compact(after=0)
    cluster.open()
    cluster.add_host(1)
    assert cluster.act() == ["start sweep_0 1"]
    cluster.end("short")
    assert cluster.act() == []
    assert [row["held"] for row in cluster.queue.rows() if row["name"] != "short"] == [False, True, True]


def test_the_name_of_an_array_stands_for_its_jobs(path: Path) -> None:
    cluster = Cluster(path, 2, policy="fifo")
    test = spec("test", after=["ok:sweep_0", "sweep_2"])
    cluster.queue.submit_all([*array("sweep", 3, at_once=1), *together(test)])
    cluster.queue.submit(spec("report", after=["sweep"]))
    assert list(cluster.queue.jobs["report"].waits_for) == ["sweep_0", "sweep_1", "sweep_2"]
    with pytest.raises(ValueError, match=r"^job 'sweep': that is an array; name one of its jobs, such as 'sweep_0'$"):
        cluster.queue.find("sweep")
    cluster.act()
    before = path.read_bytes().count(b"\n")
    assert [job.spec.name for job in cluster.queue.cancel("sweep")] == ["sweep_0", "sweep_1", "sweep_2"]
    assert path.read_bytes().count(b"\n") == before + 1
    assert cluster.act() == ["cancel sweep_0 0", "start report 0"]
    expected = dict.fromkeys(["sweep_0", "sweep_1", "sweep_2", "test"], "cancelled") | {"report": "running"}
    assert cluster.states() == expected
    cluster.open()
    assert cluster.states() == expected
    with pytest.raises(ValueError, match=r"^job 'late': after names job 'sweep_0', which was cancelled$"):
        cluster.queue.submit(spec("late", after=["ok:sweep"]))


def renamed(jobs: list[tuple[JobSpec, bool]], to: str, *, number: bool) -> list[tuple[JobSpec, bool]]:
    """Other submissions of the same."""
    return [
        (dataclasses.replace(each, submission=f"{to} {each.index}", array_id=each.array_id and to), number)
        for each, _ in jobs
    ]


@pytest.mark.parametrize("first", ["job", "array", "member"])
def test_a_name_is_that_of_one_job_or_array(path: Path, first: str) -> None:
    cluster = Cluster(path, 1)
    kinds = {"job": together(spec("a")), "array": array("a", 2), "member": together(spec("a_1", submission="m"))}
    cluster.queue.submit_all(kinds.pop(first))
    for kind, jobs in kinds.items():
        if {first, kind} != {"job", "member"}:
            with pytest.raises(ValueError, match=r"^job 'a(_1)?': job names must be unique; (a job|there is an array)"):
                cluster.queue.submit_all(jobs)
            base = f"{jobs[0][0].array or jobs[0][0].name}-2"
            expected = [f"{base}_0", f"{base}_1"] if kind == "array" else [base]
            for _ in range(2):
                assert cluster.queue.submit_all(renamed(jobs, kind, number=True)) == expected
                cluster.open()


def test_names_that_were_given_come_before_those_that_get_numbers(path: Path) -> None:
    cluster = Cluster(path, 1)
    numbered = [*renamed(together(spec("a")), "1", number=True), *renamed(array("a", 2), "2", number=True)]
    assert cluster.queue.submit_all([*numbered, *together(spec("a-2"), spec("a"))]) == [
        "a-3",
        "a-4_0",
        "a-4_1",
        "a-2",
        "a",
    ]
    with pytest.raises(ValueError, match=r"^job 'b': job names must be unique; one of that name is submitted with it$"):
        cluster.queue.submit_all([*array("b", 1), *together(spec("b"))])
    with pytest.raises(ValueError, match=r"^job 'x{80}': name must be a string of at most 255 characters"):
        cluster.queue.submit_all(array("x" * 254, 1))


def test_a_limit_is_that_of_an_array_without_a_deadline(path: Path) -> None:
    cluster = Cluster(path, 1)
    message = "job 'a': deadline must not be given if only 1 of its array run at once, got 9 s"
    with pytest.raises(ValueError, match=rf"^{message}$"):
        cluster.queue.submit_all(array("a", 1, at_once=1, deadline=9.0))
    with pytest.raises(ValueError, match=r"^job 'a': index and at_once must be numbers of an array, got \(0, 1\)$"):
        cluster.queue.submit(spec("a", at_once=1))


def test_the_jobs_of_an_array_are_forgotten_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchshare.cluster.job_queue._KEPT", 0)
    cluster = Cluster(path, 1, policy="fifo")
    cluster.queue.submit_all(array("s", 2))
    cluster.act()
    cluster.end("s_0", "failed", "x")
    assert cluster.queue.compact(after=0)
    with pytest.raises(ValueError, match=r"^job 'b': after names job 's_0', which has failed$"):
        cluster.queue.submit(spec("b", after=["ok:s"]))
    cluster.act()
    cluster.end("s_1")
    assert cluster.queue.compact(after=0)
    assert cluster.states() == {}
    assert cluster.queue.submit_all(renamed(array("s", 2), "again", number=True)) == ["s_0", "s_1"]
