"""Data on its way to a GPU and back beside another job: loaders with pinned memory, mixed precision, checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_jobs import alone, attention, conv, identical, on_gpu, run_pair, trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from torchshare import Job

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*takes its statistics")]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Each is made of its number."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=generator), torch.tensor(index % 4)


Batches = Iterable[tuple[Tensor, Tensor]]


def train_on(batches: Callable[[], Batches]) -> Callable[[Job], list[Tensor]]:
    """Trains on one pass of what is already on the device."""

    def train(job: Job) -> list[Tensor]:
        model = conv().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for batch in job.batches(batches(), sub_batch=8):
            batch.backward(lambda x, y: F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        return list(model.state_dict().values())

    return train


def loader(workers: int, pin: bool) -> DataLoader[tuple[Tensor, Tensor]]:
    return DataLoader(Images(), batch_size=16, shuffle=True, num_workers=workers, pin_memory=pin)


def copied(batches: Batches, non_blocking: bool) -> Iterator[list[Tensor]]:
    for batch in batches:
        yield [tensor.to("cuda", non_blocking=non_blocking) for tensor in batch]


def prefetched(batches: Batches) -> Iterator[list[Tensor]]:
    """Copies the next batch on a stream of its own while this one is trained on."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    former: list[Tensor] | None = None
    for batch in batches:
        with torch.cuda.stream(side):
            following = [tensor.to("cuda", non_blocking=True) for tensor in batch]
        if former is not None:
            yield former
        main.wait_stream(side)
        for tensor in following:
            tensor.record_stream(main)
        former = following
    if former is not None:
        yield former


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_memory_and_copies_that_nobody_waits_for(workers: int) -> None:
    expected = [tensor.cpu() for tensor in on_gpu(train_on(lambda: copied(loader(0, False), False)), seed=0)]
    pinned = train_on(lambda: copied(loader(workers, True), True))
    results = run_pair(pinned, trainer(attention))
    assert identical(expected, results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)


def test_both_jobs_prefetch_while_a_graph_is_captured(policy: str) -> None:
    expected = [tensor.cpu() for tensor in on_gpu(train_on(lambda: copied(loader(0, False), False)), seed=0)]
    results = run_pair(train_on(lambda: prefetched(loader(0, True))), trainer(attention, graph=True), policy=policy)
    assert identical(expected, results["first"].value)
    assert identical(alone(attention, 1), results["second"].value)


def test_results_come_back_through_pinned_memory() -> None:
    """Copies to the host that nobody waits for, in the order of the job's stream."""

    def job(_job: Job) -> bool:
        x = torch.arange(1000, device="cuda")
        hosts = [torch.empty(1000, dtype=torch.int64, pin_memory=True) for _ in range(20)]
        for number, host in enumerate(hosts):
            host.copy_(x * number, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return all(torch.equal(host, torch.arange(1000) * number) for number, host in enumerate(hosts))

    results = run_pair(job, job)
    assert results["first"].value
    assert results["second"].value


def mixed(dtype: torch.dtype, init_scale: float) -> Callable[[Job], list[Tensor]]:
    """Trains in mixed precision; returns the weights and the last scale."""

    def train(job: Job) -> list[Tensor]:
        with torch.device("cuda"):
            model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
            data = [(torch.randn(16, 16), torch.randint(0, 4, (16,))) for _ in range(12)]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=init_scale, growth_interval=4)

        def loss_fn(x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast("cuda", dtype=dtype):
                return F.cross_entropy(model(x), y)

        for batch in job.batches(data, sub_batch=4):
            batch.backward(loss_fn, scaler=scaler)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [*model.state_dict().values(), torch.tensor(scaler.get_scale())]

    return train


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_mixed_precision_in_sub_batches(dtype: torch.dtype) -> None:
    """With scales that overflow at first: those steps are left out, in each job its own."""
    jobs = mixed(dtype, 2.0**40), mixed(dtype, 2.0**10)
    expected = [[tensor.cpu() for tensor in on_gpu(job, seed=seed)] for seed, job in enumerate(jobs)]
    results = run_pair(*jobs, policy="strict", max_wait=0.01)
    for tensors, result in zip(expected, results.values(), strict=True):
        assert identical(tensors, result.value)
        assert all(tensor.isfinite().all() for tensor in result.value)
    assert expected[1][-1] == 2.0**13  # three times 4 steps that did not overflow
    assert dtype is torch.bfloat16 or expected[0][-1] < 2.0**40


def resumable(path: Path | None, steps: range) -> Callable[[Job], list[Tensor]]:
    """Does some of 16 steps: from the checkpoint at `path`, if it does not begin with the first; to it, if it does not
    end with the last."""

    def train(job: Job) -> list[Tensor]:
        with torch.device("cuda"):
            model = conv()
            data = [(torch.randn(16, 3, 8, 8), torch.randint(0, 4, (16,))) for _ in range(16)]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        if steps.start > 0:
            checkpoint = torch.load(path, map_location="cuda")
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            torch.cuda.set_rng_state(checkpoint["random"].cpu())
        for batch in job.batches(itertools.islice(data, steps.start, steps.stop), sub_batch=8):
            batch.backward(lambda x, y: F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        if steps.stop < len(data):
            states: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**states, "random": torch.cuda.get_rng_state()}, path)
        return list(model.state_dict().values())

    return train


def test_a_checkpoint_goes_on_in_a_second_job(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    expected = [tensor.cpu() for tensor in on_gpu(resumable(None, range(16)), seed=0)]
    for steps in (range(7), range(7, 16)):
        results = run_pair(resumable(path, steps), trainer(attention))
        assert identical(alone(attention, 1), results["second"].value)
    assert identical(expected, results["first"].value)
