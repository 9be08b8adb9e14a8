"""What the ranks of a test program tell each other, and waiting."""

import itertools
import json
import time
from typing import Any

import torch.distributed as dist

from torchshare.context.rank import this_rank

RANK = this_rank().number
_store = dist.PrefixStore("test", next(dist.rendezvous("env://"))[0])
_calls = itertools.count()


def from_both(value: Any) -> list[Any]:
    """The values that the two ranks call this with. Waits until both have."""
    call = next(_calls)
    _store.set(f"{call}/{RANK}", json.dumps(value))
    return [json.loads(_store.get(f"{call}/{rank}")) for rank in range(2)]


def until(condition, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"rank {RANK}: not in {seconds} s"
        time.sleep(0.01)
