"""Plans from profiles: when a new job starts beside a running one; in which order and pairs a queue runs."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchshare import _core
from torchshare.durable.files import replacing
from torchshare.profiles.profile import Beside, Profile, step_time


@dataclass(frozen=True)
class Piece:
    """An interval in which a job runs, alone or beside a partner. Seconds from now."""

    job: str
    partner: str | None
    sub_batches: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class DevicePlan:
    """A schedule of one device."""

    pieces: list[Piece]
    ends: dict[str, float]
    average_s: float
    one_by_one_s: float
    """Average completion time if all jobs run alone, shortest first."""
    decision: str
    reasons: list[str]
    exact: bool = True
    """False if the search was cut short: the plan may not be optimal."""


@dataclass(frozen=True)
class PlanSettings:
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Steps of whole jobs, by name. Default: those of the profile."""
    done: Mapping[str, int] = dataclasses.field(default_factory=dict)
    memory: float | None = None
    """Bytes of the device; None: unlimited."""
    max_slowdown: float | None = None
    """Bound on the slowdown of the running job."""
    deadlines: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds from now by which jobs should have ended, by name."""
    suspend_cost: float = 0.0
    """Seconds to suspend the running job and resume it."""


def plan(profiles: Sequence[Profile], settings: PlanSettings) -> DevicePlan:
    """For two profiles, when the second job starts beside the first, which is running; for more, the best order and
    pairs of waiting jobs. Raises ValueError that names the job and what is missing."""
    if len(profiles) == 2:
        check_settings(profiles, settings)
        return _plan_pair(profiles[1], profiles[0], settings)
    if settings.max_slowdown is not None or settings.suspend_cost > 0 or settings.deadlines:
        raise ValueError(f"max_slowdown, suspend_cost and deadlines need two profiles, got {len(profiles)}")
    return plan_queue(profiles, settings)


def write_ratios(profiles: Sequence[Profile], path: Path) -> None:
    """Writes the measured pairs as a table for `torchshare simulate --interference`."""
    with replacing(path) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(["job_a", "job_b", "xi_a", "xi_b"])
        for profile in profiles:
            for partner in profile.partners:
                whole = next(pair for pair in partner.beside if pair.sub_batches == pair.partner_sub_batches == 1)
                writer.writerow([profile.job, partner.job, whole.ratio, whole.partner_ratio])


def check_settings(profiles: Sequence[Profile], settings: PlanSettings) -> None:
    """Raises ValueError for profiles that do not go together, and for settings that fit none of them."""
    names = [profile.job for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"profiles must be of different jobs, got two of '{name}'")
    for what in ("steps", "done", "deadlines"):
        for name in getattr(settings, what):
            if name not in names:
                raise ValueError(f"{what} names job '{name}', must be one of {', '.join(names)}")
    for what in ("memory", "suspend_cost"):
        value = getattr(settings, what)
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{what} must be a finite number >= 0, got {value:g}")
    first = profiles[0]
    for other in profiles[1:]:
        if (first.device, first.torch) != (other.device, other.torch):
            raise ValueError(
                f"profiles must be of one device and torch version, got '{first.job}' ({first.device}, torch "
                f"{first.torch}) and '{other.job}' ({other.device}, torch {other.torch})"
            )


def _job(profile: Profile, settings: PlanSettings, ratios: list[float]) -> _core.PlannedJob:
    steps = settings.steps.get(profile.job, profile.steps)
    if steps is None:
        raise ValueError(f"job '{profile.job}': its profile has no number of steps, pass --steps")
    fit = profile.fit
    sizes = {alone.sub_batches: alone for alone in profile.alone}
    measured: list[tuple[float, float]] = []
    while (size := sizes.get(2 ** len(measured))) is not None:
        measured.append((size.step_s.median, float(size.memory_bytes)))
    return _core.PlannedJob(
        profile.job,
        max(0, steps - settings.done.get(profile.job, 0)),
        profile.batch,
        step_time(fit),
        _core.MemoryModel(fit.memory_fixed, fit.memory_per_row),
        ratios,
        measured,
        settings.deadlines.get(profile.job),
    )


def _no_ratios(profile: Profile) -> list[float]:
    """Ratios of a job alone: one entry per sub-batch size."""
    return [1.0] * len(profile.alone)


def _ratios(a: Profile, b: Profile) -> tuple[list[float], list[float], str] | None:
    """The ratios of each job by its number of sub-batches (1, 2, 4, ...; the other in whole batches), and a note on the
    roles in which they were measured. Prefers measurements with `a` as the primary."""
    found: list[tuple[bool, tuple[list[float], list[float], str]]] = []
    for first, second in ((a, b), (b, a)):
        for partner in first.partners:
            if partner.job == second.job:
                mine = [(p.sub_batches, p.ratio) for p in partner.beside if p.partner_sub_batches == 1]
                theirs = [(p.partner_sub_batches, p.partner_ratio) for p in partner.beside if p.sub_batches == 1]
                own, other = _by_size(mine), _by_size(theirs)
                as_wanted = (partner.role == "primary") == (first is a)
                primary = first.job if partner.role == "primary" else second.job
                starved = _starved(partner.beside)
                note = f"ratios measured with '{primary}' as the primary{starved}"
                found.append((as_wanted, (own, other, note) if first is a else (other, own, note)))
    found.sort(key=lambda pair: not pair[0])
    return found[0][1] if found else None


def _starved(beside: list[Beside]) -> str:
    return (
        "; one job did no step beside the other: its ratio is a lower bound" if any(p.starved for p in beside) else ""
    )


def _by_size(ratios: list[tuple[int, float]]) -> list[float]:
    known = dict(ratios)
    found: list[float] = []
    while 2 ** len(found) in known:
        found.append(max(1.0, known[2 ** len(found)]))  # below 1 is noise
    return found


def _one_by_one(jobs: Sequence[_core.PlannedJob], settings: PlanSettings) -> float:
    return _core.plan_queue(list(jobs), [], settings.memory).average


def _plan_pair(new: Profile, running: Profile, settings: PlanSettings) -> DevicePlan:
    ratios = _ratios(running, new)
    if ratios is None:
        raise ValueError(
            f"no profile has '{running.job}' beside '{new.job}'; measure them with torchshare profile --with"
        )
    of_running, of_new, note = ratios
    jobs = _job(new, settings, of_new), _job(running, settings, of_running)
    found = _core.plan_pair(*jobs, settings.memory, settings.max_slowdown, settings.suspend_cost)
    when = {
        "now": "starts now",
        "at step": f"starts at step {found.at_step + settings.done.get(running.job, 0):.0f} of '{running.job}'",
        "after": f"starts after '{running.job}'",
        "first": f"runs first, '{running.job}' is suspended until it ends",
    }[found.start]
    late = f", {found.late:,.1f} s late: no plan keeps the deadlines" if found.late > 0 else ""
    return DevicePlan(
        pieces=_pair_pieces(found, new.job, running.job, settings.suspend_cost),
        ends={running.job: found.running_ends, new.job: found.new_ends},
        average_s=found.average,
        one_by_one_s=_one_by_one(jobs, settings),
        decision=f"'{new.job}' {when}{late}",
        reasons=[*found.reasons, note],
    )


def _pair_pieces(plan: _core.Plan, new: str, running: str, suspend_cost: float) -> list[Piece]:
    splits = {new: plan.new_sub_batches, running: plan.running_sub_batches}
    pieces: list[tuple[str, str | None, float, float]]
    if plan.start == "first":
        pieces = [(new, None, 0.0, plan.new_ends), (running, None, plan.new_ends + suspend_cost, plan.running_ends)]
    else:
        first_end = min(plan.new_ends, plan.running_ends)
        last = new if plan.new_ends > plan.running_ends else running
        together = plan.start_in < first_end
        pieces = [(running, None, 0.0, plan.start_in)]
        if together:
            pieces += [(running, new, plan.start_in, first_end), (new, running, plan.start_in, first_end)]
        pieces.append((last, None, first_end, max(plan.new_ends, plan.running_ends)))
    return [Piece(job, partner, splits[job], begin, end) for job, partner, begin, end in pieces if end > begin]


def plan_queue(profiles: Sequence[Profile], settings: PlanSettings) -> DevicePlan:
    """The best order and pairs of waiting jobs, at most two at a time. Raises ValueError as `plan` does."""
    check_settings(profiles, settings)
    jobs = [_job(profile, settings, _no_ratios(profile)) for profile in profiles]
    pairs, reasons = [], []
    for b, second in enumerate(profiles):
        for a, first in enumerate(profiles[:b]):
            ratios = _ratios(first, second)
            if ratios is None:
                reasons.append(f"'{first.job}' and '{second.job}' were not measured together, so they do not share")
            else:
                pairs.append(_core.QueuedPair(a, b, ratios[0], ratios[1]))
                shown = f"{ratios[0][0]:.3g} and {ratios[1][0]:.3g}" if ratios[0] and ratios[1] else "none whole"
                reasons.append(f"'{first.job}' beside '{second.job}': ratios {shown}; {ratios[2]}")
    found = _core.plan_queue(jobs, pairs, settings.memory)
    names = [profile.job for profile in profiles]
    pieces = [
        Piece(names[p.job], None if p.partner is None else names[p.partner], p.sub_batches, p.begin, p.end)
        for p in found.pieces
    ]
    order = list(dict.fromkeys(piece.job for piece in pieces))
    return DevicePlan(
        pieces=pieces,
        ends=dict(zip(names, found.ends, strict=True)),
        average_s=found.average,
        one_by_one_s=_one_by_one(jobs, settings),
        decision="in this order: " + ", ".join(order),
        reasons=reasons,
        exact=found.exact,
    )
