"""All forms of a training loop do the same steps: the weights of plain torch, and equal numbers of steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from conftest import run_one
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchshare
from torchshare import Job

ROWS, SIZES, EPOCHS = 26, (10, 10, 6), 2
SPLITS = {"whole": None, "even": 2, "uneven": 4}  # the last of 10 rows in fours has 2
COMPILING_S = 300.0  # on a busy machine, with an empty cache
pytestmark = [
    pytest.mark.timeout(2 * COMPILING_S),
    pytest.mark.filterwarnings("ignore:forward and backward run in eager"),
]


class Training:
    """A model, its data, and what a loop does with a batch. The packages of its compiled steps are those of
    test_compiled_step."""

    scaler: torch.amp.GradScaler | None = None

    def __init__(self, device: str = "cpu") -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(device, torch.float64)
        x, y = torch.randn(ROWS, 6, dtype=torch.float64), torch.randint(0, 4, (ROWS,))
        self.data = TensorDataset(x.to(device), y.to(device))
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(x), y)

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def update(self) -> None:
        """Once per batch."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def example(self) -> Any:
        return self.data[: SIZES[0]]

    def loader(self) -> DataLoader[Any]:
        return DataLoader(self.data, SIZES[0], shuffle=True)

    def evaluate(self, batches: Iterable[Any]) -> None:
        self.model.eval()
        with torch.no_grad():
            assert sum(len(self.model(x)) for x, _ in batches) == ROWS
        self.model.train()

    def weights(self) -> list[Tensor]:
        return [parameter.detach().cpu() for parameter in self.model.parameters()]


class Clipped(Training):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.01)

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)

    def update(self) -> None:
        self.clip()
        super().update()


