"""Writes the checkpoints of a job at the ends of its steps, and lets its function go on from one.

Note [Resuming]
The function runs from its start. Passes over the loader that were completed yield nothing. In the pass that was not,
the random state at its beginning is restored, so that the loader shuffles alike, and the batches that were done are
fetched once more and dropped; a loader that has a state of its own goes there by itself. Only then the states are
loaded: what the function did up to there, such as stepping a scheduler once per epoch, has no effect.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchshare.checkpoints import random_state
from torchshare.checkpoints.interval import Interval
from torchshare.checkpoints.job_files import JobFiles
from torchshare.checkpoints.position import Position
from torchshare.checkpoints.states import load_state, state_of
from torchshare.checkpoints.writer import Writer
from torchshare.context.loop import Loop, NewestCommon, Pass
from torchshare.context.sub_batch_rows import SubBatchRows
from torchshare.memory import copies

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

log = logging.getLogger("torchshare")

_POLL_S = 0.05  # how often a job that waits for the writer looks for a cancellation


class Checkpoints(Loop):
    """The checkpoints of one job. Used in the job's thread, except where Loop says otherwise."""

    has_saved = False
    unwritten = ""

    def __init__(self, job: JobContext, folder: Path, every: Interval, resume: bool, writer: Writer) -> None:
        """Raises ValueError if there are checkpoints that are not to be resumed from."""
        self._job = job
        self._folder = folder
        self._files = JobFiles(folder, job.name, job.rank)
        self._every = every
        self._resume = resume
        self._writer = writer
        self._position = Position()
        self._goal: dict[str, Any] | None = None  # the checkpoint to go on from, until its position is reached
        self._goal_position: Position | None = None
        self._loader: Any = None  # of the pass
        self._random: dict[str, Any] = {}  # at the beginning of the pass
        self._written = threading.Event()  # the latest file, or it has failed
        self._written.set()
        self._asked = threading.Event()
        self._warned = False
        self._sees_optimizers = False
        self._has_stepped = False  # an optimizer, since the last batch: no gradients are waiting for their step
        self._set_due()
        if not resume and self._files.find():
            raise ValueError(
                f"job '{job.name}': {folder} has checkpoints of it: resume from them, or choose another folder"
            )

    @property
    def can_save(self) -> bool:
        return bool(self._job.tracked.objects and self._position.passes)

    @property
    def has_checkpoint(self) -> bool:
        return self._files.has_any

    def ask(self) -> None:
        if self.can_save:
            self._asked.set()

    def is_asked(self) -> bool:
        return self._asked.is_set() or not self._written.is_set()

    # Resuming

    def begin_job(self, newest_common: NewestCommon) -> None:
        if not self._resume:
            return
        usable = self._files.usable()
        newest = newest_common(list(usable))
        if newest is None:
            log.warning("job '%s': no checkpoint in %s; it starts from the beginning", self._job.name, self._folder)
            return
        log.warning("job '%s': resumes at step %d", self._job.name, newest)
        self._files.keep(newest)
        self._goal = usable[newest]
        self._goal_position = Position(**self._goal["place"])
        self._job.handle.go_on_after(self._goal_position.steps)

    def epochs(self, count: int) -> Iterator[int]:
        position, goal = self._position, self._goal_position
        number, first = position.epoch_loops, 0
        if goal is not None and number + (goal.epoch is None) == goal.epoch_loops:
            self._job.leave_out_passes(goal.first_pass - len(position.passes))
            position.passes = goal.passes[: goal.first_pass]
            first = count if goal.epoch is None else goal.epoch
        elif goal is not None and number < goal.epoch_loops:
            first = count
        try:
            for epoch in range(first, count):
                position.epoch, position.first_pass = epoch, len(position.passes)
                yield epoch
        finally:
            position.epoch, position.epoch_loops, position.first_pass = None, number + 1, len(position.passes)

    def begin_pass(self, loader: Iterable[Any]) -> Pass:
        tracked, position, goal = self._job.tracked, self._position, self._goal_position
        if tracked.loader is not None and loader is not tracked.loader:
            return Pass()
        index = len(position.passes)
        if goal is not None and index < len(goal.passes) - 1:
            position.passes.append(goal.passes[index])
            return _DonePass(goal.passes[index])
        position.passes.append(0 if goal is None else goal.passes[-1])
        return _CountedPass(self, self._job, position)

    def open(self, loader: Iterable[Any]) -> Iterator[Any]:
        """An iterator of the loader, and with a goal, at its position."""
        job, self._loader = self._job, loader
        if self._goal is None:
            self._random = random_state.get(job, loader)
            return iter(loader)
        if getattr(loader, "persistent_workers", False) and len(self._position.passes) > 1:
            iter(loader)  # starts the workers, which draws a seed
        self._random = self._goal["random_of_pass"]
        random_state.put(job, loader, self._random)
        if loader is job.tracked.objects.get("loader"):
            self._load("loader", loader)
            return iter(loader)
        iterator: Iterator[Any] = iter(loader)
        end = object()
        done = self._position.passes[-1]
        for number in range(done):
            if next(iterator, end) is end:
                raise RuntimeError(
                    f"job '{job.name}': the loader yielded {number} batches; its checkpoint was written after "
                    f"{done} of that pass"
                )
        return iterator

    def restore(self) -> None:
        """Loads all states, at the goal."""
        if self._goal is None:
            return
        job, goal, position = self._job, self._goal, self._goal_position
        saved, given = sorted(goal["states"]), sorted(job.tracked.objects)
        if saved != given:
            raise RuntimeError(
                f"job '{job.name}': its checkpoint has the states of {', '.join(saved)}; tracked are "
                f"{', '.join(given) or 'none'}"
            )
        for name, value in job.tracked.objects.items():
            if value is not job.tracked.loader:
                self._load(name, value)
        if goal.get("split", 1) == job.split:  # otherwise its memory budget is another
            job.rows_at_once = SubBatchRows(**goal["rows_at_once"])
        random_state.put(job, self._loader, goal["random"])
        assert position is not None
        self._position.steps = position.steps
        self._set_due()
        self._goal = self._goal_position = None

    def _load(self, name: str, value: Any) -> None:
        assert self._goal is not None
        try:
            load_state(value, self._goal["states"][name])
        except Exception as error:
            reason = " ".join(str(error).split())
            raise RuntimeError(f"job '{self._job.name}': its checkpoint does not fit '{name}': {reason}") from None

    def end_job(self) -> None:
        if self._goal_position is not None:
            raise RuntimeError(
                f"job '{self._job.name}': ended before pass {len(self._goal_position.passes)} over its loader, in "
                "which its checkpoint was written"
            )
        if not self._position.steps:
            log.warning(
                "job '%s': has no checkpoints: only job.batches, job.fit and torchshare.batches write them",
                self._job.name,
            )

    # Writing

    def optimizer_stepped(self) -> None:
        self._sees_optimizers = self._has_stepped = True

    def advance(self) -> None:
        """Writes a checkpoint if one is due. Not while gradients wait for more batches: they are not saved."""
        position = self._position
        has_stepped, self._has_stepped = self._has_stepped, False
        if has_stepped or not self._sees_optimizers:
            is_due = self._steps_due <= position.steps and self._time_due <= time.monotonic()
            if is_due or self._asked.is_set():
                self._save()

    def _set_due(self) -> None:
        steps, seconds = self._every.steps, self._every.seconds
        self._steps_due = 0 if steps is None else (self._position.steps // steps + 1) * steps
        self._time_due = 0.0 if seconds is None else time.monotonic() + seconds

    def _save(self) -> None:
        if not self._written.is_set():
            if self._every.steps is None and not self._asked.is_set():
                return  # the disk is slower than the interval
            self._wait_for_writer()
        self._set_due()
        try:
            if not self._job.tracked.objects:
                raise ValueError("it has tracked nothing; see Job.track")
            payload = self._payload()
        except Exception as error:
            self._warn(f"no checkpoint at step {self._position.steps}", error)
            self._asked.clear()
            return
        self._written.clear()
        self._asked.clear()
        step = self._position.steps
        self._writer.put(lambda: self._write(step, payload))

    def _wait_for_writer(self) -> None:
        self._job.handle.begin_wait("checkpoint")
        try:
            while not self._written.wait(_POLL_S):
                pass
        finally:
            self._job.handle.end_wait()

    def _payload(self) -> dict[str, Any]:
        job, tracked = self._job, self._job.tracked
        return {
            "place": dataclasses.asdict(self._position),  # the key in the files of all versions
            "rows_at_once": dataclasses.asdict(job.rows_at_once),
            "split": job.split,
            "random": random_state.get(job, self._loader),
            "random_of_pass": self._random,
            "states": copies.snapshot({name: state_of(value) for name, value in tracked.objects.items()}),
        }

    def _write(self, step: int, payload: dict[str, Any]) -> None:
        """Writes a checkpoint, in the writer's thread."""
        try:
            copies.check(payload["states"])
            self._files.write(step, payload)
            self._warned, self.has_saved, self.unwritten = False, True, ""
        except OSError as error:
            self.unwritten = error.strerror or str(error)
            self._warn(f"no checkpoint at step {step}", error)
        except Exception as error:
            self._warn(f"no checkpoint at step {step}", error)
        finally:
            self._written.set()

    def _warn(self, what: str, error: Exception) -> None:
        """Warns once; again after a checkpoint has been written."""
        if not self._warned:
            self._warned = True
            log.warning("job '%s': %s: %s", self._job.name, what, error)


class _DonePass(Pass):
    is_over = True

    def __init__(self, fetched: int) -> None:
        self.fetched = fetched


class _CountedPass(Pass):
    def __init__(self, checkpoints: Checkpoints, job: JobContext, position: Position) -> None:
        self._checkpoints = checkpoints
        self._job = job
        self._position = position
        self._passes = position.passes
        self._index = len(position.passes) - 1
        self.fetched = self._passes[-1]

    def open(self, loader: Iterable[Any]) -> Iterator[Any]:
        return self._checkpoints.open(loader)

    def restore(self) -> None:
        self._checkpoints.restore()

    def count(self) -> None:
        if self._index != len(self._passes) - 1:
            raise RuntimeError(
                f"job '{self._job.name}': checkpoints follow one loader at a time; name it with job.track(loader=...)"
            )
        self.fetched += 1
        self._passes[self._index] = self.fetched

    def stepped(self, steps: int = 1) -> None:
        self._position.steps += steps

    def advance(self) -> None:
        self._checkpoints.advance()
