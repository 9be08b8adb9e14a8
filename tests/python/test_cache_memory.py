"""Large blocks of CPU memory are cached per job, bounded, and returned."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import python, run_one, wait_until
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import torchshare
from torchshare import Job

MIB = 2**20


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def use(mebibytes: int) -> None:
    """Allocates, writes and frees a tensor."""
    torch.ones(mebibytes * MIB // 4)


def train(job: Job) -> list[torch.Tensor]:
    """Convolutions, normalization, dropout and a loader with a worker process."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Flatten(), nn.Linear(16 * 16 * 16, 100)),
    )
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(96, 3, 16, 16), torch.randint(0, 100, (96,)))
    for batch in job.batches(DataLoader(data, batch_size=32, shuffle=True, num_workers=1)):
        batch.backward(lambda x, y: F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def test_weights_are_the_same_with_and_without_the_cache() -> None:
    with_cache, without = (run_one(train, seed=3, cache_memory=cached) for cached in (True, False))
    assert with_cache.memory_cached > MIB
    assert without.memory_cached == 0
    assert all(torch.equal(a, b) for a, b in zip(with_cache.value, without.value, strict=True))


def test_kept_blocks_are_in_no_budget() -> None:
    left = run_one(lambda _job: torch.empty(24 * MIB, dtype=torch.uint8))  # of a former owner

    def alternate(job: Job) -> int:
        for size in (40, 41, 42):
            use(size)
        return resident()

    result = run_one(alternate, memory_budget=48 * MIB)
    assert result.memory_peak == 42 * MIB
    assert 40 * MIB <= result.memory_cached <= 48 * MIB
    assert left.value.numel() == 24 * MIB


def test_a_suspended_job_keeps_no_blocks() -> None:
    used, go_on = threading.Event(), threading.Event()

    def body(job: Job) -> str:
        use(300)
        used.set()
        while not go_on.is_set():
            torch.ones(1)
        use(300)
        return "done"

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(body, threads=1)
        runtime.start()
        assert used.wait(300)
        with_blocks = resident()
        job.suspend()
        wait_until(lambda: resident() < with_blocks - 250 * MIB)
        go_on.set()
        job.resume()
        assert runtime.wait(300)[job.name].value == "done"


def test_an_ended_job_keeps_no_blocks_but_its_results() -> None:
    before = resident()
    result = run_one(lambda job: [use(300), torch.ones(20 * MIB // 4)][1])
    assert resident() - before < 100 * MIB
    assert result.value.sum().item() == 20 * MIB // 4


def test_outside_jobs_memory_is_cached_when_asked() -> None:
    use(100)
    before = resident()
    torchshare.cache_memory()
    try:
        use(100)
        assert resident() - before > 90 * MIB
    finally:
        torchshare.cache_memory(False)
    assert resident() - before < 50 * MIB


def test_outside_jobs_it_must_be_asked_for_with_a_bool() -> None:
    with pytest.raises(TypeError, match="enabled must be True or False, got 1"):
        torchshare.cache_memory(1)  # type: ignore[arg-type]


def test_memory_that_is_not_torchs_is_left_alone(tmp_path: Path) -> None:
    def body(job: Job) -> float:
        import numpy as np

        from_numpy = torch.from_numpy(np.ones(MIB, dtype=np.float32))
        shared = torch.ones(MIB).share_memory_()
        mapped = torch.from_file(str(tmp_path / "mapped"), shared=True, size=MIB).fill_(1)
        use(4)
        return float(sum(each.sum() for each in (from_numpy, shared, mapped)))

    assert run_one(body).value == 3 * MIB


def test_the_partners_cache_is_given_up_before_an_allocation_fails() -> None:
    """In a process of its own: its address space is limited."""
    done = python(
        "import resource, threading, torch, torchshare\n"
        "MIB = 2**20\n"
        "kept, done = threading.Event(), threading.Event()\n"
        "def first(job):\n"
        "    torch.ones(300 * MIB // 4); kept.set()\n"
        "    while not done.wait(0.05): torch.ones(1)\n"
        "def second(job):\n"
        "    kept.wait()\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + 100 * MIB, resource.RLIM_INFINITY))\n"
        "    try: return torch.ones(350 * MIB // 4).sum().item() / MIB\n"
        "    finally: done.set()\n"
        "with torchshare.Runtime(device='cpu') as runtime:\n"
        "    runtime.submit(first, threads=1)\n"
        "    runtime.submit(second, threads=1)\n"
        "    print(runtime.wait(300)['second'].value)"
    )
    assert done.stdout == "87.5\n", done.stderr


def test_a_job_whose_shapes_never_repeat_stays_within_an_eighth_of_its_peak() -> None:
    def body(job: Job) -> tuple[int, int]:
        base = resident()
        most = 0
        held: list[Any] = []
        for size in range(1, 60):
            held = [torch.ones(size * 1000 * 256 + row, dtype=torch.uint8) for row in range(5)]
            most = max(most, resident() - base)
        return most, sum(each.numel() for each in held)

    most, last = run_one(body, threads=1).value
    assert most <= 2 * last * 9 / 8 + 40 * MIB  # each list is freed when the next one is complete


@pytest.mark.parametrize("count", [63, 64])
def test_a_job_more_than_memory_has_owners_runs_with_a_warning(count: int, capfd: pytest.CaptureFixture[str]) -> None:
    together = threading.Barrier(count)

    def body(job: Job) -> float:
        together.wait(300)
        return torch.ones(4).sum().item()

    with torchshare.Runtime(device="cpu") as runtime:
        for index in range(count):
            runtime.submit(body, name=f"job-{index}", threads=1)
        results = runtime.wait(timeout=300)
    assert {result.value for result in results.values()} == {4.0}
    warning = "so many jobs run that its memory is not cached, and that its tensors are not told from others'"
    assert capfd.readouterr().err.count(warning) == count - 63
