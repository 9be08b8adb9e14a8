"""A process of a benchmark, to which the benchmark talks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any


class Child:
    """Runs `SCRIPT --work WHAT`; the two exchange lines of JSON. The end of a `with` kills it."""

    def __init__(self, script: str, what: Any) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `__exit__` closes it
        self._process = subprocess.Popen(
            [sys.executable, script, "--work", json.dumps(what)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    def tell(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """What it says next. RuntimeError: it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return json.loads(line)

    def wait(self, limit: float) -> None:
        """Waits until it has ended. RuntimeError: it has failed. subprocess.TimeoutExpired: it hangs."""
        if self._process.wait(limit) != 0:
            raise self._failure()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._process.communicate()  # closes the pipes
        self._errors.close()

    def _failure(self) -> RuntimeError:
        """How it ended, and the last that it wrote to its standard error: its exception, or where it hung."""
        status = self._process.wait()
        self._errors.seek(0)
        return RuntimeError(f"ended with {status}: {self._errors.read().strip()[-2000:]}")
