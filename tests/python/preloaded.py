"""Starts Python programs that have torch in memory at once, because importing it takes two seconds of a processor.

A server imports what most programs import, and is forked for each one. Programs whose own imports are what is tested
need a process of their own. Each process that runs tests has a server, forked from one that all of them share.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any

IMPORTED = (
    *("torch._dynamo", "torch._functorch.aot_autograd", "torch.export._trace"),
    *("torchshare.cli.run", "torchshare.isolation.script_patches", "torchshare.runtime.runtime"),
)
# Where there is a GPU, importing it initializes CUDA, which a forked process cannot use.
INDUCTOR = ("torch._inductor.compile_fx", "torch._inductor.codegen.cpp_wrapper_cpu", "torch._inductor.cpp_builder")
PR_SET_PDEATHSIG = 1
ADDRESS = "TORCHSHARE_TESTS_SERVER"  # the path of the first server's socket
# Environment variables: the code around a compiled step's kernels is not optimized, and has the headers in that folder.
FAST_COMPILATION = {
    "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0",
    "CPLUS_INCLUDE_PATH": str(Path(__file__).parent / "headers"),
}
# An environment variable: the program destroys torch's modules and static objects, too.
WHOLE_EXIT = "TORCHSHARE_TESTS_WHOLE_EXIT"
STACKS = signal.SIGRTMAX - 1  # makes a program print the stacks of its threads


class Process(subprocess.Popen[str]):
    """A program that the server has forked. `args` are those of `python`: a script, -m or -c, and their arguments."""

    def __init__(self, args: list[str], **options: Any) -> None:
        self._server = server()
        super().__init__(args, text=True, **options)

    def communicate(self, *given: Any, **options: Any) -> tuple[str, str]:
        """If the program takes too long, the error says what its processes were doing."""
        try:
            return super().communicate(*given, **options)
        except subprocess.TimeoutExpired as error:
            family = [self.pid, *_descendants(self.pid)]
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, STACKS)
                    time.sleep(0.5)  # whole stacks, one after the other
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            printed = "\n".join(filter(None, super().communicate()))
            raise AssertionError(f"{error}; process {self.pid}, descendants {family[1:]}\n{printed}") from None

    def _execute_child(self, *given: Any) -> None:
        args, _, _, _, _, cwd, env, _, _, _, *ends = given[:16]
        standard = ends[0], ends[3], ends[5]
        descriptors = [own if end == -1 else end for end, own in zip(standard, (0, 1, 2), strict=True)]
        request = {
            "argv": list(map(str, args)),
            "cwd": str(cwd or os.getcwd()),
            "env": dict(env or os.environ),
            "session": bool(given[21]),  # start_new_session
        }
        self.pid = int(self._server.ask(request, descriptors))
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Always without blocking: `wait` polls."""
        status = self._server.ask({"wait": self.pid})
        return (0, 0) if status is None else (self.pid, status)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        code: int = super()._wait(1e9 if timeout is None else timeout)  # type: ignore[misc]
        return code


def _descendants(pid: int) -> list[int]:
    found = []
    for listed in Path("/proc", str(pid), "task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            found += [child, *_descendants(child)]
    return found


class Server:
    """The process that programs are forked from. It ends with the process of the tests."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(first_server())
        self._lock = threading.Lock()  # guards the socket: an answer belongs to the request before it

    def ask(self, request: dict[str, Any], descriptors: list[int] = []) -> Any:  # noqa: B006
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            return json.loads(self._socket.recv(100))


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


_STARTING = threading.Lock()


def first_server() -> str:
    """The address of the process that servers are forked from. The first caller starts it, and it ends with the
    caller's process; processes that are started afterwards know the address."""
    with _STARTING:
        if ADDRESS not in os.environ:
            folder = tempfile.mkdtemp(prefix="torchshare-")  # for this user only
            _start_first(f"{folder}/socket")
            os.environ[ADDRESS] = f"{folder}/socket"
    return os.environ[ADDRESS]


@functools.cache  # keeps the pipe: the server ends when it is closed
def _start_first(address: str) -> subprocess.Popen[bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        # As from a terminal: in the background, the shell makes tests ignore Ctrl-C, and nohup SIGHUP.
        return subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), *IMPORTED, *(() if has_gpu() else INDUCTOR)],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            env={**FAST_COMPILATION, **os.environ},
            preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)],
        )


