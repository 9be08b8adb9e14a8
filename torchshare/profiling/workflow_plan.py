"""Plans for a workflow: jobs that answer each of its requests one after the other, under one promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchshare import _core
from torchshare.profiles.profile import Partner, Profile
from torchshare.profiles.requests import RequestTimes

_FULL = 0.75  # of the largest batch, at least, is the mean in a profile of batches
_NO_OP_S = 1e-6  # of a job that does not run


@dataclass(frozen=True)
class Stage:
    name: str
    profiles: Sequence[Profile]
    """The job's, each measured with another number of requests at a time."""
    after: Sequence[str] = ()


@dataclass(frozen=True)
class Workflow:
    per_s: float
    """Requests per second."""
    stages: Sequence[Stage]


@dataclass(frozen=True)
class StagePlan:
    """What was chosen for a stage. Seconds."""

    stage: str
    batch: int
    max_wait_s: float
    """How long a request may wait for others of its batch."""
    partner: str | None
    """The job that runs beside it."""
    latency_s: float
    ends_by_s: float
    """From the arrival of a request at the workflow."""
    budget_s: float
    """From the end of its last predecessor to `ends_by_s`."""
    slo: str
    """The budget as a promise, for `job.requests`."""
    cost_s: float
    """GPU time per request that no other job uses."""


@dataclass(frozen=True)
class WorkflowPlan:
    """The cheapest choice that keeps the promise. Seconds."""

    slo: str
    per_s: float
    stages: list[StagePlan]
    latency_s: float
    """The longest path."""
    cost_s: float
    critical: list[str]
    """The stages of the longest path."""
    decision: str
    reasons: list[str]
    exact: bool
    """False if the search was cut short: there may be cheaper plans."""


def plan_workflow(workflow: Workflow, slo: str) -> WorkflowPlan:
    """Chooses for each stage how many requests it answers at a time, and which job runs beside it, so that the GPU time
    per request that no other job uses is least and the longest path is within the promise. Then divides the promise
    among the stages (csrc/planner/workflow_planner.h).

    A request is late with a probability of at most 1 - q if each of n stages is late with at most (1 - q) / n, by the
    union bound. So latencies of stages are quantiles 1 - (1 - q) / n: those of requests at random times that take as
    long as one of the measured service times (csrc/planner/server_model.h). A profile keeps up to 400 of these; beyond
    them, the longest counts, and a reason says so. Of a stage that answers a burst in several batches, each is taken to
    be as long as that quantile: an estimate, which the bound does not cover.

    Args:
        slo: about the time from a request's arrival to the last answer.

    Raises:
        ValueError: names the stage and what is missing, or the least latency that can be promised.
    """
    target = _core.LatencyTarget(slo)
    quantile = 1 - (1 - target.quantile) / len(workflow.stages)
    names = [stage.name for stage in workflow.stages]
    profiles = [profile for stage in workflow.stages for profile in stage.profiles]
    partners = sorted({job for profile in profiles for job, _, _ in _measured(profile)})
    stages = []
    for stage in workflow.stages:
        options = _options(stage, partners, workflow.per_s, target.limit, quantile)
        stages.append(_core.WorkflowStage(stage.name, [names.index(other) for other in stage.after], options))
    found = _core.plan_workflow(stages, target.limit, workflow.per_s)
    critical = [names[index] for index in found.critical]
    chosen = [stage.options[each.option] for stage, each in zip(stages, found.stages, strict=True)]
    return WorkflowPlan(
        slo=slo,
        per_s=workflow.per_s,
        stages=[_planned(*each, partners, quantile) for each in zip(names, chosen, found.stages, strict=True)],
        latency_s=found.latency,
        cost_s=found.cost,
        critical=critical,
        decision=f"{slo} holds: the longest path, {' > '.join(critical)}, takes {1e3 * found.latency:.4g} ms",
        reasons=_reasons(workflow, quantile, stages, chosen),
        exact=found.exact,
    )


def _measured(profile: Profile) -> list[tuple[str, RequestTimes, float]]:
    """The jobs beside which its requests were measured: what these took, and the other's speed meanwhile."""
    return [
        (each.job, each.requests.times, _speed(each, each.requests.times)) for each in profile.partners if each.requests
    ]


def _speed(partner: Partner, times: RequestTimes) -> float:
    """How fast the other job is while requests are answered, if it runs as alone in between. Alone it is 1."""
    whole = next(pair for pair in partner.beside if pair.sub_batches == pair.partner_sub_batches == 1)
    if whole.starved or times.idle == 1:
        return 0.0
    return min(1.0, max(0.0, (1 / whole.partner_ratio - times.idle) / (1 - times.idle)))


