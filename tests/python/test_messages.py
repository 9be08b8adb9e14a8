"""What `torchshare run` says to a user who gives it wrong arguments, or a target that does not load."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from conftest import Ran, script, torchshare_command

from torchshare.cli import run
from torchshare.cli.parser import Parser
from torchshare.context.errors import described, users_traceback
from torchshare.scripts import command_line

USAGE = "torchshare run --help"
REFUSED = {
    "no target": ([], "the following arguments are required: [NAME=]TARGET; see " + USAGE),
    "unknown option": (["--thread", "1", "a.py"], "unknown option --thread, did you mean --threads?; see " + USAGE),
    "option without value": (["jobs.py:train", "--threads"], "argument --threads: expected one argument; see " + USAGE),
    "empty target": ([""], 'target must be "train.py --epochs 3", '),
    "blank target": (["  "], 'target must be "train.py --epochs 3", '),
    "open quote": (["a.py 'x"], "target 'a.py 'x': no closing quotation"),
    "folder": (["folder"], "target 'folder': the folder folder has no __main__.py"),
    "folder as a module": (["folder:train"], "target 'folder:train': folder has no function 'train', nor any other"),
    "no script": (["gone.py --x"], "target 'gone.py --x': no such file gone.py"),
    "no module to run": (["-m gone.mod"], "target '-m gone.mod': no module named 'gone'"),
    "name twice": (["a=a.py", "a=jobs.py"], "job names must be unique, got 'a' twice; name one with NAME=jobs.py"),
    "empty file of jobs": (["empty.toml"], "empty.toml: must have a table [jobs.NAME] per job"),
    "no file of jobs": (["gone.toml"], "gone.toml: No such file or directory"),
    "job without a script": (["norun.toml"], 'norun.toml: [jobs.a] must have run = "train.py --epochs 3" or the like'),
    "checkpoints in a file": (["--checkpoint", "a.py", "a.py"], "checkpoint must be a folder, got the file a.py"),
    "output in a file": (
        ["--output", "a.py", "a.py", "b=a.py"],
        "--output must be prefix, plain or a folder, got a.py",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    script(tmp_path, "a.py", "import sys\nprint(sys.argv[1:])\n")
    script(tmp_path, "jobs.py", "def train(job):\n    pass\n")
    script(tmp_path, "empty.toml", "")
    script(tmp_path, "norun.toml", "[jobs.a]\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_arguments_are_refused_in_one_line(folder: Path, arguments: list[str], message: str) -> None:
    done = torchshare_command("run", *arguments, folder=folder)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"torchshare: error: {message}")


def test_a_file_that_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who may read all."""

    def refuse(*_: object) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a.py")

    monkeypatch.setattr("importlib.machinery.SourceFileLoader.get_data", refuse)
    done = torchshare_command("run", "a.py", folder=folder)
    assert (done.returncode, done.stderr) == (2, "torchshare: error: target 'a.py': Permission denied\n")


UNLOADABLE = {
    "raises": ("raise ValueError('bad lr')", ['bad.py", line 2, in <module>', "ValueError: bad lr"]),
    "raises nothing said": ("raise ValueError", ['bad.py", line 2, in <module>', "ValueError"]),
    "imports what is not there": (
        "import no_such",
        ['bad.py", line 2', "ModuleNotFoundError: No module named 'no_such'"],
    ),
    "imports a broken helper": ("import helper", ['helper.py", line 2, in f', "KeyError: 'x'"]),
    "exits": ("import sys\nsys.exit(3)", ['bad.py", line 3, in <module>', "SystemExit: 3"]),
    "has a syntax error": ("def f(:", ['bad.py", line 2', "    def f(:", "SyntaxError: invalid syntax"]),
    "imports one": ("import wrong", ['bad.py", line 2', 'wrong.py", line 1', "SyntaxError: invalid syntax"]),
}


