from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import io
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torchshare.context import current
from torchshare.context.job_context import JobContext
from torchshare.context.script import ScriptContext
from torchshare.isolation import script_process, script_start_method
from torchshare.isolation.script_modules import Modules, installed_folders, is_of_process
from torchshare.scripts.output import Output, empty_input

_FILES = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}


class Script:
    """A program that runs as a job: the function to submit.

    Module-level code runs inside the job. Each job has its own `__main__`, `sys.argv`, `sys.path`, environment,
    working folder, standard streams, and modules other than installed ones.
    """

    def __init__(self, command: list[str], output: Output | None = None, folder: str | None = None) -> None:
        """`command` is what would follow `python`: `train.py --epochs 3`, or `-m pkg.train --lr 0.1`. It begins in
        `folder`, by default in the process's.

        Raises:
            ValueError: if there is no such file or module.
            SyntaxError: if it cannot be compiled.
        """
        self._output = output or Output()
        self._folder = folder
        self._folders = installed_folders()
        self._base = [entry for entry in sys.path[0 if getattr(sys.flags, "safe_path", False) else 1 :] if entry]
        if command[0] == "-m":
            self._find_module(command)
        else:
            self._find_file(command)

    is_script = True
    """Its job has the state of a process of its own."""

    @property
    def cancelled_type(self) -> type[BaseException]:
        """What a cancellation raises in the script."""
        from torchshare.context.errors import Interrupted  # imports torch

        return Interrupted

    @property
    def default_seed(self) -> int:
        """That of plain Python."""
        import torch

        return torch.initial_seed()

    def _find_file(self, command: list[str]) -> None:
        path = Path(self._folder or "", command[0])
        file = path / "__main__.py" if path.is_dir() else path
        if not file.is_file():
            raise ValueError(f"the folder {path} has no __main__.py" if path.is_dir() else f"no such file {file}")
        self.__name__ = path.stem
        self._argv = command
        self._path0 = os.path.abspath(path if path.is_dir() else os.path.realpath(path.parent))
        self.script_file = os.path.abspath(file)
        self._spec: ModuleSpec | None = None
        self._loader: Any = SourceFileLoader("__main__", self.script_file)
        self._code = _compiled(self._loader, "__main__")

    def _find_module(self, command: list[str]) -> None:
        if len(command) < 2:
            raise ValueError("-m must be followed by a module")
        self._path0 = self._folder or os.getcwd()
        spec = self._spec_of(command[1])
        if spec.submodule_search_locations is not None:
            spec = self._spec_of(f"{command[1]}.__main__")
        if spec.origin is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
            raise ValueError(f"module '{command[1]}' has no code to run")
        self.__name__ = command[1].rpartition(".")[2]
        self._spec, self._loader, self.script_file = spec, spec.loader, spec.origin
        self._argv = [self.script_file, *command[2:]]
        self._code = _compiled(spec.loader, spec.name)

    def _spec_of(self, name: str) -> ModuleSpec:
        """Finds a module without importing its packages: their code belongs into the job."""
        path: Any = [self._path0, *self._base]
        spec: ModuleSpec | None = None
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            full = ".".join(parts[:count])
            spec = PathFinder.find_spec(full, path)
            for finder in sys.meta_path if spec is None and count == 1 else ():
                spec = spec or finder.find_spec(full, None)
            if spec is None or (count < len(parts) and spec.submodule_search_locations is None):
                raise ValueError(f"no module named '{full if spec is None else name}'")
            path = spec.submodule_search_locations
        assert spec is not None
        return spec

    def __call__(self, _job: object) -> None:
        """Runs the script as the job of the calling thread."""
        from torchshare.isolation import script_patches  # imports torch

        job = current.job()
        assert job is not None
        with self._context(job) as script, script_patches.entered(script):
            self._run(script)

    def _run(self, script: ScriptContext) -> None:
        script.has_own_folder = script_process.separate_folder()
        if self._folder is not None:
            os.chdir(self._folder)
        main = ModuleType("__main__")
        vars(main).update(
            __builtins__=builtins,
            __file__=self.script_file,
            __loader__=self._loader,
            __spec__=self._spec,
            __cached__=None,
        )
        if sys.version_info < (3, 14):
            vars(main)["__annotations__"] = {}
        for name in ("__main__", "__mp_main__"):  # the name in processes that multiprocessing starts
            script.own_modules[name] = main
            script.modules[name] = main  # and in the process's table
        try:
            if self._spec is not None:
                main.__package__ = self._spec.parent
                if self._spec.parent:
                    importlib.import_module(self._spec.parent)
            exec(self._code, vars(main))
        except SystemExit as error:
            is_forked = current.job() is None  # and prints it at its end
            if error.code is not None and not isinstance(error.code, int) and not is_forked:
                print(error.code, file=sys.stderr)
            raise
        except Exception as error:
            script_process.call_excepthook(script, error)
            raise
        finally:
            script_process.run_exit_handlers(script)
            _flush_streams()
            script_start_method.leave_fork_server(script)
            script.has_ended = True
            for module in [main, *reversed(script.own_modules.values())]:
                if isinstance(module, ModuleType) and not is_of_process(module):
                    _release_values(module)
            _flush_files()

    @contextlib.contextmanager
    def _context(self, job: JobContext) -> Iterator[ScriptContext]:
        with self._output.opened(job.name) as (stdout, stderr), empty_input(job.name) as stdin:
            script = ScriptContext(
                job=job,
                argv=list(self._argv),
                path=[self._path0, *self._base],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                environ=dict(os.environ._data),  # type: ignore[attr-defined]
                filters=list(warnings.filters),
            )
            script.main_thread.name = "MainThread"
            script.modules = Modules(script, self._folders)
            yield script


def _flush_streams() -> None:
    """As the end of a program does: the script may have replaced them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _flush_files() -> None:
    """Writes what the script's open files have in their buffers, which the end of a program does. Those that functions,
    classes and cycles hold stay open, and the garbage collector would close a file before it has written the buffer.
    Other jobs' files are written a little earlier than otherwise; in a forked child, those of its parent are not."""
    if current.job() is None:
        return
    found = [each for each in gc.get_objects() if type(each) in _FILES]
    for file in sorted(found, key=lambda file: type(file) is not io.TextIOWrapper):  # texts write into the others
        with contextlib.suppress(Exception):  # closed, detached, or read only
            is_plain = type(file) is not io.TextIOWrapper or type(file.buffer) in _FILES
            if is_plain and stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe might be full
                file.flush()


def _release_values(module: ModuleType) -> None:
    """As the end of a program does."""
    variables = vars(module)
    for name in list(variables):
        if not name.startswith("__") and not isinstance(variables[name], (FunctionType, type, ModuleType)):
            variables[name] = None


def _compiled(loader: Any, name: str) -> CodeType:
    code = loader.get_code(name)
    assert code is not None  # the file exists
    return code  # type: ignore[no-any-return]
