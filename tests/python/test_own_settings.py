"""Settings of a GPU's libraries in jobs on a CPU, and those that only Python code reads: each job's own."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LOOP, Ran, python, run_one, script, wait_until
from test_replacements import beside
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._config_module import _ConfigEntry

import torchshare
from torchshare import Job, torch_versions

cuda, cudnn = torch.backends.cuda, torch.backends.cudnn


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def values() -> dict[str, Any]:
    return {
        "benchmark": cudnn.benchmark,
        "benchmark_limit": cudnn.benchmark_limit,
        "deterministic": cudnn.deterministic,
        "enabled": cudnn.enabled,
        "cudnn.allow_tf32": cudnn.allow_tf32,
        "cudnn.fp32_precision": cudnn.fp32_precision,
        "matmul.allow_tf32": cuda.matmul.allow_tf32,
        "matmul.fp32_precision": cuda.matmul.fp32_precision,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "fp16": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "fp16_split_k": cuda.matmul.allow_fp16_reduced_precision_reduction_split_k,
        "accumulation": cuda.matmul.allow_fp16_accumulation,
        "mem_efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn_sdp": cuda.cudnn_sdp_enabled(),
        "blas": cuda.preferred_blas_library(),
    }


def set_all() -> None:
    cudnn.benchmark = True
    cudnn.benchmark_limit = 3
    cudnn.deterministic = True
    cudnn.enabled = False
    cudnn.allow_tf32 = False
    cuda.matmul.allow_tf32 = True
    cuda.matmul.allow_fp16_reduced_precision_reduction = False
    cuda.matmul.allow_fp16_accumulation = True
    cuda.enable_mem_efficient_sdp(False)
    cuda.enable_cudnn_sdp(False)
    cuda.preferred_blas_library("cublaslt")


def trained(job: Job, change: Callable[[], None], steps: int) -> dict[str, Any]:
    """What the job reads after its steps."""
    change()
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(steps):
        layer(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    return values()


@pytest.mark.parametrize("first", [0, 1])
def test_each_job_reads_what_it_has_set(first: int):
    """In both orders: the job that sets is the primary, or the other one."""
    before = values()
    with torchshare.Runtime(device="cpu") as runtime:
        for number in (first, 1 - first):
            change = (set_all, lambda: None)[number]
            priority = "secondary" if runtime.jobs else "primary"
            runtime.submit(lambda job, c=change: trained(job, c, 20), name=str(number), priority=priority, threads=1)
        results = runtime.wait(timeout=300)
    changed = {
        "benchmark": True,
        "benchmark_limit": 3,
        "deterministic": True,
        "enabled": False,
        "cudnn.allow_tf32": False,
        "cudnn.fp32_precision": "none",
        "matmul.allow_tf32": True,
        "matmul.fp32_precision": "tf32",
        "float32_matmul_precision": "high",
        "fp16": False,
        "fp16_split_k": True,
        "accumulation": True,
        "mem_efficient": False,
        "cudnn_sdp": False,
        "blas": torch._C._BlasBackend.Cublaslt,
    }
    assert results["0"].value == changed
    assert results["1"].value == before == values()


def test_a_context_manager_is_for_its_job():
    def train(job: Job) -> tuple[tuple[bool, bool, bool], tuple[bool, bool, bool]]:
        with cudnn.flags(enabled=False, benchmark=True, deterministic=True), sdpa_kernel([*own_kernels]):
            inside = (cudnn.enabled, cudnn.deterministic, cuda.mem_efficient_sdp_enabled())
            process.append((torch._C._get_cudnn_enabled.__wrapped__(), cuda.flash_sdp_enabled()))
        return inside, (cudnn.enabled, cudnn.deterministic, cuda.mem_efficient_sdp_enabled())

    own_kernels = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    process: list[tuple[bool, bool]] = []
    assert run_one(train).value == ((False, True, False), (True, False, True))
    assert process == [(True, True)]


def test_a_value_of_another_kind_is_refused_as_ever():
    def train(job: Job) -> None:
        with pytest.raises(RuntimeError, match="expects a bool"):
            cudnn.benchmark = 1
        with pytest.raises(RuntimeError, match="expects a bool"):
            cuda.matmul.allow_tf32 = "yes"
        with pytest.raises(RuntimeError, match="does not support precision"):
            cuda.matmul.fp32_precision = "bf16"

    run_one(train)


def reads() -> list[Any]:
    """None for a precision that was set by its old and by its new name: torch raises."""
    found: list[Any] = []
    precision = torch._C._get_fp32_precision_getter
    for read in (
        lambda: cuda.matmul.allow_tf32,
        lambda: cudnn.allow_tf32,
        torch.get_float32_matmul_precision,
        *(lambda op=op: precision("cuda", op) for op in ("all", "matmul", "conv", "rnn")),
        lambda: precision("generic", "all"),
    ):
        try:
            found.append(read())
        except RuntimeError:
            found.append(None)
    return found


def changes(_job: Job | None = None) -> list[list[Any]]:
    found = []
    for owner, name, value in [
        (cuda.matmul, "allow_tf32", True),
        (cudnn, "allow_tf32", False),
        (cuda.matmul, "allow_tf32", False),
        (cudnn, "fp32_precision", "tf32"),
        (cudnn.conv, "fp32_precision", "ieee"),
        (cudnn, "fp32_precision", "none"),
        (cuda.matmul, "fp32_precision", "tf32"),
        (cuda.matmul, "fp32_precision", "none"),
        (torch.backends, "fp32_precision", "tf32"),
        (torch.backends, "fp32_precision", "none"),
        (cudnn, "allow_tf32", True),
    ]:
        setattr(owner, name, value)
        found.append([name, value, *reads()])
    for precision in ("high", "medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        found.append([precision, *reads()])
        cuda.matmul.allow_tf32 = precision == "highest"
        found.append([precision, cuda.matmul.allow_tf32, cuda.matmul.fp32_precision])
    return found


def in_child(function: Callable[[], Any]) -> Any:
    """What it returns in a forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, pickle.dumps(function()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return pickle.loads(data)


def test_old_and_new_names_of_a_setting_are_connected_as_in_plain_torch():
    plain = in_child(changes)
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(changes, name="job")
        own = runtime.wait(timeout=300)["job"].value
    for expected, found in zip(plain, own, strict=True):
        assert found == [other if value is None else value for value, other in zip(expected, found, strict=True)]


def test_beside_a_gpu_they_must_be_agreed_on(monkeypatch: pytest.MonkeyPatch):
    """A job on the CPU may use the GPU, too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    changes = {
        "cudnn.enabled": cudnn.flags(enabled=False).__enter__,
        "cudnn.benchmark": lambda: setattr(cudnn, "benchmark", True),
        "cudnn.conv.fp32_precision": lambda: setattr(cudnn.conv, "fp32_precision", "ieee"),
        "cuda.matmul.allow_tf32": lambda: setattr(cuda.matmul, "allow_tf32", True),
        "cuda.matmul.allow_bf16": lambda: setattr(cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        "cuda.enable_mem_efficient_sdp": lambda: cuda.enable_mem_efficient_sdp(False),
    }

    def primary(job: Job) -> None:
        cuda.matmul.allow_fp16_accumulation = True
        trained(job, lambda: None, 5)
        ready.set()
        assert tried.wait(300)

    def sets(job: Job) -> None:
        assert ready.wait(300)
        for name, change in changes.items():
            with pytest.raises(RuntimeError, match=f"torch.backends.{name}.* is one per process"):
                change()
        cuda.matmul.allow_fp16_accumulation = True
        read.append(cuda.matmul.allow_fp16_accumulation)

    read: list[bool] = []
    ready, tried = threading.Event(), threading.Event()
    before = values()
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(primary, priority="primary")
        other = runtime.submit(sets)
        runtime.start()
        wait_until(lambda: other.state in ("finished", "failed"))
        tried.set()
        result = runtime.wait(timeout=300, check=False)["sets"]
    assert (result.state, read) == ("failed", [True])  # although it has caught what it was told
    assert values() == before


def test_a_job_that_forbids_assignments_forbids_its_own():
    def forbids(job: Job) -> None:
        torch.backends.disable_global_flags()
        with cudnn.flags(enabled=False):
            assert not cudnn.enabled
        with pytest.raises(RuntimeError, match="not allowed to set"):
            cudnn.benchmark = True
        forbidden.set()

    def sets(job: Job) -> bool:
        assert forbidden.wait(300)
        cudnn.benchmark = True
        return cudnn.benchmark

    forbidden = threading.Event()
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(forbids, priority="primary")
        runtime.submit(sets)
        assert runtime.wait(timeout=300)["sets"].value
    assert not torch.backends.flags_frozen()


def test_a_compiled_function_reads_them():
    def train(job: Job) -> float:
        cudnn.benchmark = True

        @torch.compile(backend="eager", fullgraph=True)
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2 if torch.backends.cudnn.benchmark else x

        return twice(torch.ones(1)).item()

    assert run_one(train).value == 2.0


# What published scripts set: nanoGPT, cleanrl, the imagenet and the dcgan example; and one that sets nothing.
HABITS = {
    "gpt": "torch.backends.cuda.matmul.allow_tf32 = True\ntorch.backends.cudnn.allow_tf32 = True",
    "rl": "torch.backends.cudnn.deterministic = True",
    "imagenet": "import torch.backends.cudnn as cudnn\ncudnn.deterministic = True\ncudnn.benchmark = False",
    "dcgan": "import torch.backends.cudnn as cudnn\ncudnn.benchmark = True",
    "plain": "",
}


IN_FORKS = """
import os, runpy, torch, torch._dynamo
os.chdir({folder!r})
torch.set_num_threads(1)
for name in {names}:
    child = os.fork()
    if child == 0:
        runpy.run_path(name + ".py", run_name="__main__")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, bytes]]]:
    """A folder with the scripts, and the weights that plain Python writes."""
    folder = tmp_path_factory.mktemp("published")
    for number, (name, habit) in enumerate(HABITS.items()):
        seeded = LOOP.replace("model =", f"{habit}\ntorch.manual_seed({number})\nmodel =", 1)
        script(folder, f"{name}.py", f"{seeded}\ntrain(20)\ntorch.save(model.state_dict(), '{name}.pt')\n")
    done = python(IN_FORKS.format(folder=str(folder), names=list(HABITS)))
    assert done.returncode == 0, done.stderr
    yield folder, {file.name: file.read_bytes() for file in folder.glob("*.pt")}


