"""Run by each Python program that the tests start: torch is imported without collections, which take a tenth of a short
program's time. `torchshare run` does the same. Nothing is frozen here: Python would not finalize the main module at
exit, and would not write the files that a script has not closed."""

from __future__ import annotations

import gc
import importlib.machinery
import sys
import types
from collections.abc import Sequence


class Finder:
    """Finds torch."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_uncollected(module: types.ModuleType) -> None:
            sys.meta_path.remove(self)
            was_on = gc.isenabled()
            gc.disable()
            try:
                run(module)
            finally:
                if was_on:
                    gc.enable()

        spec.loader.exec_module = run_uncollected  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
