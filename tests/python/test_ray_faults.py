"""What is killed on a Ray cluster on this machine, and a job that does not stop."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster_jobs import equal, training
from conftest import run_one, wait_until

from torchshare import cluster

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ray[default]>=2.40'")
from ray_cluster import ALL_DONE_S, Local, is_running, submit  # noqa: E402

from torchshare.cluster.host_actor import NAMESPACE, SCHEDULER  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_process_that_is_killed(local: Local, tmp_path: Path) -> None:
    """Jobs of the host go on from their checkpoints; others do not notice."""
    marks = tmp_path / "marks"
    jobs = [submit(training(60, 0.02, number, marks), f"killed{number}") for number in range(3)]
    for job in jobs:
        wait_until(is_running(job, 20))
    device = next(host["device"] for host in cluster.hosts() if len(host["jobs"]) == 2)
    os.kill(local.pid(device), signal.SIGKILL)
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(60, 0, number)).value)
    assert sorted(job.status()["attempt"] for job in jobs) == [1, 2, 2]
    assert sum("resumes at step" in "".join(job.logs()) for job in jobs) == 2
    assert marks.read_text() == "end\n" * 3


def test_a_job_that_crashes_its_process_takes_no_partner_with_it(local: Local) -> None:
    """After three crashes, both had failed."""

    def crash(job: Any) -> None:
        import ctypes

        for _ in range(50):
            torch.ones(4).add(1)
        ctypes.string_at(0)

    jobs = [submit(training(60, 0.02, number), f"partner{number}") for number in range(3)]
    for job in jobs:
        wait_until(is_running(job, 20))
    how = f"job 'segfaults' crashed the process: Segmentation fault at {__file__}:"
    with pytest.raises(cluster.JobError, match=f"job 'segfaults' failed: its host ended 3 times, at last: {how}"):
        submit(crash, "segfaults").result(ALL_DONE_S)
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(60, 0, number)).value)
    lost = [event for event in local.journal() if event["event"] == "lost" and "segfaults" in event["steps"]]
    assert [event["blamed"] for event in lost] == ["segfaults"] * 3
    assert [len(event["steps"]) for event in lost] == [2, 1, 1]
    local.wait_for_hosts()


def test_a_scheduler_that_is_killed(local: Local) -> None:
    job = submit(training(60, 0.02), "through")
    wait_until(is_running(job))
    actor = ray.get_actor(SCHEDULER, NAMESPACE)
    later = []
    for number in range(2):
        pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        later.append(submit(training(), f"after{number}", after="through"))  # waits for the new one
    assert equal(job.result(ALL_DONE_S), run_one(training(60)).value)
    assert job.status()["attempt"] == 1
    assert all(equal(job.result(ALL_DONE_S), run_one(training()).value) for job in later)


def test_kills_at_random_moments(local: Local, tmp_path: Path) -> None:
    """Of hosts and of the scheduler. Every job ends once."""
    chance = random.Random(1)
    marks = tmp_path / "marks"
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


def test_a_node_that_is_killed(local: Local) -> None:
    jobs = [submit(training(60, 0.02, number), f"moved{number}") for number in range(4)]
    for job in jobs:
        wait_until(is_running(job, 20))
    local.ray.remove_node(local.node, allow_graceful=False)
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(60, 0, number)).value)
    assert [event["crashed"] for event in local.journal() if event["event"] == "lost"][-1] is False  # no job's fault
    local.add_node()
    local.wait_for_hosts()


def test_the_queue_goes_on_after_the_whole_cluster_was_killed(local: Local) -> None:
    jobs = [submit(training(60, 0.02, number), f"again{number}") for number in range(5)]
    for job in jobs[:4]:
        wait_until(is_running(job, 20))
    ray.shutdown()
    for node in [local.node, local.ray.head_node]:
        local.ray.remove_node(node, allow_graceful=False)
    local.ray.shutdown()
    time.sleep(1)
    local.open()
    for number, job in enumerate(jobs):
        assert equal(job.result(ALL_DONE_S), run_one(training(60, 0, number)).value)


def test_the_queue_goes_on_after_the_head_alone_was_killed(local: Local) -> None:
    """The other node's processes do not know yet, and may end their jobs."""
    jobs = [submit(training(60, 0.02, number), f"headless{number}") for number in range(5)]
    for job in jobs[:4]:
        wait_until(is_running(job, 20))
    before = local.ray
    ray.shutdown()
    before.remove_node(before.head_node, allow_graceful=False)
    local.open()
    try:
        for number, job in enumerate(jobs):
            assert equal(job.result(ALL_DONE_S), run_one(training(60, 0, number)).value)
    finally:
        for node in before.worker_nodes:
            node.kill_all_processes(check_alive=False, allow_graceful=False)
    ends = [e["job"] for e in local.journal() if e["event"] == "left" and e["state"] == "finished"]
    assert len(ends) == len(set(ends))
