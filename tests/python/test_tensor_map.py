"""What is known of a tensor ends with it: another one may come to lie at its address."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from torchshare.context.tensor_map import TensorMap


def test_a_tensor_at_the_address_of_a_dead_one_is_another() -> None:
    known: TensorMap[str] = TensorMap()
    addresses = set()
    for number in range(1000):
        tensor = torch.ones(3)
        assert tensor not in known
        assert known.setdefault(tensor, lambda _, number=number: str(number)) == str(number)  # type: ignore[misc]
        addresses.add(id(tensor))
    assert len(addresses) < 1000, "no address was used again"
    assert len(known) == 1
    del tensor
    assert not list(known.items())


def test_values_are_by_identity_and_die_with_their_tensors() -> None:
    known: TensorMap[torch.Tensor] = TensorMap()
    kept, equal, gone = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    known[kept], known[gone] = torch.ones(1), torch.ones(2)
    value = weakref.ref(known.setdefault(gone, torch.zeros_like))
    assert (kept in known, equal in known, gone in known) == (True, False, True)
    gone.itself = gone  # type: ignore[attr-defined]  # a cycle
    del gone
    gc.collect()
    assert value() is None
    assert [tensor is kept for tensor in known] == [True]
    known.discard(equal)
    known.discard(kept)
    assert not known
