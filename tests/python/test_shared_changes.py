"""Changes of shared packages that are no assignments to attributes: each is the job's own, or fails the job."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_replacements import beside
from torch import nn
from torch.nn import functional as F

import torchshare
from torchshare import Job

ONES = torch.ones(1, 4)
KEPT: list[object] = []


def zeros(tensor: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
    return nn.init.zeros_(tensor)


def changed_defaults() -> None:
    F.dropout.__defaults__ = (0.9, True, False)


def changed_keyword_defaults() -> None:
    torch.load.__kwdefaults__ = {"weights_only": False, "mmap": None}


def changed_code() -> None:
    nn.Linear.forward.__code__ = (lambda self, input: input).__code__


def deleted_defaults() -> None:
    del F.dropout.__defaults__


FIELDS = [
    (deleted_defaults, "torch.nn.functional.dropout.__defaults__", lambda: F.dropout.__defaults__),
    (changed_defaults, "torch.nn.functional.dropout.__defaults__", lambda: F.dropout.__defaults__),
    (changed_keyword_defaults, "torch.serialization.load.__kwdefaults__", lambda: torch.load.__kwdefaults__),
    (changed_code, "torch.nn.modules.linear.Linear.forward.__code__", lambda: nn.Linear.forward.__code__),
]


@pytest.mark.parametrize(("change", "name", "look"), FIELDS)
def test_a_job_that_changes_a_function_fails_at_once(change: Callable[[], None], name: str, look: Callable[[], Any]):
    def changes() -> str:
        with pytest.raises(RuntimeError) as error:
            change()
        return str(error.value)

    before = look()
    mine, other, after = beside(changes, look)
    assert f"job 'first': {name}, replaced at {__file__}:" in mine
    assert "because all jobs call the function, and job 'second' uses torch, too" in mine
    assert other == after == before


@pytest.mark.parametrize(("change", "_name", "look"), FIELDS)
def test_a_job_alone_may_change_a_function_until_it_ends(
    change: Callable[[], None], _name: str, look: Callable[[], Any]
):
    def changes(_job: Job) -> Any:
        change()
        return look()

    before = look()
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(changes, name="a")
        assert runtime.wait(300)["a"].value != before == look()


def test_functions_of_the_program_and_copies_of_others_may_be_changed():
    def mine(x: int = 1) -> int:
        return x

    def change() -> tuple[int, int, int]:
        mine.__defaults__ = (2,)
        relu = types.FunctionType(F.relu.__code__, F.relu.__globals__)
        relu.__defaults__ = (True,)
        return mine(), int(relu(-ONES).sum()), relu.__globals__["torch"] is torch  # type: ignore[return-value]

    assert beside(change, lambda: mine())[0] == (2, 0, True)


def test_a_job_that_reloads_a_shared_module_fails_at_once():
    def reloads() -> str:
        with pytest.raises(RuntimeError) as error:
            importlib.reload(nn.init)
        return str(error.value)

    before = nn.init.kaiming_uniform_
    mine, other, after = beside(reloads, lambda: nn.init.kaiming_uniform_)
    assert f"job 'first': torch.nn.init (importlib.reload), replaced at {__file__}:" in mine
    assert other is after is before


def test_a_job_alone_may_reload_a_module_until_it_ends():
    before = nn.init.kaiming_uniform_
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda job: importlib.reload(nn.init).kaiming_uniform_ is before, name="a")
        assert runtime.wait(300)["a"].value is False
    assert nn.init.kaiming_uniform_ is before


def kernel() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    library.impl("mul.Tensor", lambda a, b: a - b, "CPU")
    return library


def test_a_job_that_registers_a_kernel_for_an_op_of_torch_fails_at_once():
    def registers() -> str:
        with pytest.raises(RuntimeError) as error:
            kernel()
        return str(error.value)

    mine, other, _ = beside(registers, lambda: float((ONES * ONES).sum()))
    assert f"job 'first': the kernel of aten::mul.Tensor for CPU, replaced at {__file__}:" in mine
    assert other == 4.0


def test_a_job_alone_may_register_kernels_until_it_ends():
    kept = []

    def registers(_job: Job) -> float:
        kept.append(kernel())
        return float((ONES * ONES).sum())

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(registers, name="a")
        assert runtime.wait(300)["a"].value == 0.0
    assert float((ONES * ONES).sum()) == 4.0


def test_an_op_that_a_job_loads_from_cpp_has_its_kernels():
    def registers() -> float:
        loaded = torch._C._dispatch_library("DEF", "cpp_of_job", "")  # what `torch.ops.load_library` runs
        loaded.def_("twice(Tensor x) -> Tensor")
        library = torch.library.Library("cpp_of_job", "IMPL")
        KEPT.extend([loaded, library])
        library.impl("twice", lambda x: x + x, "CPU")
        return float(torch.ops.cpp_of_job.twice(ONES).sum())

    assert beside(registers, lambda: None)[0] == 8.0


def test_an_op_of_the_jobs_own_has_its_kernels():
    def registers() -> float:
        library = torch.library.Library("own_of_job", "DEF")
        KEPT.append(library)  # or torch keeps the name of an op that is gone, on which torch.compile fails later
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        return float(torch.ops.own_of_job.twice(ONES).sum())

    assert beside(registers, lambda: None)[0] == 8.0


def test_whether_distributions_check_their_values_is_each_jobs():
    def unchecked() -> bool:
        torch.distributions.Distribution.set_default_validate_args(False)
        torch.distributions.Normal(0.0, -1.0)
        return torch.distributions.Distribution._validate_args

    def checked() -> bool:
        with pytest.raises(ValueError, match="scale"):
            torch.distributions.Normal(0.0, -1.0)
        return torch.distributions.Distribution._validate_args

    assert beside(unchecked, checked) == (False, True, True)
