"""Suspends a job between sub-batches and moves its tracked tensors off the device, until it is resumed.

Only the memory moves: each storage is emptied and later filled again, so every tensor, view and optimizer state stays
the Python object that it is.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from torchshare import _C
from torchshare.context.errors import is_out_of_memory
from torchshare.device import devices
from torchshare.memory import copies

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")

_POLL_S = 0.2


def park(job: JobContext) -> None:
    """Called where no graph of autograd holds tensors of the job, in its thread."""
    spilled = Spilled(job)
    try:
        job.park()
        job.handle.yield_point()
    except BaseException:
        job.resume()  # it was cancelled, and may run ops to clean up
        raise
    finally:
        spilled.restore()


class Spilled:
    """The memory of a job's tracked objects, in host memory or, on the CPU, in a file. A cancellation does not reach
    the job in `__init__` and `restore` (see isolation.interrupt): an emptied tensor must not be used."""

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._copies: list[tuple[torch.UntypedStorage, Tensor]] = []
        try:
            storages = {storage.data_ptr(): storage for storage in _storages(job)}
            for storage in storages.values():
                self._copies.append((storage, _kept_bytes(storage)))
            job.handle.synchronize()
        except (RuntimeError, OSError) as error:
            self._copies.clear()
            log.warning("job '%s': is suspended, but its memory stays on the device: %s", job.name, error)
            return
        if not self._copies:
            log.warning(
                "job '%s': is suspended, but its memory stays on the device: pass what it holds to job.track, as in "
                "job.track(model=model, optimizer=optimizer)",
                job.name,
            )
            return
        for storage, _ in self._copies:
            storage.resize_(0)
        _C.for_the_process(devices.of(_kind(job)).empty_cache)  # a job's own call does nothing beside others
        job.handle.set_spilled(True)
        job.moves += 1
        moved = sum(kept.numel() for _, kept in self._copies)
        log.info(
            "job '%s': suspended; %.1f MiB were moved off the device, %.1f MiB stay",
            job.name,
            moved / 2**20,
            job.handle.memory_held / 2**20,
        )

    def restore(self) -> None:
        """Moves everything back; waits until there is memory for it."""
        is_waiting = False
        was_spilled = bool(self._copies)
        while not self._restored():
            if not is_waiting:
                is_waiting = True
                log.warning("job '%s': is resumed, and waits for memory", self._job.name)
            self._job.handle.sleep(_POLL_S)
        if was_spilled:
            self._job.handle.set_spilled(False)

    def _restored(self) -> bool:
        filled = []
        try:
            for storage, kept in self._copies:
                storage.resize_(kept.numel())
                filled.append(storage)
                _bytes_of(storage).copy_(kept, non_blocking=True)
            self._job.handle.synchronize()
        except RuntimeError as error:
            for storage in filled:
                storage.resize_(0)
            if not is_out_of_memory(error):
                raise
            return False
        self._copies.clear()
        return True


def _kind(job: JobContext) -> str:
    return "cpu" if job.device is None else job.device.type


def _storages(job: JobContext) -> Iterator[torch.UntypedStorage]:
    """The storages of tracked objects that are on the job's device and may be emptied."""
    device = _kind(job)
    for value in job.tracked.objects.values():
        for tensor in _tensors_of(value):
            if tensor.layout is not torch.strided or is_lazy(tensor):
                continue
            storage = tensor.untyped_storage()
            in_use = storage.device.type == device and storage.nbytes() > 0
            if in_use and storage.resizable() and not (device == "cpu" and storage.is_shared()):
                yield storage


def _tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.nn.Module):
        parameters = list(value.parameters())
        yield from parameters
        yield from (parameter.grad for parameter in parameters if parameter.grad is not None)
        yield from value.buffers()
    elif isinstance(value, torch.optim.Optimizer):
        found: list[Tensor] = []
        copies.map_tensors(found.append, dict(enumerate(value.state.values())))
        yield from found


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _kept_bytes(storage: torch.UntypedStorage) -> Tensor:
    size = storage.nbytes()
    if storage.device.type == "cpu":
        with tempfile.NamedTemporaryFile(prefix="torchshare-spill-") as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not a signal later
            kept = torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
    else:
        kept = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return kept.copy_(_bytes_of(storage), non_blocking=True)
