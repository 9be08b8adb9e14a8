"""torch's process-wide settings, hooks and functions, changed by one of two jobs."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import run_one
from torch import nn
from torch import set_default_dtype as bound_early
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchshare
from torchshare import Job, Result

Train = Callable[[Job], torch.dtype]


def training(
    before: Callable[[], object] | None = None, late: bool = False, beside: threading.Event | None = None
) -> Train:
    """A job that calls `before` at its start, or 0.2 s later, and returns the type of its weights. With `beside`, it
    trains until that is set."""

    def train(job: Job) -> torch.dtype:
        time.sleep(0.2 * late)
        if before is not None:
            before()
        time.sleep(0.2 * (not late))
        layer = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        steps = range(20) if beside is None else iter(beside.is_set, True)
        for _ in steps:
            layer(torch.ones(4, 3)).sum().backward()
            optimizer.step()
            time.sleep(0.005)
        return layer.weight.dtype

    return train


def ending(train: Train) -> tuple[Train, threading.Event]:
    """The job, and what is set when it has ended."""
    ended = threading.Event()

    def run(job: Job) -> torch.dtype:
        try:
            return train(job)
        finally:
            ended.set()

    return run, ended


def run_pair(primary: Train, secondary: Train) -> tuple[Result, Result]:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(primary, name="a", priority="primary", threads=1)
        runtime.submit(secondary, name="b", threads=1)
        results = runtime.wait(timeout=300, check=False)
    return results["a"], results["b"]


def double() -> None:
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("late", [False, True])
def test_jobs_that_set_the_same_run_with_it(late: bool):
    a, b = run_pair(training(double, late), training(double, not late))
    assert (a.value, b.value) == (torch.float64, torch.float64)
    assert torch.get_default_dtype() == torch.float32  # restored


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (double, "torch.set_default_dtype is one per process, and job 'a' runs with torch.float32, not torch.float64"),
        (lambda: torch.set_default_tensor_type(torch.DoubleTensor), "torch.set_default_dtype is one per process"),
        (lambda: bound_early(torch.float64), "torch.set_default_dtype is one per process"),
        (lambda: torch.use_deterministic_algorithms(True), "torch.use_deterministic_algorithms"),
        (lambda: torch.set_float32_matmul_precision("medium"), "torch.set_float32_matmul_precision"),
        (lambda: setattr(torch.backends.mkldnn, "enabled", False), "torch.backends.mkldnn.enabled"),
        (lambda: torch.backends.cuda.enable_flash_sdp(False), "torch.backends.cuda.enable_flash_sdp"),
        (lambda: sdpa_kernel(SDPBackend.MATH).__enter__(), "torch.backends.cuda.enable_"),
        (lambda: torch.backends.nnpack.set_flags(False), "torch.backends.nnpack"),
        (lambda: torch.backends.mkldnn.flags(enabled=False).__enter__(), "torch.backends.mkldnn.enabled"),
        (lambda: torch.set_deterministic_debug_mode("warn"), "torch.use_deterministic_algorithms"),
        (lambda: setattr(torch.backends, "fp32_precision", "ieee"), "torch.backends.fp32_precision"),
        (
            lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
            "torch.backends.mkldnn.matmul.fp32_precision",
        ),
        (
            lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
            "torch.utils.deterministic.fill_uninitialized_memory",
        ),
    ],
)
def test_a_secondary_that_sets_something_else_fails_alone(change: Callable[[], None], name: str):
    changes, ended = ending(training(change))
    a, b = run_pair(training(beside=ended), changes)
    assert (a.state, b.state) == ("finished", "failed")
    assert name in str(b.exception) and "job 'b'" in str(b.exception)


def test_a_job_that_sets_what_is_set_is_left_alone():
    """As frameworks do."""

    def same() -> None:
        torch.backends.cuda.enable_flash_sdp(True)

    a, b = run_pair(training(), training(same))
    assert (a.state, b.state) == ("finished", "finished")


def test_what_jobs_agreed_on_is_restored():
    def change() -> None:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.mkldnn.fp32_precision = "ieee"

    a, b = run_pair(training(change), training(change))
    assert (a.state, b.state) == ("finished", "finished")
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.fp32_precision == "none"


def test_a_secondary_fails_at_its_first_step_beside_a_primary_that_has_set_something_else():
    has_set = threading.Event()
    second, ended = ending(training(lambda: has_set.wait(300)))
    a, b = run_pair(training(lambda: (double(), has_set.set()), beside=ended), second)
    assert (a.state, a.value, b.state, b.steps) == ("finished", torch.float64, "failed", 0)
    assert "job 'a' runs with torch.float64, not torch.float32" in str(b.exception)


def test_a_secondary_that_has_done_steps_is_cancelled(caplog: pytest.LogCaptureFixture):
    def late(job: Job) -> torch.dtype:
        while other.result.steps < 3:
            time.sleep(0.01)
        double()
        return torch.get_default_dtype()

    with torchshare.Runtime(device="cpu") as runtime, caplog.at_level(logging.ERROR, "torchshare"):
        runtime.submit(late, name="a", priority="primary", threads=1)
        other = runtime.submit(training(beside=threading.Event()), name="b", threads=1)  # until it is cancelled
        results = runtime.wait(timeout=300)
    assert (results["a"].value, results["b"].state) == (torch.float64, "cancelled")
    assert "job 'b' is cancelled: job 'b': torch.set_default_dtype" in caplog.text


def test_hooks_on_all_modules_and_optimizers_are_for_the_job_that_registers_them():
    def job(factor: float) -> Callable[[Job], tuple[float, int]]:
        def train(job: Job) -> tuple[float, int]:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            steps = []
            nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * factor)
            register_optimizer_step_pre_hook(lambda *_: steps.append(1))
            time.sleep(0.1)
            layer = nn.Linear(1, 1, bias=False)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
            layer(torch.ones(1)).backward()
            optimizer.step()
            return (layer(torch.ones(1)) / layer.weight).item(), len(steps)

        return train

    a, b = run_pair(job(3.0), job(5.0))
    assert (a.value, b.value) == ((3.0, 1), (5.0, 1))
    assert nn.Identity()(torch.ones(1)).item() == 1.0


EAGER = [
    "register_module_forward_pre_hook",
    "register_module_forward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_full_backward_hook",
]


@pytest.mark.parametrize("register", EAGER)
@pytest.mark.parametrize("in_job", [True, False])
def test_a_table_of_hooks_on_all_modules_is_replaced_and_not_changed(register: str, in_job: bool) -> None:
    """Without the GIL, another thread may be iterating over it: plain torch crashes."""
    owner = nn.modules.module

    def tables() -> dict[str, Any]:
        return {name: table for name, table in vars(owner).items() if name.startswith("_global_forward_")} | {
            name: getattr(owner, name) for name in ("_global_backward_hooks", "_global_backward_pre_hooks")
        }

    def contents(of: dict[str, Any]) -> dict[str, Any]:
        return {name: dict(table) for name, table in of.items()}

    def body(job: Job | None) -> None:
        calls: list[int] = []
        seen = [(tables(), contents(tables()))]
        handles = []
        layer = nn.Linear(1, 1)
        for _ in range(2):
            handles.append(getattr(owner, register)(lambda *_: calls.append(1)))
            seen.append((tables(), contents(tables())))
        layer(torch.ones(1, 1, requires_grad=True)).backward()
        assert len(calls) == 2
        handles[0].remove()
        seen.append((tables(), contents(tables())))
        layer(torch.ones(1, 1, requires_grad=True)).backward()
        assert len(calls) == 3
        handles[1].remove()
        handles[1].remove()
        assert all(contents(of) == then for of, then in seen)
        assert contents(tables()) == seen[0][1]

    with torchshare.Runtime(device="cpu") as runtime:
        if in_job:
            runtime.submit(body, name="a")
            runtime.wait()
        else:
            body(None)


@pytest.mark.parametrize("when", ["in the runtime", "after it"])
def test_handles_of_hooks_on_all_modules_remove_them_before_in_and_after_runtimes(when: str) -> None:
    """Those of the program refer to the table that was there before the first runtime."""
    calls: list[str] = []
    register = nn.modules.module.register_module_forward_hook

    def hook(name: str) -> Any:
        return register(lambda *_: calls.append(name))

    def called() -> list[str]:
        calls.clear()
        nn.Identity()(torch.ones(1))
        return sorted(calls)

    handles = {"before": hook("before")}

    def body(job: Job) -> None:
        handles["job"] = hook("job")
        assert called() == ["before", "job", "program"] and pickle.loads(pickle.dumps(handles["job"]))

    with torchshare.Runtime(device="cpu") as runtime:
        handles["program"] = hook("program")
        runtime.submit(body, name="a")
        runtime.wait()
        assert called() == ["before", "program"]
        if when == "in the runtime":
            handles.pop("before").remove()
            assert called() == ["program"]
    handles["after"] = hook("after")
    for name in list(handles):
        handles.pop(name).remove()
        assert called() == sorted(set(handles) - {"job"})
    assert not nn.modules.module._global_forward_hooks


def test_an_option_of_a_hook_on_all_modules_is_kept() -> None:
    def body(job: Job) -> list[str]:
        calls: list[str] = []
        register = nn.modules.module.register_module_forward_hook
        register(
            lambda _module, _inputs, keywords, _output: calls.append(f"keywords {len(keywords)}"), with_kwargs=True
        )
        register(lambda *_: calls.append("always"), always_call=True)

        class Fails(nn.Module):
            def forward(self, x: torch.Tensor, y: int) -> torch.Tensor:
                if y:
                    raise ValueError
                return x

        Fails()(torch.ones(1), y=0)
        with contextlib.suppress(ValueError):
            Fails()(torch.ones(1), y=1)
        return calls

    assert run_one(body).value == ["keywords 1", "always", "always"]
    assert not nn.modules.module._global_forward_hooks_always_called


@pytest.mark.parametrize("table", ["optimizers", "parameters"])
def test_a_job_may_register_hooks_on_all_while_those_of_the_other_run(table: str) -> None:
    """torch iterates over the table of hooks while it calls them."""
    from torch.nn.modules.module import register_module_parameter_registration_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register: Any = register_optimizer_step_post_hook
    if table == "parameters":
        register = register_module_parameter_registration_hook
    in_hook, registered = threading.Event(), threading.Event()

    def a(job: Job) -> list[str]:
        came = []

        def hook(*_: object) -> None:
            came.append(table)
            in_hook.set()
            assert registered.wait(300)

        register(hook)
        handle = register(lambda *_: came.append("last"))
        layer = nn.Linear(2, 2, bias=False)
        optimizer = torch.optim.SGD(layer.parameters())
        optimizer.step()
        handle.remove()
        optimizer.step()
        nn.Linear(2, 2, bias=False)
        return came

    def b(job: Job) -> None:
        assert in_hook.wait(300)
        register(lambda *_: pytest.fail("in the other job"))
        registered.set()

    first, second = run_pair(a, b)
    assert (first.value, second.state) == ([table, "last", table], "finished")


def test_hooks_on_all_change_what_the_next_ones_get() -> None:
    from torch.nn.modules.module import register_module_parameter_registration_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def train(job: Job | None = None) -> list[Any]:
        seen: list[Any] = []
        handles = [
            register_module_parameter_registration_hook(lambda _m, _n, p: nn.Parameter(p.data + 1)),
            register_module_parameter_registration_hook(lambda _m, _n, p: nn.Parameter(p.data * 2)),
            register_optimizer_step_pre_hook(lambda _o, args, kwargs: (args, {"closure": lambda: 1})),
            register_optimizer_step_pre_hook(lambda _o, _args, kwargs: seen.append(list(kwargs))),
        ]
        layer = nn.Linear(1, 1, bias=False)
        layer.weight = nn.Parameter(torch.ones(1, 1))
        seen += [layer.weight.item(), torch.optim.SGD(layer.parameters()).step()]
        with pytest.raises(RuntimeError, match="must return"):
            handles.append(register_optimizer_step_pre_hook(lambda *_: 3))
            torch.optim.SGD(layer.parameters()).step()
        for handle in handles:
            handle.remove()
        return seen

    assert run_one(train).value == train()
