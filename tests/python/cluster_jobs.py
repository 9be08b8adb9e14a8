"""Jobs for the tests of clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from torchshare import Job

Weights = dict[str, torch.Tensor]

SCRIPT = """
import sys, time, torch, torchshare
steps, seconds = int(sys.argv[1]), float(sys.argv[2])
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torchshare.track(model=model, optimizer=optimizer)
for (x,) in torchshare.batches([(torch.ones(4, 3),)] * steps):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    print("step", flush=True)
    time.sleep(seconds)
print("trained")
"""


def training(
    epochs: int = 4, seconds: float = 0.0, seed: int = 0, marks: Path | None = None
) -> Callable[[Job], Weights]:
    """A small training with dropout and shuffled batches: 8 steps an epoch, with a pause in each. Appends a line to
    `marks` at its end."""

    def train(job: Job) -> Weights:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
        loader = DataLoader(data, 8, shuffle=True)
        job.track(model=model, optimizer=optimizer, loader=loader)
        for _ in job.epochs(epochs):
            for batch in job.batches(loader):
                batch.backward(lambda x, y: F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                time.sleep(seconds)
        print(f"job {job.name} has trained")
        if marks is not None:
            with marks.open("a") as file:
                file.write("end\n")
        return model.state_dict()

    return train


def equal(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[key]) for key, value in a.items())
