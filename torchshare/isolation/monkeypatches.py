"""Functions of torch that a script replaces: all jobs call the replacement, so a warning names the job. They are
restored when the script ends."""

from __future__ import annotations

import logging
from typing import Any

import torch

from torchshare.context.script import ScriptContext
from torchshare.isolation.patches import Patches
from torchshare.isolation.script_modules import STATEFUL

log = logging.getLogger("torchshare")

_OWNERS: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn": torch.nn,
    "torch.nn.Module": torch.nn.Module,
    "torch.nn.functional": torch.nn.functional,
    "torch.optim": torch.optim,
    "torch.optim.Optimizer": torch.optim.Optimizer,
    "torch.utils.data": torch.utils.data,
    "torch.utils.data.DataLoader": torch.utils.data.DataLoader,
}
_before: dict[str, dict[str, Any]] = {}


def route(patches: Patches) -> None:
    _before.update({place: dict(vars(owner)) for place, owner in _OWNERS.items()})
    patches.at_undo(_before.clear)


def check(script: ScriptContext) -> None:
    """Warns of functions that the script has replaced since the last check."""
    for place, before in _before.items():
        now = vars(_OWNERS[place])
        changed = [name for name, value in before.items() if now.get(name) is not value]
        for name in changed:
            namespace = getattr(now.get(name), "__globals__", {})
            installed = namespace.get("__name__", "").partition(".")[0] in STATEFUL
            if (place, name) not in script.replaced and script.owns(namespace) and not installed:
                script.replaced[place, name] = now[name]
                log.warning("job '%s' has replaced %s.%s for all jobs", script.name, place, name)


def restore(script: ScriptContext) -> None:
    """Called at the end of the script."""
    check(script)
    for (place, name), replacement in script.replaced.items():
        if vars(_OWNERS[place]).get(name) is replacement:
            setattr(_OWNERS[place], name, _before[place][name])
