"""Process-wide state of torch's tracing, scripting, forward-mode differentiation and profiler: jobs take turns at it,
and the state that a job sets in its turn is hidden from other threads.

Tracing takes dynamo's lock, as compiling does (see `compiling`). The thread that holds it owns the tables of `make_fx`,
the methods that a symbolic trace patches in `nn.Module`, and the flags behind `torch.compiler.is_compiling` and the
like.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchshare import _C
from torchshare.context import current
from torchshare.context.script import ScriptContext
from torchshare.isolation.compiling import in_turn, turns
from torchshare.isolation.table import Table

TABLE = Table()

_TAKES_TURNS = (
    ("torch.fx._symbolic_trace:Tracer", "trace"),
    ("torch.fx.experimental.proxy_tensor:_MakefxTracer", "_trace_inner"),
    ("torch.jit", "trace", "trace_module", "freeze"),  # they share tables of types and modules
    ("torch.export._trace", "_export", "_export_for_training"),  # they keep the model's modules in a global variable
    ("torch._export.serde.serialize:GraphModuleDeserializer", "deserialize"),  # as does loading what they export
)
for _names in _TAKES_TURNS:
    TABLE.call(*_names)(in_turn)


@TABLE.call("torch.compiler", "is_compiling", "is_exporting", everywhere=True)
@TABLE.call("torch.fx._symbolic_trace", "is_fx_symbolic_tracing", everywhere=True)
def _is_tracing(original: Callable[[], bool]) -> bool:
    """A thread that does not trace gets False."""
    return not turns().is_held_elsewhere() and original()


@TABLE.call("torch.fx._symbolic_trace:_Patcher", "patch_method")
def _patch_method(
    original: Callable[..., None], self: Any, owner: type, name: str, new: Callable[..., Any], deduplicate: bool = True
) -> None:
    """A method that is patched for a trace is so in the thread that traces only."""
    former, thread = getattr(owner, name), threading.get_ident()

    @functools.wraps(new)
    def here(*args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == thread else former)(*args, **kwargs)

    original(self, owner, name, here, deduplicate)


@TABLE.call("torch._export.utils", "_compiling_state_context", everywhere=True)
@TABLE.call("torch._functorch.eager_transforms", "jvp_increment_nesting", everywhere=True)
@contextlib.contextmanager
def _context_in_turn(original: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[Any]:
    """Jobs take turns at exporting and at forward-mode differentiation, whose levels are numbered per process."""
    with turns(), original() as value:
        yield value


_SIGNATURE_OF_SCRIPT = inspect.signature(torch.jit.script)


@TABLE.call("torch.jit", "script")
def _script(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Jobs take turns at compiling and tracing."""
    call = _SIGNATURE_OF_SCRIPT.bind(*args, **kwargs)
    # It resolves names so many frames up. This one, and the one that calls it, are two more.
    call.arguments["_frames_up"] = call.arguments.get("_frames_up", 0) + 2
    with turns():
        return original(*call.args, **call.kwargs)


_first: dict[str, weakref.ref[ScriptContext]] = {}
"""The script that was the first to compile a class of this name. The class stays when the script has ended."""
_numbers = itertools.count()


@TABLE.call("torch._jit_internal", "_qualified_name", everywhere=True)
def _qualified_name(original: Callable[..., str], obj: Any, mangle_name: bool = True) -> str:
    """Classes, enumerations and named tuples of scripts that TorchScript compiles may have the same name."""
    name, script = original(obj, mangle_name), current.script()
    if script is None or not mangle_name or not isinstance(obj, type) or issubclass(obj, torch.nn.Module):
        return name  # TorchScript itself gives modules and functions of the same name different ones
    if obj.__module__ not in script.own_modules or _first.setdefault(name, weakref.ref(script))() is script:
        return name
    if name not in script.torch_script_names:
        script.torch_script_names[name] = name.replace("__torch__", f"__torch__.___torchshare_{next(_numbers)}", 1)
    return script.torch_script_names[name]


@TABLE.call("torch.autograd.forward_ad", "enter_dual_level")
def _enter_dual_level(original: Callable[[], int]) -> int:
    """Jobs take turns at forward-mode differentiation, whose levels are numbered per process."""
    turns().__enter__()
    try:
        level = int(original())
    except BaseException:
        turns().__exit__()
        raise
    _levels.entered.append(level)
    return level


