"""A job's random state, as values that can be saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import torch

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext


def get(job: JobContext, loader: Any) -> dict[str, Any]:
    """The random state of the job and of its loader's generators. Called in the job's thread."""
    _kind, keys, *rest = job.numpy_random.get_state(legacy=True)
    device = job.handle.device_generator
    return {
        "torch": job.handle.generator.get_state(),
        "device": None if device is None else device.get_state(),
        "python": job.random.getstate(),
        "numpy": (keys.tolist(), *rest),  # type: ignore[union-attr]
        "loader": [generator.get_state() for generator in _generators_of(loader)],
    }


def put(job: JobContext, loader: Any, state: dict[str, Any]) -> None:
    """Restores what `get` returned. In the job's thread."""
    job.handle.generator.set_state(state["torch"])
    device = job.handle.device_generator
    if device is not None and state["device"] is not None:
        device.set_state(state["device"])
    job.random.setstate(state["python"])
    keys, *rest = state["numpy"]
    job.numpy_random.set_state(("MT19937", numpy.array(keys, dtype=numpy.uint32), *rest))
    for generator, each in zip(_generators_of(loader), state["loader"], strict=False):
        generator.set_state(each)


def _generators_of(loader: Any) -> list[torch.Generator]:
    """The `generator=` of a DataLoader, and of its sampler."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    places = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = (getattr(place, "generator", None) for place in places)
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())