@pytest.mark.parametrize("partner", [name for name in HABITS if name != "gpt"])
def test_published_habits_run_in_pairs(published: tuple[Path, dict[str, bytes]], partner: str):
    folder, plain = published
    for pair in (("gpt", partner), (partner, "gpt")):
        ran = Ran(folder, *(f"{name}.py" for name in pair))
        assert ran.code == 0, ran.text()
        assert all((folder / f"{name}.pt").read_bytes() == plain[f"{name}.pt"] for name in pair)
        assert "WARNING" not in ran.text() and "one per process" not in ran.text()


def test_options_of_the_compiler_are_each_job_s_own() -> None:
    """They were the process's: what one script set, the other's functions were compiled with."""
    dynamo, inductor = torch._dynamo.config, torch._inductor.config
    before = dynamo.suppress_errors, inductor.max_autotune, inductor.get_hash()
    shared_by_threads = not torch_versions.keeps_options_by_context(_ConfigEntry)
    together = threading.Barrier(2)

    def sets(job: Job) -> tuple[Any, ...]:
        together.wait(300)
        dynamo.suppress_errors = not before[0]
        with inductor.patch(max_autotune=not before[1]):
            in_thread: list[bool] = []
            thread = threading.Thread(target=lambda: in_thread.append(dynamo.suppress_errors))
            thread.start()
            thread.join()
            together.wait(300)
            together.wait(300)
            own = dynamo.suppress_errors, inductor.max_autotune, inductor.get_hash()
        return *own, in_thread, inductor.max_autotune

    def reads(job: Job) -> tuple[Any, ...]:
        together.wait(300)
        together.wait(300)
        found = dynamo.suppress_errors, inductor.max_autotune, inductor.get_hash()
        together.wait(300)
        return found

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(sets, priority="primary")
        runtime.submit(reads)
        results = runtime.wait(timeout=300)
        assert (dynamo.suppress_errors, inductor.max_autotune) == before[:2]
    assert results["reads"].value == before
    errors, autotune, digest, in_thread, after = results["sets"].value
    assert (errors, autotune, after) == (not before[0], not before[1], before[1])
    assert in_thread == [before[0] != shared_by_threads]  # as in plain torch
    assert digest != before[2]
    assert (dynamo.suppress_errors, inductor.max_autotune, inductor.get_hash()) == before


