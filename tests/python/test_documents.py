"""The documents are correct: their blocks run, and files, targets and links exist."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import documents
import pytest
from documents import PAGES, ROOT, blocks

import torchshare
from torchshare.__main__ import parse

SOURCES = ("csrc", "torchshare", "tests", "benchmarks", "examples")
README = (ROOT / "README.md").read_text()
FOLDERS = ("csrc", "tests", "examples", "benchmarks")
DOCUMENTS = [*PAGES, *(found for folder in FOLDERS for found in sorted((ROOT / folder).rglob("*.md")))]


def _runs() -> Iterator[Any]:
    """Each page with a kind of its blocks: those without a mark, and those of one mark with what they build on."""
    for page in PAGES:
        found = blocks(page)
        name = str(page.relative_to(ROOT))
        for kind in sorted({block.kind for block in found if block.language != "setup" and block.kind != "not run"}):
            marks = {"slow": [pytest.mark.slow], "gpu": [pytest.mark.gpu], "needs": [pytest.mark.slow]}.get(kind, [])
            yield pytest.param(page, kind, id=f"{name}-{kind}" if kind else name, marks=marks)


@pytest.mark.timeout(800)
@pytest.mark.parametrize(("page", "kind"), _runs())
def test_every_block_runs(
    page: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, int], None]
) -> None:
    """From top to bottom, in one folder, as a reader does; the output is what the page shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TORCHSHARE_DEVICE_PRIORITY", "none")  # or other tests would keep the secondaries waiting
    chosen = [block for block in blocks(page) if block.kind in ("", kind)]
    for module in {module for block in chosen for module in block.modules}:
        pytest.importorskip(module)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in chosen:
        documents.run(block, tmp_path, names)
    record_property("blocks", sum(block.kind == kind and block.is_code for block in chosen))


def test_every_block_runs_or_is_marked(record_property: Callable[[str, int], None]) -> None:
    found = [block for page in PAGES for block in blocks(page) if block.is_code]
    assert [block.place for block in found if block.kind == "" and block.language not in ("python", "console")] == []
    for kind in ("", *documents.KINDS):
        record_property(f"blocks {kind or 'without a mark'}", sum(block.kind == kind for block in found))


PAGE = """
```python
# names.py
NAME = "a"
```

```python
from names import NAME
print(NAME, 1.25, 3)
```

```text
a 0.5 3
```

<!-- not run: needs two -->
```console
$ false
```

```console
$ printf 'b: 1\\na: 2\\n'; cat names.py; exit 3  # exit status 3
a: 2
b: 1
...NAME...
```
"""


@pytest.mark.parametrize(
    ("shown", "instead", "fails"),
    [
        ("", "", None),
        ("a 0.5 3", "a 0.5 4", "and printed"),
        ("b: 1\n...", "b: 2\n...", "and printed"),
        ("  # exit status 3", "", "printf"),
        ("import NAME", "import OTHER", "OTHER"),
    ],
)
def test_a_page_must_show_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, instead: str, fails: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "names", raising=False)
    (tmp_path / "page.md").write_text(PAGE.replace(shown, instead))
    found = blocks(tmp_path / "page.md")
    assert [block.kind for block in found] == ["", "", "not run", ""]
    names: dict[str, object] = {}
    with contextlib.nullcontext() if fails is None else pytest.raises((AssertionError, ImportError), match=fails):
        for block in found:
            if block.kind == "":
                documents.run(block, tmp_path, names)


def test_the_readmes_example_is_short() -> None:
    example = next(block for block in blocks(ROOT / "README.md") if block.language == "python")
    assert len([line for line in example.text.splitlines() if line.strip()]) <= 20


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= targets


def prose(document: Path) -> str:
    """Its text without blocks, whose brackets are code."""
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)


def anchors(document: Path) -> set[str]:
    """Those of its headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", prose(document), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_and_file_that_is_named_exists(document: Path) -> None:
    text = prose(document)
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if not link.startswith(("https:", "http:")):
            target = (document.parent / link) if link else document
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), f"{link}#{anchor}"
    saved = [block.file for block in blocks(document)]
    for name in re.findall(r"`([a-z_]+\.(?:h|cpp|py|inc))`", text):
        assert name in saved or any(list((ROOT / folder).rglob(name)) for folder in SOURCES), name


def test_every_picture_is_drawn_by_a_script_from_recorded_figures() -> None:
    """A script in benchmarks/, or a target of the Makefile, draws it."""
    makefile = (ROOT / "Makefile").read_text()
    scripts = [path.read_text() for path in (ROOT / "benchmarks").rglob("*.py")]
    shown = {link for document in DOCUMENTS for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", prose(document))}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    pictures = {Path(file).name for file in [*shown, *tracked] if Path(file).suffix in (".png", ".svg", ".jpg")}
    assert pictures
    for picture in pictures:
        drawn = any(picture in text and "from record import" in text for text in scripts)
        assert drawn or f"benchmarks/results/{picture}" in makefile, (
            f"{picture}: no script in benchmarks/ draws it from benchmarks/results"
        )


def test_every_fault_is_listed_with_tests_that_exist():
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    for number, row in rows:
        tests = re.findall(r"`([\w/]+\.(?:py|cpp))::(\w+)(?:\.(\w+))?`", row)
        assert tests or "not built yet" in row, number
        for file, name, case in tests:
            text = (ROOT / "tests" / file.rpartition(".")[2].replace("py", "python") / file).read_text()
            python = rf"^def {name}\("
            cpp = rf"^TEST(?:_F|_P)?\({name}, {case}\)"
            assert re.search(cpp if case else python, text, re.MULTILINE), f"{number}: {file}::{name}.{case}"


def test_every_command_that_is_shown_has_valid_arguments() -> None:
    """Those that cannot run here, too."""
    shown = [(block, line) for page in PAGES for block in blocks(page) for line, _ in block.commands()]
    commands = [(block, line) for block, line in shown if line.startswith("torchshare ") and "|" not in line]
    assert len(commands) > 10
    for block, line in commands:
        try:
            parse(shlex.split(line, comments=True)[1:])
        except SystemExit:
            pytest.fail(f"{block.place}: {line}")


def test_every_public_name_has_a_docstring():
    for name in torchshare.__all__:
        assert getattr(torchshare, name).__doc__, name


def test_the_demo_can_be_imported() -> None:
    """`make demo` runs it; its imports must work."""
    code = f"import runpy; runpy.run_path({str(ROOT / 'examples' / 'digits_pair.py')!r}, run_name='imported')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
