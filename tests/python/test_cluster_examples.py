"""The scripts for Slurm and Kubernetes, by what they run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_jobs import SCRIPT

EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"


@pytest.mark.slow
def test_slurm_queues_the_pair_again_and_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" >> scontrol.log\n')
    (tmp_path / "scontrol").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SLURM_JOB_ID": "17", "EVERY": "1000"}

    def start(steps: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", EXAMPLES / "pair.sbatch", "--threads", "1", *(f"{job}=train.py {steps} 0.02" for job in "ab")],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    first = start(10_000)
    assert first.stdout is not None
    seen: set[str] = set()
    while seen != {"a: step", "b: step"}:
        line = first.stdout.readline()
        assert line
        seen |= {line.strip()} & {"a: step", "b: step"}
    first.send_signal(signal.SIGTERM)
    rest, _ = first.communicate(timeout=300)
    assert first.returncode == 143, rest
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"
    assert len(list((tmp_path / "checkpoints-17").glob("*.pt"))) == 2

    second = start(100)
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0, output
    assert output.count("resumes at step") == 2
    assert output.count("trained") == 2

    failing = start(-1)  # no batch
    failing.communicate(timeout=300)
    assert failing.returncode == 1
    assert (tmp_path / "scontrol.log").read_text() == "requeue 17\n"


def test_the_pods_command_is_one(tmp_path: Path) -> None:
    text = (EXAMPLES / "job.yaml").read_text()
    words = [json.loads(found) for found in re.findall(r"^ +(?:command|args): (\[.*\])$", text, re.MULTILINE)]
    command = [
        word.replace("/checkpoints", "checkpoints").replace("--epochs 3", "5 0.02") for part in words for word in part
    ]
    command = ["train_b.py 5 0.02" if word == "train_b.py" else word for word in command]
    for name in ("train_a.py", "train_b.py"):
        (tmp_path / name).write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2
