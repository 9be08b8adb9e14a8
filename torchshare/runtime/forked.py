"""The end of a process that a job's function forked and that came back from it."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

from torchshare.context.errors import users_traceback


def end(error: BaseException | None) -> NoReturn:
    """Ends the process as Python ends a program, with the exit status of `error`. Nothing of torchshare's runs:
    threads, files and the other job are the parent's."""
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    elif error is not None:
        print(users_traceback(error), file=sys.stderr)
        status = 1
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)
