"""The steps of a job that resumes count from the beginning of its training; rates are those of this run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import torchshare_command
from prometheus_client.parser import text_string_to_metric_families
from torch import nn
from torch.utils.data import DataLoader

import torchshare
from torchshare import Job, JobFailed

ROWS, EVERY, SAVED, ALL = 4, 3, 9, 20


def training(fails_at: int = 0):
    """Fails once it has done so many steps. A checkpoint is written after every third."""

    def train(job: Job) -> None:
        weights = nn.Linear(4, 2)
        job.track(weights=weights)
        for number, batch in enumerate(job.batches([torch.ones(ROWS, 4)] * ALL), 1):
            if number == fails_at:
                raise RuntimeError("on purpose")
            batch.backward(lambda x: weights(x).sum())

    return train


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    with pytest.raises(JobFailed), torchshare.Runtime(device="cpu", checkpoint=tmp_path, every=EVERY) as runtime:
        runtime.submit(training(fails_at=SAVED + 2), name="a")
        runtime.wait(300)
    return tmp_path


def resumed(folder: Path) -> torchshare.Runtime:
    return torchshare.Runtime(device="cpu", checkpoint=folder, every=EVERY, resume=True)


def test_results_metrics_and_timeline_count_from_the_beginning_of_the_training(interrupted: Path) -> None:
    with resumed(interrupted) as runtime:
        runtime.submit(training(), name="a")
        result = runtime.wait(300)["a"]
    assert (result.steps, result.earlier_steps) == (ALL, SAVED)
    assert result.steps_per_s == pytest.approx((ALL - SAVED) / result.ran_s)
    assert str(runtime.results).splitlines()[1].split()[3] == str(ALL)
    assert str(runtime.results).splitlines()[1].split()[-1] == f"{(ALL - SAVED) / result.ran_s:.1f}"
    steps = [number for kind, _, _, _, number, _ in runtime.events() if kind == "step"]
    assert steps == list(range(SAVED, ALL))
    families = {family.name: family for family in text_string_to_metric_families(runtime.metrics())}
    assert families["torchshare_job_steps"].samples[0].value == ALL
    assert families["torchshare_job_run_steps"].samples[0].value == ALL - SAVED


def test_a_job_that_fails_after_a_resume_says_how_far_its_training_was(interrupted: Path) -> None:
    with resumed(interrupted) as runtime:
        runtime.submit(training(fails_at=3), name="a")
        with pytest.raises(JobFailed, match=f"'a' failed after {SAVED + 2} steps"):
            runtime.wait(300)


@pytest.mark.parametrize("awaited", [5, SAVED, SAVED + 4])
def test_a_start_at_a_step_counts_the_steps_before_the_resume(
    interrupted: Path, awaited: int, caplog: pytest.LogCaptureFixture
) -> None:
    with resumed(interrupted) as runtime:
        runtime.submit(training(), name="a", priority="primary")
        runtime.submit(lambda job: None, name="b", start=f"step:{awaited}")
        runtime.wait(300)
        (reason,) = [detail for kind, job, *_, detail in runtime.events() if (kind, job) == ("decision", "b")]
    done = re.fullmatch(rf"start: step:{awaited}: job 'a' has done (\d+) steps", reason)
    assert done is not None and int(done[1]) >= max(SAVED, awaited)
    assert "had no effect" not in caplog.text


@pytest.mark.parametrize("loop", ["epochs", "passes"])
def test_passes_of_earlier_runs_are_not_expected_again(tmp_path: Path, loop: str) -> None:
    left: list[int | None] = []

    def train(job: Job, fails: bool) -> None:
        weights = nn.Linear(4, 2)
        loader = DataLoader(torch.ones(5 * ROWS, 4), ROWS)
        job.track(weights=weights, loader=loader)
        for epoch in job.epochs(4) if loop == "epochs" else range(4):
            for batch in job.batches(loader):
                if fails and epoch == 2:
                    raise RuntimeError("on purpose")
                batch.backward(lambda x: weights(x).sum())
                left.append(job._context.epochs_left)

    with pytest.raises(JobFailed), torchshare.Runtime(device="cpu", checkpoint=tmp_path, every=4) as runtime:
        runtime.submit(lambda job: train(job, fails=True), name="a", epochs=4)
        runtime.wait(300)
    assert left == [3] * 5 + [2] * 5
    left.clear()
    with resumed(tmp_path) as runtime:
        runtime.submit(lambda job: train(job, fails=False), name="a", epochs=4)
        runtime.wait(300)
    assert left == [2] * 2 + [1] * 5 + [0] * 5


def test_a_resumed_script_counts_in_the_table_and_in_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch, torchshare\n"
        "w = torch.nn.Linear(4, 2)\n"
        "torchshare.track(w=w)\n"
        f"for number, batch in enumerate(torchshare.batches([torch.ones({ROWS}, 4)] * {ALL}), 1):\n"
        f"    if number == {SAVED + 2} and not os.path.exists('failed'):\n"
        "        open('failed', 'w').close()\n"
        "        raise RuntimeError('on purpose')\n"
        "    w(batch).sum().backward()\n"
    )
    words = ("run", "--device", "cpu", "--checkpoint", "ckpt", "--every", str(EVERY), "--json", "train.py")
    assert torchshare_command(*words, folder=tmp_path).returncode == 1
    done = torchshare_command(*words[:-1], "--resume=yes", words[-1], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["steps"], job["earlier_steps"]) == (ALL, SAVED)
