"""The queue of a cluster, at size: `queue` has 1,000 jobs on 64 hosts that are only played, in virtual time, with the
journal on the disk; `live` has 12 jobs on a Ray cluster of two nodes with two hosts each, beside the simulator.

The jobs of `live` are real ones (checkpoints, processes, Ray) whose steps wait most of their time, as if for a device,
so that four hosts and their pairs fit on two cores."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchshare.cluster.host_status import AttemptStatus
from torchshare.cluster.job_queue import JobQueue
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.journal import Journal
from torchshare.cluster.settings import QueueSettings
from torchshare.context.results import ENDED
from torchshare.simulation.job_trace import Trace
from torchshare.simulation.ratios import Ratios, uniform
from torchshare.simulation.simulate import Case, Setting, simulate

from record import RESULTS, write

RATIO = 1.25
HOSTS_S = 120  # in which a cluster's hosts must be up
POLICIES = ("fifo", "sjf-bsbf", "pair-srsf")


def make_trace(jobs: int, hosts: int, seed: int, mean_s: float, load: float) -> Trace:
    """Jobs of one device, of log-normal durations, that arrive `load` times as fast as hosts could run them alone."""
    chance = np.random.default_rng(seed)
    duration = chance.lognormal(0, 1, jobs)
    duration *= mean_s / duration.mean()
    return Trace(
        source="made",
        names=[f"job{number}" for number in range(jobs)],
        arrival=np.cumsum(chance.exponential(mean_s / hosts / load, jobs)),
        duration=duration,
        gpus=np.ones(jobs, dtype=np.int32),
        memory_gib=np.zeros(jobs),
        models=[""] * jobs,
    )


def spec_of(trace: Trace, index: int) -> JobSpec:
    name = trace.names[index]
    return JobSpec(name, name, name, "/", "m", duration=float(trace.duration[index]))


class Played:
    """Hosts whose jobs only take their time, which passes at once."""

    def __init__(self, trace: Trace, hosts: int, policy: str, path: Path, setting: Setting) -> None:
        self.now = 0.0
        self._trace = trace
        self._path = path
        self._setting = setting
        self._settings = QueueSettings(policy, RATIO, setting.restart_cost)
        self.decided: list[float] = []
        self.open()
        for index in range(hosts):
            self.queue.host_up("node", index, "token")
        self.left = dict(zip(trace.names, trace.duration.tolist(), strict=True))
        self.held: dict[str, float] = {}  # running jobs: the time until their work goes on

    def open(self) -> None:
        self.journal = Journal(self._path)
        self.queue = JobQueue(self.journal, self._settings, lambda: self.now)

    def restart(self) -> float:
        """Another scheduler takes over. Returns how long that took, in seconds."""
        before = self.queue.rows()
        self.journal.close()
        began = time.perf_counter()
        self.open()
        took = time.perf_counter() - began
        assert [row["state"] for row in self.queue.rows()] == [row["state"] for row in before]
        return took

    def decide(self, event: Callable[[], object]) -> None:
        began = time.perf_counter()
        event()
        while actions := self.queue.actions():
            for action in actions:
                name = action.job.name
                if action.what == "start":
                    self.held[name] = self._setting.restart_cost if action.attempt > 1 else 0.0
                    self.queue.progress(AttemptStatus(name, action.attempt, "running", 1, can_save=True), self.now)
                else:
                    del self.held[name]
                    self.queue.left(name, action.attempt, "suspended")
        self.decided.append(time.perf_counter() - began)

    def speed(self, name: str) -> float:
        return 1 / RATIO if self.queue.partner(self.queue.jobs[name]) is not None else 1.0

    def advance(self, until: float) -> str | None:
        """To that time, or to the first end before it: the job that ended."""
        ends = {name: self.now + held + self.left[name] / self.speed(name) for name, held in self.held.items()}
        first = min(ends, key=lambda name: ends[name], default=None)
        ended = first if first is not None and ends[first] <= until else None
        then = until if ended is None else ends[ended]
        for name, held in self.held.items():
            passed = then - self.now
            self.held[name] = max(0.0, held - passed)
            self.left[name] -= max(0.0, passed - held) * self.speed(name)
        self.now = then
        return ended

    def end(self, name: str) -> None:
        del self.held[name]
        self.decide(lambda: self.queue.left(name, self.queue.jobs[name].attempt, "finished"))

    def run(self, kills: int, seed: int) -> list[float]:
        """Returns the JCT of each job. At so many random arrivals a host is lost and comes back, and the scheduler is
        started again."""
        chance = random.Random(seed)
        killed = set(chance.sample(range(len(self._trace.names)), kills))
        for index, arrival in enumerate(self._trace.arrival.tolist()):
            while (ended := self.advance(arrival)) is not None:
                self.end(ended)
            spec = spec_of(self._trace, index)
            self.decide(lambda spec=spec: self.queue.submit(spec))
            if index in killed:
                self.kill(chance.choice(list(self.queue.hosts)))
        while (ended := self.advance(float("inf"))) is not None:
            self.end(ended)
        jobs = [self.queue.jobs[name] for name in self._trace.names]
        return [float(job.ended or 0) - job.submitted for job in jobs]

    def kill(self, gpu: int) -> None:
        for job in self.queue.placed(gpu):
            del self.held[job.spec.name]
        host = self.queue.hosts[gpu]
        self.decide(lambda: self.queue.host_lost(gpu, "killed", crashed=False))
        self.decide(lambda: self.queue.host_up(host.node, host.index, f"token {self.now}"))
        self.restart()


def memory_mib() -> float:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def queue(arguments: argparse.Namespace) -> dict[str, Any]:
    setting = Setting(gpus=arguments.hosts, gpus_per_node=1, restart_cost=10.0)
    trace = make_trace(arguments.jobs, arguments.hosts, 0, 600.0, 1.2)
    rows = []
    for policy in POLICIES:
        simulated = simulate(Case(trace, policy, uniform(RATIO), setting, "uniform")).jct
        for kills in (0, arguments.kills):
            with tempfile.TemporaryDirectory(dir=arguments.storage) as folder:
                path, before = Path(folder, "journal.jsonl"), memory_mib()
                played = Played(trace, arguments.hosts, policy, path, setting)
                jct = played.run(kills, 0)
                states = [row["state"] for row in played.queue.rows()]
                events = map(json.loads, path.read_text().splitlines())
                ends = [event["job"] for event in events if event.get("state") == "finished"]
                assert all(state in ENDED for state in states)
                rows.append(
                    {
                        "policy": policy,
                        "kills": kills,
                        "finished": states.count("finished"),
                        "ended_twice": len(ends) - len(set(ends)),
                        "decisions_per_s": len(played.decided) / sum(played.decided),
                        "slowest_decision_ms": 1e3 * max(played.decided),
                        "avg_jct_s": float(np.mean(jct)),
                        "median_error_vs_simulator": float(np.median(np.abs(np.array(jct) / simulated - 1))),
                        "journal_kib": path.stat().st_size / 1024,
                        "restart_s": played.restart(),
                        "memory_mib": memory_mib() - before,
                    }
                )
                played.journal.close()
            print(json.dumps(rows[-1]))
    return {"jobs": arguments.jobs, "hosts": arguments.hosts, "ratio": RATIO, "runs": rows}


def waiting_job(steps: int, step_s: float) -> Callable[[Any], None]:
    """A job that computes little and waits as if for a device."""

    def train(job: Any) -> None:
        import torch

        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.track(model=model, optimizer=optimizer)
        due = time.monotonic()
        for batch in job.batches([(torch.ones(4, 8),)] * steps):
            batch.backward(lambda x: model(x).mean())
            optimizer.step()
            optimizer.zero_grad()
            due = max(due + step_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    return train


@contextlib.contextmanager
def started(folder: str, queue: QueueSettings, device: str, nodes: int = 1, hosts_per_node: int = 1) -> Iterator[Any]:
    """A Ray cluster on this machine, with a queue, whose hosts are up: `torchshare.cluster`."""
    import ray
    from ray.cluster_utils import Cluster

    from torchshare import cluster
    from torchshare.cluster.settings import ClusterSettings

    # Ray's default of 15 would slow the jobs, but not what they are compared with.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    node = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
    local = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        ray.init(local.address, log_to_driver=False, logging_level="ERROR")
        for _ in range(nodes - 1):
            local.add_node(**node)
        cluster.up(local.address, ClusterSettings(folder, queue, device=device, hosts_per_node=hosts_per_node))
        deadline = time.monotonic() + HOSTS_S
        while sum(host["up"] for host in cluster.hosts()) < nodes * hosts_per_node:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the hosts are not up after {HOSTS_S} s: {cluster.hosts()}")
            time.sleep(0.5)
        yield cluster
    finally:
        ray.shutdown()
        local.shutdown()


def compared(policy: str, live_jct: Any, simulated: Any) -> dict[str, Any]:
    """A row of the results; prints its median error."""
    errors = np.abs(simulated / live_jct - 1)
    row = {
        "policy": policy,
        "live_jct_s": live_jct.tolist(),
        "simulated_jct_s": simulated.tolist(),
        "median_error": float(np.median(errors)),
        "avg_error": float(simulated.mean() / live_jct.mean() - 1),
    }
    print(policy, f"median error {row['median_error']:.1%}, of the average {row['avg_error']:+.1%}")
    return row


def live(arguments: argparse.Namespace) -> dict[str, Any]:
    step_s, restart_cost = 0.05, 2.0
    trace = make_trace(12, 4, 1, arguments.seconds, 2.5)
    setting = Setting(gpus=4, gpus_per_node=1, restart_cost=restart_cost)
    rows = []
    for policy in POLICIES:
        with tempfile.TemporaryDirectory(dir=arguments.storage) as folder:
            queue = QueueSettings(policy, 1.0, restart_cost)
            with started(folder, queue, "cpu", nodes=2, hosts_per_node=2) as cluster:
                warm = [cluster.submit(waiting_job(20, step_s), name=f"warm{index}", duration=9) for index in range(8)]
                for job in warm:
                    job.result(120)
                targets = [waiting_job(max(1, round(each / step_s)), step_s) for each in trace.duration.tolist()]
                jct = run_live(cluster, trace, targets, uniform(1.0))
        simulated = simulate(Case(trace, policy, uniform(1.0), setting, "uniform")).jct
        rows.append(compared(policy, jct, simulated))
    return {"nodes": 2, "hosts": 4, "step_s": step_s, "restart_cost_s": restart_cost, "runs": rows}


def run_live(cluster: Any, trace: Trace, targets: Sequence[Callable[..., Any]], ratios: Ratios) -> Any:
    """Submits each job at its arrival, with the ratios of its model. Returns the JCT of each."""
    from torchshare.cluster import client

    began = time.monotonic()
    for index, (name, target) in enumerate(zip(trace.names, targets, strict=True)):
        model, duration = trace.models[index] or name, float(trace.duration[index])
        job = client.prepared(target, name=name, model=model, threads=1, duration=duration)
        row = ratios.rows([model])[0]
        both = dict(zip(ratios.models, zip(ratios.matrix[row], ratios.matrix[:, row], strict=True), strict=False))
        time.sleep(max(0.0, began + float(trace.arrival[index]) - time.monotonic()))
        client.send([replace(job, spec=replace(job.spec, ratios=both))])
    for name in trace.names:
        cluster.job(name).result(600)
    rows = {row["name"]: row for row in cluster.jobs()}
    return np.array([rows[name]["elapsed_s"] for name in trace.names])


def plot(found: dict[str, Any], path: Path) -> None:
    """Completion times of each job: on the cluster over simulated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(found["runs"]), 4), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(found["runs"]), squeeze=False)[0], found["runs"], strict=True):
        most = 1.05 * max(*row["live_jct_s"], *row["simulated_jct_s"])
        axes.plot([0, most], [0, most], color="grey", linewidth=1)
        axes.scatter(row["simulated_jct_s"], row["live_jct_s"])
        axes.set(xlim=(0, most), ylim=(0, most), xlabel="simulated, s", ylabel="on the cluster, s")
        axes.set_title(f"{row['policy']}: median error {row['median_error']:.1%}")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("queue", "live"))
    parser.add_argument("--jobs", type=int, default=1000, metavar="N", help="of `queue` (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=64, metavar="N", help="of `queue` (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=50, metavar="N", help="of `queue` (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=15, metavar="S", help="mean of `live`'s durations")
    parser.add_argument("--storage", metavar="DIR", help="folder for the journals (default: the system's)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = queue(arguments) if arguments.what == "queue" else live(arguments)
    if arguments.what == "live":
        plot(found, arguments.output / "cluster_live.png")
    write(f"cluster_{arguments.what}", found, arguments.output)


if __name__ == "__main__":
    sys.exit(main())
