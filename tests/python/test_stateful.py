"""A runtime beside a model of it, under random sequences of calls: states, results and weights agree, nothing hangs,
and a closed runtime leaves nothing behind."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from conftest import together, wait_until
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from runtime_model import ERRORS, PRIORITIES, SEEDS, SOON_S, End, Expected, Model, Steered, alone, forked

import torchshare
from torchshare import JobFailed
from torchshare.context.results import ENDED
from torchshare.runtime import closing

INDEX = st.integers(0, 5)  # of a job, modulo their number
MOST_JOBS = 6
draws_other_masks = pytest.mark.filterwarnings("ignore:job .* Dropout draws its masks")


def resources() -> tuple[int, int]:
    """The process's threads and descriptors."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


class RuntimeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.before = resources()
        self.functions: list[weakref.ref[Steered]] = []

    @initialize(
        policy=st.sampled_from(["priority", "strict", "best_fit", "resource", "edf"]),
        device_priority=st.sampled_from(["none", "auto"]),
        max_concurrent=st.sampled_from([None, None, 1, 2]),
        jobs=st.integers(0, 3),
        starts=st.booleans(),
    )
    def open(self, policy: str, device_priority: str, max_concurrent: int | None, jobs: int, starts: bool) -> None:
        options: dict[str, Any] = {} if max_concurrent is None else {"max_concurrent": max_concurrent}
        self.runtime = torchshare.Runtime("cpu", policy=policy, device_priority=device_priority, **options)
        self.model = Model(max_concurrent)
        for index in range(jobs):
            self.submit(PRIORITIES[index], "now", 0, "unwinds", 0, starts)

    @property
    def jobs(self) -> list[Expected]:
        return self.model.jobs

    def job(self, index: int) -> Expected:
        return self.jobs[index % len(self.jobs)]

    def call(self, caller: Expected | None, action: Callable[[], object]) -> None:
        """Makes a call in the thread of a job if that waits for commands, else in this one."""
        if caller is None or caller.state != "running":
            action()
            return
        done = threading.Event()
        caller.function.commands.put(lambda: (action(), done.set()))
        assert done.wait(SOON_S), f"a call by job '{caller.name}' hangs"

    # Rules

    @rule(
        priority=st.sampled_from(PRIORITIES),
        start=st.sampled_from(["now", "now", "after", "step:1", "step:3"]),
        after=INDEX,
        at_cancel=st.sampled_from(["unwinds", "unwinds", "returns", "raises"]),
        caller=INDEX,
        starts=st.booleans(),
    )
    @precondition(lambda self: len(self.jobs) < MOST_JOBS)
    def submit(self, priority: str, start: str, after: int, at_cancel: str, caller: int, starts: bool) -> None:
        name = f"job{len(self.jobs)}"
        if start == "after":
            start = f"after:{self.job(after).name}" if self.jobs else "now"
        caller_job = self.job(caller) if self.jobs else None
        new = Expected(name, priority, start, len(self.jobs) % SEEDS, Steered(at_cancel))

        def add() -> None:
            new.job = self.runtime.submit(
                new.function, name=name, priority=priority, start=start, seed=new.seed, threads=1
            )

        self.jobs.append(new)
        refused = RuntimeError if self.model.closed else None if self.model.can_start() else ValueError
        if refused is not None:
            self.jobs.pop()
            if self.model.started or self.model.closed:  # else `start` is refused from now on
                with pytest.raises(refused):
                    add()
        elif starts and not self.model.started:
            if self.model.max_concurrent is None:
                together(add, self.runtime.start)
            else:  # which of them is first would decide who gets a place
                add()
                self.runtime.start()
            self.model.started = True
        else:
            self.call(caller_job, add)
        self.functions.append(weakref.ref(new.function))

    @rule()
    @precondition(lambda self: not self.model.started or self.model.closed)
    def start(self) -> None:
        together(self.runtime.start, self.runtime.start)
        self.model.started = True

    @rule(index=INDEX, what=st.sampled_from(["step"] * 4 + ["finish", "body", "loss"]), error=st.sampled_from(ERRORS))
    @precondition(lambda self: self.jobs)
    def send(self, index: int, what: str, error: type[BaseException]) -> None:
        """Tells a job to do a step, to finish, or to fail in its body or its loss function."""
        job = self.job(index)
        if not self.may_send(job):
            return
        function, value = job.function, error("of the test") if what in ("body", "loss") else None
        commands = {"step": function.step, "finish": None, "loss": lambda: function.step(value)}
        function.commands.put(commands.get(what, lambda: function.fail(value)))
        job.sent.append((what, value))

    def may_send(self, job: Expected) -> bool:
        """With places that jobs wait for, what jobs do at the same time decides which of them come first."""
        return job.state == "running" or (self.model.max_concurrent is None and not job.has_ended)

    @rule(index=INDEX, caller=INDEX, what=st.sampled_from(["suspend", "spill", "resume", "resume", "cancel"]))
    @precondition(lambda self: self.jobs)
    def steer(self, index: int, caller: int, what: str) -> None:
        job = self.job(index)
        if what == "cancel":
            self.call(self.job(caller), job.job.cancel)
            job.end(job.cancelled())
        elif what == "resume":
            self.call(self.job(caller), job.job.resume)
            job.resume()
        else:
            self.call(self.job(caller), lambda: job.job.suspend(spill=what == "spill"))
            job.suspend(what == "spill")

    @rule(index=INDEX, actions=st.permutations(["suspend", "resume", "cancel", "finish", "fail"]))
    @precondition(lambda self: self.jobs)
    def race(self, index: int, actions: list[str]) -> None:
        """Two calls at once, either of which may come first; `resume` leaves no doubt whether it is suspended."""
        job = self.job(index)
        if job.state != "running" or job.spills:
            return
        error = KeyError("of a race")
        calls: dict[str, Callable[[], object]] = {
            "suspend": job.job.suspend,
            "resume": job.job.resume,
            "cancel": job.job.cancel,
            "finish": lambda: job.function.commands.put(None),
            "fail": lambda: job.function.commands.put(lambda: job.function.fail(error)),
        }
        ends = {
            "cancel": (job.cancelled(), End("cancelled")),  # the second: it had failed when the cancel came
            "finish": (End("finished", has_weights=True),),
            "fail": (End("failed", error),),
        }
        first, second = actions[:2]
        together(calls[first], calls[second])
        job.job.resume()
        possible = (*ends.get(first, ()), *ends.get(second, ()))
        if possible:
            wait_until(lambda: job.job.state in ENDED, SOON_S)
            job.end(*sorted(possible, key=lambda end: end.state != job.job.state))

    @rule(check=st.booleans())
    def wait(self, check: bool) -> None:
        self.model.started = True
        self.model.settle()
        failed = [job.name for job in self.jobs if job.state == "failed"]
        if any(not job.has_ended for job in self.jobs):
            with pytest.raises(TimeoutError):
                self.runtime.wait(0.01, check=check)
        elif check and failed:
            with pytest.raises(JobFailed) as caught:
                self.runtime.wait(SOON_S)
            assert [name for name in failed if f"job '{name}' failed" in str(caught.value)] == failed
            assert caught.value.__cause__ is caught.value.results[failed[0]].exception
        else:
            assert list(self.runtime.wait(SOON_S, check=False)) == [job.name for job in self.jobs]

    @rule(caller=INDEX)
    def fork(self, caller: int) -> None:
        self.call(self.job(caller) if self.jobs else None, lambda: forked(self.runtime))

    @rule(index=INDEX, how=st.sampled_from(["cancel", "close", "close while a job finishes"]))
    @precondition(lambda self: len(self.jobs) > 3)
    def end(self, index: int, how: str) -> None:
        if how == "cancel":
            self.runtime.cancel()
        job = self.job(index)
        waits = any(each.state in ("pending", "delayed") for each in self.jobs)  # whose place or condition it is
        finishes = how == "close while a job finishes" and job.state == "running" and not (job.spills or waits)
        if how != "cancel":
            together(self.runtime.close, *[lambda: job.function.commands.put(None)] * finishes)
            self.model.closed = True
        if finishes:
            possible = (job.cancelled(), End("finished", has_weights=True))
            job.end(*sorted(possible, key=lambda end: end.state != job.job.state))
        self.cancelled()

    def cancelled(self) -> None:
        for job in self.jobs:
            job.end(job.cancelled())

    # What holds after each

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        self.model.settle()
        expected = [(job.name, job.state, job.steps, job.began) for job in self.jobs]
        deadline = time.monotonic() + SOON_S
        while (found := [job.found() for job in self.jobs]) != expected:
            assert time.monotonic() < deadline, f"expected {expected}, found {found}"
            time.sleep(0.001)
        for job in self.jobs:
            job.check()

    def teardown(self) -> None:
        if not hasattr(self, "runtime"):
            return
        self.runtime.close()
        self.model.closed = True
        self.cancelled()
        self.agrees()
        assert all(job.job._context.handle.has_left for job in self.jobs if job.began), "a thread was left behind"
        events = self.runtime.events()
        for job in self.jobs:
            job.check_history([detail for kind, name, *_, detail in events if (kind, name) == ("state", job.name)])
        assert closing.Closer._all == set()
        job = None
        del self.runtime, self.model
        wait_until(lambda: gc.collect() >= 0 and all(function() is None for function in self.functions), SOON_S)
        wait_until(lambda: all(now <= then for now, then in zip(resources(), self.before, strict=True)), SOON_S)


def run_machine(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "PATIENCE_S", SOON_S)
    for seed in range(SEEDS):
        alone(seed)  # also creates what the process keeps
    gc.collect()
    gc.freeze()  # so that the collection after each example looks at little
    try:
        run_state_machine_as_test(
            RuntimeMachine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=25,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],  # a failure is shown as found: shrinking repeats its timeouts
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        gc.unfreeze()


@draws_other_masks
def test_calls_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    run_machine(20, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@draws_other_masks
def test_many_calls_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    run_machine(100, monkeypatch)
