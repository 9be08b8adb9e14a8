"""Batches that run out of memory are undone and repeated in smaller sub-batches."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import logging
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchshare.context.errors import is_out_of_memory
from torchshare.isolation import forward_hook
from torchshare.training.undo import Buffers, Gradients, RandomStates, leaves_of

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")

_MOST = 64  # members of an object or a list that are looked at


class Retry:
    """Repeats a job's batches, and knows what their passes change. One per job, in its thread.

    Note [Repeating a batch]
    A batch that ran out of memory has changed gradients, the buffers of modules, and random states, each as far as it
    came. All of them are put back, and the batch begins again with half the rows at a time, as it would have in a run
    that had used that size from this batch on. The first batch of a loss function finds out what its passes reach: a
    forward pre-hook sees the modules, and the loss's graph the leaves; modules that the function refers to and those
    that the job tracks are known before. Not seen is a module that only compiled code reaches.
    A repeated batch looks again: if it reaches something that was not known, and the failed one did not look, it cannot
    be told what that did to it, and the batch fails.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._known: set[object] = set()  # loss functions, by their code
        self._buffers = Buffers()
        self._gradients = Gradients()

    def run(
        self,
        loss_fn: Callable[..., Any],
        passes: Callable[[Attempt | None], Any],
        rows: Callable[[], int],
        reduction: str,
    ) -> Any:
        """Returns what `passes` returns, at the latest for one row at a time. `rows` says how many it runs at once."""
        failed: Exception | None = None
        looks_first = _code(loss_fn) not in self._known
        while (obstacle := obstacle_of(self._job, at_once := rows())) is None:
            looks = looks_first or failed is not None
            attempt = Attempt(self._job, self._buffers, self._gradients, looks, None if looks_first else failed)
            try:
                self._job.handle.set_flexible(True)
                with attempt.looking(loss_fn):
                    result = passes(attempt)
            except Exception as error:
                if not is_out_of_memory(error):
                    attempt.forget()
                    raise
                failed = self._undo(attempt, error, at_once, reduction)
            else:
                if attempt.has_looked:
                    self._known.add(_code(loss_fn))
                attempt.forget()
                self._job.rows_at_once.count(at_once)
                return result
            finally:
                self._job.handle.set_flexible(False)
        try:
            return passes(None)
        except Exception as error:
            if is_out_of_memory(error):
                warn_of_obstacle(self._job, obstacle)
            raise

    def _undo(self, attempt: Attempt, error: Exception, rows: int, reduction: str) -> Exception:
        """Prepares for the next attempt, or raises `error`. Returns an exception like `error`."""
        obstacle = attempt.obstacle
        if obstacle is None and self._gradients.have_hooks():
            obstacle = "a hook acts on gradients during the backward pass"
        if obstacle is None and self._buffers.has_lazy:
            obstacle = "a lazy module has found out its shapes in it"
        if obstacle is not None:
            attempt.forget()
            warn_of_obstacle(self._job, obstacle)
            raise error
        traceback.clear_frames(error.__traceback__)  # frees what the passes have made
        attempt.undo()
        gc.collect(1)  # what the passes have made is young
        halve(self._job, rows, reduction)
        return type(error)(str(error))


class Attempt:
    """One run of a batch's passes. `looks`: find out what they reach. `failed`: how a run failed that did not look."""

    def __init__(
        self, job: JobContext, buffers: Buffers, gradients: Gradients, looks: bool, failed: Exception | None
    ) -> None:
        self._job = job
        self._buffers = buffers
        self._gradients = gradients
        self._random: RandomStates | None = None
        self._looks = looks
        self._failed = failed
        self.has_looked = False
        self.obstacle: str | None = None

    def forget(self) -> None:
        """Called if the passes are not undone."""
        self._buffers.forget()
        self._gradients.forget()
        if self._random is not None:
            self._random.forget()

    def undo(self) -> None:
        if self._random is None:  # there was no memory to save what the passes change: they have not run
            self.forget()
            return
        self._buffers.restore()
        self._gradients.restore()
        self._random.restore()

    @contextlib.contextmanager
    def looking(self, loss_fn: Callable[..., Any]) -> Iterator[None]:
        """Around the passes. Saves what they change."""
        self._buffers.save()
        self._gradients.save()
        self._random = RandomStates(self._job)
        if not self._looks:
            yield
            return
        for module in modules_of([loss_fn, *self._job.tracked.objects.values()]):
            self._add(module)
        with forward_hook.registered(self._job, self._look) as self.has_looked:
            if not self.has_looked:
                self.obstacle = "another job compiled at that time"
            yield

    def before_backward(self, loss: Tensor) -> None:
        if self._looks:
            self.before_accumulation(leaves_of(loss))

    def before_accumulation(self, leaves: Iterable[Tensor]) -> None:
        """Called before gradients accumulate in `leaves`."""
        for leaf in leaves:
            if leaf in self._gradients:
                continue
            if self._failed is not None and leaf.grad is not None:
                self._give_up(f"it reaches a leaf of shape {tuple(leaf.shape)}")
            self._gradients.add(leaf)

    def _look(self, module: torch.nn.Module, _inputs: object) -> bool:
        self._add(module)
        return False

    def _add(self, module: torch.nn.Module) -> None:
        new = self._buffers.add(module)
        parameters = [parameter for each in new for parameter in each._parameters.values() if parameter is not None]
        if self._failed is not None and any(each._buffers for each in new):
            self._give_up(f"it calls {type(module).__name__}")
        self.before_accumulation(parameters)

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


def modules_of(value: Any, depth: int = 5) -> Iterator[torch.nn.Module]:
    """The modules that a function refers to, as far as its closure, its globals, its object and what it wraps show."""
    if isinstance(value, torch.nn.Module):
        yield value
    elif depth > 0:
        for each in _referred(value):
            yield from modules_of(each, depth - 1)


def _referred(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        return value[:_MOST]
    if isinstance(value, types.FunctionType):
        variables = inspect.getclosurevars(value)
        wrapped = [getattr(value, name, None) for name in ("_torchdynamo_orig_callable", "__wrapped__")]
        return [*wrapped, *variables.nonlocals.values(), *variables.globals.values(), *(value.__defaults__ or ())]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if type(value).__module__ == "builtins" or isinstance(value, (type, types.ModuleType, Tensor)):
        return []
    return list(getattr(value, "__dict__", {}).values())[:_MOST]


def _code(loss_fn: Callable[..., Any]) -> object:
    """What stands for all loss functions made by the same lines."""
    inner = getattr(loss_fn, "func", getattr(loss_fn, "_loss_fn", loss_fn))
    return getattr(inner, "__code__", type(inner))
