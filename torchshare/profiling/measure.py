"""Measures jobs for their profiles: each alone with 1, 2, 4, ... sub-batches, then beside another."""

from __future__ import annotations

import bisect
import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torchshare.context.checks import check_count
from torchshare.context.results import ENDED
from torchshare.profiles.ops import Ops, OpTrace
from torchshare.profiles.profile import (
    Alone,
    Beside,
    Partner,
    Profile,
    Spread,
    code_digest,
    device_name,
)
from torchshare.profiling.fit import fit
from torchshare.runtime.job import Job
from torchshare.runtime.runtime import Runtime

WARM_UP_STEPS = 3
FEWEST_STEPS = 5
_MAX_WINDOWS = 5  # how long to wait for FEWEST_STEPS, or for a warm-up beside another job
_POLL_S = 0.01

Report = Callable[[str], None]


@dataclass(frozen=True)
class Candidate:
    """A job to measure."""

    name: str
    function: Callable[[Job], Any]
    threads: int
    seed: int = 0
    steps: int | None = None


@dataclass
class _Run:
    """What one job did in the measured window of one run."""

    steps: list[float]
    sub_batches: list[float]
    set_up: float
    window: float
    memory: int
    rows: int
    per_step: float  # sub-batches per step
    job: Job


@dataclass
class _Measured:
    """The runs of a job alone, by number of sub-batches."""

    batch: int = 0
    splits: bool = True  # its loop runs in sub-batches where it is given a size
    alone: dict[int, list[_Run]] = field(default_factory=dict)
    recorded: list[_Run] = field(default_factory=list)  # alone, in whole batches, with every op timed

    def latest_step(self, sub_batches: int) -> float:
        return float(np.median(self.alone[sub_batches][-1].steps))


def profile(
    function: Callable[[Job], Any],
    partner: Callable[[Job], Any] | None = None,
    *,
    name: str | None = None,
    partner_name: str | None = None,
    threads: int | None = None,
    partner_threads: int | None = None,
    steps: int | None = None,
    splits: int = 3,
    window: float = 2.0,
    rounds: int = 2,
    seed: int = 0,
) -> Profile:
    """Measures a job alone and, as the primary, beside a secondary `partner`.

    Each measurement starts the job again and cancels it at the end. The job must not pass `sub_batch` to `batches`.

    Args:
        function: as for `Runtime.submit`.
        name, partner_name: default: the functions' names.
        threads, partner_threads: intra-op threads. Default: `torch.get_num_threads()`.
        steps: steps of the whole job, for plans.
        splits: number of sub-batch sizes to measure: the whole batch, 1/2, 1/4, ...
        window: seconds of each measurement, after the warm-up.
        rounds: repetitions of all measurements; ratios compare runs of the same round.

    Raises:
        ValueError: for invalid arguments, a job that is too short, or one that splits its own batches.
        JobFailed: if the job fails.
    """
    candidates = [_candidate(function, name, threads, seed, steps)]
    if partner is not None:
        candidates.append(_candidate(partner, partner_name, partner_threads, seed, None))
    profiles, _ = measure(candidates, splits=splits, window=window, rounds=rounds)
    return profiles[0]


def _candidate(
    function: Callable[[Job], Any], name: str | None, threads: int | None, seed: int, steps: int | None
) -> Candidate:
    name = getattr(function, "__name__", "job") if name is None else name
    check_count(name, "steps", steps)
    return Candidate(name, function, torch.get_num_threads() if threads is None else threads, seed, steps)


