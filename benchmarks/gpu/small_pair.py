"""A few steps of two small jobs with graphs, best_fit and a budget, for compute-sanitizer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import torchshare


def train(job: torchshare.Job, graph: bool) -> float:
    with torch.device("cuda"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8 * 36, 4))
        data = [(torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,)))] * 6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    loss = job.graph(loss_fn) if graph else loss_fn
    for batch in job.batches(data, sub_batch=4):
        total = batch.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return total.item()


if __name__ == "__main__":
    with torchshare.Runtime(device="cuda", policy="best_fit") as runtime:
        runtime.submit(lambda job: train(job, True), name="graphs", priority="primary", memory_budget=2**28)
        runtime.submit(lambda job: train(job, False), name="eager")
        print(runtime.wait())
