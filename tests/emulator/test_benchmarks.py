"""Every stage of benchmarks/gpu runs on the emulated device, with tiny models and windows, so that it works the first
time on a GPU. What it measures here says nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(590),
    pytest.mark.skipif("TORCHSHARE_EMULATOR" not in os.environ, reason="needs the emulated CUDA device"),
]


def stage(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    own = {"TINY": "1", "PY": sys.executable, "RESULTS": str(folder)}
    command = ["sh", GPU / "run_all.sh", "--one", name]
    return subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=580)


def written(name: str, folder: Path) -> dict[str, Any]:
    """What the stage has written, if it has ended well."""
    ran = stage(name, folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(next(folder.glob(f"{name}*.json")).read_text())


def test_doctor(tmp_path: Path) -> None:
    ran = stage("doctor", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "cuda:0" in ran.stdout


def test_release(tmp_path: Path) -> None:
    found = written("release", tmp_path)
    assert found["release"]["releases"] > 0
    assert set(found["marks"]) == {"write", "event"}


def test_alone(tmp_path: Path) -> None:
    assert set(written("alone", tmp_path)["lstm-64"]) >= {"plain", "priority", "strict", "best_fit"}


def test_pairs(tmp_path: Path) -> None:
    """Every mode but MPS, which the emulated device does not have."""
    modes = written("pairs", tmp_path)["summary"]["mobilenet-64+bert-8 fp32"]
    failed = {mode: figures["error"] for mode, figures in modes.items() if "error" in figures}
    assert {mode: error for mode, error in failed.items() if mode != "processes-mps"} == {}
    assert len(modes) > 10


def test_profiles(tmp_path: Path) -> None:
    assert [each["job"] for each in written("profiles", tmp_path)["profiles"]] == ["lstm-64", "bert-8"]
    assert len((tmp_path / "ratios.csv").read_text().splitlines()) == 2


def test_micro(tmp_path: Path) -> None:
    found = written("micro", tmp_path)
    del found["environment"]
    assert list(found) == ["marks", "priority", "launches", "sms", "empty_cache", "first_step"]
    assert all(len(modes) > 1 for modes in found.values())
    assert found["sms"]["1/4"]["sms"]["median"] < found["sms"]["3/4"]["sms"]["median"]


def test_fikit(tmp_path: Path) -> None:
    """Every mode but MPS, and that with all ops timed."""
    assert set(written("fikit", tmp_path)["summary"]["resnet18+vgg11"]) == {
        *("two processes", "two threads", "strict", "best fit", "best fit + SCHED_IDLE", "watched", "timed")
    }


def test_timeline(tmp_path: Path) -> None:
    """On the CPU: CUPTI needs a GPU's driver. test_gpu_benchmarks.py reads a trace of a GPU."""
    ran = stage("timeline", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "gaps filled" in ran.stdout and (tmp_path / "timeline.png").stat().st_size > 0


def test_small_pair() -> None:
    ran = subprocess.run([sys.executable, GPU / "small_pair.py"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr


def test_every_stage_has_a_test() -> None:
    script = (GPU / "run_all.sh").read_text()
    stages = re.search(r'^stages="(.*)"$', script, re.M)
    assert stages is not None
    assert {f"test_{name}" for name in stages[1].split()} - set(globals()) == {
        "test_build",
        "test_tests",
        "test_sanitizer",
    }
