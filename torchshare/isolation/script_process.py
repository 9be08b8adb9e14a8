"""What a process has one of, and scripts use: working folder, child processes, exit handlers, signals, threads."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from torchshare.context import current
from torchshare.context.script import ScriptContext
from torchshare.isolation import interrupt, job_handlers, packages
from torchshare.isolation.table import Table

log = logging.getLogger("torchshare")

TABLE = Table()

_CLONE_FS = 0x200


def separate_folder() -> bool:
    """Gives the calling thread, and those that it starts, a working folder of their own. Linux only."""
    try:
        return bool(ctypes.CDLL(None).unshare(_CLONE_FS) == 0)
    except (AttributeError, OSError):
        return False


@TABLE.call("os", "chdir")
def _chdir(original: Callable[[Any], None], path: Any) -> None:
    """Each script has its own working folder on Linux; elsewhere, a warning."""
    script = current.script()
    if script is not None and not script.has_own_folder:
        log.warning("job '%s': os.chdir(%r) changes the working folder of all jobs", script.name, path)
    original(path)


@TABLE.call("os", "_exit")
def _exit(original: Callable[[int], Any], status: int) -> Any:
    """A script that calls it ends its job, not the process."""
    job = job_handlers.handled() or current.owner()
    if current.script() is None or job is None:  # a process that the job forked
        return original(status)
    log.warning("job '%s': os._exit(%r) ends the job, not the process", job.name, status)
    if current.owner() is job is not current.job():
        interrupt.end(job, status)
    raise SystemExit(status)


def _calling_script() -> ScriptContext | None:
    """The script whose own code called the replaced function. Libraries serve all jobs of the process."""
    script = current.script()
    return script if script is not None and script.owns(sys._getframe(3).f_globals) else None


@TABLE.call("atexit", "register")
def _register(original: Callable[..., Any], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Functions that a script's own code registers run at the end of the script."""
    script = _calling_script()
    if script is None:
        return original(function, *args, **kwargs)
    script.at_exit.append((function, args, kwargs))
    return function


@TABLE.call("atexit", "unregister")
def _unregister(original: Callable[..., None], function: Callable[..., Any], /) -> None:
    """Functions that a script's own code registers run at the end of the script."""
    script = current.script()
    if script is not None:
        script.at_exit[:] = [each for each in script.at_exit if each[0] != function]
    original(function)


def run_exit_handlers(script: ScriptContext) -> None:
    """Shuts down the script's executors, joins its threads, and calls what it registered with `atexit`, as the end of a
    program does."""
    for executor in list(script.executors):
        executor.shutdown()
    for thread in script.threads:
        thread.join()
    script.at_exit.insert(0, (logging.shutdown, (), {}))  # called last
    while script.at_exit:
        function, args, kwargs = script.at_exit.pop()
        try:
            function(*args, **kwargs)
        except (Exception, SystemExit):
            log.error("job '%s': error in an atexit function", script.name, exc_info=True)


def call_excepthook(script: ScriptContext, error: Exception) -> None:
    """Calls the `sys.excepthook` that the script has set, as Python does at the end of a program."""
    hook = sys.excepthook
    if hook is sys.__excepthook__ or str(getattr(hook, "__module__", None)).partition(".")[0] == "torch":
        return  # it prints the traceback, and so does the end of the job
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") != "__main__":
        traceback = traceback.tb_next
    try:
        hook(type(error), error, traceback or error.__traceback__)
    except Exception:
        log.error("job '%s': error in sys.excepthook", script.name, exc_info=True)


@TABLE.call("threading", "main_thread")
def _main_thread(original: Callable[[], threading.Thread]) -> threading.Thread:
    """The main thread of a script is the one that runs it."""
    script = current.script()
    return original() if script is None or job_handlers.handled() is not None else script.main_thread


def _is_by_itself(script: ScriptContext) -> bool:
    """Whether the script's own code has called the replaced function, or had Python's call it. What libraries start may
    serve all jobs, and ends with the process."""
    return not packages.is_shared(script, packages.author(sys._getframe(3)))


def _is_of_executor(thread: threading.Thread) -> bool:
    runs = getattr(thread, "_target", None) or type(thread)
    return str(runs.__module__).startswith("concurrent.futures.")


@TABLE.call("concurrent.futures.thread:ThreadPoolExecutor", "__init__")
@TABLE.call("concurrent.futures.process:ProcessPoolExecutor", "__init__")
def _make_executor(original: Callable[..., None], self: Executor, *args: Any, **kwargs: Any) -> None:
    """An executor that a script's own code has not shut down ends with the script."""
    original(self, *args, **kwargs)
    script = current.script()
    if script is not None and _is_by_itself(script):
        script.executors.add(self)


@TABLE.call("threading:Thread", "start")
def _start(original: Callable[..., None], self: threading.Thread) -> None:
    """A thread that a script starts is one of the script's."""
    script = current.script()
    if script is not None:
        self._torchshare_script = script  # type: ignore[attr-defined]
        if not self.daemon and not _is_of_executor(self) and _is_by_itself(script):
            script.threads.append(self)
    original(self)


# `run` may be overridden, or be an attribute of the thread.
@TABLE.call("threading:Thread", "_bootstrap_inner")
def _bootstrap_inner(original: Callable[..., None], self: threading.Thread) -> None:
    """A thread that a script starts is one of the script's."""
    script = getattr(self, "_torchshare_script", None)
    current.set_script(script)
    if script is not None:
        _silence_at_end(self, script)
    original(self)


def _silence_at_end(thread: threading.Thread, script: ScriptContext) -> None:
    """A script that has ended has no values any more. Daemons of a program end with it; a script's would fail."""
    invoke = thread._invoke_excepthook  # type: ignore[attr-defined]

    def invoke_excepthook(failed: threading.Thread) -> None:
        if not script.has_ended:
            invoke(failed)

    thread._invoke_excepthook = invoke_excepthook  # type: ignore[attr-defined]
