"""The states of tracked objects."""

from __future__ import annotations

from typing import Any

import torch

from torchshare.context.tracked import Tracked
from torchshare.memory import copies


def state_of(value: Any) -> Any:
    return value.get_state() if isinstance(value, torch.Generator) else value.state_dict()


def load_state(value: Any, state: Any) -> None:
    """`state` may be backed by a file."""
    if isinstance(value, torch.Generator):
        value.set_state(state)
    elif isinstance(value, torch.nn.Module):
        value.load_state_dict(state)
    else:  # may keep the tensors
        value.load_state_dict(copies.map_tensors(torch.clone, state))


def track(job: str, tracked: Tracked, loader: Any, objects: dict[str, Any]) -> None:
    """See Job.track. Raises TypeError or ValueError."""
    tracked.add(job, loader, objects)
    for name, value in tracked.objects.items():
        try:
            copies.check(state_of(value))
        except ValueError as error:
            raise TypeError(f"job '{job}': the state of {name} could not be loaded again: {error}") from None
