"""Jobs of several ranks on a Ray cluster on this machine, with hosts on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster_jobs import equal, training
from conftest import run_one, wait_until
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchshare import Job, cluster

pytest.importorskip("ray", reason="needs Ray: pip install 'ray[default]>=2.40'")
from ray_cluster import ALL_DONE_S, Local, is_running, opened, submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).parents[2] / "examples" / "scripts" / "ddp" / "train.py"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    with opened(tmp_path_factory.mktemp("cluster"), every=10) as found:
        yield found


def data_parallel(steps: int, seconds: float) -> Callable[[Job], Any]:
    """A training whose rows differ between the ranks. Its first step is the slowest."""

    def train(job: Job) -> Any:
        import time

        dist.init_process_group("gloo")
        rank = int(os.environ["RANK"])
        assert (rank, int(os.environ["WORLD_SIZE"])) == (dist.get_rank(), dist.get_world_size())
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(6, 3))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        job.track(model=model, optimizer=optimizer)
        torch.manual_seed(rank)
        for batch in job.batches([(torch.randn(8, 6),) for _ in range(steps)]):
            batch.backward(lambda x: model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(seconds)
        return model.module.state_dict()

    return train


def test_a_script_ends_as_under_torchrun_beside_another_gang_and_a_job_of_one_device(
    local: Local, tmp_path: Path
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [str(SCRIPT), "--epochs", "4", "--checkpoint", str(tmp_path / "alone.pt")]
    for _ in range(3):  # on a busy machine, plain torch may abort as it ends: a thread of its own is not joined
        alone = subprocess.Popen([*torchrun, *words], env={**os.environ, "OMP_NUM_THREADS": "1"})
        if alone.wait(120) == 0:
            break
    assert alone.returncode == 0
    gangs = [
        submit(f"{SCRIPT} --epochs 4 --checkpoint {tmp_path / name}", name, gpus=2) for name in ("gang.pt", "other.pt")
    ]
    single = submit(training(10), "single")
    for gang in gangs:
        gang.result(ALL_DONE_S)
    assert equal(single.result(ALL_DONE_S), run_one(training(10)).value)
    weights = torch.load(tmp_path / "alone.pt")
    assert equal(torch.load(tmp_path / "gang.pt"), weights)
    assert equal(torch.load(tmp_path / "other.pt"), weights)
    assert [gang.status()["attempt"] for gang in gangs] == [1, 1]


def test_a_gang_whose_host_is_killed_goes_on_as_a_whole(local: Local) -> None:
    gang = submit(data_parallel(150, 0.02), "killed", gpus=2)
    single = submit(training(60, 0.02), "beside")
    wait_until(is_running(gang, 40))
    wait_until(is_running(single, 10))
    assert len(gang.status()["device"].split()) == 2
    other = next(host for host in cluster.hosts() if "beside" not in host["jobs"])
    os.kill(local.pid(other["device"]), signal.SIGKILL)
    expected = submit(data_parallel(150, 0.0), "expected", gpus=2).result(ALL_DONE_S)
    assert equal(gang.result(ALL_DONE_S), expected)
    assert gang.status()["attempt"] == 2
    assert "resumes at step" in "".join(gang.logs())
    (log,) = Path(local.settings.storage, "jobs").glob("*/killed.rank1.log")
    assert "resumes at step" in log.read_text()
    assert equal(single.result(ALL_DONE_S), run_one(training(60)).value)
    assert single.status()["attempt"] == 1


def test_a_rank_that_fails_ends_the_gang_with_its_reason(local: Local) -> None:
    def fails(job: Job) -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise ValueError("no data")
        dist.all_reduce(torch.ones(1))

    gang = submit(fails, "fails", gpus=2)
    with pytest.raises(cluster.JobError, match="job 'fails' failed: rank 1: ValueError: no data"):
        gang.result(ALL_DONE_S)


def test_a_gang_is_cancelled(local: Local) -> None:
    gang = submit(data_parallel(100_000, 0.01), "endless", gpus=2)
    wait_until(is_running(gang, 5))
    gang.cancel()
    wait_until(lambda: gang.state == "cancelled", 60)
