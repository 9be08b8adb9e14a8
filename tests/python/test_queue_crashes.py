"""Jobs of a queue that crash their hosts, and hosts that are lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from queue_cluster import Cluster, spec
from queue_cluster import journal_path as journal_path


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


def test_what_a_lost_host_tells_late(path: Path) -> None:
    cluster = Cluster(path, 1)
    for name in "ab":
        cluster.queue.submit(spec(name))
    cluster.act()
    cluster.lose(0)
    cluster.queue.left("a", 1, "cancelled")
    cluster.queue.left("b", 1, "finished")
    assert cluster.states() == {"a": "suspended", "b": "finished"}
