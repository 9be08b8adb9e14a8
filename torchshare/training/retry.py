"""Batches that run out of memory are undone and repeated in smaller sub-batches."""

from __future__ import annotations

import contextlib
import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchshare.isolation import routing
from torchshare.training.undo import Buffers, Gradients, RandomStates, leaves_of

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")


class Retry:
    """Repeats a job's batches, and knows what their passes change. One per job, in its thread.

    Note [Repeating a batch]
    A batch that ran out of memory has changed gradients, the buffers of modules, and random states, each as far as it
    came. All of them are put back, and the batch begins again with half the rows at a time, as it would have in a run
    that had used that size from this batch on. To save as little as possible before each batch, the first batch of a
    loss function finds out what its passes reach: a forward pre-hook sees the modules, and the loss's graph the leaves.
    A repeated batch looks again: if it reaches something that was not known, and the failed one did not look, it cannot
    be told what that did to it, and the batch fails.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._known: set[object] = set()  # loss functions, by their code
        self._buffers = Buffers()
        self._gradients = Gradients()

    def run(
        self, loss_fn: Callable[..., Any], passes: Callable[[Attempt], Any], rows: Callable[[], int], reduction: str
    ) -> Any:
        """Returns what `passes` returns, at the latest for one row at a time. `rows` says how many it runs at once."""
        failed: Exception | None = None
        looks_first = _code(loss_fn) not in self._known
        while True:
            attempt = self._begin(looks_first or failed is not None, None if looks_first else failed)
            at_once = rows()
            try:
                self._job.handle.set_flexible(self._job.resplit and at_once > 1)
                with attempt.looking():
                    result = passes(attempt)
            except Exception as error:
                if not is_out_of_memory(error):
                    self._forget(attempt)
                    raise
                failed = self._undo(attempt, error, at_once, reduction)
            else:
                if attempt.has_looked:
                    self._known.add(_code(loss_fn))
                self._forget(attempt)
                self._job.rows_at_once.count(at_once)
                return result
            finally:
                self._job.handle.set_flexible(False)

    def _begin(self, looks: bool, failed: Exception | None) -> Attempt:
        self._buffers.save()
        self._gradients.save()
        return Attempt(self._job, self._buffers, self._gradients, RandomStates(self._job), looks, failed)

    def _forget(self, attempt: Attempt) -> None:
        self._buffers.forget()
        self._gradients.forget()
        attempt.random.forget()

    def _undo(self, attempt: Attempt, error: Exception, rows: int, reduction: str) -> Exception:
        """Prepares for the next attempt, or raises `error`. Returns an exception like `error`."""
        obstacle = obstacle_of(self._job, rows) or attempt.obstacle
        if obstacle is None and self._gradients.have_hooks():
            obstacle = "a hook acts on gradients during the backward pass"
        if obstacle is None:
            traceback.clear_frames(error.__traceback__)  # frees what the passes have made
            changed = self._buffers.restore()
            if changed is not None:
                obstacle = f"it changed {changed}, a large buffer that never changed before"
        if obstacle is not None:
            self._forget(attempt)
            warn_of_obstacle(self._job, obstacle)
            raise error
        self._gradients.restore()
        attempt.random.restore()
        gc.collect(1)  # what the passes have made is young
        halve(self._job, rows, reduction)
        return type(error)(str(error))


class Attempt:
    """One run of a batch's passes. `looks`: find out what they reach. `failed`: how a run failed that did not look."""

    def __init__(
        self,
        job: JobContext,
        buffers: Buffers,
        gradients: Gradients,
        random: RandomStates,
        looks: bool,
        failed: Exception | None,
    ) -> None:
        self._job = job
        self._buffers = buffers
        self._gradients = gradients
        self.random = random
        self._looks = looks
        self._failed = failed
        self.has_looked = False
        self.obstacle: str | None = None

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Around the passes."""
        if not self._looks:
            yield
            return
        with routing.before_forward(self._job, self._look) as self.has_looked:
            if not self.has_looked:
                self.obstacle = "another job compiled at that time"
            yield

    def before_backward(self, loss: Tensor) -> None:
        if self._looks:
            self.before_accumulation(leaves_of(loss))

    def before_accumulation(self, leaves: Iterator[Tensor]) -> None:
        """Called before gradients accumulate in `leaves`."""
        for leaf in leaves:
            if leaf in self._gradients:
                continue
            if self._failed is not None and leaf.grad is not None:
                self._give_up(f"it reaches a leaf of shape {tuple(leaf.shape)}")
            self._gradients.add([leaf])

    def _look(self, module: torch.nn.Module, _inputs: object) -> bool:
        if self._buffers.add(module) and self._failed is not None:
            self._give_up(f"it calls {type(module).__name__}")
        return False

    def _give_up(self, what: str) -> None:
        self.obstacle = f"{what}, which no batch did before"
        assert self._failed is not None
        raise self._failed


def obstacle_of(job: JobContext, rows: int) -> str | None:
    """Why a batch that ran out of memory with `rows` rows at once is not repeated; None if it may be."""
    if not job.resplit:
        return "resplit is off"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "the other ranks would not repeat their collectives"
    return "one row at a time does not fit" if rows <= 1 else None


def warn_of_obstacle(job: JobContext, obstacle: str) -> None:
    log.warning("job '%s': a batch ran out of memory and is not repeated: %s", job.name, obstacle)


def halve(job: JobContext, rows: int, reduction: str) -> None:
    """Halves the rows at once of the job's batches."""
    log.warning(
        "job '%s': a batch ran out of memory with %d rows at a time; it is repeated with %d, and so are the next "
        "(as a %s over rows)",
        job.name,
        rows,
        job.rows_at_once.halve(rows),
        reduction,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is torch's, for any device: on the CPU it has no type of its own."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def _code(loss_fn: Callable[..., Any]) -> object:
    """What stands for all loss functions made by the same lines."""
    inner = getattr(loss_fn, "func", getattr(loss_fn, "_loss_fn", loss_fn))
    return getattr(inner, "__code__", type(inner))
