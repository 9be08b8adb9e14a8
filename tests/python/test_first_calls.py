"""What torch does at the first call of a process, in two scripts at once."""

from __future__ import annotations

from pathlib import Path

from conftest import completed, script

# An import of a script is Python code, so another thread may run during it: here it always does.
RUN = """
import sys, time
from torchshare.__main__ import main
from torchshare.isolation import replacements

imported = replacements.imported
def slowly(script, package):
    time.sleep(1.0)
    imported(script, package)

replacements.imported = slowly
sys.exit(main(["run", "--device", "cpu", "--policy", "best_fit", "a.py", "b.py"]))
"""


def test_two_scripts_call_tensor_first(tmp_path: Path) -> None:
    """torch imports a module of its own in the initializer of a static variable of C++. The second script waited for
    the first one's initializer with the interpreter lock held, which the first one needs to go on."""
    for name in ("a.py", "b.py"):
        script(tmp_path, name, "import torch\ntorch.tensor(0.0)\n")
    ran = completed("-c", RUN, folder=tmp_path, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
