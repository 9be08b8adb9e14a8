"""Which batches are steps: those that train."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from conftest import run_one
from test_loaders import EPOCHS, STEPS, Loop, validation_loader
from test_plain_loop import parts
from torch import nn
from torch.nn.functional import cross_entropy

import torchshare
from torchshare import Job


def test_batches_whose_gradients_wait_are_steps() -> None:
    """Of a loop that accumulates on its own, and of one that updates by hand."""

    def train(job: Job) -> None:
        model, optimizer, loader = parts()
        for batches in (torchshare.batches(loader), (batch.data for batch in job.batches(loader))):
            for number, (x, y) in enumerate(batches):
                cross_entropy(model(x), y).backward()
                if number == 2:
                    optimizer.step()

    assert run_one(train).steps == 6


def test_batches_of_a_job_that_only_evaluates_are_steps() -> None:
    def train(job: Job) -> None:
        model, loader = parts()[::2]
        with torch.no_grad():
            for x, _y in torchshare.batches(loader):
                model(x)
            for batch in job.batches(loader):
                model(batch.data[0])

    assert run_one(train).steps == 6


def test_the_warning_of_split_batches_waits_for_one_that_trains() -> None:
    def train(job: Job) -> None:
        loop = Loop()
        loop.model.append(nn.BatchNorm1d(3).double())
        loop.optimizer = torchshare.accumulate(torch.optim.SGD(loop.model.parameters(), lr=0.1))
        loop.evaluate(torchshare.batches(validation_loader()))
        loop.train(torchshare.batches(loop.loader))

    with pytest.warns(UserWarning, match="BatchNorm1d takes its statistics from each sub-batch"):
        run_one(train, sub_batch=6)


def test_a_profile_is_of_the_steps() -> None:
    """A job that validates after each step runs more sub-batches than its steps have."""

    def train(job: Job) -> None:
        loop = Loop()
        training, validation = torchshare.batches(loop.loader), torchshare.batches(validation_loader())
        while True:
            loop.train(training)
            loop.evaluate(validation)

    found = torchshare.profile(train, window=0.1, splits=2, rounds=1, threads=1)
    assert [each.sub_batches for each in found.alone] == [1, 2]


def test_checkpoints_count_steps(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    def train(job: Job) -> None:
        loop = Loop()
        job.track(model=loop.model, optimizer=loop.optimizer)
        training, validation = torchshare.batches(loop.loader), torchshare.batches(validation_loader())
        for _epoch in job.epochs(EPOCHS):
            loop.train(training)
            loop.evaluate(validation)

    with caplog.at_level(logging.WARNING), torchshare.Runtime(device="cpu", checkpoint=tmp_path, every=1) as runtime:
        runtime.submit(train, name="alone", threads=1, sub_batch=6)
        runtime.wait(300)
    assert max(int(found) for path in tmp_path.rglob("*") for found in re.findall(r"(\d+)", path.stem)) == STEPS
