"""The queue of a cluster with actors of Ray: the hosts are actors without torch whose jobs only sleep. Adds its figures
to those of `cluster.py queue`, in which the hosts are played."""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray

from torchshare.cluster import client, connection
from torchshare.cluster.host_actor import NAMESPACE, SCHEDULER
from torchshare.cluster.host_status import AttemptStatus, HostStatus
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.scheduler_actor import SchedulerActor
from torchshare.cluster.settings import ClusterSettings, QueueSettings
from torchshare.context.results import ENDED

from record import RESULTS, write

RATIO = 1.25


class SleepingHost:
    """Jobs take the duration that they were submitted with, and more beside another."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._left: dict[tuple[str, int], float] = {}
        self._ended: dict[tuple[str, int], str] = {}
        self._at = time.monotonic()

    def _pass(self) -> None:
        now, speed = time.monotonic(), 1.0 if len(self._left) < 2 else 1 / RATIO
        for key in list(self._left):
            self._left[key] -= (now - self._at) * speed
            if self._left[key] <= 0:
                del self._left[key]
                self._ended[key] = "finished"
        self._at = now

    def start(self, spec: JobSpec, attempt: int, rank: int) -> None:
        self._pass()
        self._left[spec.name, attempt] = spec.duration or 0.0

    def stop(self, name: str, attempt: int, suspend: bool) -> None:
        self._pass()
        if self._left.pop((name, attempt), None) is not None:
            self._ended[name, attempt] = "suspended" if suspend else "cancelled"

    def status(self, forget: Iterable[tuple[str, int]]) -> HostStatus:
        self._pass()
        for key in forget:
            self._ended.pop(key, None)
        jobs = [AttemptStatus(*key, "running") for key in self._left] + [
            AttemptStatus(*key, state) for key, state in self._ended.items()
        ]
        return HostStatus(self._token, time.monotonic(), jobs, "{}")

    def save_all(self) -> None:
        pass

    def memory(self) -> float:
        return memory_mib()


class Scheduler(SchedulerActor):
    def _start(self, node: str, index: int, env: str = "{}") -> Any:
        name = f"host-{node}-{index}"
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
        return ray.remote(SleepingHost).options(**options, max_concurrency=1).remote()

    def usage(self) -> tuple[float, float]:
        """Memory in MiB, and seconds of CPU."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return memory_mib(), used.ru_utime + used.ru_stime


def memory_mib() -> float:
    """The share of this process in the memory that its pages take."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def run(arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    settings = ClusterSettings(folder, QueueSettings("pair-srsf", RATIO), device="cpu", hosts_per_node=arguments.hosts)
    options = {"name": SCHEDULER, "namespace": NAMESPACE, "lifetime": "detached", "max_concurrency": 16, "num_cpus": 0}
    scheduler = ray.remote(Scheduler).options(**options).remote(settings)
    began = time.monotonic()
    while (
        sum(host["up"] for host in client.hosts()) < arguments.hosts and time.monotonic() - began < arguments.patience
    ):
        time.sleep(0.5)
    hosts = sum(host["up"] for host in client.hosts())
    print(f"{hosts} hosts after {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    for number in range(arguments.jobs):
        name = f"job{number}"
        spec = JobSpec(name, name, name, "/", "m", duration=arguments.seconds * (0.5 + number % 100 / 100))
        connection.call("submit", spec, None, False)
    submitted = time.monotonic() - began
    actors = [ray.get_actor(f"host-{host['node']}-{host['index']}", NAMESPACE) for host in client.hosts()]
    memory = ray.get([actor.memory.remote() for actor in actors])
    while not all(row["state"] in ENDED for row in client.jobs()):
        time.sleep(1)
    took = time.monotonic() - began
    journal = [json.loads(line) for line in Path(folder, "journal.jsonl").read_text().splitlines()]
    ends = Counter(event["job"] for event in journal if event.get("state") == "finished")
    decisions = sum(event["event"] in ("submit", "start", "stop", "left") for event in journal)
    mib, cpu_s = ray.get(scheduler.usage.remote())
    return {
        "hosts": hosts,
        "jobs": arguments.jobs,
        "mean_job_s": arguments.seconds,
        "finished_once": sum(count == 1 for count in ends.values()),
        "ended_twice": sum(count > 1 for count in ends.values()),
        "submits_per_s": arguments.jobs / submitted,
        "decisions_per_s": decisions / took,
        "took_s": took,
        "at_best_s": arguments.jobs * arguments.seconds / hosts / (2 / RATIO),
        "scheduler_mib": mib,
        "scheduler_cpu_s": cpu_s,
        "host_mib": {"median": statistics.median(memory), "max": max(memory)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, metavar="N")
    parser.add_argument("--hosts", type=int, default=64, metavar="N")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="mean of the jobs' durations")
    parser.add_argument("--patience", type=float, default=180.0, metavar="S", help="for all hosts to be up")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    arguments = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run(arguments, folder)
        finally:
            ray.shutdown()
    print(json.dumps(found, indent=2))
    write("cluster_actors", found, arguments.output)


if __name__ == "__main__":
    main()
