"""What scripts have written, but not flushed, when they end: plain Python writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MEET, Ran, script

UNCLOSED = """
import csv, functools, io, sys
def opened(name):
    return open(f"{sys.argv[1]}.{name}", "w")
"""
KEPT_IN = {
    "a class": "class Log:\n    writer = csv.writer(opened('csv'))\nLog.writer.writerow([1, 2])",
    "a default argument": "def log(text, file=opened('txt')):\n    file.write(text)\nlog('line')",
    "an attribute of a function": "def log():\n    log.file.write('line')\nlog.file = opened('txt')\nlog()",
    "a closure": "def made(file):\n    return lambda: file.write('line')\nlog = made(opened('txt'))\nlog()",
    "a cycle": "class Log:\n    def __init__(self):\n        self.file, self.call = opened('txt'), self.log\n"
    "    def log(self):\n        self.file.write('line')\ntrainer = Log()\ntrainer.call()",
    "a cache": "get = functools.cache(opened)\nget('txt').write('line')",
    "another module": "functools.kept = opened('txt')\nfunctools.kept.write('line')",
    "bytes": "class Log:\n    file = open(f'{sys.argv[1]}.bin', 'wb')\nLog.file.write(b'bytes')",
    "a text file over bytes": "class Log:\n    file = io.TextIOWrapper(open(f'{sys.argv[1]}.txt', 'wb'))\n"
    "Log.file.write('line')",
}


@pytest.mark.parametrize("keeps", KEPT_IN.values(), ids=KEPT_IN)
def test_files_that_scripts_leave_open_are_written(tmp_path: Path, keeps: str) -> None:
    program = script(tmp_path, "program.py", UNCLOSED + keeps + "\n")
    (tmp_path / "plain").mkdir()
    for name in "ab":
        subprocess.run([sys.executable, tmp_path / program, name], cwd=tmp_path / "plain", check=True, timeout=300)
    ran = Ran(tmp_path, f"a={program} a", f"b={program} b")
    assert ran.code == 0, ran.text()
    plain = {path.name: path.read_bytes() for path in (tmp_path / "plain").iterdir()}
    assert len(plain) == 2 and all(plain.values())
    assert {name: (tmp_path / name).read_bytes() for name in plain} == plain


TEE = """
import io, sys
class Tee:
    def __init__(self, stream, path):
        self.stream, self.file, self.waiting = stream, open(path, "w"), []
    def write(self, text):
        self.waiting.append(text)
    def flush(self):
        text, self.waiting = "".join(self.waiting), []
        self.stream.write(text)
        self.file.write(text)
sys.stdout = Tee(sys.stdout, sys.argv[1])
print("first")
print("last")
"""


def test_a_stream_that_a_script_puts_in_place_is_flushed_at_its_end(tmp_path: Path) -> None:
    tee = script(tmp_path, "tee.py", TEE)
    ran = Ran(tmp_path, f"a={tee} a.log", f"b={tee} b.log")
    assert ran.code == 0, ran.text()
    for name in "ab":
        assert ran.of(name) == ["first", "last"]
        assert (tmp_path / f"{name}.log").read_text() == "first\nlast\n"


def test_a_forked_child_does_not_write_what_its_parent_s_files_hold(tmp_path: Path) -> None:
    forks = r"""
class Log:
    file = open(f"{who}.txt", "w")
Log.file.write("line\n")
meet("written")
if who == "a":
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
meet("ended")
Log.file.write("end\n")
"""
    program = script(tmp_path, "forks.py", MEET + forks)
    ran = Ran(tmp_path, f"a={program} a", f"b={program} b")
    assert ran.code == 0, ran.text()
    assert [(tmp_path / f"{name}.txt").read_text() for name in "ab"] == ["line\nend\n"] * 2


def test_files_are_written_where_an_atexit_function_exits(tmp_path: Path) -> None:
    program = script(
        tmp_path, "exits.py", UNCLOSED + "import atexit\natexit.register(sys.exit, 3)\n" + KEPT_IN["a class"]
    )
    ran = Ran(tmp_path, f"a={program} a", f"b={program} b")
    assert ran.code == 0, ran.text()
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text() == "1,2\n"


def test_a_file_that_a_module_has_opened_before_the_run_is_written_at_its_end(tmp_path: Path) -> None:
    """In a process of its own: those of preloaded.py do not unfreeze their heap."""
    text = "log = open('log.txt', 'w')\ndef main(job):\n    log.write('trained')\n"
    (tmp_path / "train.py").write_text(text)
    command = [sys.executable, "-m", "torchshare", "run", "train:main"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300, capture_output=True)
    assert (tmp_path / "log.txt").read_text() == "trained"
