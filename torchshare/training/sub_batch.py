from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SubBatch:
    """Rows of a batch that run at once. Multiply the loss by `weight`: gradients then sum to those of the batch."""

    data: Any
    """The batch's tree, each tensor narrowed to these rows (views, no copies)."""
    weight: float
    size: int
    index: int

    @property
    def x(self) -> Any:
        """The first element of a tuple or list batch."""
        return self._part(0)

    @property
    def y(self) -> Any:
        """The second element of a tuple or list batch."""
        return self._part(1)

    def _part(self, index: int) -> Any:
        if not isinstance(self.data, (tuple, list)) or len(self.data) <= index:
            raise AttributeError(f"a batch of type {type(self.data).__name__} has no element {index}; use `data`")
        return self.data[index]
