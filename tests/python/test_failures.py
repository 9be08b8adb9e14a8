"""The page "It failed: what now" quotes messages that exist, and has every error that ends a job."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from documents import ROOT

PAGE = ROOT / "docs" / "failures.md"
_ROW = re.compile(r"^\| `(.+?)` \|", re.M)
_JOINT = re.compile(r"[\"']\s*\n\s*[fr]*[\"']")  # of adjacent literals
_PLACEHOLDER = re.compile(r"%[-.\d]*[a-zA-Z]")


def sources() -> Iterator[Path]:
    for folder, pattern in (("torchshare", "*.py"), ("csrc", "*.cpp"), ("csrc", "*.h")):
        yield from (ROOT / folder).rglob(pattern)


def joined(text: str) -> str:
    """A source whose messages are each in one piece."""
    return _JOINT.sub("", text)


def parts(message: str) -> list[str]:
    return [part for part in message.split("...") if len(re.sub(r"\W", "", part)) > 2]


def missing(message: str, texts: list[str]) -> bool:
    """Whether no source has all fixed parts of a message, in their order."""
    pattern = re.compile(".{0,240}?".join(map(re.escape, parts(message))), re.S)
    return not any(pattern.search(text) for text in texts)


def test_every_quoted_message_exists() -> None:
    texts = [joined(path.read_text()) for path in sources()]
    quoted = _ROW.findall(PAGE.read_text())
    assert len(quoted) > 60 and len(set(quoted)) == len(quoted)
    assert [message for message in quoted if missing(message, texts)] == []
    assert missing("job '...' has failed after ... steps", texts), "the test can fail"


def told(tree: ast.AST, functions: set[str]) -> Iterator[tuple[int, str]]:
    """Messages that are the first argument of a call of the functions, with "..." for what varies, by line."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in functions):
            continue
        text = node.args[0]
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield node.lineno, _PLACEHOLDER.sub("...", text.value)
        elif isinstance(text, ast.JoinedStr):
            yield node.lineno, "".join(str(e.value) if isinstance(e, ast.Constant) else "..." for e in text.values)


def errors() -> Iterator[tuple[str, str]]:
    """The texts of `log.error`, and in isolation/ and runtime/, where a job meets them, of `log.warning` and
    RuntimeErrors."""
    for path in sorted((ROOT / "torchshare").rglob("*.py")):
        functions = {"log.error"}
        if path.parent.name in ("isolation", "runtime"):
            functions |= {"log.warning", "RuntimeError"}
        for line, text in told(ast.parse(path.read_text()), functions):
            yield f"{path.relative_to(ROOT)}:{line}", text


def test_every_error_and_warning_of_a_job_is_on_the_page() -> None:
    rows = _ROW.findall(PAGE.read_text())
    found = dict(errors())
    assert len(found) > 30

    def missed(texts: dict[str, str]) -> dict[str, str]:
        return {where: text for where, text in texts.items() if all(missing(row, [text]) for row in rows)}

    assert missed(found) == {}
    assert missed({"here": "job '...' has lost its way"}), "the test can fail"
