"""Jobs that train with compiled steps, and what they train."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import conftest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchshare
from torchshare import Job
from torchshare.training.compiled_step import CompiledStep

ROWS, STEPS = 10, 50
COMPILING_S = 300.0  # for a few packages, on a busy machine
run_one = functools.partial(conftest.run_one, timeout=COMPILING_S)


class Sequence(nn.Module):
    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, layers, batch_first=True, dropout=0.5 if layers > 1 else 0.0)
        self.classify = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.lstm(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        # A bias would get a gradient of rounding errors only, which AdamW amplifies.
        *(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4)),
    )


class Attention(nn.Module):
    """Attention with one head, as a formula: torch's own op cannot be compiled in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1) @ v


def transformer() -> nn.Module:
    feed = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return nn.Sequential(nn.Linear(6, 8), Attention(), feed, nn.Flatten(), nn.Linear(40, 4))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(6, 8), layer, nn.Flatten(), nn.Linear(40, 4))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, amsgrad=True, weight_decay=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[Any], torch.optim.Optimizer]]] = {
    "mlp": (mlp, (6,), sgd),
    "cnn": (cnn, (2, 6, 6), adamw),
    "lstm": (Sequence, (5, 6), adam),
    "transformer": (transformer, (5, 6), adamw),
    "dropping": (dropping, (6,), sgd),
    "encoder": (encoder, (5, 6), sgd),
    "lstms": (lambda: Sequence(2), (5, 6), sgd),
}


class Training:
    """A model of one of KINDS, its optimizer, and data in batches of ROWS."""

    def __init__(
        self,
        kind: str,
        dtype: torch.dtype = torch.float64,
        batches: int = 5,
        last: int = ROWS,
        device: str = "cpu",
    ) -> None:
        make, shape, optimize = KINDS[kind]
        self.model = make().to(device, dtype)
        self.optimizer = optimize(self.model.parameters())
        sizes = [ROWS] * (batches - 1) + [last]
        self.batches = [
            (torch.randn(n, *shape, dtype=dtype).to(device), torch.randint(0, 4, (n,)).to(device)) for n in sizes
        ]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def endless(self) -> Iterator[Any]:
        return itertools.cycle(self.batches)

    def step(self, job: Job, **options: Any) -> CompiledStep:
        return job.compiled_step(self.model, self.loss, self.optimizer, self.batches[0], **options)

    def eager_step(self, batch: torchshare.Batch) -> None:
        batch.backward(self.loss)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> list[Tensor]:
        state = [tensor for of_one in self.optimizer.state.values() for _, tensor in sorted(of_one.items())]
        return [tensor.detach().clone() for tensor in (*self.model.state_dict().values(), *state)]


def eagerly(kind: str, steps: int = STEPS, **options: Any) -> Callable[[Job], list[Tensor]]:
    """A job that trains in eager and returns all its tensors."""

    def train(job: Job) -> list[Tensor]:
        training = Training(kind, **options)
        for batch in itertools.islice(job.batches(training.endless()), steps):
            training.eager_step(batch)
        return training.tensors()

    return train


def compiled(kind: str, steps: int = STEPS, fit: bool = False, **options: Any) -> Callable[[Job], list[Tensor]]:
    """The same with a compiled step; only the first step runs in eager."""

    def train(job: Job) -> list[Tensor]:
        training = Training(kind, **options)
        step = training.step(job)
        assert step.fallback is None
        if fit:
            assert job.fit(step, training.batches, steps=steps).shape == (steps,)
        else:
            for batch in itertools.islice(job.batches(training.endless()), steps):
                step(batch)
        assert step.fallback is None
        return training.tensors()

    return train


def assert_close(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-10) -> None:
    """`tolerance`: times the largest element of each tensor."""
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert (x - y).abs().max() <= tolerance * y.abs().max(), (x, y)


def assert_identical(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)
