"""The gradients of a split batch are the whole batch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from conftest import run_one
from torch import nn
from torch.nn import functional as F

import torchshare
from torchshare import Job

ROWS = 7
CLASSES = 5
TOLERANCE = 1e-12  # relative, in float64


class LastOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES)), torch.randn(ROWS, 6)


def conv() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
    )
    return model, torch.randn(ROWS, 2, 6, 6)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(32, CLASSES)), torch.randn(ROWS, 4, 8)


def lstm() -> tuple[nn.Module, torch.Tensor]:
    return LastOutput(), torch.randn(ROWS, 5, 6)


MODELS = [mlp, conv, transformer, lstm]
LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mean": lambda out, y: F.cross_entropy(out, y),
    "sum": lambda out, y: F.cross_entropy(out, y, reduction="sum"),
}


@pytest.fixture(autouse=True)
def in_float64():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def in_job(body: Callable[[Job], None]) -> None:
    run_one(body)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("reduction", LOSSES)
@pytest.mark.parametrize("explicit", [False, True])
def test_every_sub_batch_size_gives_the_full_batchs_gradients(make, reduction, explicit):
    model, x = make()
    y = torch.randint(0, CLASSES, (ROWS,))
    loss_of = LOSSES[reduction]
    full = loss_of(model(x), y)
    full.backward()
    expected = gradients(model)

    def body(job: Job) -> None:
        for size in range(1, ROWS + 1):
            model.zero_grad()
            for batch in job.batches([(x, y)], sub_batch=size, reduction=reduction):
                if explicit:
                    for sub in batch:
                        (loss_of(model(sub.x), sub.y) * sub.weight).backward()
                else:
                    loss = batch.backward(lambda a, b: loss_of(model(a), b))
                    assert difference(loss, full.detach()) <= TOLERANCE
            assert difference(gradients(model), expected) <= TOLERANCE, size

    in_job(body)


def test_the_naive_weight_of_one_over_k_would_not():
    model, x = mlp()
    y = torch.randint(0, CLASSES, (ROWS,))
    F.cross_entropy(model(x), y).backward()
    expected = gradients(model)
    model.zero_grad()
    for piece in (slice(0, 4), slice(4, 7)):
        (F.cross_entropy(model(x[piece]), y[piece]) / 2).backward()
    assert difference(gradients(model), expected) > 1e-3


def test_a_mean_over_tokens_counts_the_batchs_tokens():
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    ids = torch.randint(0, 11, (ROWS, 9))
    labels = ids.clone()
    for row in range(ROWS):
        labels[row, row + 1 :] = -100  # row k keeps k + 1 tokens
    labels[3] = -100  # and one row has none

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)

    loss_of({"ids": ids, "labels": labels}).backward()
    expected = gradients(model)

    def body(job: Job) -> None:
        data = [{"ids": ids, "labels": labels}]
        for size in range(1, ROWS + 1):
            model.zero_grad()
            for batch in job.batches(data, sub_batch=size, count=lambda d: (d["labels"] != -100).sum()):
                batch.backward(loss_of)
            assert difference(gradients(model), expected) <= TOLERANCE, size
        model.zero_grad()
        for batch in job.batches(data, sub_batch=1):
            assert not batch.backward(loss_of).isfinite()  # weighted by rows, the fully masked sub-batch makes it NaN

    in_job(body)


def parameters_after(sub_batch: int | None, train: Callable[[Job, nn.Module, int | None], None]) -> torch.Tensor:
    torch.manual_seed(1)
    model, _ = mlp()
    in_job(lambda job: train(job, model, sub_batch))
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(ROWS, 6, generator=generator), torch.randint(0, CLASSES, (ROWS,), generator=generator))
        for _ in range(4)
    ]


def with_two_optimizers_and_a_scheduler(job: Job, model: nn.Module, sub_batch: int | None) -> None:
    first, last = model[0], model[2]
    optimizers = [torch.optim.AdamW(first.parameters(), lr=0.01), torch.optim.SGD(last.parameters(), lr=0.5)]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1) for optimizer in optimizers]
    for batch in job.batches(data(), sub_batch=sub_batch):
        batch.backward(lambda x, y: F.cross_entropy(model(x), y))
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    assert optimizers[1].param_groups[0]["lr"] == pytest.approx(0.005)


def test_two_optimizers_and_their_schedules_end_with_the_unsplit_weights():
    expected = parameters_after(None, with_two_optimizers_and_a_scheduler)
    for size in (1, 3, 4, ROWS):
        found = parameters_after(size, with_two_optimizers_and_a_scheduler)
        assert difference(found, expected) <= TOLERANCE, size


def split_warnings(module: nn.Module, sub_batch: int | None, training: bool = True) -> list[str]:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), module, nn.Flatten(), nn.LazyLinear(CLASSES))
    model(torch.randn(ROWS, 2, 6, 6))
    model.train(training)
    batches = [(torch.randn(ROWS, 2, 6, 6), torch.randint(0, CLASSES, (ROWS,)))] * 3

    def body(job: Job) -> None:
        for batch in job.batches(batches, sub_batch=sub_batch):
            batch.backward(lambda x, y: F.cross_entropy(model(x), y))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        in_job(body)
    return [str(warning.message) for warning in caught if "sub-batch" in str(warning.message)]


def test_batch_norm_gets_one_warning_that_says_what_differs():
    messages = split_warnings(nn.BatchNorm2d(4), sub_batch=3)
    assert len(messages) == 1
    assert "job 'alone': BatchNorm2d takes its statistics from each sub-batch" in messages[0]
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize(
    ("module", "sub_batch", "training"),
    [
        (nn.BatchNorm2d, None, True),
        (nn.BatchNorm2d, ROWS, True),
        (nn.BatchNorm2d, 3, False),
        (lambda channels: nn.GroupNorm(2, channels), 3, True),
        (nn.InstanceNorm2d, 3, True),
        (lambda _: nn.Dropout(0.5), 3, False),
        (lambda _: nn.Dropout(0.0), 3, True),
    ],
)
def test_what_does_not_differ_gets_no_warning(module, sub_batch, training):
    assert split_warnings(module(4), sub_batch, training) == []


def test_dropout_and_batch_norm_get_one_warning_together():
    messages = split_warnings(nn.Sequential(nn.BatchNorm2d(4), nn.Dropout(0.1), nn.Dropout2d(0.1)), sub_batch=3)
    assert len(messages) == 1
    assert "per sub-batch (GroupNorm and LayerNorm do not); Dropout2d draws its masks once per sub-batch" in messages[0]


class Recurrent(nn.Module):
    """Reads each row in two parts. `keeps` is what it begins a sub-batch with: the state at its end, or none."""

    def __init__(self, keeps: bool, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.keeps, self.state = kind(5, 6, batch_first=True), keeps, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lstm = isinstance(self.cell, nn.LSTM)
        zeros = torch.zeros(1, len(x), 6)
        state = self.state if self.keeps else ((zeros, zeros) if lstm else zeros)
        for part in x[:, :3], x[:, 3:]:
            out, state = self.cell(part, state)
            state = tuple(each.detach() for each in state) if lstm else state.detach()
        self.state = state
        return out[:, -1]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_state_that_a_loop_keeps_gets_a_warning(keeps: bool, kind: type[nn.RNNBase]):
    model = Recurrent(keeps, kind)

    def body(job: Job) -> None:
        for batch in job.batches([torch.randn(ROWS // 2 * 2, 5, 5)] * 3, sub_batch=ROWS // 2):
            batch.backward(lambda x: model(x).sum())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        in_job(body)
    told = [str(each.message) for each in caught if "from outside of the sub-batch" in str(each.message)]
    assert len(told) == keeps and all(f"job 'alone': {kind.__name__} gets a state" in text for text in told)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_partners_batch_norm_is_not_this_jobs():
    norm = nn.BatchNorm1d(6)

    def split(job: Job) -> None:
        model, x = mlp()
        for batch in job.batches([(x, torch.randint(0, CLASSES, (ROWS,)))] * 20, sub_batch=2):
            batch.backward(lambda a, b: F.cross_entropy(model(a), b))

    def normalise(job: Job) -> None:
        for _ in range(200):
            norm(torch.randn(ROWS, 6))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torchshare.Runtime() as runtime:
            runtime.submit(split)
            runtime.submit(normalise)
            runtime.wait(300)
