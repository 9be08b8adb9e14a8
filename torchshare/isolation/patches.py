from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """Attributes replaced by others until `undo`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, value: object) -> None:
        original = getattr(owner, name, _MISSING)
        setattr(owner, name, value)
        self.at_undo(lambda: delattr(owner, name) if original is _MISSING else setattr(owner, name, original))

    def at_undo(self, restore: Callable[[], None]) -> None:
        self._undo.append(restore)

    def undo(self) -> None:
        """Restores everything, the latest first."""
        while self._undo:
            self._undo.pop()()
