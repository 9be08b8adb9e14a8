"""Processes that scripts start, as from Python 3.14 on by default, in a fork server."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Ran, script

STARTS = """
import multiprocessing, os, sys, time
import helper
def write(name):
    with open(name, "w") as file:
        file.write(f"{helper.OWNER} {os.environ['OWNER']} {os.path.basename(os.getcwd())}")
if __name__ == "__main__":
    os.environ["OWNER"] = helper.OWNER
    os.chdir(helper.OWNER)
    multiprocessing.set_start_method("forkserver")
    for name in ("first", "second"):
        process = multiprocessing.Process(target=write, args=(name,))
        process.start()
        process.join()
        print(process.exitcode, open(name).read())
"""
STARTS_ONE = """
import multiprocessing, os
def write():
    with open("writing", "w") as file:
        file.write(str(os.getppid()))
    os.replace("writing", "server")
if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=write)
    process.start()
    process.join()
"""
WAITS = """
import os, time
def has_ended():
    try:
        with open(f"/proc/{server}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
while not os.path.exists("server"):
    time.sleep(0.01)
server = open("server").read()
until = time.monotonic() + 60
while not has_ended() and time.monotonic() < until:
    time.sleep(0.01)
print(has_ended())
"""


def test_each_script_has_a_fork_server_of_its_own(tmp_path: Path) -> None:
    """With one for all, the processes of a script have the environment and the modules of another."""
    for owner in ("a", "b"):
        script(tmp_path, f"{owner}/train.py", STARTS)
        script(tmp_path, f"{owner}/helper.py", f"OWNER = '{owner}'\n")
    ran = Ran(tmp_path, "a=a/train.py", "b=b/train.py")
    assert ran.code == 0, ran.text()
    assert {owner: ran.of(owner) for owner in ("a", "b")} == {"a": ["0 a a a"] * 2, "b": ["0 b b b"] * 2}


def test_the_fork_server_of_a_script_ends_with_it(tmp_path: Path) -> None:
    """It has in memory what the script has imported, such as torch."""
    ran = Ran(tmp_path, script(tmp_path, "starts.py", STARTS_ONE), script(tmp_path, "waits.py", WAITS))
    assert (ran.code, ran.of("waits")) == (0, ["True"]), ran.text()


RETURNS = """
import concurrent.futures, multiprocessing, sys
class Answer:
    def __init__(self, value):
        self.value = value
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
        answer = executor.submit(Answer, 7).result(timeout=100)
    print(type(answer) is Answer, answer.value)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_return_instances_of_the_scripts_classes(tmp_path: Path, method: str) -> None:
    """In a process that is not forked from the script, their module is `__mp_main__`."""
    ran = Ran(tmp_path, "--output=prefix", f"a={script(tmp_path, 'a.py', RETURNS)} {method}")
    assert (ran.code, ran.of("a")) == (0, ["True 7"]), ran.text()
