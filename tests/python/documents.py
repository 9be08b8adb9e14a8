"""The blocks of the documents, and how they run. The rules for who writes a page are in docs/contributing.md."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import torchshare_command

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = ("slow", "gpu", "needs", "not run")
"""Of marks: comments before blocks, with the reason or, for "needs", the modules. "not run" blocks never run."""

_COMMENT_OR_BLOCK = re.compile(r"^<!-- (?P<comment>.*?) -->$|^```(?P<language>.*?)\n(?P<text>.*?)^```$", re.M | re.S)
_FILE = re.compile(r"(?:#|//) ([\w./-]+\.\w+)\n")
_SHELL = re.compile(r"[|;&<>$*]|^\w+=")
# What depends on the machine's speed and load, in words.
_MEASURED = re.compile(r"^(job '.* other threads of the machine had the cores |sharing: ).*\n", re.M)
_PREFIXED = re.compile(r"(?:^\w+: .*\n)+", re.M)
_DECIMAL = re.compile(r"[\d,]*\d\.\d+")
# Building again while tests run would replace the library that they use.
_INSTEAD = {"make demo": f"python {ROOT}/examples/digits_pair.py"}


@dataclass
class Block:
    """A fenced block, or the command of a comment "setup: ..."."""

    page: Path
    line: int
    language: str
    text: str
    kind: str = ""
    """Of its mark, "" without one."""
    modules: tuple[str, ...] = ()
    """What a block marked "needs" imports."""
    is_measured: bool = False
    """Marked "measured": what it prints is not compared."""
    output: str | None = None
    """What Python prints: the block of text right after it."""

    @property
    def place(self) -> str:
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """Where its text is saved: its first line is a comment that names a file."""
        found = None if self.language == "console" else _FILE.match(self.text)
        return found[1] if found else None

    @property
    def is_code(self) -> bool:
        """Whether it must run or be marked, rather than show something."""
        return self.file is None and self.language not in ("setup", "text", "diff") and self.language[:1] != "{"

    def commands(self) -> Iterator[tuple[str, str]]:
        """The commands of a console block, each with what it prints."""
        for part in re.split(r"^\$ ", self.text, flags=re.M)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n", part)[0]
            yield command.replace("\\\n", " ").strip(), part[len(command) :]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, with their marks and outputs."""
    text = page.read_text()
    found: list[Block] = []
    marks, reason, end = [""], "", 0
    for match in _COMMENT_OR_BLOCK.finditer(text):
        is_adjacent = not text[end : match.start()].strip()
        line, end = text.count("\n", 0, match.start()) + 1, match.end()
        if match["comment"] is not None:
            mark, _, reason = match["comment"].partition(":")
            marks = mark.split(", ")
            if mark == "setup":
                found.append(Block(page, line, "setup", reason.strip()))
            continue
        former = found[-1] if is_adjacent and found else None
        if former is not None and former.language == "python" and former.file is None and match["language"] == "text":
            former.output = match["text"]
        else:
            block = Block(page, line, match["language"], match["text"])
            if is_adjacent:
                block.kind = next((mark for mark in marks if mark in KINDS), "")
                block.modules = tuple(reason.split()) if block.kind == "needs" else ()
                block.is_measured = "measured" in marks
            found.append(block)
        marks = []
    return found


def run(block: Block, folder: Path, names: dict[str, Any]) -> None:
    """Runs a block in the page's folder, which is the working folder, and compares what it prints."""
    if block.file is not None:
        (folder / block.file).parent.mkdir(exist_ok=True, parents=True)
        (folder / block.file).write_text(block.text)
    elif block.language == "setup":
        _in_a_shell(block.text, folder).check_returncode()
    elif block.language == "python":
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
        _compare(block, block.output or "", out.getvalue())
    elif block.language == "console":
        for command, expected in block.commands():
            _compare(block, expected, _printed(block, command, folder))


def _printed(block: Block, line: str, folder: Path) -> str:
    command, _, status = line.partition("  # exit status ")
    command = _INSTEAD.get(command, command)
    if re.match("torchshare (?!launch)", command) and not _SHELL.search(command):
        words = shlex.split(command, comments=True)[1:]
        done = torchshare_command(*words, folder=folder)  # a process of its own takes seconds
    else:
        done = _in_a_shell(command, folder)
    assert done.returncode == int(status or 0), (
        f"{block.place}: {command}\nreturned {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout if status == "" else done.stdout + done.stderr


def _in_a_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "ROOT": str(ROOT)}
    return subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def _compare(block: Block, expected: str, got: str) -> None:
    """Equal but for white space, decimal numbers, and what "..." stands for. Nothing expected: not compared."""
    expected, got = _by_job(expected), _by_job(_MEASURED.sub("", got))
    pattern = ".*?".join(re.escape(_plain(part)) for part in expected.split("..."))
    if expected and not block.is_measured and re.fullmatch(pattern, _plain(got), re.S) is None:
        raise AssertionError(f"{block.place} shows\n{expected}\nand printed\n{got}")


def _by_job(text: str) -> str:
    """With the lines that jobs have printed at once, "name: ...", in the order of their names."""
    return _PREFIXED.sub(lambda lines: "".join(sorted(lines[0].splitlines(True), key=lambda x: x.split(":")[0])), text)


def _plain(text: str) -> str:
    return " ".join(_DECIMAL.sub("0.0", text).split())
