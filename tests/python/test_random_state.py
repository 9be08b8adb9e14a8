"""Each job has its own random state: it draws the same numbers as alone, and as plain torch."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from random import shuffle as shuffle_bound_early
from typing import Any

import numpy
import pytest
import torch
from conftest import run_one
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import torchshare
from torchshare import Job


class WorkerDraws(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([torch.rand(()).item(), random.random(), numpy.random.rand()])


def draw_everything(rounds: int = 3) -> list[Any]:
    """Random numbers from every source that a training uses."""
    drawn: list[Any] = []
    lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.5)
    for _ in range(rounds):
        items = list(range(10))
        shuffle_bound_early(items)
        array = numpy.arange(10)
        numpy.random.shuffle(array)
        loader = DataLoader(TensorDataset(torch.arange(20)), batch_size=5, shuffle=True)
        drawn += [
            F.dropout(torch.ones(64), 0.5),
            lstm(torch.ones(5, 2, 4))[0].detach(),
            F.scaled_dot_product_attention(*torch.ones(3, 1, 2, 4, 8), dropout_p=0.5),
            F.rrelu(-torch.ones(16), training=True),
            torch.poisson(torch.full((16,), 3.0)),
            torch.multinomial(torch.ones(8), 20, replacement=True),
            torch.randperm(32),
            torch.normal(0.0, torch.ones(9)),
            torch.distributions.Gamma(2.0, 1.0).sample((7,)),
            torch.cat([batch for (batch,) in loader]),
            [random.random(), random.gauss(0, 1), random.randint(0, 99), random.choices(items, k=3), items],
            [numpy.random.rand(), numpy.random.randn(), array.tolist()],
        ]
    return drawn


def draw_in_workers() -> torch.Tensor:
    return torch.cat(list(DataLoader(WorkerDraws(), batch_size=2, num_workers=2)))


def same(a: list[Any], b: list[Any]) -> bool:
    def equal(x: Any, y: Any) -> bool:
        return torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y

    return len(a) == len(b) and all(map(equal, a, b))


@functools.cache
def in_plain_torch(seed: int) -> list[Any]:
    code = (
        "import pickle, random, sys, numpy, torch; torch.set_num_threads(1)\n"
        f"random.seed({seed}); numpy.random.seed({seed}); torch.manual_seed({seed})\n"
        "import test_random_state as t\n"
        "sys.stdout.buffer.write(pickle.dumps(t.draw_everything()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, check=True)
    return pickle.loads(done.stdout)


def test_two_jobs_draw_what_each_draws_in_plain_torch(policy):
    with torchshare.Runtime(policy=policy) as runtime:
        for name, seed in (("a", 11), ("b", 12)):
            runtime.submit(lambda job: draw_everything(), name=name, seed=seed, threads=1)
        results = runtime.wait(300)
    assert same(results["a"].value, in_plain_torch(11))
    assert same(results["b"].value, in_plain_torch(12))
    assert not same(results["a"].value, results["b"].value)


def test_two_plain_threads_do_not():
    """The control: without isolation, the test above fails."""
    turn = threading.Barrier(2)
    drawn: dict[str, list[float]] = {}

    def draw(name: str) -> None:
        torch.manual_seed(3)
        turn.wait()
        drawn[name] = [torch.rand(()).item() for _ in range(20_000)]

    threads = [threading.Thread(target=draw, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drawn["a"] != drawn["b"]


def test_worker_processes_are_seeded_by_their_job():
    alone = run_one(lambda job: draw_in_workers(), seed=5).value
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: draw_in_workers(), name="a", seed=5, threads=1)
        runtime.submit(lambda job: [torch.rand(3) for _ in range(2000)], name="b")
        assert torch.equal(runtime.wait(300)["a"].value, alone)
    assert alone.unique().numel() == alone.numel()  # and different from each other
    assert not torch.equal(run_one(lambda job: draw_in_workers(), seed=6).value, alone)


def test_seeding_inside_a_job_reaches_that_job_only():
    torch.manual_seed(77)
    random.seed(77)
    numpy.random.seed(77)
    outside = (torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist())

    def body(job: Job) -> None:
        torch.manual_seed(1)
        assert torch.initial_seed() == 1
        state = torch.get_rng_state()
        first = torch.rand(4)
        torch.set_rng_state(state)
        assert torch.equal(torch.rand(4), first)
        assert torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(1)))
        with torch.random.fork_rng(devices=[]):
            torch.rand(5)
        after_fork = torch.rand(2)
        torch.manual_seed(1)
        assert torch.equal(torch.rand(6)[4:], after_fork)
        torch.rand(2, generator=torch.default_generator)  # the default generator is replaced by the job's
        random.seed(1)
        assert random.random() == random.Random(1).random()
        numpy.random.seed(1)
        assert numpy.random.rand() == numpy.random.RandomState(1).rand()
        random.setstate(random.getstate())
        torch.seed()

    run_one(body)
    assert torch.equal(torch.get_rng_state(), outside[0])
    assert random.getstate() == outside[1]
    assert numpy.random.get_state()[1].tolist() == outside[2]


def use_the_default_generator(seed: int) -> list[Any]:
    """As programs do that seed it, keep its state, or pass it to ops."""
    generator = torch.default_generator
    drawn: list[Any] = [generator.manual_seed(seed) is generator, torch.rand(1).item(), generator.initial_seed()]
    state = generator.get_state()
    drawn += [torch.rand(2).tolist(), generator.set_state(state) is generator, torch.rand(2).tolist()]
    copies = [copy.copy(generator), copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
    copies += [generator.clone_state(), torch.Generator()]
    copies[-1].set_state(torch.get_rng_state())
    drawn += [torch.rand(1, generator=each).item() for each in (*copies, generator, torch.random.default_generator)]
    dataset = TensorDataset(torch.arange(6))
    drawn += [part.indices for part in torch.utils.data.random_split(dataset, [3, 3])]
    loader = DataLoader(dataset, batch_size=3, shuffle=True, generator=generator)
    drawn += [batch.tolist() for (batch,) in loader]
    drawn += [torch.random.default_generator is generator is torch._C.default_generator, generator == generator]
    drawn += [isinstance(generator, torch.Generator), type(generator) is torch.Generator, str(generator.device)]
    drawn += [torch.manual_seed(seed + 1) is generator, torch.nn.init.uniform_(torch.empty(2), generator=generator)]
    drawn += [repr(generator).split(" at ")[0], dir(generator)]
    if torch.Generator.__weakrefoffset__:  # torch 2.12 has none
        drawn.append(weakref.ref(generator)() is generator)
    for wrong in (lambda: generator.manual_seed("1"), lambda: generator.set_state(1), generator.manual_seed):
        with pytest.raises((TypeError, RuntimeError)) as caught:
            wrong()
        drawn.append(str(caught.value))
    drawn.append(generator.seed() == torch.initial_seed())
    return drawn


def test_the_default_generator_is_the_job_s() -> None:
    with torch.random.fork_rng(devices=[]):
        plain = [str(use_the_default_generator(seed)) for seed in (1, 2)]
    torch.manual_seed(77)
    state = torch.get_rng_state()
    with torchshare.Runtime(device="cpu") as runtime:
        use = use_the_default_generator
        jobs = [runtime.submit(lambda job, seed=seed: str(use(seed)), name=f"{seed}", threads=1) for seed in (1, 2)]
        runtime.wait(timeout=300)
        gc.collect()
        assert torch.equal(torch.default_generator.get_state(), state)
        with torch.random.fork_rng(devices=[]):
            assert str(use(1)) == plain[0]  # outside jobs, it is the process's
        assert torch.equal(torch.get_rng_state(), state)
    assert [job.result.value for job in jobs] == plain
    assert type(torch.default_generator) is torch.Generator


def compiled_draws(seed: int) -> str:
    def seeds(x: torch.Tensor) -> torch.Tensor:
        torch.default_generator.manual_seed(seed)
        return x + torch.rand(3)

    def restores(x: torch.Tensor) -> torch.Tensor:
        state = torch.default_generator.get_state()
        drawn = torch.rand(3)
        torch.default_generator.set_state(state)
        return x + drawn - torch.rand(3)

    def passes(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, generator=torch.default_generator)

    one = torch.ones(3)
    return str([torch.compile(each, backend="eager")(one).tolist() for each in (seeds, restores, passes)])


def test_compiled_functions_use_the_job_s_default_generator() -> None:
    """What dynamo makes of a generator depends on its class, which must be torch.Generator itself."""
    with torch.random.fork_rng(devices=[]):
        plain = [compiled_draws(1), compiled_draws(2)]
    state = torch.get_rng_state()
    with torchshare.Runtime(device="cpu") as runtime:
        jobs = [
            runtime.submit(lambda job, seed=seed: compiled_draws(seed), name=f"{seed}", threads=1) for seed in (1, 2)
        ]
        runtime.wait(timeout=300)
    assert [job.result.value for job in jobs] == plain
    assert torch.equal(torch.get_rng_state(), state)


def random_ops() -> list[Any]:
    """Every aten overload that torch tags as random."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "aten" and hasattr(torch.ops.aten, name):
            op = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
            if torch.Tag.nondeterministic_seeded in op.tags:
                found.append(op)
    return found


