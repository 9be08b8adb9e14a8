"""For loops that know nothing of jobs: `torchshare.batches`, `torchshare.accumulate` and `torchshare.track`."""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from torchshare.context import current
from torchshare.isolation import gradient_sync
from torchshare.memory import spill, states
from torchshare.training import split_warning
from torchshare.training.batches import Count, Options, Reduction, fetch, options_of

if TYPE_CHECKING:
    from torchshare.context.accumulation import Accumulation
    from torchshare.context.job_context import JobContext

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

    The loop's body runs once per sub-batch: `len` counts those, and the loss is that of a sub-batch.

    Args:
        loader: as for `Job.batches`; attributes other than its length are passed through.
        sub_batch, reduction, count: as for `Job.batches`.
    """
    job = current.job()
    if job is None:
        return loader
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
    step, zero_grad = optimizer.step, optimizer.zero_grad

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
    optimizer.step = types.MethodType(step_at_the_last, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(zero_grad_at_the_first, optimizer)  # type: ignore[method-assign]
    accumulation.optimizers.add(optimizer)
    return optimizer


def track(*, loader: Any = None, **objects: Any) -> None:
    """In a job, the same as `Job.track`; elsewhere, does nothing."""
    job = current.job()
    if job is not None:
        original = loader._loader if isinstance(loader, _SplitLoader) else loader
        states.track(job.name, job.tracked, original, objects)


class _SplitLoader:
    """A loader whose batches come in sub-batches, if an optimizer accumulates them."""

    def __init__(self, job: JobContext, loader: Iterable[Any], options: Options) -> None:
        self._job = job
        self._loader = loader
        self._options = options
        self._weighted: set[torch.Tensor] = set()
        self._unseen: set[int] = set()
        """Identities of those without a gradient yet."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        batches: int = len(self._loader)  # type: ignore[arg-type]
        rows, sub_batch = getattr(self._loader, "batch_size", None), self._options.sub_batch
        if sub_batch is None or rows is None or not self._job.accumulation.optimizers:
            return batches
        data = getattr(self._loader, "dataset", None)
        last = rows
        if hasattr(data, "__len__") and not getattr(self._loader, "drop_last", False):
            last = len(self._loader.sampler) % rows or rows  # type: ignore[attr-defined]
        return (batches - 1) * -(-rows // sub_batch) + -(-last // sub_batch) if batches else 0

    def __iter__(self) -> Iterator[Any]:
        job, accumulation = self._job, self._job.accumulation
        options = self._options
        if options.sub_batch is not None and not accumulation.optimizers:
            log.warning("job '%s': torchshare.batches splits nothing without torchshare.accumulate", job.name)
            options = Options(None, "mean", None)
        passing = job.loop.begin_pass(self._loader)
        for batch in fetch(job, self._loader, options, passing):
            job.handle.begin_step()
            pieces = list(batch.split())
            self._weight_gradients()
            try:
                with split_warning.around(job, lambda pieces=pieces: len(pieces) > 1):  # type: ignore[misc]
                    for index, piece in enumerate(pieces):
                        accumulation.begin_sub_batch(index, index == len(pieces) - 1, piece.weight)
                        if index:
                            spill.between_sub_batches(job)
                        job.handle.begin_sub_batch()
                        with gradient_sync.in_sub_batch(job, index == len(pieces) - 1):
                            yield piece.data
                        self._check_weighted()
                        job.handle.end_sub_batch()
            finally:
                accumulation.between_batches()
            job.handle.end_step()
            passing.end_step()

    def _weight_gradients(self) -> None:
        """Each sub-batch's gradients are multiplied by its weight, as its loss would be."""
        for optimizer in self._job.accumulation.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and parameter not in self._weighted:
                        self._weighted.add(parameter)
                        if parameter.grad is None:
                            self._unseen.add(id(parameter))
                        parameter.register_hook(_weigher(self._job.accumulation, self._unseen, id(parameter)))

    def _check_weighted(self) -> None:
        if not self._unseen:
            return
        if any(parameter.grad is not None and id(parameter) in self._unseen for parameter in self._weighted):
            raise RuntimeError(
                f"job '{self._job.name}': torchshare.accumulate cannot weight gradients that are set without autograd, "
                "as fully_shard does; use job.batches and batch.backward"
            )


def _weigher(accumulation: Accumulation, unseen: set[int], parameter: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def weigh(gradient: torch.Tensor) -> torch.Tensor:
        unseen.discard(parameter)
        return gradient if accumulation.weight == 1.0 else gradient * accumulation.weight

    return weigh
