"""The words of a command line that has options of torchshare, and scripts with arguments of their own."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from torchshare.scripts.targets import is_function, split_name


def options_first(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """The words of a command line with the parser's options first, then `--`, then one word per target.

    Options end at the first script: what follows it is its arguments (`train.py --epochs 3`), or more targets, each one
    word. Scripts with arguments may also be separated by `--`. Raises ValueError for an option after a script.
    """
    options, functions, rest = _split(parser, words)
    return [*options, "--", *functions, *_commands(rest)]


def _split(parser: argparse.ArgumentParser, words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The parser's options with their values, functions and files of jobs among them, and the words from the first
    script on."""
    options: list[str] = []
    functions: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--" or not (_is_option(word) or is_function(word) or word.endswith(".toml")):
            break
        (options if _is_option(word) else functions).append(word)
        action = parser._option_string_actions.get(word)
        values = words[at + 1 : at + 2]
        if action is not None and (action.nargs is None or (action.nargs == "?" and values in (["yes"], ["no"]))):
            options += values
            at += 1
        at += 1
    return options, functions, words[at:]


def _is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-m", "--") and " " not in word


def _commands(words: list[str]) -> Iterator[str]:
    """The targets in words that begin with a script or `--`."""
    if not words:
        return
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
                f"options come before the targets, and a script's arguments in quotes with it, got '{word}' after one"
            )
        yield word


def misplaced(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    """What looks as if it were meant for torchshare, but is passed to a script, as one line; None for nothing."""
    rest = _split(parser, words)[2]
    if "--" in rest or len(rest) < 2 or not _is_option(rest[1]) or " " in rest[0]:
        return None  # each script's arguments are marked as such
    script, arguments = rest[0], rest[1:]
    scripts = [word for before, word in itertools.pairwise(arguments) if not _is_option(before) and _is_script(word)]
    known = [word for word in arguments if word.partition("=")[0] in parser._option_string_actions]
    options = known if scripts else [word for word in known if not _mentions(script, word.partition("=")[0])]
    passed = [f"'{word}'" for word in (*options[:1], *scripts[:1])]
    if not passed:
        return None
    return (
        f"{' and '.join(passed)} after '{script}' {'is passed' if len(passed) == 1 else 'are passed'} to that script: "
        f'options of torchshare come before the first script, and a script with arguments is quoted, "{script} --x 1"'
    )


def _is_script(word: str) -> bool:
    file = split_name(word)[1]
    return file.endswith(".py") and os.path.isfile(file)


def _mentions(script: str, option: str) -> bool:
    """Whether a script's source has the option's name in some form. True if it cannot be read."""
    name = re.escape(option.strip("-")).replace(r"\-", "[-_]")
    try:
        return re.search(rf"\b{name}\b", Path(split_name(script)[1]).read_text(errors="replace")) is not None
    except OSError:
        return True
