"""The documents are correct: the example runs, and files, targets and links exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchshare
from torchshare.__main__ import parse

ROOT = Path(__file__).parents[2]
SOURCES = ("csrc", "torchshare", "tests", "benchmarks", "examples")
README = (ROOT / "README.md").read_text()


def test_the_example_runs_and_prints_what_the_readme_shows():
    example, output = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=110, check=True)
    columns = slice(0, 6)  # job, priority, state, steps, sub-batches, ops: the rest are times
    table = [line for line in done.stdout.splitlines() if not line.startswith("job '")]  # no core on a busy machine
    assert [line.split()[columns] for line in table] == [line.split()[columns] for line in output.splitlines()]


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets


@pytest.mark.parametrize(
    "document",
    [
        *(
            found
            for at in ("csrc/*/README.md", "benchmarks/**/README.md", "docs/*.md", "README.md")
            for found in sorted(ROOT.glob(at))
        )
    ],
    ids=str,
)
def test_every_link_and_file_that_is_named_exists(document: Path):
    text = document.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (document.parent / link).exists(), link
    for name in re.findall(r"`([a-z_]+\.(?:h|cpp|py|inc))`", text):
        assert any(list((ROOT / folder).rglob(name)) for folder in SOURCES), name


def test_every_fault_is_listed_with_tests_that_exist():
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 34))
    for number, row in rows:
        tests = re.findall(r"`([\w/]+\.(?:py|cpp))::(\w+)(?:\.(\w+))?`", row)
        assert tests or "not built yet" in row, number
        for file, name, case in tests:
            text = (ROOT / "tests" / file.rpartition(".")[2].replace("py", "python") / file).read_text()
            python = rf"^def {name}\("
            cpp = rf"^TEST(?:_F|_P)?\({name}, {case}\)"
            assert re.search(cpp if case else python, text, re.MULTILINE), f"{number}: {file}::{name}.{case}"


def commands() -> Iterator[tuple[str, str]]:
    """The `torchshare` commands in the documents' blocks."""
    for document in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))):
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if language in ("", "sh") and line.startswith("torchshare ") and " | " not in line:
                    yield document.name, line


def test_every_command_that_is_shown_has_valid_arguments() -> None:
    shown = list(commands())
    assert len(shown) > 10
    for document, line in shown:
        try:
            parse(shlex.split(line, comments=True)[1:])
        except SystemExit:
            pytest.fail(f"{document}: {line}")


def test_every_python_block_compiles() -> None:
    for document in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))):
        for block in re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
            compile(block, str(document), "exec")


def test_every_public_name_has_a_docstring():
    for name in torchshare.__all__:
        assert getattr(torchshare, name).__doc__, name


def test_the_demo_can_be_imported() -> None:
    """`make demo` runs it; its imports must work."""
    code = f"import runpy; runpy.run_path({str(ROOT / 'examples' / 'digits_pair.py')!r}, run_name='imported')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
