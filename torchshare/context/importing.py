"""Imports of large packages."""

from __future__ import annotations

import gc
import importlib
from types import ModuleType


def import_large(name: str) -> ModuleType:
    """Imports a module that makes many objects, without garbage collections: they find nothing there, and take a fifth
    of the time that it takes to import torch."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if was_on:
            gc.enable()