@TABLE.call("torch.autograd.forward_ad", "exit_dual_level")
def _exit_dual_level(original: Callable[..., None], *, level: int | None = None) -> None:
    """Jobs take turns at forward-mode differentiation, whose levels are numbered per process."""
    try:
        original(level=level)
    finally:
        if _levels.entered:  # otherwise the level was entered before the runtime was opened
            _levels.entered.pop()
            turns().__exit__()


class _Levels(threading.local):
    """Levels of forward-mode differentiation that the thread has entered."""

    def __init__(self) -> None:
        self.entered: list[int] = []


_levels = _Levels()


def leave() -> None:
    """Called at the end of a job, in its thread: releases turns that a cancellation left unreleased."""
    while _levels.entered:
        torch.autograd.forward_ad.exit_dual_level(level=_levels.entered[-1])  # type: ignore[no-untyped-call]
    turns().exit_all()


_patching = threading.Lock()  # guards the patching of optimizer classes
os.register_at_fork(after_in_child=_patching._at_fork_reinit)  # type: ignore[attr-defined]


@TABLE.call("torch.optim:Optimizer", "_patch_step_function")
def _patch_step_function(original: Callable[..., None], self: Any) -> None:
    """One thread at a time patches the class of an optimizer: torch checks first whether it is patched."""
    with _patching:
        original(self)


class _ThreadCache(threading.local):
    """Per thread, the state that `torch.nn.utils.parametrize` keeps in two module variables."""

    def __init__(self) -> None:
        self.depth = 0
        self.tensors: dict[Any, Any] = {}

    def __bool__(self) -> bool:
        return self.depth > 0

    def get(self, key: Any) -> Any:
        return self.tensors.get(key)

    def __setitem__(self, key: Any, tensor: Any) -> None:
        self.tensors[key] = tensor


_cache = _ThreadCache()


@TABLE.value("torch.nn.utils.parametrize", "_cache_enabled", "_cache")
def _thread_cache(_former: Any) -> _ThreadCache:
    """Each thread caches its own parametrized tensors."""
    return _cache


@TABLE.call("torch.nn.utils.parametrize", "cached")
@contextlib.contextmanager
def _cached(_original: Any) -> Iterator[None]:
    """Each thread caches its own parametrized tensors."""
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache:
            _cache.tensors = {}


_profiling: list[str] = []  # who uses the profiler
_beginning = threading.Lock()  # guards it


@TABLE.call("torch.autograd.profiler", "_prepare_profiler")
def _prepare_profiler(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A second profiler is refused: starting one crashes the process."""
    job = current.job()
    name = "the main program" if job is None else f"job '{job.name}'"
    with _beginning:
        if _profiling and _profiling[0] != name:
            raise RuntimeError(f"{name}: torch's profiler is in use by {_profiling[0]}; a process has only one")
        _profiling[:] = [name]
    return original(*args, **kwargs)


@TABLE.call("torch.autograd.profiler", "_disable_profiler")
def _disable_profiler(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The profiler is free for another job."""
    try:
        return original(*args, **kwargs)
    finally:
        with _beginning:
            _profiling.clear()


@TABLE.value("torch._C._aoti", "AOTIModelPackageLoader")
def _loading_in_turns(loader: Any) -> Any:
    """One package is loaded at a time, see PackageLoading in csrc/compiled/step_package.h."""

    class Loader(loader):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with _C.PackageLoading():
                super().__init__(*args, **kwargs)

        @staticmethod
        def load_metadata_from_package(*args: Any, **kwargs: Any) -> Any:
            with _C.PackageLoading():
                return loader.load_metadata_from_package(*args, **kwargs)

    return Loader


@TABLE.call("torch", "set_autocast_cache_enabled")
def _set_autocast_cache_enabled(original: Callable[[bool], None], enabled: bool) -> None:
    """Jobs run without autocast's weight cache, which the end of a region in one job would clear for all.

    JobThread disables it; a region cannot enable it."""
    original(enabled and current.job() is None)
