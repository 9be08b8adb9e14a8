"""Settings that torch keeps once per process and that change results: jobs that run together must agree on them.

The highest job decides. A lower job that sets another value waits until the higher ones have set it too or have done a
step, and then fails; a job that has not set what the others run with fails at its first step.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchshare import _core
from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.isolation.patches import Patches

log = logging.getLogger("torchshare")

# The functions of torch._C that read and set what the user sets by another name.
_IN_C = {
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
    "torch.backends.cuda.enable_flash_sdp": ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    "torch.backends.cuda.enable_math_sdp": ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    "torch.backends.cuda.enable_mem_efficient_sdp": ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp": (
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_set_math_sdp_allow_fp16_bf16_reduction",
    ),
    "torch.backends.cuda.preferred_blas_library": ("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
    "torch.backends.cuda.preferred_linalg_library": ("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
    "torch.backends.quantized.engine": ("_get_qengine", "_set_qengine"),
}
_POLL_S = 0.005
_PATIENCE_S = 20.0  # how long a lower job waits for the higher ones to set the same


@dataclass(eq=False)
class _Setting:
    """A setting, as the user writes it."""

    name: str
    value: Callable[[], Any]
    restore: Callable[[Any], object]
    former: Any = None
    set_by: set[JobContext] = field(default_factory=set)


_lock = threading.Lock()  # guards the variables below
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]
_numbers = itertools.count()
_jobs: weakref.WeakKeyDictionary[JobContext, int] = weakref.WeakKeyDictionary()  # and their order
_settings: list[_Setting] = []


def route(patches: Patches) -> None:
    _settings.clear()
    _guard(patches, torch, "set_default_dtype", torch.get_default_dtype)
    _guard(patches, torch, "set_float32_matmul_precision", torch.get_float32_matmul_precision)
    _guard(
        patches,
        torch,
        "use_deterministic_algorithms",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        of_call=lambda mode, *, warn_only=False: (mode, warn_only),
        restore=lambda former, original: original(former[0], warn_only=former[1]),
    )
    for library in (torch.backends.cudnn, torch.backends.mkldnn):
        for name, flag in vars(type(library)).items():
            if isinstance(flag, torch.backends.ContextProp):
                _guard(patches, flag, "setter", flag.getter, name=f"{library.__name__}.{name}")
    for name, (getter, setter) in _IN_C.items():
        _guard(patches, torch._C, setter, getattr(torch._C, getter), name=name)
    mha = torch.backends.mha
    _guard(patches, mha, "set_fastpath_enabled", mha.get_fastpath_enabled, name="torch.backends.mha")
    patches.wrap(torch, "set_default_tensor_type", _as_default_dtype)
    patches.wrap(torch, "set_num_interop_threads", _without_effect)


def _guard(
    patches: Patches,
    owner: Any,
    attribute: str,
    value: Callable[[], Any],
    *,
    name: str = "",
    of_call: Callable[..., Any] = lambda *values: values[0] if len(values) == 1 else values,
    restore: Callable[[Any, Any], object] = lambda former, original: (
        original(*former) if isinstance(former, tuple) else original(former)
    ),
) -> None:
    original = getattr(owner, attribute)
    setting = _Setting(name or f"torch.{attribute}", value, lambda former: restore(former, original))
    _settings.append(setting)

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> None:
        job = current.job()
        if job is not None:
            _agree(setting, job, of_call(*args, **kwargs))
        original(*args, **kwargs)

    patches.replace(owner, attribute, guarded)


def expect(job: JobContext) -> None:
    """Called when a job has been submitted."""
    with _lock:
        _jobs[job] = next(_numbers)


def leave(job: JobContext) -> None:
    """Called at the end of a job. The last of those that have set a value restores the former one."""
    with _lock:
        _jobs.pop(job, None)
        for setting in _settings:
            if job in setting.set_by:
                setting.set_by.remove(job)
                if not setting.set_by:
                    setting.restore(setting.former)


def check(job: JobContext) -> None:
    """Called before a job's first optimizer step. Raises RuntimeError if it runs with a value that another set."""
    with _lock:
        for setting in _settings:
            if setting.set_by and job not in setting.set_by:
                raise RuntimeError(_conflict(job, setting, min(setting.set_by, key=_order), setting.former))


def _agree(setting: _Setting, job: JobContext, value: Any) -> None:
    """Returns when the job may set the value. Raises RuntimeError if jobs that run with another outrank it."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with _lock:
            if setting.value() == value:
                if setting.set_by:
                    setting.set_by.add(job)
                return
            opposed = [other for other in _jobs if _opposes(other, job)]
            if not opposed:
                _take(setting, job)
                return
        first = opposed[0]
        if first.handle.stats().steps > 0 or first in setting.set_by or time.monotonic() > deadline:
            raise RuntimeError(_conflict(job, setting, first, value))
        job.handle.sleep(_POLL_S)


def _opposes(other: JobContext, job: JobContext) -> bool:
    """Whether `other` runs, or may be about to, and outranks the job; of two equal jobs, the earlier one does."""
    priority, others = job.handle.priority, other.handle.priority
    outranks = _core.outranks(others, priority) or (others == priority and _order(other) < _order(job))
    return outranks and other.handle.state in ("pending", "running", "suspended")


def _order(job: JobContext) -> int:
    return _jobs.get(job, -1)


def _take(setting: _Setting, job: JobContext) -> None:
    """The job decides: lower jobs that have done steps with the present value are cancelled."""
    if not setting.set_by:
        setting.former = setting.value()
    setting.set_by = {job}
    for other in list(_jobs):
        if other is not job and other.handle.stats().steps > 0:
            log.error("job '%s' is cancelled: %s", other.name, _conflict(other, setting, job, setting.former))
            other.handle.cancel()
            other.watch_cancel(other)


def _conflict(job: JobContext, setting: _Setting, other: JobContext, wanted: Any) -> str:
    return (
        f"job '{job.name}': {setting.name} is one per process, and job '{other.name}' runs with {setting.value()}, "
        f"not {wanted}; set the same in both, or run them in two processes"
    )


def _as_default_dtype(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def set_default_tensor_type(t: Any) -> None:
        if current.job() is None:
            original(t)
        else:
            tensor_type = getattr(torch, t.rpartition(".")[2]) if isinstance(t, str) else t
            torch.set_default_dtype(tensor_type.dtype)

    return set_default_tensor_type


def _without_effect(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def set_num_interop_threads(number: int) -> None:
        job = current.job()
        if job is None:
            original(number)
        else:
            log.warning("job '%s': torch.set_num_interop_threads has no effect in a job", job.name)

    return set_num_interop_threads
