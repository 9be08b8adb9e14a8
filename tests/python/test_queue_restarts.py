"""A scheduler that ends and goes on from its journal, whole or compacted."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from queue_cluster import Cluster, journaled, spec
from queue_cluster import journal_path as journal_path

from torchshare.cluster import job_queue
from torchshare.cluster.journal import Journal
from torchshare.context.results import ENDED


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


def test_ranks_of_an_earlier_version_are_made_anew(path: Path) -> None:
    """It had aged jobs 16 times faster: jobs of its snapshot would have waited behind all later ones for months."""
    cluster = Cluster(path, 1, policy="pair-srsf")

    def ranks() -> list[float]:
        return [cluster.queue._state.live.progress(job.number)[5] for job in cluster.queue._state.open.values()]

    for name in ("runs", "waits"):
        cluster.queue.submit(spec(name, duration=5000.0, model=name))
        cluster.act()
        cluster.now += 1000
    before = ranks()
    assert cluster.queue.compact(after=0)
    snapshot = json.loads(path.read_text())
    for job in snapshot["jobs"]:
        job["live"][0][5] += 1e6
    for expected in ([rank + 1e6 for rank in before], before):
        path.write_text(json.dumps(snapshot) + "\n")
        cluster.open()
        assert ranks()[1] == expected[1]
        snapshot.pop("ranks", None)


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


DEVICE = 12 * 2**30


@pytest.mark.parametrize("policy", ["fifo", "sjf-bsbf", "pair-srsf", "tiresias"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_every_job_ends_once(path: Path, policy: str, seed: int) -> None:
    """Hosts crash and come back, the scheduler is killed, jobs are cancelled, at random. From the third seed on, jobs
    may be split to share a device's memory; from the fifth on, they wait for others, and fail, and some are submitted
    together, also as arrays."""
    chance = random.Random(seed)
    cluster = Cluster(path, 3, policy=policy, memory=DEVICE if seed > 1 else 0)
    cluster.fails = 0.1 if seed > 3 else 0.0
    cluster.compacts = seed % 2 == 1
    names: list[str] = []
    for name in [f"job{number}" for number in range(40)]:
        gpus = chance.choice([1, 1, 2]) if len(cluster.on) > 1 else 1
        given = {"duration": chance.uniform(10, 500), "model": chance.choice("xyz"), "gpus": gpus}
        if seed > 1:
            given |= {"memory": chance.randint(DEVICE // 8, DEVICE), "sub_batches": chance.choice([1, 4, 64])}
        known = list(cluster.queue.jobs)
        if seed > 3:
            awaited = chance.sample(known, min(len(known), chance.randint(0, 3)))
            given["after"] = [chance.choice(["any:", "ok:"]) + each for each in awaited]
        kind = chance.choice(["one", "two", "array"]) if seed > 3 else "one"
        at_once = chance.choice([0, 1, 2])
        try:
            names += _submit(cluster, kind, name, given, at_once)
        except ValueError as error:
            assert re.search("after names job 'job[0-9_]+b?', which (has failed|was cancelled)$", str(error))
            names += _submit(cluster, kind, name, {**given, "after": known[:2]}, at_once)
        _something_happens(cluster, chance)
    for _ in range(2000):
        if all(state in ENDED for state in cluster.states().values()):
            break
        _something_happens(cluster, chance)
    states = cluster.states()
    assert sorted(states) == sorted(names)
    assert set(states.values()) <= set(ENDED)
    for job in cluster.queue.jobs.values():
        broken = [each for each in job.spec.after if each[:3] == "ok:" and states[each[3:]] != "finished"]
        assert not broken or (job.state, job.attempt) == ("cancelled", 0)
    if cluster.compacts:
        return
    ends = [e for e in journaled(cluster) if e["event"] == "left" and e["state"] == "finished"]
    assert len({e["job"] for e in ends}) == sum(state == "finished" for state in states.values())
    assert len({(e["job"], e["gpu"]) for e in ends}) == len(ends)


def _submit(cluster: Cluster, kind: str, name: str, given: dict[str, Any], at_once: int) -> list[str]:
    specs = [spec(name, **given)]
    if kind == "two":
        specs.append(spec(f"{name}b", after=[f"ok:{name}"]))
    elif kind == "array":
        array = {"array": name, "array_id": name, "at_once": at_once}
        specs = [spec(f"{name}_{index}", **given, **array, index=index) for index in range(4)]
    return cluster.queue.submit_all([(each, False) for each in specs])


def places(cluster: Cluster) -> dict[str, tuple[Any, ...]]:
    return {name: (job.wanted, job.wanted_split, job.split) for name, job in cluster.queue.jobs.items()}


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
        wanted = places(cluster)
        cluster.open()
        assert cluster.states() == before
        assert places(cluster) == wanted
    elif what < 0.28:
        cluster.queue.cancel(chance.choice(list(cluster.queue.jobs)))
    elif what < 0.5 and running:
        cluster.save(chance.choice(running))
    elif running:
        cluster.end(chance.choice(running), "failed" if chance.random() < cluster.fails else "finished")
    cluster.act()
    for name, jobs in cluster.queue._state.arrays.items():
        at_once, entered = jobs[0].spec.at_once, [job for job in jobs if job.has_entered and not job.outcome]
        held = [job for job in jobs if not (job.has_entered or job.outcome or job.waits_for)]
        assert len(entered) <= (at_once or len(jobs)), name
        assert not held or len(entered) == at_once, name
    for host in cluster.queue.hosts.values():
        needed = [job.spec.memory_in(job.split) or 0 for job in host.jobs.values()]
        assert sum(needed) <= DEVICE + len(needed)  # each is rounded up
