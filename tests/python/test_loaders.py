"""Several loaders in one loop with `torchshare.batches` and `torchshare.accumulate`: training and validation, one per
epoch, one inside another. In split batches the weights must be those of whole batches, or one line must say why not."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from conftest import run_one
from test_plain_loop import parts
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import torchshare
from torchshare import Job

EPOCHS = 3
STEPS = 3 * EPOCHS  # batches of 16, 16 and 12 rows
Train = Callable[[Any], Any]


class Loop:
    """A model, its optimizer, and loops over loaders that may be split."""

    def __init__(self) -> None:
        self.model, optimizer, self.loader = parts()
        self.optimizer = torchshare.accumulate(optimizer)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def train(self, loader: Iterable[Any]) -> None:
        for x, y in loader:
            self.step(x, y)

    def evaluate(self, loader: Iterable[Any]) -> float:
        self.model.eval()
        with torch.no_grad():
            rows = sum(len(y) for x, y in loader if self.model(x).isfinite().all())
        self.model.train()
        return rows

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def validation_loader() -> DataLoader[Any]:
    _, _, loader = parts()
    return DataLoader(loader.dataset, 16, generator=torch.Generator())  # draws nothing of the job


def assert_split_is_whole(train: Train, steps: int | None = STEPS) -> None:
    """Inside a job, in sub-batches of six rows, and outside of jobs."""
    split, whole = run_one(train, sub_batch=6), train(None)
    for a, b in zip(split.value, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert steps is None or split.steps == steps


def wrapped_twice(_: object) -> list[Tensor]:
    loop = Loop()
    loaders = torchshare.batches(loop.loader), torchshare.batches(loop.loader)
    for epoch in range(EPOCHS):
        loop.train(loaders[epoch % 2])
    return loop.weights()


def wrapped_in_itself(_: object) -> list[Tensor]:
    loop = Loop()
    loader = torchshare.batches(torchshare.batches(torchshare.batches(loop.loader, 4), 6))
    for _epoch in range(EPOCHS):
        loop.train(loader)
    return loop.weights()


def evaluated_in_the_body(_: object) -> list[Tensor]:
    """Between the zeroing, the passes and the step of each sub-batch."""
    loop = Loop()
    training, validation = torchshare.batches(loop.loader), torchshare.batches(validation_loader())
    for _epoch in range(EPOCHS):
        for x, y in training:
            loop.optimizer.zero_grad()
            loop.evaluate(validation)
            cross_entropy(loop.model(x), y).backward()
            loop.evaluate(validation)
            loop.optimizer.step()
            loop.evaluate(validation)
    return loop.weights()


def an_optimizer_per_epoch(_: object) -> list[Tensor]:
    loop = Loop()
    loader = torchshare.batches(loop.loader)
    for _epoch in range(EPOCHS):
        loop.optimizer = torchshare.accumulate(torch.optim.SGD(loop.model.parameters(), lr=0.1))
        loop.train(loader)
    return loop.weights()


def two_optimizers_of_the_same(_: object) -> list[Tensor]:
    loop = Loop()
    other = torchshare.accumulate(torch.optim.Adam(loop.model.parameters(), lr=0.01))
    for x, y in torchshare.batches(loop.loader):
        loop.step(x, y)
        other.step()
    return loop.weights()


def layers_thawed_and_added(_: object) -> list[Tensor]:
    """In the body, before the passes: frozen, thawed, and added to the optimizer, and an optimizer made there."""
    loop = Loop()
    first, last = loop.model[0], loop.model[2]
    loop.optimizer = torchshare.accumulate(torch.optim.SGD([*last.parameters()], lr=0.1))
    added = nn.Linear(3, 3).double()
    second: Any = None
    first.requires_grad_(False)
    for _epoch in range(EPOCHS):
        for x, y in torchshare.batches(loop.loader):
            if _epoch == 1 and not first.weight.requires_grad:
                first.requires_grad_(True)
                loop.optimizer.add_param_group({"params": [*first.parameters()]})
                last.requires_grad_(False)
            if _epoch == 2 and second is None:
                last.requires_grad_(True)
                second = torchshare.accumulate(torch.optim.SGD(added.parameters(), lr=0.1))
            loop.optimizer.zero_grad()
            added.zero_grad()
            cross_entropy(added(loop.model(x)), y).backward()
            loop.optimizer.step()
            if second is not None:
                second.step()
    return [*loop.weights(), *added.parameters()]


def inner_and_outer(_: object) -> list[Tensor]:
    """Each batch of an outer loader is the end of a pass over an inner one, and has a step of its own."""
    loop = Loop()
    inner = torchshare.batches(DataLoader(loop.loader.dataset, 16))
    for x, y in torchshare.batches(loop.loader):
        cross_entropy(loop.model(x), y).backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.evaluate(inner)
    return loop.weights()


def not_split_together(_: object) -> list[Tensor]:
    loop = Loop()
    loaders = torchshare.batches(loop.loader, 16), torchshare.batches(validation_loader(), 16)
    for (x, y), (other, _y) in zip(*loaders, strict=True):
        loop.step(x + other, y)
    return loop.weights()


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        (wrapped_twice, STEPS),
        (wrapped_in_itself, STEPS),
        (evaluated_in_the_body, STEPS),
        (an_optimizer_per_epoch, STEPS),
        (two_optimizers_of_the_same, 3),
        (layers_thawed_and_added, STEPS),
        (inner_and_outer, 3),
        (not_split_together, 3),
    ],
)
def test_split_batches_train_like_whole_ones(train: Train, steps: int) -> None:
    assert_split_is_whole(train, steps)


def zipped(job: Job) -> None:
    loop = Loop()
    loaders = torchshare.batches(loop.loader), torchshare.batches(validation_loader(), 16)
    for (x, y), _other in zip(*loaders, strict=True):
        loop.step(x, y)


def through_another_loader(job: Job) -> None:
    def shifted(loader: Iterable[Any]) -> Iterator[Any]:
        yield from ((x + 1, y) for x, y in loader)

    loop = Loop()
    loop.train(torchshare.batches(shifted(torchshare.batches(loop.loader))))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (zipped, "torchshare.batches must split one loader at a time, got two whose batches take turns"),
        (through_another_loader, "torchshare.batches must split a loader's batches once, got a loader that yields"),
    ],
)
def test_what_cannot_be_weighted_is_refused(train: Train, said: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(f"job 'alone': {said}")):
        run_one(train, sub_batch=6)


def test_a_gradient_from_before_accumulate_is_refused() -> None:
    """Of a sub-batch that could not be weighted."""

    def train(job: Job) -> None:
        loop = Loop()
        late = nn.Linear(3, 3).double()
        for x, y in torchshare.batches(loop.loader):
            cross_entropy(late(loop.model(x)), y).backward()
            torchshare.accumulate(torch.optim.SGD(late.parameters(), lr=0.1))

    with pytest.raises(RuntimeError, match=r"torchshare\.accumulate must be called before the first"):
        run_one(train, sub_batch=6)


def test_accumulate_after_the_first_pass_splits_the_next_ones(caplog: pytest.LogCaptureFixture) -> None:
    def train(_: object) -> list[Tensor]:
        model, optimizer, loader = parts()
        loader = torchshare.batches(loader)
        for number, (x, y) in enumerate([*loader, *loader]):
            if number == 1:
                optimizer = torchshare.accumulate(optimizer)
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        for x, y in loader:
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(model.parameters())

    assert_split_is_whole(train, None)
    assert "splits nothing without torchshare.accumulate" in caplog.text


def test_dead_parameters_are_forgotten() -> None:
    """Of models that are made anew, as in a search over architectures."""

    def train(job: Job) -> list[bool]:
        found = []
        for _model in range(3):
            loop = Loop()
            loop.train(torchshare.batches(loop.loader))
            found.append(weakref.ref(loop.model[0].weight))
        gc.collect()
        return [reference() is None for reference in found]

    assert run_one(train, sub_batch=6).value == [True, True, False]


def test_a_job_that_fails_in_a_batch_leaves_nothing_to_the_next_one_with_its_model() -> None:
    loop: list[Loop] = []

    def fail(job: Job) -> None:
        loop.append(Loop())
        for _x, _y in torchshare.batches(loop[0].loader):
            raise KeyError("on purpose")

    with pytest.raises(KeyError) as kept:  # with the frames of the loop
        run_one(fail, sub_batch=6)
    before = loop[0].weights()

    def train(_: object) -> list[Tensor]:
        loop[0].optimizer = torchshare.accumulate(loop[0].optimizer)
        torch.manual_seed(5)
        for parameter, value in zip(loop[0].model.parameters(), before, strict=True):
            parameter.data = value.clone()
        loop[0].optimizer.state.clear()
        loop[0].train(torchshare.batches(loop[0].loader))
        return loop[0].weights()

    assert_split_is_whole(train, 3)
    del kept


def test_a_batch_that_is_left_in_the_middle_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def train(job: Job) -> int:
        loop = Loop()
        loader = torchshare.batches(loop.loader)
        for _ in range(3):
            x, _y = next(iter(loader))
        return len(x)

    assert run_one(train, sub_batch=6).value == 6
    assert caplog.text.count("job 'alone': a loop over torchshare.batches left a batch after sub-batch 1 of 3") == 1


def test_a_loop_that_fetches_ahead_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Each of its sub-batches is weighted as the next one."""

    def train(job: Job) -> None:
        def ahead(loader: Iterable[Any]) -> Iterator[Any]:
            batches = iter(loader)
            held = next(batches)
            for batch in batches:
                yield held
                held = batch
            yield held

        loop = Loop()
        loop.train(ahead(torchshare.batches(loop.loader)))

    run_one(train, sub_batch=6)
    assert caplog.text.count("job 'alone': sub-batch 1 of 3 had no backward pass, but sub-batch 2 of 3 had one") == 1
