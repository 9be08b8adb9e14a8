"""The stubs of the C++ modules are those that the modules generate."""

import runpy
from pathlib import Path

import pytest

import torchshare

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "stubs.py"))


@pytest.mark.parametrize("module", SCRIPT["MODULES"])
def test_the_stub_is_the_one_that_the_module_generates(module: str):
    stub = (SCRIPT["FOLDER"] / f"{module}.pyi").read_text()
    assert stub == SCRIPT["generated"](module), "run scripts/stubs.py"


def test_every_public_name_is_there():
    assert all(hasattr(torchshare, name) for name in torchshare.__all__)
