"""What sees or rewrites ops itself, beside the hook: functorch's transforms, modes, fake tensors, checkpointing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import SOON_S
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torchshare


def per_row_gradients(weight: Tensor, rows: Tensor) -> Tensor:
    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return (torch.tanh(row @ weight) ** 2).sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, rows)  # type: ignore[no-any-return]


def hessian(weight: Tensor, rows: Tensor) -> Tensor:
    return torch.func.hessian(lambda row: torch.sigmoid(row @ weight).sum())(rows[0])  # type: ignore[no-any-return]


def of_fake_tensors(weight: Tensor, rows: Tensor) -> Tensor:
    with FakeTensorMode() as mode:
        shape = (mode.from_tensor(rows) @ mode.from_tensor(weight)).relu().shape
    return torch.tensor(shape)


def counted(weight: Tensor, rows: Tensor) -> Tensor:
    class Count(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops += 1
            return func(*args, **(kwargs or {}))

    with Count() as count:
        product = (rows @ weight).relu().sum()
    return torch.stack([product, torch.tensor(float(count.ops))])


def recomputed(weight: Tensor, rows: Tensor) -> Tensor:
    weight = weight.clone().requires_grad_()
    checkpoint(lambda: torch.tanh(rows @ weight), use_reentrant=False).sum().backward()
    return weight.grad  # type: ignore[return-value]


@pytest.mark.parametrize("transform", [per_row_gradients, hessian, of_fake_tensors, counted, recomputed])
def test_what_transforms_ops_gives_two_jobs_what_it_gives_alone(transform: Callable[[Tensor, Tensor], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [(torch.randn(6, 3, generator=generator), torch.randn(4, 6, generator=generator)) for _ in range(2)]
    alone = [transform(*each) for each in given]
    barrier = threading.Barrier(2)

    def repeated(weight: Tensor, rows: Tensor) -> list[Tensor]:
        barrier.wait(SOON_S)
        return [transform(weight, rows) for _ in range(10)]

    with torchshare.Runtime("cpu") as runtime:
        jobs = [
            runtime.submit(lambda _, each=each: repeated(*each), name=name, threads=1)
            for name, each in zip("ab", given, strict=False)
        ]
        runtime.wait(SOON_S)
    for job, expected in zip(jobs, alone, strict=True):
        assert all(torch.equal(each, expected) for each in job.result.value)
