"""Jobs that train on a GPU, and what they train alone: shared by the tests marked `gpu`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from conftest import run_one
from torch import Tensor, nn
from torch.nn import functional as F

import torchshare
from torchshare import Job, Results

MIB = 2**20
SLEEP_CYCLES = 1_000_000_000  # of torch.cuda._sleep: about half a second

Make = Callable[[], nn.Module]
Train = Callable[[Job], list[Tensor]]


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(16 * 36, 4)
    )


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.2, batch_first=True)
    return nn.Sequential(
        nn.Flatten(2), nn.Linear(64, 8), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(24, 4)
    )


def trainer(
    make: Make,
    *,
    sub_batch: int | None = 8,
    last: int = 16,
    epochs: int = 2,
    graph: bool = False,
    backend: str | None = None,
    at_step: Callable[[int], None] = lambda _: None,
) -> Train:
    """A job that trains a model and returns its weights, buffers and next random numbers.

    Args:
        last: rows of the last batch of each epoch; the others have 16.
        graph: with `job.graph`.
        backend: of `torch.compile`, if the model is to be compiled.
        at_step: called with the step's number before each step.
    """

    def train(job: Job) -> list[Tensor]:
        with torch.device("cuda"):
            model = make()
            data = [(torch.randn(rows, 3, 8, 8), torch.randint(0, 4, (rows,))) for rows in (*[16] * 7, last)]
        called = model if backend is None else torch.compile(model, backend=backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def loss_fn(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(called(x), y)

        loss = job.graph(loss_fn) if graph else loss_fn
        for _ in range(epochs):
            for batch in job.batches(data, sub_batch=sub_batch):
                at_step(job.result.steps)
                batch.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        if graph:
            assert loss.fallback is None, loss.fallback  # type: ignore[attr-defined]
        return [*model.state_dict().values(), torch.rand(4, device="cuda")]

    return train


def on_gpu(function: Callable[[Job], Any], **options: Any) -> Any:
    """Runs a job alone; returns its value, or raises what it raised."""
    return run_one(function, device="cuda", **options).value


@functools.cache
def alone(make: Make, seed: int = 0, **options: Any) -> list[Tensor]:
    """What `trainer` returns for a job that is alone in the runtime, computed once and kept on the CPU."""
    return [tensor.cpu() for tensor in on_gpu(trainer(make, **options), seed=seed, timeout=300)]


def identical(a: list[Tensor], b: list[Tensor]) -> bool:
    """Bit for bit, wherever the tensors are."""
    return len(a) == len(b) and all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(a, b, strict=True))


def run_pair(
    first: Callable[[Job], Any], second: Callable[[Job], Any], timeout: float = 90, check: bool = True, **options: Any
) -> Results:
    """Runs a primary with seed 0 and a secondary with seed 1 together; `options` are the runtime's."""
    with torchshare.Runtime(device="cuda", **options) as runtime:
        runtime.submit(first, name="first", priority="primary", threads=1, seed=0)
        runtime.submit(second, name="second", threads=1, seed=1)
        return runtime.wait(timeout, check=check)


def enters_beside(launch: Callable[[Job], torch.cuda.Event], *, busy: bool = False) -> bool:
    """Whether a lower job enters an op, under "strict", while what the primary has launched is not done.

    Args:
        launch: called in the primary; returns an event behind what it has launched.
        busy: the lower job runs ops until then, instead of waiting.
    """
    launched, entered = threading.Event(), threading.Event()

    def primary(job: Job) -> bool:
        done = launch(job)
        launched.set()
        entered.wait(0.1)
        return entered.is_set() and not done.query()

    def secondary(_job: Job) -> None:
        if busy:
            x = torch.ones(1, device="cuda")
            while not launched.is_set():
                x.add_(1)
            x.add_(1)
        else:
            launched.wait(30)
            torch.ones(1, device="cuda")
        entered.set()

    found: bool = run_pair(primary, secondary, policy="strict")["first"].value
    return found


def held_by_tensors() -> int:
    """Bytes, without the workspaces that cuBLAS keeps by stream."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()