def arguments(op: Any) -> dict[str, Any]:
    """Arguments guessed from the schema; sufficient for most ops."""
    tensor = torch.full((4, 4), -0.5 if "rrelu" in op.name() else 0.5)
    by_type = {"Tensor": tensor, "int": 4, "List[int]": [4, 4], "float": 0.5, "number": 0.5, "bool": True}
    by_name = {"low": 0, "generator": None, "names": None, "train": True}
    made: dict[str, Any] = {}
    for argument in op._schema.arguments:
        if argument.name in by_name:
            made[argument.name] = by_name[argument.name]
        elif str(argument.type) in by_type and not argument.has_default_value():
            made[argument.name] = by_type[str(argument.type)]
    return made


def test_no_random_op_of_torch_moves_the_default_generator():
    ops = random_ops()
    assert len(ops) > 100
    drew: list[str] = []
    moved: list[str] = []
    state_of_process = torch.default_generator.get_state  # read before, it is not routed

    def body(job: Job) -> None:
        for op in ops:
            default = state_of_process()
            mine = job._context.handle.generator.get_state()
            try:
                op(**arguments(op))
            except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
                continue  # needs other arguments, or another device
            if not torch.equal(state_of_process(), default):
                moved.append(str(op))
            if not torch.equal(job._context.handle.generator.get_state(), mine):
                drew.append(str(op))

    run_one(body)
    assert moved == []
    assert len(drew) >= 90, len(drew)  # the sweep ran most of them


