"""A machine with two GPUs: a runtime's jobs use the runtime's, and no other one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_jobs import SLEEP_CYCLES, conv, identical, run_pair, trainer
from torch import Tensor, nn

import torchshare
from torchshare import Job, JobFailed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU"),
]


def on(device: str, job: Callable[[Job], Any], seed: int = 0) -> Any:
    """What a job returns that is alone on the device."""
    with torchshare.Runtime(device=device) as runtime:
        runtime.submit(job, name="job", seed=seed)
        return runtime.wait(90)["job"].value


def test_jobs_of_the_second_gpu_run_there_as_on_the_first() -> None:
    """Before, they ran on the first, on the legacy stream, and drew from the program's generator."""
    train = trainer(conv)
    first, second = on("cuda:0", train, seed=0), on("cuda:1", train, seed=0)
    assert {tensor.device.index for tensor in second} == {1}
    assert identical(first, second)
    with torchshare.Runtime(device="cuda:1") as runtime:
        runtime.submit(train, name="a", priority="primary", seed=0)
        runtime.submit(train, name="b", seed=1)
        both = runtime.wait(90)
    assert identical(both["a"].value, first)
    assert identical(both["b"].value, on("cuda:0", train, seed=1))


def test_two_runtimes_run_at_once_on_two_gpus() -> None:
    train, both = trainer(conv, epochs=1), threading.Barrier(2)

    def meets(job: Job) -> list[Tensor]:
        both.wait(60)
        return train(job)

    with torchshare.Runtime(device="cuda:0") as first, torchshare.Runtime(device="cuda:1") as second:
        first.submit(meets, name="a", seed=0)
        second.submit(meets, name="b", seed=0)
        first.start()
        second.start()
        assert identical(first.wait(90)["a"].value, second.wait(90)["b"].value)


def where(_job: Job) -> tuple[int, int | None, int]:
    return (
        torch.cuda.current_device(),
        torch.ones(1, device="cuda").device.index,
        torch.cuda.current_stream().device.index,
    )


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_cuda_is_the_programs_current_gpu_or_that_of_its_local_rank(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert on(device, where) == (0, 0, 0)
    with torch.cuda.device(1):
        assert on(device, where) == (1, 1, 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert on(device, where) == (1, 1, 1)
    monkeypatch.setenv("LOCAL_RANK", "2")  # of ranks that share this machine's GPUs
    assert on(device, where) == (0, 0, 0)
    assert torch.cuda.current_device() == 0


def test_a_job_comes_after_what_the_program_has_launched_on_its_gpu() -> None:
    x = torch.ones(4, device="cuda:1")
    with torch.cuda.device(1):
        torch.cuda._sleep(SLEEP_CYCLES // 10)
        x.add_(5)
    assert on("cuda:1", lambda _job: x.add(0).sum().item()) == 24


def draws(_job: Job) -> None:
    torch.rand(4, device="cuda:1")


def moves(_job: Job) -> None:
    torch.ones(4, device="cuda:0").to("cuda:1")


def sets_device(_job: Job) -> None:
    torch.cuda.set_device(1)
    torch.ones(4, device="cuda")


def enters_device(_job: Job) -> None:
    with torch.cuda.device(1):
        torch.ones(4, device="cuda")


def parallel(_job: Job) -> None:
    nn.DataParallel(nn.Linear(4, 4, device="cuda:0"))(torch.ones(4, 4, device="cuda:0"))


def from_a_thread(_job: Job) -> None:
    made = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(4, device="cuda:1")))
    thread.start()
    thread.join()
    made[0].add_(1)


@pytest.mark.parametrize("job", [draws, moves, sets_device, enters_device, parallel, from_a_thread])
@pytest.mark.parametrize("policy", ["priority", "best_fit"])
def test_a_job_that_would_use_another_gpu_is_refused_with_one_line(job: Callable[[Job], None], policy: str) -> None:
    """Before, its kernels ran there on the legacy stream, and it drew from the program's generator."""
    lower = threading.Event()

    def beside(_job: Job) -> None:
        torch.ones(1, device="cuda")
        lower.set()

    with pytest.raises(JobFailed, match=r"job 'first': .* would use cuda:1, and its runtime is on cuda:0"):
        run_pair(job, beside, policy=policy)
    assert lower.is_set()
    assert torch.cuda.current_device() == 0


def test_a_tensor_of_the_program_on_another_gpu_is_refused() -> None:
    x = torch.ones(4, device="cuda:1")
    with pytest.raises(JobFailed, match=r"aten::add_ would use cuda:1"):
        on("cuda:0", lambda _job: x.add_(1))
    assert torch.equal(x.cpu(), torch.ones(4))


def test_what_asks_about_another_gpu_is_answered() -> None:
    def asks(_job: Job) -> tuple[int, str, int]:
        torch.cuda.synchronize(1)
        return torch.cuda.device_count(), torch.cuda.get_device_name(1), torch.cuda.memory_allocated(1)

    count, name, _ = on("cuda:0", asks)
    assert (count, name) == (torch.cuda.device_count(), torch.cuda.get_device_name(1))


def test_a_gpu_that_is_not_there_is_refused() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(ValueError, match=rf"device must be one of {count} GPUs .*, got 'cuda:{count}'"):
        torchshare.Runtime(device=f"cuda:{count}")
