"""Which rank this process is, of those that a launcher such as torchrun has started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rank:
    number: int
    count: int
    """The number of ranks."""
    restarts: int = 0
    """How often the launcher has started all ranks again. The store keeps the keys of former times."""

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def file(self, path: Path) -> Path:
        """Where this rank writes what the first one writes to `path`."""
        return path if self.is_first else path.with_suffix(f".rank{self.number}{path.suffix}")


def this_rank(environ: Mapping[str, str] = os.environ) -> Rank:
    """From the variables that `torch.distributed` reads for `env://`. Without them, the only rank."""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(environ.get(name) for name in needed):
        return Rank(0, 1)
    restarts = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return Rank(int(environ["RANK"]), int(environ["WORLD_SIZE"]), restarts)
