from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import torch

from torchshare import _C
from torchshare.device.device import Device, Finding

_GREEN_DRIVER = 12080  # first driver version with green contexts as torch needs them


class Cuda(Device):
    kind = "cuda"

    def is_available(self) -> bool:
        return torch.cuda.is_available()

    def start(self) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]

    def is_started(self) -> bool:
        return torch.cuda.is_initialized()  # type: ignore[no-any-return, no-untyped-call]

    def name(self, index: int = 0) -> str:
        return torch.cuda.get_device_name(index)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def is_capturing(self) -> bool:
        return self.is_started() and torch.cuda.is_current_stream_capturing()

    @contextlib.contextmanager
    def on_stream(self, handle: int, device: torch.device | None) -> Iterator[None]:
        """Ops of the block run on that stream, after those before the block; later ones come after them."""
        outer = torch.cuda.current_stream(device)
        inner = torch.cuda.ExternalStream(handle, device)  # type: ignore[no-untyped-call]
        inner.wait_stream(outer)
        try:
            with torch.cuda.stream(inner):
                yield
        finally:
            outer.wait_stream(inner)

    def findings(self) -> Iterator[Finding]:
        if not self.is_available():
            yield Finding("GPU", "none", "device='cuda', Job.graph, sms, run_ahead; jobs run on the CPU")
            return
        yield from _gpus()
        yield from _sharing()


def _gpus() -> Iterator[Finding]:
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        text = f"{gpu.name}, {gpu.multi_processor_count} SMs, {gpu.total_memory / 2**30:.1f} GiB"
        yield Finding(f"cuda:{index}", f"{text}, compute capability {gpu.major}.{gpu.minor}")
    lowest, highest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
    levels = lowest - highest + 1
    lack = "" if levels > 1 else "policy='priority' does not protect the primary; use 'strict' or 'best_fit'"
    yield Finding("stream priorities", f"{levels}, from {highest} (first) to {lowest}", lack)


def _sharing() -> Iterator[Finding]:
    driver = _C.cuda_driver_version()
    text = f"{driver // 1000}.{driver % 1000 // 10}"
    lack = "" if driver >= _GREEN_DRIVER else "submit(sms=...) needs a driver for CUDA 12.8"
    yield Finding("driver", f"for CUDA {text}; green contexts: {'no' if lack else 'yes'}", lack)
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    control = shutil.which("nvidia-cuda-mps-control")
    found = f"this process is a client at {pipes}" if pipes else "not in use by this process"
    yield Finding("MPS", f"{found}; {'can be started' if control else 'no nvidia-cuda-mps-control here'}")
    lack = "results of jobs that disagree on it may differ from running alone" if torch.backends.cudnn.benchmark else ""
    yield Finding("cudnn.benchmark", "on" if torch.backends.cudnn.benchmark else "off", lack)
