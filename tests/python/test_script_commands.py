"""`torchshare run` and `profile` with scripts: the command line, jobs.toml, exit status, and the terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LOOP, Ran, launch, script, torchshare_command

from torchshare.cli import run


def split(*words: str) -> list[str]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    run.configure(parser)
    return run.options_first(parser, list(words))


def test_nothing_after_a_script_is_an_option_of_ours():
    assert split("--seed", "1", "--json", "a.py --x", "n=b.py") == ["--seed", "1", "--json", "--", "a.py --x", "n=b.py"]
    assert split("--seed=1", "a.py", "--seed", "2", "c.py") == ["--seed=1", "--", "a.py --seed 2 c.py"]
    assert split("a.py:f", "b:g", "--start", "now") == ["--start", "now", "--", "a.py:f", "b:g"]
    assert split("-m", "pkg.a", "--r=16") == ["--", "-m pkg.a --r=16"]
    assert split("-m pkg.a --r=16", "a.py") == ["--", "-m pkg.a --r=16", "a.py"]
    assert split("--json", "--", "n=a.py", "--x", "y z", "--", "b.py") == ["--json", "--", "n=a.py --x 'y z'", "b.py"]
    assert split("a.py", "--x", "--", "b.py", "--y") == ["--", "a.py --x", "b.py --y"]
    for words in (("a.py", "b.py", "--json"), ("a.py --x", "--json")):
        with pytest.raises(ValueError, match=r"options come before the targets, .* got '--json' after one"):
            split(*words)


JOBS = """
on_failure = "stop"   # 2

[jobs.a]
run = "loop.py 2 a"
seed = 5

