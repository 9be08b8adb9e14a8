from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SubBatchRows:
    """How many rows a job runs at once after batches that ran out of memory."""

    regrow_after: int
    """Batches after which there are more again; 0: never."""
    limit: int | None = None
    """None: as many as declared."""
    batches: int = 0
    """Batches since the last change of `limit`."""
    has_grown: bool = False
    """In the last change."""

    def of(self, declared: int) -> int:
        """Rows at once, `declared` at most."""
        return declared if self.limit is None else min(self.limit, declared)

    def halve(self, rows: int) -> int:
        """Called when a batch has run out of memory with `rows` at once. Returns how many there are now."""
        if self.has_grown:
            self.regrow_after *= 2  # it grew too early
        self.limit, self.batches, self.has_grown = -(-rows // 2), 0, False
        return self.limit

    def count(self, rows: int) -> None:
        """Called when a batch has succeeded with `rows` at once."""
        if self.limit is None:
            return
        self.batches += 1
        if self.batches == self.regrow_after:
            self.batches, self.has_grown = 0, rows >= self.limit
            if self.has_grown:
                self.limit *= 2
