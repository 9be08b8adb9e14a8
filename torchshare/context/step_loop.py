"""Begins and ends a job's input, steps and sub-batches, for all forms of loops. In the job's thread.

Note [Steps]
Each form of a training loop tells this module what it does, and nothing else counts or times it:

- `Job.batches` and `torchshare.batches`: `in_input`, `in_batch`, `in_sub_batch`.
- Other loops: `in_input` for a DataLoader; a step ends with its optimizer's (`optimizer_stepped`), or, from the first
  mark on, where the loop says so (`marked`).
- Compiled steps: a batch as above. `Job.fit` runs several that csrc/compiled begins and ends (`in_compiled_steps`).

A step begins when a batch does, outside of others, or when the step before it ends. Sub-batches count with their step:
a batch that is no step, as of a validation, has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torchshare.context import current
from torchshare.context.accumulation import Part
from torchshare.context.job_context import JobContext
from torchshare.context.loop import Pass
from torchshare.context.open_loops import OpenBatch


def begin(job: JobContext) -> None:
    """Called before the job's function."""
    job.handle.begin_step()
    job.handle.begin_sub_batch()


@contextlib.contextmanager
def in_input(job: JobContext) -> Iterator[None]:
    """While a loop waits for its loader. A wait inside another one is part of that."""
    is_outer = not job.open_loops.inputs
    if is_outer:
        _yield(job)
        job.handle.begin_input()
    job.open_loops.inputs += 1
    try:
        yield
    finally:
        job.open_loops.inputs -= 1
        if is_outer:
            job.handle.end_input()


@contextlib.contextmanager
def in_batch(job: JobContext, batch: OpenBatch, passing: Pass, *, is_ahead: bool = False) -> Iterator[None]:
    """Around the body of a loop over batches. `is_ahead`: more were fetched; the caller calls `passing.advance`."""
    handle, opened = job.handle, job.open_loops.batches
    trained, outside, is_step = job.step_counter.trained, handle.exchange_sub_batches([]), False
    if not opened:
        handle.begin_step()
    opened.append(batch)
    try:
        with job.accumulation.inside(Part(0, 1, 1.0)):
            yield
    finally:
        opened.remove(batch)
        if _is_here(job):
            # A loop that breaks out after its step has done it; one that only looked, or failed on the way, has not.
            is_step = batch.is_done and job.step_counter.is_step(trained, job.has_optimizers())
            if is_step:
                job.step_counter.is_by_optimizer = False
                _end_step(job)
                passing.stepped()
            handle.exchange_sub_batches(outside)
    if is_step and not is_ahead:
        passing.advance()


@contextlib.contextmanager
def in_sub_batch(job: JobContext, batch: OpenBatch, is_last: bool, part: Part | None = None) -> Iterator[None]:
    """Around forward and backward of a sub-batch. With `part`, gradients get its weight. Ranks average gradients in the
    last sub-batch only, so that they may differ in the number of sub-batches."""
    trained, is_over = job.step_counter.trained, False
    _begin_sub_batch(job)
    try:
        with contextlib.ExitStack() as stack:
            if part is not None:
                stack.enter_context(job.accumulation.inside(part))
            for model in () if is_last else tuple(job.data_parallel):
                stack.enter_context(model.no_sync())
            yield
        is_over = True
    finally:
        # A loop may break out at the end of its body.
        if is_over or (_is_here(job) and job.step_counter.trained > trained):
            job.handle.end_sub_batch()
            batch.is_done = batch.is_done or is_last


def backward_ran(job: JobContext) -> None:
    """Called after each backward pass."""
    job.step_counter.trained += 1
    job.open_loops.is_compiled = False


def optimizer_stepped(job: JobContext, optimizer: object) -> None:
    """Called after each step of an optimizer, also one that a GradScaler leaves out."""
    job.loop.optimizer_stepped()
    counter = job.step_counter
    ends_step = not job.open_loops.batches and (counter.waits() or not job.uses_batches)
    counter.trained += 1
    if ends_step and counter.counts(optimizer) and not counter.is_marked:
        _end_step_outside(job)
        counter.is_by_optimizer = True


def marked(job: JobContext) -> None:
    """Called where a loop says that a step ends. The first mark ends none behind an optimizer's step, which has."""
    counter = job.step_counter
    if job.open_loops.batches:
        counter.trained += 1  # the batch is a step, which ends with it
        return
    if counter.is_marked or not counter.is_by_optimizer:
        _end_step_outside(job)
    counter.is_marked = True
    _yield(job)


@contextlib.contextmanager
def in_compiled_steps(job: JobContext, passing: Pass, steps: int) -> Iterator[None]:
    """Around steps that csrc/compiled begins and ends."""
    outside = job.handle.exchange_sub_batches([])
    try:
        yield
    finally:
        job.handle.exchange_sub_batches(outside)
    passing.stepped(steps)
    job.loop.optimizer_stepped()
    job.step_counter.trained += 1
    job.step_counter.end_step()
    job.handle.begin_step()


def _yield(job: JobContext) -> None:
    """Where the job may be suspended, with or without its memory, and cancelled."""
    _park_spilled(job)
    if not job.is_ending:
        job.handle.yield_point()


def _park_spilled(job: JobContext) -> None:
    if job.spills and not job.is_ending:
        job.park_spilled(job)


def _begin_sub_batch(job: JobContext) -> None:
    _park_spilled(job)  # only: a job that has caught a cancel in a step may end that step
    job.open_loops.sub_batches += 1
    job.handle.begin_sub_batch()


def _end_step_outside(job: JobContext) -> None:
    """A step that ends outside of batches."""
    job.step_counter.end_step()
    if not job.handle.has_sub_batches:
        job.handle.end_sub_batch()
    _end_step(job)
    _begin_sub_batch(job)


def _end_step(job: JobContext) -> None:
    job.handle.end_step()
    job.handle.begin_step()


def _is_here(job: JobContext) -> bool:
    """False for a loop that its job has left behind: it is closed in another thread, or after the job's end."""
    return current.job() is job and job.handle.is_in_body
