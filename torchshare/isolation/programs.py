"""Programs that a job starts: in processes of their own, with its environment, and in the process's place."""

from __future__ import annotations

import os
import subprocess  # noqa: F401  # loads _posixsubprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from torchshare.context import current
from torchshare.isolation import children, job_handlers
from torchshare.isolation.table import Table

TABLE = Table()
_ENVIRONMENT_ARGUMENT = 5  # of fork_exec
_WHY = "A program in the process's place would end all jobs; in a process that a job has forked, it has the environment"


@TABLE.call("_posixsubprocess", "fork_exec", everywhere=True)
def _fork_exec(original: Callable[..., int], *args: Any) -> int:
    """A child process has the environment of the job that starts it, which can wait for it."""
    environ = current.environ()
    if environ is not None and args[_ENVIRONMENT_ARGUMENT] is None:
        own = [name + b"=" + value for name, value in environ.items()]
        args = (*args[:_ENVIRONMENT_ARGUMENT], own, *args[_ENVIRONMENT_ARGUMENT + 1 :])
    return children.started(original(*args))


# From Python 3.13 on, subprocess calls it without an environment.
@TABLE.call("os", "posix_spawn", "posix_spawnp")
def _posix_spawn(original: Callable[..., int], path: Any, argv: Any, env: Any = None, /, **options: Any) -> int:
    """A child process has the environment of the job that starts it, which can wait for it."""
    return children.started(original(path, argv, current.environ() if env is None else env, **options))


# All functions of the exec family call one of the two, and so do those of the spawn family, in a forked child.
@TABLE.call("os", "execv", everywhere=True, why=f"{_WHY} of the job.")
def _execv(original: Callable[[Any, Any], NoReturn], path: Any, argv: Any, /) -> NoReturn:
    _refuse("execv", path)
    environ = current.environ()
    if environ is not None:
        os.execve(path, argv, environ)
    original(path, argv)


@TABLE.call("os", "execve", everywhere=True, why=f"{_WHY} of the job.")
def _execve(original: Callable[..., NoReturn], path: Any, argv: Any, env: Any) -> NoReturn:
    _refuse("execve", path)
    original(path, argv, env)


def _refuse(function: str, path: Any) -> None:
    job = job_handlers.program()
    if job is None:  # none, or a process that it has forked
        return
    os.stat(path)  # os.execvp tries the folders of PATH in turn
    program = path if isinstance(path, int) else os.fsdecode(path)
    raise RuntimeError(
        f"job '{job.name}': os.{function} of '{program}' would end all jobs, which run in one process; start the "
        "program with subprocess and exit with its status"
    )


@TABLE.call("os", "system", everywhere=True)
def _system(original: Callable[[Any], int], command: Any) -> int:
    """A command has the environment of the job that starts it."""
    environ = current.environ()
    if environ is None:
        return original(command)
    sys.audit("os.system", command)
    try:
        child = os.posix_spawn("/bin/sh", [b"sh", b"-c", os.fsencode(command)], environ)
        return os.waitpid(child, 0)[1]
    except OSError:
        return -1
