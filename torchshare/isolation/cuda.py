"""torch.cuda inside jobs: synchronization with the job's own streams, the job's own random state, and Triton's kernels,
which are not ops of torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchshare import _C
from torchshare.context import current
from torchshare.isolation.table import Table

TABLE = Table()
"""Applied once CUDA is initialized, which creates the default generators."""


@TABLE.call("torch.accelerator", "synchronize", everywhere=True)
@TABLE.call("torch.cuda", "synchronize", everywhere=True)
def _synchronize(original: Callable[..., None], device: Any = None) -> None:
    """A job waits for its own work only."""
    if not (_is_jobs(device) and current.synchronize()):
        original(device)


@TABLE.call("torch.cuda", "default_stream", everywhere=True)
def _default_stream(original: Callable[..., torch.cuda.Stream], device: Any = None) -> torch.cuda.Stream:
    """A job's default stream is its own, which is current unless the job has made another one current."""
    owner = current.owner()
    handle = owner.handle.main_stream if owner is not None and _is_jobs(device) else 0
    return torch.cuda.ExternalStream(handle) if handle else original(device)  # type: ignore[no-untyped-call]


def _is_jobs(device: Any) -> bool:
    """Whether `device`, or the current one, which a job may change, is that of the calling thread's job."""
    generator = current.device_generator()
    if generator is None:
        return False
    index = None if device is None else torch.device(device).index
    return bool(generator.device.index == (torch.cuda.current_device() if index is None else index))


_LEGACY = (None, 1)
"""The legacy default stream, in the protocol of DLPack."""


@TABLE.call("torch:Tensor", "__dlpack__", everywhere=True)
def _dlpack(original: Callable[..., Any], self: torch.Tensor, **options: Any) -> Any:
    """What another library does with a job's tensor on the legacy stream comes after the job's ops, and before later
    ones."""
    if not self.requires_grad and options.get("stream", -1) in _LEGACY and _give_out(self):
        options["stream"] = -1  # torch would make the job's own stream wait: its default one
    return original(self, **options)


@TABLE.value("torch:Tensor", "__cuda_array_interface__")
def _cuda_array_interface(original: property) -> property:
    """What another library does with a job's tensor on the legacy stream comes after the job's ops, and before later
    ones."""

    def interface(self: torch.Tensor) -> Any:
        described = original.__get__(self)
        _give_out(self)
        return described

    return property(interface)


def _give_out(tensor: torch.Tensor) -> bool:
    """Returns False where no job gives out a tensor of its device."""
    owner = current.owner()
    if owner is None or not tensor.is_cuda or not _is_jobs(tensor.device):
        return False
    owner.handle.give_out()
    return True


@TABLE.call("torch.cuda:Stream", "__new__")
def _new_stream(
    original: Callable[..., torch.cuda.Stream],
    cls: type[torch.cuda.Stream],
    device: Any = None,
    priority: int = 0,
    **kwargs: Any,
) -> torch.cuda.Stream:
    """A job's streams have the priority of the job, whatever they ask for."""
    job = current.job()
    handle = 0
    if job is not None and cls is torch.cuda.Stream and not kwargs and _is_jobs(device):
        handle = job.handle.open_stream()
    if handle:
        return original(cls, stream_ptr=handle)
    return original(cls, device, priority, **kwargs)


def outside_of_jobs(what: str) -> Callable[..., Any]:
    """Makes a wrapper of torch's own captures."""

    def guarded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A job may not capture graphs other than with `Job.graph`.

        A capture would take the process's generator, and fail or end with what other jobs do."""
        job = current.job()
        if job is not None:
            raise RuntimeError(
                f"job '{job.name}': {what} is not supported in a job; job.graph(loss_fn) captures forward and backward"
            )
        return original(*args, **kwargs)

    return guarded


# `graph` first: it would make the job's stream the one that all captures of the process use.
for _cls, _name in (("graph", "__init__"), ("CUDAGraph", "capture_begin")):
    TABLE.call(f"torch.cuda:{_cls}", _name)(outside_of_jobs("torch.cuda.graph"))


@TABLE.call("torch._C:_CUDAGraph", "_retain_pool", versions=">=2.15")
def _retain_pool(original: Callable[..., None], graph: Any, pool: Any) -> None:
    """A graph that `Job.graph` captures keeps the pools that it uses.

    The graph is made in C++, where torch expects the pool's id. It gets the pool, as a graph made in Python does."""
    original(graph, getattr(pool, "id", pool))


@TABLE.call("torch._inductor.runtime.triton_heuristics:CachingAutotuner", "run")
def _run(original: Callable[..., Any], kernel: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A kernel waits its turn as an op does."""
    if _is_tuned(kernel):
        return _C.run_kernel(kernel.fn.__name__, original, kernel, *args, **kwargs)
    return original(kernel, *args, **kwargs)


def _is_tuned(kernel: Any) -> bool:
    """Whether Inductor has compiled the kernel and chosen its variant, so that `run` only launches it."""
    if len(kernel.launchers) != 1:
        return False
    config, asked = kernel.launchers[0].config, kernel.inductor_meta
    return (not asked.get("coordinate_descent_tuning") or getattr(config, "found_by_coordesc", False)) and (
        not asked.get("combo_tuning_groups") or getattr(config, "found_by_combo_autotune", False)
    )


@TABLE.value("triton.compiler.compiler:CompiledKernel", "run")
def _launcher(original: property) -> property:
    """A kernel waits its turn as an op does."""

    def launcher(kernel: Any) -> Callable[..., Any]:
        launch = original.__get__(kernel)
        return lambda *args, **kwargs: _C.run_kernel(kernel.name, launch, *args, **kwargs)

    return property(launcher)


@TABLE.value("torch.cuda", "default_generators")
class _RoutedGenerators:
    """In a job, the generator of its device is the job's."""

    def __init__(self, defaults: tuple[torch.Generator, ...]) -> None:
        self._defaults = defaults

    def __len__(self) -> int:
        return len(self._defaults)

    def __getitem__(self, index: int) -> torch.Generator:
        own, default = current.device_generator(), self._defaults[index]
        return own if own is not None and own.device == default.device else default
