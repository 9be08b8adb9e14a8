"""Who may use a GPU when: the gate's policies and `run_ahead`, on a device whose queues are full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

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


def sleep(*_args: Any, **_kwargs: Any) -> None:
    """A kernel that is not an op of torch's dispatcher."""
    torch.cuda._sleep(SLEEP_CYCLES)


@pytest.mark.parametrize("policy", ["strict", "best_fit"])
def test_a_lower_job_waits_for_a_kernel_that_is_not_an_op(policy: str) -> None:
    """Before, it was let in, because the higher job's last op was done."""
    seen_idle, launched, done = threading.Event(), threading.Event(), torch.cuda.Event()

    def high(_job: Job) -> None:
        torch.ones(4, device="cuda")
        torch.cuda.synchronize()
        assert seen_idle.wait(300)
        sleep()
        done.record()
        launched.set()
        torch.cuda.synchronize()

    def low(_job: Job) -> bool:
        torch.ones(4, device="cuda")  # its marker on the higher job's stream is reached
        seen_idle.set()
        assert launched.wait(300)
        torch.ones(4, device="cuda")
        return done.query()

    assert run_pair(high, low, policy=policy)["second"].value


def triton(launch: Callable[..., None]) -> Callable[[], None]:
    """What a script's own kernel of Triton does when it is launched."""
    from triton.compiler.compiler import CompiledKernel

    kernel = object.__new__(CompiledKernel)
    kernel.name, kernel._run, kernel.module = "own", launch, None
    return lambda: kernel.run(1, 1, 1)


def inductor(launch: Callable[..., None]) -> Callable[[], None]:
    """What a kernel of a compiled function does when it is launched."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    kernel = object.__new__(CachingAutotuner)
    vars(launch).update(config=SimpleNamespace(), store_cubin=False, cache_hash="")
    vars(kernel).update(
        fn=sleep,
        launchers=[launch],
        inductor_meta={},
        triton_meta={},
        triton_interpret=False,
        dump_launch_params=False,
        dump_launch_tensors=False,
        device_props=SimpleNamespace(type="cuda"),
        _cached_launcher=launch,
    )
    return lambda: kernel.run(stream=0)


@pytest.mark.parametrize("make", [triton, inductor])
def test_a_kernel_of_triton_waits_its_turn(make: Callable[[Callable[..., None]], Callable[[], None]]) -> None:
    """Before, it ran beside a higher job's."""
    launched, done, was_done = threading.Event(), torch.cuda.Event(), []

    def high(_job: Job) -> None:
        sleep()
        done.record()
        launched.set()
        torch.cuda.synchronize()

    def low(_job: Job) -> None:
        kernel = make(lambda *_args, **_kwargs: was_done.append(done.query()))
        assert launched.wait(300)
        kernel()

    run_pair(high, low, policy="strict")
    assert was_done == [True]
