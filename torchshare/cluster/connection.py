"""The connection to a cluster: Ray, and the scheduler on it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torchshare.cluster.host_actor import NAMESPACE, SCHEDULER, CannotStart, ShutDown
from torchshare.cluster.settings import STORAGE, ClusterSettings
from torchshare.context.errors import described

_POLL_S = 0.2
_PATIENCE_S = 60.0  # how long a client waits for a scheduler that is started again
_ANSWER_S = 30.0
_START = "`RAY_worker_niceness=0 ray start --head`"  # with Ray's own niceness, 15, all other processes come first
_CLIENT = "ray://"  # begins an address of Ray's client server, which other networks can reach

_connected: dict[str, str] = {}  # "by": the address, if `connect` has connected


class _NotUp(ValueError):
    """There is no scheduler."""


def up(address: str | None = None, settings: ClusterSettings | None = None) -> ClusterSettings:
    """Connects to a Ray cluster, as `connect`, and starts the scheduler if there is none. Returns its settings.

    Raises:
        ValueError: if there is no cluster, if the scheduler cannot use its storage, or if it runs with other settings.
    """
    connect(address)
    import ray

    from torchshare.cluster.scheduler_actor import SchedulerActor

    wanted = settings or ClusterSettings(str(Path(STORAGE).expanduser().absolute()))
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
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with _in_one_line():
            actor = scheduler.remote(wanted)
        try:
            found: ClusterSettings = call("check")
            break
        except CannotStart:  # another error may be this client's connection
            ray.kill(actor)
            raise
        except _NotUp:  # the actor that Ray found was one that `down` had just ended
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)
    if settings is not None and found != settings:
        raise ValueError(f"the cluster is up with other settings: {found}")
    return found


def down() -> None:
    """Ends the scheduler and the hosts, after the running jobs have written checkpoints. The queue stays in the
    storage: the next `up` goes on with it. Ray runs on; a connection to it that `connect` has made is closed."""
    _scheduler()
    with contextlib.suppress(_NotUp):  # it may end before it has answered
        call("shut_down")
    if _connected.pop("by", None) is not None:
        need_ray().shutdown()


def connect(address: str | None = None) -> None:
    """Connects to a Ray cluster. Without an address: the one that this process is connected to, for example by
    `ray.init()`, else that of the variable RAY_ADDRESS, else that of this machine. Raises ValueError if there is
    none."""
    ray = need_ray()
    if ray.is_initialized():
        _check_same(ray.get_runtime_context().gcs_address, address)
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None and address.startswith(_CLIENT):
        _show_token()
    try:
        with _in_one_line(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says the same
            ray.init(address or "auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        if address is None:
            raise ValueError(f"there is no Ray cluster on this machine: {_START} starts one") from None
        reason = str(error).partition("\n")[0]
        raise ValueError(f"there is no Ray cluster at {address}: {reason}") from None
    _connected["by"] = address or "auto"


def call(method: str, *arguments: Any) -> Any:
    """Calls a method of the scheduler, and again if the scheduler ends meanwhile: it may be called twice. Raises
    ValueError if it refuses, or if there is none."""
    ray = need_ray()
    from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

    deadline = time.monotonic() + _PATIENCE_S
    while True:
        actor = _scheduler()
        try:
            with _in_one_line(but=(RayTaskError, RayActorError, GetTimeoutError)):
                return ray.get(getattr(actor, method).remote(*arguments), timeout=_ANSWER_S)
        except RayTaskError as error:
            if isinstance(error.cause, (ValueError, RuntimeError, OSError)):
                raise error.cause from None
            if not isinstance(error.cause, ShutDown):
                raise ValueError(f"the cluster's scheduler failed: {described(error.cause)}") from None
            state = "has been shut down, and has not ended yet"
        except (RayActorError, GetTimeoutError) as error:
            state = f"does not answer: {type(error).__name__}"
        if time.monotonic() >= deadline:
            raise ValueError(f"the cluster's scheduler {state}")
        time.sleep(_POLL_S)


def _scheduler() -> Any:
    """The scheduler's actor. Raises ValueError if there is none."""
    ray = need_ray()
    if not ray.is_initialized():
        raise ValueError("not connected to a cluster: call torchshare.cluster.connect or submit first")
    try:
        return ray.get_actor(SCHEDULER, NAMESPACE)
    except ValueError:
        raise _NotUp("the cluster is not up: run `torchshare cluster up`") from None


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


def _show_token() -> None:
    """Ray's client shows its token only in this mode, while clusters ask for it by default."""
    known = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if known or Path("~/.ray/auth_token").expanduser().exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _check_same(connected: str, address: str | None) -> None:
    """Raises ValueError if the process, which can have one connection only, is connected to another cluster."""
    if address in (None, "auto", connected, _connected.get("by")):
        return
    host, _, port = str(address).rpartition(":")
    with contextlib.suppress(OSError):
        if f"{socket.gethostbyname(host)}:{port}" == connected:
            return
    raise ValueError(f"address must be {connected}, to which this process is connected, got {address}")