def test_a_job_begins_with_the_options_and_context_variables_of_its_submitter() -> None:
    """As a function that is called. torch 2.15 keeps the options in context variables, which threads do not share."""
    variable, inductor = ContextVar("variable", default=0), torch._inductor.config

    def reads_and_sets(_job: Job) -> tuple[int, bool]:
        found = variable.get(), bool(inductor.max_autotune)
        variable.set(2)
        return found

    with torchshare.Runtime(device="cpu") as runtime, inductor.patch(max_autotune=not inductor.max_autotune):
        expected = inductor.max_autotune
        variable.set(1)
        for name in ("a", "b"):
            runtime.submit(reads_and_sets, name=name)
        results = runtime.wait(timeout=300)
    assert [result.value for result in results.values()] == [(1, expected)] * 2
    assert variable.get() == 1


def test_all_jobs_that_ask_for_deterministic_algorithms_compile_with_them() -> None:
    """Only the first one did: for the others, there was nothing to set any more."""
    together = threading.Barrier(2)

    def asks(_job: Job) -> bool:
        torch.use_deterministic_algorithms(True)
        together.wait(300)
        return bool(torch._inductor.config.deterministic)

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(asks, priority="primary", name="first")
        runtime.submit(asks, name="second")
        results = runtime.wait(timeout=300)
        assert not torch._inductor.config.deterministic
    assert [result.value for result in results.values()] == [True, True]


