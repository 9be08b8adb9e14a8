"""For loops that know nothing of jobs: `torchshare.batches`, `torchshare.accumulate`, `torchshare.track` and
`torchshare.step`."""

from __future__ import annotations

import logging
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from torchshare.checkpoints import states
from torchshare.context import current, step_loop
from torchshare.context.accumulation import Part
from torchshare.training import split_warning
from torchshare.training.batches import Batch, Count, Options, Reduction, fetch, options_of

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext
    from torchshare.context.loop import Pass

log = logging.getLogger("torchshare")

_Loader = TypeVar("_Loader", bound=Iterable[Any])
_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def batches(
    loader: _Loader, sub_batch: int | None = None, *, reduction: Reduction = "mean", count: Count | None = None
) -> _Loader:
    """In a job, a loader that yields the sub-batches of `loader`'s batches, of `sub_batch` rows each; elsewhere,
    `loader` itself. Two lines opt a plain training loop into sub-batches:

        loader = torchshare.batches(loader)
        optimizer = torchshare.accumulate(optimizer)

    The loop's body runs once per sub-batch: `len` counts those, and the loss is that of a sub-batch. Any number of
    loaders may be wrapped, of training and validation, and one evaluated in the body of another; batches of two loaders
    that take turns (`zip`) must not be split. A batch without a backward pass or an optimizer's step is no
    step of the job.

    Args:
        loader: as for `Job.batches`; attributes other than its length are passed through.
        sub_batch, reduction, count: as for `Job.batches`.
    """
    job = current.job()
    wrapped = loader if isinstance(loader, _SplitLoader) else None
    if job is None:
        return loader if wrapped is None else wrapped._loader  # type: ignore[return-value]
    if wrapped is not None:
        if wrapped._job is job and sub_batch is None and reduction == "mean" and count is None:
            return loader
        loader = wrapped._loader  # type: ignore[assignment]
    rows = job.sub_batch if sub_batch is None else sub_batch
    options = options_of(job, loader, rows, reduction, count)
    return _SplitLoader(job, loader, options)  # type: ignore[return-value]


def accumulate(optimizer: _Optimizer) -> _Optimizer:
    """In a job, makes `optimizer` step once per batch of `batches`, with the gradients of the whole batch; elsewhere,
    does nothing. Returns `optimizer`.

    Until the last sub-batch, the optimizer's and its schedulers' steps, the zeroing and clipping of gradients and
    `GradScaler` are left out.
    """
    job = current.job()
    if job is None or optimizer in job.accumulation.optimizers:
        return optimizer
    accumulation, name = job.accumulation, job.name
    accumulation.weights.add(optimizer)
    step, zero_grad, add_group = optimizer.step, optimizer.zero_grad, optimizer.add_param_group

    def step_at_the_last(self: Any, closure: Any = None) -> Any:
        if closure is not None and not accumulation.is_last:
            raise RuntimeError(f"job '{name}': an optimizer that takes a closure cannot accumulate sub-batches")
        if accumulation.step():
            return step() if closure is None else step(closure)
        return None

    def zero_grad_at_the_first(self: Any, set_to_none: bool = True) -> None:
        if accumulation.may_zero():
            zero_grad(set_to_none)

    # Bound methods: learning-rate schedulers take them apart.
    def add_param_group(self: Any, *args: Any, **kwargs: Any) -> None:
        add_group(*args, **kwargs)
        accumulation.weights.add(self)

    optimizer.step = types.MethodType(step_at_the_last, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(zero_grad_at_the_first, optimizer)  # type: ignore[method-assign]
    optimizer.add_param_group = types.MethodType(add_param_group, optimizer)  # type: ignore[method-assign]
    accumulation.optimizers.add(optimizer)
    return optimizer


def track(*, loader: Any = None, **objects: Any) -> None:
    """In a job, the same as `Job.track`; elsewhere, does nothing."""
    job = current.job()
    if job is not None:
        original = loader._loader if isinstance(loader, _SplitLoader) else loader
        states.track(job.name, job.tracked, original, objects)


def step() -> None:
    """In a job, the same as `Job.step`; elsewhere, does nothing."""
    job = current.job()
    if job is not None:
        step_loop.marked(job)


class _SplitLoader:
    """A loader whose batches come in sub-batches, if an optimizer accumulates them."""

    def __init__(self, job: JobContext, loader: Iterable[Any], options: Options) -> None:
        self._job = job
        self._loader = loader
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        batches: int = len(self._loader)  # type: ignore[arg-type]
        rows, options = getattr(self._loader, "batch_size", None), self._options
        if not options.splits or rows is None or not self._job.accumulation.optimizers:
            return batches
        data = getattr(self._loader, "dataset", None)
        last = rows
        if hasattr(data, "__len__") and not getattr(self._loader, "drop_last", False):
            last = len(self._loader.sampler) % rows or rows  # type: ignore[attr-defined]
        pieces, of_last = (-(-each // options.rows_at_once(each)) for each in (rows, last))
        return (batches - 1) * pieces + of_last if batches else 0

    def __iter__(self) -> Iterator[Any]:
        job, accumulation = self._job, self._job.accumulation
        options = self._options
        if options.splits and not accumulation.optimizers:
            log.warning("job '%s': torchshare.batches splits nothing without torchshare.accumulate", job.name)
            options = Options(None, "mean", None)
        passing = job.loop.begin_pass(self._loader)
        for batch in fetch(job, self._loader, options, passing):
            yield from self._bodies(batch, passing)

    def _bodies(self, batch: Batch, passing: Pass) -> Iterator[Any]:
        """The data of each sub-batch, for the loop's body."""
        job, accumulation = self._job, self._job.accumulation
        pieces = list(batch.split())
        parts = [Part(number, len(pieces), piece.weight) for number, piece in enumerate(pieces)]
        accumulation.weigh()
        with step_loop.in_batch(job, batch._open, passing):
            with split_warning.around(job, lambda: len(pieces) > 1):
                for part, piece in zip(parts, pieces, strict=True):
                    with step_loop.in_sub_batch(job, batch._open, part.is_last, part):
                        yield piece.data
                    self._check_weighted()
            accumulation.check(parts)

    def _check_weighted(self) -> None:
        if self._job.accumulation.weights.are_bypassed():
            raise RuntimeError(
                f"job '{self._job.name}': torchshare.accumulate cannot weight gradients that are set without autograd, "
                "as fully_shard does; use job.batches and batch.backward"
            )
