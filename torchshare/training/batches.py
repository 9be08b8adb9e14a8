"""The dataloader hook: a job's batches, cut into sub-batches whose gradients add up to the batch's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from torchshare import _core
from torchshare.context import current, step_loop
from torchshare.context.open_loops import OpenBatch
from torchshare.isolation import agreement
from torchshare.training import pytree, split_warning
from torchshare.training.cuda_graph import Graphed
from torchshare.training.retry import Attempt, Retry
from torchshare.training.sub_batch import SubBatch

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext
    from torchshare.context.loop import Pass

Reduction = Literal["mean", "sum"]
Count = Callable[[Any], Any]


class Batch:
    """What the loader yielded, to be trained on as one step. Iterate over its sub-batches, or call `backward`."""

    def __init__(self, job: JobContext, data: Any, number: int, options: Options) -> None:
        self._job = job
        self._data = data
        self._number = number
        self._options = options
        self._open = OpenBatch()

    @property
    def data(self) -> Any:
        """The whole batch, as the loader yielded it."""
        self._open.is_done = True
        return self._data

    def __iter__(self) -> Generator[SubBatch, None, None]:
        """The sub-batches in order. One with nothing to count (all its tokens masked) is left out."""
        _check_thread(self._job)
        with split_warning.around(self._job, self._is_split):
            sub_batches = list(self.split())
            for sub_batch in sub_batches:
                with step_loop.in_sub_batch(self._job, self._open, sub_batch is sub_batches[-1]):
                    yield sub_batch

    def backward(self, loss_fn: Callable[..., Any], *, scaler: torch.amp.grad_scaler.GradScaler | None = None) -> Any:
        """Runs forward and backward for each sub-batch; the gradients accumulate to those of the whole batch.

        `loss_fn` takes the parts of a tuple or list batch as arguments, any other batch as one, and returns the loss of
        those rows: one number, with the `reduction` given to `batches`. Clip and step afterwards, as ever.
        What `Job.graph` made of a loss function is replayed. With `scaler`, each loss is scaled by it, in eager.
        Returns the batch's loss, detached and unscaled. If `loss_fn` returns `(loss, extra)`, such as outputs for a
        metric, returns the loss and the list of what it returned beside it, one entry per sub-batch.

        If the job has a `memory_budget`, or runs on a GPU, and the batch runs out of memory, it is undone (gradients,
        buffers, random states) and repeated with half the rows at a time, and so are the next ones; see `resplit` and
        `regrow_after`. Weights are those of a run that had used that `sub_batch` from this batch on. Other effects of
        `loss_fn` happen again.
        """
        job = self._job
        if not job.handle.limits_memory:
            return self._passes(loss_fn, scaler, None)
        if job.retry is None:
            job.retry = Retry(job)
        return job.retry.run(
            loss_fn, lambda attempt: self._passes(loss_fn, scaler, attempt), self.rows_at_once, self.reduction
        )

    def _passes(
        self, loss_fn: Callable[..., Any], scaler: torch.amp.grad_scaler.GradScaler | None, attempt: Attempt | None
    ) -> Any:
        total: torch.Tensor | None = None
        extras: list[Any] = []
        with contextlib.closing(self.__iter__()) as sub_batches:
            for sub in sub_batches:
                replayed = loss_fn.backward(sub, attempt) if isinstance(loss_fn, Graphed) and scaler is None else None
                loss = self._backward(loss_fn, sub, scaler, attempt, extras) if replayed is None else replayed
                total = loss if total is None else total + loss
        assert total is not None  # split yields at least one piece
        return (total, extras) if extras else total

    def _backward(
        self,
        loss_fn: Callable[..., Any],
        sub: SubBatch,
        scaler: torch.amp.grad_scaler.GradScaler | None,
        attempt: Attempt | None,
        extras: list[Any],
    ) -> torch.Tensor:
        loss = loss_fn(*sub.data) if isinstance(sub.data, (tuple, list)) else loss_fn(sub.data)
        if isinstance(loss, tuple) and len(loss) == 2:
            loss, extra = loss
            extras.append(extra)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError(f"{self._where()}: the loss must be a tensor with one element, got {_described(loss)}")
        if sub.weight != 1.0:
            loss = loss * sub.weight
        if attempt is not None:
            attempt.before_backward(loss)
        torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
        return loss.detach()

    def _is_split(self) -> bool:
        rows = self.rows_at_once()
        return 0 < rows < self._rows()

    @property
    def reduction(self) -> Reduction:
        """How its loss reduces over rows; see Job.batches."""
        return self._options.reduction

    def rows_at_once(self) -> int:
        """Rows of its sub-batches; the last may have fewer. 0 if the batch has no rows."""
        return self._job.rows_at_once.of(self._options.rows_at_once(self._rows()))

    def split(self) -> Iterator[SubBatch]:
        """The sub-batches, none of which is counted as run."""
        options = self._options
        rows = self._rows()
        self._job.largest_batch = max(self._job.largest_batch, rows)
        rows_at_once = self.rows_at_once()
        if rows == 0 or (not options.splits and rows_at_once == rows):
            yield SubBatch(self._data, 1.0, rows, 0)
            return
        ranges = _core.split_rows(rows, rows_at_once)
        pieces = [map_rows(self._data, begin, end) for begin, end in ranges]
        sizes = [end - begin for begin, end in ranges]
        counts = [
            float(size if options.count is None else options.count(data))
            for size, data in zip(sizes, pieces, strict=True)
        ]
        total = sum(counts)
        if not total > 0:
            raise ValueError(f"{self._where()}: count() of the whole batch must be more than 0, got {total}")
        for index, (data, size, count) in enumerate(zip(pieces, sizes, counts, strict=True)):
            if count > 0:
                yield SubBatch(data, 1.0 if options.reduction == "sum" else count / total, size, index)

    def _rows(self) -> int:
        """The number of rows; the tensors must agree on it."""
        found = [(path, tensor.size(0)) for path, tensor in pytree.tensors(self._data)]
        if not found:
            if not self._options.needs_rows:
                return 0
            raise ValueError(f"{self._where()}: {_described(self._data)} has no tensor with rows to split")
        path, rows = found[0]
        for other, size in found:
            if size != rows:
                raise ValueError(f"{self._where()}: {path} must have {size} rows, as {other} has, got {rows}")
        if rows == 0:
            raise ValueError(f"{self._where()}: {path} must have at least 1 row, got 0")
        return rows

    def _where(self) -> str:
        return f"job '{self._job.name}', batch {self._number}"


@dataclass(frozen=True)
class Options:
    sub_batch: int | None
    reduction: Reduction
    count: Count | None
    split: int = 1
    """See JobContext.split; 1 where `sub_batch` takes it into account."""
    needs_rows: bool = False
    """Whether the program asked for sub-batches: then data without rows is refused. Otherwise it runs whole."""

    @property
    def splits(self) -> bool:
        return self.sub_batch is not None or self.split > 1

    def rows_at_once(self, rows: int) -> int:
        """Rows of the sub-batches of a batch of `rows`; the last may have fewer."""
        whole = rows if self.sub_batch is None else min(rows, self.sub_batch)
        return -(-whole // self.split)


def map_rows(data: Any, begin: int, end: int) -> Any:
    """`data` with each tensor narrowed to rows [begin, end)."""
    return pytree.map_tensors(lambda tensor: tensor.narrow(0, begin, end - begin), data)


def check_sub_batch(job: str, sub_batch: object, batch_size: int | None = None) -> int | None:
    """`sub_batch` when it can be one, for a loader of `batch_size`; ValueError otherwise."""
    if sub_batch is None:
        return None
    if not isinstance(sub_batch, int) or isinstance(sub_batch, bool) or sub_batch < 1:
        raise ValueError(f"job '{job}': sub_batch must be a positive integer, got {sub_batch!r}")
    if batch_size is not None and sub_batch > batch_size:
        raise ValueError(f"job '{job}': sub_batch must be at most {batch_size}, the loader's batch, got {sub_batch}")
    return sub_batch


def options_of(
    job: JobContext, loader: Iterable[Any], sub_batch: int | None, reduction: Reduction, count: Count | None
) -> Options:
    """The arguments of Job.batches, checked before the first batch."""
    _check_thread(job)
    declared = getattr(loader, "batch_size", None)
    check_sub_batch(job.name, sub_batch, declared if isinstance(declared, int) else None)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"job '{job.name}': reduction must be 'mean' or 'sum', got {reduction!r}")
    if reduction == "sum" and count is not None:
        raise ValueError(f"job '{job.name}': count must be None with reduction 'sum', got {count!r}")
    if not isinstance(loader, Iterable):
        raise TypeError(f"job '{job.name}': the loader must be an iterable of batches, got {_described(loader)}")
    options = Options(sub_batch, reduction, count, job.split, needs_rows=sub_batch is not None)
    if job.split == 1 or not isinstance(declared, int):
        return options
    return replace(options, sub_batch=options.rows_at_once(declared), split=1)


def iterate(job: JobContext, loader: Iterable[Any], options: Options) -> Iterator[Batch]:
    """See Job.batches."""
    passing = job.loop.begin_pass(loader)
    for batch in fetch(job, loader, options, passing):
        with step_loop.in_batch(job, batch._open, passing):
            yield batch


def fetch(job: JobContext, loader: Iterable[Any], options: Options, passing: Pass) -> Iterator[Batch]:
    """The loader's batches, not yet begun as steps."""
    job.uses_batches = True
    if not job.has_stepped:
        agreement.check(job, steps=False)
    if passing.is_over:
        job.leave_out_passes(1)
        return iter(())
    _expect_steps(job, loader, passing)
    with step_loop.in_input(job):  # starting worker processes is waiting for input, too
        iterator = passing.open(loader)
    passing.restore()
    return _fetched(job, iterator, options, passing)


