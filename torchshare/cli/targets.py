"""Finds the function that `torchshare run` is given: `pkg.module:function` or `file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def split_name(text: str) -> tuple[str | None, str]:
    """The parts of `[NAME=]VALUE`."""
    name, equals, value = text.partition("=")
    return (name, value) if equals else (None, text)


def named(text: str) -> tuple[str, str]:
    """The job's name and the target of `[NAME=]TARGET`. The name defaults to the function's."""
    name, target = split_name(text)
    return name or target.rpartition(":")[2], target


def load(target: str) -> Callable[..., Any]:
    """Loads the function. Raises ValueError for an invalid target; exceptions of the user's module propagate."""
    place, colon, name = target.rpartition(":")
    if not (colon and place and name):
        raise ValueError(f"target must be pkg.module:function or file.py:function, got '{target}'")
    module = _load_file(Path(place), target) if place.endswith(".py") else _load_module(place, target)
    function = getattr(module, name, None)
    if not callable(function):
        names = ", ".join(sorted(_functions(module))) or "none"
        raise ValueError(f"target '{target}': {place} has no function '{name}', only {names}")
    return function  # type: ignore[no-any-return]


def _functions(module: ModuleType) -> list[str]:
    functions = inspect.getmembers(module, inspect.isfunction)
    return [name for name, function in functions if function.__module__ == module.__name__ and name[0] != "_"]


def _load_file(path: Path, target: str) -> ModuleType:
    """Runs a file as a module, with its folder on the path as `python file.py` has it."""
    if not path.is_file():
        raise ValueError(f"target '{target}': no such file {path}")
    name = f"torchshare_target_{path.resolve().as_posix().replace('/', '_').replace('.', '_')}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before exec_module, so that its classes can be pickled
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _load_module(name: str, target: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise ValueError(f"target '{target}': no module named '{error.name}'") from None
        raise  # raised by an import inside the module
