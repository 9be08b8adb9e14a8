"""Runs cluster policies over traces in virtual time, and summarizes the outcomes."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchshare import _core
from torchshare.simulation.job_trace import LARGEST_SPLIT, Trace, predecessors
from torchshare.simulation.ratios import Ratios

SMALL_JOB_GPUS = 4  # a job with at most so many GPUs counts as small
_CHUNK = 2_000  # simulated instants between checks for progress and Ctrl-C
_MAX_SWEEP = 10_000  # values
_ROUNDING = 1e-9  # of times, relative, as in the simulator
COUNTS = ("jobs", "preemptions", "deadlines", "accepted", "rejected", "met", "missed", "unreached", "interruptions")
"""The figures that are counts: those of several traces are added."""

Column = NDArray[np.float64]
Span = tuple[int, float, float, list[int]]  # job, begin, end, GPUs
Usage = tuple[float, int, int, int]  # time, GPUs with a job, GPUs with two, waiting jobs


@dataclass(frozen=True)
class Setting:
    """The cluster, and the knowledge of policies."""

    gpus: int = 64
    gpus_per_node: int = 4
    gpu_memory_gib: float = 0.0  # 0: unlimited
    # Of jobs whose trace does not say it:
    fixed_memory: float = 0.3  # m0 / (m0 + m1 B): the fraction of memory that does not scale with the sub-batch
    fixed_time: float = 0.05  # alpha / (alpha + beta B): the cost of each further sub-batch / step time
    largest_split: int = LARGEST_SPLIT  # maximum number of sub-batches; 1: only whole batches share
    restart_cost: float = 10.0  # seconds
    rank_by_path: bool = False  # pair-srsf ranks a job with the longest chain of jobs that waits for it
    fair_half_life: float = 0.0  # seconds, of the use by which users come first; 0: all users are one
    failures: _core.Failures | None = None
    checkpoint_every: float = math.inf  # seconds of a job's work, after its start
    estimate_error: float | None = 0.0  # sigma of the log-normal error of estimates; None: durations unknown
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """One simulation to run."""

    trace: Trace
    policy: str
    ratios: Ratios
    setting: Setting
    interference: str  # name of the ratios in the output
    record: bool = False  # record spans and usage, for a plot or a timeline


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case. Columns have one entry per job of the trace."""

    case: Case
    figures: dict[str, float]  # see `figures_of`
    jct: Column  # infinite for a job that was rejected
    spans: list[Span]
    usage: list[Usage]
    user_gpu_s: dict[str, float] = field(default_factory=dict)  # GPU-seconds of each user; empty without users


def make_cluster(trace: Trace, ratios: Ratios, setting: Setting, record_spans: bool = False) -> _core.Cluster:
    """A cluster before the first arrival of the trace. Raises ValueError if trace, ratios and setting do not fit."""
    options = _core.ClusterOptions()
    options.gpus, options.gpus_per_node = setting.gpus, setting.gpus_per_node
    options.gpu_memory_gib = setting.gpu_memory_gib
    options.largest_split = setting.largest_split
    options.restart_cost = setting.restart_cost
    options.rank_by_path = setting.rank_by_path
    options.fair_half_life = setting.fair_half_life
    options.checkpoint_every = setting.checkpoint_every
    options.durations_known = setting.estimate_error is not None
    options.record_spans = record_spans
    jobs = len(trace.names)
    error = np.random.default_rng(setting.seed).lognormal(0.0, setting.estimate_error or 0.0, jobs)
    return _core.Cluster(
        options,
        len(ratios.matrix),
        ratios.matrix.ravel().tolist(),
        arrival=trace.arrival,
        duration=trace.duration,
        gpus=trace.gpus,
        memory_gib=trace.memory_gib,
        model=ratios.rows(trace.models),
        estimate=trace.duration * error,
        fixed_memory=_known(trace.fixed_memory, setting.fixed_memory, jobs),
        fixed_time=_known(trace.fixed_time, setting.fixed_time, jobs),
        sub_batches=np.full(jobs, LARGEST_SPLIT) if trace.sub_batches is None else trace.sub_batches,
        deadline=np.full(jobs, np.inf) if trace.deadline is None else trace.deadline,
        user=np.zeros(jobs, np.int32) if trace.users is None else np.unique(trace.users, return_inverse=True)[1],
    )


def _known(column: Column | None, default: float, jobs: int) -> Column:
    return np.full(jobs, default) if column is None else np.where(np.isnan(column), default, column)


