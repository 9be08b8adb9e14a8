"""A job that waits for its other ranks on the device, as with NCCL: a stand-in whose `wait` returns at once and lets
the job's stream wait for a kernel on a stream of the library's own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpu_jobs import SLEEP_CYCLES, enters_beside, identical, on_gpu, run_pair
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchshare import Job

pytestmark = pytest.mark.gpu

CYCLES = {"each": SLEEP_CYCLES}  # of a collective


class Library(threading.Thread):
    """Launches collectives on a stream that no job knows."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stream = torch.cuda.Stream()
        self.calls: queue.SimpleQueue[tuple[torch.cuda.Event, list[Tensor], torch.futures.Future[Any]] | None]
        self.calls = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while call := self.calls.get():
            ready, tensors, future = call
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(ready)
                torch.cuda._sleep(CYCLES["each"])
                future.set_result(tensors)


class Delayed(dist.ProcessGroup):
    """One rank, whose sums are its own numbers after a while."""

    def __init__(self, library: Library, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._library = library

    def _launch(self, tensors: list[Tensor]) -> dist.Work:
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[torch.device("cuda", 0)])
        ready = torch.cuda.Event()
        ready.record()
        self._library.calls.put((ready, tensors, future))
        return torch._C._distributed_c10d._create_work_from_future(future)

    def allreduce(self, tensors: list[Tensor], _options: Any = None) -> dist.Work:
        return self._launch(tensors)

    def broadcast(self, tensors: list[Tensor], _options: Any = None) -> dist.Work:
        return self._launch(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], _options: Any = None) -> dist.Work:
        for output, given in zip(outputs, inputs, strict=True):
            output[0].copy_(given)
        return self._launch(inputs)

    def getBackendName(self) -> str:
        return "delayed"


@pytest.fixture(scope="module", autouse=True)
def _backend() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    library = Library()

    def create(_store: Any, rank: int, size: int, _timeout: Any) -> Delayed:
        return Delayed(library, rank, size)

    if "DELAYED" not in vars(dist.Backend):
        dist.Backend.register_backend("delayed", create, devices=["cuda", "cpu"])
    yield
    library.calls.put(None)
    library.join()


def joins() -> None:
    dist.init_process_group("delayed", rank=0, world_size=1, store=dist.HashStore())


def behind() -> torch.cuda.Event:
    done = torch.cuda.Event()
    done.record()
    return done


def reduces(_job: Job) -> torch.cuda.Event:
    joins()
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    dist.all_reduce(x)
    x.add_(1)
    return behind()


def waits_for_work(_job: Job) -> torch.cuda.Event:
    joins()
    x = torch.ones(4, device="cuda")
    work = dist.all_reduce(x, async_op=True)
    x2 = torch.ones(4, device="cuda") * 2
    work.wait()
    x.add_(x2)
    return behind()


def trains_in_ddp(_job: Job) -> torch.cuda.Event:
    joins()
    CYCLES["each"] = 1
    model = DistributedDataParallel(nn.Linear(4, 4, device="cuda"))
    x = torch.ones(4, 4, device="cuda")
    model(x).sum().backward()
    torch.cuda.synchronize()
    CYCLES["each"] = SLEEP_CYCLES
    model(x).sum().backward()
    return behind()


def works_on_another_stream(_job: Job) -> torch.cuda.Event:
    joins()
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.add_(0)
        torch.cuda._sleep(SLEEP_CYCLES)
        done = behind()
    dist.all_reduce(torch.ones(4, device="cuda"))
    return done


@pytest.mark.parametrize(
    ("launch", "enters"),
    [(reduces, True), (waits_for_work, True), (trains_in_ddp, True), (works_on_another_stream, False)],
)
def test_a_lower_job_enters_while_a_collective_runs(
    launch: Callable[[Job], torch.cuda.Event], enters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the marker behind the wait kept it out until the collective had ended."""
    monkeypatch.setitem(CYCLES, "each", SLEEP_CYCLES)
    assert enters_beside(launch) == enters


def trainer(job: Job) -> list[Tensor]:
    joins()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to("cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in job.batches([torch.randn(16, 8, device="cuda") for _ in range(10)], sub_batch=4):
        x.backward(lambda each: model(each).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return [*model.state_dict().values()]


def test_pairs_in_collectives_have_the_weights_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CYCLES, "each", SLEEP_CYCLES // 500)
    for policy in ("strict", "best_fit"):
        both = run_pair(trainer, trainer, policy=policy)
        assert identical(both["first"].value, on_gpu(trainer, seed=0))
        assert identical(both["second"].value, on_gpu(trainer, seed=1))
