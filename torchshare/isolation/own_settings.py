"""Settings of a GPU's libraries in jobs on a CPU, without effect there, and settings that only torch's Python code
reads: each job has its own and reads what it set.

torch keeps some of them twice, under an old and a new name: `allow_tf32` also sets `fp32_precision` and the precision
of float32 matrix products, which is read here although it has an effect on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.context.script import ScriptContext
from torchshare.device import devices
from torchshare.isolation.patches import copied
from torchshare.isolation.table import Table

TABLE = Table()
_FROZEN = "frozen"
_NONE, _TF32 = "none", "tf32"
_PRECISIONS = (_NONE, _TF32, "ieee")
_MATMUL_TF32, _MATMUL_PRECISION = "_get_cublas_allow_tf32", "_get_float32_matmul_precision"


def are_own(job: JobContext) -> bool:
    """Whether settings of a GPU are without effect on the job. A job on a CPU could use a GPU that is there."""
    return job.on_cpu and not devices.CUDA.is_available()


def reader(name: str, original: Callable[[], Any]) -> Callable[[], Any]:
    """In place of `original`, the function `name` of torch._C: the job's own value, if it has one."""

    @functools.wraps(original)
    def read() -> Any:
        job = current.owner()
        return original() if job is None or name not in job.own_settings else job.own_settings[name]

    return torch.compiler.assume_constant_result(read)  # type: ignore[no-any-return, no-untyped-call]


def set_own(job: JobContext, name: str, value: Any, former: Any) -> bool:
    """Sets what the function `name` of torch._C reads. False for a value of another kind, which torch refuses."""
    if type(value) is not type(former):
        return False
    own = job.own_settings
    own[name] = value
    if name == _MATMUL_TF32:
        own["cuda", "matmul"] = _TF32 if value else "ieee"
        own[_MATMUL_PRECISION] = "high" if value else "highest"
    elif name == "_get_cudnn_allow_tf32":
        own["cuda", "conv"] = own["cuda", "rnn"] = _TF32 if value else _NONE
    return True


@TABLE.value("torch.backends.mha", "get_fastpath_enabled", "set_fastpath_enabled", everywhere=True)
@TABLE.value(
    "torch.backends.opt_einsum:m",
    *("_get_enabled", "_set_enabled", "_get_strategy", "_set_strategy", "set_flags"),
    everywhere=True,
)
@TABLE.value(
    "torch.__future__",
    *(f"{verb}_{name}_module_params_on_conversion" for verb in ("get", "set") for name in ("overwrite", "swap")),
    everywhere=True,
)
def _with_own_variables(function: FunctionType) -> Callable[..., Any]:
    """Each job has its own value.

    A call finds the variables of the module as its job has set them, in processes that the job has forked, too."""
    variables = function.__globals__
    module = variables["__name__"]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        tenant = current.tenant()
        if tenant is None:
            return function(*args, **kwargs)
        own = (tenant.job if isinstance(tenant, ScriptContext) else tenant).own_settings
        found = variables | own.get(module, {})
        before = found.copy()
        result = copied(function, found)(*args, **kwargs)
        own.setdefault(module, {}).update(
            {name: value for name, value in found.items() if value is not before.get(name)}
        )
        return result

    return torch.compiler.assume_constant_result(run)  # type: ignore[no-any-return, no-untyped-call]


@TABLE.call("torch.backends:m", "disable_global_flags")
def _disable_global_flags(original: Callable[[], None]) -> None:
    """Assignments to settings are forbidden in the job that calls it."""
    job = current.owner()
    if job is None:
        original()
    else:
        job.own_settings[_FROZEN] = True


@TABLE.call("torch.backends:m", "flags_frozen")
def _flags_frozen(original: Callable[[], bool]) -> bool:
    """Assignments to settings are forbidden in the job that has forbidden them."""
    job = current.owner()
    return original() or (job is not None and _FROZEN in job.own_settings)


def forget_matmul(job: JobContext) -> None:
    """The precision of matrix products has been set for all jobs."""
    for key in (_MATMUL_TF32, _MATMUL_PRECISION, ("cuda", "matmul")):
        job.own_settings.pop(key, None)


def precision_reader(original: Callable[[str, str], str]) -> Callable[[str, str], str]:
    """In place of torch._C._get_fp32_precision_getter. An op without a precision has that of its backend, or of all."""

    @functools.wraps(original)
    def read(backend: str, op: str) -> str:
        job = current.owner()
        if job is None or backend != "cuda" or not job.own_settings:
            return original(backend, op)
        for each in (op, "all"):
            precision: str = job.own_settings.get((backend, each)) or original(backend, each)
            if precision != _NONE:
                return precision
        return original("generic", "all")

    return torch.compiler.assume_constant_result(read)  # type: ignore[no-any-return, no-untyped-call]


def set_own_precision(job: JobContext, backend: str, op: str, precision: str) -> bool:
    """False for one that torch refuses."""
    if precision not in _PRECISIONS:
        return False
    job.own_settings[backend, op] = precision
    return True
