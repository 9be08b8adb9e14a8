"""What a loader may yield, how it is cut, and what is refused."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from conftest import Gatekeeper, run_one, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import torchshare
from torchshare import Job
from torchshare.training.pytree import map_tensors, tensors


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Labelled:
    x: torch.Tensor
    names: list[str]


X = torch.arange(10.0).view(5, 2)
Y = torch.arange(5)
TREES = {
    "tensor": X,
    "tuple": (X, Y),
    "list": [X, Y],
    "dict": {"x": X, "y": Y},
    "ordered": collections.OrderedDict(x=X, y=Y),
    "defaultdict": collections.defaultdict(list, x=X),
    "namedtuple": Pair(X, Y),
    "dataclass": Labelled(X, ["a", "b"]),
    "nested": {"a": (X, [Y, Labelled(X, [])]), "b": 3, "c": None, "d": torch.tensor(2.5)},
}


def pieces(data: Any, sub_batch: int | None, **options: Any) -> list[torchshare.SubBatch]:
    found: list[torchshare.SubBatch] = []

    def body(job: Job) -> None:
        for batch in job.batches([data], sub_batch, **options):
            found.extend(batch)

    run_one(body)
    return found


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_every_tree_is_cut_by_rows_and_keeps_its_types(tree):
    subs = pieces(tree, 2)
    assert [sub.size for sub in subs] == [2, 2, 1]
    assert [sub.weight for sub in subs] == pytest.approx([0.4, 0.4, 0.2])
    assert all(type(sub.data) is type(tree) for sub in subs)
    whole = list(tensors(tree))
    for path, tensor in whole:
        cut = [dict(tensors(sub.data))[path] for sub in subs]
        assert torch.equal(torch.cat(cut), tensor)
        assert cut[0].data_ptr() == tensor.data_ptr()  # a view, not a copy


def test_other_leaves_pass_through():
    sub = pieces(TREES["nested"], 2)[1]
    assert sub.data["b"] == 3 and sub.data["c"] is None
    assert sub.data["d"] is TREES["nested"]["d"]
    assert pieces(TREES["dataclass"], 2)[0].data.names == ["a", "b"]


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), sub_batch=st.integers(1, 50), columns=st.integers(0, 3))
def test_pieces_cover_the_rows_once_in_order(rows, sub_batch, columns):
    data = torch.arange(rows * (columns + 1)).view(rows, -1)
    ranges = torchshare._core.split_rows(rows, sub_batch)
    cut = [map_tensors(lambda t, b=b, e=e: t.narrow(0, b, e - b), data) for b, e in ranges]
    assert torch.equal(torch.cat(cut), data)
    assert max(end - begin for begin, end in ranges) <= sub_batch
    assert len(ranges) == -(-rows // sub_batch)


def test_x_and_y_name_the_parts_and_say_when_there_are_none():
    sub = pieces((X, Y), None)[0]
    assert sub.x is X and sub.y is Y and sub.weight == 1.0
    with pytest.raises(AttributeError, match="a batch of type dict has no element 0; use `data`"):
        _ = pieces({"x": X}, None)[0].x


class Numbers(Dataset):
    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index


class Stream(IterableDataset):
    def __iter__(self):
        return iter((torch.tensor([float(i)]), i) for i in range(22))


LOADERS = {
    "plain": lambda: DataLoader(Numbers(), batch_size=8),
    "shuffled": lambda: DataLoader(Numbers(), batch_size=8, shuffle=True),
    "dropping the last": lambda: DataLoader(Numbers(), batch_size=11, drop_last=True),
    "two workers": lambda: DataLoader(Numbers(), batch_size=8, num_workers=2),
    "iterable dataset": lambda: DataLoader(Stream(), batch_size=8),
    "sampler": lambda: DataLoader(Numbers(), batch_size=8, sampler=WeightedRandomSampler([1.0] * 22, 22, False)),
    "generator": lambda: (tuple(part) for part in [(torch.arange(22.0).view(22, 1), torch.arange(22))]),
}


@pytest.mark.parametrize(("name", "make"), LOADERS.items(), ids=LOADERS)
def test_every_kind_of_loader_is_read_to_its_end(name, make):
    seen: list[int] = []

    def body(job: Job) -> None:
        for batch in job.batches(make(), sub_batch=3):
            for sub in batch:
                assert sub.size <= 3
                seen.extend(sub.y.tolist())

    result = run_one(body)
    assert sorted(seen) == list(range(22))
    assert result.steps == {"dropping the last": 2, "generator": 1}.get(name, 3)


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "4"])
def test_sub_batch_must_be_a_whole_number_of_rows(value):
    with pytest.raises(ValueError, match=rf"job 'alone': sub_batch must be a positive integer, got {value!r}"):
        pieces(X, value)
    with (
        torchshare.Runtime() as runtime,
        pytest.raises(ValueError, match="job 'early': sub_batch must be a positive integer, got"),
    ):
        runtime.submit(lambda job: None, name="early", sub_batch=value)


def test_sub_batch_must_fit_the_loaders_batch():
    loader = DataLoader(TensorDataset(X), batch_size=4)
    with pytest.raises(ValueError, match="job 'alone': sub_batch must be at most 4, the loader's batch, got 5"):
        run_one(lambda job: job.batches(loader, sub_batch=5))


BAD_BATCHES = {
    "different lengths": ((X, torch.zeros(4)), r"batch 0: batch\[0\] must have 4 rows, as batch\[1\] has, got 5"),
    "empty": ((X[:0], Y[:0]), r"batch 0: batch\[0\] must have at least 1 row, got 0"),
    "no tensor": (["a", "b"], "batch 0: a list has no tensor with rows to split"),
    "an object of the user's": (SimpleNamespace(x=X), "batch 0: a SimpleNamespace has no tensor with rows to split"),
    "a leaf deep inside": (
        {"x": X, "y": [(Y, {"mask": Y[:4]})]},
        r"batch 0: batch\['x'\] must have 4 rows, as batch\['y'\]\[0\]\[1\]\['mask'\] has, got 5",
    ),
}


@pytest.mark.parametrize(("data", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_batches_that_cannot_be_split_are_refused(data, message):
    with pytest.raises(ValueError, match=f"job 'alone', {message}"):
        pieces(data, 2)


def test_nothing_to_count_is_refused():
    with pytest.raises(
        ValueError, match=r"job 'alone', batch 0: count\(\) of the whole batch must be more than 0, got 0.0"
    ):
        pieces(X, 2, count=lambda data: 0)
    with pytest.raises(ValueError, match="count must be None with reduction 'sum', got "):
        pieces(X, 2, reduction="sum", count=len)
    with pytest.raises(ValueError, match="reduction must be 'mean' or 'sum', got 'max'"):
        pieces(X, 2, reduction="max")


def test_a_loader_must_yield_something():
    with pytest.raises(ValueError, match="job 'alone': the loader must yield at least 1 batch, got none"):
        run_one(lambda job: list(job.batches([])))
    with pytest.raises(TypeError, match="job 'alone': the loader must be an iterable of batches, got a int"):
        run_one(lambda job: job.batches(3))


@pytest.mark.parametrize("loss", [torch.ones(2), 1.0, None])
def test_a_loss_must_be_one_number(loss):
    def body(job: Job) -> None:
        for batch in job.batches([X]):
            batch.backward(lambda x: loss)

    with pytest.raises(TypeError, match=r"job 'alone', batch 0: the loss must be a tensor with one element, got "):
        run_one(body)


def test_a_step_is_a_batch_that_was_trained_on():
    def body(job: Job) -> list[int]:
        counts = []
        for index, batch in enumerate(job.batches([X] * 6)):
            counts.append(job.result.steps)
            if index == 1:
                continue  # looked at nothing
            list(batch)
            if index == 4:
                break  # after its step
        return counts

    result = run_one(body)
    assert result.value == [0, 1, 1, 2, 3]
    assert result.steps == 4


def halves(job: Job, batches: list[torch.Tensor], fails: int | None = None) -> Iterator[torch.Tensor]:
    """Trains in two sub-batches and yields the weights after each batch. In the second half of batch `fails`, the loss
    function raises; if the caller goes on, so does the loop."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number, batch in enumerate(job.batches(batches, sub_batch=2)):
        calls = itertools.count()

        def loss(x: torch.Tensor, number: int = number, calls: Iterator[int] = calls) -> torch.Tensor:
            if next(calls) == 1 and number == fails:
                raise RuntimeError("half way")
            return model(x).mean()

        with contextlib.suppress(RuntimeError):
            batch.backward(loss)
            optimizer.step()
        optimizer.zero_grad()
        yield model.weight.detach().clone()