def simulate(case: Case, progress: Callable[[int], object] = lambda ended: None) -> Outcome:
    """Simulates one case. Calls `progress(number of ended jobs)` regularly, which may raise to stop it.
    Raises ValueError for a job that failures keep from ending."""
    cluster = make_cluster(case.trace, case.ratios, case.setting, case.record)
    after = predecessors(case.trace)
    failures = case.setting.failures or _core.Failures()
    simulator = _core.Simulator(cluster, case.policy, after, failures, record_usage=case.record)
    try:
        while simulator.run(_CHUNK):
            progress(simulator.ended)
    except RuntimeError as error:
        job = re.match(r"job (\d+) ", str(error))
        if job is None:
            raise
        raise ValueError(f"job '{case.trace.names[int(job[1])]}' {str(error)[job.end() :]} (--failures)") from None
    progress(simulator.ended)
    jobs = simulator.jobs()
    figures = figures_of(case, jobs, simulator.busy_gpu_seconds)
    figures |= failure_figures(case, jobs, simulator.away_gpu_seconds)
    jct = jobs["ended"] - case.trace.arrival
    return Outcome(case, figures, jct, simulator.spans(), simulator.usage(), user_gpu_seconds(case.trace, jobs))


def figures_of(case: Case, jobs: dict[str, Column], busy_gpu_seconds: float) -> dict[str, float]:
    """The figures of an outcome, in seconds, except: gpu_utilization, the fraction of GPU time with a job on the GPU,
    from the first arrival to the last end; shared_fraction, the fraction of running time beside a partner; preemptions
    and jobs, which are counts. avg_queue_s is the wait since a job was eligible. Those about completion are of the jobs
    that have run. See `deadline_figures` and `dependency_figures`."""
    trace = case.trace
    ran = np.isfinite(jobs["ended"])
    jct = (jobs["ended"] - trace.arrival)[ran]
    makespan = float(jobs["ended"][ran].max() - trace.arrival.min()) if ran.any() else 0.0
    small = trace.gpus[ran] <= SMALL_JOB_GPUS
    return {
        "avg_jct_s": _of(np.mean, jct),
        "median_jct_s": _of(np.median, jct),
        "p99_jct_s": _of(lambda times: np.percentile(times, 99), jct),
        "max_jct_s": _of(np.max, jct),
        "avg_jct_small_s": _of(np.mean, jct[small]),
        "avg_jct_large_s": _of(np.mean, jct[~small]),
        "makespan_s": makespan,
        "avg_queue_s": _of(np.mean, jobs["waited"][ran]),
        "gpu_utilization": busy_gpu_seconds / (makespan * case.setting.gpus) if makespan else 0.0,
        "preemptions": int((jobs["preemptions"] - jobs["losses"]).sum()),
        "shared_fraction": float(jobs["shared"].sum() / jobs["run"].sum()) if ran.any() else 0.0,
        "jobs": len(trace.names),
        **deadline_figures(trace, jobs["ended"]),
        **dependency_figures(trace, jobs),
    }


def _of(figure: Callable[[Column], Any], values: Column) -> float:
    """The figure of the values; 0 if there are none."""
    return float(figure(values)) if len(values) else 0.0


def deadline_figures(trace: Trace, ended: Column) -> dict[str, float]:
    """Empty if the trace has no deadlines. Else counts of the jobs with one: deadlines = accepted + rejected, and
    accepted = met + missed; and how late the accepted ones have ended, in seconds: tardiness, which is 0 if in time."""
    if trace.deadline is None:
        return {}
    own = np.isfinite(trace.deadline)
    accepted = own & np.isfinite(ended)
    due = (trace.arrival + trace.deadline)[accepted]
    late = np.maximum(0.0, ended[accepted] - due)
    late[late <= _ROUNDING * due] = 0.0
    return {
        "deadlines": int(own.sum()),
        "accepted": int(accepted.sum()),
        "rejected": int((own & ~accepted).sum()),
        "met": int((late == 0).sum()),
        "missed": int((late > 0).sum()),
        "avg_tardiness_s": _of(np.mean, late),
        "max_tardiness_s": _of(np.max, late),
    }


def dependency_figures(trace: Trace, jobs: dict[str, Column]) -> dict[str, float]:
    """Empty if no job waits for another. Else the mean time from the arrival of a job until it is eligible, because it
    has arrived and its predecessors have ended, in seconds, and the mean wait from its arrival, which is that and
    `avg_queue_s` together; and a count: unreached, jobs without a deadline of their own that never run, because they
    wait for a rejected one."""
    if trace.after is None:
        return {}
    ran = np.isfinite(jobs["ended"])
    blocked = (jobs["eligible"] - trace.arrival)[ran]
    own = np.zeros(len(ran), bool) if trace.deadline is None else np.isfinite(trace.deadline)
    return {
        "avg_blocked_s": _of(np.mean, blocked),
        "avg_wait_s": _of(np.mean, blocked + jobs["waited"][ran]),
        "unreached": int((~ran & ~own).sum()),
    }