class Scaled(Training):
    """The batch with a certain row has an infinite loss: its step is skipped."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
        self.data.tensors[0][20, 0] = 1e6

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().loss(x, y)
        return loss * float("inf") if (x[:, 0] == 1e6).any() else loss

    def update(self) -> None:
        assert self.scaler is not None
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def weights(self) -> list[Tensor]:
        assert self.scaler is not None
        return [*super().weights(), torch.tensor(self.scaler.get_scale())]


class Form:
    """How a job trains on the batches of a loader, and how it evaluates on them."""

    kinds: tuple[type[Training], ...] = (Training, Clipped, Scaled)
    loaders: tuple[str, ...] = ("one_loader", "two_loaders", "one_per_epoch")
    is_split = True
    is_exact = True
    """Whether split batches are the same computation as in plain torch, and not only the same mathematics."""

    def __init__(self, job: Job, training: Training) -> None:
        self.job = job
        self.training = training

    def train(self, loader: Any) -> None:
        raise NotImplementedError

    def evaluate(self, loader: Any) -> None:
        self.training.evaluate(sub.data for batch in self.job.batches(loader) for sub in batch)


class Backward(Form):
    def train(self, loader: Any) -> None:
        for batch in self.job.batches(loader):
            batch.backward(self.training.loss, scaler=self.training.scaler)
            self.training.update()


class Graph(Form):
    def __init__(self, job: Job, training: Training) -> None:
        super().__init__(job, training)
        self.loss = job.graph(training.loss)

    def train(self, loader: Any) -> None:
        for batch in self.job.batches(loader):
            batch.backward(self.loss, scaler=self.training.scaler)
            self.training.update()


class Explicit(Form):
    def train(self, loader: Any) -> None:
        for batch in self.job.batches(loader):
            for sub in batch:
                self.training.backward(self.training.loss(sub.x, sub.y) * sub.weight)
            self.training.update()

    def evaluate(self, loader: Any) -> None:
        self.training.evaluate(batch.data for batch in self.job.batches(loader))


class Unwrapped(Form):
    is_split = False

    def train(self, loader: Any) -> None:
        for x, y in loader:
            self.training.backward(self.training.loss(x, y))
            self.training.update()

    def evaluate(self, loader: Any) -> None:
        self.training.evaluate(loader)


class Wrapped(Unwrapped):
    is_split = True
    is_exact = False  # gradients are weighted, not the loss

    def __init__(self, job: Job, training: Training) -> None:
        super().__init__(job, training)
        training.optimizer = torchshare.accumulate(training.optimizer)

    def train(self, loader: Any) -> None:
        super().train(torchshare.batches(loader))

    def evaluate(self, loader: Any) -> None:
        super().evaluate(torchshare.batches(loader))


class BesideBatches(Unwrapped):
    """Only the validation goes through `job.batches`."""

    loaders = ("two_loaders",)
    evaluate = Form.evaluate


class BesideALoader(Backward):
    """Only the training does."""

    loaders = ("two_loaders",)
    evaluate = Unwrapped.evaluate


class Compiled(Form):
    kinds = (Training, Clipped)

    def __init__(self, job: Job, training: Training) -> None:
        super().__init__(job, training)
        if isinstance(training, Clipped):
            training.optimizer.register_step_pre_hook(lambda *_: training.clip())
        self.step = job.compiled_step(training.model, training.loss, training.optimizer, training.example())

    def train(self, loader: Any) -> None:
        for batch in self.job.batches(loader):
            self.step(batch)


class Fit(Compiled):
    def train(self, loader: Any) -> None:
        self.job.fit(self.step, loader)


def one_loader(training: Training, train: Callable[[Any], None], evaluate: Callable[[Any], None]) -> None:
    loader = training.loader()
    for _epoch in range(EPOCHS):
        train(loader)


def two_loaders(training: Training, train: Callable[[Any], None], evaluate: Callable[[Any], None]) -> None:
    """Validates first, too."""
    loader, validation = training.loader(), training.loader()
    for _epoch in range(EPOCHS):
        evaluate(validation)
        train(loader)
    evaluate(validation)


def one_per_epoch(training: Training, train: Callable[[Any], None], evaluate: Callable[[Any], None]) -> None:
    for _epoch in range(EPOCHS):
        train(training.loader())


LOADERS = {each.__name__: each for each in (one_loader, two_loaders, one_per_epoch)}


@functools.cache
def plain_torch(kind: type[Training], loaders: str, sub_batch: int | None, device: str) -> list[Tensor]:
    """Splits and weights by hand."""
    training = kind(device)

    def train(loader: Any) -> None:
        for x, y in loader:
            rows = sub_batch or len(x)
            for part, target in zip(x.split(rows), y.split(rows), strict=True):
                loss = training.loss(part, target)
                training.backward(loss if len(part) == len(x) else loss * (len(part) / len(x)))
            training.update()

    LOADERS[loaders](training, train, training.evaluate)
    return training.weights()


def in_job(form: type[Form], kind: type[Training], loaders: str, device: str) -> Callable[[Job], list[Tensor]]:
    def train(job: Job) -> list[Tensor]:
        training = kind(device)
        own = form(job, training)
        LOADERS[loaders](training, own.train, own.evaluate)
        return training.weights()

    return train


def marks(form: type[Form], split: str) -> list[pytest.MarkDecorator]:
    """The packages of uneven sub-batches are also those of test_compiled_step."""
    if issubclass(form, Compiled) and split != "uneven":
        return [pytest.mark.slow]
    return [pytest.mark.gpu] if form is Graph else []


FORMS = (Backward, Graph, Explicit, Wrapped, Unwrapped, BesideBatches, BesideALoader, Compiled, Fit)


@pytest.mark.parametrize(
    ("form", "split"),
    [pytest.param(form, split, marks=marks(form, split)) for form in FORMS for split in SPLITS],
)
def test_all_forms_do_the_same_steps(form: type[Form], split: str, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs with all kinds of training and loaders beside each other."""
    device = "cuda" if form is Graph else "cpu"
    sub_batch = SPLITS[split] if form.is_split else None
    cases = {f"{kind.__name__} {loaders}": (kind, loaders) for kind in form.kinds for loaders in form.loaders}
    with torchshare.Runtime(device=device) as runtime:
        for name, (kind, loaders) in cases.items():
            runtime.submit(in_job(form, kind, loaders, device), name=name, threads=1, sub_batch=SPLITS[split])
        results = runtime.wait(COMPILING_S)
    sub_batches = EPOCHS * sum(-(-size // (sub_batch or size)) for size in SIZES)
    assert {name: (result.steps, result.sub_batches) for name, result in results.items()} == dict.fromkeys(
        cases, (EPOCHS * len(SIZES), sub_batches)
    )
    is_same = (form.is_exact and not issubclass(form, Compiled)) or (sub_batch is None and form is Wrapped)
    tolerance = {"rtol": 0.0, "atol": 0.0} if is_same else {"rtol": 1e-10, "atol": 1e-12}  # float64
    for name, (kind, loaders) in cases.items():
        expected = plain_torch(kind, loaders, sub_batch, device)
        for ours, theirs in zip(results[name].value, expected, strict=True):
            torch.testing.assert_close(ours, theirs, **tolerance, msg=lambda text, name=name: f"{name}: {text}")
    said = f"sub_batch={SPLITS[split]} had no effect: only job.batches and torchshare.batches split batches"
    assert (said in caplog.text) == (form is Unwrapped and split != "whole")


@pytest.mark.slow
def test_gradients_of_a_compiled_step_cannot_be_clipped_or_scaled() -> None:
    def train(job: Job) -> None:
        training = Training()
        step = Compiled(job, training).step
        scaler = torch.amp.GradScaler("cpu")
        for batch in job.batches(training.loader()):
            step(batch)
            with pytest.raises(RuntimeError, match="gradients must be clipped before the update, got them after a com"):
                nn.utils.clip_grad_norm_(training.model.parameters(), 0.05)
            with pytest.raises(AssertionError, match=r"may indicate your script did not use scaler\.scale"):
                scaler.step(training.optimizer)
            with pytest.raises(TypeError, match="scaler"):
                step(batch, scaler=scaler)  # type: ignore[call-arg]

    run_one(train, timeout=COMPILING_S)
