"""What begins and ends steps, sub-batches and input, where loops are one in the other, left, or of several forms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_one, wait_until
from test_loaders import Loop, validation_loader
from test_plain_loop import parts
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import torchshare
from torchshare import Job


def test_a_loop_in_the_body_of_a_split_batch_has_the_weights_of_its_own() -> None:
    """`job.batches` weights the loss; the gradients must not get the weight of the batch outside, too."""

    def train(job: Job) -> list[Tensor]:
        loop = Loop()
        inner = [next(iter(validation_loader()))]
        for _x, _y in torchshare.batches(loop.loader):  # in 8 sub-batches
            for batch in job.batches(inner):
                batch.backward(lambda x, y: cross_entropy(loop.model(x), y))
                loop.optimizer.step()
                loop.optimizer.zero_grad()
        return loop.weights()

    done = run_one(train, sub_batch=6)
    expected = Loop()
    x, y = next(iter(validation_loader()))
    for _step in range(8):
        expected.step(x, y)
    for ours, theirs in zip(done.value, expected.weights(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert (done.steps, done.sub_batches) == (8, 24)


def plain(job: Job, loop: Loop) -> None:
    for x, y in torchshare.batches(loop.loader):
        loop.step(x, y)
        break


def explicit(job: Job, loop: Loop) -> None:
    for batch in job.batches(loop.loader):
        for sub in batch:
            loop.step(sub.x, sub.y)
            break
        break


def unwrapped(job: Job, loop: Loop) -> None:
    for x, y in loop.loader:
        loop.step(x, y)
        break


@pytest.mark.parametrize("leave", [plain, explicit, unwrapped])
def test_a_loop_that_breaks_out_after_its_step_has_done_it(leave: Callable[[Job, Loop], None]) -> None:
    result = run_one(lambda job: leave(job, Loop()))
    assert (result.steps, result.sub_batches) == (1, 1)


def test_a_step_that_a_loop_breaks_out_after_is_in_its_checkpoints(tmp_path: Path) -> None:
    def train(job: Job, fails: bool) -> None:
        loop = Loop()
        job.track(model=loop.model)
        for epoch in job.epochs(4):
            for number, batch in enumerate(job.batches(loop.loader)):
                batch.backward(lambda x, y: cross_entropy(loop.model(x), y))
                loop.optimizer.step()
                if number == 1:
                    break
            if fails and epoch == 2:
                raise RuntimeError("on purpose")

    with (
        pytest.raises(torchshare.JobFailed),
        torchshare.Runtime(device="cpu", checkpoint=tmp_path, every=1) as runtime,
    ):
        runtime.submit(lambda job: train(job, True), name="a", threads=1)
        runtime.wait(300)
    with torchshare.Runtime(device="cpu", checkpoint=tmp_path, every=1, resume=True) as runtime:
        runtime.submit(lambda job: train(job, False), name="a", threads=1)
        result = runtime.wait(300)["a"]
    assert result.earlier_steps == 5  # the checkpoint is of the first step of the third pass


def test_a_batch_that_is_trained_on_after_its_loop_is_a_step_each_time() -> None:
    """To overfit one batch, as in a test of a model."""

    def train(job: Job) -> None:
        loop = Loop()
        batch = next(iter(job.batches(loop.loader)))
        for _step in range(5):
            batch.backward(lambda x, y: cross_entropy(loop.model(x), y))
            loop.optimizer.step()
            loop.optimizer.zero_grad()

    result = run_one(train, sub_batch=6)
    assert (result.steps, result.sub_batches) == (5, 15)


def test_an_optimizers_step_after_the_loop_is_of_its_last_batch() -> None:
    """Gradients that are left at the end of an epoch."""

    def train(job: Job) -> None:
        loop = Loop()
        for batch in job.batches(loop.loader):
            batch.backward(lambda x, y: cross_entropy(loop.model(x), y))
        loop.optimizer.step()

    assert run_one(train).steps == 3


def test_validations_in_the_body_of_a_step_are_part_of_its_time() -> None:
    def train(job: Job) -> None:
        loop = Loop()
        for batch in job.batches([next(iter(loop.loader))]):
            batch.backward(lambda x, y: cross_entropy(loop.model(x), y))
            loop.optimizer.step()
            for _ in job.batches(validation_loader()):
                pass

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(train, name="alone", threads=1)
        runtime.wait(300)
        events = runtime.events()
    step = next(event for event in events if event[0] == "step")
    sub_batch = next(event for event in events if event[0] == "sub_batch")
    inputs = [event for event in events if event[0] == "input"]
    assert step[2] <= sub_batch[2] <= sub_batch[3] <= step[3]
    assert sum(step[2] <= begin <= step[3] for _, _, begin, *_ in inputs) >= 3


class Watched(Dataset[Tensor]):
    """Knows whether its job was waiting for input when it was asked."""

    def __init__(self, job: Job) -> None:
        self.waits: list[bool] = []
        self._handle = job._context.handle

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Tensor:
        self.waits.append(self._handle.is_waiting)
        return torch.zeros(3)


def test_a_loader_beside_job_batches_is_input_too() -> None:
    def train(job: Job) -> list[bool]:
        data = Watched(job)
        for _ in job.batches(DataLoader(data)):
            for _ in DataLoader(data):
                pass
        return [*data.waits, job._context.handle.is_waiting]

    assert run_one(train).value == [True] * 6 + [False]


def test_a_loop_without_batches_is_suspended_with_its_memory() -> None:
    def train(job: Job) -> float:
        model = nn.Linear(1000, 1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        before = model.weight.sum().item()
        job.track(model=model)
        for number in range(3):
            if number == 1:
                job.suspend(spill=True)
            model(torch.ones(2, 1000)).sum().backward()
            optimizer.step()
        return model.weight.sum().item() - before

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(train, name="a", threads=1, meter_memory=True)
        runtime.start()
        wait_until(lambda: job.state == "suspended")
        assert job._context.handle.memory_held < 2**20
        job.resume()
        result = runtime.wait(300)["a"]
    assert (result.value, result.steps) == (0.0, 3)


@pytest.mark.slow
def test_compiled_steps_in_the_body_of_a_batch_are_the_steps(tmp_path: Path) -> None:
    """And a validation that saves the compiled step is none."""

    def train(job: Job) -> list[int]:
        model, optimizer, _loader = parts()
        example = next(iter(validation_loader()))
        step = job.compiled_step(model, lambda x, y: cross_entropy(model(x), y), optimizer, example)
        steps: list[int] = []
        for batch in job.batches([torch.ones(2)] * 2):
            list(batch)
            job.fit(step, [example] * 3)
            steps.append(job.result.steps)
        for batch in job.batches([torch.ones(2)] * 2):
            list(batch)
            step.save(tmp_path)
        return steps

    result: Any = run_one(train)
    assert (result.value, result.steps, result.sub_batches) == ([3, 6], 6, 6)
