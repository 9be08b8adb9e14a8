"""Docstrings and comments that describe a declaration are sentences: none begins in the middle of one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("torchshare", "csrc")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".h", ".cpp")
)
FRAGMENT = re.compile(r"(Of|By|Those)\b")


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, and strings below an attribute, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def cpp_texts(source: str) -> Iterator[tuple[int, str]]:
    """Comments `///` and `///<`, each with the line in which it begins."""
    former = False
    for number, line in enumerate(source.splitlines(), 1):
        match = re.search(r"///<? *(.*)", line)
        if match is not None and not former:
            yield number, match[1]
        former = match is not None


def fragments(source: str, suffix: str) -> list[int]:
    """The lines of texts that begin with a fragment."""
    texts = python_texts(source) if suffix == ".py" else cpp_texts(source)
    return sorted(line for line, text in texts if FRAGMENT.match(text))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_docstring_begins_with_of_by_or_those(path: Path) -> None:
    assert fragments(path.read_text(), path.suffix) == []


def test_a_fragment_is_found() -> None:
    python = 'def f():\n    """Of how many starts this is the last."""\nx = 1\n"""By name."""\n"""Offers of a job."""\n'
    assert fragments(python, ".py") == [2, 4]
    cpp = "/// Those that wait,\n/// By name.\nint a;\nint b;  ///< Of all jobs.\n/// Bytes of a job.\n"
    assert fragments(cpp, ".h") == [1, 4]