def _fetched(job: JobContext, iterator: Iterator[Any], options: Options, passing: Pass) -> Iterator[Batch]:
    end = object()
    while True:
        _check_thread(job)
        with job.accumulation.fetching(), step_loop.in_input(job):
            data = next(iterator, end)
        if data is end:
            break
        passing.count()
        yield Batch(job, data, passing.fetched - 1, options)
    if passing.fetched == 0:
        raise ValueError(f"job '{job.name}': the loader must yield at least 1 batch, got none")


def _expect_steps(job: JobContext, loader: Iterable[Any], passing: Pass) -> None:
    """Tells the coordinator how many steps are to come, where the loader knows its length."""
    try:
        batches = len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # an IterableDataset's loader has __len__, too
        return
    remaining = max(0, batches - passing.fetched)
    if job.epochs_left is None:
        job.handle.expect_steps(remaining, for_good=False)
    elif job.epochs_left > 0:
        job.handle.expect_steps(remaining + batches * (job.epochs_left - 1), for_good=True)
        job.leave_out_passes(1)


def _check_thread(job: JobContext) -> None:
    """Another thread would be suspended and timed in place of the job's."""
    if current.job() is not job:
        raise RuntimeError(f"job '{job.name}': its batches must be used in its own thread, while it runs")


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with keys {list(value)}"
    return f"a {type(value).__name__}"
