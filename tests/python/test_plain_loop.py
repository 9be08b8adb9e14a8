"""`torchshare.batches` and `torchshare.accumulate` in training loops that know nothing of jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from conftest import run_one
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchshare
from torchshare import Job

ROWS = 44  # batches of 16, 16 and 12 rows; in sub-batches of 6: 6, 6, 4 and 6, 6


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    data = TensorDataset(torch.randn(ROWS, 5, dtype=torch.float64), torch.randint(0, 3, (ROWS,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, DataLoader(data, 16, shuffle=True)


def loop(zero_first: bool, of_model: bool) -> Callable[[object], list[torch.Tensor]]:
    """A loop with a schedule, clipping and both habits of zeroing gradients."""

    def train(_job: object) -> list[torch.Tensor]:
        model, optimizer, loader = parts()
        loader = torchshare.batches(loader)
        optimizer = torchshare.accumulate(optimizer)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        per_epoch = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        zero_grad = model.zero_grad if of_model else optimizer.zero_grad
        for _epoch in range(3):
            bodies = 0
            for x, y in loader:
                bodies += 1
                if zero_first:
                    zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                schedule.step()
                if not zero_first:
                    zero_grad()
            assert bodies == len(loader)
            per_epoch.step()
        return [*model.parameters(), torch.tensor(per_epoch.get_last_lr())]

    return train


@pytest.mark.parametrize(("zero_first", "of_model"), [(True, False), (False, False), (True, True), (False, True)])
def test_two_lines_split_batches_with_the_same_mathematics(zero_first: bool, of_model: bool):
    train = loop(zero_first, of_model)
    whole, alone = run_one(train), train(None)  # outside of a job, the two lines do nothing
    assert all(torch.equal(a, b) for a, b in zip(whole.value, alone, strict=True))
    split = run_one(train, sub_batch=6)
    assert (whole.steps, whole.sub_batches, split.steps, split.sub_batches) == (9, 9, 9, 24)
    for a, b in zip(split.value, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_nan_in_one_job_stays_in_it():
    def train(value: float) -> Callable[[Job], list[torch.Tensor]]:
        def body(job: Job) -> list[torch.Tensor]:
            model, optimizer, loader = parts()
            for batch in job.batches(loader, sub_batch=6):
                batch.backward(lambda x, y: nn.functional.cross_entropy(model(x * value), y))
                optimizer.step()
                optimizer.zero_grad()
            return list(model.parameters())

        return body

    alone = run_one(train(1.0)).value
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(train(float("nan")), name="nan", priority="primary", threads=1)
        runtime.submit(train(1.0), name="other", threads=1)
        results = runtime.wait(300)
    assert all(parameter.isnan().any() for parameter in results["nan"].value)
    assert all(map(torch.equal, results["other"].value, alone))


def test_batches_without_accumulate_are_not_split(caplog: pytest.LogCaptureFixture):
    def train(job: Job) -> list[int]:
        _model, _optimizer, loader = parts()
        return [len(x) for x, _y in torchshare.batches(loader)]

    with caplog.at_level(logging.WARNING, "torchshare"):
        assert run_one(train, sub_batch=6).value == [16, 16, 12]
    assert "torchshare.batches splits nothing without torchshare.accumulate" in caplog.text


def test_a_loss_function_may_return_more_than_the_loss():
    def train(job: Job) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        model, _optimizer, loader = parts()

        def loss_fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            outputs = model(x)
            return nn.functional.cross_entropy(outputs, y), outputs.argmax(1)

        batch = next(iter(job.batches(loader)))
        loss, predicted = batch.backward(loss_fn)
        return loss, predicted, model(batch.data[0]).argmax(1)

    loss, predicted, whole = run_one(train, sub_batch=6).value
    assert loss.shape == () and [len(part) for part in predicted] == [6, 6, 4]
    assert torch.equal(torch.cat(predicted), whole)