def _options(
    stage: Stage, partners: Sequence[str], per_s: float, limit: float, quantile: float
) -> list[_core.StageOption]:
    """Options that keep up with the requests; beside a partner, those whose batches were full there, too."""
    options, fastest, batches = [], 0.0, set[int]()
    for profile in stage.profiles:
        times = _times(stage, profile)
        batch = times.parallel
        if batch in batches:
            raise ValueError(f"stage '{stage.name}': profiles must be of different batches, got two of {batch}")
        batches.add(batch)
        fastest = max(fastest, batch / times.mean_s)
        if per_s * times.mean_s < batch:
            options.append(_option(batch, None, times, 0.0, per_s, limit, quantile))
            for job, beside, speed in _measured(profile):
                if per_s * beside.mean_s < batch and _together(beside) >= _FULL * batch:
                    options.append(_option(batch, partners.index(job), beside, speed, per_s, limit, quantile))
    if not options:
        raise ValueError(
            f"stage '{stage.name}': must answer {per_s:.3g} requests per second, got profiles of {fastest:.3g} at most"
        )
    return options


def _times(stage: Stage, profile: Profile) -> RequestTimes:
    """What its requests took alone. Raises ValueError unless they were answered in full batches."""
    if profile.requests is None:
        raise ValueError(f"stage '{stage.name}': profiles must be of requests, got one of the steps of '{profile.job}'")
    times = profile.requests.times
    together = _together(times)
    if together < _FULL * times.parallel:
        raise ValueError(
            f"stage '{stage.name}': profiles must be of full batches, got one with {together:.1f} of {times.parallel} "
            "requests at a time on average; send them faster while it is measured"
        )
    return times


def _together(times: RequestTimes) -> float:
    """Requests that it answers at a time, on average, while it answers any."""
    return times.per_s * times.mean_s / max(1e-9, 1 - times.idle)


def _option(
    batch: int, partner: int | None, times: RequestTimes, speed: float, per_s: float, limit: float, quantile: float
) -> _core.StageOption:
    server = _core.ServerModel(per_s / batch, times.service_s, [], _NO_OP_S, 1, 0.0)
    return _core.StageOption(
        batch=batch,
        partner=partner,
        latency=server.forecast(0.0, limit).latency.quantile(quantile),
        service=sorted(times.service_s)[math.ceil(quantile * len(times.service_s)) - 1],
        cost=times.mean_s / batch * (1 - speed),
    )


def _planned(
    name: str, option: _core.StageOption, found: _core.PlannedStage, partners: Sequence[str], quantile: float
) -> StagePlan:
    return StagePlan(
        stage=name,
        batch=option.batch,
        max_wait_s=found.wait,
        partner=None if option.partner is None else partners[option.partner],
        latency_s=found.latency,
        ends_by_s=found.ends_by,
        budget_s=found.budget,
        slo=f"{_percentile(quantile)}<{1e3 * found.budget:.3f}ms",
        cost_s=option.cost,
    )


def _percentile(quantile: float) -> str:
    """With the digits that a promise may have."""
    return f"p{min(999_999, math.ceil(1e6 * quantile - 1e-3)) / 1e4:g}"


def _reasons(
    workflow: Workflow, quantile: float, stages: Sequence[_core.WorkflowStage], chosen: Sequence[_core.StageOption]
) -> list[str]:
    percentile = _percentile(quantile)
    reasons = [
        f"{workflow.per_s:.3g} requests per second, taken to come at random times",
        f"latencies of stages are their {percentile}: then all {len(stages)} together keep the promise",
        "each stage is taken to have a device of its own, and a partner to run beside one stage",
    ]
    if any(option.partner is not None for option in chosen):
        alone = sum(
            next(each.cost for each in stage.options if each.partner is None and each.batch == option.batch)
            for stage, option in zip(stages, chosen, strict=True)
        )
        used = sum(option.cost for option in chosen)
        reasons.append(
            f"partners use {1e3 * (alone - used):.3g} ms of the {1e3 * alone:.3g} ms of GPU time that a request takes"
        )
    for stage in workflow.stages:
        kept = min(len(_times(stage, profile).service_s) for profile in stage.profiles)
        if quantile > 1 - 0.5 / kept:
            reasons.append(f"'{stage.name}': a profile has {kept} times, of which the longest stands for {percentile}")
    return reasons
