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
        ends = [max(map(sum, zip(run["arrival_s"], each["live_jct_s"], strict=True))) for each in (run, matched)]
        simulated_end = max(map(sum, zip(run["arrival_s"], matched["simulated_jct_s"], strict=True)))
        assert ends[0] == ends[1] == pytest.approx(simulated_end, rel=1e-2)
    assert (tmp_path / "real_jobs.png").stat().st_size > 0
