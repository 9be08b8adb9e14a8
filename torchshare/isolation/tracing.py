"""Process-wide state of torch's tracing, scripting, forward-mode differentiation and profiler: jobs take turns at it,
and the state that a job sets in its turn is hidden from other threads.

Tracing takes dynamo's lock, as compiling does (see `compiling`). The thread that holds it owns the tables of `make_fx`,
the methods that a symbolic trace patches in `nn.Module`, and the flags behind `torch.compiler.is_compiling` and the
like.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchshare import _C
from torchshare.context import current
from torchshare.isolation.compiling import Replace, take_turns

_patching = threading.Lock()  # guards the patching of optimizer classes
os.register_at_fork(after_in_child=_patching._at_fork_reinit)  # type: ignore[attr-defined]


def route(replace: Replace, turns: _C.Turns) -> None:
    """`turns` is dynamo's lock."""
    _route_fx(replace, turns)
    _route_export(replace, turns)
    _route_forward_ad(replace, turns)
    _route_parametrize(replace)
    _route_profiler(replace)
    for name in ("trace", "trace_module", "freeze"):  # they share tables of types and modules
        replace(torch.jit, name, take_turns(turns, getattr(torch.jit, name)))
    replace(torch.jit, "script", _scripting_in_turns(turns, torch.jit.script))
    patch_step = torch.optim.Optimizer._patch_step_function  # checks whether its class is patched already
    replace(torch.optim.Optimizer, "_patch_step_function", take_turns(_patching, patch_step))
    replace(torch._C._aoti, "AOTIModelPackageLoader", _loading_in_turns(torch._C._aoti.AOTIModelPackageLoader))
    _route_autocast(replace)


def _route_fx(replace: Replace, turns: _C.Turns) -> None:
    from torch.fx import _symbolic_trace
    from torch.fx.experimental import proxy_tensor

    replace(_symbolic_trace.Tracer, "trace", take_turns(turns, _symbolic_trace.Tracer.trace))
    tracer = proxy_tensor._MakefxTracer
    replace(tracer, "_trace_inner", take_turns(turns, tracer._trace_inner))
    patcher = _symbolic_trace._Patcher
    replace(patcher, "patch_method", _patching_for_one_thread(patcher.patch_method))
    for name in ("is_compiling", "is_exporting"):
        _answer_by_thread(replace, torch.compiler, name, turns)
    _answer_by_thread(replace, _symbolic_trace, "is_fx_symbolic_tracing", turns)


def _answer_by_thread(replace: Replace, module: Any, name: str, turns: _C.Turns) -> None:
    """Makes a function that returns a flag of the tracing thread return False in other threads. Wrappers of compiled
    functions and dynamo's tables hold the function itself, so its code is replaced."""
    function = getattr(module, name)
    code = function.__code__
    original = types.FunctionType(code, function.__globals__)
    own_name = f"_torchshare_{name}"
    replace(module, own_name, lambda: not turns.is_held_elsewhere() and original())
    namespace: dict[str, Any] = {}
    exec(f"def {name}(): return {own_name}()", namespace)
    # TorchScript reads the function's source.
    place = {"co_filename": code.co_filename, "co_firstlineno": code.co_firstlineno}
    replace(function, "__code__", namespace[name].__code__.replace(**place))


def _patching_for_one_thread(original: Callable[..., None]) -> Callable[..., None]:
    """Applies a patch of a method in the tracing thread only."""

    @functools.wraps(original)
    def patch_method(self: Any, owner: type, name: str, new: Callable[..., Any], deduplicate: bool = True) -> None:
        former, thread = getattr(owner, name), threading.get_ident()

        @functools.wraps(new)
        def here(*args: Any, **kwargs: Any) -> Any:
            return (new if threading.get_ident() == thread else former)(*args, **kwargs)

        original(self, owner, name, here, deduplicate)

    return patch_method


def _route_export(replace: Replace, turns: _C.Turns) -> None:
    import torch._dynamo.eval_frame
    import torch._dynamo.functional_export
    import torch._export.utils
    import torch.export._trace

    original = torch._export.utils._compiling_state_context

    @contextlib.contextmanager
    def exporting() -> Iterator[None]:
        with turns, original():
            yield

    modules = (
        torch._export.utils,
        torch._dynamo.eval_frame,
        torch._dynamo.functional_export,
        torch.export._trace,
    )
    for module in modules:
        replace(module, "_compiling_state_context", exporting)


