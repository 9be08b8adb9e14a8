from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch

from torchshare.checkpoints import states
from torchshare.context import current, step_loop
from torchshare.context.checks import check_count
from torchshare.context.job_context import JobContext
from torchshare.context.results import ENDED, Periods, Result, Results, Times
from torchshare.serving import periods, requests, served
from torchshare.serving.request_batch import RequestBatch
from torchshare.serving.serving import serving_of
from torchshare.training import batches
from torchshare.training.batches import Batch, Count, Reduction
from torchshare.training.batches import Options as BatchOptions
from torchshare.training.cuda_graph import Graphed
from torchshare.training.multiprocessors import on_sms

if TYPE_CHECKING:
    from torchshare import _C
    from torchshare.serving.compiled_model import CompiledModel
    from torchshare.training.compiled_step import CompiledStep


_POLL_S = 0.01  # how often `save` looks


P = ParamSpec("P")
T = TypeVar("T")


def _periods(stats: _C.PeriodStats | None) -> Periods | None:
    if stats is None:
        return None
    response, slack = Times.of(stats.response), Times.of(stats.slack)
    counts = (stats.met, stats.missed, stats.skipped)
    return Periods(*counts, response, slack, stats.worst_lateness_s, tuple(stats.misses))


class Job:
    """One training run: a thread with its own priority, intra-op threads and random state.

    Created by `Runtime.submit` and passed to the submitted function, which runs in the job's thread.
    """

    _context: JobContext
    """The last attempt's; set when that is submitted."""

    def __init__(self, after: Iterable[str] = ()) -> None:
        """`after` are the names of its predecessors."""
        self._metrics: dict[str, float] = {}
        self._value: Any = None
        self._exception: BaseException | None = None
        self._attempts = 1
        self._awaited: dict[str, Job | None] = dict.fromkeys(after)
        self._after = Results([])

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
        """Streaming multiprocessors that the driver granted the running job; None if they are not partitioned."""
        return self._context.handle.sms

    @property
    def after(self) -> Results:
        """The results of the jobs that this one waits for (the option `after`), by name: `job.after["pretrain"].value`.
        They are final once the job has begun. Empty before the runtime starts."""
        return Results([*self._after.values(), *(job.result for job in self._awaited.values() if job is not None)])

    def _bind_predecessors(self, jobs: Mapping[str, Job]) -> None:
        """Called when the predecessors' names stand for `jobs`."""
        self._awaited = {name: jobs.get(name) for name in self._awaited}

    def _take_results(self) -> None:
        """Called when the job begins. It refers to its predecessors no more, nor they to theirs."""
        self._after, self._awaited = self.after, {}

    @property
    def result(self) -> Result:
        """What the job has done so far; final once `state` is "finished", "failed" or "cancelled"."""
        handle = self._context.handle
        state = self.state  # first: the job may end meanwhile
        stats = handle.stats()
        return Result(
            name=self.name,
            priority=self.priority,
            state=state,
            value=self._value,
            exception=self._exception or (RuntimeError(handle.error) if handle.error else None),
            steps=stats.earlier_steps + stats.steps,
            earlier_steps=stats.earlier_steps,
            sub_batches=stats.sub_batches,
            ops=stats.ops,
            ran_s=stats.ran_s,
            waited_s=stats.waited_s,
            input_s=stats.input_s,
            cpu_s=stats.cpu_s,
            core_wait_s=stats.core_wait_s,
            memory_peak=stats.memory_peak,
            memory_cached=stats.memory_cached,
            metrics=dict(self._metrics),
            requests=None if self._context.serving is None else self._context.serving.result(),
            periods=_periods(handle.periods()),
            attempts=self._attempts,
            lateness_s=stats.lateness_s,
        )

    def track(self, *, loader: Any = None, **objects: Any) -> None:
        """Names the objects whose state is kept in the job's checkpoints:
        `job.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)`.

        Args:
            loader: the loader that is passed to `batches`. Its passes and batches are counted; if it has a
                `state_dict`, it goes to its place by itself when the job resumes. Without `loader`, the passes over
                all loaders are counted.
            **objects: anything with `state_dict` and `load_state_dict`, and generators of torch. They must not hold
                other values than `torch.load(weights_only=True)` loads.

        When a job resumes, its function runs from its start: `epochs` begins at the saved epoch, `batches` yields
        nothing for passes that were completed, and all states are loaded before the first batch that was not done.

        Raises:
            TypeError: for an object that has no such state.
            ValueError: for a name that stands for another object already.
        """
        states.track(self.name, self._context.tracked, loader, objects)

    def step(self) -> None:
        """Marks the end of a step, in a loop that has no batches and no optimizer: a solver, a simulation.

            while residual > tolerance:
                ...
                job.step()

        Results, profiles, plans, `start="step:20"`, `start="auto"` and `max_slowdown` count these steps. From the first
        mark on, steps of optimizers count no more. In the body of a loop over `batches`, the mark makes the batch a
        step, as a backward pass does. The job may be suspended or cancelled here. Checkpoints are written by `batches`
        only.

        Raises:
            RuntimeError: in another thread than the job's own.
        """
        if current.job() is not self._context:
            thread = threading.current_thread().name
            raise RuntimeError(f"job '{self.name}': step must be called in its own thread, got thread '{thread}'")
        step_loop.marked(self._context)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs, `range(count)`. A job that resumes begins with the epoch of its checkpoint."""
        check_count(self.name, "count", count)
        return self._context.loop.epochs(count)

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
            loader: any iterable of batches: tensors, or nested tuples, lists, mappings and dataclasses of tensors. The
                first dimension of every tensor is the rows; other leaves are passed to each sub-batch unchanged.
            sub_batch: rows that run at once. Default: the `sub_batch` of `submit`, else the whole batch.
            reduction: how the loss reduces over rows, "mean" or "sum".
            count: for a mean over something other than rows: returns how many of it a sub-batch holds, as a number or
                tensor. For a mean over tokens, `lambda data: (data["labels"] != -100).sum()`.

        Raises:
            ValueError: for invalid arguments; while iterating, for a batch without rows, tensors that differ in their
                number of rows, a count of 0, or a loader that yields no batch.
        """
        return batches.iterate(self._context, loader, self._options(loader, sub_batch, reduction, count))

    def _options(
        self, loader: Iterable[Any], sub_batch: int | None, reduction: Reduction, count: Count | None
    ) -> BatchOptions:
        return batches.options_of(self._context, loader, self._sub_batch_or(sub_batch), reduction, count)

    def _sub_batch_or(self, given: int | None) -> int | None:
        return self._context.sub_batch if given is None else given

    def requests(
        self, source: Any, *, max_batch: int = 1, max_wait: float = 0.0, slo: str | None = None
    ) -> Iterator[RequestBatch]:
        """Yields the requests to the job, for a loop that answers them:

            for request in job.requests(source):
                request.answer(model(request.data))

        A request is no step: it has times of its own, in `Result.requests`. While the job waits for one, lower jobs
        run. A request may be answered after the loop has taken others. One that the program drops without an answer
        fails, as do those that have come when the job ends. `request.answer_with(model)` fails only those requests of a
        batch for which the model raises.

        Args:
            source: a queue (`queue.Queue`, `multiprocessing.Queue`, anything with `get(timeout=)`); a callable that
                waits so many seconds, and raises `queue.Empty` if nothing has come; or an iterable. It gives
                `torchshare.Request`s, whose clients wait for an answer, or data. None, `queue.ShutDown` and the end of
                an iterable end the loop. In a `queue.PriorityQueue`, `(priority, request)` is that request, and
                `(priority, None)` the end.
            max_batch: rows that are answered at once: requests of the same shape are joined (`RequestBatch.data`), and
                `RequestBatch.answer` gives each its rows. A request with more rows is answered alone.
            max_wait: seconds from a request's arrival in which more may join it.
            slo: a promise about latencies, such as "p99<20ms" (in us, ms or s). Lower jobs are limited so that it is
                kept; see LatencyPace in csrc/sharing. If it cannot be kept while they are held, a warning says so and
                they stay held. A job has one, and not together with `max_slowdown` or `secondary_share`.

        Raises:
            TypeError, ValueError: for invalid arguments.
        """
        return requests.serve(serving_of(self._context), source, max_batch, max_wait, slo)

    def periods(
        self,
        source: Any = None,
        *,
        period: float | None = None,
        deadline: float | None = None,
        unit_time: float | None = None,
    ) -> Iterator[Any]:
        """Yields the next item of `source` once per period, for a loop whose body must end in time:

            for frame in job.periods(camera, period=1 / 30, deadline=0.025):
                show(model(frame))

        A pass of the loop is a unit. It is released one period after the one before; until then, the job waits, and
        others run. A unit whose deadline has passed before it can begin is skipped, without an item of `source`.
        `Result.periods` says how deadlines were kept.

        With `Runtime(policy="edf")`, the unit that is due first enters its ops first, and ops of jobs without a period
        run in between if they end before the next release. Periodic jobs are accepted only if all of them meet their
        deadlines; see DemandBound in csrc/planner.

        Args:
            source: an iterable, a callable that returns the next item, or None: the numbers 0, 1, ... The end of an
                iterable, or StopIteration, ends the loop, at the release after the last item.
            period: seconds between two releases. What was given to `submit` comes first, here and below.
            deadline: seconds from a release by which its unit must have ended. Default: the period.
            unit_time: seconds that a unit takes alone, at most. Default: measured, once 60 units have ended.

        Raises:
            ValueError: for invalid arguments, if deadlines would be missed, or without a period.
            TypeError: for another source.
            RuntimeError: in another thread than the job's own, or inside another such loop.
        """
        return periods.over(self._context, source, period, deadline, unit_time)

    def serve(self, function: Callable[P, T], *, slo: str | None = None) -> Callable[P, T]:
        """Returns a function that calls `function` for the job. Any thread may call it while the job runs, such as a
        handler of an HTTP server:

            app.infer = job.serve(model)
            uvicorn.run(app)

        In such a call the thread works for the job: at the job's priority at the gate, on its stream, in its memory
        budget and with its settings; each of several calls at a time has a random state of its own, which
        `torch.manual_seed` in the call sets (on a GPU, the job's, which all share). A call is a request, with times in
        `Result.requests`, and waits until the device has computed what it returns.

        When the job ends, it waits for the calls that have begun; when it is cancelled, they raise RuntimeError at
        their next op, as do later calls, and calls in threads of other jobs at once. The thread's priority in the
        operating system stays.

        Args:
            function: what answers, called in the caller's thread. It must have computed its answer when it returns.
            slo: as for `requests`.

        Raises:
            TypeError: for a coroutine function or a generator function; in a call, if `function` returns a coroutine
                or a generator.
        """
        return served.served(serving_of(self._context), function, slo)

    def compiled_step(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[..., torch.Tensor],
        optimizer: torch.optim.Optimizer,
        example_batch: Any,
        *,
        sub_batch: int | None = None,
    ) -> CompiledStep:
        """Compiles a training step, `step(batch)`, for batches like `example_batch`: forward, backward and the
        optimizer's update run from C++, without the GIL. Use it with `job.batches` or `job.fit`.

        Compilation runs in another process, once per model, shape, number of threads and version of torch; the result
        is cached in `~/.cache/torchshare`. Batches of other shapes are compiled on first use.

        Args:
            model: the module to train; for several modules, an `nn.ModuleList`.
            loss_fn: as for `Batch.backward`: calls `model` and returns the loss of the given rows.
            optimizer: SGD, Adam or AdamW. Learning rates may change from step to step.
            example_batch: a batch as the loader yields it. Its values do not matter, and it is not trained on.
            sub_batch: rows that run at once. Default: the `sub_batch` of `submit`, else the whole batch.

        A step that cannot be compiled (data-dependent control flow, hooks, another optimizer) runs in eager, after one
        warning that says why; see `CompiledStep.fallback`.

        Raises:
            TypeError, ValueError: for invalid arguments.
        """
        from torchshare.training import compiled_step  # imports torch's compiler, which takes 1 to 2 s

        return compiled_step.make(
            self._context, model, loss_fn, optimizer, example_batch, self._sub_batch_or(sub_batch)
        )

    def compiled(self, model: torch.nn.Module, /, *args: Any, **kwargs: Any) -> CompiledModel:
        """Compiles a model's forward pass without gradients, for calls like `model(*args, **kwargs)`. It runs from C++,
        without the GIL, as one op at the gate. Use it in a loop over `requests`, in a function given to `serve`, or
        anywhere in the job; several threads may call it at a time:

            infer = job.compiled(model, example)

            for request in job.requests(source, max_batch=8):
                request.answer(infer(request.data))

        Compilation runs in another process, once per model, shape, number of threads and version of torch; the result
        is cached in `~/.cache/torchshare`. Nothing is compiled later.

        Args:
            model: the module to run, in evaluation mode. Its parameters and buffers are read at each call.
            args, kwargs: an example of its arguments. The values of tensors do not matter; a call with another value
                of another argument runs in eager. If the first tensor has two or more rows, later calls may have any
                number of rows: the first dimension of all tensors that have as many rows as the first one. With one
                row, or if the model depends on the number of rows, they must have as many.

        A model that cannot be compiled (data-dependent control flow, hooks, random numbers, buffers that it changes)
        runs in eager, after one warning that says why; see `CompiledModel.fallback`. So does a call with other shapes,
        or after something else has changed, such as the training mode.

        Raises:
            TypeError: if `model` is no module.
            ValueError: if a module is in training mode, or no argument holds a tensor.
            RuntimeError: in another thread than the job's own.
        """
        from torchshare.serving import compiled_model

        return compiled_model.make(self._context, model, args, kwargs)

    def graph(self, loss_fn: Callable[..., torch.Tensor]) -> Graphed:
        """Returns a loss function for `Batch.backward` whose forward and backward are captured as a CUDA graph, once
        per shape of a sub-batch, and launched as one op. For jobs that are bound by kernel launches.

        Weights, buffers and random numbers equal those of the eager run. `loss_fn` must do the same work each time: no
        control flow that depends on tensor values, no synchronization with the device, no random numbers on the CPU.
        Its Python code runs during capture only. A loss that cannot be captured runs in eager, after one warning that
        says why; on the CPU, all do. See `Graphed.fallback`.
        """
        if not callable(loss_fn):
            raise TypeError(f"job '{self.name}': loss_fn must be callable, got {loss_fn!r}")
        return Graphed(self._context, loss_fn, self._context.device)

    def on_sms(self, sms: int) -> contextlib.AbstractContextManager[int]:
        """A block whose ops run on some of the GPU's multiprocessors, which no other job with `sms=` has meanwhile:

            with job.on_sms(32) as granted:
                features = detector(frame)

        The ops inside come after those before it, and later ones after them: two events on the device. Their stream has
        the job's priority, and belongs to the job as its own does: the gate, budgets and `synchronize` see its work.
        The first block on some multiprocessors makes their green context, in milliseconds; later ones change nothing
        on the device. At the block's end they are given back. What is launched inside may still run there then.

        Backward of ops inside runs on their stream, too. As with all streams of torch, a tensor that is made outside
        and that only such a backward reads needs `record_stream`. `Job.graph` captures nothing inside.

        Args:
            sms: multiprocessors, at least 1, beside those of the option `sms`. The driver rounds the number up; the
                block gets the result.

        Raises:
            ValueError: if so many are not left, or without a GPU.
            RuntimeError: in another thread than the job's own, and while a graph is being captured (`Job.graph`).
        """
        return on_sms(self._context, sms)

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
        """Trains with a compiled step and returns the loss of each step, shape (steps,). Equivalent to
        `for batch in job.batches(loader): step(batch)`, but holds the GIL for the loader only: the loader yields
        `prefetch` batches, and C++ trains on them.

        Args:
            step: a step made by `compiled_step`.
            loader, sub_batch, reduction, count: as for `batches`.
            steps: number of steps; iterates over the loader again as needed. Default: one pass.
            prefetch: batches fetched ahead, at least 1.

        Raises:
            ValueError, TypeError: as for `batches`, and if the loader yields nothing on a further pass.
        """
        from torchshare.training import compiled_step

        check_count(self.name, "steps", steps)
        check_count(self.name, "prefetch", prefetch)
        if not prefetch:
            raise ValueError(f"job '{self.name}': prefetch must be a positive integer, got {prefetch!r}")
        options = self._options(loader, sub_batch, reduction, count)
        return compiled_step.fit(self._context, step, loader, steps, options, prefetch)

    def log(self, **metrics: float) -> None:
        """Records the latest value of each metric, for the progress display and the result."""
        self._metrics.update({name: float(value) for name, value in metrics.items()})

    def suspend(self, *, spill: bool = False) -> None:
        """Parks the job before its next op, until `resume`; on all ranks.

        With `spill`, parks it before its next batch or sub-batch, and moves the parameters, buffers, gradients and
        optimizer state that it tracks (see `track`) off the device: from a GPU to pinned host memory, on the CPU to a
        temporary file. No other thread may use them until the job has been resumed. `resume` moves them back into the
        same Python objects; if the device has no memory for them, the job waits for it. With
        `Runtime(max_concurrent=)`, a job that waits for its turn may run in the meantime.
        """
        self._context.suspend(spill)
        self._context.tell_ranks(self._context, "suspend", "spill" if spill else "")

    def resume(self) -> None:
        """Lets a suspended job continue; on all ranks."""
        self._context.resume()
        self._context.tell_ranks(self._context, "resume", "")

    def save(self, timeout: float = 10.0) -> None:
        """Asks for a checkpoint at the end of the current step, and waits until it is written, `timeout` seconds at
        most. Has no effect without `Runtime(checkpoint=)`, or if the job tracks nothing; see `track`."""
        loop, deadline = self._context.loop, time.monotonic() + timeout
        loop.ask()
        while loop.is_asked() and self.state not in ENDED and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def cancel(self) -> None:
        """Raises `Cancelled` in the job: before its next op or, if it runs none for 0.1 s, before its next bytecode;
        on all ranks. A suspended job is resumed to clean up, and is not suspended again."""
        handle = None
        while handle is not self._context.handle:  # it may just start again
            context = self._context
            handle = context.handle
            handle.cancel()
            context.watch_cancel(context)
            context.tell_ranks(context, "ended", "was cancelled")

    def __repr__(self) -> str:
        return f"<Job '{self.name}' {self.priority}, {self.state}>"
