"""Plans for a job that answers requests: how much of the time another may run beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchshare import _core
from torchshare.profiles.profile import Partner, Profile
from torchshare.profiles.requests import ServedAlone, ServedBeside, largest_share, model

_SLICE_S = 0.1  # in which the other job runs, without a promise


@dataclass(frozen=True)
class ShareForecast:
    """What is expected while the other job may run for a share of the time. Seconds."""

    share: float
    p50_s: float
    p95_s: float
    p99_s: float
    """Latencies of requests."""
    late: float | None
    """The part of the requests that break the promise; None without one."""
    speed: float
    """How fast the other job is; alone it is 1."""


@dataclass(frozen=True)
class ServerPlan:
    """How much of the time a job may run beside one that answers requests."""

    server: str
    other: str
    share: float
    slo: str | None
    forecasts: list[ShareForecast]
    """With the server alone, with the share, and with the other job all the time."""
    decision: str
    reasons: list[str]


def has_server(profiles: Sequence[Profile]) -> bool:
    """Raises ValueError if there is one among more than two jobs."""
    servers = [profile.job for profile in profiles if profile.requests is not None]
    if servers and len(profiles) > 2:
        raise ValueError(f"job '{servers[0]}' answers requests and has no end: plan it beside one other job")
    return bool(servers)


def plan_server(
    profiles: Sequence[Profile], slo: str | None, max_slowdown: float | None, steps: Mapping[str, int | None]
) -> ServerPlan:
    """For two profiles, the largest share of the time for the lower job. Finds it in virtual time (see
    csrc/planner/server_model.h), for requests at random times.

    Args:
        slo: default: what the server has promised itself.
        max_slowdown: bound on its mean service time, instead of a promise.
        steps: of each job; None: unknown.
    """
    server, partner, alone, beside, other = _roles(profiles)
    promise = alone.slo if slo is None else slo
    if max_slowdown is not None:
        if promise is not None:
            raise ValueError(
                f"max_slowdown and the promise of '{server.job}' cannot be given together, got {promise!r}"
            )
        share, rule = _bounded(alone, beside, max_slowdown), f"a slowdown of {max_slowdown:.3g}"
    else:
        found = largest_share(alone, beside, slo)
        share, rule = 1.0 if found is None else found, promise or "no promise"
    target = None if promise is None else _core.LatencyTarget(promise)
    whole = next(pair for pair in partner.beside if pair.sub_batches == pair.partner_sub_batches == 1)
    ratio = max(1.0, whole.partner_ratio)
    forecasts = [_forecast(each, alone, beside, target, ratio) for each in sorted({0.0, share, 1.0})]
    holds_alone = forecasts[0].late is None or target is None or forecasts[0].late <= 1 - target.quantile
    return ServerPlan(
        server=server.job,
        other=other.job,
        share=share,
        slo=promise,
        forecasts=forecasts,
        decision=_decision(server.job, other.job, share, rule, holds_alone),
        reasons=_reasons(alone, beside, other, steps[other.job], share / ratio),
    )


def _roles(profiles: Sequence[Profile]) -> tuple[Profile, Partner, ServedAlone, ServedBeside, Profile]:
    """The server, what was measured of it beside the other, and the other."""
    for server, other in (profiles, profiles[::-1]):
        for partner in server.partners:
            if partner.job == other.job and server.requests is not None and partner.requests is not None:
                return server, partner, server.requests, partner.requests, other
    server, other = profiles if profiles[0].requests is not None else profiles[::-1]
    raise ValueError(
        f"no profile has the requests of '{server.job}' beside '{other.job}'; measure them with torchshare profile "
        f"--with, '{server.job}' first"
    )


def _bounded(alone: ServedAlone, beside: ServedBeside, max_slowdown: float) -> float:
    """Requests are slower for the share of the time in which the other job runs."""
    if not 0 <= max_slowdown <= 1:
        raise ValueError(f"max_slowdown must be from 0 to 1, such as 0.05 for 5 %, got {max_slowdown:g}")
    cost = beside.times.mean_s / alone.times.mean_s - 1
    return 1.0 if cost <= max_slowdown else max_slowdown / cost


def _forecast(
    share: float, alone: ServedAlone, beside: ServedBeside, target: _core.LatencyTarget | None, ratio: float
) -> ShareForecast:
    found = model(alone.times, beside).forecast(share, _SLICE_S if target is None else target.limit)
    p50, p95, p99 = (found.latency.quantile(each) for each in (0.5, 0.95, 0.99))
    return ShareForecast(share, p50, p95, p99, None if target is None else found.late, share / ratio)


def _decision(server: str, other: str, share: float, rule: str, holds_alone: bool) -> str:
    if not holds_alone:
        return f"'{other}' starts after '{server}', which does not hold {rule} even alone"
    if share == 0:
        return f"'{other}' starts after '{server}': no share of the time leaves {rule}"
    part = f"at most {100 * share:.3g}%" if share < 1 else "all"
    return f"'{other}' starts now beside '{server}', for {part} of the time"


def _reasons(alone: ServedAlone, beside: ServedBeside, other: Profile, steps: int | None, speed: float) -> list[str]:
    times, reasons = alone.times, []
    if times.is_back_to_back:
        reasons.append("requests come back to back")
    else:
        reasons.append(
            f"{times.per_s:.3g} requests per second, taken to come at random times, are a load of {times.load:.2f}"
        )
    if not times.is_back_to_back and times.per_s * beside.times.mean_s >= times.parallel:
        reasons.append("with the other all the time, requests come faster than they are answered: ever more wait")
    reasons.append(
        f"a request takes {1e3 * times.mean_s:.3g} ms alone and {1e3 * beside.times.mean_s:.3g} ms beside "
        f"'{other.job}', as measured"
    )
    if steps is not None and other.requests is None:
        took = steps * other.alone[0].step_s.median
        beside_s = f", {took / speed:,.1f} s beside it" if speed > 0 else ""
        reasons.append(f"'{other.job}' takes {took:,.1f} s alone{beside_s}")
    return reasons