def measure(
    candidates: list[Candidate], *, splits: int, window: float, rounds: int, report: Report = lambda line: None
) -> tuple[list[Profile], list[OpTrace]]:
    """Measures one job, or a primary and a secondary; the first profile has the pair's ratios. See `profile`."""
    if not 1 <= splits <= 16:
        raise ValueError(f"splits must be from 1 to 16, got {splits}")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    if not 0 < window < float("inf"):
        raise ValueError(f"window must be a positive number of seconds, got {window}")
    if len({candidate.name for candidate in candidates}) < len(candidates):
        raise ValueError(f"job names must differ, both are '{candidates[0].name}'")
    measured = [_Measured() for _ in candidates]
    pairs: dict[tuple[int, int], list[tuple[float, float, bool]]] = {}
    for number in range(rounds):
        for candidate, known in zip(candidates, measured, strict=True):
            for pieces in _pieces(known, splits):
                run = _run([candidate], [_sub_batch(known, pieces)], window)[0]
                _check_split(candidate, run, pieces)
                known.batch = max(known.batch, run.rows)
                known.splits = run.job._context.uses_batches
                known.alone.setdefault(pieces, []).append(run)
                report(f"round {number + 1}: {candidate.name} alone in {pieces}: {_shown(run)}")
            run = _run([candidate], [None], window, record_ops=True)[0]
            known.recorded.append(run)
            report(f"round {number + 1}: {candidate.name} alone, every op timed: {_shown(run)}")
        if len(candidates) == 2:
            for combination in _combinations(measured, splits):
                sizes = [_sub_batch(known, pieces) for known, pieces in zip(measured, combination, strict=True)]
                runs = _run(candidates, sizes, window)
                own, other = (
                    _ratio(run, known.latest_step(pieces))
                    for run, known, pieces in zip(runs, measured, combination, strict=True)
                )
                starved = any(not run.steps for run in runs)
                pairs.setdefault(combination, []).append((own, other, starved))
                report(
                    f"round {number + 1}: {candidates[0].name} in {combination[0]} beside {candidates[1].name} in "
                    f"{combination[1]}: ratios {own:.2f} and {other:.2f}"
                )
    profiles = [_make_profile(candidate, known) for candidate, known in zip(candidates, measured, strict=True)]
    if len(candidates) == 2:
        partner = Partner(job=candidates[1].name, role="primary", beside=[_beside(k, v) for k, v in pairs.items()])
        profiles[0] = profiles[0].model_copy(update={"partners": [partner]})
    return profiles, [_trace(candidate, known) for candidate, known in zip(candidates, measured, strict=True)]


def _pieces(known: _Measured, splits: int) -> Iterator[int]:
    """Numbers of sub-batches: 1, 2, 4, ...; at most `splits` of them, and at most the rows of a batch."""
    for k in range(splits):
        if k == 0 or (known.splits and 2**k <= known.batch):
            yield 2**k


def _combinations(measured: list[_Measured], splits: int) -> Iterator[tuple[int, int]]:
    """Each job in 1, 2, 4, ... sub-batches beside the other in whole batches."""
    for pieces in _pieces(measured[0], splits):
        yield pieces, 1
    for pieces in list(_pieces(measured[1], splits))[1:]:
        yield 1, pieces


