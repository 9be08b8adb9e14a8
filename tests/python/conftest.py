"""Shared fixtures and helpers that run jobs."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import preloaded
import pytest
import torch
from filelock import FileLock

import torchshare
from torchshare import Job, Result
from torchshare.__main__ import main
from torchshare.training import step_package


@pytest.fixture(params=["priority", "strict", "best_fit", "resource", "edf"])
def policy(request: pytest.FixtureRequest) -> str:
    return request.param


on_both = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])

gc.freeze()  # else a full collection, of which jobs and compilers do many, takes a tenth of a second
atexit.register(gc.unfreeze)  # else Triton reports what is kept

# The environment of the programs that tests start, and of pytest's other processes.
STARTUP = str(Path(__file__).parent / "startup")
if STARTUP not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, os.environ.get("PYTHONPATH")]))

CACHE = Path(__file__).parents[2] / "build" / "test-cache" / f"torch-{torch.__version__}"


@pytest.fixture(scope="session", autouse=True)
def cache() -> Iterator[Path]:
    """A cache of compiled steps other than the user's. Kept between test runs, because compiling takes minutes and
    depends only on the traced graph and on torch. Yields the folder of the packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        yield CACHE / "torchshare" / "steps"


@pytest.fixture(scope="session", autouse=True)
def compiler() -> Iterator[None]:
    """Compiles steps and models in processes that have torch in memory, and without a GPU inductor: it takes longer to
    import than to run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_package, "Popen", lambda args, **options: preloaded.Process(args[1:], **options))
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_profiles() -> Iterator[None]:
    """A job that gets no core for a while does its steps later, instead of being refused as too slow to measure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchshare.profiling.measurement._MAX_WINDOWS", 1000)
        yield


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray cluster on this machine, of a module that needs Ray."""
    from ray_cluster import opened

    with opened(tmp_path_factory.mktemp("cluster"), policy="pair-srsf") as found:
        yield found


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of compiled steps for one test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "torchshare" / "steps"


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skips tests marked `gpu` if there is no GPU; with TORCHSHARE_REQUIRE_GPU=1 they fail. They use deterministic
    algorithms, so that weights can be compared bit for bit."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    if not torch.cuda.is_available():
        (pytest.fail if os.environ.get("TORCHSHARE_REQUIRE_GPU") == "1" else pytest.skip)("there is no GPU")
    former = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(former)


@pytest.fixture
def whole_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that the test starts destroy torch's modules and static objects, too; see preloaded.py."""
    monkeypatch.setenv(preloaded.WHOLE_EXIT, "1")


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    """Restores the number of intra-op threads, which some tests set in the main thread: weights of later tests that are
    compared with plain Python would differ."""
    former = torch.get_num_threads()
    yield
    torch.set_num_threads(former)


def run_one(function: Callable[[Job], Any], timeout: float = 200, device: str = "cpu", **options: Any) -> Result:
    """Runs a job alone, by default with one intra-op thread; re-raises its exception."""
    with torchshare.Runtime(device=device) as runtime:
        job = runtime.submit(function, **{"name": "alone", "threads": 1, **options})
        results = runtime.wait(timeout=timeout, check=False)
    if results["alone"].exception is not None:
        raise results["alone"].exception
    return job.result


def python(code: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """Runs a program in its own process to its end."""
    return completed("-c", code, timeout=timeout)


def completed(*arguments: str, folder: Path | None = None, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments to its end; see `launch`."""
    with launch(*arguments, folder=folder or Path.cwd()) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def torchshare_command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the `torchshare` command from `folder`, in this process: a new one takes seconds to import torch."""
    out, err = io.StringIO(), io.StringIO()
    modules, path = set(sys.modules), list(sys.path)
    log = logging.StreamHandler(err)  # replaces pytest's handler
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(folder)
        patch.setattr(logging.getLogger(), "handlers", [log])
        try:
            code = main(list(arguments))
        except SystemExit as error:  # raised by argparse
            code = error.code if isinstance(error.code, int) else 1
        except Exception:
            traceback.print_exc()
            code = 1
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    return subprocess.CompletedProcess(["torchshare", *arguments], code, out.getvalue(), err.getvalue())


def launch(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Starts Python as from a terminal, with torch in memory already."""
    return preloaded.Process(list(arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Shared:
    """Folders that one of pytest's processes makes for all."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder of that name. `make` fills it, once."""
        folder = self._root / name
        with FileLock(f"{folder}.lock"):
            made = Path(f"{folder}.made")
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)  # where `make` has failed
                folder.mkdir()
                make(folder)
                made.touch()
        return folder


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Shared:
    own = tmp_path_factory.getbasetemp()
    return Shared(own if worker_id == "master" else own.parent)


SOON_S = 300.0
"""A timeout that only ends a hang."""


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Polls until `condition` holds; fails the test on a timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s"
        time.sleep(0.002)


def together(*calls: Callable[[], object], seconds: float = SOON_S) -> None:
    """Makes the calls at once, each in a thread."""
    barrier = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        barrier.wait(seconds)
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a call hangs"
    assert errors == []


def run_ops_for_ever(job: Job) -> None:
    x = torch.ones(4)
    while True:
        x.add_(1)


class Gatekeeper:
    """Blocks a job at a certain place until the test releases it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.release = threading.Event()

    def pause(self) -> None:
        self.reached.set()
        assert self.release.wait(300)


class Ran:
    """What `torchshare run --json` did with scripts."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        done = torchshare_command("run", "--json", "--threads", "1", *arguments, folder=folder)
        self.code = done.returncode
        self.lines = done.stderr.splitlines()
        self.jobs = {job["name"]: job for job in json.loads(done.stdout)["jobs"]} if done.stdout else {}

    def states(self) -> list[str]:
        return [job["state"] for job in self.jobs.values()]

    def of(self, job: str) -> list[str]:
        """The lines that a job has printed."""
        lines = [line.removeprefix(f"{job}: ") for line in self.lines if line.startswith(f"{job}: ")]
        return [line for line in lines if not line.endswith("steps/s")]  # progress

    def text(self) -> str:
        return "\n".join(self.lines)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def decisions(runtime: torchshare.Runtime, name: str) -> list[str]:
    """The decisions about the job, in order."""
    return [detail for kind, job, _, _, _, detail in runtime.events() if kind == "decision" and job == name]


def script(folder: Path, name: str, text: str) -> str:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return name


MEET = """
import os, sys, time
who = sys.argv[1]
def meet(name):
    open(f"{name}.{who}", "w").close()
    deadline = time.monotonic() + 300
    while not all(os.path.exists(f"{name}.{each}") for each in "ab"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""
"""The beginning of a script that runs as jobs `a` and `b`: each calls `meet` with a name, and waits for the other."""

LOOP = """
import sys, torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps, model=model, optimizer=optimizer):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
"""


def pytest_configure(config: pytest.Config) -> None:
    """The processes that pytest starts share what programs are forked from."""
    if config.getoption("numprocesses", None):
        preloaded.first_server()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many blocks of the documents have run, and how many are marked: see test_documents.py."""
    found = [each for report in terminalreporter.stats.get("passed", []) for each in report.user_properties]
    ran = sum(count for name, count in found if name == "blocks")
    marked = [f"{name.removeprefix('blocks ')} {count}" for name, count in found if name.startswith("blocks ")]
    if ran:
        terminalreporter.write_line(f"{ran} blocks of the documents ran")
    if marked:
        terminalreporter.write_line(f"blocks of the documents: {', '.join(marked)}")
