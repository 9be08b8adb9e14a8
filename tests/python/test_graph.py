"""`Job.graph`: replayed sub-batches train as eager ones do. A stand-in repeats what was captured; see test_gpu.py for
the real thing."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Gatekeeper, run_one
from torch import Tensor, nn
from torch.nn import functional as F

from torchshare import Job
from torchshare.isolation import routing
from torchshare.training import cuda_graph


class Captures:
    """A C++ job whose graphs are the captured work, done again."""

    def __init__(self, handle: Any, fails: Exception | None = None) -> None:
        self._handle = handle
        self._fails = fails
        self.captured: list[Callable[[], None]] = []
        self.launches: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self._fails is not None:
            raise self._fails
        self.captured.append(work)
        return work

    def launch(self, graph: Callable[[], None], name: str) -> None:
        self.launches.append(name)
        graph()


def graphed(job: Job, loss_fn: Callable[..., Tensor], fails: Exception | None = None) -> cuda_graph.Graphed:
    job._context.handle = Captures(job._context.handle, fails)  # type: ignore[assignment]
    return cuda_graph.Graphed(job._context, loss_fn, torch.device("cpu"))


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def train(job: Job, graph: bool, set_to_none: bool = True, batches: int = 6) -> tuple[dict[str, Tensor], Any, Any]:
    model = make_model()
    unused = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.1, momentum=0.9, weight_decay=0.1)

    def loss_fn(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    loss = graphed(job, loss_fn) if graph else loss_fn
    data = [(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(batches)]
    data.append((torch.randn(5, 8), torch.randint(0, 3, (5,))))
    losses = []
    for batch in job.batches(data, 8, reduction="mean"):
        losses.append(batch.backward(loss).item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    assert unused.grad is None
    assert torch.equal(unused, torch.ones(3))
    return model.state_dict(), losses, torch.rand(3)


@pytest.mark.filterwarnings("ignore:.*takes its statistics")
@pytest.mark.parametrize("set_to_none", [True, False])
def test_it_trains_as_eager_does(set_to_none: bool) -> None:
    eager, eager_losses, eager_random = run_one(lambda job: train(job, False, set_to_none)).value
    weights, losses, after = run_one(lambda job: train(job, True, set_to_none)).value
    assert losses == eager_losses
    assert all(torch.equal(eager[name], tensor) for name, tensor in weights.items())
    assert torch.equal(eager_random, after)


def test_while_another_job_compiles_it_runs_in_eager_and_is_captured_later() -> None:
    """Its warm-up needs a global hook, which dynamo cannot bear in the middle of a compilation."""
    keeper = Gatekeeper()

    def compiles() -> None:
        with routing._turns:  # type: ignore[union-attr]
            keeper.pause()

    def job(job: Job) -> list[list[str]]:
        loss = graphed(job, lambda x: (x * torch.ones((), requires_grad=True)).sum())
        other = threading.Thread(target=compiles)
        other.start()
        assert keeper.reached.wait(300)
        launches = []
        for batch in job.batches([torch.randn(4, 4)] * 2):
            batch.backward(loss)
            launches.append(list(job._context.handle.launches))  # type: ignore[attr-defined]
            keeper.release.set()
            other.join()
        assert loss.fallback is None
        return launches

    during, after = run_one(job).value
    assert (len(during), len(after)) == (0, 1)


@pytest.mark.filterwarnings("ignore:.*takes its statistics")
def test_one_capture_for_each_shape_and_weight() -> None:
    def count(job: Job) -> tuple[int, list[str]]:
        train(job, True)
        return len(job._context.handle.captured), job._context.handle.launches  # type: ignore[attr-defined]

    captured, launches = run_one(count).value
    assert captured == 2  # half of a batch of 16, and the whole of one of 5
    assert len(launches) == 13
    assert launches[0].endswith("loss_fn, 8 rows")


@pytest.mark.filterwarnings("ignore:.*takes its statistics")
def test_a_compiled_model_trains_as_without_a_graph() -> None:
    """Its warm-up leaves the buffers alone, and nothing is left to compile for the capture."""
    compiled: list[bool] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make_model()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    def train_compiled(job: Job, graph: bool) -> dict[str, Tensor]:
        model = Net()
        in_warm_up = True

        def backend(traced: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
            compiled.append(in_warm_up)
            return traced.forward

        model.compile(backend=backend)
        loss_fn = lambda x, y: F.cross_entropy(model(x), y)  # noqa: E731
        loss = graphed(job, loss_fn) if graph else loss_fn
        for batch in job.batches([(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(3)], 8):
            batch.backward(loss)
            in_warm_up = False
        return model.state_dict()

    expected = run_one(lambda job: train_compiled(job, False)).value
    compiled.clear()
    found = run_one(lambda job: train_compiled(job, True)).value
    assert compiled == [True]
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_gradients_that_are_there_are_added_to() -> None:
    def train_twice(job: Job) -> Tensor:
        weights = torch.ones(4, requires_grad=True)
        loss = graphed(job, lambda x: (weights * x).sum())
        (weights * 10).sum().backward()
        for batch in job.batches([[torch.full((2, 4), 1.0)], [torch.full((2, 4), 2.0)]]):
            batch.backward(loss)
        assert weights.grad is not None
        return weights.grad

    assert run_one(train_twice).value.tolist() == [16.0] * 4


def fallen_back(
    make_loss: Callable[[Job, Tensor], Callable[..., Tensor]], fails: Exception | None = None
) -> tuple[str, int]:
    """Why it fell back, and how many launches there were; trains like eager all the same."""

    def run(job: Job) -> tuple[str | None, int, Tensor]:
        weights = torch.ones(4, requires_grad=True)
        loss = graphed(job, make_loss(job, weights), fails)
        for batch in job.batches([[torch.full((rows, 4), 1.0)] for rows in range(1, 12)]):
            batch.backward(loss)
        assert weights.grad is not None
        return loss.fallback, len(job._context.handle.launches), weights.grad  # type: ignore[attr-defined]

    with pytest.warns(UserWarning, match="job 'alone': forward and backward run in eager, not as a graph"):
        why, launches, gradient = run_one(run).value
    assert gradient.tolist() == [66.0] * 4
    return why, launches


def plain(_job: Job, weights: Tensor) -> Callable[..., Tensor]:
    return lambda x: (weights * x).sum()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("operation not permitted when stream is capturing\nmore"), "operation not permitted when stream"),
        (TypeError("incompatible function arguments"), "incompatible function arguments"),
        (ValueError(), "ValueError"),
    ],
)
def test_what_cannot_be_captured_runs_in_eager(error: Exception, reason: str) -> None:
    why, launches = fallen_back(plain, fails=error)
    assert why.startswith(reason) and "\n" not in why
    assert launches == 0


def test_work_written_in_python_reaches_the_devices_capture() -> None:
    with pytest.raises(RuntimeError, match="job 'alone': device 'cpu' does not support graphs"):
        run_one(lambda job: job._context.handle.capture(lambda: None))


def test_random_numbers_of_the_host_are_no_part_of_a_graph() -> None:
    def draws(_job: Job, weights: Tensor) -> Callable[..., Tensor]:
        return lambda x: (weights * x).sum() + 0 * random.random()

    assert fallen_back(draws) == ("the loss function draws random numbers on the host", 0)


def test_what_is_no_tensor_is_part_of_the_graph() -> None:
    def train_scaled(job: Job) -> tuple[Tensor, int]:
        weights = torch.ones(4, requires_grad=True)
        loss = graphed(job, lambda x, scale: (weights * x).sum() * scale)
        for batch in job.batches([(torch.ones(2, 4), scale) for scale in (1.0, 10.0, 1.0)]):
            batch.backward(loss)
        assert weights.grad is not None
        return weights.grad, len(job._context.handle.captured)  # type: ignore[attr-defined]

    gradient, captured = run_one(train_scaled).value
    assert gradient.tolist() == [24.0] * 4
    assert captured == 2


def test_many_shapes_are_too_many() -> None:
    why, launches = fallen_back(plain)
    assert why == "more than 8 shapes or weights of sub-batches"
    assert launches == 8


def test_on_the_cpu_everything_is_eager_without_a_warning() -> None:
    def run(job: Job) -> str | None:
        weights = torch.ones(4, requires_grad=True)
        loss = job.graph(lambda x: (weights * x).sum())
        assert loss(torch.ones(4)).item() == 4
        for batch in job.batches([torch.ones(2, 4)]):
            batch.backward(loss)
        return loss.fallback

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_one(run).value == "jobs on the CPU have no graphs"


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(TypeError, match=r"job 'alone': loss_fn must be callable, got None"):
        run_one(lambda job: job.graph(None))  # type: ignore[arg-type]

    def wrong_loss(job: Job) -> None:
        for batch in job.batches([torch.ones(2, 4)]):
            batch.backward(graphed(job, lambda x: x))

    with pytest.raises(TypeError, match="the loss is not a tensor with one element"):
        run_one(wrong_loss)
