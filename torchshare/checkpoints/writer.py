from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

_NICE = 10  # jobs' threads come first
_LAST_S = 30.0  # how long closing waits for files that are being written


class Writer:
    """A thread that writes files, one after the other."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Not started by a job: a thread inherits the scheduling of the one that starts it.
        self._thread = threading.Thread(target=self._run, name="ts-checkpoints", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Calls `work` in the thread; it must not raise."""
        self._works.put(work)

    def close(self) -> None:
        """Waits until all has been written."""
        self._works.put(None)
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (work := self._works.get()) is not None:
            work()
