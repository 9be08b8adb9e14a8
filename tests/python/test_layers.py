"""The folders of csrc/ may use only what is below them. The order is the design's, bottom first."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
TORCH_FREE = ["model", "policy", "planner", "sharing", "cluster"]
LAYERS = ["torchshare", *TORCH_FREE, "memory", "device", "gate", "hook", "compiled", "runtime", "bindings"]
PYTHON_FREE = set(LAYERS) - {"bindings"}
VALUES = {"torchshare/values.h", "torchshare/profile.h"}  # the public headers that know no torch
SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp", ".cu"))


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
        if upward or torch or python or threads:
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
    assert faults("model", "#include <ATen/ATen.h>\n#include <mutex>\n#include <string>\n") == [
        "#include <ATen/ATen.h>",
        "#include <mutex>",
    ]
    assert faults("runtime", "#include <pybind11/pybind11.h>\n") == ["#include <pybind11/pybind11.h>"]
