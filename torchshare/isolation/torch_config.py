"""`torch._dynamo.config`, `torch._inductor.config` and their like: what a job sets there is its own. Where torch keeps
them in context variables, they are, as a job runs in a copy of the context in which it was submitted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils import _config_module

from torchshare import torch_versions
from torchshare.context import current
from torchshare.isolation.patches import Patches

_own: WeakKeyDictionary[current.Tenant, dict[tuple[int, str], Any]] = WeakKeyDictionary()  # by id of entry and name


def route(patches: Patches) -> None:
    entry = _config_module._ConfigEntry
    if torch_versions.keeps_options_by_context(entry):
        return
    for name in ("user_override", "hide"):
        patches.replace(entry, name, _OfTenant(name, getattr(entry, name)))
    patches.wrap(_config_module.ConfigModule, "get_hash", _computed_anew)
    patches.at_undo(_own.clear)


class _OfTenant:
    """A field of an entry: a job's own value, or the one in the entry itself."""

    def __init__(self, name: str, default: Any) -> None:
        self._name = name
        self._default = default

    def __get__(self, entry: Any, _class: type | None = None) -> Any:
        if entry is None:
            return self._default
        own = _own.get(tenant, {}) if (tenant := current.tenant()) is not None else {}
        key = id(entry), self._name
        return own[key] if key in own else vars(entry).get(self._name, self._default)

    def __set__(self, entry: Any, value: Any) -> None:
        tenant = current.tenant()
        if tenant is None:
            vars(entry)[self._name] = value
        else:
            _own.setdefault(tenant, {})[id(entry), self._name] = value


def _computed_anew(original: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """The hash, by which compiled code is cached, is kept by the module: it may be another job's."""

    @functools.wraps(original)
    def get_hash(self: Any) -> bytes:
        vars(self)["_is_dirty"] = True
        return original(self)

    return get_hash