def user_gpu_seconds(trace: Trace, jobs: dict[str, Column]) -> dict[str, float]:
    """The GPU-seconds in which the jobs of each user ran, in order of names; two jobs on one GPU count both."""
    if trace.users is None:
        return {}
    names, user = np.unique(trace.users, return_inverse=True)
    return dict(zip(map(str, names), np.bincount(user, jobs["run"] * trace.gpus).tolist(), strict=True))


def failure_figures(case: Case, jobs: dict[str, Column], away_gpu_seconds: float) -> dict[str, float]:
    """Empty without failures. Else: interruptions, a count of jobs that were running where a GPU left; lost_gpu_s, the
    work that they did once more, in GPU-seconds alone; gpus_away, the fraction of GPU time away, until the last end."""
    if case.setting.failures is None:
        return {}
    ran = jobs["ended"][np.isfinite(jobs["ended"])]
    whole = case.setting.gpus * _of(np.max, ran)
    return {
        "interruptions": int(jobs["losses"].sum()),
        "lost_gpu_s": float((jobs["lost_work"] * case.trace.gpus).sum()),
        "gpus_away": away_gpu_seconds / whole if whole else 0.0,
    }


def simulate_all(
    cases: Sequence[Case], progress: Callable[[int, int], object] = lambda case, ended: None
) -> list[Outcome]:
    """Simulates all cases, one per core at a time. Calls `progress(index of a case, number of its ended jobs)`."""
    stopped = False

    def run(index: int) -> Outcome:
        def report(ended: int) -> None:
            if stopped:
                raise KeyboardInterrupt
            progress(index, ended)

        return simulate(cases[index], report)

    ended: SimpleQueue[Future[Outcome]] = SimpleQueue()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            with _ctrl_c_waits():
                futures = [pool.submit(run, index) for index in range(len(cases))]
                for future in futures:
                    future.add_done_callback(ended.put)
            for _ in futures:
                ended.get().result()  # unlike a future that has not ended, the queue is no lock that Ctrl-C leaves held
            return [future.result() for future in futures]
        except BaseException:
            stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Until the end of the block. Inside `submit`, it might leave a lock held that the threads of the pool wait for."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def summarize(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per policy, interference and setting: the figures, averaged over the traces; for several traces, also
    their minimum and maximum as NAME_spread."""
    rows = []
    for _, group in itertools.groupby(outcomes, key=_row_key):
        same = list(group)
        case = same[0].case
        row: dict[str, Any] = {
            "policy": case.policy,
            "interference": case.interference,
            "restart_cost_s": case.setting.restart_cost,
            "estimate_error": case.setting.estimate_error,
            **({} if case.trace.load is None else {"load": case.trace.load}),
            "traces": len(same),
        }
        for name in dict.fromkeys(name for outcome in same for name in outcome.figures):
            values = [outcome.figures[name] for outcome in same if name in outcome.figures]
            row[name] = sum(values) if name in COUNTS else float(np.mean(values))
            if len(same) > 1:
                row[f"{name}_spread"] = [min(values), max(values)]
        users = sorted({user for outcome in same for user in outcome.user_gpu_s})
        if users:
            row["user_gpu_s"] = {user: sum(each.user_gpu_s.get(user, 0.0) for each in same) for user in users}
        rows.append(row)
    return rows


def swept(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The settings in which the rows of `summarize` differ."""
    settings = ("interference", "restart_cost_s", "estimate_error", "load")
    return [name for name in settings if len({row.get(name) for row in rows}) > 1]


def _row_key(outcome: Outcome) -> tuple[object, ...]:
    case = outcome.case
    return (
        case.policy,
        case.interference,
        case.setting.restart_cost,
        str(case.setting.estimate_error),
        case.trace.load,
    )


@dataclass(frozen=True)
class Sweep:
    """A parameter and its values."""

    name: str
    values: list[float]

    NAMES = ("interference", "restart-cost", "estimate-error", "load")

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Parses NAME=FROM:TO:STEP, both ends included. Raises ValueError."""
        name, _, numbers = text.partition("=")
        try:
            first, last, step = map(float, numbers.split(":"))
            count = round((last - first) / step)
        except (ValueError, ZeroDivisionError, OverflowError):
            count = -1
        if count >= _MAX_SWEEP:
            raise ValueError(f"--sweep must have at most {_MAX_SWEEP} values, got {text}")
        if name not in cls.NAMES or count < 0 or step <= 0:
            raise ValueError(f"--sweep must be NAME=FROM:TO:STEP with NAME one of {', '.join(cls.NAMES)}, got {text}")
        return cls(name, [round(first + index * step, 9) for index in range(count + 1)])

    def apply(self, setting: Setting, value: float) -> Setting:
        """The setting with this value; interference and the load of generated jobs are not part of a setting."""
        if self.name == "restart-cost":
            return replace(setting, restart_cost=value)
        return replace(setting, estimate_error=value) if self.name == "estimate-error" else setting
