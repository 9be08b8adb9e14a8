"""What a compiled step has for good is looked at before each run: it runs in eager while something differs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from compiled_jobs import COMPILING_S, Training, assert_close
from conftest import Gatekeeper, run_one
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook

import torchshare
from torchshare import Job
from torchshare.context import current
from torchshare.training.step_constants import StepConstants

SCALE = 2.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc(self.bn(x))) * self.scale


factor = 1.0  # a global variable of the loss function


class Parts:
    """A model, its optimizer, and a loss function with a teacher, a closure and an attribute."""

    def __init__(self) -> None:
        self.model = Model()
        self.teacher = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.weight = 1.0
        self.unused = 0
        smoothing = 0.1

        def smooth(value: float) -> None:
            nonlocal smoothing
            smoothing = value

        self.smooth = smooth
        self.inner: Callable[[], float] = lambda: smoothing

        def loss(x: Tensor) -> Tensor:
            return (self.model(x) - self.teacher(x)).abs().mean() * smoothing * factor

        self.closure = loss

    def loss(self, x: Tensor) -> Tensor:
        return self.closure(x) * self.weight


def scaled(gradient: Tensor) -> Tensor:
    return gradient * SCALE


def observe(*_: object) -> None:
    pass


@contextlib.contextmanager
def removed(handle: Any) -> Iterator[None]:
    yield
    handle.remove()


@contextlib.contextmanager
def changed(of: object, name: str, value: object) -> Iterator[None]:
    former = getattr(of, name)
    setattr(of, name, value)
    yield
    setattr(of, name, former)


@contextlib.contextmanager
def deleted(of: object, name: str) -> Iterator[None]:
    yield
    delattr(of, name)


@contextlib.contextmanager
def added(module: nn.Module) -> Iterator[None]:
    module.add_module("more", nn.Identity())
    yield
    del module.more


@contextlib.contextmanager
def frozen_and_thawed(first: Tensor, second: Tensor) -> Iterator[None]:
    first.requires_grad_(False)
    yield
    first.requires_grad_(True)


@contextlib.contextmanager
def smoothed(parts: Parts) -> Iterator[None]:
    parts.smooth(0.2)
    yield
    parts.smooth(0.1)


@contextlib.contextmanager
def overridden(module: nn.Module) -> Iterator[None]:
    module.forward = lambda x: x  # type: ignore[method-assign]
    yield
    del module.forward


@contextlib.contextmanager
def another_group(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    former = optimizer.param_groups
    optimizer.param_groups = [*former, {**former[0], "params": [nn.Parameter(torch.ones(2))]}]
    yield
    optimizer.param_groups = former


@contextlib.contextmanager
def autocast_on_cuda() -> Iterator[None]:
    """As torch.autocast("cuda") does where there is a GPU."""
    torch.set_autocast_enabled("cuda", True)
    yield
    torch.set_autocast_enabled("cuda", False)


CHANGES: dict[str, tuple[Callable[[Parts], AbstractContextManager[Any]], str]] = {
    "mode": (lambda p: changed(p.model.bn, "training", False), "'training' of module 'bn' (BatchNorm1d) is False, but"),
    "attribute": (lambda p: changed(p.model, "scale", 2.0), "'scale' of the model is 2.0, but was 1.0 when compiled"),
    "dropout": (lambda p: changed(p.model.drop, "p", 0.1), "'p' of module 'drop' (Dropout) is 0.1, but was 0.5"),
    "layer": (lambda p: changed(p.model, "fc", nn.Linear(6, 4)), "'fc' of the model is another one than when compiled"),
    "parameter": (
        lambda p: changed(p.model.fc, "bias", nn.Parameter(torch.ones(4))),
        "'bias' of module 'fc' (Linear) is another one",
    ),
    "buffer": (
        lambda p: changed(p.model.bn, "running_mean", torch.ones(6)),
        "'running_mean' of module 'bn' (BatchNorm1d) is another one",
    ),
    "new layer": (lambda p: added(p.model), "the number of modules of the model is 4, but was 3"),
    "forward": (lambda p: overridden(p.model.fc), "'forward' of module 'fc' (Linear) is a function, but was missing"),
    "frozen": (
        lambda p: frozen_and_thawed(p.model.fc.bias, p.model.fc.weight),
        "requires_grad of 'bias' of module 'fc' (Linear) is False, but was True",
    ),
    "teacher": (
        lambda p: changed(p.teacher[1], "training", False),
        "'training' of a module of the loss function (Dropout) is False, but was True",
    ),
    "teacher's hook": (lambda p: removed(p.teacher.register_forward_hook(observe)), "a module of the loss function"),
    "closure": (smoothed, "'smoothing' of the loss function is 0.2, but was 0.1 when compiled"),
    "global": (
        lambda p: changed(__import__("sys").modules[__name__], "factor", 3.0),
        "'factor' of the loss function is 3.0, but was 1.0 when compiled",
    ),
    "forward hook": (
        lambda p: removed(p.model.fc.register_forward_hook(observe)),
        "module 'fc' (Linear) has a hook (forward_hooks)",
    ),
    "backward hook": (
        lambda p: removed(p.model.fc.register_full_backward_hook(observe)),
        "module 'fc' (Linear)",
    ),
    "parameter hook": (
        lambda p: removed(p.model.fc.weight.register_hook(scaled)),  # type: ignore[no-untyped-call]
        "parameter 'weight' of module 'fc' (Linear) has a hook",
    ),
    "accumulation hook": (
        lambda p: removed(p.model.fc.weight.register_post_accumulate_grad_hook(observe)),
        "parameter 'weight' of module 'fc' (Linear) has a hook",
    ),
    "step hook": (lambda p: removed(p.optimizer.register_step_post_hook(observe)), "the optimizer has a step hook"),
    "global forward hook": (lambda p: removed(register_module_forward_hook(observe)), "_global_forward_hooks"),
    "global backward hook": (
        lambda p: removed(register_module_full_backward_hook(observe)),
        "all modules or optimizers have a hook (_global_backward_hooks)",
    ),
    "autocast": (lambda p: torch.autocast("cpu"), "autocast on cpu is torch.bfloat16, but was None when compiled"),
    "autocast on cuda": (lambda p: autocast_on_cuda(), "autocast on cuda is torch.float16, but was None"),
    "hyperparameter": (
        lambda p: changed(p.optimizer, "param_groups", [{**p.optimizer.param_groups[0], "momentum": 0.9}]),
        "the optimizer's 'momentum' in group 0 is 0.9, but was 0",
    ),
    "group": (lambda p: another_group(p.optimizer), "the optimizer has other parameters than when compiled"),
}


def difference(constants: StepConstants) -> str | None:
    change = constants.change()
    return constants.hook() if change is None else change[1]


def test_all_that_a_step_has_for_good_is_looked_at() -> None:
    def train(job: Job) -> dict[str, tuple[str | None, str | None]]:
        parts = Parts()
        context = current.job()
        assert context is not None
        constants = StepConstants(context, parts.model, parts.closure, parts.optimizer)
        found = {}
        for what, (change, _) in CHANGES.items():
            with change(parts):
                now = difference(constants)
            if what == "backward hook":  # torch leaves a mark of its kind
                parts.model.fc._is_full_backward_hook = None
            found[what] = now, difference(constants)
        return found

    for what, (said, afterwards) in run_one(train).value.items():
        assert said is not None, f"{what} is not looked at"
        assert CHANGES[what][1] in said, what
        assert afterwards is None, (what, afterwards)


def test_an_attribute_that_the_loss_function_does_not_use_is_not_looked_at() -> None:
    def train(job: Job) -> list[str | None]:
        parts = Parts()
        context = current.job()
        assert context is not None
        constants = StepConstants(context, parts.model, parts.loss, parts.optimizer)
        parts.unused += 1
        parts.optimizer.param_groups[0]["lr"] = 0.01
        first = difference(constants)
        parts.weight = 2.0
        return [first, difference(constants)]

    assert run_one(train).value == [None, "'weight' of the loss function is 2.0, but was 1.0 when compiled"]


def test_hooks_of_another_job_change_nothing() -> None:
    """Those that it registers on all modules, and torchshare's own."""
    gate = Gatekeeper()

    def other(job: Job) -> None:
        nn.modules.module.register_module_forward_hook(observe)
        gate.pause()

    def train(job: Job) -> list[str | None]:
        assert gate.reached.wait(300)
        parts = Parts()
        context = current.job()
        assert context is not None
        constants = StepConstants(context, parts.model, parts.closure, parts.optimizer)
        first = difference(constants)
        nn.modules.module.register_module_forward_hook(observe)
        gate.release.set()
        return [first, difference(constants)]

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(other, name="other", threads=1)
        runtime.submit(train, name="train", threads=1)
        assert runtime.wait(300)["train"].value == [
            None,
            "all modules or optimizers have a hook (_global_forward_hooks)",
        ]


