"""Jobs that answer requests, and their requests, for tests."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conftest import SOON_S, wait_until

import torchshare
from torchshare import Job, Request, Result


def asked(data: list[Any], source: Any = None) -> tuple[list[Request], Any]:
    """Requests in a queue that is closed after them."""
    source = source or queue.Queue()
    requests = [Request(each) for each in data]
    for each in [*requests, None]:
        source.put(each)
    return requests, source


def serve(function: Any, **options: Any) -> Result:
    with torchshare.Runtime("cpu", **options) as runtime:
        job = runtime.submit(function, name="server", priority="primary")
        runtime.wait(check=False)
    if job.result.exception is not None:
        raise job.result.exception
    return job.result


class Server:
    """A job that serves `function` until `stop`."""

    def __init__(self, function: Callable[..., Any], at_start: Callable[[], object] = lambda: None) -> None:
        self.function, self.at_start = function, at_start
        self.ready, self.over = threading.Event(), threading.Event()
        self.call: Callable[..., Any] = function

    def __call__(self, job: Job) -> None:
        self.at_start()
        self.call = job.serve(self.function)
        self.ready.set()
        while not self.over.is_set():
            time.sleep(0.01)

    def stop(self) -> None:
        self.over.set()


@contextmanager
def running(server: Server, **options: Any) -> Iterator[tuple[Job, torchshare.Runtime]]:
    with torchshare.Runtime("cpu", policy="strict") as runtime:
        job = runtime.submit(server, name="server", priority="primary", **options)
        runtime.start()
        wait_until(lambda: server.ready.is_set() or job.state not in ("pending", "running"), SOON_S)
        assert server.ready.is_set(), job.result.exception
        yield job, runtime
        server.stop()
        runtime.wait()
