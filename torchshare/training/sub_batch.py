from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SubBatch:
    """Some rows of a batch. Multiply its loss by `weight` before `backward`, and the gradients sum to the batch's."""

    data: Any
    """The batch's tree, each tensor narrowed to these rows (views, no copies)."""
    weight: float
    size: int
    index: int

    @property
    def x(self) -> Any:
        """The first of the batch's parts."""
        return self._part(0)

    @property
    def y(self) -> Any:
        """The second of the batch's parts."""
        return self._part(1)

    def _part(self, index: int) -> Any:
        if not isinstance(self.data, (tuple, list)) or len(self.data) <= index:
            raise AttributeError(f"a batch of type {type(self.data).__name__} has no part {index}: use `data`")
        return self.data[index]
