"""Settings that torch keeps once per process. Those that change results, jobs must agree on; those of a GPU's libraries
on a CPU, and those that only Python code reads, are each job's own. Guarded are the functions of torch._C that all of
torch calls."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchshare.context import current
from torchshare.isolation import agreement, own_settings
from torchshare.isolation.agreement import Setting
from torchshare.isolation.patches import Patches

log = logging.getLogger("torchshare")

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
_LIBRARIES = (torch.backends.cudnn, torch.backends.mkldnn, torch.backends.miopen)


def route(patches: Patches) -> None:
    settings = [
        *(_route_in_c(patches, name, *functions, of_gpu=False) for name, functions in _ANYWHERE.items()),
        *(_route_in_c(patches, name, *functions, of_gpu=True) for name, functions in _ON_GPUS.items()),
        *_route_precisions(patches),
        _route_deterministic(patches),
    ]
    agreement.begin(settings)
    own_settings.route_freezing(patches)
    own_settings.route_variables(patches)
    patches.wrap(torch, "set_default_tensor_type", _as_default_dtype)
    patches.wrap(torch, "set_num_interop_threads", _without_effect)
    _route_export(patches)


def _route_in_c(patches: Patches, name: str, getter: str, setter: str, *, of_gpu: bool) -> Setting:
    read, write = getattr(torch._C, getter), getattr(torch._C, setter)
    setting = Setting(name, _readable(read), lambda value: write(*value) if isinstance(value, tuple) else write(value))

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

    _replace(patches, write, setter, guarded)
    if of_gpu or getter == "_get_float32_matmul_precision":
        _replace(patches, read, getter, own_settings.reader(getter, read))
    return setting


def _replace(patches: Patches, original: Any, name: str, routed: Callable[..., Any]) -> None:
    """In torch._C and where torch.backends keeps the function."""
    patches.replace(torch._C, name, routed)
    for library in _LIBRARIES:
        for flag in vars(type(library)).values():
            for kind in ("getter", "setter"):
                if getattr(flag, kind, None) is original:
                    patches.replace(flag, kind, routed)


def _readable(read: Callable[[], Any]) -> Callable[[], Any]:
    """torch raises if a precision was set by its old and by its new name: then it has no value."""

    def value() -> Any:
        try:
            return read()
        except RuntimeError:
            return None

    return value


def _route_precisions(patches: Patches) -> list[Setting]:
    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    settings = {
        key: Setting(name, functools.partial(read, *key), functools.partial(write, *key))
        for key, name in _PRECISIONS.items()
    }

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

    patches.replace(torch._C, "_get_fp32_precision_getter", own_settings.precision_reader(read))
    patches.replace(torch._C, "_set_fp32_precision_setter", guarded)
    return list(settings.values())


def _route_deterministic(patches: Patches) -> Setting:
    """Inductor's option, which is each job's own, must not change before jobs have agreed: the function of torch is
    guarded, too."""
    from torch._inductor import config

    in_c = torch._C._set_deterministic_algorithms

    def write(value: tuple[bool, bool]) -> None:
        in_c(value[0], warn_only=value[1])

    def value() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    setting = Setting("torch.use_deterministic_algorithms", value, write)

    def guarded(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
            job = current.owner()
            if job is None:
                function(mode, warn_only=warn_only)
            else:
                agreement.agree(setting, job, (mode, warn_only))
                config.deterministic = torch.are_deterministic_algorithms_enabled()

        return use_deterministic_algorithms

    patches.wrap(torch, "use_deterministic_algorithms", guarded)
    patches.replace(torch._C, "_set_deterministic_algorithms", guarded(in_c))
    return setting


def _route_export(patches: Patches) -> None:
    """What `torch.export` switches off while it traces would be off for all jobs."""
    from torch.export import _trace

    original = _trace._ignore_backend_decomps

    @functools.wraps(original)
    @contextlib.contextmanager
    def ignore_backend_decomps() -> Iterator[None]:
        with contextlib.nullcontext() if current.owner() is not None else original():
            yield

    patches.replace(_trace, "_ignore_backend_decomps", ignore_backend_decomps)


def _as_default_dtype(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def set_default_tensor_type(t: Any) -> None:
        if current.owner() is None:
            original(t)
        else:
            tensor_type = getattr(torch, t.rpartition(".")[2]) if isinstance(t, str) else t
            torch.set_default_dtype(tensor_type.dtype)

    return set_default_tensor_type


def _without_effect(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def set_num_interop_threads(number: int) -> None:
        job = current.owner()
        if job is None:
            original(number)
        else:
            log.warning("job '%s': torch.set_num_interop_threads has no effect in a job", job.name)

    return set_num_interop_threads