def test_a_batch_that_failed_half_way_is_no_step():
    """A loop that catches the error, and clears the gradients, goes on as without that batch."""
    batches = [torch.arange(8.0).view(4, 2) + number for number in range(4)]
    result = run_one(lambda job: list(halves(job, batches, fails=1)))
    assert result.steps == 3
    first, failed, *later = result.value
    assert torch.equal(failed, first)
    without = run_one(lambda job: list(halves(job, [batches[0], *batches[2:]]))).value
    assert all(map(torch.equal, [first, *later], without))


def test_a_loader_that_raises_ends_its_job_only():
    partner_done = threading.Event()

    def broken():
        yield X
        assert partner_done.wait(300)
        raise OSError("disk gone")

    def partner(job: Job) -> int:
        total = sum(len(list(batch)) for batch in job.batches([X] * 50))
        partner_done.set()
        return total

    with torchshare.Runtime(policy="strict") as runtime:
        runtime.submit(lambda job: [list(batch) for batch in job.batches(broken())], name="broken", priority="primary")
        runtime.submit(partner, name="partner")
        results = runtime.wait(300, check=False)
    assert isinstance(results["broken"].exception, OSError)
    assert results["broken"].steps == 1
    assert results["partner"].value == 50


def test_a_loader_that_ends_early_or_never_leaves_its_partner_alone():
    class TooShort:
        def __len__(self) -> int:
            return 100

        def __iter__(self):
            return iter([X] * 3)

    with torchshare.Runtime(policy="strict") as runtime:
        runtime.submit(lambda job: [list(batch) for batch in job.batches(TooShort())], name="early", priority="primary")
        never = runtime.submit(
            lambda job: [len(list(batch)) for batch in job.batches(itertools.repeat(X))], name="never", threads=1
        )
        partner = runtime.submit(lambda job: [list(batch) for batch in job.batches([X] * 50)], name="partner")
        runtime.start()
        wait_until(lambda: partner.state == "finished" and never.result.steps > 50)
        never.cancel()
        results = runtime.wait(300)
    assert {name: result.state for name, result in results.items()} == {
        "early": "finished",
        "never": "cancelled",
        "partner": "finished",
    }
    assert (results["early"].steps, results["partner"].steps) == (3, 50)


def test_batches_belong_to_the_thread_of_their_job():
    """Another thread that was suspended in the job's place aborted the process."""
    gatekeeper = Gatekeeper()
    used: list[Callable[[], object]] = []

    def body(job: Job) -> int:
        loop = job.batches([X] * 3)
        batch = next(loop)
        used.extend([lambda: next(loop), lambda: list(batch), lambda: batch.backward(torch.sum)])
        gatekeeper.pause()
        return len(list(batch))

    with torchshare.Runtime() as runtime:
        job = runtime.submit(body, name="a", threads=1)
        used.append(lambda: job.batches([X]))
        with pytest.raises(RuntimeError, match="in its own thread, while it runs"):
            used[0]()  # before it runs
        runtime.start()
        assert gatekeeper.reached.wait(300)
        for use in used:
            with pytest.raises(
                RuntimeError, match="job 'a': its batches must be used in its own thread, while it runs"
            ):
                use()
        gatekeeper.release.set()
        assert runtime.wait(300)["a"].value == 1
    with pytest.raises(RuntimeError, match="in its own thread, while it runs"):
        used[0]()  # after close
