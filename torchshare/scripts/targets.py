"""What the verbs run: a script with its arguments, or a function of a file or module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Container
from pathlib import Path
from types import ModuleType
from typing import Any

from torchshare.context.names import free_name
from torchshare.scripts.output import Output
from torchshare.scripts.script import Script

FORMS = '"train.py --epochs 3", "-m pkg.train --lr 0.1", file.py:function or pkg.module:function'
_NAMED = re.compile(r"([^\s=/:]+)=(.*)", re.DOTALL)
_FUNCTION = re.compile(r"[^\s=]+:\w+")


class CannotLoad(ValueError):
    """A target whose own code failed when it was loaded: with `__cause__`."""

    def __init__(self, target: str, error: BaseException) -> None:
        from torchshare.context.errors import described  # imports torch

        super().__init__(f"target '{target}' cannot be loaded: {described(error)}")


def split_name(text: str) -> tuple[str | None, str]:
    """The parts of `[NAME=]VALUE`."""
    match = _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def is_function(target: str) -> bool:
    return _FUNCTION.fullmatch(split_name(target)[1]) is not None


def check_form(target: str, folder: str | None = None) -> None:
    """Raises ValueError if the target cannot be a script or a function. Its file need not exist."""
    if is_function(target):
        return
    first = _words(target)[0]
    if not (first == "-m" or first.endswith(".py") or os.path.exists(os.path.join(folder or "", first))):
        raise _no_target(target)


def _words(target: str) -> list[str]:
    """Splits a script and its arguments into words; the first is not empty."""
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise ValueError(f"target '{target}': {str(error).lower()}") from None
    if not words or not words[0]:
        raise _no_target(target)
    return words


def _no_target(target: str) -> ValueError:
    return ValueError(f"target must be {FORMS}, a script with its arguments in quotes, got '{target}'")


def default_name(target: str, taken: Container[str] = ()) -> str:
    """A job's name: the function's; the script's, with a number if it is taken."""
    if is_function(target):
        return target.rpartition(":")[2]
    words = _words(target)
    name = words[1].rpartition(".")[2] if words[0] == "-m" and len(words) > 1 else Path(words[0]).stem
    return free_name(name, taken)


def source_file(target: str) -> Path | None:
    """The file of a target; None if it is named by its module."""
    target = split_name(target)[1]
    source = target.rpartition(":")[0] if is_function(target) else _words(target)[0]
    return Path(source) if source.endswith(".py") or os.path.isfile(source) else None


def load(target: str, output: Output | None = None, folder: str | None = None) -> Callable[..., Any]:
    """Loads a function, or a script, which is not run yet. Relative paths begin in `folder`, as does the script. Raises
    ValueError for an invalid target, CannotLoad for one whose code raises or cannot be compiled."""
    return _load_function(target, folder or "") if is_function(target) else _load_script(target, output, folder)


def _load_script(target: str, output: Output | None, folder: str | None) -> Script:
    check_form(target, folder)
    try:
        return Script(_words(target), output, folder)
    except SyntaxError as error:
        raise CannotLoad(target, error) from error
    except (OSError, ValueError) as error:
        raise ValueError(f"target '{target}': {getattr(error, 'strerror', None) or error}") from None


def _load_function(target: str, folder: str) -> Callable[..., Any]:
    source, _, name = target.rpartition(":")
    is_file = source.endswith(".py")
    module = _load_file(Path(folder, source), target) if is_file else _load_module(source, target, folder)
    function = getattr(module, name, None)
    if not callable(function):
        names = ", ".join(sorted(_functions(module)))
        others = f"only {names}" if names else "nor any other"
        raise ValueError(f"target '{target}': {source} has no function '{name}', {others}")
    return function  # type: ignore[no-any-return]


def _functions(module: ModuleType) -> list[str]:
    functions = inspect.getmembers(module, inspect.isfunction)
    return [name for name, function in functions if function.__module__ == module.__name__ and name[0] != "_"]


def _load_file(path: Path, target: str) -> ModuleType:
    """Runs a file as a module, with its folder on the path as `python file.py` has it."""
    if not os.path.isfile(path):
        raise ValueError(f"target '{target}': no such file {path}")
    name = f"torchshare_target_{path.resolve().as_posix().replace('/', '_').replace('.', '_')}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a .py file always has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before exec_module, so that its classes can be pickled
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise CannotLoad(target, error) from error
    return module


def _load_module(name: str, target: str, folder: str) -> ModuleType:
    sys.path.insert(0, os.path.abspath(folder))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):  # else it is imported inside the module
            raise ValueError(f"target '{target}': no module named '{missing}'") from None
        raise CannotLoad(target, error) from error
