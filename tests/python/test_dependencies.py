"""Jobs that wait for others (the option `after`): programs as users write them, and random graphs beside a model."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SOON_S, completed, decisions, script, wait_until
from torch import nn

import torchshare
from torchshare import Job, Runtime
from torchshare.cli import supervisor
from torchshare.runtime import attempts

GRAPHS = int(os.environ.get("TORCHSHARE_GRAPHS", "150"))  # random ones in the slow test


def value(job: Job) -> str:
    return f"of {job.name}"


def fails(job: Job) -> None:
    raise ValueError("no such file")


def pretrain(job: Job) -> nn.Module:
    model = nn.Linear(4, 4)
    train(job, model)
    return model


def finetune(job: Job) -> nn.Module:
    model = nn.Linear(4, 4)
    model.load_state_dict(job.after["pretrain"].value.state_dict())
    train(job, model)
    return model


def evaluate(job: Job) -> dict[str, float]:
    return {name: result.value.weight.sum().item() for name, result in job.after.items()}


def train(job: Job, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in job.batches([torch.randn(8, 4) for _ in range(4)], sub_batch=4):
        batch.backward(lambda x: model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def test_a_workflow_computes_what_its_stages_compute_one_after_the_other() -> None:
    tuned = ["a", "b", "c"]

    def run(concurrently: bool) -> Any:
        with Runtime(max_concurrent=None if concurrently else 1) as runtime:
            runtime.submit(evaluate, after=[f"ok:{name}" for name in tuned])
            for seed, name in enumerate(tuned):
                runtime.submit(finetune, name=name, seed=seed, after="ok:pretrain", threads=1)
            runtime.submit(pretrain, seed=9, threads=1)
            return runtime.wait(300)["evaluate"].value

    together = run(concurrently=True)
    assert list(together) == tuned
    assert together == run(concurrently=False)


def test_a_failed_predecessor_cancels_its_successors_by_name_and_lets_others_start() -> None:
    with Runtime() as runtime:
        runtime.submit(fails, name="data")
        runtime.submit(value, name="train", after="ok:data")
        runtime.submit(value, name="evaluate", after=["any:data", "ok:train"])
        runtime.submit(value, name="clean up", after=["data", "any:evaluate"])
        results = runtime.wait(300, check=False)
        assert [result.state for result in results.values()] == ["failed", "cancelled", "cancelled", "finished"]
        because = [str(results[name].exception) for name in ("train", "evaluate")]
        assert because == [
            "job 'train' was not started: its predecessor 'data' failed",
            "job 'evaluate' was not started: its predecessor 'train' was cancelled",
        ]
        assert str(results).splitlines()[-2:] == because
        assert decisions(runtime, "train") == because[:1]
        assert decisions(runtime, "clean up") == [
            "may start: 'data' failed, 'evaluate' was cancelled",
            "start: now",
        ]


def test_jobs_are_submitted_while_others_run_and_after_jobs_that_have_ended() -> None:
    def sweep(job: Job) -> None:
        names = [f"trial {index}" for index in range(3)]
        for name in names:
            runtime.submit(value, name=name, after="sweep")
        runtime.submit(lambda job: [each.value for each in job.after.values()], name="best", after=names)

    with Runtime() as runtime:
        runtime.submit(sweep)
        runtime.wait(300)
        assert runtime.results["best"].value == ["of trial 0", "of trial 1", "of trial 2"]
        runtime.submit(value, name="late", after=["ok:best", "trial 1"])
        runtime.wait(300)
        assert list(runtime.jobs[-1].after) == ["best", "trial 1"]
        late = runtime.submit(value, name="late 2", after="ok:sweep")
        runtime.submit(fails, name="sweep")  # has its name from now on
        runtime.wait(300, check=False)
        assert late.result.state == "finished"
        assert late.after["sweep"].state == "finished"
        runtime.submit(value, name="too late", after="ok:sweep")
        assert runtime.wait(300, check=False)["too late"].state == "cancelled"


class Big:
    """A value of a job."""


def test_a_chain_of_names_that_are_used_again_keeps_no_old_values() -> None:
    alive: weakref.WeakSet[Big] = weakref.WeakSet()

    def stage(job: Job) -> Big:
        value = Big()
        alive.add(value)
        return value

    with Runtime() as runtime:
        for index in range(30):
            runtime.submit(stage, name="ab"[index % 2], after=f"ok:{'ba'[index % 2]}" if index else [])
            runtime.wait(300)
        gc.collect()
        assert len(alive) <= 3


def test_a_job_that_submits_its_successor_at_once_is_known_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, runs = attempts.Attempts.begin, threading.Event()

    def begin_slowly(self: attempts.Attempts, *arguments: Any) -> None:
        begin(self, *arguments)
        assert runs.wait(SOON_S)  # the job runs before its own submit returns
        time.sleep(0.2)

    def first(job: Job) -> str:
        runs.set()
        runtime.submit(lambda job: job.after["first"].value, name="second", after="ok:first", priority="primary")
        return "of first"

    monkeypatch.setattr(attempts.Attempts, "begin", begin_slowly)
    with Runtime() as runtime:
        runtime.start()
        runtime.submit(first, priority="primary")
        wait_until(lambda: len(runtime.jobs) == 2)
        assert runtime.wait(300)["second"].value == "of first"


def test_a_start_that_was_refused_binds_no_name() -> None:
    runtime = Runtime()
    runtime.submit(lambda job: job.after["a"].value, name="x", after=["missing", "ok:a"])
    runtime.submit(value, name="a").cancel()
    with pytest.raises(ValueError, match="job 'x': after names job 'missing'"):
        runtime.start()
    runtime.submit(lambda job: "the second", name="a")
    runtime.submit(value, name="missing")
    assert runtime.wait(300)["x"].value == "the second"
    runtime.close()


def test_steps_are_counted_exactly_after_a_predecessor() -> None:
    def steps(job: Job) -> None:
        for batch in job.batches([torch.ones(1)] * 400):
            list(batch)
            time.sleep(0.0005)

    with Runtime() as runtime:
        runtime.submit(steps, name="steps", priority="primary")
        runtime.submit(lambda job: None, name="first")
        runtime.submit(lambda job: None, name="late", after="first", start="step:200")
        runtime.wait(300)
        (at,) = (detail for detail in decisions(runtime, "late") if detail.startswith("start: "))
    assert int(at.split()[-2]) < 215, at


def test_a_job_that_begins_after_a_planned_one_has_ended_is_not_what_that_one_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "torchshare"), Runtime() as runtime:
        for name in ("a", "b"):
            runtime.submit(pretrain, name=name, start="auto")
        runtime.submit(lambda job: max(job.after), name="best", after=["a", "b"])
        assert runtime.wait(300)["best"].value == "b"
    assert "had no effect: job 'best'" not in caplog.text


def test_seconds_count_from_the_end_of_the_last_predecessor() -> None:
    ended: list[float] = []

    def first(job: Job) -> None:
        time.sleep(0.3)
        ended.append(time.monotonic())

    with Runtime() as runtime:
        runtime.submit(first)
        runtime.submit(lambda job: time.monotonic() - ended[0], name="second", after="first", start=0.2)
        assert runtime.wait(300)["second"].value >= 0.2


@pytest.mark.parametrize("start", ["now", "auto", "step:2", "after:c"])
def test_a_job_that_waits_for_others_takes_no_place(start: str) -> None:
    order: list[str] = []

    def run(job: Job) -> None:
        order.append(job.name)
        train(job, nn.Linear(4, 4))

    with Runtime(max_concurrent=1) as runtime:
        runtime.submit(run, name="a", priority="primary", after="b", start=start if start != "step:2" else "now")
        runtime.submit(run, name="b", after="c", start=start.replace("after:c", "now").replace("step:2", "now"))
        runtime.submit(run, name="c")
        runtime.submit(run, name="d", after=["a"], start=start)
        runtime.wait(300)
    assert order == ["c", "b", "a", "d"]


def test_cancelling_reaches_jobs_that_wait_for_others() -> None:
    begun = threading.Event()

    def forever(job: Job) -> None:
        begun.set()
        while True:
            time.sleep(0.01)

    with Runtime() as runtime:
        first = runtime.submit(forever, name="first")
        successor = runtime.submit(value, name="successor", after="ok:first")
        other = runtime.submit(value, name="other", after="first")
        runtime.submit(value, name="third", after="ok:other")
        runtime.start()
        assert begun.wait(SOON_S)
        other.cancel()
        wait_until(lambda: other.state == "cancelled")
        assert other.result.exception is None  # its user did it
        first.cancel()
        results = runtime.wait(300, check=False)
        assert {result.state for result in results.values()} == {"cancelled"}
        assert str(successor.result.exception).endswith("predecessor 'first' was cancelled")

    runtime = Runtime()
    runtime.submit(forever, name="first")
    for index in range(5):
        runtime.submit(value, name=f"waits {index}", after="first" if index < 3 else f"ok:waits {index - 1}")
    runtime.start()
    runtime.close()
    assert {result.state for result in runtime.results.values()} == {"cancelled"}


def test_a_job_that_was_cancelled_before_the_start_counts() -> None:
    with Runtime() as runtime:
        first = runtime.submit(value, name="first")
        runtime.submit(value, name="ok", after="ok:first")
        runtime.submit(value, name="any", after="first")
        first.cancel()
        results = runtime.wait(300, check=False)
        assert [result.state for result in results.values()] == ["cancelled", "cancelled", "finished"]


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ("gone", "job 'last': after names job 'gone', which this runtime does not have"),
        (["first", "ok:last"], "job 'last': after names the job itself"),
        ("ok:", "job 'last': after must be '<job>', 'any:<job>' or 'ok:<job>', got 'ok:'"),
        ("", "job 'last': after must be '<job>', 'any:<job>' or 'ok:<job>', got ''"),
        (3, "job 'last': after must be a job's name or several, got 3"),
        (["first", 3], "job 'last': after must be a job's name or several, got ['first', 3]"),
    ],
)
@pytest.mark.parametrize("started", [False, True])
def test_bad_predecessors_are_refused_before_any_work(after: Any, says: str, started: bool) -> None:
    runtime = Runtime()
    try:
        runtime.submit(value, name="first")
        if started:
            runtime.wait(300)
        with pytest.raises(ValueError) as refused:  # the text is compared
            runtime.submit(value, name="last", after=after)
            runtime.start()
        assert str(refused.value) == says
        assert started or runtime.jobs[0].state == "pending"
    finally:
        runtime.close()


def test_a_cycle_is_refused_with_its_path() -> None:
    runtime = Runtime()
    runtime.submit(value, name="a", after=["d", "ok:b"])
    runtime.submit(value, name="b", after=["d", "any:c"])
    runtime.submit(value, name="c", start="after:a")
    runtime.submit(value, name="d")
    with pytest.raises(ValueError, match=r"^jobs wait for each other to start: 'a' -> 'b' -> 'c' -> 'a'$"):
        runtime.start()
    assert {job.state for job in runtime.jobs} == {"pending"}
    runtime.close()


def run_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return completed("-m", "torchshare", "run", "--quiet", "--json", *words, folder=folder)


SCRIPT = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(''); sys.exit(len(sys.argv) > 2)\n"
STATES = {"data": "finished", "train": "failed", "test": "cancelled", "report": "finished"}


def assert_states(ran: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert ran.returncode == 1, ran.stderr
    jobs = {each["name"]: each for each in json.loads(ran.stdout)["jobs"]}
    assert {name: job["state"] for name, job in jobs.items()} == STATES
    assert "its predecessor 'train' failed" in jobs["test"]["error"]
    assert {path.name for path in folder.glob("*.out")} == {"data.out", "train.out", "report.out"}


def test_flags_of_the_command_line(tmp_path: Path) -> None:
    script(tmp_path, "job.py", SCRIPT)
    targets = ["data=job.py data.out", "train=job.py train.out 1", "test=job.py test.out", "report=job.py report.out"]
    flags = ["--after", "train=ok:data", "--after", "test=ok:train,data", "--after", "report=test"]
    assert_states(run_command(tmp_path, *flags, *targets), tmp_path)
    refused = run_command(tmp_path, "--after", "train=gone", *targets)
    assert refused.returncode == 2
    assert "job 'train': after names job 'gone', which this runtime does not have" in refused.stderr


def test_keys_of_a_job_file(tmp_path: Path) -> None:
    script(tmp_path, "job.py", SCRIPT)
    script(
        tmp_path,
        "jobs.toml",
        """
        [jobs.data]
        run = "job.py data.out"
        [jobs.train]
        run = "job.py train.out 1"
        after = "ok:data"
        [jobs.test]
        run = "job.py test.out"
        after = ["ok:train", "data"]
        [jobs.report]
        run = "job.py report.out"
        after = ["test"]
        """,
    )
    assert_states(run_command(tmp_path, "jobs.toml"), tmp_path)


class Graph:
    """A random graph of jobs that finish, at once or in a later attempt, fail or cancel themselves, and a model of how
    each ends."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.count = self.draw.randint(2, 50)
        self.after: list[list[str]] = []
        self.ends: list[str] = []
        self.attempts: list[int] = []
        self.starts: list[bool] = []
        self.expected: list[str] = []
        for index in range(self.count):
            others = self.draw.sample(range(index), min(index, self.draw.choice([0, 1, 1, 2, 5])))
            after = [self.draw.choice(["", "any:", "ok:", "ok:"]) + f"job {other}" for other in others]
            broken = any(
                text.startswith("ok:") and self.expected[other] != "finished"
                for text, other in zip(after, others, strict=True)
            )
            end = self.draw.choices(["finished", "failed", "cancelled"], [6, 1, 1])[0]
            self.attempts.append(self.draw.choice([1, 1, 1, 2, 3]))
            self.after.append(after)
            self.ends.append(end)
            self.starts.append(not broken)
            self.expected.append("cancelled" if broken else end)
        self.began = [0] * self.count
        self.has_ended = [False] * self.count
        self.early: list[str] = []
        """Jobs that began before one of their predecessors had ended."""

    def function(self, index: int) -> Callable[[Job], str]:
        def run(job: Job) -> str:
            self.began[index] += 1
            for text in self.after[index]:
                other = int(text.rpartition(" ")[2])
                if self.starts[other] and not self.has_ended[other]:
                    self.early.append(f"job {index} before job {other}")
            assert [result.state for result in job.after.values()] == [
                self.expected[int(name.rpartition(" ")[2])] for name in job.after
            ]
            if self.began[index] < self.attempts[index]:
                raise OSError("it fails, and is tried again")
            self.has_ended[index] = True
            if self.ends[index] == "failed":
                raise ValueError("it fails")
            if self.ends[index] == "cancelled":
                job.cancel()
                job.yield_point()
            return f"of {index}"

        return run

    def submit(self, runtime: Runtime, index: int) -> None:
        options: dict[str, Any] = {
            "priority": self.draw.choice(["primary", "secondary", "level-3"]),
            "start": self.draw.choice(["now", "now", "now", 0.001, "auto"]),
            "retries": self.attempts[index] if self.ends[index] != "failed" else self.attempts[index] - 1,
        }
        runtime.submit(self.function(index), name=f"job {index}", after=self.after[index], **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 20 + GRAPHS), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_every_job_of_a_random_graph_ends_once_after_its_predecessors(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_LONGEST_WAIT_S", 0.001)
    for seed in seeds:
        graph = Graph(seed)
        first = graph.draw.randint(1, graph.count)  # submitted before the start, in any order
        with Runtime(max_concurrent=graph.draw.choice([None, 1, 2, 5])) as runtime:
            for index in graph.draw.sample(range(first), first):
                graph.submit(runtime, index)
            runtime.start()
            for index in range(first, graph.count):
                graph.submit(runtime, index)
            results = runtime.wait(300, check=False)
        states = [results[f"job {index}"].state for index in range(graph.count)]
        assert (seed, states) == (seed, graph.expected)
        made = [count if starts else 0 for count, starts in zip(graph.attempts, graph.starts, strict=True)]
        assert (seed, graph.began) == (seed, made)
        assert (seed, graph.early) == (seed, [])


def test_graphs_that_are_cancelled_at_any_moment_end() -> None:
    for seed in range(10):
        graph = Graph(seed)
        with Runtime() as runtime:
            for index in range(graph.count):
                graph.submit(runtime, index)
            runtime.start()
            time.sleep(graph.draw.random() * 0.02)
            runtime.cancel()
            results = runtime.wait(300, check=False)
        assert all(result.state in torchshare.context.results.ENDED for result in results.values()), seed
        assert all(made <= most for made, most in zip(graph.began, graph.attempts, strict=True))
        assert graph.early == []


def test_the_supervisor_drops_the_jobs_that_cannot_start_without_a_dropped_one() -> None:
    jobs: list[Any] = [
        {"name": "late", "after": ["ok:next"]},
        {"name": "next", "after": ["ok:crashes", "other"]},
        {"name": "crashes"},
        {"name": "other", "after": ["any:crashes", "ok:kept"]},
        {"name": "kept", "start": "after:crashes"},
    ]
    dropped = supervisor.drop(jobs, supervisor.Attempt(0, dropped={"crashes": "3 times in a row, SIGSEGV"}))
    assert {each["name"] for each in dropped} == {"crashes", "next", "late"}
    assert jobs[3:] == [{"name": "other", "after": ["ok:kept"]}, {"name": "kept", "start": "now"}]
