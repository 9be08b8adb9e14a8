"""The Ray that `torchshare cluster up` has started is the one that `down` ends."""

from __future__ import annotations

import os
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


def test_down_waits_until_ray_has_ended(tmp_path: Path) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit()))
print("ray", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ray\n"
        (tmp_path / "ray.pid").write_text(connection._identity(process.pid))
        connection._end_ray(tmp_path / "ray.pid")
        assert process.wait(0.1) == 0
    assert list(tmp_path.iterdir()) == []


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
