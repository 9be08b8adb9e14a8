"""Writes this version's files to tests/python/files: `python tests/python/former_files.py`, before a release.

test_former_files.py reads them with each later version.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from former_job import train
from queue_cluster import Cluster, spec

import torchshare
from torchshare.version import RELEASE

FILES = Path(__file__).parent / "files"


def record_checkpoint(folder: Path) -> None:
    """The checkpoint of step 9, and the weights that the job has at its end."""
    with torchshare.Runtime("cpu", checkpoint=folder / "checkpoints", every=3) as runtime:
        job = runtime.submit(train, name="train", threads=1, seed=0)
        runtime.wait(300)
    for path in (folder / "checkpoints").iterdir():
        if ".00000009." not in path.name:
            path.unlink()
    (folder / "weights.json").write_text(json.dumps({"torch": torch.__version__, "weights": job.result.value}))


def record_profile(folder: Path) -> None:
    """A profile with a partner, and the op trace of the job."""
    outputs = ["--output", str(folder / "profile.json"), "--trace", str(folder / "ops.npz")]
    job = f"{Path(__file__).parent / 'former_job.py'}:train_long"
    targets = [f"train={job}", "--with", f"other={job}"]
    short = ["--window", "0.05", "--rounds", "1", "--threads", "1", "--again"]
    subprocess.run([sys.executable, "-m", "torchshare", "profile", *targets, *short, *outputs], check=True, cwd=folder)


def fill(cluster: Cluster, prefix: str) -> None:
    """Of its six jobs, one ends, one fails, one is cancelled, one is a gang, and others wait; a host is lost."""
    names = [f"{prefix}{number}" for number in range(6)]
    for name in names:
        cluster.queue.submit(spec(name, gpus=2 if name == names[4] else 1, model=f"model of {prefix}"))
    cluster.act()
    cluster.save(names[0])
    cluster.end(names[1])
    cluster.now += 10
    cluster.act()
    cluster.end(names[2], "failed", "ValueError: 3")
    cluster.queue.cancel(names[3])
    cluster.act()
    cluster.lose(max(cluster.on))
    cluster.add_host(7, prefix)
    cluster.act()


def seen(cluster: Cluster) -> list[dict[str, Any]]:
    """What the queue says of its jobs."""
    return [{key: row[key] for key in ("name", "state", "attempt", "error")} for row in cluster.queue.rows()]


def record_journals(folder: Path) -> None:
    """A journal of single events, and one that begins with a snapshot."""
    for kind in ("events", "snapshot"):
        cluster = Cluster(folder / f"journal-{kind}", hosts=2)
        fill(cluster, "a")
        if kind == "snapshot":
            assert cluster.queue.compact(after=1)
            fill(cluster, "b")
        cluster.journal.close()
        (folder / f"journal-{kind}.lock").unlink(missing_ok=True)
        (folder / f"journal-{kind}.json").write_text(json.dumps(seen(cluster), indent=1))


def main() -> None:
    folder = FILES / RELEASE.partition(".dev")[0]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record_checkpoint(folder)
    record_profile(folder)
    record_journals(folder)


if __name__ == "__main__":
    main()
