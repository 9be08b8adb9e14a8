"""pytest's plugin on the emulated device: after each test, no race was found and no kernel was hollow.

A kernel is hollow if the numerics do not know it: it took its time and computed nothing, so what follows is wrong.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch._inductor.config

from torchshare.training import compile_package, step_package

emulator = ctypes.CDLL(str(Path(os.environ["TORCHSHARE_EMULATOR"]) / "libtorchshare_emulator.so"))
for take in (emulator.emulator_take_race, emulator.emulator_take_hollow):
    take.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    take.restype = ctypes.c_size_t

# Compiled kernels would be hollow: torch.compile, and compiled steps, call ops through the dispatcher in their place.
torch._inductor.config.fallback_by_default = True
compile_package.__file__ = str(Path(__file__).with_name("compile_without_kernels.py"))
request_of = step_package.request_of


def request_without_kernels(*arguments: Any) -> dict[str, Any]:
    request = request_of(*arguments)
    request["options"]["fallback_by_default"] = True  # also in the cache's key
    return request


step_package.request_of = request_without_kernels


def taken(take: Callable[..., int]) -> list[str]:
    """All that was noted since the last call."""
    text = ctypes.create_string_buffer(1024)
    found = []
    while take(text, len(text)):
        found.append(text.value.decode())
    return found


@pytest.fixture(autouse=True)
def nothing_raced() -> Iterator[None]:
    yield
    races, hollow = taken(emulator.emulator_take_race), taken(emulator.emulator_take_hollow)
    assert not races, "\n".join(races)
    assert not hollow, f"{len(hollow)} kernels computed nothing: {sorted(set(hollow))}"