def test_the_check_of_custom_ops_is_off_in_all_threads_while_a_runtime_is_open() -> None:
    """With it, the first call of a compiled function draws random numbers from the process's generator."""
    found: list[bool] = []

    def read(*_: Any) -> None:
        found.append(torch._functorch.config.check_custom_op_aliasing)

    def in_thread(function: Callable[[], Any]) -> None:
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    with torchshare.Runtime(device="cpu") as runtime:
        in_thread(lambda: runtime.submit(lambda _: in_thread(read)))
        runtime.wait(timeout=300)
    read()
    assert found == [False, True]


def test_settings_that_only_python_reads_are_each_job_s_own():
    future, mha = torch.__future__, torch.backends.mha

    def read() -> list[bool]:
        return [
            mha.get_fastpath_enabled(),
            future.get_swap_module_params_on_conversion(),
            future.get_overwrite_module_params_on_conversion(),
        ]

    def change() -> list[bool]:
        mha.set_fastpath_enabled(value=False)
        future.set_swap_module_params_on_conversion(True)
        future.set_overwrite_module_params_on_conversion(True)
        layer = nn.Linear(1, 1)
        before = layer.weight
        layer.double()
        return [*read(), *in_child(read), layer.weight is before]

    mine, other, after = beside(change, read)
    assert mine == [False, True, True, False, True, True, True]
    assert other == after == [True, False, False]


def test_how_einsum_contracts_is_each_job_s_own(monkeypatch: pytest.MonkeyPatch):
    module = torch.backends.opt_einsum
    monkeypatch.setattr(module.m, "is_available", lambda: True)  # whether the package is installed or not
    monkeypatch.setattr(module.m, "enabled", True)
    monkeypatch.setattr(module.m, "strategy", "auto")

    def change() -> tuple[Any, ...]:
        with pytest.raises(ValueError, match="must be one of"):
            module.set_flags(None, "quick")
        former = module.set_flags(None, "greedy")
        again = module.set_flags(False, None)
        return former, again, module.m._get_enabled(), module.m._get_strategy()

    mine, other, after = beside(change, lambda: (module.m._get_enabled(), module.m._get_strategy()))
    assert mine == ((True, "auto"), (True, "greedy"), False, "greedy")
    assert other == after == (True, "auto")


def test_the_order_of_kernels_of_attention_is_without_effect_on_a_cpu_and_each_job_s_own():
    def entered() -> list[int]:
        context = sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True)
        context.__enter__()
        found.append(context)  # its finalizer restores the order
        return torch._C._get_sdp_priority_order()

    found: list[Any] = []

    before = torch._C._get_sdp_priority_order()
    assert before[0] != int(SDPBackend.MATH)
    mine, other, after = beside(entered, torch._C._get_sdp_priority_order)
    assert mine[0] == int(SDPBackend.MATH)
    assert other == after == before


def test_a_jobs_first_op_has_the_jobs_number_of_threads_although_the_other_job_set_its_own_before() -> None:
    begun = threading.Barrier(2)

    def threads(_: Job) -> int:
        begun.wait(300)
        return torch.get_num_threads()

    with torchshare.Runtime("cpu") as runtime:
        runtime.submit(threads, name="one", priority="primary", threads=1)
        runtime.submit(threads, name="two", threads=2)
        results = runtime.wait(300)
    assert (results["one"].value, results["two"].value) == (1, 2)
