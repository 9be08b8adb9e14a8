"""Jobs that a test steers, and a model of a runtime that says what they and it do; see test_stateful.py."""

from __future__ import annotations

import functools
import itertools
import os
import queue
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from conftest import SOON_S, run_one
from torch import Tensor, nn

import torchshare
from torchshare import Cancelled, Job
from torchshare.context.results import ENDED

PRIORITIES = ("primary", "secondary", "level-2")
SEEDS = 3
MOST_STEPS = 60  # of a job
MAY_FOLLOW = {
    "pending": {"delayed", "running", "cancelled"},
    "delayed": {"running", "cancelled"},
    "running": {"suspended", "finished", "failed", "cancelled"},
    "suspended": {"running", "cancelled"},
}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS = (ValueError, KeyError, torch.OutOfMemoryError, StopIteration, Unprintable, KeyboardInterrupt, SystemExit)


class Steered:
    """The function of a job. It does what the test says, one command at a time; in between, any call reaches it."""

    def __init__(self, at_cancel: str = "unwinds") -> None:
        self.at_cancel = at_cancel
        self.began = False
        self.commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()

    def __call__(self, job: Job) -> list[Tensor] | None:
        try:
            self.began = True
            self.job = job
            self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            job.track(model=self.model, optimizer=self.optimizer)
            while (command := self.next()) is not None:
                command()
            return self.weights()
        except Cancelled:
            torch.ones(2).add_(1)  # cleans up
            if self.at_cancel == "returns":
                return None
            if self.at_cancel == "raises":
                raise ValueError("instead of the cancel") from None
            raise

    def next(self) -> Callable[[], object] | None:
        tick = torch.zeros(1)
        while True:
            tick.add_(1)  # a suspended or cancelled job takes no further command
            try:
                return self.commands.get_nowait()
            except queue.Empty:
                select.select([], [], [], 0.002)  # SimpleQueue.get may wait for ever with a timeout

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def fail(self, error: BaseException) -> None:
        raise error

    def step(self, error: BaseException | None = None) -> None:
        def loss(x: Tensor) -> Tensor:
            if error is not None:
                raise error
            return self.model(x).square().mean()

        for batch in self.job.batches([torch.randn(4, 4)], sub_batch=2):
            batch.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()


def forked(runtime: torchshare.Runtime) -> None:
    """Forks a child, which is refused the runtime, may use torch, and ends."""
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            for call in (runtime.start, lambda: runtime.wait(1), lambda: runtime.submit(print, name="child's")):
                with pytest.raises(RuntimeError):
                    call()
                refused += 1
            runtime.close()
            assert torch.ones(2).add(1).sum() == 4
        except BaseException:
            traceback.print_exc()
            refused = -1
        finally:
            os._exit(refused)
    deadline = time.monotonic() + SOON_S
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    assert os.waitstatus_to_exitcode(ended[1]) == 3


@functools.cache
def alone(seed: int) -> list[list[Tensor]]:
    """The weights of a job alone after each number of steps."""
    function = Steered()
    found: list[list[Tensor]] = []
    for _ in range(MOST_STEPS):
        function.commands.put(lambda: found.append(function.weights()))
        function.commands.put(function.step)
    function.commands.put(None)
    found.append(run_one(function, seed=seed).value)
    return found


@dataclass(frozen=True)
class End:
    state: str
    error: BaseException | None = None
    has_weights: bool = False


