"""Jobs on several ranks: process groups, and what ranks must agree on. Each test starts two processes with torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "ranks"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def torchrun(*arguments: str, folder: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a program on two ranks. Kills them all on a timeout."""
    run = subprocess.Popen(
        [*TORCHRUN, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        out, err = run.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_all(run)
        out, err = run.communicate()
        pytest.fail(f"not in {timeout} s\n{out}\n{err}")
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


def _kill_all(run: subprocess.Popen[str]) -> None:
    """Kills torchrun and the ranks, which have sessions of their own."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    for pid in (run.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


def test_jobs_have_default_groups_of_their_own_and_ddp_is_bit_identical(tmp_path: Path):
    ran = torchrun(str(PROGRAMS / "groups.py"), folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    for what in ("priority: [True, True]", "strict: [True, True]", "best_fit: [True, True]", "inherits: True"):
        assert ran.stdout.splitlines().count(what) == 2  # ranks
