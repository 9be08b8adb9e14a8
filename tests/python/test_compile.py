"""torch.compile inside jobs."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Gatekeeper, Ran, on_both, run_one, script, wait_until
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

import torchshare
from torchshare import Job


@pytest.fixture(autouse=True)
def compiled_afresh(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(batches: Callable[[list[Any]], Any]) -> dict[str, Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches([(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(5)]):
        if isinstance(batch, torchshare.Batch):
            batch.backward(lambda x, y: F.cross_entropy(compiled(x), y))
        else:
            F.cross_entropy(compiled(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_both_jobs_compile_and_train_as_plain_torch_does() -> None:
    with torchshare.Runtime(device="cpu", policy="strict") as runtime:
        runtime.submit(lambda job: train(job.batches), name="first", priority="primary", threads=1)
        runtime.submit(lambda job: train(job.batches), name="second", threads=1)
        results = runtime.wait(200)
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    plain = train(lambda batches: batches)
    torch.set_num_threads(former)
    for name in ("first", "second"):
        assert all(torch.equal(tensor, results[name].value[key]) for key, tensor in plain.items())


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore:Using `torch.compile\\(module\\)` when there are global hooks")
@pytest.mark.parametrize("sub_batch", [None, 4])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_trains_in_sub_batches_as_in_plain_torch(backend: str, sub_batch: int | None) -> None:
    def train(batches: Callable[[Any], Any]) -> dict[str, Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4))
        compiled = torch.compile(model, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for pieces in batches([(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(4)]):
            for (x, y), weight in pieces:
                (F.cross_entropy(compiled(x), y) * weight).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict()

    def in_job(job: Job) -> dict[str, Tensor]:
        batches = job.batches
        return train(lambda data: (((s.data, s.weight) for s in batch) for batch in batches(data, sub_batch)))

    def plain_batches(data: list[Any]) -> Any:
        rows = sub_batch or 8
        return ([((x[i : i + rows], y[i : i + rows]), rows / 8) for i in range(0, 8, rows)] for x, y in data)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained = run_one(in_job, timeout=300).value
    assert sum("job 'alone': BatchNorm1d takes its" in str(w.message) for w in caught) == (sub_batch is not None)
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    plain = train(plain_batches)
    torch.set_num_threads(former)
    assert all(torch.equal(tensor, trained[key]) for key, tensor in plain.items())


def test_a_job_compiles_while_another_ends_its_search_for_batch_norm() -> None:
    keeper = Gatekeeper()
    ended = threading.Event()

    def splits(job: Job) -> None:
        for batch in job.batches([torch.randn(4, 4)], sub_batch=2):
            batch.backward(lambda x: (x * torch.ones((), requires_grad=True)).sum() + (keeper.pause() or 0))
        ended.set()

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        keeper.release.set()  # the trace has seen the hook; guards are made after this
        assert ended.wait(300)
        return graph.forward

    def compiles(_job: Job) -> Tensor:
        assert keeper.reached.wait(300)
        return torch.compile(nn.Sequential(nn.ReLU()), backend=backend)(torch.ones(2))

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(splits, priority="primary")
        runtime.submit(compiles)
        results = runtime.wait(300)
    assert results["compiles"].value.tolist() == [1, 1]
    assert not torch_module._global_forward_pre_hooks  # removed once the compilation was over


def test_a_job_looks_for_batch_norm_once_no_other_job_compiles() -> None:
    keeper, compiled = Gatekeeper(), threading.Event()
    hooks: list[int] = []

    def splits(job: Job) -> None:
        assert keeper.reached.wait(300)
        model = nn.BatchNorm1d(4)
        for number, batch in enumerate(job.batches([torch.randn(4, 4)] * 2, sub_batch=2)):
            batch.backward(lambda x: (hooks.append(len(torch_module._global_forward_pre_hooks)) or model(x)).sum())
            if number == 0:
                keeper.release.set()
                assert compiled.wait(300)

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        keeper.pause()
        return graph.forward

    def compiles(_job: Job) -> Tensor:
        try:
            return torch.compile(nn.Sequential(nn.ReLU()), backend=backend)(torch.ones(2))
        finally:
            compiled.set()

    with (
        torchshare.Runtime(device="cpu") as runtime,
        pytest.warns(UserWarning, match="BatchNorm1d takes its") as caught,
    ):
        runtime.submit(splits, priority="primary")
        runtime.submit(compiles)
        results = runtime.wait(300)
    assert results["compiles"].value.tolist() == [1, 1]
    assert sum("takes its" in str(warning.message) for warning in caught) == 1
    assert hooks == [0, 0, 1, 0]  # for each sub-batch; it has been found by the last
    assert not torch_module._global_forward_pre_hooks


def test_a_job_compiles_while_another_looks_for_batch_norm() -> None:
    keeper = Gatekeeper()

    def splits(job: Job) -> None:
        for batch in job.batches([torch.randn(4, 4)], sub_batch=2):
            batch.backward(lambda x: (x * torch.ones((), requires_grad=True)).sum() + (keeper.pause() or 0))

    def compiles(_job: Job) -> Tensor:
        assert keeper.reached.wait(300)
        try:
            return torch.compile(nn.Sequential(nn.ReLU()), backend="eager")(torch.ones(2))
        finally:
            keeper.release.set()

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(splits, priority="primary")
        runtime.submit(compiles)
        results = runtime.wait(300)
    assert results["compiles"].value.tolist() == [1, 1]


@on_both
def test_a_job_suspended_while_it_compiles_does_not_block_others(device: str) -> None:
    keeper = Gatekeeper()
    compiled = threading.Event()

    def slow(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        keeper.pause()
        torch.ones(2, device=device).add(1)  # it would park here, holding the lock
        return graph.forward

    def second(_job: Job) -> float:
        value = torch.compile(lambda x: x * 3, backend=slow)(torch.ones(2, device=device))
        compiled.set()
        return value.sum().item()

    def first(_job: Job) -> float:
        assert keeper.reached.wait(300)
        return torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2, device=device)).sum().item()

    with torchshare.Runtime(device=device) as runtime:
        low = runtime.submit(second, name="second")
        high = runtime.submit(first, name="first", priority="primary")
        runtime.start()
        assert keeper.reached.wait(300)
        low.suspend()
        keeper.release.set()
        wait_until(lambda: high.state == "finished")
        assert not compiled.is_set() or low.state == "suspended"
        low.resume()
        results = runtime.wait(300)
    assert (results["first"].value, results["second"].value) == (4.0, 6.0)


def test_a_job_that_waits_to_compile_can_be_cancelled() -> None:
    keeper = Gatekeeper()

    def slow(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        keeper.pause()
        return graph.forward

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda _: torch.compile(lambda x: x * 3, backend=slow)(torch.ones(2)), name="compiles")
        runtime.start()
        assert keeper.reached.wait(300)
        waits = runtime.submit(lambda _: torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2)), name="waits")
        wait_until(lambda: waits.result.ops > 0)
        waits.cancel()
        wait_until(lambda: waits.state == "cancelled")
        keeper.release.set()
        runtime.wait(300)


@pytest.mark.gpu
@pytest.mark.slow  # imports inductor
@pytest.mark.timeout(300)
def test_the_mode_that_captures_graphs_is_refused_in_a_job() -> None:
    def train(_job: Job) -> Tensor:
        model = nn.Linear(4, 4).cuda()
        return torch.compile(model, mode="reduce-overhead")(torch.ones(4, 4, device="cuda"))

    message = r"job 'alone': mode=\"reduce-overhead\" is not supported in a job; job.graph\(loss_fn\) captures"
    with pytest.raises(RuntimeError, match=message):
        run_one(train, device="cuda", timeout=300)


def test_the_lock_is_restored() -> None:
    from torch._dynamo import convert_frame

    former = convert_frame.compile_lock
    run_one(lambda _: torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)))
    assert convert_frame.compile_lock is former


@pytest.mark.slow
def test_scripts_compile_with_inductor_as_plain_python_does(tmp_path: Path) -> None:
    compiles = """
import sys, torch
torch.manual_seed(int(sys.argv[1]))
compiled = torch.compile(lambda x: (x.sin() * 3 + 1).relu())
print(compiled(torch.randn(50)).tolist())
"""
    program = script(tmp_path, "program.py", compiles)
    plain = [
        subprocess.run(
            [sys.executable, program, seed], cwd=tmp_path, check=True, timeout=300, stdout=subprocess.PIPE, text=True
        ).stdout.splitlines()
        for seed in "12"
    ]
    ran = Ran(tmp_path, f"a={program} 1", f"b={program} 2")
    assert (ran.code, ran.of("a")[-1], ran.of("b")[-1]) == (0, plain[0][-1], plain[1][-1]), ran.text()
