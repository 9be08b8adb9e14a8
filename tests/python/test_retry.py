"""Batches that run out of memory are repeated in smaller sub-batches, with the weights of a run that began so."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import run_one
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import torchshare
from torchshare import Job
from torchshare.context.sub_batch_rows import SubBatchRows
from torchshare.training.undo import Buffers

GIB = 2**30
ROWS, FAILING = 8, 2
Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def quick_collections() -> Iterator[None]:
    """Each repeated batch collects garbage."""
    gc.freeze()
    yield
    gc.unfreeze()


class Drawing(nn.Module):
    """Draws from all random states, and has buffers that are changed in place, replaced, and large."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("table", torch.arange(100_000.0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        scale = 1 + 0.1 * random.random() + 0.1 * numpy.random.rand()
        return (x + self.average) * scale + self.table[3] / 10


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 6), Drawing(), nn.Linear(6, 1)
    )


def data(batches: int = 5) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(ROWS, 6, generator=generator), torch.randn(ROWS, 1, generator=generator)) for _ in range(batches)
    ]


def train(
    job: Job,
    parts: list[tuple[list[tuple[Tensor, Tensor]], int | None]],
    zero_every: int,
    refuse: tuple[int, int] | None,
) -> list[Tensor]:
    """Trains on each part with its sub-batch; gradients accumulate over `zero_every` batches. `refuse`: a batch, and
    which of its allocations is refused. Returns losses, state and the next random numbers."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    to_refuse = refuse

    def loss_fn(x: Tensor, y: Tensor) -> Tensor:
        nonlocal to_refuse
        if to_refuse is not None and len(losses) == to_refuse[0]:
            job._context.handle.refuse_memory_after(to_refuse[1])
            to_refuse = None
        return F.mse_loss(net(x), y)

    for batches, sub_batch in parts:
        for batch in job.batches(batches, sub_batch):
            losses.append(batch.backward(loss_fn))
            job._context.handle.refuse_memory_after(-1)
            if len(losses) % zero_every == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
    drawn = torch.tensor([torch.rand(()).item(), random.random(), numpy.random.rand()])
    return [*losses, *net.state_dict().values(), drawn]


@pytest.mark.parametrize(("failing", "zero_every"), [(0, 1), (2, 1), (3, 2)])
def test_a_batch_refused_at_any_allocation_is_repeated(failing: int, zero_every: int, caplog: Any) -> None:
    """In forward and backward, in the first batch and later ones, with gradients from before and without."""
    batches = data()

    def run(job: Job, sub_batch: int | None, refuse: tuple[int, int] | None = None) -> list[Tensor]:
        job._context.retry, job._context.rows_at_once = None, SubBatchRows(regrow_after=0)
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        caplog.clear()
        parts = [(batches[:failing], None), (batches[failing:], sub_batch)][failing == 0 :]
        return train(job, parts, zero_every, refuse)

    def job(job: Job) -> int:
        whole, halves = run(job, None), run(job, ROWS // 2)
        for allocation in range(1000):
            ended = run(job, None, (failing, allocation))
            if "ran out of memory" not in caplog.text:
                assert all(map(torch.equal, ended, whole))
                return allocation
            assert "with 8 rows at a time; it is repeated with 4" in caplog.text
            assert all(map(torch.equal, ended, halves)), allocation
        raise AssertionError

    assert run_one(job, memory_budget=GIB, regrow_after=0).value > 40


def test_sub_batches_grow_again_and_later_if_that_was_too_early() -> None:
    rows = SubBatchRows(regrow_after=3)
    seen = []
    for refused in [True, *[False] * 3, True, *[False] * 7]:
        now = rows.of(8)
        if refused:
            rows.halve(now)
            now = rows.of(8)
        rows.count(now)
        seen.append(now)
    assert seen == [4, 4, 4, 8, 4, 4, 4, 4, 4, 4, 8, 8]
    assert SubBatchRows(regrow_after=0, limit=4).of(3) == 3


def test_one_row_that_does_not_fit_fails_the_job_alone(caplog: Any) -> None:
    def wide(job: Job) -> None:
        net = nn.Sequential(nn.Linear(6, 400_000), nn.Tanh(), nn.Linear(400_000, 1))
        for batch in job.batches(data(1)):
            batch.backward(lambda x, y: F.mse_loss(net(x), y))

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(wide, name="wide", memory_budget=2**24, threads=1)
        runtime.submit(lambda job: train(job, [(data(), None)], 1, None), name="other", memory_budget=GIB, threads=1)
        results = runtime.wait(300, check=False)
    assert isinstance(results["wide"].exception, torchshare.BudgetExceeded)
    assert "one row at a time does not fit" in caplog.text
    assert results["other"].state == "finished"


def test_both_jobs_may_run_out_of_memory_at_once() -> None:
    def fits_in_halves(job: Job) -> tuple[list[Tensor], int]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(6, 4096), nn.Tanh(), nn.Linear(4096, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        batches = [(torch.randn(256, 6, generator=generator), torch.randn(256, 1, generator=generator))] * 4
        for batch in job.batches(batches):
            batch.backward(lambda x, y: F.mse_loss(net(x), y))
            optimizer.step()
            optimizer.zero_grad()
        return list(net.state_dict().values()), job._context.rows_at_once.limit or 0

    with torchshare.Runtime(device="cpu") as runtime:
        for name in ("a", "b"):
            runtime.submit(fits_in_halves, name=name, memory_budget=5 * 2**20, threads=1)
        results = runtime.wait(300)
    weights, limit = results["a"].value
    assert 0 < limit < 256
    alone = run_one(fits_in_halves, sub_batch=limit).value[0]
    assert all(map(torch.equal, weights, alone))
    assert all(map(torch.equal, results["b"].value[0], alone))


@pytest.mark.parametrize("how", ["resplit", "hook", "new"])
def test_a_batch_that_cannot_be_repeated_fails_and_says_why(how: str, caplog: Any) -> None:
    """Where it is off, where an optimizer steps during the backward pass, and where a later batch calls what no batch
    did before."""

    def job(job: Job) -> None:
        nets = [model(), model()]
        if how == "hook":
            nets[0][0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
        for number, batch in enumerate(job.batches(data())):
            net = nets[how == "new" and number >= FAILING]
            if number == FAILING:
                job._context.handle.refuse_memory_after(20)
            batch.backward(lambda x, y, net=net: F.mse_loss(net(x), y))

    with pytest.raises(torchshare.BudgetExceeded):
        run_one(job, memory_budget=GIB, resplit=how != "resplit")
    reason = {
        "resplit": "resplit is off",
        "hook": "a hook acts on gradients during the backward pass",
        "new": "it calls Sequential, which no batch did before",
    }[how]
    assert f"a batch ran out of memory and is not repeated: {reason}" in caplog.text


class Recurrent(nn.Module):
    """A buffer that is None at first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(6, 8), nn.Linear(8, 1)
        self.register_buffer("state", None)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(x) + (0 if self.state is None else self.state))
        self.state = hidden.detach().mean(0)
        return self.out(hidden)


