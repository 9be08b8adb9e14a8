"""Who may use a GPU when: the gate's policies and `run_ahead`, on a device whose queues are full."""

from __future__ import annotations

import threading

import pytest
import torch
from gpu_jobs import SLEEP_CYCLES, run_pair

from torchshare import Job

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("policy", "beside"), [("best_fit", False), ("resource", True)])
def test_an_op_that_moves_memory_runs_beside_one_that_computes(policy: str, beside: bool) -> None:
    known, busy = threading.Event(), threading.Event()
    done = torch.cuda.Event()
    steps = 10  # an op is known after 5

    def computes(job: Job) -> None:
        x = torch.ones(64, 64, device="cuda")
        for number, _ in enumerate(job.batches([[x]] * steps)):
            if number == steps - 1:
                assert known.wait(300)
                torch.cuda._sleep(2 * SLEEP_CYCLES)  # not an op of torch's dispatcher: the next one stays at its place
            x @ x
            if number < steps - 1:
                torch.cuda.synchronize()
        done.record()
        busy.set()
        torch.cuda.synchronize()

    def moves(job: Job) -> bool:
        x = torch.ones(64, device="cuda")
        for number, _ in enumerate(job.batches([[x]] * steps)):
            if number == steps - 1:
                known.set()
                assert busy.wait(300)
            x.add_(1)
            was_done = done.query()
            torch.cuda.synchronize()
        return not was_done

    assert run_pair(computes, moves, policy=policy)["second"].value == beside
