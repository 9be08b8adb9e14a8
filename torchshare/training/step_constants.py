"""What compiled code has for good, but the user may change: looked at before each run, for 1 us per layer."""

from __future__ import annotations

import dis
import functools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchshare.isolation import hooks
from torchshare.training.retry import modules_of

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_CONTENTS = ("_parameters", "_buffers", "_modules")  # of a module, by name
_PLAIN = (int, float, bool, str, bytes, torch.dtype, torch.device, type(None))
_KINDS = ("requires_grad", "the type")  # of a parameter
_MISSING = object()

Change = tuple[str, str]
"""What has changed, and how: `x is 3, but was 2 when compiled`."""


class StepConstants:
    """The modules that a step or a model runs, their attributes, parameters and hooks; the variables of its loss
    function; the optimizer's parameters and hyperparameters; autocast and the number of threads.

    Not seen is what changes inside of other objects, and what is used by functions that the loss function calls.
    """

    def __init__(
        self,
        job: JobContext,
        model: nn.Module,
        loss_fn: Callable[..., Any],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """`loss_fn`: the model itself, if it is all that is compiled."""
        self._job = job
        self._optimizer = optimizer
        self._modules = list(_named_modules(model, loss_fn))
        values = [value for module, shown in self._modules for value in _attributes_of(module, shown)]
        self._cells: list[tuple[types.CellType, object, str]] = []
        for function, owner in _functions_of(loss_fn):
            values += _variables_of(function, owner)
            names = zip(function.__closure__ or (), function.__code__.co_freevars, strict=True)
            self._cells += [(cell, _contents(cell), f"'{name}' of the loss function") for cell, name in names]
        self._places = [(namespace, key) for namespace, key, _, _ in values]
        self._before = [value for _, _, value, _ in values]
        self._names = [name for *_, name in values]
        named = [(each, f"'{name}' of {shown}") for module, shown in self._modules for name, each in _own(module)]
        self._parameters = dict(named)
        self._kinds = self._kinds_now()
        self._contents = [
            (module.__dict__[kind], f"the number of {kind[1:]} of {shown}")
            for module, shown in self._modules
            for kind in _CONTENTS
        ]
        self._sizes = self._sizes_now()
        self._hooks = [module.__dict__[kind] for module, _ in self._modules for kind in _MODULE_HOOKS]
        self._updated = self._updated_now()
        self._settings = self._settings_now()

    def hook(self) -> str | None:
        """The first hook that a compiled step would not call."""
        if any(self._hooks):
            for module, shown in self._modules:
                for kind in _MODULE_HOOKS:
                    if module.__dict__[kind]:
                        return f"{shown} has a hook ({kind[1:]})"
        for parameter, name in self._parameters.items():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return f"parameter {name} has a hook"
        if self._optimizer is not None and any(getattr(self._optimizer, kind) for kind in _OPTIMIZER_HOOKS):
            return "the optimizer has a step hook"
        table = hooks.on_all(self._job)
        return None if table is None else f"all modules or optimizers have a hook ({table})"

    def difference(self) -> Change | None:
        """The first change or hook."""
        change = self.change()
        if change is None and (hook := self.hook()) is not None:
            change = hook, f"{hook}, but had none when compiled"
        return change

    def change(self) -> Change | None:
        """The first difference from what was compiled."""
        now_all = [namespace.get(key, _MISSING) for namespace, key in self._places]
        if not all(map(operator.is_, now_all, self._before)):
            for now, before, name in zip(now_all, self._before, self._names, strict=True):
                if now is not before and _differ(now, before):
                    return _changed(name, now, before)
        for cell, before, name in self._cells:
            now = _contents(cell)
            if now is not before and _differ(now, before):
                return _changed(name, now, before)
        return self._change_of_sizes() or self._change_of_settings()

    def _change_of_sizes(self) -> Change | None:
        if (kinds := self._kinds_now()) != self._kinds:
            names = self._parameters.values()
            return _first([f"{what} of {name}" for what in _KINDS for name in names], kinds, self._kinds)
        if (sizes := self._sizes_now()) != self._sizes:
            return _first([name for _, name in self._contents], sizes, self._sizes)
        updated = self._updated_now()
        if len(updated) != len(self._updated) or not all(map(operator.is_, updated, self._updated)):
            return "the optimizer's parameters", "the optimizer has other parameters than when compiled"
        return None

    def _change_of_settings(self) -> Change | None:
        settings = self._settings_now()
        if settings == self._settings:
            return None
        key = next(key for key in {**self._settings, **settings} if settings.get(key) != self._settings.get(key))
        return _changed(key, settings.get(key), self._settings.get(key))

    def _kinds_now(self) -> list[object]:
        requires_grad = [parameter.requires_grad for parameter in self._parameters]
        return [*requires_grad, *(parameter.dtype for parameter in self._parameters)]

    def _sizes_now(self) -> list[int]:
        return [len(contents) for contents, _ in self._contents]

    def _updated_now(self) -> list[Tensor]:
        return [parameter for group in self._groups() for parameter in group["params"]]

    def _groups(self) -> list[dict[str, Any]]:
        return [] if self._optimizer is None else self._optimizer.param_groups

    def _settings_now(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"the number of intra-op threads": torch.get_num_threads()}
        for device in ("cpu", "cuda"):
            is_on = torch.is_autocast_enabled(device)
            settings[f"autocast on {device}"] = torch.get_autocast_dtype(device) if is_on else None
        defaults = {} if self._optimizer is None else self._optimizer.defaults
        for number, group in enumerate(self._groups()):
            for key in defaults:
                if key != "lr":
                    settings[f"the optimizer's '{key}' in group {number}"] = group[key]
        return settings


def _named_modules(model: nn.Module, loss_fn: Callable[..., Tensor]) -> Iterator[tuple[nn.Module, str]]:
    """The modules that a step may run, and what messages call them."""
    for name, module in model.named_modules():
        yield module, f"module '{name}' ({type(module).__name__})" if name else "the model"
    seen = set(model.modules())
    for outer in modules_of(loss_fn):
        for module in outer.modules():
            if module not in seen:
                seen.add(module)
                yield module, f"a module of the loss function ({type(module).__name__})"


def _attributes_of(module: nn.Module, shown: str) -> Iterator[tuple[dict[str, Any], str, object, str]]:
    """What of a module's namespace can make a difference: (namespace, name, value, what messages call it)."""
    attributes = module.__dict__
    for name, value in {"forward": _MISSING, **attributes}.items():
        if not name.startswith("_") or isinstance(value, Tensor) or _is_plain(value):
            yield attributes, name, value, f"'{name}' of {shown}"
    for kind in _CONTENTS:
        for name, value in attributes[kind].items():
            yield attributes[kind], name, value, f"'{name}' of {shown}"


def _own(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in module._parameters.items() if each is not None]


def _functions_of(loss_fn: Any) -> Iterator[tuple[types.FunctionType, object]]:
    """The functions written in Python that a loss function consists of, each with its object."""
    if isinstance(loss_fn, functools.partial):
        yield from _functions_of(loss_fn.func)
    elif isinstance(loss_fn, types.FunctionType):
        yield loss_fn, None
    else:
        method = loss_fn if isinstance(loss_fn, types.MethodType) else type(loss_fn).__call__
        function = getattr(method, "__func__", method)
        if isinstance(function, types.FunctionType) and not isinstance(loss_fn, nn.Module):
            yield function, getattr(loss_fn, "__self__", loss_fn)


def _variables_of(function: types.FunctionType, owner: object) -> Iterator[tuple[dict[str, Any], str, object, str]]:
    """The global variables that a function uses, and the attributes of its object."""
    for namespace, operation in ((function.__globals__, "LOAD_GLOBAL"), (getattr(owner, "__dict__", {}), "LOAD_ATTR")):
        for each in _instructions(function.__code__):
            if each.opname in (operation, "LOAD_METHOD") and each.argval in namespace:
                yield namespace, each.argval, namespace[each.argval], f"'{each.argval}' of the loss function"


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return _MISSING


def _is_plain(value: object) -> bool:
    """Whether it is compared by value; all else is by identity."""
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _differ(now: object, before: object) -> bool:
    return not (_is_plain(before) and type(now) is type(before) and _is_plain(now) and now == before)


def _first(names: list[str], now: Sequence[object], before: Sequence[object]) -> Change:
    return next(_changed(*each) for each in zip(names, now, before, strict=True) if each[1] != each[2])


def _changed(name: str, now: object, before: object) -> Change:
    shown = "is {}, but was {} when compiled".format(*map(_shown, (now, before)))
    if not (_is_plain(now) or _is_plain(before) or now is _MISSING or before is _MISSING):
        shown = "is another one than when compiled"
    return name, f"{name} {shown}"


def _shown(value: object) -> str:
    return "missing" if value is _MISSING else repr(value) if _is_plain(value) else f"a {type(value).__name__}"
