"""The connection to a cluster: Ray, and the scheduler on it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torchshare.cluster.host_actor import STORAGE, CannotStart, ClusterSettings
from torchshare.context.errors import described
from torchshare.context.files import make_folder

_POLL_S = 0.2
_PATIENCE_S = 60.0  # how long a client waits for a scheduler that is started again
_ANSWER_S = 30.0
_REACHED_S = 2.0
_RAY_PID = "ray.pid"  # in the storage: the identity of the Ray that `up` has started
_CLIENT = "ray://"  # begins an address of Ray's client server, which other networks can reach

_connected: dict[str, str | None] = {"by": None}  # the address that Ray was given


class _NotUp(ValueError):
    """There is no scheduler."""


def up(address: str | None = None, settings: ClusterSettings | None = None) -> ClusterSettings:
    """Connects to a Ray cluster and starts the scheduler if there is none. Returns its settings.

    Without an address, joins the Ray of this machine, or starts it.

    Raises:
        ValueError: if there is no cluster at the address, if the scheduler cannot use its storage, or if it runs with
            other settings.
    """
    ray = need_ray()
    from torchshare.cluster.actors import SCHEDULER, SchedulerActor
    from torchshare.cluster.remote_host import NAMESPACE

    storage = Path(STORAGE if settings is None else settings.storage).expanduser().absolute()
    has_started = _connect(ray, address, storage)
    wanted = settings or ClusterSettings(str(storage))
    scheduler = ray.remote(SchedulerActor).options(
        name=SCHEDULER,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        resources={"node:__internal_head__": 1e-3},  # elsewhere it would survive the head, and keep the journal's lock
        max_concurrency=16,
    )
    with _in_one_line():
        actor = scheduler.remote(wanted)
    try:
        found: ClusterSettings = call("check")
    except CannotStart:  # another error may be this client's connection
        ray.kill(actor)
        if has_started:
            ray.shutdown()
            _end_ray(storage / _RAY_PID)
        raise
    if settings is not None and found != settings:
        raise ValueError(f"the cluster is up with other settings: {found}")
    return found


def down() -> None:
    """Ends the scheduler and the hosts, after the running jobs have written checkpoints; and Ray, if `up` started it.
    The queue stays in the storage: the next `up` goes on with it."""
    ray = need_ray()
    settings: ClusterSettings = call("check")
    with contextlib.suppress(_NotUp):  # it may end before it has answered
        call("shut_down")
    ray.shutdown()
    _end_ray(Path(settings.storage, _RAY_PID))


def _end_ray(pid: Path) -> None:
    """Waits until it has ended: the next `up` would connect to it, and wait for it."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        known = pid.read_text()
        number = known.partition(" ")[0]
        if _identity(number) != known:
            return  # it has ended, or runs on another machine, whose storage this is too
        pid.unlink()
        os.kill(int(number), signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_S
        while _identity(number) == known and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _identity(pid: int | str) -> str:
    """The pid of a process, when it was started, and since which boot: no later process has the same. Raises
    FileNotFoundError, or ProcessLookupError, if it has ended."""
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if state in "ZX":
        raise ProcessLookupError(pid)
    return f"{pid} {fields[18]} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def connect(address: str | None = None) -> None:
    """Connects to a cluster that is up. Raises ValueError if it is not."""
    _connect(need_ray(), address, None)


def call(method: str, *arguments: Any) -> Any:
    """Calls a method of the scheduler; again, if it is started again in the meantime: methods may be called twice.
    Raises ValueError if it refuses, or if there is none."""
    ray = need_ray()
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    from torchshare.cluster.actors import SCHEDULER
    from torchshare.cluster.remote_host import NAMESPACE

    if not ray.is_initialized():
        raise ValueError("not connected to a cluster: call torchshare.cluster.connect or submit first")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            actor = ray.get_actor(SCHEDULER, NAMESPACE)
        except ValueError:
            raise _NotUp("the cluster is not up: run `torchshare cluster up`") from None
        try:
            with _in_one_line(but=(RayTaskError, RayActorError, GetTimeoutError)):
                return ray.get(getattr(actor, method).remote(*arguments), timeout=_ANSWER_S)
        except RayTaskError as error:
            if isinstance(error.cause, (ValueError, RuntimeError, OSError)):
                raise error.cause from None
            raise ValueError(f"the cluster's scheduler failed: {described(error.cause)}") from None
        except (RayActorError, GetTimeoutError) as error:
            if time.monotonic() >= deadline:
                raise ValueError(f"the cluster's scheduler does not answer: {type(error).__name__}") from None
            time.sleep(_POLL_S)


@contextlib.contextmanager
def _in_one_line(but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raises ValueError with the first line of Ray's error, which has paragraphs of advice."""
    from ray.exceptions import RayError

    try:
        yield
    except but:
        raise
    except (RayError, RuntimeError) as error:
        first = next(iter(str(error).strip().splitlines()), "")
        raise ValueError(f"Ray: {first or type(error).__name__}") from None


def need_ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError("a cluster needs Ray: pip install 'ray[default]>=2.40'") from None
    found: ModuleType = ray
    return found


def _connect(ray: Any, address: str | None, storage: Path | None) -> bool:
    """With `storage`, starts Ray where there is none. Returns whether it did."""
    if ray.is_initialized():
        _check_same(ray.get_runtime_context().gcs_address, address)
        return False
    if address is None:
        _forget_dead_ray()
    elif address.startswith(_CLIENT):
        _show_token()
    started: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with _in_one_line(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the error says the same
                ray.init(address or "auto", log_to_driver=False, logging_level="ERROR")
            _connected["by"] = address
            return started is not None
        except ConnectionError as error:
            if address is not None or storage is None or time.monotonic() >= deadline:
                where = "on this machine" if address is None else f"at {address}"
                raise ValueError(f"there is no Ray cluster {where}: {str(error).partition(chr(10))[0]}") from None
        if started is not None and started.poll() is not None:
            raise ValueError(f"Ray could not be started; see {storage / 'ray.log'}")
        started = started or _start_ray(storage)
        time.sleep(1)


def _show_token() -> None:
    """Ray's client shows its token only in this mode, while clusters ask for it by default."""
    known = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if known or Path("~/.ray/auth_token").expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _check_same(connected: str, address: str | None) -> None:
    """Raises ValueError if the process, which can have one connection only, is connected to another cluster."""
    if address in (None, "auto", connected, _connected["by"]):
        return
    host, _, port = str(address).rpartition(":")
    with contextlib.suppress(OSError):
        if f"{socket.gethostbyname(host)}:{port}" == connected:
            return
    raise ValueError(f"address must be {connected}, to which this process is connected, got {address}")


def _forget_dead_ray() -> None:
    """Removes the address of a Ray that was killed: Ray would wait for it for minutes, and would not start again."""
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        host, _, port = file.read_text().strip().rpartition(":")
        socket.create_connection((host, int(port)), timeout=_REACHED_S).close()
    except (FileNotFoundError, ValueError):
        return
    except OSError:
        file.unlink(missing_ok=True)


def _start_ray(storage: Path) -> subprocess.Popen[bytes]:
    make_folder(storage)
    with (storage / "ray.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Hosts would have niceness 15. With grpcio 1.85, forks of the client server crash.
            env={"RAY_worker_niceness": "0", **os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
        )
    with contextlib.suppress(FileNotFoundError):
        (storage / _RAY_PID).write_text(_identity(process.pid))
    return process