[jobs.b]
run = "loop.py 10000000 b"
start = "step:1"
threads = 1
"""


def test_a_file_of_jobs_the_environment_and_flags_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script(tmp_path, "loop.py", LOOP + "print('first', torch.initial_seed())\ntrain(int(sys.argv[1]))\nsys.exit(3)")
    script(tmp_path, "jobs.toml", JOBS)
    ran = Ran(tmp_path, "jobs.toml")
    assert (ran.code, ran.states()) == (1, ["failed", "cancelled"]), ran.text()
    assert ran.of("a") == ["first 5"]
    monkeypatch.setenv("TORCHSHARE_SEED", "a=6")
    assert Ran(tmp_path, "jobs.toml").of("a") == ["first 6"]
    assert Ran(tmp_path, "--seed", "7", "jobs.toml").of("a") == ["first 7"]


def test_an_unknown_key_of_a_file_is_named_with_its_line(tmp_path: Path):
    for text, message in (
        (JOBS.replace("seed", "sede"), "jobs.toml, line 6: unknown key 'sede'; the keys of a job are after"),
        (JOBS.replace("on_failure", "polcy"), "jobs.toml, line 2: unknown key 'polcy'; the keys outside of jobs are"),
        (JOBS.replace("5", "five five"), "jobs.toml: "),
        ("policy = 'strict'", "jobs.toml: must have a table [jobs.NAME] per job"),
        ("[jobs.a]\nseed = 1", "jobs.toml: [jobs.a] must have run ="),
        ("[jobs.a]\nrun = 'x.py'", "target 'x.py': no such file x.py"),
    ):
        script(tmp_path, "jobs.toml", text)
        done = torchshare_command("run", "jobs.toml", folder=tmp_path)
        assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_exit_status_is_that_of_all_jobs_or_of_the_primary(tmp_path: Path):
    script(tmp_path, "good.py", "print('good')")
    script(tmp_path, "bad.py", "1 / 0")
    assert Ran(tmp_path, "good.py", "bad.py").code == 1
    assert Ran(tmp_path, "--success", "primary", "good.py", "bad.py").code == 0
    assert Ran(tmp_path, "--success", "primary", "--primary", "bad", "good.py", "bad.py").code == 1
    done = torchshare_command("run", "--cache-memory", "maybe", "good.py", folder=tmp_path)
    assert "--cache-memory must be yes or no, got maybe" in done.stderr


def test_a_script_is_profiled_in_whole_batches(tmp_path: Path):
    loop = "loader = torch.utils.data.DataLoader(torch.ones(64, 3), 16)\nfor _ in range(10**6):\n    for x in loader:\n"
    script(tmp_path, "loop.py", LOOP + loop + "        train(1)\n        print('x')")
    quick = ["--window", "0.1", "--rounds", "1", "--threads", "1", "--cache", str(tmp_path / "cache"), "--json"]
    done = torchshare_command("profile", "loop.py --x", *quick, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    assert (profile["job"], profile["batch"], [each["sub_batches"] for each in profile["alone"]]) == ("loop", 16, [1])
    assert "using cached profiles" in torchshare_command("profile", "loop.py --x", *quick, folder=tmp_path).stderr


def test_on_a_terminal_lines_are_printed_above_the_table(tmp_path: Path):
    script(
        tmp_path, "bar.py", "import sys\nfor i in range(200): print(f'\\r{i}', end='', file=sys.stderr)\nprint('end')"
    )
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "torchshare", "run", "bar.py", "bar.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # at its end
            while data := os.read(terminal, 1000):
                shown += data
        os.close(terminal)
        assert process.wait(timeout=300) == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n").splitlines()
    assert {"bar: 0", "bar: 199", "bar: end", "bar-2: 0", "bar-2: 199", "bar-2: end"} <= set(lines)
    assert any(line.split()[:3] == ["bar", "primary", "finished"] for line in lines)


def test_a_run_ends_quietly_when_the_reader_of_its_output_has_gone(tmp_path: Path):
    """As `| head` does. What is printed on stderr goes on, without a traceback."""
    script(tmp_path, "loud.py", LOOP + "while True:\n    train(1)\n    print('trained', flush=True)")
    script(tmp_path, "quiet.py", LOOP + "train(2)")
    for jobs in (["loud.py"], ["loud.py", "loud.py"], ["quiet.py"]):
        process = launch("-m", "torchshare", "run", *jobs, folder=tmp_path)
        if "loud.py" in jobs:
            assert process.stdout.readline().endswith("trained\n")
        process.stdout.close()
        assert process.wait(timeout=300) == 128 + signal.SIGPIPE
        printed = process.stderr.read()
        assert "Traceback" not in printed and "Broken pipe" not in printed and "failed" not in printed
        process.stderr.close()


def test_options_that_have_no_effect_say_so(tmp_path: Path):
    """Once each, with the job and the option."""
    script(tmp_path, "steps.py", LOOP + "train(3)")
    script(tmp_path, "none.py", "import sys\nsys.exit(0)")
    no_step = "did no step, of an optimizer or with job.batches"
    for command, expected in (
        (
            ("--max-slowdown", "0.1", "--start", "step:1", "--grace", "0.1", "none.py"),
            [
                "grace has no effect: policy 'priority' lets no job wait",
                f"job 'none': max_slowdown=0.1 had no effect: the job {no_step}",
                f"job 'steps': start='step:1' had no effect: job 'none' {no_step}",
            ],
        ),
        (("--start", "auto", "none.py"), [f"job 'steps': start='auto' had no effect: job 'none' {no_step}"]),
        (
            ("--start", "steps-2=step:4", "--steps", "steps=3", "--epochs", "steps=1", "steps.py"),
            [
                "job 'steps': epochs=1 had no effect: only job.batches and torchshare.batches count passes",
                "job 'steps': steps=3 had no effect: no job has start='auto'",
                "job 'steps-2': start='step:4' had no effect: job 'steps' did 3 steps",
            ],
        ),
        (("--start", "step:3", "--steps", "steps-2=3", "--max-slowdown", "0.5", "steps.py"), ["steps-2': steps=3"]),
    ):
        ran = Ran(tmp_path, *command, "steps.py")
        told = [line for line in ran.lines if " effect" in line]
        assert ran.code == 0 and len(told) == len(expected), ran.text()
        assert all(text in line for text, line in zip(expected, told, strict=True)), told
    done = torchshare_command("run", "--start", "step:1", "--policy=strict", "steps.py", folder=tmp_path)
    told = [line for line in done.stderr.splitlines() if " effect" in line]
    assert told == [
        f"job 'steps': --{each} has no effect: it is the only job" for each in ("policy=strict", "start=step:1")
    ]


def test_a_run_under_cprofile_ends(tmp_path: Path):
    """A main thread that is watched must not be asked to look for an exception that is not there."""
    script(tmp_path, "loop.py", LOOP + "train(20)")
    process = launch("-m", "cProfile", "-o", "run.prof", "-m", "torchshare", "run", "loop.py", folder=tmp_path)
    try:
        _, printed = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0 and (tmp_path / "run.prof").stat().st_size > 0, printed
