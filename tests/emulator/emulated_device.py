"""pytest's plugin on the emulated device: after each test, no race was found and no kernel was hollow.

A kernel is hollow if the numerics do not know it: it took its time and computed nothing, so what follows is wrong.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch._inductor.config
from without_kernels import OPTIONS

from torchshare.training import step_package
from torchshare.training.traced import Traced

emulator = ctypes.CDLL(None)  # preloaded by run.sh
for take in (emulator.emulator_take_race, emulator.emulator_take_hollow):
    take.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    take.restype = ctypes.c_size_t

# Compiled kernels would be hollow.
for option, value in OPTIONS.items():
    setattr(torch._inductor.config, option, value)
request_of = step_package.request_of


def request_without_kernels(traced: Traced, threads: int) -> dict[str, Any]:
    request = request_of(traced, threads)
    request["options"].update(OPTIONS)
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
    stream = torch.cuda.current_stream()
    assert stream == torch.cuda.default_stream(), "the test left the main thread with another current stream"
    assert not hollow, f"{len(hollow)} kernels computed nothing: {sorted(set(hollow))}"
