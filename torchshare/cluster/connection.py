"""The connection to a cluster: Ray, and the scheduler on it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from torchshare.cluster.host_actor import CannotStart, ClusterSettings

STORAGE = "~/.torchshare/cluster"
_POLL_S = 0.2
_PATIENCE_S = 60.0  # how long a client waits for a scheduler that is started again
_ANSWER_S = 30.0
_REACHED_S = 2.0
_RAY_PID = "ray.pid"  # in the storage: of the Ray that `up` has started


def up(address: str | None = None, settings: ClusterSettings | None = None) -> ClusterSettings:
    """Connects to a Ray cluster and starts the scheduler if there is none. Returns its settings.

    Without an address, joins the Ray of this machine, or starts it.

    Raises:
        ValueError: if there is no cluster at the address, if the scheduler cannot use its storage, or if it runs with
            other settings.
    """
    ray = need_ray()
    from torchshare.cluster.actors import NAMESPACE, SCHEDULER, SchedulerActor

    storage = Path(STORAGE if settings is None else settings.storage).expanduser().absolute()
    _connect(ray, address, storage)
    wanted = settings or ClusterSettings(str(storage))
    scheduler = ray.remote(SchedulerActor).options(
        name=SCHEDULER,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        max_concurrency=16,
    )
    actor = scheduler.remote(wanted)
    try:
        found: ClusterSettings = call("check")
    except CannotStart:  # another error may be this client's connection
        ray.kill(actor)
        raise
    if settings is not None and found != settings:
        raise ValueError(f"the cluster is up with other settings: {found}")
    return found


def down() -> None:
    """Ends the scheduler and the hosts, after the running jobs have written checkpoints; and Ray, if `up` started it.
    The queue stays in the storage: the next `up` goes on with it."""
    ray = need_ray()
    from torchshare.cluster.actors import NAMESPACE, SCHEDULER

    settings: ClusterSettings = call("check")
    call("shut_down")
    ray.kill(ray.get_actor(SCHEDULER, NAMESPACE))
    ray.shutdown()
    _end_ray(Path(settings.storage, _RAY_PID))


def _end_ray(pid: Path) -> None:
    """Waits until it has ended: the next `up` would connect to it, and wait for it."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        number = int(pid.read_text())
        pid.unlink()
        command = Path(f"/proc/{number}/cmdline")
        if b"ray" in command.read_bytes():
            os.kill(number, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE_S
        while b"ray" in command.read_bytes() and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def connect(address: str | None = None) -> None:
    """Connects to a cluster that is up. Raises ValueError if it is not."""
    _connect(need_ray(), address, None)


def call(method: str, *arguments: Any) -> Any:
    """Asks the scheduler, and again if it has to be started again in the meantime: the methods may be called twice.
    Raises ValueError if it refuses, or if there is none."""
    ray = need_ray()
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    from torchshare.cluster.actors import NAMESPACE, SCHEDULER

    if not ray.is_initialized():
        raise ValueError("not connected to a cluster: call torchshare.cluster.connect or submit first")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            actor = ray.get_actor(SCHEDULER, NAMESPACE)
        except ValueError:
            raise ValueError("the cluster is not up: run `torchshare cluster up`") from None
        try:
            return ray.get(getattr(actor, method).remote(*arguments), timeout=_ANSWER_S)
        except RayTaskError as error:
            raise error.cause from None
        except (RayActorError, GetTimeoutError) as error:
            if time.monotonic() >= deadline:
                raise ValueError(f"the cluster's scheduler does not answer: {type(error).__name__}") from None
            time.sleep(_POLL_S)


def need_ray() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise ValueError("a cluster needs Ray: pip install 'torchshare[ray]'") from None
    found: ModuleType = ray
    return found


def _connect(ray: Any, address: str | None, storage: Path | None) -> None:
    """With `storage`, starts Ray where there is none."""
    if ray.is_initialized():
        return
    if address is None:
        _forget_dead_ray()
    started: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            ray.init(address or "auto", log_to_driver=False, logging_level="ERROR")
            return
        except ConnectionError as error:
            if address is not None or storage is None or time.monotonic() >= deadline:
                where = "on this machine" if address is None else f"at {address}"
                raise ValueError(f"there is no Ray cluster {where}: {str(error).partition(chr(10))[0]}") from None
            if started is not None and started.poll() is not None:
                raise ValueError(f"Ray could not be started; see {storage / 'ray.log'}") from None
        started = started or _start_ray(storage)
        time.sleep(1)


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
    storage.mkdir(parents=True, exist_ok=True)
    with (storage / "ray.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (storage / _RAY_PID).write_text(str(process.pid))
    return process
