from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A line of `torchshare doctor`."""

    what: str
    found: str
    lack: str = ""
    """What will not work because of it; empty if everything works."""


class Device:
    """A kind of device. Its streams and memory are in csrc/device."""

    kind: str
    """The type of torch.device."""

    def is_available(self) -> bool:
        return True

    def start(self) -> None:
        """Called before a runtime may open on it, if it is available."""
        return

    def is_started(self) -> bool:
        """Whether torch has begun to use it in this process."""
        return True

    def name(self, index: int = 0) -> str:
        """The name of a device of this kind, for profiles and reports."""
        raise NotImplementedError

    def findings(self) -> Iterator[Finding]:
        """What this machine has of it."""
        raise NotImplementedError

    def empty_cache(self) -> None:
        """Returns memory that torch caches to the device."""
        return

    def is_capturing(self) -> bool:
        """Whether ops of the calling thread are being captured in a graph, and compute nothing yet."""
        return False