@dataclass(eq=False)
class Expected:
    """What the model knows of a job."""

    name: str
    priority: str
    start: str
    seed: int
    function: Steered
    job: Job = field(init=False)
    state: str = "pending"
    began: bool = False
    is_suspended: bool = False  # or will be when it runs
    spills: bool = False
    has_place: bool = False
    steps: int = 0
    sent: list[tuple[str, BaseException | None]] = field(default_factory=list)  # commands that it has not come to
    ends: tuple[End, ...] = ()
    """Either of them."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    def end(self, *ends: End) -> None:
        """Of several, the job itself shows later which it is; `state` is set then."""
        if not self.has_ended:
            self.state, self.ends = ends[0].state, ends

    def cancelled(self) -> End:
        """How it ends if it is cancelled now."""
        return End("finished" if self.began and self.function.at_cancel == "returns" else "cancelled")

    def suspend(self, spill: bool) -> None:
        self.spills = self.spills or spill
        self.is_suspended = self.is_suspended or not spill

    def resume(self) -> None:
        self.spills = self.is_suspended = False
        if self.state == "suspended":
            self.state, self.has_place = "running", True

    def run(self) -> None:
        """Does what it was told, until it has to wait."""
        while self.state == "running":
            if self.is_suspended:
                self.state = "suspended"
                return
            self.began = True
            if not self.sent:
                return
            what, error = self.sent[0]
            if self.spills and what in ("step", "loss"):
                self.is_suspended, self.has_place = True, False
                continue
            self.sent.pop(0)
            if what == "step":
                self.steps += 1
            else:
                self.end(End("finished", has_weights=True) if what == "finish" else End("failed", error))

    def found(self) -> tuple[str, str, int, bool]:
        return self.job.name, self.job.state, self.job.result.steps, self.function.began

    def check(self) -> None:
        """Of the result, what the state does not show."""
        result = self.job.result
        end = next((end for end in self.ends if self.is_like(end)), None)
        assert (end is not None) == self.has_ended, f"{self.name}: {result} with {result.value}, not {self.ends}"

    def check_history(self, states: list[str]) -> None:
        assert states[0] == "pending" and states[-1] == self.state
        assert all(after in MAY_FOLLOW[before] for before, after in itertools.pairwise(states)), states

    def is_like(self, end: End) -> bool:
        result = self.job.result
        if result.state != end.state:
            return False
        if end.state == "finished" and not end.has_weights:
            return result.value is None
        if end.has_weights:
            return result.value is not None and all(map(torch.equal, result.value, alone(self.seed)[self.steps]))
        return end.state != "failed" or result.exception is end.error


class Model:
    def __init__(self, max_concurrent: int | None) -> None:
        self.max_concurrent = max_concurrent
        self.started = False
        self.closed = False
        self.jobs: list[Expected] = []

    def awaited(self, job: Expected) -> Expected | None:
        """The job whose end or step `job` waits for."""
        if job.start.startswith("after:"):
            return next(each for each in self.jobs if f"after:{each.name}" == job.start)
        others = [each for each in self.jobs if each is not job]
        if job.start == "now" or not others:
            return None
        best = min(others, key=lambda each: PRIORITIES.index(each.priority))
        return best if PRIORITIES.index(best.priority) <= PRIORITIES.index(job.priority) else None

    def can_start(self) -> bool:
        """Whether every start condition may come to hold."""
        for job in self.jobs:
            if job.start.startswith("step:") and self.awaited(job) is None:
                return False
            seen, waits = [job], self.awaited(job)
            while waits is not None:
                if waits in seen:
                    return False
                seen.append(waits)
                waits = self.awaited(waits)
        return True

    def may_run(self, job: Expected) -> bool:
        awaited = self.awaited(job)
        if awaited is None or awaited.has_ended:
            return True
        return job.start.startswith("step:") and awaited.steps >= int(job.start[5:])

    def settle(self) -> None:
        """Follows every job until nothing changes without a further call."""
        before: object = None
        while before != (before := [(job.state, job.steps) for job in self.jobs]):
            for job in self.jobs:
                job.run()
            if self.started and not self.closed:
                self.start_jobs()

    def start_jobs(self) -> None:
        for job in sorted(self.jobs, key=lambda each: PRIORITIES.index(each.priority)):
            if job.state not in ("pending", "delayed"):
                continue
            taken = sum(each.has_place and not each.has_ended for each in self.jobs)
            if self.may_run(job) and (self.max_concurrent is None or taken < self.max_concurrent):
                job.state, job.has_place = "running", True
                return  # it may change what others wait for
            job.state = "delayed"
