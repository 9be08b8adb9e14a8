"""What is in the cache is loaded as code: only this user may have written it."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import python, run_one
from torch import nn
from torch.nn import functional as F

from torchshare import Job
from torchshare.durable.cache import CacheUnusable, own_folder
from torchshare.training import step_package

OTHER_USER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "base"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_the_folder_is_the_users_own_whatever_the_umask(base: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        folder = own_folder("steps")
    finally:
        os.umask(former)
    assert folder == base / "torchshare" / "steps"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (base, folder.parent, folder)] == [0o700] * 3


def test_a_folder_that_was_open_to_others_is_closed(base: Path) -> None:
    (base / "torchshare" / "steps").mkdir(parents=True)
    (base / "torchshare" / "steps").chmod(0o777)
    assert stat.S_IMODE(own_folder("steps").stat().st_mode) == 0o700


def test_a_folder_below_one_that_others_can_write_to_is_refused(base: Path) -> None:
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(CacheUnusable, match=f"others can write to {base}"):
        own_folder("steps")
    base.chmod(0o1777)  # as /tmp
    assert own_folder("steps").is_dir()


def test_a_link_is_followed_before_the_check(base: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    base.symlink_to(tmp_path / "open")
    with pytest.raises(CacheUnusable, match=f"others can write to {tmp_path}/open"):
        own_folder("steps")


@as_root
@pytest.mark.parametrize("whose", ["", "torchshare", "torchshare/steps"])
def test_a_folder_of_another_user_is_refused(base: Path, whose: str) -> None:
    (base / "torchshare" / "steps").mkdir(parents=True)
    os.chown(base / whose, OTHER_USER, -1)
    with pytest.raises(CacheUnusable, match=f"belongs to user {OTHER_USER}"):
        own_folder("steps")


def stored(text: bytes = b"package") -> Path:
    """A package of the key "key" in the cache."""
    folder = own_folder("steps")
    (folder / "new").write_bytes(text)
    return (folder / "new").rename(folder / step_package._name("key", folder / "new"))


def flip(package: Path) -> None:
    package.write_bytes(b"pacKage")


def give_away(package: Path) -> None:
    os.chown(package, OTHER_USER, -1)


def open_to_others(package: Path) -> None:
    package.chmod(0o666)


def link(package: Path) -> None:
    package.rename(package.parent / "target")
    package.symlink_to(package.parent / "target")


@pytest.mark.parametrize("change", [flip, link, open_to_others, pytest.param(give_away, marks=as_root)])
def test_a_package_that_someone_else_may_have_written_is_deleted(base: Path, change: Callable[[Path], None]) -> None:
    package = stored()
    assert step_package._intact(package.parent, "key") == package
    change(package)
    assert step_package._intact(package.parent, "key") is None
    assert not package.is_symlink() and not package.exists()


def test_a_lock_follows_no_link(base: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("text")
    (tmp_path / "a.lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic"), step_package._locked(tmp_path / "a.lock", time.sleep):
        pass
    assert (tmp_path / "mine").read_text() == "text"


def train_compiled(job: Job) -> str | None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (torch.ones(4, 3), torch.zeros(4, 2))
    step = job.compiled_step(model, lambda x, y: F.mse_loss(model(x), y), optimizer, data)
    for batch in job.batches([data] * 3):
        step(batch)
    return step.fallback


@pytest.mark.parametrize("folder", ["relative", "/proc/no/such", "/dev/null"])
def test_a_step_without_a_cache_runs_in_eager_after_one_warning(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    caplog.set_level(logging.WARNING, "torchshare")
    assert "the cache of compiled steps cannot be used" in str(run_one(train_compiled).value)
    assert len(caplog.records) == 1


WITHOUT_HOME = """
import os, pwd, sys
os.environ.pop("HOME", None), os.environ.pop("XDG_CACHE_HOME", None)
def getpwuid(number): raise KeyError("uid not found")
pwd.getpwuid = getpwuid
from torchshare.__main__ import main
sys.exit(main({words}))
"""


@pytest.mark.parametrize("words", [["--version"], ["profile", "--help"]])
def test_the_command_needs_no_home(words: list[str]) -> None:
    done = python(WITHOUT_HOME.format(words=words))
    assert (done.returncode, done.stderr) == (0, "")
    assert "torchshare" in done.stdout