def _scripting_in_turns(turns: _C.Turns, original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.jit.script with turns. It resolves names `_frames_up` frames up, and this wrapper is one more frame."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def script(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.arguments["_frames_up"] = call.arguments.get("_frames_up", 0) + 1
        with turns:
            return original(*call.args, **call.kwargs)

    return script


def _route_forward_ad(replace: Replace, turns: _C.Turns) -> None:
    """Levels of forward-mode differentiation are numbered per process."""
    import torch._functorch.eager_transforms as transforms
    from torch.autograd import forward_ad

    nesting, enter, leave = transforms.jvp_increment_nesting, forward_ad.enter_dual_level, forward_ad.exit_dual_level
    (generator,) = (cell for cell in nesting.__closure__ or () if inspect.isgeneratorfunction(cell.cell_contents))
    original = generator.cell_contents

    def jvp_increment_nesting() -> Iterator[int]:
        with turns:
            yield from original()

    @functools.wraps(enter)
    def enter_dual_level() -> int:
        turns.__enter__()
        try:
            level = int(enter())  # type: ignore[no-untyped-call]
        except BaseException:
            turns.__exit__()
            raise
        _levels.entered.append(level)
        return level

    @functools.wraps(leave)
    def exit_dual_level(*, level: int | None = None) -> None:
        try:
            leave(level=level)  # type: ignore[no-untyped-call]
        finally:
            if _levels.entered:  # otherwise the level was entered before the runtime was opened
                _levels.entered.pop()
                turns.__exit__()

    replace(generator, "cell_contents", jvp_increment_nesting)  # dynamo's tables hold the function itself
    replace(forward_ad, "enter_dual_level", enter_dual_level)
    replace(forward_ad, "exit_dual_level", exit_dual_level)


class _Levels(threading.local):
    """Levels of forward-mode differentiation that the thread has entered."""

    def __init__(self) -> None:
        self.entered: list[int] = []


_levels = _Levels()


def leave(turns: _C.Turns) -> None:
    """Called at the end of a job, in its thread: releases turns that a cancellation left unreleased."""
    from torch.autograd import forward_ad

    while _levels.entered:
        forward_ad.exit_dual_level(level=_levels.entered[-1])  # type: ignore[no-untyped-call]
    turns.exit_all()


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


def _route_parametrize(replace: Replace) -> None:
    from torch.nn.utils import parametrize

    cache = _ThreadCache()

    @contextlib.contextmanager
    def cached() -> Iterator[None]:
        cache.depth += 1
        try:
            yield
        finally:
            cache.depth -= 1
            if not cache:
                cache.tensors = {}

    replace(parametrize, "_cache_enabled", cache)
    replace(parametrize, "_cache", cache)
    replace(parametrize, "cached", functools.wraps(parametrize.cached)(cached))


def _route_profiler(replace: Replace) -> None:
    """torch has one profiler per process; starting a second one crashes the process."""
    profiler: Any = importlib.import_module("torch.autograd.profiler")
    owner: list[str] = []
    prepare, disable = profiler._prepare_profiler, profiler._disable_profiler

    @functools.wraps(prepare)
    def prepare_profiler(*args: Any, **kwargs: Any) -> Any:
        job = current.job()
        name = "the main program" if job is None else f"job '{job.name}'"
        if owner and owner[0] != name:
            raise RuntimeError(f"{name}: torch's profiler is in use by {owner[0]}; a process has only one")
        owner[:] = [name]
        return prepare(*args, **kwargs)

    @functools.wraps(disable)
    def disable_profiler(*args: Any, **kwargs: Any) -> Any:
        try:
            return disable(*args, **kwargs)
        finally:
            owner.clear()

    replace(profiler, "_prepare_profiler", prepare_profiler)
    replace(profiler, "_disable_profiler", disable_profiler)


def _loading_in_turns(loader: Any) -> Any:
    """Serializes loading of packages, see PackageLoading in csrc/compiled/step_package.h."""

    class Loader(loader):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with _C.PackageLoading():
                super().__init__(*args, **kwargs)

        @staticmethod
        def load_metadata_from_package(*args: Any, **kwargs: Any) -> Any:
            with _C.PackageLoading():
                return loader.load_metadata_from_package(*args, **kwargs)

    return Loader


def _route_autocast(replace: Replace) -> None:
    """Autocast has one weight cache per process, and leaving a region in one job clears it for all. So jobs run without
    it (see JobThread), and a region cannot enable it for them."""
    original = torch.set_autocast_cache_enabled

    @functools.wraps(original)
    def set_autocast_cache_enabled(enabled: bool) -> None:
        original(enabled and current.job() is None)

    replace(torch, "set_autocast_cache_enabled", set_autocast_cache_enabled)
