"""What requests to a job take: the part of a profile that jobs have which answer requests."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from torchshare import _core
from torchshare.profiles.values import Count, Seconds, Value

_BACK_TO_BACK = 0.15  # of the time, at most, is spent waiting for requests
_MOST_TIMES = 400


class RequestTimes(Value):
    """What requests took, alone or beside another job."""

    answered: Count
    """Requests measured, after the warm-up."""
    per_s: Annotated[float, Field(gt=0, le=1e9)]
    """Answers per second."""
    parallel: Count
    """Most requests that the job had taken and not answered, at a time."""
    idle: Annotated[float, Field(ge=0, le=1)]
    """The part of the time in which the job waited for a request."""
    latency_s: tuple[Seconds, Seconds, Seconds]
    """From arrival to answer: p50, p95 and p99."""
    service_s: Annotated[list[Seconds], Field(min_length=1, max_length=_MOST_TIMES)]
    """From the time that the job took a request to its answer: quantiles, each time as likely."""

    @staticmethod
    def of(
        latencies: list[float], services: list[float], per_s: float, parallel: int, idle: float | None = None
    ) -> RequestTimes:
        """From all times that were measured, one at least. `idle` None: the time in which it answered nothing."""
        busy = per_s * float(np.mean(services)) / parallel
        fractions = (np.arange(min(len(services), _MOST_TIMES)) + 0.5) / min(len(services), _MOST_TIMES)
        p50, p95, p99 = (float(time) for time in np.quantile(latencies, [0.5, 0.95, 0.99]))
        return RequestTimes(
            answered=len(latencies),
            per_s=per_s,
            parallel=parallel,
            idle=min(1.0, max(0.0, 1 - busy if idle is None else idle)),
            latency_s=(p50, p95, p99),
            service_s=[float(f"{time:.4g}") for time in np.quantile(services, fractions)],
        )

    @property
    def mean_s(self) -> float:
        """Mean service time."""
        return float(np.mean(self.service_s))

    @property
    def unit_time_s(self) -> float:
        """What a unit of a periodic job takes at most, computed as DeadlineKeeper in csrc/runtime computes it from the
        units that it has measured itself."""
        return _core.UNIT_MARGIN * float(np.quantile(self.service_s, _core.UNIT_QUANTILE))

    @property
    def load(self) -> float:
        """The part of the time, of all that it does at a time, in which the job answers."""
        return self.per_s * self.mean_s / self.parallel

    @property
    def is_back_to_back(self) -> bool:
        """Whether a request came as soon as one was answered."""
        return self.idle < _BACK_TO_BACK


class ServedAlone(Value):
    """The requests of a job that ran alone."""

    slo: str | None
    """What the job has promised about their latencies."""
    times: RequestTimes


class ServedBeside(Value):
    """The requests of a job that ran as the primary beside another, without a promise."""

    times: RequestTimes
    op_s: Seconds
    """What an op of the other takes, at a random time."""


def model(alone: RequestTimes, beside: ServedBeside) -> _core.ServerModel:
    """The server in virtual time, for any share of the time in which the other job may run."""
    per_s = 0.0 if alone.is_back_to_back else alone.per_s
    load = per_s, alone.service_s, beside.times.service_s, beside.op_s, alone.parallel
    waited = alone.latency_s[0] - _core.ServerModel(*load, 0.0).forecast(0, 1).latency.quantile(0.5)
    return _core.ServerModel(*load, max(0.0, waited))  # for others that are answered with it, as of max_wait


def largest_share(alone: ServedAlone, beside: ServedBeside, slo: str | None) -> float | None:
    """The largest share of the time in which the other may run so that `slo` holds, by default the job's own promise;
    0 if none is small enough, None without a promise. Raises ValueError for an invalid one."""
    promise = alone.slo if slo is None else slo
    return None if promise is None else model(alone.times, beside).largest_share(_core.LatencyTarget(promise))