class WithLoss(nn.Module):
    """A loss function that is a method, and buffers that change late or are expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 1)
        self.changes_book = False
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("book", torch.zeros(20_000, 6))
        self.register_buffer("mask", torch.ones(1, 1).expand(8, 6))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        if self.changes_book:
            self.book.data[:8].mul_(0.9).add_(x.mean(0), alpha=0.1)
        return F.mse_loss(self.inner((x - self.mean) * self.mask[: len(x)] - self.book[:1]), y)


def case(kind: str, job: Job) -> tuple[nn.Module, Loss]:
    net: nn.Module
    if kind == "method":
        net = WithLoss()
        return net, net.loss
    if kind == "none":
        net = Recurrent()
    elif kind == "sparse":
        net = nn.Sequential(nn.Embedding(50, 6, sparse=True), nn.Linear(6, 1))
        return net, lambda x, y: F.mse_loss(net((x[:, 0] * 7).long() % 50), y)
    else:
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    if kind == "reentrant":
        checkpointed = torch.utils.checkpoint.checkpoint
        return net, lambda x, y: F.mse_loss(net[2](checkpointed(net[1], net[0](x), use_reentrant=True)), y)
    if kind == "generator":
        own = torch.Generator().manual_seed(3)
        job.track(noise=own)
        return net, lambda x, y: F.mse_loss(net(x + torch.randn(x.shape, generator=own)), y)
    if kind == "compiled":
        return net, torch.compile(lambda x, y: F.mse_loss(net(x), y), backend="eager")
    return net, lambda x, y: F.mse_loss(net(x), y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["none", "method", "sparse", "reentrant", "generator", "compiled"])
@pytest.mark.parametrize("failing", [0, 1])
def test_whatever_a_batch_changes_is_put_back(kind: str, failing: int, caplog: Any) -> None:
    def run(job: Job, sub_batch: int | None, refuse: int | None) -> list[Tensor]:
        job._context.retry, job._context.rows_at_once = None, SubBatchRows(regrow_after=0)
        job._context.tracked.objects.clear()
        torch.manual_seed(0)
        caplog.clear()
        net, loss = case(kind, job)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        batches = data(3)
        parts = [(batches[:failing], None), (batches[failing:], sub_batch)][failing == 0 :]
        number = 0
        for part, rows in parts:
            for batch in job.batches(part, rows):
                if refuse is not None and number == failing:
                    job._context.handle.refuse_memory_after(refuse)
                batch.backward(loss)
                job._context.handle.refuse_memory_after(-1)
                optimizer.step()
                optimizer.zero_grad()
                number += 1
                net.changes_book = True  # not in the first batch
        return [tensor.detach().clone() for tensor in (*net.parameters(), *net.buffers())]

    def job(job: Job) -> int:
        halves = run(job, ROWS // 2, None)
        for allocation in range(0, 200, 1 if kind != "compiled" else 5):
            try:
                ended = run(job, None, allocation)
            except torch._dynamo.exc.TorchRuntimeError:
                continue  # refused to the compiler
            if "ran out of memory" not in caplog.text:
                return allocation
            assert "it is repeated with 4" in caplog.text
            assert all(map(torch.equal, ended, halves)), allocation
        raise AssertionError

    assert run_one(job, memory_budget=GIB).value > 10


def test_lazy_modules_train_with_a_budget() -> None:
    def job(job: Job) -> int:
        net = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 1))
        job.track(model=net)
        for batch in job.batches(data(2)):
            batch.backward(lambda x, y: F.mse_loss(net(x), y))
        return job.result.steps

    assert run_one(job, memory_budget=GIB).value == 2


class Copies(TorchDispatchMode):
    """Notes the types of the tensors that each call copies together."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[set[torch.dtype]] = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if op is torch.ops.aten._foreach_copy_.default:
            self.calls.append({tensor.dtype for tensor in args[0]})
        return op(*args, **(kwargs or {}))