@functools.cache
def server() -> Server:
    return Server()


def _accept(listener: socket.socket) -> socket.socket | None:
    """Returns in each server, with the socket of its requests, and in the first one with None when its standard input
    has ended."""
    while listener in select.select([sys.stdin, listener], [], [])[0]:
        requests, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return requests
        requests.close()
    shutil.rmtree(os.path.dirname(listener.getsockname()))
    return None


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Returns in each forked process, with what it is to run."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = status if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # none outlives the tests
                requests.close()
                for number, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, number)
            for descriptor in descriptors:
                os.close(descriptor)
            if answer == 0:
                return request
        requests.send(json.dumps(answer).encode())


def _run(argv: list[str]) -> None:
    """As `python` runs it, with the arguments `argv`."""
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if argv[0] == "-c":
        sys.argv, name, text = ["-c", *argv[2:]], "<string>", argv[1]
    else:
        sys.argv, name = argv, argv[0]
        sys.path[0] = os.path.dirname(os.path.abspath(name))
        main.__file__ = name
        with open(name) as file:
            text = file.read()
    exec(compile(text, name, "exec"), vars(main))


def _keep_modules() -> None:
    """Called at a program's end: only what it has imported itself, and torchshare, is destroyed, which takes two fifths
    less time."""
    for name in _KEPT:
        sys.modules.pop(name, None)


def _end_before_libraries() -> None:
    """When the program calls exit(), after Python's end, it leaves out the destructors of torch's static objects, which
    take 0.2 s. Files of C are written before; functions are called in reverse order."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


_KEPT: dict[str, types.ModuleType] = {}


def main() -> None:
    atexit.register(_keep_modules)  # first: it is called last
    listener = socket.socket(fileno=int(sys.argv[1]))
    faulthandler.register(STACKS)
    names = sys.argv[2:]
    if not {*INDUCTOR}.isdisjoint(names):  # without a GPU, nothing needs Triton
        sys.modules["triton"] = None  # type: ignore[assignment]  # it reports at exit all that gc.freeze keeps of it
    gc.disable()
    for name in names:
        importlib.import_module(name)
    gc.enable()
    _KEPT.update({name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("torch", "sympy")})
    for kept in _KEPT, *_KEPT.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    gc.freeze()  # else each program, as it ends, would visit all of it, and copy the memory
    requests = _accept(listener)
    program = requests and _serve(requests)
    if program is not None:
        if program["session"]:
            os.setsid()
        os.chdir(program["cwd"])
        os.environ.clear()
        os.environ.update(program["env"])
        for name, value in FAST_COMPILATION.items():
            os.environ.setdefault(name, value)
        if "OMP_NUM_THREADS" in os.environ:  # read when torch was imported
            sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ and "torch._inductor.config" in sys.modules:
            # Read when inductor was imported.
            sys.modules["torch._inductor.config"].compile_threads = int(os.environ["TORCHINDUCTOR_COMPILE_THREADS"])
        if os.environ.get("PYTHONFAULTHANDLER"):  # read when the interpreter began, as other variables of Python
            faulthandler.enable()
        gc.unfreeze = lambda: None  # `torchshare run` calls it at its end, which would visit all that was frozen
        sys.path[0] = ""
        if WHOLE_EXIT in os.environ:
            atexit.unregister(_keep_modules)
        else:
            _end_before_libraries()
        _run(program["argv"])


if __name__ == "__main__":
    main()
