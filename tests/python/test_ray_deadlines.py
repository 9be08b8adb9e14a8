"""Jobs with deadlines on a Ray cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import torchshare_command

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ray[default]>=2.40'")
from ray_cluster import ALL_DONE_S, opened  # noqa: E402

from torchshare import cluster  # noqa: E402

pytestmark = pytest.mark.timeout(300)


def test_a_job_that_would_be_late_is_refused_and_a_deadline_is_kept_by_a_new_scheduler(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(0.1)\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return torchshare_command("cluster", *words, folder=tmp_path)

    with opened(tmp_path, policy="edf") as local:
        done = run("submit", "--deadline", "2h", "--duration", "60", "ok=train.py")
        assert done.returncode == 0, done.stderr
        done = run("submit", "--deadline", "1h", "--duration", "7200", "long=train.py")
        assert done.returncode == 2
        assert done.stderr == (
            "torchshare: error: job 'long': deadline 1h would be missed: it is predicted to end after 2h; a later "
            "deadline, more devices or a submission when fewer jobs wait would help\n"
        )
        handle = cluster.submit("train.py", folder=tmp_path, name="late", duration=0.01, deadline=0.02)
        handle.result(ALL_DONE_S)
        cluster.down()
        cluster.up(local.ray.address, local.settings)
        rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
        assert rows.keys() == {"ok", "late"}
        assert (rows["ok"]["deadline_s"], rows["ok"]["deadline"]) == (7200.0, "met")
        assert rows["late"]["deadline"] == "missed"
        assert run("status").stdout.splitlines()[-1] == "Deadlines: 1 met, 1 missed, 0 open"
