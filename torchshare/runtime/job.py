from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from torchshare.context.checks import check_count
from torchshare.context.job_context import JobContext
from torchshare.context.results import Result
from torchshare.training import batches
from torchshare.training.batches import Batch, Count, Reduction
from torchshare.training.batches import Options as BatchOptions
from torchshare.training.cuda_graph import Graphed

if TYPE_CHECKING:
    from torchshare.training.compiled_step import CompiledStep


class Job:
    """One training run: a thread with a priority, intra-op threads and random state of its own.

    Made by `Runtime.submit` and handed to the submitted function, which runs in the job's thread.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._metrics: dict[str, float] = {}
        self._value: Any = None
        self._exception: BaseException | None = None

    @property
    def name(self) -> str:
        return self._context.name

    @property
    def priority(self) -> str:
        """ "primary", "secondary" or "level-2" to "level-9"."""
        return self._context.handle.priority

    @property
    def state(self) -> str:
        """ "pending", "delayed", "running", "suspended", "finished", "failed" or "cancelled"."""
        return self._context.handle.state

    @property
    def sms(self) -> int | None:
        """Streaming multiprocessors that the driver gave the running job; None where they are not divided."""
        return self._context.handle.sms

    @property
    def result(self) -> Result:
        """What the job has done so far; final once `state` is one of the last three."""
        handle = self._context.handle
        stats = handle.stats()
        return Result(
            name=self.name,
            priority=self.priority,
            state=self.state,
            value=self._value,
            exception=self._exception or (RuntimeError(handle.error) if handle.error else None),
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
        return batches.iterate(self._context, loader, self._options(loader, sub_batch, reduction, count))

    def _options(
        self, loader: Iterable[Any], sub_batch: int | None, reduction: Reduction, count: Count | None
    ) -> BatchOptions:
        return batches.options_of(self._context, loader, self._sub_batch_or(sub_batch), reduction, count)

    def _sub_batch_or(self, given: int | None) -> int | None:
        return self._context.sub_batch if given is None else given

    def compiled_step(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[..., torch.Tensor],
        optimizer: torch.optim.Optimizer,
        example_batch: Any,
        *,
        sub_batch: int | None = None,
    ) -> CompiledStep:
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
        warning that says why; see `CompiledStep.fallback`.

        Raises:
            TypeError, ValueError: for arguments that make no sense.
        """
        from torchshare.training import compiled_step  # it has torch's compiler loaded, for a second or two

        return compiled_step.make(
            self._context, model, loss_fn, optimizer, example_batch, self._sub_batch_or(sub_batch)
        )

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
        return Graphed(self._context, loss_fn, self._context.device)

    def fit(
        self,
        step: CompiledStep,
        loader: Iterable[Any],
        *,
        steps: int | None = None,
        sub_batch: int | None = None,
        reduction: Reduction = "mean",
        count: Count | None = None,
        prefetch: int = 8,
    ) -> torch.Tensor:
        """Trains with a compiled step, and returns the loss of each step, shape (steps,). Same as
        `for batch in job.batches(loader): step(batch)`, but the interpreter is only needed for the loader: it yields
        `prefetch` batches, which are then trained on from C++.

        Args:
            step: what `compiled_step` returned.
            loader, sub_batch, reduction, count: as for `batches`.
            steps: goes over the loader again where need be. Default: one pass.
            prefetch: batches held at once, at least 1.

        Raises:
            ValueError, TypeError: as `batches`, and where the loader has nothing more to yield.
        """
        from torchshare.training import compiled_step

        check_count(self.name, "steps", steps)
        check_count(self.name, "prefetch", prefetch)
        if not prefetch:
            raise ValueError(f"job '{self.name}': prefetch is {prefetch!r}; expected at least 1")
        options = self._options(loader, sub_batch, reduction, count)
        return compiled_step.fit(self._context, step, loader, steps, options, prefetch)

    def log(self, **metrics: float) -> None:
        """Keeps the latest value of each metric for the progress display and the result."""
        self._metrics.update({name: float(value) for name, value in metrics.items()})

    def suspend(self) -> None:
        """Parks the job before its next op, until `resume`."""
        self._context.handle.suspend()

    def resume(self) -> None:
        """Lets a suspended job go on."""
        self._context.handle.resume()

    def cancel(self) -> None:
        """Raises `Cancelled` in the job: before its next op, or, without one for 0.1 s, before its next bytecode."""
        self._context.handle.cancel()
        self._context.watch_cancel(self._context)

    def __repr__(self) -> str:
        return f"<Job '{self.name}' {self.priority}, {self.state}>"
