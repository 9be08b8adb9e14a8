"""A job that resumes from a checkpoint ends as if it had never stopped, bit for bit."""

from __future__ import annotations

import functools
import io
import itertools
import logging
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import Gatekeeper
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torchshare
from torchshare import Batch, Job, JobFailed
from torchshare.checkpoints import job_files
from torchshare.context.rank import Rank

Weights = dict[str, Any]


class Stop(Exception):
    pass


class Fault:
    """Stops a job at a step of its loop, once."""

    def __init__(self, at: int = -1) -> None:
        self.at = at

    def step(self) -> None:
        self.at -= 1
        if self.at == 0:
            raise Stop


def run(function: Callable[[Job], Any], folder: Path | None = None, resume: bool = True, **options: Any) -> Any:
    kept = {} if folder is None else {"checkpoint": folder, "every": 3, "resume": resume}
    with torchshare.Runtime(device="cpu", **kept) as runtime:
        runtime.submit(function, **{"name": "a", "threads": 1, **options})
        return runtime.wait(300)["a"].value


def identical(a: Any, b: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def train_on(
    batches: Iterator[Batch], loss: Callable[..., Any], optimizer: torch.optim.Optimizer, fault: Fault
) -> None:
    for batch in batches:
        batch.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        fault.step()


def assert_resumes(trainer: Callable[[Fault], Callable[[Job], Any]], at: int, folder: Path) -> None:
    """A job that stops at a step and is resumed ends as one that does not."""
    whole = run(trainer(Fault()))
    with pytest.raises(JobFailed):
        run(trainer(Fault(at)), folder)
    assert identical(run(trainer(Fault()), folder), whole)


def test_save_writes_a_checkpoint_now(tmp_path: Path) -> None:
    gate = Gatekeeper()

    def train(job: Job) -> None:
        model = nn.Linear(4, 2)
        job.track(model=model)
        for step, batch in enumerate(job.batches(itertools.repeat((torch.ones(8, 4),)))):
            if step == 5:
                gate.pause()
            batch.backward(lambda x: model(x).mean())

    with torchshare.Runtime(device="cpu", checkpoint=tmp_path) as runtime:
        job = runtime.submit(train, name="a", threads=1)
        job.save()  # it has not begun: no effect
        runtime.start()
        assert gate.reached.wait(300)
        began = time.monotonic()
        job.save(timeout=0.05)
        assert time.monotonic() - began >= 0.05
        assert not list(tmp_path.glob("a.*.pt"))
        gate.release.set()
        job.save()
        assert list(tmp_path.glob("a.*.pt"))
        job.cancel()


class Noisy(Dataset[Any]):
    """Augments its rows by all three kinds of random numbers."""

    def __init__(self, rows: int = 44) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(rows, 6, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index] + torch.randn(6) * 0.1 + random.random() + numpy.random.rand(), index % 3


def model_of() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def sgd(fault: Fault, width: int = 2) -> Callable[[Job], Weights]:
    """The shortest: one pass, a list as the loader."""

    def train(job: Job) -> Weights:
        model = nn.Linear(4, width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batches = [(torch.randn(8, 4), torch.randn(8, width)) for _ in range(20)]
        job.track(model=model, optimizer=optimizer)
        train_on(job.batches(batches), lambda x, y: F.mse_loss(model(x), y), optimizer, fault)
        return model.state_dict()

    return train


def noisy(fault: Fault, epochs: str = "job", workers: int = 0, **of_loader: Any) -> Callable[[Job], Weights]:
    """Adam, a schedule per step and one per epoch, dropout, a shuffling loader, and evaluation that draws numbers."""

    def train(job: Job) -> Weights:
        model = model_of()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
        per_step = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=9)
        loader = DataLoader(Noisy(), 10, shuffle=True, num_workers=workers, **of_loader)
        job.track(model=model, optimizer=optimizer, scheduler=scheduler, per_step=per_step, loader=loader)
        seen = []
        for _epoch in job.epochs(4) if epochs == "job" else range(4):
            for batch in job.batches(loader, sub_batch=4):
                batch.backward(lambda x, y: F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                per_step.step()
                fault.step()
            seen = [random.random(), numpy.random.rand(), torch.rand(1)]
            scheduler.step()
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr": per_step.get_last_lr(),
            "s": seen,
        }

    return train


TRAINERS: dict[str, Callable[[Fault], Callable[[Job], Weights]]] = {
    "sgd": sgd,
    "epochs": noisy,
    "passes": lambda fault: noisy(fault, epochs="range"),
    "generator": lambda fault: noisy(fault, generator=torch.Generator().manual_seed(5)),
}


@functools.cache
def uninterrupted(trainer: Callable[[Fault], Callable[[Job], Weights]], **options: Any) -> Weights:
    """What a job returns that nothing stops. Tests share it."""
    return run(trainer(Fault()), **options)


@pytest.mark.filterwarnings("ignore:.*takes its statistics")
@pytest.mark.parametrize("at", [2, 8, 10, 16, 20])
@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_a_resumed_job_ends_bit_identically(trainer, at: int, tmp_path: Path):
    """Stopped twice: in a first run, and in the one that resumes."""
    for stop in (at, 2):
        with pytest.raises(JobFailed):
            run(trainer(Fault(stop)), tmp_path)
    resumed = run(trainer(Fault()), tmp_path)
    assert identical(resumed, uninterrupted(trainer))
    assert not identical(resumed, uninterrupted(trainer, seed=9))  # the comparison can fail


@pytest.mark.filterwarnings("ignore:.*takes its statistics", "ignore:.*use of fork")
@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_with_workers(persistent: bool, tmp_path: Path):
    """Their random state comes from a seed that is drawn at the beginning of a pass."""

    def trainer(fault: Fault) -> Callable[[Job], Weights]:
        if not persistent:
            return noisy(fault, workers=2)
        plain = TensorDataset(Noisy().x, torch.arange(44) % 3)  # persistent workers keep their random state
        return with_data(plain, fault)

    def with_data(data: Dataset[Any], fault: Fault) -> Callable[[Job], Weights]:
        def train(job: Job) -> Weights:
            model = model_of()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            loader = DataLoader(data, 10, shuffle=True, num_workers=2, persistent_workers=True)
            job.track(model=model, optimizer=optimizer, loader=loader)
            for _epoch in job.epochs(4):
                train_on(job.batches(loader), lambda x, y: F.cross_entropy(model(x), y), optimizer, fault)
            return model.state_dict()

        return train

    assert_resumes(trainer, 13, tmp_path)


class Stateful:
    """A loader that knows its place, and refuses to be asked for what was done."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.at, self.yielded = batches, 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self.batches):
            self.yielded += 1
            self.at += 1
            yield self.batches[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["next"]


def test_a_loader_with_a_state_goes_to_its_place_by_itself(tmp_path: Path):
    loaders = []

    def trainer(fault: Fault) -> Callable[[Job], Weights]:
        def train(job: Job) -> Weights:
            model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1))
            loader = Stateful([torch.randn(8, 4) for _ in range(10)])
            loaders.append(loader)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            job.track(model=model, loader=loader)
            for _epoch in range(3):
                train_on(job.batches(loader), lambda x: model(x).square().sum(), optimizer, fault)
            return model.state_dict()

        return train

    assert_resumes(trainer, 17, tmp_path)
    assert loaders[-1].yielded == 5 + 10  # step 15 was the last one saved


def test_gradients_that_wait_for_more_batches_are_not_lost(tmp_path: Path):
    """The optimizer steps after every second batch; checkpoints are due after every third."""

    def trainer(fault: Fault) -> Callable[[Job], Weights]:
        def train(job: Job) -> Weights:
            model = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            batches = [torch.randn(8, 4) for _ in range(20)]
            job.track(model=model, optimizer=optimizer)
            for number, batch in enumerate(job.batches(batches)):
                batch.backward(lambda x: model(x).square().mean())
                if model.weight.grad is not None and (number + skipped(job)) % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                fault.step()
            return model.state_dict()

        return train

    def skipped(job: Job) -> int:
        return resumed_at[0] % 2

    resumed_at = [0]
    whole = run(trainer(Fault()))
    with pytest.raises(JobFailed):
        run(trainer(Fault(6)), tmp_path)
    assert steps_in(tmp_path) == [4]
    assert identical(run(trainer(Fault()), tmp_path), whole)


def test_two_loops_over_epochs(tmp_path: Path):
    def trainer(fault: Fault) -> Callable[[Job], Weights]:
        def train(job: Job) -> Weights:
            model = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            batches = [torch.randn(8, 4) for _ in range(3)]
            job.track(model=model, optimizer=optimizer)
            seen = []

            def one_pass() -> None:
                train_on(
                    job.batches(batches),
                    lambda x: model(x).square().mean() + torch.rand(()) * model.weight.sum(),
                    optimizer,
                    fault,
                )

            one_pass()
            for epoch in job.epochs(3):
                seen.append(epoch)
                one_pass()
            one_pass()
            for epoch in job.epochs(2):
                seen.append(epoch)
                one_pass()
            return {"model": model.state_dict(), "seen": seen}

        return train

    whole = run(trainer(Fault()))
    assert whole["seen"] == [0, 1, 2, 0, 1]
    for at, seen in ((2, [0, 1, 2, 0, 1]), (11, [1, 2, 0, 1]), (14, [2, 0, 1]), (17, [0, 1]), (21, [0, 1])):
        folder = tmp_path / str(at)
        with pytest.raises(JobFailed):
            run(trainer(Fault(at)), folder)
        resumed = run(trainer(Fault()), folder)
        assert identical(resumed["model"], whole["model"])
        assert resumed["seen"] == seen


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.split(".")[-2]) for path in folder.glob("*.pt"))


def stopped(folder: Path, at: int = 14) -> Weights:
    """Leaves checkpoints of steps 9 and 12 in the folder. Returns what the job would have become."""
    with pytest.raises(JobFailed):
        run(sgd(Fault(at)), folder)
    assert steps_in(folder) == [9, 12]
    return run(sgd(Fault()))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    """A file of torch that is no checkpoint."""
    torch.save({"step": 12}, path)


def of_another_job(path: Path) -> None:
    with pytest.raises(JobFailed):
        run(sgd(Fault(14)), path.parent / "other", name="b")
    path.write_bytes((path.parent / "other" / "b.00000012.pt").read_bytes())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (flip, "its checksum differs from its contents"),
    "cut": (cut, "it is incomplete, or no checkpoint"),
    "empty": (lambda path: path.write_bytes(b""), "it is incomplete, or no checkpoint"),
    "foreign": (foreign, "it is incomplete, or no checkpoint"),
    "of another job": (of_another_job, "its job is 'b', must be 'a'"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    "missing": (Path.unlink, ""),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_and_the_older_one_used(damage, reason, tmp_path: Path, caplog):
    whole = stopped(tmp_path)
    damage(tmp_path / "a.00000012.pt")
    with caplog.at_level(logging.WARNING, "torchshare"):
        assert identical(run(sgd(Fault()), tmp_path), whole)
    assert "resumes at step 9" in caplog.text and reason in caplog.text
    assert ("is refused" in caplog.text) == bool(reason)


def test_every_flipped_byte_is_found(tmp_path: Path):
    """Also in the padding, and in the checksum itself."""

    stopped(tmp_path)
    path = tmp_path / "a.00000012.pt"
    data = path.read_bytes()
    (tmp_path / "a.00000009.pt").unlink()
    files = job_files.JobFiles(tmp_path, "a", Rank(0, 1))
    assert files.usable()
    for at in [*range(0, len(data), 97), *range(len(data) - 90, len(data))]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        assert not files.usable(), at


def test_what_a_killed_process_left_goes_with_the_next_checkpoint(tmp_path: Path):
    """Of this job and rank alone: others may be writing."""
    token = "0123456789abcdef"
    for name in ("a.00000001.pt", "a.00000001.rank1.pt", "b.00000001.pt"):
        (tmp_path / f".{name}.{token}.part").touch()
    job_files.JobFiles(tmp_path, "a", Rank(0, 1)).write(2, {})
    left = [f".a.00000001.rank1.pt.{token}.part", f".b.00000001.pt.{token}.part", "a.00000002.pt"]
    assert sorted(os.listdir(tmp_path)) == left


def test_without_a_usable_file_the_job_starts_from_its_beginning(tmp_path: Path, caplog):
    whole = stopped(tmp_path)
    for path in tmp_path.glob("*.pt"):
        flip(path)
    with caplog.at_level(logging.WARNING, "torchshare"):
        assert identical(run(sgd(Fault()), tmp_path), whole)
    assert caplog.text.count("is refused") == 2 and "starts from the beginning" in caplog.text
    assert steps_in(tmp_path) == [15, 18]  # the damaged ones are gone


def test_a_checkpoint_of_another_model_is_an_error(tmp_path: Path):
    stopped(tmp_path)

    def other(shape: tuple[int, int], **more: Any) -> Callable[[Job], None]:
        def train(job: Job) -> None:
            model = nn.Linear(*shape)
            job.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **more)
            for _batch in job.batches([torch.ones(1)] * 20):
                pass

        return train

    with pytest.raises(JobFailed, match=r"job 'a': its checkpoint does not fit 'model': .*size mismatch for weight"):
        run(other((5, 2)), tmp_path)
    with pytest.raises(JobFailed, match="has the states of model, optimizer; tracked are ema, model, optimizer"):
        run(other((4, 2), ema=nn.Linear(1, 1)), tmp_path)
    with pytest.raises(JobFailed, match="ended before pass 1 over its loader"):
        run(lambda job: None, tmp_path)
    with pytest.raises(JobFailed, match="yielded 7 batches; its checkpoint was written after 12"):
        run(lambda job: list(job.batches([torch.ones(1)] * 7)), tmp_path)


def test_a_folder_with_checkpoints_is_not_overwritten(tmp_path: Path):
    stopped(tmp_path)
    with pytest.raises(ValueError, match=r"job 'a': .* has checkpoints of it: resume from them, or choose another"):
        run(sgd(Fault()), tmp_path, resume=False)


def test_names_never_become_paths(tmp_path: Path):
    names = ["../x", "a/b", "..", "a.00000001", "x" * 250]
    folder = tmp_path / "inner"
    for fault in (14, -1):
        with torchshare.Runtime(device="cpu", checkpoint=folder, every=3, resume=True) as runtime:
            for name in names:
                runtime.submit(sgd(Fault(fault)), name=name, threads=1)
            results = runtime.wait(300, check=False)
        assert {result.state for result in results.values()} == {"failed" if fault > 0 else "finished"}
        assert len(list(folder.iterdir())) == 2 * len(names)
    assert list(tmp_path.iterdir()) == [folder]
    assert sorted(path.name for path in folder.iterdir() if len(path.name) < 40)[:2] == [
        "%2E%2E%2Fx.00000015.pt",
        "%2E%2E%2Fx.00000018.pt",
    ]
    whole = run(sgd(Fault()))
    assert all(identical(result.value, whole) for result in results.values())


# Errors


@pytest.mark.parametrize(("full", "width"), [(False, 2), (True, 2), (True, 50000)])
def test_training_goes_on_without_checkpoints(full: bool, width: int, tmp_path: Path, caplog):
    """A folder that cannot be made, in the place of a file; a disk on which the first bytes of each file fit."""
    whole, folder = run(sgd(Fault(), width)), tmp_path / "parent" / "folder"
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    if full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, former[1]))
    else:
        folder.parent.write_text("")
    try:
        with caplog.at_level(logging.WARNING, "torchshare"):
            assert identical(run(sgd(Fault(), width), folder, resume=False), whole)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and lines[0].startswith("job 'a': no checkpoint at step 3: ")
    assert ("File too large" if full else "File exists") in lines[0]
    assert not full or list(folder.iterdir()) == []


def test_what_cannot_be_tracked_is_named():
    model = nn.Linear(1, 1)

    class Odd:
        def state_dict(self) -> object:
            return {"value": Odd()}

        def load_state_dict(self, state: object) -> None: ...

    for arguments, message in (
        ({"model": 3}, "job 'a': model must have state_dict"),
        ({"model": nn.Linear}, "got the class Linear"),
        ({"loader": 3}, "job 'a': loader must be an iterable of batches, got int"),
        ({"odd": Odd()}, "job 'a': the state of odd could not be loaded again: "),
        ({"m": model}, "another m is tracked already"),
    ):

        def train(job: Job, arguments: dict[str, Any] = arguments) -> None:
            job.track(m=nn.Linear(1, 1))
            job.track(**arguments)

        with pytest.raises(JobFailed, match=message) as error:
            run(train)
        assert "\n" not in str(error.value)


def test_two_loaders_at_once_must_be_told_apart(tmp_path: Path):
    data = [torch.ones(2, 2)] * 3

    def both(job: Job) -> int:
        job.track(model=nn.Linear(1, 1))
        return sum(1 for _ in zip(job.batches(data), job.batches(list(data)), strict=True))

    def named(job: Job) -> int:
        job.track(loader=data, model=nn.Linear(1, 1))
        return sum(1 for _ in zip(job.batches(data), job.batches(list(data)), strict=True))

    with pytest.raises(JobFailed, match=r"checkpoints follow one loader at a time; name it with job.track"):
        run(both, tmp_path / "a")
    assert run(named, tmp_path / "b") == 3
    assert run(both) == 3  # without checkpoints


def test_options_that_do_not_fit_are_refused(tmp_path: Path):
    for options, message in (
        ({"every": "5 parsecs"}, "every must be a number of steps, or a time such as"),
        ({"every": 0}, "every must be"),
        ({"every": 5}, "every has no effect without checkpoint"),
        ({"resume": True}, "resume has no effect without checkpoint"),
        ({"checkpoint": 5}, "checkpoint must be a folder"),
    ):
        with pytest.raises(ValueError, match=message):
            torchshare.Runtime(device="cpu", **options)


def test_a_job_that_tracks_nothing_is_warned_of(tmp_path: Path, caplog):
    def train(job: Job) -> None:
        for batch in job.batches([torch.ones(1, 1)] * 9):
            assert batch.data is not None

    with caplog.at_level(logging.WARNING, "torchshare"):
        run(train, tmp_path)
        run(lambda job: job.track(model=nn.Linear(1, 1)), tmp_path)
    assert "it has tracked nothing; see Job.track" in caplog.text
    assert "only job.batches, job.fit and torchshare.batches write them" in caplog.text


def test_checkpoints_are_not_charged_to_the_job(tmp_path: Path):
    """A budget that is full when the checkpoint is written."""

    def train(job: Job) -> int:
        model = nn.Linear(512, 1024)  # 2 MiB
        job.track(model=model)
        for batch in job.batches([torch.ones(1, 1)] * 4):
            assert batch.data is not None
        return 1

    assert run(train, tmp_path, memory_budget=3 * 2**20, cache_memory=False) == 1
    assert steps_in(tmp_path) == [3]


def test_fit_resumes(tmp_path: Path):
    """In eager: the optimizer cannot be compiled."""

    def trainer(fault: Fault) -> Callable[[Job], Weights]:
        def train(job: Job) -> Weights:
            model = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.2))
            optimizer = torch.optim.Rprop(model.parameters())
            data = TensorDataset(torch.randn(40, 4))
            loader = DataLoader(data, 8, shuffle=True)
            job.track(model=model, optimizer=optimizer, loader=loader)

            def loss_fn(x: torch.Tensor) -> torch.Tensor:
                fault.step()
                return model(x).square().mean()

            step = job.compiled_step(model, loss_fn, optimizer, next(iter(loader)))
            assert step.fallback is not None
            count = len(job.fit(step, loader, steps=12, prefetch=2)) + len(job.fit(step, loader, prefetch=2))
            return {"model": model.state_dict(), "count": count}

        return train

    whole = run(trainer(Fault()))
    assert whole["count"] == 17
    for at, count in ((9, 17 - 7), (16, 17 - 12)):
        folder = tmp_path / str(at)
        with pytest.raises(JobFailed):
            run(trainer(Fault(at)), folder)
        resumed = run(trainer(Fault()), folder)
        assert identical(resumed["model"], whole["model"])
        assert resumed["count"] == count


def test_a_write_that_fails_once_fails_the_file():
    """torch's own error would be "unexpected pos 64 vs 0"."""

    class FullOnce(io.BytesIO):
        is_full = True

        def write(self, data: Any) -> int:
            if self.is_full:
                self.is_full = False
                raise OSError("No space left on device")
            return super().write(data)

    with pytest.raises(OSError, match="No space left on device"):
        job_files._save({"weights": torch.zeros(9)}, FullOnce())


@pytest.mark.slow
@pytest.mark.parametrize("fits", [False, True])
def test_compiled_steps_resume(fits: bool, tmp_path: Path):
    def trainer(fault: Fault) -> Callable[[Job], Weights]:
        def batches() -> Iterator[torch.Tensor]:
            for _ in range(20):
                fault.step()
                yield torch.randn(8, 4)

        def train(job: Job) -> Weights:
            model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2))
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            job.track(model=model, optimizer=optimizer)
            step = job.compiled_step(model, lambda x: model(x).square().mean(), optimizer, torch.randn(8, 4))
            assert step.fallback is None
            if fits:
                job.fit(step, Once(batches), prefetch=2)
            else:
                for batch in job.batches(Once(batches)):
                    step(batch)
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

        return train

    class Once:
        def __init__(self, make: Callable[[], Iterator[torch.Tensor]]) -> None:
            self.make = make

        def __iter__(self) -> Iterator[torch.Tensor]:
            return self.make()

    whole = run(trainer(Fault()))
    with pytest.raises(JobFailed):
        run(trainer(Fault(12)), tmp_path)
    assert steps_in(tmp_path) == ([6, 10] if fits else [6, 9])
    assert identical(run(trainer(Fault()), tmp_path), whole)
