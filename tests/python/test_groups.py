"""Process groups of jobs in one process, and their waits for other ranks."""

import itertools
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import SOON_S
from torch import nn

import torchshare
from torchshare import Job


def joined() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def reduced() -> float:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def test_runtimes_at_once_whose_jobs_have_one_name_keep_their_groups() -> None:
    both = threading.Barrier(2)

    def body(job: Job) -> float:
        joined()
        both.wait(SOON_S)
        found = reduced()
        both.wait(SOON_S)
        return found

    with torchshare.Runtime("cpu") as first, torchshare.Runtime("cpu") as second:
        jobs = [runtime.submit(body, name="train") for runtime in (first, second)]
        first.start()
        second.start()
        first.wait(SOON_S)
        second.wait(SOON_S)
    assert [job.result.value for job in jobs] == [1.0, 1.0]


def test_a_job_that_ends_leaves_the_groups_of_one_with_its_name_in_another_runtime() -> None:
    has_joined, may_end = threading.Event(), threading.Event()

    def stays(job: Job) -> float:
        joined()
        has_joined.set()
        assert may_end.wait(SOON_S)
        return reduced()

    def ends(job: Job) -> float:
        joined()
        return reduced()

    with torchshare.Runtime("cpu") as runtime:
        job = runtime.submit(stays, name="train")
        runtime.start()
        assert has_joined.wait(SOON_S)
        for _ in range(2):
            with torchshare.Runtime("cpu") as other:
                ended = other.submit(ends, name="train")
            assert ended.result.value == 1.0
        may_end.set()
        runtime.wait(SOON_S)
    assert job.result.value == 1.0


def test_no_group_is_left_of_jobs_that_have_ended() -> None:
    from torchshare.isolation import process_groups

    def fails(job: Job) -> None:
        joined()
        raise ValueError("no")

    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(lambda job: joined(), name="a")
        runtime.submit(fails, name="b")
        runtime.wait(SOON_S, check=False)
    assert process_groups._of_jobs == {}


def lost(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook whose collective fails: the backward pass finds out when it waits for it."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_exception(RuntimeError("the connection is lost"))  # type: ignore[no-untyped-call]
    return future


def refuses(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """One that fails in the middle of the backward pass, before the wait."""
    raise RuntimeError("the connection is lost")


def collective_waits(runtime: torchshare.Runtime) -> int:
    return sum(kind == "wait" and detail == "collective" for kind, _, _, _, _, detail in runtime.events())


def test_a_wait_may_end_with_its_last_reference_after_the_job() -> None:
    """As where an exception keeps the autograd engine's callbacks."""
    from torchshare.context import current
    from torchshare.isolation import collectives

    kept: list[Any] = []
    with torchshare.Runtime("cpu", policy="strict") as runtime:
        runtime.submit(lambda job: kept.append(collectives._Wait(current.job())), name="a")  # type: ignore[arg-type]
        runtime.wait(SOON_S)
    kept.clear()


@pytest.mark.parametrize("hook", [lost, refuses])
def test_the_gate_is_closed_after_a_backward_of_ddp_that_failed(hook: Any) -> None:
    """Beside a higher job that is between two ops, a lower one may enter only after the grace, which is long here;
    while the higher job waits for ranks it may enter at once."""
    longest = 1.0  # seconds that the higher job was between two ops: it may get no core for that long
    while longest > 0.5:
        failed, tried, done = threading.Event(), threading.Event(), threading.Event()
        entered: list[str] = []
        times: list[float] = []

        def higher(job: Job) -> None:
            joined()
            model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
            model.register_comm_hook(None, hook)
            with pytest.raises(RuntimeError, match="the connection is lost"):
                model(torch.ones(2, 4)).sum().backward()
            failed.set()  # noqa: B023
            while not tried.wait(0.005):  # noqa: B023
                torch.ones(1)  # within the grace of one another
            for _ in range(40):
                torch.ones(1)
                times.append(time.monotonic())  # noqa: B023
                entered.append("higher")  # noqa: B023
                done.wait(0.005)  # noqa: B023

        def lower(job: Job) -> None:
            assert failed.wait(SOON_S)  # noqa: B023
            times.append(time.monotonic())  # noqa: B023
            tried.set()  # noqa: B023
            torch.ones(1)
            entered.append("lower")  # noqa: B023
            done.set()  # noqa: B023

        with torchshare.Runtime("cpu", policy="strict", grace=1.0) as runtime:
            runtime.submit(higher, priority="primary", threads=1)
            runtime.submit(lower, threads=1)
            runtime.wait(SOON_S)
            waits = collective_waits(runtime)
        longest = max(after - before for before, after in itertools.pairwise(sorted(times)))
    assert entered[-1] == "lower", "it entered beside the higher job"
    assert waits >= 1 if hook is lost else True, "and the wait has an end"


def test_a_wait_inside_another_is_part_of_it() -> None:
    def body(job: Job) -> None:
        handle = job._context.handle
        handle.begin_wait("outer")
        handle.begin_wait("inner")
        handle.end_wait()
        handle.end_wait()

    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(body, name="a")
        runtime.wait(SOON_S)
        waits = [detail for kind, _, _, _, _, detail in runtime.events() if kind == "wait"]
    assert waits == ["outer"]
