"""Folders of csrc/ and packages of torchshare/ may use only those below them. Lists them bottom first."""

import ast
import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
TORCH_FREE = ["model", "policy", "planner", "sharing", "cluster"]
LAYERS = ["torchshare", *TORCH_FREE, "memory", "device", "gate", "hook", "compiled", "runtime", "bindings"]
ABOUT_JOBS = {"planner", "sharing", "cluster"}
"""When a job may run, and where. What is about ops, from `policy` to the gate and the hook, knows nothing of it."""
PYTHON_FREE = set(LAYERS) - {"bindings"}
VALUES = {"torchshare/values.h", "torchshare/profile.h"}  # public headers without torch


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".cpp", ".cu"))


SOURCES = sources(CSRC)


def layer_of(path: Path) -> str:
    """The public headers, include/torchshare, are the lowest layer."""
    return path.relative_to(CSRC).as_posix().removeprefix("include/").split("/")[0]


def faults(layer: str, text: str) -> list[str]:
    """The #include lines of `text` that a file of `layer` must not have."""
    found = []
    for line, name in re.findall(r'^(\s*#\s*include\s*[<"]([^">]+)[">])', text, re.MULTILINE):
        first = name.split("/")[0]
        upward = "/" in name and first in LAYERS and LAYERS.index(first) > LAYERS.index(layer)
        public = first == "torchshare" and name not in VALUES
        torch = (first in ("ATen", "c10", "torch") or public) and layer in TORCH_FREE
        python = (first == "pybind11" or name in ("Python.h", "torch/csrc/utils/pybind.h")) and layer in PYTHON_FREE
        threads = name in ("thread", "mutex", "atomic", "condition_variable") and layer in TORCH_FREE
        about_jobs = first in ABOUT_JOBS and layer not in ABOUT_JOBS | {"runtime", "bindings"}
        if upward or torch or python or threads or about_jobs:
            found.append(line.strip())
    return found


def test_every_folder_has_its_place() -> None:
    assert {layer_of(path) for path in SOURCES} == set(LAYERS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_includes_point_downwards(path: Path) -> None:
    assert faults(layer_of(path), path.read_text()) == []


def test_an_upward_include_is_found() -> None:
    assert faults("torchshare", '#include "torchshare/job.h"\n#include "gate/slot.h"\n') == ['#include "gate/slot.h"']
    assert faults("model", '#include "torchshare/values.h"\n#include "torchshare/errors.h"\n') == [
        '#include "torchshare/errors.h"'
    ]
    assert faults("policy", '#include "gate/gate.h"\n#include "model/event.h"\n') == ['#include "gate/gate.h"']
    assert faults("gate", '#include "sharing/auto_sharing.h"\n') == ['#include "sharing/auto_sharing.h"']
    assert faults("model", "#include <ATen/ATen.h>\n#include <mutex>\n#include <string>\n") == [
        "#include <ATen/ATen.h>",
        "#include <mutex>",
    ]
    assert faults("runtime", "#include <pybind11/pybind11.h>\n") == ["#include <pybind11/pybind11.h>"]


CONSTANT = re.compile(r"^(?:inline )?constexpr .*?\b(k[A-Z]\w*)(?: =|\[|\{)", re.MULTILINE)


def test_no_source_hides_a_constant_of_a_header() -> None:
    """Several sources are compiled as one: each would silently use the constant of another's anonymous namespace."""
    texts = {path: path.read_text() for path in SOURCES + sources(CSRC.parent / "tests" / "cpp")}
    public = {name for path, text in texts.items() if path.suffix == ".h" for name in CONSTANT.findall(text)}
    assert "kAlone" in public
    private = [(path, name) for path, text in texts.items() if path.suffix != ".h" for name in CONSTANT.findall(text)]
    assert [f"{path}: {name}" for path, name in private if name in public] == []


PACKAGES = [
    "durable",
    "device",
    "context",
    "report",
    "isolation",
    "memory",
    "checkpoints",
    "training",
    "serving",
    "profiles",
    "runtime",
    "profiling",
    "simulation",
    "scripts",
    "cluster",
    "cli",
]
PACKAGE = Path(__file__).parents[2] / "torchshare"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)
# `Job` and `Runtime` are for users; features use JobContext.
FACADES = ["torchshare.runtime.job", "torchshare.runtime.runtime"]
FACADE_USERS = {"runtime", "profiling", "cluster", "cli"}
TORCH_FREE_PACKAGES = {"cluster", "durable", "simulation"}


def imports(tree: ast.AST) -> set[str]:
    """The modules that a file imports, including imports in functions and for type checking."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def import_faults(package: str, text: str) -> list[str]:
    """The imports that a module of `package` must not have."""
    found = []
    for name in imports(ast.parse(text)):
        parts = name.split(".")
        upward = (
            len(parts) > 1
            and parts[0] == "torchshare"
            and parts[1] in PACKAGES
            and PACKAGES.index(parts[1]) > PACKAGES.index(package)
        )
        facade = package not in FACADE_USERS and any(name.startswith(module) for module in FACADES)
        torch = package in TORCH_FREE_PACKAGES and parts[0] == "torch"
        if upward or facade or torch:
            found.append(name)
    return found


def test_every_package_has_its_place() -> None:
    assert {path.relative_to(PACKAGE).parts[0] for path in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    assert import_faults(path.relative_to(PACKAGE).parts[0], path.read_text()) == []


def test_modules_import_each_other_in_no_circle() -> None:
    """Including modules of the same package."""
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    uses = {
        name: {
            other
            for found in imports(ast.parse(path.read_text()))
            for other in names
            if found.startswith(other + ".") or found == other
        }
        for name, path in names.items()
    }
    while free := [name for name, used in uses.items() if not used & uses.keys()]:
        for name in free:
            del uses[name]
    assert uses == {}


def test_an_upward_import_is_found() -> None:
    assert import_faults("training", "def f():\n    from torchshare.cli import run\n") == ["torchshare.cli.run"]
    assert import_faults("isolation", "from torchshare.runtime.job import Job\n") == ["torchshare.runtime.job.Job"]
    assert import_faults("runtime", "from torchshare.runtime.job import Job\nimport torch\n") == []
    assert import_faults("cluster", "import torch\n") == ["torch"]
