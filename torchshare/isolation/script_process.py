"""What a process has one of, and scripts use: working folder, child processes, exit handlers, signals, threads."""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from torchshare.context import current
from torchshare.context.script import ScriptContext
from torchshare.isolation import interrupt, job_signals
from torchshare.isolation.patches import Patches

log = logging.getLogger("torchshare")

_CLONE_FS = 0x200
_ENVIRONMENT_ARGUMENT = 5  # of fork_exec


def separate_folder() -> bool:
    """Gives the calling thread, and those that it starts, a working folder of their own. Linux only."""
    try:
        return bool(ctypes.CDLL(None).unshare(_CLONE_FS) == 0)
    except (AttributeError, OSError):
        return False


def route(patches: Patches) -> None:
    if hasattr(subprocess, "_fork_exec"):
        patches.replace(subprocess, "_fork_exec", _with_environment(subprocess._fork_exec))
    posix = sys.modules["_posixsubprocess"]
    patches.replace(posix, "fork_exec", _with_environment(posix.fork_exec))
    patches.replace(os, "chdir", _routed_chdir(os.chdir))
    patches.replace(os, "_exit", _routed_exit(os._exit))
    patches.replace(atexit, "register", _routed_register(atexit.register))
    patches.replace(atexit, "unregister", _routed_unregister(atexit.unregister))
    patches.replace(threading, "main_thread", _routed_main_thread(threading.main_thread))
    patches.replace(threading.Thread, "start", _inheriting_start(threading.Thread.start))
    # `run` may be overridden, or be an attribute of the thread.
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    patches.replace(threading.Thread, "_bootstrap_inner", _inheriting_bootstrap(bootstrap))


def _with_environment(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def fork_exec(*args: Any) -> int:
        environ = current.environ()
        if environ is not None and args[_ENVIRONMENT_ARGUMENT] is None:
            own = [name + b"=" + value for name, value in environ.items()]
            args = (*args[:_ENVIRONMENT_ARGUMENT], own, *args[_ENVIRONMENT_ARGUMENT + 1 :])
        return original(*args)

    return fork_exec


def _routed_chdir(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def chdir(path: Any) -> None:
        script = current.script()
        if script is not None and not script.has_own_folder:
            log.warning("job '%s': os.chdir(%r) changes the working folder of all jobs", script.name, path)
        original(path)

    return chdir


def _routed_exit(original: Callable[[int], Any]) -> Callable[[int], Any]:
    @functools.wraps(original)
    def _exit(status: int) -> Any:
        job = job_signals.handled() or current.owner()
        if current.script() is None or job is None:  # a process that the job forked
            return original(status)
        log.warning("job '%s': os._exit(%r) ends the job, not the process", job.name, status)
        if current.owner() is job is not current.job():
            interrupt.end(job, status)
        raise SystemExit(status)

    return _exit


def _calling_script() -> ScriptContext | None:
    """The script whose own code called the caller of this function. Libraries serve all jobs of the process."""
    script = current.script()
    return script if script is not None and script.owns(sys._getframe(2).f_globals) else None


def _routed_register(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        script = _calling_script()
        if script is None:
            return original(function, *args, **kwargs)
        script.at_exit.append((function, args, kwargs))
        return function

    return register


def _routed_unregister(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def unregister(function: Callable[..., Any], /) -> None:
        script = current.script()
        if script is not None:
            script.at_exit[:] = [each for each in script.at_exit if each[0] != function]
        original(function)

    return unregister


def run_exit_handlers(script: ScriptContext) -> None:
    """Joins the script's threads, and calls what it registered with `atexit`, as the end of a program does."""
    for thread in script.threads:
        thread.join()
    while script.at_exit:
        function, args, kwargs = script.at_exit.pop()
        try:
            function(*args, **kwargs)
        except Exception:
            log.error("job '%s': error in an atexit function", script.name, exc_info=True)


def _routed_main_thread(original: Callable[[], threading.Thread]) -> Callable[[], threading.Thread]:
    @functools.wraps(original)
    def main_thread() -> threading.Thread:
        script = current.script()
        return original() if script is None or job_signals.handled() is not None else script.main_thread

    return main_thread


def _inheriting_start(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        script = current.script()
        if script is not None:
            self._torchshare_script = script  # type: ignore[attr-defined]
            if not self.daemon:
                script.threads.append(self)
        original(self)

    return start


def _inheriting_bootstrap(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def _bootstrap_inner(self: threading.Thread) -> None:
        script = getattr(self, "_torchshare_script", None)
        current.set_script(script)
        if script is not None:
            _silence_at_end(self, script)
        original(self)

    return _bootstrap_inner


def _silence_at_end(thread: threading.Thread, script: ScriptContext) -> None:
    """A script that has ended has no values any more. Daemons of a program end with it; a script's would fail."""
    invoke = thread._invoke_excepthook  # type: ignore[attr-defined]

    def invoke_excepthook(failed: threading.Thread) -> None:
        if not script.has_ended:
            invoke(failed)

    thread._invoke_excepthook = invoke_excepthook  # type: ignore[attr-defined]
