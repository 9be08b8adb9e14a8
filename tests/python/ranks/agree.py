"""Run by torchrun: what holds on one rank holds on all. `agree.py cpu|cuda`."""

import sys
import time
from unittest import mock

import torch
import torch.distributed as dist
from lines import line
from store import RANK, from_both, until
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import torchshare
from torchshare.runtime.ranks import Ranks

DEVICE = sys.argv[1]


def reduce_for_ever(job) -> None:
    dist.init_process_group("gloo")
    while True:
        dist.all_reduce(torch.ones(1, device=DEVICE))
        time.sleep(0.001)


def work_for_ever(job) -> None:
    while True:
        torch.ones(1, device=DEVICE)
        time.sleep(0.001)


def finish(job) -> int:
    dist.init_process_group("gloo")
    for _ in range(200):
        dist.all_reduce(torch.ones(1, device=DEVICE))
    return 200


def suspend_and_cancel() -> None:
    with torchshare.Runtime(device=DEVICE) as runtime:
        runtime.submit(finish, name="other", priority="primary")
        job = runtime.submit(work_for_ever, name="a")
        runtime.start()
        if RANK == 0:
            until(lambda: job.result.ops > 50)
            job.suspend()
        until(lambda: job.state == "suspended")
        from_both("has seen it suspended")
        if RANK == 1:
            job.resume()
        until(lambda: job.state == "running")
        from_both("has seen it running")
        if RANK == 1:
            job.cancel()
        results = runtime.wait(timeout=300)
    assert [results["a"].state, results["other"].value] == ["cancelled", 200]


def fail(job) -> None:
    if RANK == 1:
        dist.init_process_group("gloo")
        raise ValueError("no data")
    reduce_for_ever(job)


def failure_on_one_rank() -> None:
    """The other rank waits in a collective. Either its runtime or its job hears first why that failed."""
    end_jobs = Ranks._end_jobs

    def end_jobs_later(self: Ranks) -> None:
        time.sleep(0.3)
        end_jobs(self)

    for way in (end_jobs, end_jobs_later):
        with mock.patch.object(Ranks, "_end_jobs", way), torchshare.Runtime(device=DEVICE) as runtime:
            runtime.submit(finish, name="other", priority="primary")
            runtime.submit(fail, name="a")
            results = runtime.wait(timeout=300, check=False)
        assert [results["a"].state, results["other"].value] == ["failed" if RANK == 1 else "cancelled", 200]


def train(job) -> torch.Tensor:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2).to(DEVICE).double())
    calls = []

    def counted(state, bucket):
        calls.append(1)
        return default_hooks.allreduce_hook(state, bucket)

    model.register_comm_hook(None, counted)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(RANK)
    data = [torch.randn(12, 4, generator=generator, dtype=torch.double).to(DEVICE) for _ in range(5)]
    for batch in job.batches(data):
        batch.backward(lambda x: model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    plain = iter(torchshare.batches(data))
    optimizer = torchshare.accumulate(optimizer)
    for x in plain:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert len(calls) == 10, len(calls)
    return model.module.weight.detach().clone()


def ranks_may_differ_in_sub_batches() -> None:
    weights = []
    for sub_batch in (None, 3 + 2 * RANK):
        with torchshare.Runtime(device=DEVICE) as runtime:
            runtime.submit(train, name="a", sub_batch=sub_batch)
            weights.append(runtime.wait(timeout=300)["a"].value)
    torch.testing.assert_close(*weights, rtol=0, atol=1e-12)


def other_jobs() -> None:
    with torchshare.Runtime(device=DEVICE) as runtime:
        runtime.submit(finish, name=f"job {RANK}")
        try:
            runtime.start()
        except RuntimeError as error:
            own, other = f"'job {RANK}' secondary on rank {RANK}", f"'job {1 - RANK}' secondary on rank {1 - RANK}"
            assert str(error) == f"ranks must run the same jobs, got {own} and {other}", error
        else:
            raise AssertionError("no error")
        runtime.cancel()


for check in (suspend_and_cancel, failure_on_one_rank, ranks_may_differ_in_sub_batches, other_jobs):
    check()
    line(check.__name__)
