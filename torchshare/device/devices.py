"""The kinds of devices that jobs can run on."""

from __future__ import annotations

from torchshare.device.cpu import Cpu
from torchshare.device.cuda import Cuda
from torchshare.device.device import Device

CPU, CUDA = Cpu(), Cuda()
ALL: list[Device] = [CPU, CUDA]
"""In the order of `torchshare doctor`; "auto" is the last one that is available."""


def of(device: str) -> Device:
    """The kind of a device such as "cuda:1"."""
    return {kind.kind: kind for kind in ALL}[device.partition(":")[0]]


def best() -> Device:
    """The kind that jobs run on with device="auto"."""
    return next(device for device in reversed(ALL) if device.is_available())


def start(device: str) -> None:
    """Called before a runtime opens on the device, or on "auto"."""
    for kind in ALL:
        if device.partition(":")[0] in ("auto", kind.kind) and kind.is_available():
            kind.start()


def name_of(device: str) -> str:
    """The model of a device such as "cuda:1", after the device."""
    return f"{device}: {of(device).name(int(device.partition(':')[2] or 0))}"


def is_capturing() -> bool:
    """Whether the calling thread captures a graph, on any device."""
    return any(device.is_capturing() for device in ALL)
