"""Settings that torch keeps once per process. Those that change results, jobs must agree on; those of a GPU's libraries
on a CPU, and those that only Python code reads, are each job's own. Guarded are the functions of torch._C that all of
torch calls."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchshare.context import current
from torchshare.isolation import agreement, own_settings
from torchshare.isolation.agreement import Setting
from torchshare.isolation.patches import Patches
from torchshare.isolation.table import Table, around

log = logging.getLogger("torchshare")

TABLE = Table()

# What the user sets, and the functions of torch._C that read and set it.
_ANYWHERE = {
    "torch.set_default_dtype": ("get_default_dtype", "_set_default_dtype"),
    "torch.set_float32_matmul_precision": ("_get_float32_matmul_precision", "_set_float32_matmul_precision"),
    "torch.utils.deterministic.fill_uninitialized_memory": (
        "_get_deterministic_fill_uninitialized_memory",
        "_set_deterministic_fill_uninitialized_memory",
    ),
    "torch.backends.mkldnn.enabled": ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    "torch.backends.mkldnn.deterministic": ("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    # A CPU chooses among these two kernels of attention.
    "torch.backends.cuda.enable_flash_sdp": ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    "torch.backends.cuda.enable_math_sdp": ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp": (
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_set_math_sdp_allow_fp16_bf16_reduction",
    ),
    "torch.backends.nnpack": ("_get_nnpack_enabled", "_set_nnpack_enabled"),
    "torch.backends.quantized.engine": ("_get_qengine", "_set_qengine"),
    "torch._C._set_cpu_allow_fp16_reduced_precision_reduction": (
        "_get_cpu_allow_fp16_reduced_precision_reduction",
        "_set_cpu_allow_fp16_reduced_precision_reduction",
    ),
}
_ON_GPUS = {
    "torch.backends.cudnn.enabled": ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    "torch.backends.cudnn.benchmark": ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    "torch.backends.cudnn.benchmark_limit": ("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"),
    "torch.backends.cudnn.deterministic": ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    "torch.backends.cudnn.allow_tf32": ("_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"),
    "torch.backends.miopen.immediate": ("_get_miopen_immediate", "_set_miopen_immediate"),
    "torch.backends.cuda.matmul.allow_tf32": ("_get_cublas_allow_tf32", "_set_cublas_allow_tf32"),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": (
        "_get_cublas_allow_fp16_accumulation",
        "_set_cublas_allow_fp16_accumulation",
    ),
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_set_cublas_allow_fp16_reduced_precision_reduction",
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_set_cublas_allow_bf16_reduced_precision_reduction",
    ),
    "torch.backends.cuda.enable_cudnn_sdp": ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    "torch.backends.cuda.enable_mem_efficient_sdp": ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    # A CPU has an order of its own.
    "torch.nn.attention.sdpa_kernel(set_priority=True)": ("_get_sdp_priority_order", "_set_sdp_priority_order"),
    "torch.nn.attention.sdpa_kernel(OVERRIDEABLE)": ("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    "torch.backends.cuda.preferred_blas_library": ("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
    "torch.backends.cuda.preferred_linalg_library": ("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
}
# By the arguments of torch._C._set_fp32_precision_setter.
_PRECISIONS = {
    ("generic", "all"): "torch.backends.fp32_precision",
    ("cuda", "all"): "torch.backends.cudnn.fp32_precision",
    ("cuda", "matmul"): "torch.backends.cuda.matmul.fp32_precision",
    ("cuda", "conv"): "torch.backends.cudnn.conv.fp32_precision",
    ("cuda", "rnn"): "torch.backends.cudnn.rnn.fp32_precision",
    ("mkldnn", "all"): "torch.backends.mkldnn.fp32_precision",
    ("mkldnn", "matmul"): "torch.backends.mkldnn.matmul.fp32_precision",
    ("mkldnn", "conv"): "torch.backends.mkldnn.conv.fp32_precision",
    ("mkldnn", "rnn"): "torch.backends.mkldnn.rnn.fp32_precision",
}
_AGREED = "Jobs must agree on the value."
_AGREED_ON_GPUS = "Jobs must agree on the value; on a machine without a GPU, each has its own."


@TABLE.at_start
def _begin(_patches: Patches) -> None:
    agreement.begin()


def _agreed(write: Callable[..., Any], *, name: str, getter: str, of_gpu: bool) -> Callable[..., Any]:
    read = _readable(getattr(torch._C, getter))
    setting = Setting(name, read, lambda value: write(*value) if isinstance(value, tuple) else write(value))
    agreement.add(setting)

    @functools.wraps(write)
    def guarded(*values: Any) -> Any:
        job = current.owner()
        if job is None:
            return write(*values)
        value = values[0] if len(values) == 1 else values
        former = setting.value()
        if isinstance(former, tuple) and not isinstance(value, tuple):
            value = value, True  # as torch._C completes it
        if not of_gpu or not own_settings.are_own(job):
            agreement.agree(setting, job, value)
            own_settings.forget_matmul(job)
        elif not own_settings.set_own(job, getter, value, former):
            write(*values)  # raises
        return None

    return guarded


for _of_gpu, _functions, _why in ((False, _ANYWHERE, _AGREED), (True, _ON_GPUS, _AGREED_ON_GPUS)):
    for _name, (_getter, _setter) in _functions.items():
        _make = functools.partial(_agreed, name=_name, getter=_getter, of_gpu=_of_gpu)
        TABLE.value("torch._C", _setter, why=_why, everywhere=True)(_make)
        if _of_gpu or _getter == "_get_float32_matmul_precision":
            _make = functools.partial(own_settings.reader, _getter)
            TABLE.value("torch._C", _getter, why=_why, everywhere=True)(_make)


def _readable(read: Callable[[], Any]) -> Callable[[], Any]:
    """torch raises if a precision was set by its old and by its new name: then it has no value."""

    def value() -> Any:
        try:
            return read()
        except RuntimeError:
            return None

    return value


@TABLE.value("torch._C", "_set_fp32_precision_setter", why=_AGREED_ON_GPUS)
def _agreed_precision(write: Callable[[str, str, str], str]) -> Callable[[str, str, str], str]:
    read = torch._C._get_fp32_precision_getter
    settings = {
        key: Setting(name, functools.partial(read, *key), functools.partial(write, *key))
        for key, name in _PRECISIONS.items()
    }
    agreement.add(*settings.values())

    @functools.wraps(write)
    def guarded(backend: str, op: str, precision: str) -> str:
        job, setting = current.owner(), settings.get((backend, op))
        if job is None or setting is None:
            return write(backend, op, precision)
        if backend != "cuda" or not own_settings.are_own(job):
            agreement.agree(setting, job, precision)
        elif not own_settings.set_own_precision(job, backend, op, precision):
            return write(backend, op, precision)  # raises
        return precision

    return guarded


TABLE.value("torch._C", "_get_fp32_precision_getter", why=_AGREED_ON_GPUS)(own_settings.precision_reader)
_set_deterministic = torch._C._set_deterministic_algorithms


def _write_deterministic(value: tuple[bool, bool]) -> None:
    _set_deterministic(value[0], warn_only=value[1])


_DETERMINISTIC = Setting(
    "torch.use_deterministic_algorithms",
    lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
    _write_deterministic,
)


# Inductor's option, which is each job's own, must not change before jobs have agreed: the function of torch is guarded,
# too.
@TABLE.call("torch", "use_deterministic_algorithms", why=_AGREED, everywhere=True)
def _use_deterministic_algorithms(original: Callable[..., None], mode: bool, *, warn_only: bool = False) -> None:
    job = current.owner()
    if job is None:
        original(mode, warn_only=warn_only)
    else:
        from torch._inductor import config

        agreement.agree(_DETERMINISTIC, job, (mode, warn_only))
        config.deterministic = torch.are_deterministic_algorithms_enabled()


@TABLE.value("torch._C", "_set_deterministic_algorithms", why=_AGREED)
def _agreed_deterministic(write: Callable[..., None]) -> Callable[..., None]:
    agreement.add(_DETERMINISTIC)
    guarded: Callable[..., None] = around(_use_deterministic_algorithms)(write)
    return guarded


@TABLE.call("torch.export._trace", "_ignore_backend_decomps")
def _ignore_backend_decomps(original: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """What `torch.export` switches off while it traces stays on for the other jobs."""
    return contextlib.nullcontext() if current.owner() is not None else original()


@TABLE.call("torch", "set_default_tensor_type", everywhere=True)
def _set_default_tensor_type(original: Callable[[Any], None], t: Any) -> None:
    """A job sets the default dtype, on which jobs must agree."""
    if current.owner() is None:
        original(t)
    else:
        tensor_type = getattr(torch, t.rpartition(".")[2]) if isinstance(t, str) else t
        torch.set_default_dtype(tensor_type.dtype)


@TABLE.call("torch", "set_num_interop_threads", everywhere=True)
def _set_num_interop_threads(original: Callable[[int], None], number: int) -> None:
    """A job gets a warning, and the number stays."""
    job = current.owner()
    if job is None:
        original(number)
    else:
        log.warning("job '%s': torch.set_num_interop_threads has no effect in a job", job.name)
