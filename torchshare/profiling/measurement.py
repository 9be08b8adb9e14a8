"""One measurement: runs a job, alone or beside another, until it has done enough steps, and cancels it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from torchshare.context.results import ENDED
from torchshare.profiles.ops import Ops, OpTrace
from torchshare.profiles.profile import Time
from torchshare.profiles.requests import RequestTimes
from torchshare.runtime.job import Job
from torchshare.runtime.runtime import Runtime

WARM_UP_STEPS = 3  # or requests
FEWEST_STEPS = 5
_MAX_WINDOWS = 5  # how long to wait for FEWEST_STEPS, for a warm-up beside another job, or for requests
_POLL_S = 0.01

Count = Annotated[int, Field(ge=0, le=2**53)]


@dataclass(frozen=True)
class Candidate:
    """A job to measure."""

    name: str
    function: Callable[[Job], Any]
    threads: int
    seed: int = 0
    steps: int | None = None
    key: str = ""
    """Identifies what runs, by name and arguments; the code is not part of it."""


class Measurement(BaseModel):
    """What one job did in the measured window of one run. Seconds. See Note [Profiles of requests]."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    steps: list[Time]
    """Or the service times of its requests."""
    latencies: list[Time] = []
    """Latencies of its requests, if they are what it did."""
    parallel: Count = 0
    """Most requests that it had taken and not answered, at a time."""
    slo: str | None = None
    input: Time | None = None
    """How long its loop waited for requests; None if threads call it."""
    sub_batches: list[Time]
    set_up: Time
    window: Time
    memory: Count
    rows: Count
    """Rows of its largest batch; 0 if it was seen to load none."""
    per_step: float
    """Sub-batches per step."""
    uses_batches: bool
    ops: Ops | None = None
    """If every op was timed."""
    trace: Any = Field(default=None, exclude=True)
    """The same as an OpTrace, in this process only."""

    @property
    def step_s(self) -> float:
        return float(np.median(self.steps))

    def ratio(self, alone: Measurement) -> float:
        """Step time beside / alone. For a job that did no step, the window is a lower bound of its step time."""
        return (self.step_s if self.steps else self.window) / alone.step_s

    def __str__(self) -> str:
        if self.latencies:
            p50, _, p99 = (1e3 * time for time in RequestTimes.of(self.latencies, self.steps, 1, 1).latency_s)
            return (
                f"{1e3 * self.step_s:.2f} ms a request, latency p50 {p50:.2f} and p99 {p99:.2f} ms, "
                f"{self.memory / 2**20:.1f} MiB"
            )
        unknown = "" if self.rows else "; the size of its batches is not known"
        return f"{1e3 * self.step_s:.2f} ms a step, {self.memory / 2**20:.1f} MiB{unknown}"


def measured(
    candidates: list[Candidate], sub_batches: list[int | None], window: float, record_ops: bool = False
) -> list[Measurement]:
    """Runs the jobs together until each has done enough steps, or time is up. Returns what they did after all had
    warmed up."""
    with Runtime() as runtime:
        for index, (candidate, sub_batch) in enumerate(zip(candidates, sub_batches, strict=True)):
            job = runtime.submit(
                candidate.function,
                name=candidate.name,
                priority="secondary" if index else "primary",
                sub_batch=sub_batch,
                threads=candidate.threads,
                seed=candidate.seed,
                meter_memory=True,
                record_ops=record_ops,
            )
            job._context.warns_of_split = False  # the trained weights are discarded
            job._context.keeps_promises = False
        runtime.start()
        jobs = runtime.jobs
        patience = _MAX_WINDOWS * max(window, 1.0)
        if len(jobs) == 1:
            _wait(jobs, 1, 0, float("inf"), until_it_serves=True)  # until it has imported and compiled what it needs
            patience = float("inf") if jobs[0].result.steps else patience
        _wait(jobs, WARM_UP_STEPS, 0, patience)
        warm = time.monotonic()
        # The times of so many steps need one end more, which is that of the warm-up if no other step has ended since.
        steps_then = [done + (done > WARM_UP_STEPS) for done in map(_done, jobs)]
        _wait(jobs, 0, window, window)
        _wait(jobs, FEWEST_STEPS, 0, _MAX_WINDOWS * window, steps_then)
        ended = time.monotonic()
        runtime.cancel()
        results = runtime.wait()  # raises if a job failed
        events = runtime.events()
    found = []
    for job, candidate in zip(jobs, candidates, strict=True):
        own = [event for event in events if event[1] == job.name]
        each = _figures(own, warm, ended, candidate, job, record_ops)
        if len(jobs) == 1 and len(each.steps) < FEWEST_STEPS:
            if _answers(job) and not results[job.name].steps:
                what, rest = (
                    ("end", "units, got {}; a longer --window may help")
                    if results[job.name].periods
                    else ("answer", "requests, got {}; its program or another must send them meanwhile")
                )
                got = f"{_done(job)} in {results[job.name].ran_s:.1f} s"
                raise ValueError(
                    f"job '{job.name}' must {what} at least {WARM_UP_STEPS + FEWEST_STEPS} {rest.format(got)}"
                )
            raise ValueError(
                f"job '{job.name}' must do at least {WARM_UP_STEPS + FEWEST_STEPS + 1} steps, got "
                f"{results[job.name].steps} in {results[job.name].ran_s:.1f} s; a longer --window may help"
            )
        found.append(each)
    return found


