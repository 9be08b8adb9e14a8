"""Each script's start method of multiprocessing, which a program may set once, and its fork server."""

from __future__ import annotations

import contextlib
import multiprocessing.context
import os
from collections.abc import Callable
from typing import Any

from torchshare.context import current
from torchshare.context.script import ScriptContext
from torchshare.isolation.table import Table

_NAME = "_actual_context"


class _RoutedContext(multiprocessing.context.DefaultContext):
    """The class of the instance that the functions of `multiprocessing` are methods of."""

    @property
    def _actual_context(self) -> Any:
        script = current.script()
        return vars(self)[_NAME] if script is None else script.start_context

    @_actual_context.setter
    def _actual_context(self, context: Any) -> None:
        script = current.script()
        if script is None:
            vars(self)[_NAME] = context
        else:
            script.start_context = context


TABLE = Table()
_WHY = "Each script has its own start method: a program may set it once."
TABLE.value("multiprocessing.context:_default_context", "__class__", why=_WHY)(lambda _: _RoutedContext)
_FORK_SERVER = "multiprocessing.forkserver:ForkServer"
_left: set[int] = set()  # the fork servers of scripts that have ended


@TABLE.call(_FORK_SERVER, "connect_to_new_process", "ensure_running", "set_forkserver_preload", everywhere=True)
def _of_script(original: Callable[..., Any], server: Any, *args: Any, **options: Any) -> Any:
    """Each script has its own fork server, with the script's environment and modules."""
    script = current.script()
    return original(server if script is None else script.fork_server, *args, **options)


def leave_fork_server(script: ScriptContext) -> None:
    """Called at the end of the script. Its fork server ends with the last process that it has forked."""
    server: Any = script.fork_server
    if server._forkserver_pid is not None:
        _left.add(server._forkserver_pid)
        with contextlib.suppress(OSError):  # the script has closed it
            os.close(server._forkserver_alive_fd)
        server._forkserver_pid = server._forkserver_alive_fd = None
    for pid in list(_left):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _left.discard(pid)
