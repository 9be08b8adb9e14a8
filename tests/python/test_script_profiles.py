"""`torchshare profile` with scripts: where they run, what they need, and what is kept when one fails."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import LOOP, script, torchshare_command

from torchshare.profiles.profile import Profile
from torchshare.scripts import scratch
from torchshare.scripts.scratch import WorkingFolder

ENDLESS = "while True:\n    train(1)\n"
FAILS_EARLY = "train(5)\nraise RuntimeError('no more')"  # 8 steps can be enough for a measurement


def profiled(folder: Path, *arguments: str, rounds: int = 1, cache: str = "../cache") -> Any:
    quick = ("--window", "0.1", "--rounds", str(rounds), "--splits", "2", "--threads", "1", "--cache", cache)
    return torchshare_command("profile", *arguments, *quick, folder=folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder, with files beside it and in it."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.txt").write_text("4")
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "log.txt").write_text("of the user")
    (folder / "pkg" / "__init__.py").write_text("")
    return folder


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_text() for path in files}


HABITS = """
import os, threading
assert open("log.txt").read() == "of the user"
assert open("../data/rows.txt").read() == "4"
os.makedirs("runs/1")  # fails where an earlier run has made it
def write(): open("runs/1/thread.txt", "w").write("x")
thread = threading.Thread(target=write); thread.start(); thread.join()
open("log.txt", "w").write("overwritten")
os.remove("notes.md")
torch.save(model.state_dict(), "pkg/model.pt")
"""


@pytest.mark.parametrize("target", ["train.py", "-m pkg.train", "jobs.py:train"])
def test_measured_scripts_find_the_users_files_and_change_none(project: Path, target: str):
    script(project, "notes.md", "of the user")
    script(project, "train.py", LOOP + HABITS + ENDLESS)
    script(project, "pkg/train.py", LOOP + HABITS + ENDLESS)
    body = "".join(f"    {line}\n" for line in HABITS.splitlines())
    script(project, "jobs.py", LOOP + f"go = train\ndef train(job):\n{body}\n    from pkg import late\n    go(10**9)\n")
    script(project, "pkg/late.py", "")
    before = contents(project)
    done = profiled(project, target)
    assert done.returncode == 0, done.stderr
    assert f"each job runs 2 to 3 times, in a new copy of {project} each time" in done.stderr
    assert contents(project) == before
    assert "changed meanwhile" not in done.stderr


def test_scripts_run_in_the_folder_that_is_given(project: Path):
    script(project, "train.py", LOOP + "open('log.txt', 'a').write('+')\n" + ENDLESS)
    done = profiled(project, "train.py", "--cwd", ".")
    assert done.returncode == 0, done.stderr
    assert f"each job runs 2 to 3 times, in {project}, whose files they may change" in done.stderr
    assert (project / "log.txt").read_text() == "of the user++"
    refused = profiled(project, "train.py", "--cwd", "no")
    assert refused.returncode == 2
    assert "--cwd must be scratch or an existing folder, got no" in refused.stderr


def test_what_a_copy_cannot_keep_apart_is_told(project: Path):
    with (project / "large.pt").open("wb") as file:
        file.truncate(17 * 2**20)  # a link in the copy
    writes = "open('large.pt', 'a').write('x')\nopen(__file__.replace('train.py', 'new.txt'), 'w').write('x')\n"
    script(project, "train.py", LOOP + writes + ENDLESS)
    done = profiled(project, "train.py", "--output", "out.json", cache="cache")
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if "changed" in line]
    assert told == "torchshare: changed meanwhile, by an absolute path or through a link: large.pt, new.txt"


LOADER = "import torchshare\nloader = torch.utils.data.DataLoader(torch.ones(64, 3), 16)\n"
STEP = "        optimizer.zero_grad()\n        model(x).sum().backward()\n        optimizer.step()\n"
OTHER = "other = torch.optim.SGD(model.parameters(), lr=0.1)\n"
NO_BATCHES = {
    "no loader": ENDLESS,
    "a loader that nothing wraps": f"{LOADER}while True:\n    for x in loader:\n{STEP}",
    "batches, but no accumulate": f"{LOADER}while True:\n    for x in torchshare.batches(loader):\n{STEP}",
    "no tensors": f"{LOADER}while True:\n    for x in torchshare.batches([1, 2]):\n        train(1)\n",
    "two optimizers": f"{OTHER}while True:\n    train(1)\n    other.step()\n",
}


@pytest.mark.parametrize("body", NO_BATCHES.values(), ids=NO_BATCHES)
def test_a_script_that_splits_nothing_is_measured_in_one_sub_batch(project: Path, body: str):
    script(project, "train.py", LOOP + body)
    done = profiled(project, "train.py", "--json")
    assert done.returncode == 0, done.stderr
    (alone,) = json.loads(done.stdout)["alone"]
    assert alone["sub_batches"] == 1 and alone["steps"] >= 5


@pytest.mark.slow
def test_what_was_measured_before_a_failure_is_kept_and_used(project: Path):
    """The partner fails in its second run, with every op timed."""
    count = f"import os\nopen({str(project.parent)!r} + '/' + name, 'a').write('+')\n"
    runs = {name: project.parent / name for name in ("good", "bad")}
    fail = f"train(5)\nif os.path.getsize({str(runs['bad'])!r}) == 2: raise RuntimeError('no more')\n"
    script(project, "good.py", LOOP + "name = 'good'\n" + count + ENDLESS)
    script(project, "bad.py", LOOP + "name = 'bad'\n" + count + fail + ENDLESS)
    command = ("good.py", "--with", "bad.py", "--output", "../good.json", "--partner-output", "../bad.json")

    done = profiled(project, *command)
    assert done.returncode == 1
    assert "job 'bad' failed after 5 steps: RuntimeError: no more" in done.stderr
    kept = "kept 3 measurements, missing: the ops of 'bad', 'good' beside 'bad'; the same command goes on from there"
    assert kept in done.stderr and done.stdout == ""
    good = Profile.load(runs["good"].with_suffix(".json"))
    assert (good.job, good.alone[0].sub_batches, good.partners) == ("good", 1, []) and good.ops is not None
    assert Profile.load(runs["bad"].with_suffix(".json")).ops is None
    assert {name: file.read_text() for name, file in runs.items()} == {"good": "++", "bad": "++"}

    done = profiled(project, *command)
    assert done.returncode == 0, done.stderr
    assert "going on from 3 kept measurements; pass --again to start anew" in done.stderr
    assert {name: file.read_text() for name, file in runs.items()} == {"good": "+++", "bad": "++++"}
    after = Profile.load(runs["good"].with_suffix(".json"))
    assert after.alone == good.alone and [each.job for each in after.partners] == ["bad"]
    assert len(list((project.parent / "cache").iterdir())) == 2
    assert "using cached profiles" in profiled(project, *command).stderr


def test_measurements_of_other_code_or_another_partner_are_not_used(project: Path):
    script(project, "good.py", LOOP + ENDLESS)
    script(project, "bad.py", LOOP + FAILS_EARLY)
    command = ("good.py", "--with", "bad.py")
    assert "kept 1 measurement, missing" in profiled(project, *command).stderr
    assert "going on from 1 kept" in profiled(project, *command).stderr
    assert "going on" not in profiled(project, *command, "--again").stderr
    script(project, "good.py", LOOP + ENDLESS + "# changed")
    assert "going on" not in profiled(project, *command).stderr
    cached = project.parent / "cache"
    (unfinished,) = cached.glob("*.measured.json")
    unfinished.write_text(unfinished.read_text()[:-20])
    assert "going on" not in profiled(project, *command).stderr


def test_a_failure_does_not_replace_a_finished_profile(project: Path):
    script(project, "good.py", LOOP + ENDLESS)
    script(project, "bad.py", LOOP + FAILS_EARLY)
    assert profiled(project, "good.py", rounds=2).returncode == 0
    (cached,) = (project.parent / "cache").iterdir()
    before = cached.read_bytes()
    assert profiled(project, "good.py", "--with", "bad.py").returncode == 1
    assert cached.read_bytes() == before


def test_a_copy_has_small_files_and_links_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scratch, "_MAX_ENTRIES", 12)
    monkeypatch.setattr(scratch, "_MAX_FILE", 5)
    folder = tmp_path / "mine"
    for path, text in {"small": "123", "large": "123456", "sub/one": "1", "many/x": ""}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for number in range(20):
        (folder / "many" / str(number)).touch()
    for name, target in {"latest": "small", "nothing": "gone", "absolute": folder / "small"}.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder)
    place = WorkingFolder()
    with place.entered():
        assert Path.cwd() != folder and sorted(os.listdir()) == sorted(os.listdir(folder))
        assert {name for name in os.listdir() if os.path.islink(name)} == {"large", "many", "latest", "nothing", "pipe"}
        assert (Path("latest").resolve(), Path("sub/one").read_text()) == (Path.cwd() / "small", "1")
        Path("latest").write_text("changed")
        Path("absolute").write_text("changed")
        Path("../mine/sub/one").write_text("changed")
        assert place.changes() == []
        Path("large").write_text("changed")
        Path("many/new").touch()
        copy = Path.cwd()
    assert not copy.exists() and Path.cwd() == folder
    assert place.changes() == ["large", "many"]
    assert (folder / "small").read_text() == "123" and (folder / "sub" / "one").read_text() == "1"
