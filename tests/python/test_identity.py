"""A job's weights are bit-identical to running alone with the same sub-batch size and threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import run_one, run_ops_for_ever, wait_until
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import torchshare
from torchshare import Job

Weights = dict[str, torch.Tensor]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 24, num_layers=2, dropout=0.3, batch_first=True)
        self.out = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x.flatten(1, 2))[0][:, -1])


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(16 * 36, 4)
    )


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.2, batch_first=True)
    return nn.Sequential(nn.Flatten(1, 2), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(128, 4))


def trainer(make: Callable[[], nn.Module], optimizer_type: type[torch.optim.Optimizer]) -> Callable[[Job], Weights]:
    def train(job: Job) -> Weights:
        model = make()
        optimizer = optimizer_type(model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(96, 2, 8, 8), torch.randint(0, 4, (96,)))
        for _ in range(3):
            for batch in job.batches(DataLoader(data, batch_size=16, shuffle=True), sub_batch=6):
                batch.backward(lambda x, y: F.cross_entropy(model(x), y))
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        return model.state_dict()

    return train


PAIRS = {
    "conv beside lstm": (trainer(conv, torch.optim.AdamW), trainer(Recurrent, torch.optim.SGD)),
    "attention beside conv": (trainer(attention, torch.optim.Adam), trainer(conv, torch.optim.SGD)),
}


@functools.cache
def alone(function: Callable[[Job], Weights], **options: Any) -> Weights:
    """The weights that a job ends with alone. Tests share them."""
    return run_one(function, **options).value


def identical(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


@pytest.mark.filterwarnings("ignore:.*takes its statistics")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("first", "second"), PAIRS.values(), ids=PAIRS)
def test_both_jobs_end_with_the_weights_they_have_alone(first, second, threads, policy):
    with torchshare.Runtime(policy=policy) as runtime:
        runtime.submit(first, name="first", priority="primary", threads=threads, seed=0)
        runtime.submit(second, name="second", start="step:3", threads=threads, seed=1)
        results = runtime.wait(300)
    assert identical(alone(first, threads=threads, seed=0), results["first"].value)
    assert identical(alone(second, threads=threads, seed=1), results["second"].value)
    other_seed = alone(first, threads=threads, seed=9)
    assert not identical(other_seed, results["first"].value)  # the comparison can fail


def fail(job: Job) -> None:
    torch.ones(3) @ torch.ones(4)


BESIDE_A_BAD_PARTNER = trainer(attention, torch.optim.AdamW)
PARTNERS = {"fails": fail, "is cancelled": run_ops_for_ever, "is suspended": run_ops_for_ever}


@pytest.mark.filterwarnings("ignore:.*takes its statistics")
@pytest.mark.parametrize("priority", ["primary", "secondary"])
@pytest.mark.parametrize(("what", "function"), PARTNERS.items(), ids=PARTNERS)
def test_a_partner_that_ends_badly_changes_no_bit(what, function, priority):
    with torchshare.Runtime() as runtime:
        job = runtime.submit(BESIDE_A_BAD_PARTNER, name="train", threads=1, priority=priority)
        partner = runtime.submit(function, name="partner", threads=1)
        runtime.start()
        wait_until(lambda: job.result.steps >= 3)
        if what == "is suspended":
            partner.suspend()
            wait_until(lambda: partner.state == "suspended")
            partner.resume()
        if what != "fails":  # this job ends by itself
            partner.cancel()
        results = runtime.wait(300, check=False)
    assert results["partner"].state == ("failed" if what == "fails" else "cancelled")
    assert identical(alone(BESIDE_A_BAD_PARTNER), results["train"].value)


def test_a_job_that_is_suspended_and_resumed_changes_no_bit():
    train = trainer(Recurrent, torch.optim.Adam)
    with torchshare.Runtime() as runtime:
        job = runtime.submit(train, name="train", threads=1)
        runtime.start()
        for steps in (2, 6, 11):
            wait_until(lambda steps=steps: job.result.steps >= steps)
            job.suspend()
            wait_until(lambda: job.state != "running")
            job.resume()
        assert identical(alone(train), runtime.wait(300)["train"].value)


class Listens(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.heard.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_in_a_job_sees_the_same_ops_as_in_plain_torch():
    def body(job: Job | None) -> tuple[list[str], torch.Tensor]:
        generator = torch.Generator().manual_seed(7)
        weights = torch.ones(4, 4, requires_grad=True)
        with Listens() as mode:
            x = torch.randn(4, 4, generator=generator)
            F.relu(x @ weights).sum().backward()
        assert weights.grad is not None
        return mode.heard, weights.grad

    heard, gradient = run_one(body).value
    plain, expected = body(None)
    assert heard == plain and "aten.mm.default" in heard
    assert torch.equal(gradient, expected)
