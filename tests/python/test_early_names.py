"""Functions that a module has bound before a runtime was opened, as `from torch.nn.utils import clip_grad_norm_` at its
top does, do in jobs what the attributes of their modules do."""

from __future__ import annotations

import inspect
import random as random_module
import time
from random import gauss, random, seed, shuffle
from time import sleep
from typing import Any

import numpy
import pytest
import torch
from conftest import run_one
from numpy.random import rand
from test_shared_torch import Meeting, both
from torch import get_default_dtype, initial_seed, manual_seed, nn, set_default_dtype
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

import torchshare
from torchshare import Job
from torchshare.isolation.patches import Patches


def clipped_by_name(model: nn.Module) -> None:
    clip_grad_norm_(model.parameters(), 0.05)


def clipped_in_two_steps(model: nn.Module) -> None:
    """As torchtitan does."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    clip_grads_with_norm_(model.parameters(), 0.05, get_total_norm(gradients))


@pytest.mark.parametrize("clip", [clipped_by_name, clipped_in_two_steps])
def test_gradients_are_clipped_once_per_batch(clip: Any):
    def train(_job: Job) -> tuple[list[float], int]:
        manual_seed(0)
        model = nn.Linear(4, 2).double()
        loader = torch.utils.data.DataLoader(torch.randn(16, 4, dtype=torch.double), batch_size=8)
        optimizer = torchshare.accumulate(torch.optim.SGD(model.parameters(), lr=0.1))
        norms = []
        for x in torchshare.batches(loader):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            clip(model)
            norms.append(float(get_total_norm([each.grad for each in model.parameters() if each.grad is not None])))
            optimizer.step()
        return [round(float(each), 12) for each in model.weight.flatten()], sum(norm > 0.051 for norm in norms)

    whole, _ = run_one(train).value
    split, partial_sums = run_one(train, sub_batch=4).value
    assert split == whole and partial_sums == 2


def test_hooks_on_all_modules_are_the_jobs():
    meeting = Meeting()
    calls: list[str] = []

    def first(_job: Job) -> None:
        register_module_forward_hook(lambda *_: calls.append(torch.nn.__name__))
        meeting.stay()
        nn.Identity()(torch.ones(1))

    both(first, lambda _job: meeting.visit(lambda: nn.Identity()(torch.ones(1))))
    nn.Identity()(torch.ones(1))
    assert len(calls) == 1


def test_settings_are_agreed_on():
    def first(_job: Job) -> str:
        set_default_dtype(torch.float64)
        return str(get_default_dtype())

    assert run_one(first).value == "torch.float64"
    assert get_default_dtype() == torch.float32  # restored


def test_random_numbers_are_the_jobs():
    def draw(_job: Job) -> list[float]:
        items = list(range(9))
        first = [random(), float(rand()), gauss(0, 1)]
        shuffle(items)
        seed(3)
        return [*first, *items, random(), initial_seed()]

    outside = random_module.getstate(), numpy.random.get_state()[2]
    alone = run_one(draw, seed=5).value
    assert both(draw, draw) == both(draw, draw) and run_one(draw, seed=5).value == alone
    assert (random_module.getstate(), numpy.random.get_state()[2]) == outside


def test_a_job_that_sleeps_can_be_cancelled_at_once():
    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(lambda _job: sleep(1e6), name="sleeps")
        runtime.start()
        while job.state != "running":
            time.sleep(0.01)
        job.cancel()
        assert runtime.wait(300)["sleeps"].state == "cancelled"


def test_afterwards_all_names_are_as_before():
    names = ["clip_grad_norm_", "set_default_dtype", "register_module_forward_hook", "random", "sleep", "rand", "seed"]
    before = [(globals()[name], getattr(globals()[name], "__code__", None)) for name in names]
    signature = inspect.signature(clip_grad_norm_)
    with torchshare.Runtime(device="cpu"):
        assert inspect.signature(clip_grad_norm_) == signature
        assert nn.utils.clip_grad_norm_ is clip_grad_norm_ and time.sleep is sleep
    assert [(globals()[name], getattr(globals()[name], "__code__", None)) for name in names] == before
    assert not [name for name in vars(torch) if "torchshare" in name]


def test_a_wrapped_function_with_defaults_closures_and_keywords():
    outside = 10

    def function(x: int, y: int = 2, *, z: int = 3) -> int:
        "Adds."
        return x + y + z + outside

    class Owner:
        pass

    Owner.function = staticmethod(function)  # type: ignore[attr-defined]
    patches = Patches()
    patches.wrap(Owner, "function", lambda original: lambda *args, **kwargs: -original(*args, **kwargs))
    assert (function(1), function(1, 5), function(1, z=0)) == (-16, -19, -13)
    with pytest.raises(TypeError, match=r"function\(\) missing 1 required positional argument: 'x'"):
        function()  # type: ignore[call-arg]
    patches.undo()
    assert function(1) == 16
