"""Files are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from torchshare.durable.files import finished_name, replacing


def test_a_file_is_replaced_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    path, part = tmp_path / "a.json", tmp_path / "a.json.part"
    path.write_text("old")
    path.chmod(0o600)
    part.write_text("the user's own")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_text() == "old"
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
    assert sorted(tmp_path.iterdir()) == [path, part] and part.read_text() == "the user's own"


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    for written in (0, 1, 100_000):
        child = os.fork()
        if child == 0:
            with replacing(path) as file:
                file.write(b"x" * written)
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert path.read_text() == "old"


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replacing(tmp_path / "pipe") as file:
        file.write(b"text")
    assert os.read(reader, 9) == b"text" and (tmp_path / "pipe").is_fifo()
    os.close(reader)


@pytest.mark.parametrize("name", ["a.json", "x" * 255, "\u65e5" * 85])
def test_the_name_of_an_unfinished_file_tells_what_it_was_to_be(tmp_path: Path, name: str) -> None:
    """Also if its own name is as long as a file system allows; then only the beginning of it."""
    with replacing(tmp_path / name):
        (unfinished,) = os.listdir(tmp_path)
    assert os.fsencode(finished_name(unfinished)) == os.fsencode(name)[:220]
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["a.json", ".a.json", ".a.json.part", ".0123456789abcdef.part"])
def test_other_names_are_of_no_unfinished_file(name: str) -> None:
    assert finished_name(name) == ""


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_that_exists_stays_if_it_is_not_to_be_overwritten(tmp_path: Path, synced: bool) -> None:
    for text in (b"first", b"second"):
        with replacing(tmp_path / "a", synced=synced, overwrites=False) as file:
            file.write(text)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_that_cannot_be_made_safe_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"), replacing(tmp_path / "a", synced=True) as file:
        file.write(b"text")
    assert os.listdir(tmp_path) == []