def _done(job: Job) -> int:
    """Its steps, or else the requests that it has answered or the units that it has ended."""
    result = job.result
    if result.steps:
        return result.steps
    if result.periods is not None:
        return result.periods.met + result.periods.missed
    return 0 if result.requests is None else result.requests.answered


def _answers(job: Job) -> bool:
    """Whether it has begun to wait for requests, or for the releases of its units."""
    return job._context.serving is not None or job.result.periods is not None


def _wait(
    jobs: tuple[Job, ...],
    steps: int,
    least: float,
    most: float,
    since: list[int] | None = None,
    until_it_serves: bool = False,
) -> None:
    """Waits until every job has done `steps` steps and `least` seconds are over, or `most` are, or a job has ended or,
    with `until_it_serves`, waits for requests."""
    began = time.monotonic()
    since = [0] * len(jobs) if since is None else since
    while time.monotonic() - began < most and not any(job.state in ENDED for job in jobs):
        if until_it_serves and _answers(jobs[0]):
            return
        enough = all(_done(job) - before >= steps for job, before in zip(jobs, since, strict=True))
        if enough and time.monotonic() - began >= least:
            return
        time.sleep(_POLL_S)


def _figures(
    events: list[Any], warm: float, ended: float, candidate: Candidate, job: Job, has_ops: bool
) -> Measurement:
    """Extracts a job's figures from the timeline, between two instants of time.monotonic()."""
    begins = [begin / 1e9 for kind, _, begin, _, _, detail in events if kind == "state" and detail == "running"]
    ends = [end / 1e9 for kind, _, _, end, _, _ in events if kind == "step"]
    if not ends and _answers(job):
        return _requests(events, begins, warm, ended, job, _ops(candidate, job) if has_ops else (None, None))
    window = [end for end in ends[WARM_UP_STEPS - 1 :] if warm <= end <= ended]
    if len(ends) >= WARM_UP_STEPS and not any(end < warm for end in ends[WARM_UP_STEPS:]):
        window = [
            end for end in ends[WARM_UP_STEPS - 1 :] if end <= ended
        ]  # the window begins with the warm-up's last step
    pieces = [(begin / 1e9, end / 1e9) for kind, _, begin, end, _, _ in events if kind == "sub_batch"]
    context, result = job._context, job.result
    ops, trace = (_ops(candidate, job)) if has_ops else (None, None)
    return Measurement(
        steps=np.diff(window).tolist(),
        sub_batches=[end - begin for begin, end in pieces if end > warm],
        set_up=max(0.0, ends[0] - begins[0]) if ends and begins else 0.0,
        window=ended - warm,
        memory=result.memory_peak,
        rows=context.largest_batch,
        per_step=len(pieces) / max(len(ends), 1),
        uses_batches=context.uses_batches,
        ops=ops,
        trace=trace,
    )


def _requests(
    events: list[Any], begins: list[float], warm: float, ended: float, job: Job, ops: tuple[Ops | None, OpTrace | None]
) -> Measurement:
    """The figures of a job that answers requests, as `_figures`. Units of a periodic job are requests that arrive at
    their releases."""
    serving = job._context.serving
    found = [(begin / 1e9, end / 1e9, queued / 1e9) for kind, _, begin, end, queued, _ in events if kind == "request"]
    inside = [(arrived, end, queued) for arrived, end, queued in found if warm <= end <= ended]
    services = [(arrived + queued, end) for arrived, end, queued in inside]
    waits = [min(end / 1e9, ended) - max(begin / 1e9, warm) for kind, _, begin, end, _, _ in events if kind == "input"]
    changes = sorted([(taken, 1) for taken, _ in services] + [(end, -1) for _, end in services])
    return Measurement(
        steps=[max(end - taken, 1e-9) for taken, end in services],
        latencies=[max(end - arrived, 1e-9) for arrived, end, _ in inside],
        parallel=max(itertools.accumulate(change for _, change in changes), default=0),
        slo=None if serving is None else serving.slo,
        input=sum(max(0.0, wait) for wait in waits) if waits and serving is not None else None,
        sub_batches=[],
        set_up=max(0.0, found[0][1] - begins[0]) if found and begins else 0.0,
        window=ended - warm,
        memory=job.result.memory_peak,
        rows=0,
        per_step=1,
        uses_batches=False,
        ops=ops[0],
        trace=ops[1],
    )


def _ops(candidate: Candidate, job: Job) -> tuple[Ops, OpTrace]:
    """Its ops, as if to time them had cost nothing."""
    handle = job._context.handle
    trace = OpTrace(job=candidate.name, threads=candidate.threads, **handle.op_trace())
    return Ops.of(handle.ops_per_step(), 0.0, handle.op_profiles()), trace