@pytest.mark.timeout(2 * COMPILING_S)
def test_weights_are_those_of_eager_whatever_changes_between_steps(caplog: pytest.LogCaptureFixture) -> None:
    """A submodule in evaluation mode, another rate of dropout, and hooks on a module, a parameter and all modules."""

    def change(training: Training, number: int, calls: list[int]) -> AbstractContextManager[Any]:
        model = training.model
        weight, drop = model[0].weight, model[2]

        def count(*_: object) -> None:
            calls[0] += 1

        changes: dict[int, Callable[[], AbstractContextManager[Any]]] = {
            3: lambda: changed(drop, "training", False),
            5: lambda: changed(drop, "p", 0.1),
            7: lambda: removed(model[0].register_forward_hook(lambda _m, _x, output: output * SCALE)),
            9: lambda: removed(weight.register_hook(scaled)),
            11: lambda: removed(register_module_forward_hook(count)),
        }
        return changes.get(number, contextlib.nullcontext)()

    def train(job: Job, compile: bool) -> tuple[list[Tensor], int]:
        training, calls = Training("dropping"), [0]
        step = training.step(job)
        for number, batch in enumerate(itertools.islice(job.batches(training.endless()), 14)):
            with change(training, number, calls):
                if compile:
                    step(batch)
                else:
                    training.eager_step(batch)
        assert step.fallback is None
        return training.tensors(), calls[0]

    compiled = run_one(lambda job: train(job, True), timeout=COMPILING_S).value
    eager = run_one(lambda job: train(job, False), timeout=COMPILING_S).value
    assert_close(compiled[0], eager[0])
    assert compiled[1] == eager[1] == 5
    lines = [record.message for record in caplog.records if "runs in eager" in record.message]
    assert len(lines) == 5
    assert "'training' of module '2' (Dropout) is False, but was True when compiled" in lines[0]
