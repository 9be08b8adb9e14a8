"""Files that earlier versions wrote are read: CHANGELOG.md promises it. former_files.py writes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from former_files import FILES, seen
from former_job import train
from queue_cluster import Cluster

import torchshare
from torchshare import Profile
from torchshare.profiles.ops import OpTrace
from torchshare.profiling.replay import Machine, replay

VERSIONS = sorted(path for path in FILES.iterdir() if path.is_dir() and path.name[0].isdigit())
assert VERSIONS
by_version = pytest.mark.parametrize("files", VERSIONS, ids=lambda path: path.name)


@by_version
def test_a_job_goes_on_from_its_checkpoint(files: Path, tmp_path: Path) -> None:
    shutil.copytree(files / "checkpoints", tmp_path / "checkpoints")
    expected = json.loads((files / "weights.json").read_text())["weights"]
    with torchshare.Runtime("cpu", checkpoint=tmp_path / "checkpoints", resume=True) as runtime:
        job = runtime.submit(train, name="train", threads=1, seed=0)
        runtime.wait(300)
    assert job.result.earlier_steps == 9
    for name, weights in job.result.value.items():
        torch.testing.assert_close(torch.tensor(weights), torch.tensor(expected[name]))


@by_version
def test_a_profile_is_loaded(files: Path) -> None:
    profile = Profile.load(files / "profile.json")
    assert (profile.job, profile.batch, [partner.job for partner in profile.partners]) == ("train", 8, ["other"])
    assert profile.step_s(None) > 0
    assert Profile.model_validate_json((files / "profile.json").read_text()) == profile


@by_version
def test_an_op_trace_is_replayed(files: Path) -> None:
    trace = OpTrace.load(files / "ops.npz")
    first, second = replay([trace, trace], "priority", Machine(cores=2, shortest_gap_s=1e-5, wake_latency_s=5e-5))
    assert first.steps > 0 and second.ratio is not None


@by_version
@pytest.mark.parametrize("kind", ["events", "snapshot"])
def test_a_queue_goes_on_with_a_journal(files: Path, kind: str, tmp_path: Path) -> None:
    shutil.copy(files / f"journal-{kind}", tmp_path / "journal")
    cluster = Cluster(tmp_path / "journal")
    assert seen(cluster) == json.loads((files / f"journal-{kind}.json").read_text())
    cluster.queue.cancel("a0")
    cluster.open()
    assert seen(cluster)[0]["state"] in ("cancelling", "cancelled")