def test_everything_is_restored_when_the_last_runtime_closes():
    def snapshot() -> list[Any]:
        return [
            {name: getattr(random, name) for name in random.__all__},
            {name: getattr(numpy.random, name) for name in numpy.random.__all__},
            time.sleep,
            type(torch.default_generator),
            type(random._inst),
        ]

    before = snapshot()
    with torchshare.Runtime(), torchshare.Runtime():
        assert snapshot() != before
    assert snapshot() == before


def test_a_seed_must_be_an_integer():
    for seed in (-1, 2**64, 1.5, "x", True):
        with (
            torchshare.Runtime() as runtime,
            pytest.raises(ValueError, match=r"seed must be an integer from 0 to 2\*\*64 - 1, got"),
        ):
            runtime.submit(lambda job: None, name="a", seed=seed)


def draw_from_numpy_s_state() -> list[Any]:
    """As packages do that draw from the state itself, numpy.random.mtrand._rand."""
    import scipy.stats
    from sklearn.model_selection import KFold
    from sklearn.utils import check_random_state, shuffle

    numpy.random.seed(0)
    return [
        check_random_state(None).rand(),
        shuffle(list(range(9))),
        [test.tolist() for _, test in KFold(2, shuffle=True).split(range(6))],
        scipy.stats.norm.rvs(size=2).tolist(),
        copy.deepcopy(check_random_state(None)).rand(),
        numpy.random.rand(),
        numpy.random.mtrand._rand is check_random_state(None) is check_random_state(numpy.random),
    ]


def test_packages_that_hold_numpy_s_state_draw_from_the_job_s() -> None:
    plain = draw_from_numpy_s_state()
    state = numpy.random.get_state()[1].tolist()
    results: list[list[Any]] = []
    with torchshare.Runtime(device="cpu") as runtime:
        for name in "ab":
            runtime.submit(lambda job: results.append(draw_from_numpy_s_state()), name=name, threads=1)
        runtime.wait(timeout=300)
        assert numpy.random.get_state()[1].tolist() == state
    assert results == [plain, plain]
    assert draw_from_numpy_s_state() == plain


def test_the_functions_of_numpy_s_own_module_draw_from_the_job_s_state() -> None:
    def draws(seed: int) -> list[Any]:
        numpy.random.seed(seed)
        drawn = [numpy.random.mtrand.rand(), numpy.random.mtrand.normal(), numpy.random.mtrand.sample()]
        numpy.random.mtrand.seed(3)
        return [*drawn, numpy.random.rand(), numpy.random.mtrand.get_state()[2]]

    plain = [draws(1), draws(2)]
    functions, state = dict(vars(numpy.random.mtrand)), numpy.random.get_state()[1].tolist()
    with torchshare.Runtime(device="cpu") as runtime:
        jobs = [runtime.submit(lambda job, seed=seed: draws(seed), name=f"{seed}", threads=1) for seed in (1, 2)]
        runtime.wait(timeout=300)
        assert numpy.random.get_state()[1].tolist() == state
    assert [job.result.value for job in jobs] == plain
    assert vars(numpy.random.mtrand) == functions


def test_a_bit_generator_is_one_of_the_job_that_sets_it() -> None:
    """Its checkpoints have that generator's state, too."""

    def draws(job: Job) -> list[Any]:
        numpy.random.set_bit_generator(numpy.random.PCG64(5))
        first = numpy.random.rand(2).tolist()
        state = job._context.host_random.numpy_state()
        second = numpy.random.rand(2).tolist()
        job._context.host_random.set_numpy_state(state)
        return [first, second, numpy.random.rand(2).tolist(), type(numpy.random.get_bit_generator()).__name__]

    plain = numpy.random.RandomState(numpy.random.PCG64(5))
    first, second = plain.rand(2).tolist(), plain.rand(2).tolist()
    generator, state = numpy.random.get_bit_generator(), numpy.random.get_state(legacy=False)["state"]["key"].tolist()
    assert run_one(draws).value == [first, second, second, "PCG64"]
    assert numpy.random.get_bit_generator() is generator
    assert numpy.random.get_state(legacy=False)["state"]["key"].tolist() == state
