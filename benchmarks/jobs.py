"""The jobs of the benchmarks: one training loop that runs in a plain thread, in another process or in torchshare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F

import torchshare

ROWS = 32
CLASSES = 10
FETCH_S = 0.03  # how long the input-bound job's loader sleeps per batch, as on remote storage


class Meter(Protocol):
    def step_done(self) -> bool:
        """Called after each step; False ends the training."""


class StepMeter:
    """Ends a training after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step_done(self) -> bool:
        self.left -= 1
        return self.left > 0


def conv_net(channels: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()),
        *(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(2 * channels, CLASSES)),
    )


def tiny_net() -> nn.Module:
    """20 layers of 32: bound by Python and dispatch."""
    return nn.Sequential(
        *(layer for _ in range(20) for layer in (nn.Linear(32, 32), nn.ReLU())), nn.Linear(32, CLASSES)
    )


class SequenceNet(nn.Module):
    """An LSTM over 20 short vectors: small ops, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.classify = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        classes: torch.Tensor = self.classify(self.lstm(x)[0][:, -1])
        return classes


def mlp_net() -> nn.Module:
    """Three layers of 512: medium-sized ops."""
    return nn.Sequential(
        *(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)),
    )


class TransformerNet(nn.Module):
    """Two encoder layers over 64 vectors of 128: products of many sizes."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2)
        self.classify = nn.Linear(128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        classes: torch.Tensor = self.classify(self.encode(x).mean(1))
        return classes


class StreamingNet(nn.Module):
    """Bound by memory: every step streams a vector of 32 MiB through a few cheap ops, forward, backward and update."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8 << 20))
        self.classify = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale: torch.Tensor = (self.table * 0.5 + 1.0).mean()
        return self.classify(x * scale)


Build = tuple[Callable[[], nn.Module], tuple[int, ...], float]  # model, shape of one row, seconds of sleep per batch
KINDS: dict[str, Build] = {
    "conv": (lambda: conv_net(32), (3, 32, 32), 0.0),
    "tiny": (tiny_net, (32,), 0.0),
    "lstm": (SequenceNet, (20, 32), 0.0),
    "mlp": (mlp_net, (784,), 0.0),
    "transformer": (TransformerNet, (64, 128), 0.0),
    "memory": (StreamingNet, (32,), 0.0),
    "input_bound": (lambda: conv_net(16), (3, 32, 32), FETCH_S),
}


def loader(shape: tuple[int, ...], sleep_s: float, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y = torch.randn(rows, *shape), torch.randint(0, CLASSES, (rows,))
    while True:
        if sleep_s > 0:
            time.sleep(sleep_s)
        yield x, y


def train(kind: str, meter: Meter, job: torchshare.Job | None = None, threads: int = 1) -> None:
    """Trains with `threads` intra-op threads until `meter` returns False. With `job`, through its dataloader hook."""
    torch.set_num_threads(threads)
    Training(kind).run(meter, job)


class Training:
    """The model, optimizer and data of a kind of job; "conv:128" has batches of 128."""

    def __init__(self, kind: str) -> None:
        kind, _, rows = kind.partition(":")
        make, shape, sleep_s = KINDS[kind]
        self.model = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.batches = loader(shape, sleep_s, int(rows or ROWS))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y)

    def run(self, meter: Meter, job: torchshare.Job | None) -> None:
        """Trains in eager until `meter` returns False."""
        step_through(self.batches if job is None else job.batches(self.batches), self.loss, self.optimizer, meter)


def step_through(
    batches: Iterable[Any], loss: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, meter: Meter
) -> None:
    """Trains on plain batches, or on those of a job's dataloader hook, until `meter` returns False."""
    for batch in batches:
        if isinstance(batch, torchshare.Batch):
            batch.backward(loss)
        else:
            loss(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not meter.step_done():
            return
