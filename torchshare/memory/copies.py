"""Copies of states, which hold tensors in dictionaries, lists and tuples."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

from torchshare import _C


def snapshot(state: Any) -> Any:
    """A copy of a state in the CPU's memory, which is not charged to the calling thread's job. Tensors that are the
    same stay the same."""
    copies: dict[tuple[Any, ...], torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor.detach().cpu().clone()
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype, tensor.device)
        if key not in copies or not storage.nbytes():
            copies[key] = _copy(tensor.detach())
        return copies[key]

    with _C.Unhooked(), torch.no_grad():
        return map_tensors(copied, state, copy.deepcopy)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    # numpy's memory: torch's allocator would charge it to the job.
    block = torch.from_numpy(numpy.empty(tensor.numel() * tensor.element_size(), numpy.uint8))
    dense = torch.empty_like(tensor, device="meta")  # its strides, without gaps
    return block.view(tensor.dtype).as_strided(dense.size(), dense.stride()).copy_(tensor)


def map_tensors(
    function: Callable[[torch.Tensor], Any], state: Any, other: Callable[[Any], Any] = lambda leaf: leaf
) -> Any:
    """Applies `function` to each tensor, and `other` to other leaves; containers are new."""
    if isinstance(state, torch.Tensor):
        return function(state)
    if isinstance(state, Mapping):
        mapped = {key: map_tensors(function, value, other) for key, value in state.items()}
        return mapped if type(state) is dict else _as(state, mapped, other)
    if isinstance(state, (list, tuple)):
        values = [map_tensors(function, value, other) for value in state]
        if type(state) is list:
            return values
        return tuple(values) if type(state) is tuple else _as(state, values, other)
    return other(state)


def _as(original: Any, items: Any, other: Callable[[Any], Any]) -> Any:
    """Items in a container of the original's type: an OrderedDict or a Counter. Others are refused by `check`."""
    try:
        made = type(original)(items)
        vars(made).update(getattr(original, "__dict__", {}))  # of a module's state: the versions of its layers
    except TypeError:
        return other(original)
    return made


def check(state: Any) -> None:
    """Raises ValueError, with the reason, for a state that `torch.load(weights_only=True)` would not load."""
    file = io.BytesIO()
    try:
        torch.save(map_tensors(lambda tensor: torch.empty(0), state), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        reason = str(error).partition("WeightsUnpickler error: ")[2] or str(error)
        raise ValueError(reason.strip().partition("\n")[0]) from None
