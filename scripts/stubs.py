"""Writes the stubs of the C++ modules, torchshare/_C.pyi and torchshare/_core.pyi, from the built modules, with
pybind11-stubgen: .venv/bin/python scripts/stubs.py"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pybind11_stubgen as stubgen
import torch  # noqa: F401  its libraries are those of the modules
from pybind11_stubgen.printer import Printer
from pybind11_stubgen.structs import QualifiedName

import torchshare

FOLDER = Path(torchshare.__file__).parent
MODULES = "_C", "_core"

GENERATED = type(stubgen.stub_parser_from_args(stubgen.arg_parser().parse_args(["_C"], stubgen.CLIArgs())))


class Parser(GENERATED):
    """With int for SupportsInt, as pybind11 refuses a float for an int, and float for SupportsFloat. The pybind11 of
    torch 2.15 adds SupportsIndex to both."""

    def parse_annotation_str(self, annotation_str: str) -> Any:
        numbers = annotation_str.replace("typing.SupportsInt", "int").replace("typing.SupportsFloat", "float")
        numbers = numbers.replace(" | typing.SupportsIndex", "")
        return super().parse_annotation_str(numbers)


def formatted(text: str) -> str:
    for command in (["check", "--fix", "--quiet", "--select=I"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(FOLDER / "_C.pyi"), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def generated(name: str) -> str:
    """Text of the stub of that module."""
    parser = Parser()
    full_name = f"{torchshare.__name__}.{name}"
    module = parser.handle_module(QualifiedName.from_str(full_name), importlib.import_module(full_name))
    parser.finalize()
    lines = Printer(invalid_expr_as_ellipses=False).print_module(module)
    return formatted("\n".join(line for line in lines if not line.startswith("__all__")))


if __name__ == "__main__":
    for name in MODULES:
        (FOLDER / f"{name}.pyi").write_text(generated(name))
