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
from torchshare.isolation.table import Table

_own: WeakKeyDictionary[current.Tenant, dict[tuple[int, str], Any]] = WeakKeyDictionary()  # by id of entry and name


TABLE = Table()


@TABLE.at_start
def _forget_at_undo(patches: Patches) -> None:
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


def _get_hash(original: Callable[[Any], bytes], self: Any) -> bytes:
    """The hash of the compiler's options, by which compiled code is cached, is computed for the calling job."""
    vars(self)["_is_dirty"] = True
    return original(self)


if not torch_versions.keeps_options_by_context(_config_module._ConfigEntry):
    for _name in ("user_override", "hide"):
        TABLE.value(
            "torch.utils._config_module:_ConfigEntry", _name, why="Options of the compiler are each job's own."
        )(functools.partial(_OfTenant, _name))

if torch_versions.shares_hash_of_options(_config_module.ConfigModule):
    TABLE.call("torch.utils._config_module:ConfigModule", "get_hash", everywhere=True)(_get_hash)
