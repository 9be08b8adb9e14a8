"""The ranks of a job on several hosts.

A gang needs no placement group of Ray: the hosts are actors that hold their devices already, and the policies give a
gang all its devices at once. Its ranks are jobs of their hosts' runtimes, each with the environment that torchrun would
give its process; so the ranks of two gangs, and a job of one device, can share a process. What ranks of a
`torchshare launch` agree on through their runtimes, such as that all end when one fails, the scheduler sees to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchshare.durable.files import replacing
from torchshare.runtime.ranks import serve

_POLL_S = 0.05


def meet(
    path: Path, address: str, attempt: int, rank: int, count: int, patience: float, is_stopped: Callable[[], bool]
) -> tuple[dict[str, str], Any]:
    """The rank's environment, and for the first rank the store of the rendezvous, which it has to keep. The others wait
    until the first has written its address to `path`. Raises ValueError if it does not within `patience` seconds."""
    store = None
    if rank == 0:
        store = serve(address, count)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(f"{address} {store.port}".encode())
    deadline = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > deadline or is_stopped():
            raise ValueError(f"rank {rank} did not hear from the first rank within {patience:g} s")
        time.sleep(_POLL_S)
    host, port = path.read_text().split()
    ranks = {"RANK": rank, "GROUP_RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    counts = {"WORLD_SIZE": count, "GROUP_WORLD_SIZE": count, "ROLE_WORLD_SIZE": count}
    launch = {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": attempt - 1,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RUN_ID": path.stem,
    }
    return {**os.environ, **{key: str(value) for key, value in {**ranks, **counts, **launch}.items()}}, store
