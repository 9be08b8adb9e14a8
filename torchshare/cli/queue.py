"""The queue of `torchshare run`: how many of its jobs run at once, and in which order the others start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchshare.runtime.options import JobOptions

RESIDENT = 2
"""Jobs that run at once, if there are more and --resident does not say."""


@dataclass(frozen=True)
class Queue:
    names: list[str]
    """All jobs, in the order in which they start."""
    resident: int
    reason: str

    def __str__(self) -> str:
        order = ", ".join(self.names)
        return f"{self.resident} of {len(self.names)} jobs run at once (--resident), {self.reason}: {order}"


def queue(jobs: Mapping[str, JobOptions], resident: int | None) -> Queue | None:
    """None if no job has to wait. The order is the planner's where it can plan, else as given."""
    resident = RESIDENT if resident is None else resident
    if len(jobs) <= resident:
        return None
    unprofiled = [name for name, options in jobs.items() if options.get("profile") is None]
    if unprofiled:
        return Queue(list(jobs), resident, f"in the order given, as '{unprofiled[0]}' has no --profile")
    try:
        return Queue(_planned(jobs), resident, "in the order of the least average completion time by their profiles")
    except ValueError as error:
        return Queue(list(jobs), resident, f"in the order given, as no plan can be made ({error})")


def _planned(jobs: Mapping[str, JobOptions]) -> list[str]:
    """Raises ValueError for profiles that cannot be used, or not together."""
    from torchshare.profiles.profile import Profile  # slow to import
    from torchshare.profiling.plan import PlanSettings, plan_queue

    profiles = {name: Profile.load(str(options["profile"])) for name, options in jobs.items()}
    names = {profile.job: name for name, profile in profiles.items()}
    steps = {profiles[name].job: given for name, options in jobs.items() if (given := options.get("steps")) is not None}
    found = plan_queue(list(profiles.values()), PlanSettings(steps=steps))
    return list(dict.fromkeys([*(names[piece.job] for piece in found.pieces), *jobs]))
