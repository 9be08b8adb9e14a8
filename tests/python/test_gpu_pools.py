"""Jobs that use pools of memory (torch.cuda.MemPool) on a GPU."""

from __future__ import annotations

import gc

import pytest
import torch
from conftest import Gatekeeper, python
from gpu_jobs import MIB, alone, conv, identical, on_gpu, run_pair, trainer
from torch import Tensor, nn
from torch.nn import functional as F

import torchshare
from torchshare import Job
from torchshare.torch_versions import is_one_of

pytestmark = pytest.mark.gpu


def filled_pool(blocks: int = 4) -> tuple[int, int]:
    """Fills a pool, releases it, and returns the bytes that it reserved and those that are reserved after it."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = [torch.empty(8 * MIB, device="cuda", dtype=torch.uint8) for _ in range(blocks)]
        kept[0].add_(1)
    reserved = torch.cuda.memory_reserved() - before
    del kept, pool
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return reserved, torch.cuda.memory_reserved() - before


def test_a_pool_counts_once_and_is_released_as_in_plain_torch() -> None:
    def fills(job: Job) -> tuple[int, int]:
        return filled_pool()

    with torchshare.Runtime(device="cuda") as runtime:
        job = runtime.submit(fills, memory_budget=36 * MIB, threads=1)
        runtime.wait(300)
    assert job.result.value == filled_pool()
    assert job.result.memory_peak is not None
    assert 32 * MIB <= job.result.memory_peak < 34 * MIB


def test_memory_of_a_pool_over_the_budget_is_refused() -> None:
    def fills(job: Job) -> None:
        with pytest.raises(torchshare.BudgetExceeded, match="memory budget exceeded"):
            filled_pool()
        filled_pool(1)

    on_gpu(fills, memory_budget=16 * MIB)


def on_two_streams() -> int:
    """Makes tensors that another stream uses, one after the other; returns by how much the reserved memory grew."""
    side = torch.cuda.Stream()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(8):
        tensor = torch.ones(16 * MIB, device="cuda", dtype=torch.uint8)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            tensor.add_(1)
        tensor.record_stream(side)
        del tensor
        torch.cuda.synchronize()
    return torch.cuda.memory_reserved() - before


@pytest.mark.skipif(is_one_of(torch.__version__, "<2.13"), reason="torch itself keeps such memory")
def test_a_pool_in_use_does_not_keep_other_jobs_memory() -> None:
    """As a job that trains inside of `use_mem_pool` from its first step to its last. torchshare took the pool for a
    capture, and kept each block that other streams had used until it ended."""
    keeper = Gatekeeper()

    def pooled(job: Job) -> None:
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            torch.ones(1, device="cuda")
            keeper.pause()

    def streams(job: Job) -> int:
        assert keeper.reached.wait(300)
        try:
            return on_two_streams()
        finally:
            keeper.release.set()

    grown = run_pair(pooled, streams)["second"].value
    assert grown <= 32 * MIB, f"{grown / MIB} MiB are reserved for tensors of 16 MiB that follow each other"


def test_two_jobs_train_in_pools_of_their_own() -> None:
    train = trainer(conv)

    def pooled(job: Job) -> list[Tensor]:
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            return [tensor.cpu() for tensor in train(job)]

    results = run_pair(pooled, pooled)
    assert identical(results["first"].value, alone(conv, 0))
    assert identical(results["second"].value, alone(conv, 1))


KEEPS_POOLS = not is_one_of(torch.__version__, "<2.15")


def train_graphed(job: Job, pooled: bool) -> list[Tensor]:
    with torch.device("cuda"):
        model = nn.Linear(16, 4)
        data = [(torch.randn(8, 16), torch.randn(8, 4)) for _ in range(6)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_fn(x: Tensor, y: Tensor) -> Tensor:
        if not pooled:
            return F.mse_loss(model(x), y)
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            hidden = model(x)
        return F.mse_loss(hidden, y)

    loss = job.graph(loss_fn)
    for batch in job.batches(data):
        batch.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        _ = [torch.full((2 * MIB,), torch.nan, device="cuda") for _ in range(4)]  # where memory of the pool was
    if KEEPS_POOLS or not pooled:
        assert loss.fallback is None
    else:
        assert loss.fallback is not None and "a graph keeps no pools of memory" in loss.fallback
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_a_graph_of_a_loss_that_uses_a_pool_trains_as_without_one() -> None:
    """torch 2.15 keeps the pools that a capture uses with the graph, and expected a graph that was made in Python.
    Before, torch ended the process where a pool was destroyed during a capture, and the loss runs in eager."""
    plain, pooled = (on_gpu(lambda job, pooled=pooled: train_graphed(job, pooled), seed=0) for pooled in (False, True))
    assert identical(plain, pooled)


def test_two_jobs_have_graphs_of_losses_that_use_pools() -> None:
    results = run_pair(lambda job: train_graphed(job, True), lambda job: train_graphed(job, True))
    for seed, name in enumerate(("first", "second")):
        assert identical(results[name].value, on_gpu(lambda job: train_graphed(job, False), seed=seed))


@pytest.mark.skipif(not KEEPS_POOLS, reason="torch keeps no pools with a graph")
def test_a_graph_keeps_the_pools_that_it_uses_and_no_longer_than_itself() -> None:
    def reserves(job: Job) -> tuple[int, int, int]:
        weight = torch.ones(2 * MIB, device="cuda", requires_grad=True)

        def loss_fn(x: Tensor) -> Tensor:
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                hidden = weight * x
            return hidden.sum()

        def reserved() -> int:
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return torch.cuda.memory_reserved()

        before = reserved()
        loss = job.graph(loss_fn)
        for batch in job.batches([torch.ones(1, device="cuda")] * 2):
            batch.backward(loss)
        assert loss.fallback is None
        during = reserved()
        del loss, batch
        weight.grad = None
        return before, during, reserved()

    before, during, after = on_gpu(reserves)
    assert during - before >= 16 * MIB, "the gradient and what the loss has in its pool"
    assert after == before


HISTORY = """
import threading, time
import torch, torchshare

torch.cuda.memory._record_memory_history(stacks="python")
over, ready = threading.Event(), threading.Event()

def drops_pools(job):
    pools = []
    for _ in range(200):
        pools.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(pools[-1]):
            torch.ones(1024, device="cuda")
    ready.set()
    while pools and not over.is_set():
        pools.pop()
        time.sleep(0.002)

with torchshare.Runtime(device="cuda") as runtime:
    runtime.submit(drops_pools, name="drops pools", threads=1)
    runtime.start()
    ready.wait()
    try:
        x = torch.ones(1024, device="cuda")
        for _ in range(30):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                y = x + 1
                time.sleep(0.01)
    finally:
        over.set()
print("done")
"""


def test_a_history_of_memory_does_not_hang_beside_a_capture() -> None:
    """At the end of a capture, torch waits for the GIL to record where in Python a pool is emptied. The job that
    destroys the next pool holds the GIL."""
    ran = python(HISTORY, timeout=100)
    assert ran.stdout == "done\n", ran.stderr