@pytest.mark.parametrize("target", ["bad.py:train", "bad:train"])
@pytest.mark.parametrize(("text", "shown"), UNLOADABLE.values(), ids=UNLOADABLE)
def test_a_module_that_does_not_load_shows_where(tmp_path: Path, target: str, text: str, shown: list[str]) -> None:
    script(tmp_path, "bad.py", f"# why\n{text}\n")
    script(tmp_path, "helper.py", "def f():\n    return {}['x']\nf()\n")
    script(tmp_path, "wrong.py", "def f(:\n")
    for _ in range(2):  # what is left of the first try does not hide the reason
        done = torchshare_command("run", target, folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        *traceback, line = done.stderr.splitlines()
        assert line.startswith(f"torchshare: error: target '{target}' cannot be loaded: {shown[-1]}")
        for part in shown:
            assert part in "\n".join(traceback)
        assert str(Path(run.__file__).parents[1]) not in done.stderr and "importlib" not in done.stderr


def test_a_module_named_like_the_beginning_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    script(tmp_path, "trainer.py", "import train\n")
    done = torchshare_command("run", "trainer:go", folder=tmp_path)
    assert "target 'trainer:go' cannot be loaded: ModuleNotFoundError: No module named 'train'" in done.stderr


@pytest.mark.parametrize("text", ["def f(:\n", "\x00"])
def test_a_script_that_is_no_python_shows_where(tmp_path: Path, text: str) -> None:
    script(tmp_path, "bad.py", text)
    done = torchshare_command("run", "bad.py", folder=tmp_path)
    assert done.returncode == 2
    *traceback, line = done.stderr.splitlines()
    assert line.startswith("torchshare: error: target 'bad.py' cannot be loaded: SyntaxError: ")
    assert "SyntaxError: " in traceback[-1] and "torchshare" not in "".join(traceback)


def test_errors_are_described_by_type_and_message() -> None:
    assert described(ValueError("bad lr")) == "ValueError: bad lr"
    assert described(ValueError()) == "ValueError"
    assert described(AssertionError("")) == "AssertionError"


def test_a_traceback_without_frames_of_the_user_is_kept() -> None:
    try:
        script_error()
    except ValueError as error:
        assert "in script_error" in users_traceback(error)


def script_error() -> None:
    raise ValueError


ASKS = {
    "input": "input()",
    "debugger": "import pdb\npdb.Pdb().set_trace()\nx = 1",
    "bytes": "import sys\nsys.stdin.buffer.read()\ninput()",
}


@pytest.mark.parametrize("text", ASKS.values(), ids=ASKS)
def test_a_script_that_asks_is_told_that_its_input_is_empty(tmp_path: Path, text: str) -> None:
    script(tmp_path, "asks.py", f"try:\n    input()\nexcept EOFError:\n    pass\n{text}\n")
    script(tmp_path, "other.py", "print(1)\n")
    ran = Ran(tmp_path, "asks.py", "other.py")
    assert ran.states() == ["failed", "finished"]
    assert ran.text().count("standard input is empty in torchshare run") == 1
    assert "job 'asks': standard input is empty" in ran.text()


def misplaced(*words: str) -> str | None:
    parser = Parser(allow_abbrev=False)
    run.configure(parser)
    return command_line.misplaced(parser, list(words))


def test_options_of_torchshare_after_a_script_are_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    script(folder, "own.py", "parser.add_argument('--threads', type=int)\nargs.max_slowdown\n")
    silent = [
        ["own.py", "--threads", "1"],  # it has such an option itself
        ["own.py", "--max-slowdown=1"],
        ["a.py --threads 1", "own.py"],
        ["--threads", "1", "a.py", "own.py"],
        ["a.py", "--lr", "1"],
        ["a.py", "--config", "own.py"],
        ["--", "a.py", "--threads", "1", "--", "own.py"],
        ["a.py", "--threads", "1", "--", "own.py"],
        ["-m", "pkg.train", "--threads", "1"],
        ["jobs.py:train", "--threads", "1"],
        ["a.py"],
        [],
    ]
    assert [misplaced(*words) for words in silent] == [None] * len(silent)
    for words, passed in (
        (["a.py", "--threads", "1"], "'--threads' after 'a.py' is passed"),
        (["a.py", "--threads=1"], "'--threads=1' after 'a.py' is passed"),
        (["own.py", "--threads", "1", "a.py"], "'--threads' and 'a.py' after 'own.py' are passed"),
        (["own.py", "--x", "1", "b=a.py"], "'b=a.py' after 'own.py' is passed"),
        (["--json", "n=a.py", "--policy", "strict"], "'--policy' after 'n=a.py' is passed"),
    ):
        assert (misplaced(*words) or "").startswith(f"{passed} to that script: options of torchshare come before"), (
            words
        )


def test_a_misplaced_option_is_a_hint_and_the_script_gets_it(folder: Path) -> None:
    done = torchshare_command("run", "--quiet", "a.py", "--threads", "1", folder=folder)
    assert done.returncode == 0 and "['--threads', '1']" in done.stdout
    assert done.stderr.startswith("torchshare: '--threads' after 'a.py' is passed to that script: ")
    assert done.stderr.count("\n") == 1


def test_a_switch_takes_yes_or_no_as_the_next_word(folder: Path) -> None:
    done = torchshare_command("run", "--checkpoint", "ckpt", "--resume", "no", "a.py", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "['" not in done.stdout and "[]" in done.stdout
