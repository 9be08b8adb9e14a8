"""Jobs of a queue that have several devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from queue_cluster import Cluster, spec
from queue_cluster import journal_path as journal_path


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
