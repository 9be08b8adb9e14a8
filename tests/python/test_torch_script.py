"""TorchScript knows classes by qualified names, in one table per process; scripts may have some of the same name."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Ran, script

CLASS = """
import sys, time, torch
FACTOR = float(sys.argv[1])
@torch.jit.script
class Scale:
    def __init__(self, factor: float):
        self.factor = factor
    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor * PLACE
def scale(x: torch.Tensor) -> torch.Tensor:
    return Scale(1.0).times(x)
print(torch.jit.script(scale)(torch.ones(1)).item())
"""
ENUM = """
import enum, sys, torch
class Kind(enum.Enum):
    A = PLACE
    B = 7
def is_a(kind: Kind) -> bool:
    return kind == Kind.A
print(torch.jit.script(is_a)(Kind.A), torch.jit.script(is_a)(Kind.B), Kind.A.value)
"""
NAMED_TUPLE = """
import sys, torch
from typing import NamedTuple
class Out(NamedTuple):
    x: torch.Tensor
    factor: float = PLACE
class Model(torch.nn.Module):
    def forward(self, x):
        out = Out(x)
        return out.x * out.factor
print(torch.jit.script(Model())(torch.ones(1)).item())
torch.jit.script(Model()).save(f"{sys.argv[1]}.pt")
print(torch.jit.load(f"{sys.argv[1]}.pt")(torch.ones(1)).item())
"""


@pytest.mark.parametrize(
    ("code", "places", "printed"),
    [
        (CLASS, ("2.0", "5.0"), (["2.0"], ["5.0"])),
        (ENUM, ("1", "2"), (["True False 1"], ["True False 2"])),
        (NAMED_TUPLE, ("2.0", "3.0"), (["2.0", "2.0"], ["3.0", "3.0"])),
    ],
    ids=["class", "enum", "named tuple"],
)
def test_scripts_have_classes_of_their_own_in_torch_script(
    tmp_path: Path, code: str, places: tuple[str, str], printed: tuple[list[str], list[str]]
) -> None:
    for name, place in zip("ab", places, strict=True):
        script(tmp_path, f"{name}/program.py", code.replace("PLACE", place))
    ran = Ran(tmp_path, "a=a/program.py 1", "b=b/program.py 2")
    assert ran.code == 0, ran.text()
    for name, lines in zip("ab", printed, strict=True):
        found = [line for line in ran.of(name) if "Warning" not in line and "warn(" not in line]
        assert found == lines, ran.text()
