"""The Ray that `torchshare cluster up` has started is the one that `down` ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchshare.cluster import connection


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """That of another program, whose command line says "ray"."""
    code = "import sys, time; print('up', flush=True); time.sleep(600)"
    found = subprocess.Popen([sys.executable, "-c", code, "ray"], stdout=subprocess.PIPE)
    assert found.stdout is not None
    found.stdout.readline()
    yield found
    found.kill()
    found.communicate()


def test_the_process_is_ended(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    pid = tmp_path / "ray.pid"
    pid.write_text(connection._identity(process.pid))
    connection._end_ray(pid)
    assert process.wait(30) == -signal.SIGTERM
    assert not pid.exists()
    connection._end_ray(pid)


@pytest.mark.parametrize("what", ["start", "boot", "an earlier version"])
def test_another_process_with_its_pid_is_left_alone(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Ray was killed, and the pid is used again: whatever said "ray" was ended."""
    number, start, boot = connection._identity(process.pid).split()
    known = {"start": f"{number} {int(start) - 1} {boot}", "boot": f"{number} {start} {boot[::-1]}"}
    pid = tmp_path / "ray.pid"
    pid.write_text(known.get(what, f"{number} {os.uname().nodename}"))
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("it is ended"))
    connection._end_ray(pid)
    assert process.poll() is None


def test_a_process_has_one_identity(process: subprocess.Popen[bytes]) -> None:
    assert connection._identity(process.pid) == connection._identity(str(process.pid))
    assert connection._identity(process.pid) != connection._identity(os.getpid())
    process.kill()
    process.wait()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        connection._identity(process.pid)
