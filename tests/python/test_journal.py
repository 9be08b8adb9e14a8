"""The journal of a cluster's queue survives what can happen to a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchshare.cluster.journal import Journal, Superseded
from torchshare.cluster.storage import Outcome, Storage


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal"
    journal = Journal(path)
    journal.append({"event": "a", "n": 1})
    journal.append({"event": "b", "text": "ä\n"})
    journal.close()
    again = Journal(path)
    assert [event["event"] for event in again.events] == ["scheduler", "a", "b"]
    assert again.events[2]["text"] == "ä\n"
    again.close()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["scheduler", "a", "b", "scheduler"]


@pytest.mark.parametrize("cut", range(1, 25))
def test_a_last_line_that_was_cut_off_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.append({"event": "a"})
    journal.append({"event": "b", "n": 12345})
    journal.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(path)
    assert [event["event"] for event in again.events] == ["scheduler", "a"]
    again.append({"event": "c"})
    again.close()
    assert [event["event"] for event in Journal(path).events] == ["scheduler", "a", "scheduler", "c"]


DAMAGED = [
    ('{"event": "a"}\n{"event": \n{"event": "b"}\n', 2),
    ('{"event": "a"}\n{"event": "submit", "job": {"na\n', 2),  # the last line, but no torn write: it was accepted
    ('{"event": "a"}\n\n', 2),
    ("garbage\n", 1),
    ("garbage", 1),
    ('{"event": "a"}\ngarbage', 2),
]


@pytest.mark.parametrize(("text", "line"), DAMAGED)
def test_a_damaged_line_is_refused(tmp_path: Path, text: str, line: int) -> None:
    """A last one too, if it ends in a newline: it was dropped, and with it a job."""
    path = tmp_path / "journal"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"journal:{line}: the journal is damaged: "):
        Journal(path)
    assert path.read_text() == text


def test_the_zeros_of_a_crashed_system_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"event": "a"}\n' + bytes(30))
    assert [event["event"] for event in Journal(path).events] == ["a"]


def make_job(storage: Storage) -> None:
    storage.logs("id").mkdir(parents=True)


@pytest.mark.parametrize("text", [None, "", '{"event": "sched'])
@pytest.mark.parametrize(
    "use",
    [
        make_job,
        lambda storage: storage.put_outcome("id", Outcome("finished")),
        lambda storage: storage.put_function("id", b""),
        lambda storage: storage.put_mark(),
    ],
)
def test_a_journal_without_events_beside_files_of_jobs_is_refused(
    tmp_path: Path, text: str | None, use: Callable[[Storage], object]
) -> None:
    """It became an empty queue."""
    storage = Storage(tmp_path)
    assert not storage.is_used
    use(storage)
    if text is not None:
        storage.journal.write_text(text)
    with pytest.raises(ValueError, match=r"journal.jsonl: the journal is lost: it has no event, but its folder has"):
        Journal(storage.journal, is_new=not storage.is_used)
    assert text is None or storage.journal.read_text() == text


def test_a_second_scheduler_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    code = f"""
from pathlib import Path
from torchshare.cluster.journal import Journal
journal = Journal(Path({str(path)!r}))
print("open", flush=True)
input()
"""
    first = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.readline()
    with pytest.raises(Superseded, match="another scheduler has it open"):
        Journal(path, patience=0.2)
    first.kill()
    first.communicate()
    Journal(path).append({"event": "a"})


def test_a_scheduler_notices_that_another_has_written(tmp_path: Path) -> None:
    """Where locks do not reach other machines."""
    path = tmp_path / "journal"
    journal = Journal(path)
    with path.open("a") as other:
        other.write('{"event": "of another"}\n')
    with pytest.raises(Superseded, match="another process has written to it"):
        journal.append({"event": "a"})


def test_what_cannot_be_written_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    before = path.read_bytes()
    with pytest.raises(ValueError):
        journal.append({"event": "a", "value": float("nan")})
    assert path.read_bytes() == before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            journal.append({"event": "a"})
    assert path.read_bytes() == before
    journal.append({"event": "b"})


def test_the_names_of_files_are_on_the_disk_before_anybody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's contents, its name, and the name of its folder."""
    synced: list[str] = []
    fsync, link = os.fsync, os.link

    def seen(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append("file" if path.is_file() else path.name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(os, "link", lambda *paths: (synced.append("link"), link(*paths)))
    path = tmp_path / "new" / "storage"
    storage = Storage(path)
    Journal(storage.journal).close()
    assert synced == [tmp_path.name, "new", "file", "storage"]
    for number in range(2):
        synced.clear()
        storage.put_function("id", b"")
        assert synced == ["storage"] * (number == 0) + ["file", "link", "functions"]
    synced.clear()
    storage.put_outcome("id", Outcome("finished"))
    assert synced == ["storage", "file", "link", "outcomes"]


KILLED = """
import os, signal, sys
from pathlib import Path
from torchshare.cluster.journal import Journal
def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
journal = Journal(Path(sys.argv[1]))
journal.append({"event": "a"})
at = sys.argv[2]
replace = os.replace
if at == "after":
    os.replace = lambda *paths: (replace(*paths), kill())
else:
    setattr(os, at, kill)
journal.replace({"event": "snapshot"})
"""


@pytest.mark.parametrize(
    ("at", "events"), [("fsync", ["scheduler", "a"]), ("replace", ["scheduler", "a"]), ("after", ["snapshot"])]
)
def test_a_kill_while_the_journal_is_replaced_leaves_one_or_the_other(
    tmp_path: Path, at: str, events: list[str]
) -> None:
    path = tmp_path / "journal"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path), at]).returncode == -9
    journal = Journal(path)
    assert [event["event"] for event in journal.events] == events
    journal.replace({"event": "snapshot", "n": 2})
    journal.append({"event": "b"})
    with pytest.raises(Superseded):
        Journal(path, patience=0)
    journal.close()
    assert [event["event"] for event in Journal(path).events] == ["snapshot", "b"]
    assert sorted(os.listdir(tmp_path)) == ["journal", "journal.lock"]
