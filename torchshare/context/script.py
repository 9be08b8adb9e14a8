from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from multiprocessing.forkserver import ForkServer
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakSet

if TYPE_CHECKING:
    import logging
    from concurrent.futures import Executor

    from torchshare.context.job_context import JobContext


@dataclass(eq=False)
class ScriptContext:
    """What a script that runs as a job has of its own, where a program has one per process. Its threads share it."""

    job: JobContext
    argv: list[str]
    path: list[str]
    """Its `sys.path`: the script's folder first."""
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: dict[bytes, bytes]
    path_importer_cache: dict[str, Any] = field(default_factory=dict)
    own_modules: dict[str, ModuleType] = field(default_factory=dict)
    """Its `__main__`, and the modules that it finds outside of what is installed."""
    modules: MutableMapping[str, ModuleType] = field(init=False)
    """Its `sys.modules`: its own and the shared ones."""
    filters: list[Any] = field(default_factory=list)
    """Its `warnings.filters`."""
    loggers: dict[logging.Logger, dict[str, Any]] = field(default_factory=dict)
    """Attributes of loggers, by logger."""
    logging: dict[str, Any] = field(default_factory=dict)
    """What `logging` has one of per process, and the script has set."""
    at_exit: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """Functions registered with `atexit`, and their arguments."""
    threads: list[Thread] = field(default_factory=list)
    """Threads that it has started, and that its end waits for."""
    executors: WeakSet[Executor] = field(default_factory=WeakSet)
    """Executors of `concurrent.futures` that it has made, and that its end shuts down."""

    torch_script_names: dict[str, str] = field(default_factory=dict)
    """Names of classes that TorchScript knows already from another script, and what it knows this one's by."""
    imported: set[str] = field(default_factory=set)
    """Top-level names of what it has imported."""
    start_context: Any = None
    """The context of multiprocessing, once it has set a start method or started a process."""
    fork_server: ForkServer = field(default_factory=ForkServer)
    main_thread: Thread = field(default_factory=threading.current_thread)
    """What `threading.main_thread` returns."""
    has_ended: bool = False
    """Whether its code has run to the end. Daemons that it has started may still run."""
    has_own_folder: bool = False
    """Whether `os.chdir` has no effect on other jobs."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    def owns(self, namespace: dict[str, Any]) -> bool:
        """Whether `namespace` is that of one of its modules."""
        module = self.own_modules.get(namespace.get("__name__", ""))
        return module is not None and module.__dict__ is namespace
