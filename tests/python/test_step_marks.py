"""Loops without batches and optimizers that mark their steps: solvers, simulations, evaluations."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from conftest import Gatekeeper, Ran, run_one
from test_plain_loop import parts
from torch.nn.functional import cross_entropy

import torchshare
from torchshare import Job

SOLVER = """
import torch, torchshare
matrix = torch.eye(64, dtype=torch.float64) * 3 + torch.ones(64, 64, dtype=torch.float64)
x, residual = torch.zeros(64, dtype=torch.float64), torch.ones(64, dtype=torch.float64)
direction = residual.clone()
for _ in range(12):
    product = matrix @ direction
    rate = residual @ residual / (direction @ product + 1e-30)
    x += rate * direction
    new = residual - rate * product
    direction = new + (new @ new) / (residual @ residual + 1e-30) * direction
    residual = new
    torchshare.step()
print(x.sum().item().hex())
"""


def solve(job: Job, steps: int = 10) -> float:
    x = torch.ones(32, 32)
    for _ in range(steps):
        x = (x @ x).tanh()
        job.step()
    return x.sum().item()


def test_a_solver_has_the_steps_that_it_marks() -> None:
    result = run_one(solve)
    assert (result.steps, result.sub_batches) == (10, 10)


def test_a_script_marks_its_steps_and_plain_python_does_not_mind(tmp_path: Path) -> None:
    (tmp_path / "solver.py").write_text(SOLVER)
    ran = Ran(tmp_path, "a=solver.py", "b=solver.py")
    assert [job["steps"] for job in ran.jobs.values()] == [12, 12]
    printed: list[str] = []
    exec(SOLVER, {"print": printed.append})
    assert ran.of("a") == ran.of("b") == printed


@pytest.mark.parametrize("marks_first", [False, True])
def test_marks_count_where_optimizers_step_as_well(marks_first: bool) -> None:
    """A loop with two steps of its optimizer in each of its own."""

    def train(job: Job) -> None:
        model, optimizer, loader = parts()
        for x, y in loader:
            if marks_first:
                job.step()
            for _ in range(2):
                cross_entropy(model(x), y).backward()
                optimizer.step()
            if not marks_first:
                job.step()

    batches = len(parts()[2])
    assert run_one(train).steps == batches + (not marks_first)  # before the first mark, the optimizer's count


def test_a_batch_that_is_marked_is_one_step() -> None:
    def mixed(job: Job) -> None:
        model, optimizer, loader = parts()
        for batch in job.batches(loader):
            batch.backward(lambda x, y: cross_entropy(model(x), y))
            optimizer.step()
        for batch in job.batches(loader):
            with torch.no_grad():
                model(batch.data[0])
            job.step()
            torchshare.step()

    assert run_one(mixed).steps == 2 * len(parts()[2])


def test_marks_behind_batches_count_all_and_marks_in_batches_leave_optimizers_their_steps() -> None:
    def phases(job: Job) -> None:
        model, optimizer, loader = parts()
        for batch in job.batches(loader):
            batch.backward(lambda x, y: cross_entropy(model(x), y))
            optimizer.step()
        solve(job, 5)

    def evaluates(job: Job) -> None:
        model, optimizer, loader = parts()
        for batch in job.batches(loader):
            model(batch.data[0])
            job.step()
        for x, y in loader:
            cross_entropy(model(x), y).backward()
            optimizer.step()

    batches = len(parts()[2])
    assert run_one(phases).steps == batches + 5
    assert run_one(evaluates).steps == 2 * batches


def test_another_job_starts_at_a_marked_step_and_the_solver_is_suspended_there() -> None:
    keeper, began = Gatekeeper(), []

    def first(job: Job) -> int:
        x = torch.ones(4)
        for number in range(6):
            x.add_(1)
            job.step()
            if number == 3:
                keeper.pause()
        return job.result.steps

    with torchshare.Runtime(device="cpu") as runtime:
        solver = runtime.submit(first, name="first", priority="primary")
        runtime.submit(lambda _job: began.append(solver.result.steps), name="second", start="step:4")
        runtime.start()
        assert keeper.reached.wait(60)
        solver.suspend()
        keeper.release.set()
        while solver.state != "suspended":
            threading.Event().wait(0.01)
        solver.resume()
        results = runtime.wait(60)
    assert results["first"].value == 6
    assert began and began[0] >= 4


def test_a_solver_is_profiled_and_planned_by_its_marks() -> None:
    profile = torchshare.profile(lambda job: solve(job, 10_000_000), steps=100, window=0.2, rounds=1)
    (alone,) = profile.alone
    assert alone.step_s.median > 0
    assert profile.steps == 100


def test_a_mark_from_another_thread_is_refused() -> None:
    def elsewhere(job: Job) -> str:
        errors: list[BaseException] = []

        def mark() -> None:
            try:
                job.step()
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=mark, name="helper")
        thread.start()
        thread.join()
        return str(errors[0])

    assert run_one(elsewhere).value == "job 'alone': step must be called in its own thread, got thread 'helper'"
    torchshare.step()  # of no job
