"""Torch's private names and what differs between its versions are in one module, and in one header."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import python
from test_patches import ALL_ROWS

import torchshare
from torchshare import _core, torch_versions
from torchshare.torch_versions import CHECKED, CPP_PRIVATE_NAMES, PRIVATE_NAMES

ROOT = Path(__file__).parents[2]


def found(name: str) -> Any:
    """What a dotted name stands for; raises AttributeError or ModuleNotFoundError."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        return value
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_torch_has_the_private_name(name: str) -> None:
    here = torch.__version__.partition("+")[0]
    if here in CHECKED and here not in PRIVATE_NAMES[name]:
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            found(name)
    else:
        found(name)


def dotted_names(text: str) -> Iterator[str]:
    """The names of torch that a module uses: in imports, as attributes, and as strings."""
    tree = ast.parse(text)
    bound = {}  # in the module: its name there, and in torch
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            of_torch = [each for each in node.names if each.name.partition(".")[0] == "torch"]
            bound.update({each.asname or "torch": each.name if each.asname else "torch" for each in of_torch})
            yield from (each.name for each in of_torch)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            bound.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
            yield from (f"{node.module}.{each.name}" for each in node.names)

    def dotted(node: ast.expr) -> str | None:
        if isinstance(node, ast.Attribute):
            owner = dotted(node.value)
            return owner and f"{owner}.{node.attr}"
        return bound.get(node.id) if isinstance(node, ast.Name) else None

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := dotted(node)):
            yield name
        elif isinstance(node, ast.Constant) and re.fullmatch(r"torch(\.\w+)+(:[\w.]+)?", str(node.value)):
            yield node.value.replace(":", ".")


def private_names(text: str) -> set[str]:
    """Those that have a private part, without names that only lead to longer ones."""
    names = {name for name in dotted_names(text) if re.search(r"\._(?!_)", name)}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def sources() -> Iterator[Path]:
    listed = ROOT / "torchshare" / "torch_versions.py"
    return (path for path in (ROOT / "torchshare").rglob("*.py") if path != listed)


def test_private_names_that_are_used_are_listed_and_no_others() -> None:
    used = set().union(*(private_names(path.read_text()) for path in sources()))
    names = [*PRIVATE_NAMES, *map(str, ALL_ROWS)]  # test_patches looks at the rows
    known = {name for name in used if any(each == name or each.startswith(f"{name}.") for each in names)}
    assert used - known == set()
    assert PRIVATE_NAMES.keys() - used == set()


def test_private_names_that_cpp_uses_are_listed_and_no_others() -> None:
    own = r"\b(?:c10|at|torch)::(?:\w+::)*(?:impl|native|internal|detail|inductor)::\w+|c10::DispatchKey::DeferredInit"
    files = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp")]
    used = {name for path in files for name in re.findall(own, path.read_text())}
    assert sorted(used) == sorted(CPP_PRIVATE_NAMES)


def test_torch_has_no_kernel_on_the_dispatch_key_of_the_hook() -> None:
    code = "import torch; print(torch._C._dispatch_get_registrations_for_dispatch_key('DeferredInit'))"
    assert python(code).stdout == "[]\n"


def test_a_private_name_is_found_however_it_is_written() -> None:
    text = """
import torch, torch._dynamo
import torch._functorch.eager_transforms as transforms
from torch.fx import _symbolic_trace
torch.nn.Linear(torch._C._get_x(), transforms.jvp)
_symbolic_trace.Tracer.trace("torch.utils._config_module:Entry", "torch.nn", "torch.float32", "see torch._C")
"""
    assert private_names(text) == {
        "torch._dynamo",
        "torch._C._get_x",
        "torch._functorch.eager_transforms.jvp",
        "torch.fx._symbolic_trace.Tracer.trace",
        "torch.utils._config_module.Entry",
    }


def test_only_one_module_and_one_header_ask_for_the_version() -> None:
    compared = re.compile(r"torch\.__version__ *[<>]|TorchVersion|torch\.torch_version|SpecifierSet")
    assert [path for path in sources() if compared.search(path.read_text())] == []
    asking = [path for path in (ROOT / "csrc").rglob("*") if path.is_file() and "TORCH_VERSION_M" in path.read_text()]
    assert [path.relative_to(ROOT).as_posix() for path in asking] == ["csrc/device/cuda/torch_version.h"]


def test_the_build_names_its_torch() -> None:
    assert _core.torch_version() == torch.__version__
    torch_versions.check_build()


@pytest.mark.parametrize(
    ("command", "code"),
    [(["-c", "from torchshare import _C"], 1), (["-m", "torchshare", "doctor"], 2)],
    ids=["import", "command"],
)
def test_another_torch_than_at_build_time_is_refused_in_one_line(tmp_path: Path, command: list[str], code: int) -> None:
    """Before the C++ module is loaded, which may crash."""
    (tmp_path / "sitecustomize.py").write_text("import torch\ntorch.__version__ = '2.99.0'\n")
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{tmp_path}:{Path(torchshare.__file__).parents[1]}", "PATH": ""},
    )
    line = done.stderr.splitlines()[-1].partition(": ")[2].removeprefix("error: ")
    assert done.returncode == code, done.stderr
    assert line == (
        f"torchshare was built with torch {_core.torch_version()}, and torch 2.99.0 is installed. Rebuild it: "
        f"{sys.executable} -m pip install --no-build-isolation --no-deps -e {ROOT}"
    )
