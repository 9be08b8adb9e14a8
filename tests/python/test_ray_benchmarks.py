"""The benchmark that compares a cluster's queue with the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'ray[default]>=2.40'")
pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "real_jobs.py"


def test_real_jobs_are_compared_with_the_simulator(tmp_path: Path) -> None:
    few = [
        "--kinds",
        "dqn",
        "gpt2",
        "--jobs",
        "3",
        "--seconds",
        "1",
        "--window",
        "0.1",
        "--policies",
        "fifo",
        "pair-srsf",
    ]
    environment = {**os.environ, "RAY_ADDRESS": ""}
    subprocess.run([sys.executable, BENCHMARK, *few, "--output", tmp_path], check=True, env=environment, timeout=300)
    found = json.loads((tmp_path / "real_jobs.json").read_text())
    assert [run["policy"] for run in found["runs"]] == ["fifo", "pair-srsf"]
    for run in found["runs"]:
        assert sorted(name.partition("-")[0] for name in run["jobs"]) == ["dqn", "dqn", "gpt2"]
        matched = run["with_the_same_makespan"]
        for simulated in (run["simulated_jct_s"], matched["simulated_jct_s"]):
            assert len(simulated) == 3 and all(jct >= 0.2 for jct in simulated)
        assert run["live_jct_s"] == matched["live_jct_s"]
    fifo = found["runs"][0]  # its simulated makespan has no jumps
    ends = [
        max(map(sum, zip(fifo["arrival_s"], fifo["with_the_same_makespan"][name], strict=True)))
        for name in ("live_jct_s", "simulated_jct_s")
    ]
    assert ends[0] == pytest.approx(ends[1], rel=1e-2)
    assert (tmp_path / "real_jobs.png").stat().st_size > 0
