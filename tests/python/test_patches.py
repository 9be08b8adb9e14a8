"""What a runtime replaces in torch and other packages is there, and the page that lists it is current."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch

import torchshare
from torchshare.isolation import cuda, routing, script_patches
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Row, Table
from torchshare.torch_versions import CHECKED

ROOT = Path(__file__).parents[2]
ALL_ROWS = [row for table in (*routing.TABLES, *script_patches.TABLES, cuda.TABLE) for row in table.rows]
ROWS = [row for row in ALL_ROWS if row.is_for()]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_installed_packages_have(row: Row) -> None:
    importlib.import_module(row.module)
    assert row.exists(), f"torch {torch.__version__} has no {row}: {row.why}"
    assert row.why.endswith(".")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the functions of `random` differ by version")
@pytest.mark.skipif(not torch.__version__.startswith(CHECKED[-1]), reason="compiler options differ by version")
def test_the_page_lists_them() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "isolation_table.py"))
    page = script["PAGE"].read_text()
    assert page == script["current"](page), "run scripts/isolation_table.py"
    listed = set(re.findall(r"`([^`]+)`", page))
    assert [str(row) for row in ROWS if str(row).removeprefix(f"{row.module}.") not in listed] == []


def test_a_runtime_names_what_torch_lacks_and_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    table.value("torch.nn", "Gone", "Linear", why="A layer that a new torch has lost.")(lambda kind: kind)
    table.value("torch.optim:Lost.inner", "step", why="So is this.")(lambda kind: kind)
    monkeypatch.setattr(routing, "TABLES", [*routing.TABLES, table])
    before = torch.random.default_generator, list(sys.meta_path)
    with pytest.raises(RuntimeError) as caught:
        torchshare.Runtime(device="cpu")
    assert str(caught.value) == (
        f"jobs cannot be isolated: torch {torch.__version__} or another package lacks torch.nn.Gone (A layer that a "
        "new torch has lost.); torch.optim.Lost.inner.step (So is this.)"
    )
    assert (torch.random.default_generator, sys.meta_path) == before


def test_a_row_of_other_versions_of_torch_is_left_out() -> None:
    table = Table()
    table.value("torch.nn", "OfTheFuture", why="Not yet.", versions=">=99.0")(lambda kind: kind)
    (row,) = table.rows
    assert not row.is_for() and row.is_for("99.1.0.dev20260101+cpu")
    patches = Patches()
    patches.apply([table])
    patches.undo()


# Modules that are imported later.


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported, once the file that is returned by `gate` exists."""
    (tmp_path / "late_module.py").write_text(
        "import importlib\ndef value():\n    return 1\nwait = importlib.import_module('late_events').wait\nwait()\n"
    )
    events = ModuleType("late_events")
    events.wait = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "late_events", events)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "late_module", raising=False)
    return "late_module"


def negated(module: str) -> Table:
    table = Table()
    table.call(module, "value", why="For a test.")(lambda original: -original())
    return table


def test_a_module_is_patched_when_it_is_imported_and_restored_by_undo(late: str) -> None:
    patches = Patches()
    patches.apply([negated(late)])
    assert late not in sys.modules
    module = importlib.import_module(late)
    assert module.value() == -1 and "value" in inspect.getsource(module)
    patches.undo()
    assert module.value() == 1


def test_a_module_that_is_imported_after_undo_is_not_patched(late: str) -> None:
    patches = Patches()
    finders = list(sys.meta_path)
    patches.apply([negated(late)])
    patches.undo()
    assert importlib.import_module(late).value() == 1 and sys.meta_path == finders


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_module_that_another_thread_is_importing_is_patched(late: str, is_watched: bool) -> None:
    """Whether the import began before or after the patches were applied."""
    began, may_end = threading.Event(), threading.Event()
    sys.modules["late_events"].wait = lambda: (began.set(), may_end.wait(300))  # type: ignore[attr-defined]
    importing = threading.Thread(target=importlib.import_module, args=(late,))
    patches, table = Patches(), negated(late)
    applying = threading.Thread(target=patches.apply, args=([table],))
    if is_watched:
        patches.apply([table])
    importing.start()
    assert began.wait(300)
    if not is_watched:
        applying.start()
    may_end.set()
    importing.join(300)
    if not is_watched:
        applying.join(300)
    assert sys.modules[late].value() == -1
    patches.undo()
    assert sys.modules[late].value() == 1


def test_an_import_names_what_the_module_lacks(late: str) -> None:
    patches, table = Patches(), negated(late)
    table.value(late, "gone", why="For a test.")(lambda value: value)
    patches.apply([table])
    with pytest.raises(RuntimeError, match=r"lacks late_module\.gone \(For a test\.\)"):
        importlib.import_module(late)
    patches.undo()
    assert importlib.import_module(late).value() == 1


def test_opening_a_runtime_imports_neither_export_nor_the_compiler() -> None:
    """They cost half a second. Every optimizer imports dynamo."""
    code = """
import sys, torchshare
with torchshare.Runtime(device="cpu"):
    assert not {"torch.export._trace", "torch._inductor.compile_fx"} & sys.modules.keys()
    import torch.export._trace
    assert "torchshare" in torch.export._trace._ignore_backend_decomps.__code__.co_filename
assert "torchshare" not in torch.export._trace._ignore_backend_decomps.__code__.co_filename
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
def test_a_function_whose_annotations_name_what_is_missing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a type that is imported for type checkers only."""
    module = ModuleType("annotated_module")
    exec("def value(x: Missing) -> Missing:\n    return x", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    table = Table()
    table.call(module.__name__, "value", why="For a test.", everywhere=True)(lambda original, x: -original(x))
    patches = Patches()
    patches.apply([table])
    assert module.value(1) == -1
    assert str(inspect.signature(module.value)) == "(x: 'Missing') -> 'Missing'"
    patches.undo()
    assert module.value(1) == 1
