"""The queue of `torchshare run`: how many of its jobs run at once, and in which order the others start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchshare.runtime.options import JobOptions

MAX_CONCURRENT = 2
"""Jobs that run at once, if there are more and --max-concurrent does not say."""


@dataclass(frozen=True)
class Queue:
    names: list[str]
    """All jobs, in the order in which they start."""
    max_concurrent: int
    reason: str

    def __str__(self) -> str:
        order = ", ".join(self.names)
        return f"{self.max_concurrent} of {len(self.names)} jobs run at once (--max-concurrent), {self.reason}: {order}"


def queue(jobs: Mapping[str, JobOptions], max_concurrent: int | None) -> Queue | None:
    """None if no job has to wait. The order is the planner's where it can plan, else as given."""
    max_concurrent = MAX_CONCURRENT if max_concurrent is None else max_concurrent
    if len(jobs) <= max_concurrent:
        return None
    unprofiled = [name for name, options in jobs.items() if options.get("profile") is None]
    if unprofiled:
        return Queue(list(jobs), max_concurrent, f"in the order given, as '{unprofiled[0]}' has no --profile")
    try:
        return Queue(
            _planned(jobs), max_concurrent, "in the order of the least average completion time by their profiles"
        )
    except ValueError as error:
        return Queue(list(jobs), max_concurrent, f"in the order given, as no plan can be made ({error})")


def _planned(jobs: Mapping[str, JobOptions]) -> list[str]:
    """Raises ValueError for profiles that cannot be used, or not together."""
    from torchshare.profiles.profile import Profile  # slow to import
    from torchshare.profiling.plan import PlanSettings, plan_queue

    profiles = {name: Profile.load(str(options["profile"])) for name, options in jobs.items()}
    names = {profile.job: name for name, profile in profiles.items()}
    steps = {profiles[name].job: given for name, options in jobs.items() if (given := options.get("steps")) is not None}
    found = plan_queue(list(profiles.values()), PlanSettings(steps=steps))
    return list(dict.fromkeys([*(names[piece.job] for piece in found.pieces), *jobs]))
