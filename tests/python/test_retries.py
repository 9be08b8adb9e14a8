"""Jobs that start again when they fail (the options `retries` and `retry_on`)."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SOON_S, completed, script, wait_until
from torch import Tensor, nn

from torchshare import Job, JobFailed, Runtime
from torchshare.runtime import attempts


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_LONGEST_WAIT_S", 0.01)


class Fails:
    """A function that fails its first calls, and keeps what it sees."""

    def __init__(self, times: int, error: BaseException | None = None) -> None:
        self._times = times
        self._error = error or ValueError("the server is away")
        self.draws: list[float] = []

    __name__ = "job"

    def __call__(self, job: Job) -> int:
        self.draws.append(torch.rand(()).item())
        if len(self.draws) <= self._times:
            raise self._error
        return len(self.draws)


def test_a_job_starts_again_until_it_finishes_as_if_it_had_not_run_before() -> None:
    function = Fails(2)
    with Runtime() as runtime:
        job = runtime.submit(function, retries=3, seed=5)
        result = runtime.wait(300)["job"]
    assert (result.state, result.value, result.attempts, result.exception) == ("finished", 3, 3, None)
    assert len(set(function.draws)) == 1  # each attempt begins with the seed
    assert job.state == "finished"
    states = [detail for kind, _, _, _, _, detail in runtime.events() if kind == "state"]
    assert states.count("failed") == 2 and states[-1] == "finished"


@pytest.mark.parametrize(
    ("function", "options", "made"),
    [
        (Fails(9), {"retries": 2}, 3),
        (Fails(9), {}, 1),
        (Fails(9), {"retries": 2, "retry_on": OSError}, 1),
        (Fails(9, ConnectionResetError()), {"retries": 2, "retry_on": (KeyError, OSError)}, 3),
        (Fails(9, SystemExit(3)), {"retries": 1}, 2),
        (Fails(9, KeyboardInterrupt()), {"retries": 1}, 1),
    ],
)
def test_it_fails_with_the_last_error(function: Fails, options: Any, made: int) -> None:
    runtime = Runtime()
    runtime.submit(function, **options)
    with pytest.raises(JobFailed):
        runtime.wait(300)
    result = runtime.results["job"]
    assert (len(function.draws), result.attempts, result.state) == (made, made, "failed")
    assert result.exception is function._error
    runtime.close()


def train(job: Job, fail_at: int | None, seen: list[int]) -> list[Tensor]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = [torch.full((4, 4), float(index)) for index in range(10)]
    job.track(model=model, optimizer=optimizer)
    for batch in job.batches(loader, sub_batch=2):
        batch.backward(lambda x: model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        seen.append(job.result.steps)
        if len(seen) == fail_at:
            raise RuntimeError("the disk is full")
    return list(model.parameters())


@pytest.mark.filterwarnings("ignore:job .* Dropout draws its masks")
def test_it_goes_on_from_its_checkpoint_to_the_weights_of_a_run_without_failure(tmp_path: Path) -> None:
    with Runtime() as runtime:
        runtime.submit(lambda job: train(job, None, []), name="whole", threads=1)
        whole = runtime.wait(300)["whole"].value
    seen: list[int] = []
    with Runtime(checkpoint=tmp_path, every=2) as runtime:
        runtime.submit(lambda job: train(job, 7, seen), name="broken", retries=1, threads=1)
        result = runtime.wait(300)["broken"]
    assert (result.steps, result.attempts) == (10, 2)
    assert result.earlier_steps in (4, 6)  # a checkpoint is written at leisure
    assert result.run_steps == 10 - result.earlier_steps
    assert all(map(torch.equal, whole, result.value))


def test_successors_wait_for_the_last_attempt() -> None:
    order: list[str] = []
    stages = Fails(1), Fails(5)
    with Runtime(max_concurrent=1) as runtime:
        runtime.submit(lambda job: order.append(job.name) or job.after["a"].value, name="c", after=["ok:a", "b"])
        runtime.submit(lambda job: order.append(job.name), name="d", after="ok:b")
        runtime.submit(lambda job: order.append(job.name), name="e", start="after:a")
        runtime.submit(stages[0], name="a", retries=2)
        runtime.submit(stages[1], name="b", retries=1)
        results = runtime.wait(300, check=False)
    assert sorted(order) == ["c", "e"]
    assert results["c"].value == 2
    assert {name: (result.state, result.attempts) for name, result in results.items()} == {
        "a": ("finished", 2),
        "b": ("failed", 2),
        "c": ("finished", 1),
        "d": ("cancelled", 1),
        "e": ("finished", 1),
    }


def test_a_job_that_waits_to_start_again_leaves_its_place_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_LONGEST_WAIT_S", 3600)
    models: list[weakref.ref[nn.Module]] = []

    def fails(job: Job) -> None:
        model = nn.Linear(100, 100)
        models.append(weakref.ref(model))
        raise ValueError("no")

    with Runtime(max_concurrent=1) as runtime:
        job = runtime.submit(fails, retries=1)
        other = runtime.submit(lambda job: "ran", name="other")
        runtime.start()
        wait_until(lambda: other.state == "finished")
        wait_until(lambda: job.state == "delayed")
        gc.collect()
        assert models[0]() is None
        job.cancel()
        results = runtime.wait(SOON_S)
    assert (results["fails"].state, len(models)) == ("cancelled", 1)


def test_cancels_and_closes_at_any_moment_end_it() -> None:
    for end in (Runtime.cancel, Runtime.close, lambda runtime: runtime.jobs[0].cancel()):
        for index in range(15):
            function = Fails(10_000)
            runtime = Runtime()
            runtime.submit(function, retries=10_000)
            runtime.start()
            wait_until(lambda function=function: len(function.draws) > 1)
            time.sleep(0.001 * index)
            end(runtime)
            results = runtime.wait(SOON_S, check=False) if end is not Runtime.close else runtime.results
            assert results["job"].state in ("cancelled", "failed")
            made = len(function.draws)
            runtime.close()
            assert len(function.draws) == made


def test_attempts_have_their_own_threads_and_leave_none_behind() -> None:
    before = threading.active_count()
    with Runtime() as runtime:
        runtime.submit(Fails(30), retries=40)
        assert runtime.wait(300)["job"].attempts == 31
    wait_until(lambda: threading.active_count() <= before)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retries": -1}, "job 'job': retries must be a non-negative integer, got -1"),
        ({"retries": True}, "job 'job': retries must be a non-negative integer, got True"),
        ({"retry_on": "OSError"}, "job 'job': retry_on must be an exception type or a tuple of them, got 'OSError'"),
    ],
)
def test_bad_options_are_refused(options: Any, says: str) -> None:
    with Runtime() as runtime, pytest.raises(ValueError) as refused:  # the text is compared
        runtime.submit(Fails(0), **options)
    assert str(refused.value) == says


def test_ranks_are_started_again_by_their_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, text)
    runtime = Runtime()
    with pytest.raises(ValueError, match=r"^job 'job': retries must be 0 with several ranks"):
        runtime.submit(Fails(0), retries=1)
    runtime.close()


def test_a_script_is_run_again(tmp_path: Path) -> None:
    script(
        tmp_path,
        "flaky.py",
        "import pathlib, sys\nimport helper\nfile = pathlib.Path('made')\n"
        "made = int(file.read_text()) + 1 if file.exists() else 1\nfile.write_text(str(made))\n"
        "assert helper.count() == 1\nsys.exit(made < 3)\n",
    )
    script(tmp_path, "helper.py", "made = 0\ndef count():\n    global made\n    made += 1\n    return made\n")
    words = ["run", "--quiet", "--json", "--retries", "flaky=2", "flaky.py"]
    ran = completed("-m", "torchshare", *words, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    job = json.loads(ran.stdout)["jobs"][0]
    assert (job["state"], job["attempts"], (tmp_path / "made").read_text()) == ("finished", 3, "3")
    assert ran.stderr.count("it starts again in") == 2
