"""A forward pre-hook on all modules that one job calls.

torch keeps such hooks in one table per process. Dynamo traces the table's hooks and makes guards on them, and fails if
the table changes in between, so it is changed only while no other thread compiles or traces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from torchshare.context import current
from torchshare.isolation import hooks
from torchshare.isolation.compiling import turns
from torchshare.isolation.patches import copied

if TYPE_CHECKING:
    from torchshare.context.job_context import JobContext

_register = copied(register_module_forward_pre_hook)  # `hooks` makes torch's register hooks for one job
Look = Callable[[torch.nn.Module, tuple[Any, ...]], bool]
"""Called with a module and the positional arguments of its forward."""

_ended: list[RemovableHandle] = []  # hooks that do nothing any more, to be removed


@contextlib.contextmanager
def registered(job: JobContext, look: Look) -> Iterator[bool]:
    """Calls `look` before each forward of a module in `job`, until it returns True. Yields False, and does
    nothing, if another thread is compiling: waiting for it would let a primary job wait for a lower one."""
    is_open = True
    handles: list[RemovableHandle] = []

    def hook(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        # Dynamo traces this in every job's models, and can guard on none of what follows.
        if torch.compiler.is_compiling() or current.job() is not job or not is_open:
            return
        if look(module, inputs):
            end()  # now: what the job compiles with the hook, it compiles again without it

    def end() -> None:
        nonlocal is_open
        is_open = False
        _ended.extend(handles)
        handles.clear()
        remove_ended()

    try:
        yield turns().call_if_free(lambda: handles.append(hooks.add(_register, hooks.own(hook))))
    finally:
        end()


def remove_ended() -> None:
    """Removes hooks whose end came while another thread was compiling, unless one still is."""
    if _ended:
        turns().call_if_free(_remove_ended)


def _remove_ended() -> None:
    while _ended:
        _ended[0].remove()  # again, if a cancellation comes before the next line
        del _ended[0]
