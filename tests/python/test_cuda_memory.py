"""Our CUDA allocator wraps torch's: a virtual function that it does not forward would silently be the base class's."""

import re
from pathlib import Path

import torch

INCLUDE = Path(torch.__file__).parent / "include" / "c10"
CUDA = Path(__file__).parents[2] / "csrc" / "device" / "cuda"
SOURCE = "".join((CUDA / name).read_text() for name in ("torch_version.h", "cuda_memory.cpp"))
BASES = {
    "Allocator": INCLUDE / "core" / "Allocator.h",
    "DeviceAllocator": INCLUDE / "core" / "CachingDeviceAllocator.h",
    "CUDAAllocator": INCLUDE / "cuda" / "CUDACachingAllocator.h",
}


def virtuals(name: str, text: str) -> set[str]:
    """The names of the virtual functions of class `name` in `text`, a header."""
    body = re.split(rf"\b(?:class|struct) [A-Z0-9_ ]*{name}\b[^;{{]*{{", text)[1].split("\n};")[0]
    return set(re.findall(r"\bvirtual [^;({]*?(\w+)\s*\(", body))


def test_every_virtual_function_of_torchs_allocators_is_forwarded() -> None:
    names = set().union(*(virtuals(name, path.read_text()) for name, path in BASES.items()))
    assert {"allocate", "raw_alloc", "recordStream", "setCheckpointPoolState"} <= names
    missing = {name for name in names if not re.search(rf"\b{name}\([^;{{}}]*override", SOURCE)}
    assert missing - {"Allocator", "DeviceAllocator"} == set()
