"""Changes of shared packages that are no assignments to attributes: each is the job's own, or fails the job."""

from __future__ import annotations

import importlib
import types
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_replacements import beside, output
from test_shared_torch import Meeting
from torch import nn
from torch.nn import functional as F

import torchshare
from torchshare import Job

ONES = torch.ones(1, 4)


def zeros(tensor: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
    return nn.init.zeros_(tensor)


def by_vars() -> None:
    vars(nn.init)["kaiming_uniform_"] = vars(nn.init)["uniform_"] = zeros


def by_dict() -> None:
    nn.init.__dict__.update(kaiming_uniform_=zeros, uniform_=zeros)


def by_globals() -> None:
    nn.init.xavier_uniform_.__globals__["kaiming_uniform_"] = zeros
    variables = nn.init.xavier_uniform_.__globals__
    variables |= {"uniform_": zeros}


def by_exec() -> None:
    exec("def kaiming_uniform_(tensor, *_, **__): return zeros_(tensor)\nuniform_ = kaiming_uniform_", vars(nn.init))


def by_mock() -> None:
    unittest.mock.patch.dict(vars(nn.init), kaiming_uniform_=zeros, uniform_=zeros).start()


@pytest.mark.parametrize("change", [by_vars, by_dict, by_globals, by_exec, by_mock])
def test_what_a_job_writes_into_the_dictionary_of_a_module_is_its_own(change: Callable[[], None]):
    def replaced() -> float:
        change()
        return output()

    before = dict(vars(nn.init))
    mine, other, after = beside(replaced, output)
    assert (mine, other) == (0.0, after) and after == output() != 0.0
    assert dict(vars(nn.init)) == before


def test_a_dictionary_reads_as_the_modules():
    def read() -> tuple[Any, ...]:
        variables = vars(F)
        F.relu = abs  # type: ignore[assignment]
        present = (variables["relu"] is abs, vars(F)["relu"] is abs, "relu" in variables, variables.get("no such"))
        vars(F)["added"] = 1
        added = F.added == variables["added"] == 1  # type: ignore[attr-defined]
        del vars(F)["added"]
        copied = dict(variables)
        return present, added, hasattr(F, "added"), copied["gelu"] is F.gelu, {**vars(F)}["gelu"] is F.gelu

    mine, other, after = beside(read, lambda: (F.relu, vars(F).get("added"), sorted(vars(F)) == sorted(dir(F))))
    assert mine == ((True, True, True, None), True, False, True, True)
    assert other == after == (F.relu, None, True)


def test_a_variable_that_the_modules_code_reads_fails_the_job():
    def replace() -> str:
        with pytest.raises(RuntimeError) as error:
            vars(torch.serialization)["MAGIC_NUMBER"] = 4
        return str(error.value)

    before = torch.serialization.MAGIC_NUMBER
    mine, other, after = beside(replace, lambda: torch.serialization.MAGIC_NUMBER)
    assert "torch.serialization.MAGIC_NUMBER, replaced at " in mine and "shared_patches" in mine
    assert other == after == before


def changed_defaults() -> None:
    F.dropout.__defaults__ = (0.9, True, False)


def changed_keyword_defaults() -> None:
    torch.load.__kwdefaults__ = {"weights_only": False, "mmap": None}


def changed_code() -> None:
    nn.Linear.forward.__code__ = (lambda self, input: input).__code__


FIELDS = [
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
        assert runtime.wait(60)["a"].value != before == look()


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
        assert runtime.wait(60)["a"].value is False
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
        assert runtime.wait(60)["a"].value == 0.0
    assert float((ONES * ONES).sum()) == 4.0


def test_an_op_of_the_jobs_own_has_its_kernels():
    def registers() -> float:
        library = torch.library.Library("own_of_job", "DEF")
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


def test_a_job_that_waits_reads_variables_as_a_program():
    """The standard library looks functions up, copies and pickles them, and imports."""
    import inspect
    import pickle
    import typing

    def look() -> bool:
        hints = typing.get_type_hints(nn.Linear.forward)
        return pickle.loads(pickle.dumps(F.relu)) is F.relu and bool(inspect.signature(F.relu)) and bool(hints)

    meeting = Meeting()
    meeting.inside.set()
    assert beside(look, look) == (True, True, True)
