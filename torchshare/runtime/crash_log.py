"""What a supervised process leaves for its supervisor: which thread is which job's, how it ended or crashed."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import threading

from torchshare import _C

_PR_SET_PDEATHSIG = 1
_file: int | None = None


def open_for(file: int) -> None:
    """Reports into the file from now on, before any other handler of fatal signals. Crashes of forked processes are not
    reported."""
    global _file
    _file = file
    os.set_inheritable(file, False)
    faulthandler.disable()
    faulthandler.enable(file)
    os.register_at_fork(after_in_child=faulthandler.disable)


def end_with_parent() -> None:
    """If the supervisor is killed."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def enter_job(name: str) -> None:
    """Called in the job's thread."""
    _write(["job", threading.get_ident(), name])


def leave_job(name: str) -> None:
    """Called in that thread at its end: another thread may get its id."""
    _write(["left", threading.get_ident(), name])


def end(status: int, device: str) -> None:
    """Called when only the end of the process is left: a crash there changes nothing."""
    lost = _lost(device) if status == 1 and _file is not None else None
    _write(["end", status, ""] if lost is None else ["lost", 0, lost])


def _lost(device: str) -> str | None:
    """Why only a new process can use the device; None if this one can."""
    try:
        _C.Runtime(device, _C.RuntimeOptions())
    except RuntimeError as error:
        return str(error)
    return None


def _write(line: list[str | int]) -> None:
    if _file is not None:
        with contextlib.suppress(OSError):  # a full disk: which job crashed will not be known
            os.write(_file, f"{json.dumps(line)}\n".encode())