def _sub_batch(known: _Measured, pieces: int) -> int | None:
    return None if pieces == 1 else -(-known.batch // pieces)


def _run(
    candidates: list[Candidate], sub_batches: list[int | None], window: float, record_ops: bool = False
) -> list[_Run]:
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
        runtime.start()
        jobs = runtime.jobs
        _wait(jobs, WARM_UP_STEPS, 0, _MAX_WINDOWS * max(window, 1.0) if len(jobs) > 1 else float("inf"))
        warm = time.monotonic()
        steps_then = [job.result.steps for job in jobs]
        _wait(jobs, 0, window, window)
        _wait(jobs, FEWEST_STEPS, 0, _MAX_WINDOWS * window, steps_then)
        ended = time.monotonic()
        runtime.cancel()
        results = runtime.wait()  # raises if a job failed
        events = runtime.events()
    runs = []
    for job in jobs:
        own = [event for event in events if event[1] == job.name]
        run = _figures(own, warm, ended, results[job.name].memory_peak, job)
        if len(jobs) == 1 and len(run.steps) < FEWEST_STEPS:
            raise ValueError(
                f"job '{job.name}' must do at least {WARM_UP_STEPS + FEWEST_STEPS + 1} steps, got "
                f"{results[job.name].steps} in {results[job.name].ran_s:.1f} s; a longer --window may help"
            )
        runs.append(run)
    return runs


def _wait(jobs: tuple[Job, ...], steps: int, least: float, most: float, since: list[int] | None = None) -> None:
    """Waits until every job has done `steps` steps and `least` seconds are over, or `most` are, or a job has ended."""
    began = time.monotonic()
    since = [0] * len(jobs) if since is None else since
    while time.monotonic() - began < most and not any(job.state in ENDED for job in jobs):
        enough = all(job.result.steps - before >= steps for job, before in zip(jobs, since, strict=True))
        if enough and time.monotonic() - began >= least:
            return
        time.sleep(_POLL_S)


def _figures(events: list[Any], warm: float, ended: float, memory: int, job: Job) -> _Run:
    """Extracts a job's figures from the timeline, between two instants of time.monotonic()."""
    begins = [begin / 1e9 for kind, _, begin, _, _, detail in events if kind == "state" and detail == "running"]
    ends = [end / 1e9 for kind, _, _, end, _, _ in events if kind == "step"]
    window = [end for end in ends[WARM_UP_STEPS - 1 :] if warm <= end <= ended]
    if len(ends) >= WARM_UP_STEPS and not any(end < warm for end in ends[WARM_UP_STEPS:]):
        window = [
            end for end in ends[WARM_UP_STEPS - 1 :] if end <= ended
        ]  # the window begins with the warm-up's last step
    pieces = _sub_batches_of_steps(events)
    return _Run(
        steps=np.diff(window).tolist(),
        sub_batches=[end - begin for begin, end in pieces if end > warm],
        set_up=max(0.0, ends[0] - begins[0]) if ends and begins else 0.0,
        window=ended - warm,
        memory=memory,
        rows=job._context.largest_batch,
        per_step=len(pieces) / max(len(ends), 1),
        job=job,
    )


def _sub_batches_of_steps(events: list[Any]) -> list[tuple[float, float]]:
    """Begins and ends of the sub-batches that were in steps: not those of validation batches."""
    spans = {
        which: sorted((begin / 1e9, end / 1e9) for kind, _, begin, end, _, _ in events if kind == which)
        for which in ("step", "sub_batch")
    }
    begins = [begin for begin, _ in spans["step"]]
    return [
        (begin, end)
        for begin, end in spans["sub_batch"]
        if (number := bisect.bisect_right(begins, begin)) and end <= spans["step"][number - 1][1]
    ]


def _check_split(candidate: Candidate, run: _Run, pieces: int) -> None:
    if run.rows == 0:
        raise ValueError(f"job '{candidate.name}': batches must hold tensors with rows")
    if abs(run.per_step - pieces) > 0.5 * pieces:
        raise ValueError(
            f"job '{candidate.name}' must not pass sub_batch to job.batches: it ran {run.per_step:.1f} sub-batches per "
            f"step instead of {pieces}"
        )


def _ratio(run: _Run, alone: float) -> float:
    """Step time beside / alone. For a job that did no step, the window is a lower bound of its step time."""
    beside = float(np.median(run.steps)) if run.steps else run.window
    return beside / alone


def _shown(run: _Run) -> str:
    return f"{1e3 * float(np.median(run.steps)):.2f} ms a step, {run.memory / 2**20:.1f} MiB"


def _spread(values: list[float]) -> Spread:
    q25, median, q75 = np.quantile(values, [0.25, 0.5, 0.75])
    return Spread(median=median, q25=q25, q75=q75)


def _beside(combination: tuple[int, int], ratios: list[tuple[float, float, bool]]) -> Beside:
    return Beside(
        sub_batches=combination[0],
        partner_sub_batches=combination[1],
        ratio=float(np.median([first for first, _, _ in ratios])),
        partner_ratio=float(np.median([second for _, second, _ in ratios])),
        starved=any(starved for _, _, starved in ratios),
    )


def _make_profile(candidate: Candidate, known: _Measured) -> Profile:
    alone = [
        Alone(
            sub_batches=pieces,
            rows=-(-known.batch // pieces),
            steps=sum(len(run.steps) for run in runs),
            step_s=_spread([step for run in runs for step in run.steps]),
            sub_batch_s=_spread([piece for run in runs for piece in run.sub_batches]),
            memory_bytes=max(run.memory for run in runs),
        )
        for pieces, runs in sorted(known.alone.items())
    ]
    return Profile(
        job=candidate.name,
        code=code_digest(candidate.function),
        device=device_name(),
        torch=torch.__version__,
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        threads=candidate.threads,
        batch=known.batch,
        steps=candidate.steps,
        set_up_s=float(np.median([run.set_up for run in known.alone[1]])),
        alone=alone,
        fit=fit(alone),
        ops=_ops(known),
    )


def _ops(known: _Measured) -> Ops:
    """The ops of the last recorded run. The cost of recording compares the two runs of each round."""
    costs = [
        float(np.median(recorded.steps) / np.median(plain.steps)) - 1
        for recorded, plain in zip(known.recorded, known.alone[1], strict=True)
    ]
    handle = known.recorded[-1].job._context.handle
    return Ops.of(handle.ops_per_step(), float(np.median(costs)), handle.op_profiles())


def _trace(candidate: Candidate, known: _Measured) -> OpTrace:
    return OpTrace(job=candidate.name, threads=candidate.threads, **known.recorded[-1].job._context.handle.op_trace())
