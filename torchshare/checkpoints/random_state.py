"""A job's random state, as values that can be saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext


def get(job: JobContext, loader: Any) -> dict[str, Any]:
    """The random state of the job and of its loader's generators. Called in the job's thread."""
    device = job.handle.device_generator
    return {
        "torch": job.handle.generator.get_state(),
        "device": None if device is None else device.get_state(),
        "python": job.random.getstate(),
        "numpy": job.host_random.numpy_state(),
        "loader": [generator.get_state() for generator in _generators_of(loader)],
    }


def put(job: JobContext, loader: Any, state: dict[str, Any]) -> None:
    """Restores what `get` returned. In the job's thread."""
    job.handle.generator.set_state(state["torch"])
    device = job.handle.device_generator
    if device is not None and state["device"] is not None:
        device.set_state(state["device"])
    job.random.setstate(state["python"])
    job.host_random.set_numpy_state(state["numpy"])
    for generator, each in zip(_generators_of(loader), state["loader"], strict=False):
        generator.set_state(each)


def _generators_of(loader: Any) -> list[torch.Generator]:
    """The `generator=` of a DataLoader, and of its sampler."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = (getattr(each, "generator", None) for each in owners)
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())
