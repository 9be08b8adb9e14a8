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
_FEWEST = 8  # letters that make a part worth finding


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


def errors() -> Iterator[tuple[str, str]]:
    """The texts of `log.error`, by where they are."""
    for path in sorted((ROOT / "torchshare").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_error = isinstance(node, ast.Call) and ast.unparse(node.func) == "log.error"
            if is_error and isinstance(node.args[0], ast.Constant):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.args[0].value


def test_every_error_that_ends_a_job_is_on_the_page() -> None:
    page = PAGE.read_text()
    found = dict(errors())
    assert len(found) > 5
    assert {
        where: text
        for where, text in found.items()
        if not all(part in page for part in _PLACEHOLDER.split(text) if len(part) > _FEWEST)
    } == {}
