from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Tracked:
    """The objects whose state a job has asked to be kept. See Job.track."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        """The objects, by name: with `state_dict` and `load_state_dict`, or generators; may include the loader."""
        self.loader: Any = None
        """The loader whose passes and batches are counted. None: those of every loader are."""

    def add(self, job: str, loader: Any, objects: dict[str, Any]) -> None:
        """Raises TypeError or ValueError for an object that has no state, or a name that stands for another one."""
        for name, value in objects.items():
            if not has_state(value):
                raise TypeError(
                    f"job '{job}': {name} must have state_dict() and load_state_dict(), got {_described(value)}"
                )
        if loader is not None:
            if isinstance(loader, (type, torch.Tensor)) or not isinstance(loader, Iterable):
                raise TypeError(f"job '{job}': loader must be an iterable of batches, got {_described(loader)}")
            if self.loader is not None and self.loader is not loader:
                raise ValueError(f"job '{job}': another loader is tracked already")
            if has_state(loader):
                objects = {**objects, "loader": loader}
        for name, value in objects.items():
            if self.objects.get(name, value) is not value:
                raise ValueError(f"job '{job}': another {name} is tracked already; track it under another name")
        self.loader = self.loader if loader is None else loader
        self.objects.update(objects)


def has_state(value: object) -> bool:
    """Whether its state can be saved and loaded."""
    if isinstance(value, type):
        return False
    methods = ("get_state", "set_state") if isinstance(value, torch.Generator) else ("state_dict", "load_state_dict")
    return all(callable(getattr(value, method, None)) for method in methods)


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
