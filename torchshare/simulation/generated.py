"""Generated job traces: any number of jobs, load and mix of sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from torchshare.simulation.adaptdl import JOBS, read_packaged
from torchshare.simulation.job_trace import COLUMNS, Limits, Trace, pick

MAX_JOBS = 1_000_000
_LONGEST_S = 14 * 86_400.0  # Philly's 99th percentile of jobs with 8 GPUs is 12 days
_MAX_ENTRIES = 1_000  # of a mix
_MAX_FACTOR = 1_000.0  # deadline / time alone
_ANY_GPUS = 10**9
_STREAM = 1  # of the seed's random numbers; those of estimates are another
_DEADLINES = 2  # another one
_SHOWN = 60  # characters of an entry in a message


@dataclass(frozen=True)
class JobSize:
    """Jobs with this many GPUs: their share of all jobs, and the log-normal distribution of their durations."""

    gpus: int
    share: float
    median_s: float
    sigma: float  # of the logarithm


# Fitted to the 82,247 jobs of Microsoft's Philly trace (github.com/msr-fiddle/philly-traces, CC BY 4.0), as AdaptDL's
# repository has it: the share of each number of GPUs, and the median and the deviation of the logarithm of durations.
# 16 stands for 9 to 16 GPUs and 32 for more. Means are not fitted, and differ (docs/queue.md).
PHILLY = (
    JobSize(1, 0.9317, 1_117, 1.97),
    JobSize(2, 0.0221, 21, 3.27),
    JobSize(4, 0.0227, 17_410, 2.78),
    JobSize(8, 0.0200, 23_683, 2.79),
    JobSize(16, 0.0025, 37_188, 3.32),
    JobSize(32, 0.0010, 3_718, 2.80),
)


def parse_mix(text: str) -> tuple[JobSize, ...] | None:
    """The sizes of jobs: `philly`, or GPUS:SHARE:MEDIAN_S:SIGMA,...; None for `adaptdl`, whose jobs are drawn from its
    workloads. Raises ValueError."""
    if text in ("philly", "adaptdl"):
        return PHILLY if text == "philly" else None
    entries = text.split(",")
    if len(entries) > _MAX_ENTRIES:
        raise ValueError(f"--mix must have at most {_MAX_ENTRIES} sizes, got {len(entries)}")
    return tuple(map(_parse_size, entries))


def _parse_size(entry: str) -> JobSize:
    shown = f"'{entry[:_SHOWN]}'"
    try:
        gpus, share, median, sigma = entry.split(":")
        size = JobSize(int(gpus), float(share), float(median), float(sigma))
    except ValueError:
        raise ValueError(f"--mix must be philly, adaptdl or GPUS:SHARE:MEDIAN_S:SIGMA,... got {shown}") from None
    for name, valid, limits in (
        ("GPUS", 1 <= size.gpus <= _ANY_GPUS, f"from 1 to {_ANY_GPUS:g}"),
        ("SHARE", 0 < size.share <= 1e9, "above 0, at most 1e+09"),
        ("MEDIAN_S", 0 < size.median_s <= _LONGEST_S, f"above 0, at most {_LONGEST_S:.0f} (14 days)"),
        ("SIGMA", 0 <= size.sigma <= 10, "from 0 to 10"),
    ):
        if not valid:
            raise ValueError(f"{name} of --mix must be {limits}, got {shown}")
    return size


def generate(
    jobs: int,
    limits: Limits,
    *,
    mix: tuple[JobSize, ...] | None,
    load: float = 1.0,
    jobs_per_hour: float | None = None,
    seed: int = 0,
) -> Trace:
    """A trace of jobs that arrive at random, at a constant rate.

    Args:
        mix: see `parse_mix`. Sizes with more GPUs or memory than the cluster has are left out; `left_out` of the trace
            is their share.
        load: GPU time that the jobs need alone / GPU time of the cluster while they arrive.
        jobs_per_hour: the rate of arrival, instead of `load`.

    Raises:
        ValueError: if no size fits the cluster.
    """
    random = np.random.default_rng([seed, _STREAM])
    trace = _drawn_from_adaptdl(jobs, limits, random) if mix is None else _drawn_from(mix, jobs, limits, random)
    if jobs_per_hour is None:
        window = float((trace.duration * trace.gpus).sum()) / (load * limits.gpus)
    else:
        window = 3600 * jobs / jobs_per_hour
    return replace(
        trace,
        source=f"generated, seed {seed}",
        arrival=np.sort(random.uniform(0, window, jobs)),
        load=load if jobs_per_hour is None else None,
    )


def at_load(trace: Trace, load: float) -> Trace:
    """The jobs of a trace that was generated for another load, with their arrivals at this one."""
    assert trace.load is not None
    return replace(trace, arrival=trace.arrival * (trace.load / load), load=load)


def parse_deadlines(text: str) -> tuple[float, float]:
    """The least and the largest deadline, in times alone. Raises ValueError."""
    low, _, high = text.partition("-")
    try:
        factors = float(low), float(high)
    except ValueError:
        factors = math.nan, math.nan
    if not 1 <= factors[0] <= factors[1] <= _MAX_FACTOR:
        raise ValueError(
            f"--deadlines must be LOW-HIGH with 1 <= LOW <= HIGH <= {_MAX_FACTOR:g}, got '{text[:_SHOWN]}'"
        )
    return factors


def with_deadlines(trace: Trace, factors: tuple[float, float], seed: int) -> Trace:
    """The trace with a deadline for each job: its time alone times a number from this range, drawn uniformly.
    Raises ValueError if it has deadlines."""
    if trace.deadline is not None:
        raise ValueError(
            f"--deadlines needs a trace without deadlines, got {trace.source}, which has the column deadline_s"
        )
    drawn = np.random.default_rng([seed, _DEADLINES]).uniform(*factors, len(trace.names))
    return replace(trace, deadline=trace.duration * drawn)


def _drawn_from(mix: tuple[JobSize, ...], jobs: int, limits: Limits, random: np.random.Generator) -> Trace:
    fitting = [size for size in mix if size.gpus <= limits.gpus]
    if not fitting:
        smallest = min(size.gpus for size in mix)
        raise ValueError(f"--mix must have a size of at most {limits.gpus} GPUs, the cluster's, got {smallest} or more")
    shares = np.array([size.share for size in fitting])
    drawn = random.choice(len(fitting), jobs, p=shares / shares.sum())
    medians, sigmas = np.array([(size.median_s, size.sigma) for size in fitting]).T
    durations = np.exp(np.log(medians[drawn]) + sigmas[drawn] * random.standard_normal(jobs))
    return Trace(
        source="",
        names=[f"job-{index}" for index in range(jobs)],
        arrival=np.zeros(jobs),
        duration=np.clip(durations, 1.0, _LONGEST_S),
        gpus=np.array([size.gpus for size in fitting], dtype=np.int32)[drawn],
        memory_gib=np.zeros(jobs),
        models=[""] * jobs,
        left_out=1 - float(shares.sum()) / sum(size.share for size in mix) if len(fitting) < len(mix) else 0.0,
    )


def _drawn_from_adaptdl(jobs: int, limits: Limits, random: np.random.Generator) -> Trace:
    traces = read_packaged(f"adaptdl:{JOBS[-1]}", Limits(_ANY_GPUS))
    given = [name for name in COLUMNS if name != "deadline"]  # AdaptDL has none
    columns = {name: np.concatenate([getattr(trace, name) for trace in traces]) for name in given}
    names, models = ([text for trace in traces for text in getattr(trace, texts)] for texts in ("names", "models"))
    known = replace(traces[0], names=names, models=models, **columns)
    fitting = np.flatnonzero((known.gpus <= limits.gpus) & (known.memory_gib <= limits.memory_gib))
    if not len(fitting):
        least = known.memory_gib[known.gpus <= limits.gpus].min()
        raise ValueError(
            f"--gpu-memory must be enough for one of AdaptDL's jobs, {least:.3g} GiB, got {limits.memory_gib:g} GiB"
        )
    drawn = pick(known, random.choice(fitting, jobs))
    names = [f"{model}-{number}" for number, model in enumerate(drawn.models)]
    return replace(drawn, names=names, left_out=1 - len(fitting) / len(known.names))
