"""What the verbs run: a script with its arguments, or a function of a file or module."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torchshare.context.names import free_name
from torchshare.scripts.output import Output
from torchshare.scripts.script import Script

FORMS = '"train.py --epochs 3", "-m pkg.train --lr 0.1", file.py:function or pkg.module:function'
_NAMED = re.compile(r"([^\s=/:]+)=(.*)", re.DOTALL)
_FUNCTION = re.compile(r"[^\s=]+:\w+")


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
    first = next(iter(shlex.split(target)), "")
    if not (first == "-m" or first.endswith(".py") or (first and os.path.exists(os.path.join(folder or "", first)))):
        raise ValueError(f"target must be {FORMS}, a script with its arguments in quotes; got '{target}'")


def default_name(target: str, taken: Container[str] = ()) -> str:
    """A job's name: the function's; the script's, with a number if it is taken."""
    if is_function(target):
        return target.rpartition(":")[2]
    words = shlex.split(target)
    name = words[1].rpartition(".")[2] if words[0] == "-m" and len(words) > 1 else Path(words[0]).stem
    return free_name(name, taken)


def source_file(target: str) -> Path | None:
    """The file of a target; None if it is named by its module."""
    target = split_name(target)[1]
    place = target.rpartition(":")[0] if is_function(target) else shlex.split(target)[0] if target.strip() else ""
    return Path(place) if place.endswith(".py") or os.path.isfile(place) else None


def load(target: str, output: Output | None = None, folder: str | None = None) -> Callable[..., Any]:
    """Loads a function, or a script, which is not run yet. Relative paths begin in `folder`, as does the script. Raises
    ValueError for an invalid target; exceptions of the user's module propagate."""
    return _load_function(target, folder or "") if is_function(target) else _load_script(target, output, folder)


def options_first(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """The words of a command line with the parser's options first, then `--`, then one word per target.

    Options end at the first script: what follows it is its arguments (`train.py --epochs 3`), or more targets, each one
    word. Scripts with arguments may also be separated by `--`. Raises ValueError for an option after a script.
    """
    options: list[str] = []
    found: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--" or not (_is_option(word) or is_function(word) or word.endswith(".toml")):
            found += _commands(words[at:])
            break
        (options if _is_option(word) else found).append(word)
        action = parser._option_string_actions.get(word)
        if action is not None and action.nargs is None:  # its value is the next word
            at += 1
            options += words[at : at + 1]
        at += 1
    return [*options, "--", *found]


def _is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-m", "--") and " " not in word


def _commands(words: list[str]) -> Iterator[str]:
    """The targets in words that begin with a script or `--`."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            groups.append([])
        else:
            groups[-1].append(word)
    groups = [group for group in groups if group]
    first = groups[0] if groups else []
    has_arguments = len(first) > 1 and _is_option(first[1]) and " " not in first[0]
    if len(groups) > 1 or words[0] == "--" or first[0] == "-m" or has_arguments:
        yield from (group[0] if len(group) == 1 else shlex.join(group) for group in groups)
        return
    for word in first:
        if _is_option(word):
            raise ValueError(
                f"options come before the targets, and a script's arguments in quotes with it; got '{word}' after one"
            )
        yield word


def _load_script(target: str, output: Output | None, folder: str | None) -> Script:
    check_form(target, folder)
    try:
        return Script(shlex.split(target), output, folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"target '{target}': {getattr(error, 'strerror', None) or error}") from None


def _load_function(target: str, folder: str) -> Callable[..., Any]:
    place, _, name = target.rpartition(":")
    is_file = place.endswith(".py")
    module = _load_file(Path(folder, place), target) if is_file else _load_module(place, target, folder)
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
    spec.loader.exec_module(module)
    return module


def _load_module(name: str, target: str, folder: str) -> ModuleType:
    sys.path.insert(0, os.path.abspath(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise ValueError(f"target '{target}': no module named '{error.name}'") from None
        raise  # raised by an import inside the module