def saved(*modules: nn.Module) -> Buffers:
    """The buffers of the modules, saved as before the second batch that calls them and before later ones."""
    buffers = Buffers()
    for module in modules:
        buffers.add(module)
    for _ in range(2):
        buffers.forget()
        buffers.save()
    return buffers


def norms() -> nn.Sequential:
    return nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(3)))


def test_buffers_of_one_type_are_copied_in_one_call() -> None:
    """On a GPU, a call with several types copies each tensor by itself: 168 of a ShuffleNet before each step."""
    model = norms()
    buffers = saved(model)
    with Copies() as copies:
        buffers.save()
    assert sorted(map(str, copies.calls)) == ["{torch.float32}", "{torch.int64}"]
    before = [buffer.clone() for buffer in model.buffers()]
    model(torch.randn(8, 4))
    buffers.restore()
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before, strict=True))


def other_shape(model: nn.Sequential) -> None:
    model[1].running_mean.data = torch.full((7,), 3.0)


def other_tensor(model: nn.Sequential) -> None:
    model[1].running_mean = torch.full((4,), 3.0)


def other_type(model: nn.Sequential) -> None:
    model.double()


def other_name(model: nn.Sequential) -> None:
    model[1]._buffers["mean"] = model[1]._buffers.pop("running_mean")


def one_more(model: nn.Sequential) -> None:
    model[2].register_buffer("late", torch.full((2,), 3.0))


def one_less(model: nn.Sequential) -> None:
    del model[0].running_var


def shared(model: nn.Sequential) -> None:
    model[0].running_mean = model[1].running_mean


def other_values(model: nn.Sequential) -> None:
    model[1].running_mean.data.fill_(3.0)  # torch's version of it stays


