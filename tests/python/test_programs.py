"""Programs that jobs start, and their environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import Ran, run_one, script

import torchshare

RESTARTS = """
import os, sys
try:
    {call}
except RuntimeError as error:
    print(error)
sys.exit(3)
"""


@pytest.mark.parametrize(
    "call",
    [
        "os.execv(sys.executable, [sys.executable, '-V'])",
        "os.execl(sys.executable, sys.executable, '-V')",
        "os.execve(sys.executable, [sys.executable, '-V'], os.environ)",
        "os.execvp(os.path.basename(sys.executable), ['python', '-V'])",
    ],
)
def test_a_script_that_would_replace_the_process_fails_and_the_other_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setenv("PATH", f"/no/such/folder:{Path(sys.executable).parent}")
    script(tmp_path, "a.py", RESTARTS.format(call=call))
    script(tmp_path, "b.py", "import time\ntime.sleep(0.5)\nprint('end')")
    ran = Ran(tmp_path, "a.py", "b.py")
    function = "execve" if "execve" in call else "execv"
    assert (ran.code, ran.states(), ran.of("b")) == (1, ["failed", "finished"], ["end"]), ran.text()
    assert ran.of("a") == [
        f"job 'a': os.{function} of '{sys.executable}' would end all jobs, which run in one process; start the program "
        "with subprocess and exit with its status"
    ]


def test_a_function_that_would_replace_the_process_fails() -> None:
    def restarts(_job: torchshare.Job) -> None:
        with pytest.raises(FileNotFoundError):
            os.execv("/no/such/program", ["program"])
        with pytest.raises(RuntimeError, match=r"os\.execv of '/bin/true' would end all jobs"):
            os.execv("/bin/true", ["true"])

    run_one(restarts)


STARTS = """
import os, sys
os.environ["WHO"] = who = sys.argv[1]
os.makedirs(who)
os.chdir(who)
write = "printf '%s ' $WHO >> found; basename $PWD >> found"
assert os.system(write + "; exit 3") == 3 << 8
assert os.system("kill -9 $$") == 9
assert os.system("no-such-command 2>/dev/null") == 127 << 8
assert os.popen(write).close() is None
assert os.spawnv(os.P_WAIT, "/bin/sh", ["sh", "-c", write]) == 0
assert os.spawnlp(os.P_WAIT, "sh", "sh", "-c", write) == 0
for replace in (lambda: os.execv("/bin/sh", ["sh", "-c", write]), lambda: os.execlp("sh", "sh", "-c", write)):
    child = os.fork()
    if child == 0:
        replace()
    assert os.waitpid(child, 0)[1] == 0
child = os.fork()
if child == 0:
    os.execve("/bin/sh", ["sh", "-c", write], {"WHO": f"other {who}"})
os.waitpid(child, 0)
print(open("found").read().splitlines())
"""


def test_every_program_that_a_script_starts_has_its_environment_and_folder(tmp_path: Path) -> None:
    script(tmp_path, "starts.py", STARTS)
    ran = Ran(tmp_path, "a=starts.py a", "b=starts.py b")
    assert ran.code == 0, ran.text()
    for name in "ab":
        assert ran.of(name) == [str([f"{name} {name}"] * 6 + [f"other {name} {name}"])], ran.text()


def test_main_has_the_annotations_that_it_has_in_plain_python(tmp_path: Path) -> None:
    script(tmp_path, "a.py", "import sys\nprint(globals().get('__annotations__', 'none'), sys.version_info >= (3, 14))")
    ran = Ran(tmp_path, "--output=prefix", "a.py")
    assert ran.of("a") in (["{} False"], ["none True"]), ran.text()
