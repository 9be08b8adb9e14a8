from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from torchshare import _C
from torchshare.device.device import Device, Finding


class Cpu(Device):
    kind = "cpu"

    def name(self, index: int = 0) -> str:
        return f"{_model()}, {_cores()} cores"

    def findings(self) -> Iterator[Finding]:
        lack = "" if _cores() > 1 else "jobs on the CPU share one core: sharing gains nothing"
        yield Finding("CPU", f"{_cores()} cores", lack)
        may = _C.may_raise_priority()
        found = "can be raised" if may else "no CAP_SYS_NICE, and RLIMIT_NICE is below 20"
        lack = "on a busy machine, the primary may stall while it waits for a lower job, and a job may end late"
        yield Finding("priorities", found, "" if may else lack)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