CHANGES = [other_shape, other_tensor, other_type, other_name, one_more, one_less, shared, other_values]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_a_job_does_to_buffers_between_batches_is_kept(change: Callable[[nn.Sequential], None]) -> None:
    model = norms()
    buffers = saved(model)
    change(model)
    buffers.save()
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers(remove_duplicate=False)}
    with torch.no_grad():
        for buffer in model.buffers():
            buffer.add_(1)
        model[1].register_buffer("made_by_the_pass", torch.ones(1))
    buffers.restore()
    after = dict(model.named_buffers(remove_duplicate=False))
    assert after.keys() == before.keys()
    assert all(after[name] is buffer and torch.equal(buffer, copy) for name, (buffer, copy) in before.items())


def test_a_buffer_of_two_modules_gets_the_value_from_before_the_first_pass() -> None:
    first, second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    second.running_mean = first.running_mean
    buffers = Buffers()
    buffers.save()
    buffers.add(first)
    first(torch.randn(8, 4) + 5)
    buffers.add(second)  # when its first pass begins
    buffers.restore()
    assert torch.equal(second.running_mean, torch.zeros(4))


def test_copies_are_freed_with_their_module() -> None:
    kept, dropped = nn.BatchNorm1d(4), nn.Module()
    dropped.register_buffer("mask", torch.ones(100))
    buffers = saved(kept, dropped)
    mask = weakref.ref(dropped.mask)
    del dropped
    assert mask() is None and len(buffers._copies) == 3
    kept.running_mean.fill_(1)
    buffers.save()
    kept.running_mean.fill_(2)
    buffers.restore()
    assert torch.equal(kept.running_mean, torch.ones(4))


def test_copies_are_freed_with_their_owner_at_once() -> None:
    model = norms()
    buffers = saved(model)
    copies = [weakref.ref(copy) for _, copy in buffers._copies.values()]
    del buffers  # garbage is not collected in these tests
    assert [copy() for copy in copies] == [None] * 9


def test_buffers_of_a_script_module_are_put_back() -> None:
    """It makes a new dictionary of them at each look."""
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.BatchNorm1d(4)))
    buffers = saved(model)
    model(torch.randn(8, 4))
    assert model[1].num_batches_tracked == 1
    buffers.restore()
    assert model[1].num_batches_tracked == 0


def test_a_buffer_that_a_module_has_deleted_before_stays_deleted() -> None:
    module = nn.Module()
    module.register_buffer("once", torch.ones(1))
    buffers = saved(module)
    del module.once
    buffers.save()
    buffers.restore()
    assert not dict(module.named_buffers())


def test_a_buffer_that_the_failed_pass_deletes_is_one_again() -> None:
    module = nn.BatchNorm1d(4)
    buffers = saved(module)
    mean = module.running_mean
    del module.running_mean
    module.running_mean = 1.0  # a plain attribute
    buffers.restore()
    assert module.running_mean is mean and module.state_dict()["running_mean"] is not None


def test_an_expanded_buffer_may_get_memory_of_its_own() -> None:
    module = nn.Module()
    module.register_buffer("m", torch.ones(1).expand(4))
    buffers = saved(module)
    module.m.data = torch.ones(4)
    buffers.save()
    module.m += 5
    buffers.restore()
    assert torch.equal(module.m, torch.ones(4))


@pytest.mark.parametrize("kind", ["csr", "coo", "nested", "jagged"])
@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta:UserWarning", "ignore:The PyTorch API of nested"
)
def test_buffers_without_strides_train_with_a_budget(kind: str) -> None:
    def job(job: Job) -> Tensor:
        net = nn.Linear(3, 1)
        pieces = [torch.ones(2), torch.ones(3)]
        made = {
            "csr": lambda: torch.eye(3).to_sparse_csr(),
            "coo": lambda: torch.eye(3).to_sparse(),
            "nested": lambda: torch.nested.nested_tensor(pieces),
            "jagged": lambda: torch.nested.nested_tensor(pieces, layout=torch.jagged),
        }
        net.register_buffer("structure", made[kind](), persistent=False)
        for batch in job.batches(data(3)):
            batch.backward(lambda x, y: F.mse_loss(net(x[:, :3]), y))
        return net.structure

    assert run_one(job, memory_budget=GIB).value.is_nested == (kind in ("nested", "jagged"))
