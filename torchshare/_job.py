from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch

from torchshare import _batches, _graph, _native
from torchshare._batches import Batch, Count, Reduction
from torchshare._C import Job as NativeJob
from torchshare._graph import Graphed
from torchshare._interrupt import Interrupter
from torchshare._native import NativeStep
from torchshare._profile import check_count
from torchshare._results import Result

_NUMPY_SEEDS = 2**32


class Job:
    """One training run: a thread with a priority, intra-op threads and random state of its own.

    Made by `Runtime.submit` and handed to the submitted function, which runs in the job's thread.
    """

    _native: NativeJob  # set by Runtime.submit and, where it is quicker, by the job's own thread

    def __init__(
        self, name: str, sub_batch: int | None, seed: int, epochs: int | None, interrupter: Interrupter
    ) -> None:
        self._name = name
        self._interrupter = interrupter
        self._sub_batch = sub_batch
        self._epochs_left = epochs  # passes over a loader; None: nobody said
        self._rows = 0  # most of a batch so far
        self._random = random.Random(seed)
        self._numpy_random = numpy.random.RandomState(seed % _NUMPY_SEEDS)
        self._looked_for_batch_norm = False
        self._thread = 0  # Python's name for the job's thread, while it runs
        self._metrics: dict[str, float] = {}
        self._value: Any = None
        self._exception: BaseException | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def priority(self) -> str:
        """ "primary", "secondary" or "level-2" to "level-9"."""
        return self._native.priority

    @property
    def state(self) -> str:
        """ "pending", "delayed", "running", "suspended", "finished", "failed" or "cancelled"."""
        return self._native.state

    @property
    def _device(self) -> torch.device | None:
        """Where its stream is; None on the CPU. In its own thread."""
        own = self._native.device_generator
        return None if own is None else own.device

    @property
    def sms(self) -> int | None:
        """Streaming multiprocessors that the driver gave the running job; None where they are not divided."""
        return self._native.sms

    @property
    def result(self) -> Result:
        """What the job has done so far; final once `state` is one of the last three."""
        stats = self._native.stats()
        return Result(
            name=self.name,
            priority=self.priority,
            state=self.state,
            value=self._value,
            exception=self._exception or (RuntimeError(self._native.error) if self._native.error else None),
            steps=stats.steps,
            sub_batches=stats.sub_batches,
            ops=stats.ops,
            ran_s=stats.ran_s,
            waited_s=stats.waited_s,
            input_s=stats.input_s,
            memory_peak=stats.memory_peak,
            metrics=dict(self._metrics),
        )

    def batches(
        self,
        loader: Iterable[Any],
        sub_batch: int | None = None,
        *,
        reduction: Reduction = "mean",
        count: Count | None = None,
    ) -> Iterator[Batch]:
        """The loader's batches; each is one step. The dataloader hook.

        Args:
            loader: anything that yields batches: tensors, or tuples, lists, mappings and dataclasses of them, nested.
                The first dimension of every tensor is the rows; other leaves go to each sub-batch as they are.
            sub_batch: rows that run at once. Default: what `submit` was given, else the whole batch.
            reduction: how the loss reduces over rows, "mean" or "sum".
            count: for means over something else than rows, how much of it a tree of rows holds, as a number or tensor:
                `lambda data: (data["labels"] != -100).sum()` for a mean over tokens.

        Raises:
            ValueError: for arguments that make no sense, and while iterating for a batch that has no rows, tensors that
                disagree on their rows, nothing to count, or a loader that yields nothing.
        """
        return _batches.iterate(self, loader, self._options(loader, sub_batch, reduction, count))

    def _options(
        self, loader: Iterable[Any], sub_batch: int | None, reduction: Reduction, count: Count | None
    ) -> _batches.Options:
        return _batches.options_of(self, loader, self._sub_batch_or(sub_batch), reduction, count)

    def _sub_batch_or(self, given: int | None) -> int | None:
        return self._sub_batch if given is None else given

    def native_step(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[..., torch.Tensor],
        optimizer: torch.optim.Optimizer,
        example_batch: Any,
        *,
        sub_batch: int | None = None,
    ) -> NativeStep:
        """A training step, `step(batch)`, compiled for batches like `example_batch`: forward, backward and the
        optimizer's update in C++, without the interpreter. For `job.batches`, or for `job.fit`.

        Compiled in another process, once per model, shape, number of threads and version of torch, and kept in
        `~/.cache/torchshare`. Batches of other shapes are compiled when they come.

        Args:
            model: whose parameters and buffers are trained; of several, an `nn.ModuleList`.
            loss_fn: as for `Batch.backward`: it calls `model`, and returns the loss of the rows it is given.
            optimizer: SGD, Adam or AdamW. Learning rates may change from step to step.
            example_batch: as the loader yields it. Its numbers do not matter, and nothing is trained.
            sub_batch: rows that will run at once. Default: what `submit` was given, else the whole batch.

        What cannot be compiled (data-dependent control flow, hooks, another optimizer) runs in eager instead, after one
        warning that says why; see `NativeStep.fallback`.

        Raises:
            TypeError, ValueError: for arguments that make no sense.
        """
        return _native.native_step(self, model, loss_fn, optimizer, example_batch, self._sub_batch_or(sub_batch))

    def graph(self, loss_fn: Callable[..., torch.Tensor]) -> Graphed:
        """A loss function for `Batch.backward` whose forward and backward are captured as a CUDA graph, once for each
        shape of a sub-batch, and then launched as one op: the way out for jobs that are bound by launches.

        Weights, buffers and random numbers are those of the eager run. `loss_fn` must do the same each time: no control
        flow that depends on values of tensors, no waiting for the device, no random numbers from the host; Python in it
        runs while it is captured, and not again. What cannot be captured runs in eager, after one warning that says
        why; on the CPU everything does. See `Graphed.fallback`.
        """
        if not callable(loss_fn):
            raise TypeError(f"job '{self.name}': the loss function is {loss_fn!r}; expected a callable")
        return _graph.Graphed(self, loss_fn, self._device)

    def fit(
        self,
        step: NativeStep,
        loader: Iterable[Any],
        *,
        steps: int | None = None,
        sub_batch: int | None = None,
        reduction: Reduction = "mean",
        count: Count | None = None,
        prefetch: int = 8,
    ) -> torch.Tensor:
        """Trains with a native step, and returns the loss of each step, shape (steps,). Same as
        `for batch in job.batches(loader): step(batch)`, but the interpreter is only needed for the loader: it yields
        `prefetch` batches, which are then trained on from C++.

        Args:
            step: what `native_step` returned.
            loader, sub_batch, reduction, count: as for `batches`.
            steps: goes over the loader again where need be. Default: one pass.
            prefetch: batches held at once, at least 1.

        Raises:
            ValueError, TypeError: as `batches`, and where the loader has nothing more to yield.
        """
        check_count(self.name, "steps", steps)
        check_count(self.name, "prefetch", prefetch)
        if not prefetch:
            raise ValueError(f"job '{self.name}': prefetch is {prefetch!r}; expected at least 1")
        return _native.fit(self, step, loader, steps, self._options(loader, sub_batch, reduction, count), prefetch)

    def log(self, **metrics: float) -> None:
        """Keeps the latest value of each metric for the progress display and the result."""
        self._metrics.update({name: float(value) for name, value in metrics.items()})

    def suspend(self) -> None:
        """Parks the job before its next op, until `resume`."""
        self._native.suspend()

    def resume(self) -> None:
        """Lets a suspended job go on."""
        self._native.resume()

    def cancel(self) -> None:
        """Raises `Cancelled` in the job: before its next op, or, without one for 0.1 s, before its next bytecode."""
        self._native.cancel()
        self._interrupter.watch(self)

    def __repr__(self) -> str:
        return f"<Job '{self.name}' {self.priority}, {self.state}>"
