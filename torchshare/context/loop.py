from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

NewestCommon = Callable[[list[int]], "int | None"]


class Pass:
    """One iteration of a job over a loader."""

    is_over = False
    """Whether it was completed before the checkpoint that the job goes on from."""
    fetched = 0
    """Batches that the loader has yielded."""

    def open(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's iterator, behind the batches that were done before the checkpoint."""
        return iter(loader)

    def restore(self) -> None:
        """Called before the first batch."""

    def count(self) -> None:
        """Called when the loader has yielded a batch."""
        self.fetched += 1

    def stepped(self, steps: int = 1) -> None:
        """Called after steps."""

    def advance(self) -> None:
        """Called after a step when the loop is done with all batches that the loader has yielded."""


class Loop:
    """Is told where a job's loop is, and may let it leave out what it has done already. This one does neither."""

    def begin_job(self, newest_common: NewestCommon) -> None:
        """Called in the job's thread before its function. `newest_common` is the largest of the numbers given that all
        ranks of the job have given."""

    def end_job(self) -> None:
        """Called when the job's function has returned."""

    def epochs(self, count: int) -> Iterator[int]:
        """See Job.epochs."""
        yield from range(count)

    def begin_pass(self, loader: Iterable[Any]) -> Pass:
        return Pass()

    @property
    def can_save(self) -> bool:
        """Whether it would write a checkpoint if it were asked to. From any thread, as those up to
        `unwritten`."""
        return False

    def ask(self) -> None:
        """Asks for a checkpoint at the end of the current step."""

    def is_asked(self) -> bool:
        """Whether that checkpoint is not yet written."""
        return False

    @property
    def has_saved(self) -> bool:
        """Whether it has written a checkpoint."""
        return False

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is one to go on from, written now or before."""
        return False

    @property
    def unwritten(self) -> str:
        """Why the last checkpoint could not be written."""
        return ""

    def optimizer_stepped(self) -> None:
        """Called after each step of an optimizer."""
