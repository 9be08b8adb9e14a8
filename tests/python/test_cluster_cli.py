"""`torchshare cluster`, as far as it needs no Ray."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import torchshare_command

from torchshare import cluster
from torchshare.cli import cluster as verb
from torchshare.cluster import client
from torchshare.scripts import targets


def test_without_ray_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "train.py").touch()
    for words in (["up"], ["submit", "train.py"], ["list"], ["status"], ["logs", "a"], ["stop", "a"], ["down"]):
        done = torchshare_command("cluster", *words, folder=tmp_path)
        assert done.returncode == 2
        assert done.stderr == "torchshare: error: a cluster needs Ray: pip install 'torchshare[ray]'\n"
    with pytest.raises(ValueError, match="a cluster needs Ray"):
        cluster.submit("train.py")


class Submitted:
    """Takes the place of `prepared`."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, ...]] = []

    def __call__(self, target: str, **options: Any) -> Callable[[], client.Handle]:
        self.jobs.append((target, {key: value for key, value in options.items() if value is not None}))
        return lambda: client.Handle(options["name"] or "named")


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    found = Submitted()
    monkeypatch.setattr(verb.client, "prepared", found)
    monkeypatch.setattr(verb.connection, "up", lambda address: None)
    return found


def test_options_are_of_all_jobs_or_of_one(tmp_path: Path, submitted: Submitted) -> None:
    words = ["--no-wait", "--priority", "a=primary", "--threads", "2", "--env", '{"pip": ["x"]}', "a=train.py", "m.b:f"]
    done = torchshare_command("cluster", "submit", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    common = {"threads": 2, "env": {"pip": ["x"]}}
    assert submitted.jobs == [
        ("train.py", {"name": "a", "priority": "primary", **common}),
        ("m.b:f", common),
    ]
    assert done.stderr == "Job 'a' is submitted\nJob 'named' is submitted\n"


def test_a_script_keeps_its_arguments(tmp_path: Path, submitted: Submitted) -> None:
    torchshare_command("cluster", "submit", "--no-wait", "--", "train.py", "--epochs", "3", folder=tmp_path)
    assert submitted.jobs == [("train.py --epochs 3", {})]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="job files need Python 3.11")
def test_a_job_file(tmp_path: Path, submitted: Submitted) -> None:
    (tmp_path / "jobs.toml").write_text(
        '[jobs.cnn]\nrun = "train.py --x"\nduration = 60\n[jobs.text]\nrun = "-m pkg.b"\npriority = "primary"\n'
    )
    torchshare_command("cluster", "submit", "--no-wait", "jobs.toml", folder=tmp_path)
    assert submitted.jobs == [
        ("train.py --x", {"name": "cnn", "duration": 60.0}),
        ("-m pkg.b", {"name": "text", "priority": "primary"}),
    ]
    (tmp_path / "jobs.toml").write_text('[jobs.cnn]\nrun = "train.py"\nstart = "auto"\n')
    done = torchshare_command("cluster", "submit", "jobs.toml", folder=tmp_path)
    assert "jobs.toml, line 3: unknown key 'start'" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "x", "train.py"], "--gpus cannot be 'x'"),
        (["--env", "{", "train.py"], "--env cannot be '{'"),
        (["--memory", "0", "train.py"], "job 'train': memory must be a positive number, got 0"),
        (["train.py", "3"], f"target must be {targets.FORMS}, a script with its arguments in quotes; got '3'"),
        (["--gpus", "0", "train.py"], "job 'train': gpus must be a positive integer, got 0"),
    ],
)
def test_invalid_options_are_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    done = torchshare_command("cluster", "submit", *words, folder=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"torchshare: error: {message}\n")
