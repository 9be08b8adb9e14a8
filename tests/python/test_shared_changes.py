"""Changes of shared packages that are no assignments to attributes: each is the job's own, or fails the job."""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import script
from test_replacements import beside, installed
from torch import nn
from torch.nn import functional as F

import torchshare
from torchshare import Job

ONES = torch.ones(1, 4)
KEPT: list[object] = []


def zeros(tensor: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
    return nn.init.zeros_(tensor)


def changed_defaults() -> None:
    F.dropout.__defaults__ = (0.9, True, False)


def changed_keyword_defaults() -> None:
    torch.load.__kwdefaults__ = {"weights_only": False, "mmap": None}


def changed_code() -> None:
    nn.Linear.forward.__code__ = (lambda self, input: input).__code__


def deleted_defaults() -> None:
    del F.dropout.__defaults__


FIELDS = [
    (deleted_defaults, "torch.nn.functional.dropout.__defaults__", lambda: F.dropout.__defaults__),
    (changed_defaults, "torch.nn.functional.dropout.__defaults__", lambda: F.dropout.__defaults__),
    (changed_keyword_defaults, "torch.serialization.load.__kwdefaults__", lambda: torch.load.__kwdefaults__),
    (changed_code, "torch.nn.modules.linear.Linear.forward.__code__", lambda: nn.Linear.forward.__code__),
]


@pytest.mark.parametrize(("change", "name", "look"), FIELDS)
def test_a_job_that_changes_a_function_fails_at_once(change: Callable[[], None], name: str, look: Callable[[], Any]):
    def changes() -> str:
        with pytest.raises(RuntimeError) as error:
            change()
        return str(error.value)

    before = look()
    mine, other, after = beside(changes, look)
    assert f"job 'first': {name}, replaced at {__file__}:" in mine
    assert "because all jobs call the function, and job 'second' uses torch, too" in mine
    assert other == after == before


@pytest.mark.parametrize(("change", "_name", "look"), FIELDS)
def test_a_job_alone_may_change_a_function_until_it_ends(
    change: Callable[[], None], _name: str, look: Callable[[], Any]
):
    def changes(_job: Job) -> Any:
        change()
        return look()

    before = look()
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(changes, name="a")
        assert runtime.wait(300)["a"].value != before == look()


def never_started(runtime: torchshare.Runtime) -> None:
    runtime.submit(lambda _job: None, name="idle")
    runtime.close()


def refused(runtime: torchshare.Runtime) -> None:
    with pytest.raises(ValueError, match="start must be"):
        runtime.submit(lambda _job: None, name="idle", start="nonsense")


def cancelled(runtime: torchshare.Runtime) -> None:
    runtime.submit(lambda _job: None, name="idle").cancel()


@pytest.mark.parametrize("end", [never_started, refused, cancelled])
def test_a_job_that_never_ran_is_in_no_ones_way(end: Callable[[torchshare.Runtime], None]):
    with torchshare.Runtime("cpu") as other, torchshare.Runtime("cpu") as runtime:
        end(other)
        changes = runtime.submit(lambda _job: changed_defaults(), name="changes", priority="primary")
        runtime.wait()
    assert changes.state == "finished"


def test_a_job_that_is_refused_undoes_no_change_of_a_job_with_its_name():
    with torchshare.Runtime("cpu", shared_patches=True) as runtime:

        def changes(_job: Job) -> Any:
            changed_defaults()
            with pytest.raises(ValueError, match="unique"):
                runtime.submit(lambda _job: None, name="changes")
            return F.dropout.__defaults__

        job = runtime.submit(changes, name="changes", priority="primary")
        runtime.wait()
    assert job.result.value == (0.9, True, False)


def test_functions_of_the_program_and_copies_of_others_may_be_changed():
    def mine(x: int = 1) -> int:
        return x

    def change() -> tuple[int, int, int]:
        mine.__defaults__ = (2,)
        relu = types.FunctionType(F.relu.__code__, F.relu.__globals__)
        relu.__defaults__ = (True,)
        return mine(), int(relu(-ONES).sum()), relu.__globals__["torch"] is torch  # type: ignore[return-value]

    assert beside(change, lambda: mine())[0] == (2, 0, True)


def test_a_job_that_reloads_a_shared_module_fails_at_once():
    def reloads() -> str:
        with pytest.raises(RuntimeError) as error:
            importlib.reload(nn.init)
        return str(error.value)

    before = nn.init.kaiming_uniform_
    mine, other, after = beside(reloads, lambda: nn.init.kaiming_uniform_)
    assert f"job 'first': torch.nn.init (importlib.reload), replaced at {__file__}:" in mine
    assert other is after is before


def test_a_job_alone_may_reload_a_module_until_it_ends():
    before = nn.init.kaiming_uniform_
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda job: importlib.reload(nn.init).kaiming_uniform_ is before, name="a")
        assert runtime.wait(300)["a"].value is False
    assert nn.init.kaiming_uniform_ is before


def kernel() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    library.impl("mul.Tensor", lambda a, b: a - b, "CPU")
    return library


def test_a_job_that_registers_a_kernel_for_an_op_of_torch_fails_at_once():
    def registers() -> str:
        with pytest.raises(RuntimeError) as error:
            kernel()
        return str(error.value)

    mine, other, _ = beside(registers, lambda: float((ONES * ONES).sum()))
    assert f"job 'first': the kernel of aten::mul.Tensor for CPU, replaced at {__file__}:" in mine
    assert other == 4.0


def test_a_job_alone_may_register_kernels_until_it_ends():
    kept = []

    def registers(_job: Job) -> float:
        kept.append(kernel())
        return float((ONES * ONES).sum())

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(registers, name="a")
        assert runtime.wait(300)["a"].value == 0.0
    assert float((ONES * ONES).sum()) == 4.0


def test_an_op_that_a_job_loads_from_cpp_has_its_kernels():
    def registers() -> float:
        loaded = torch._C._dispatch_library("DEF", "cpp_of_job", "")  # what `torch.ops.load_library` runs
        loaded.def_("twice(Tensor x) -> Tensor")
        library = torch.library.Library("cpp_of_job", "IMPL")
        KEPT.extend([loaded, library])
        library.impl("twice", lambda x: x + x, "CPU")
        return float(torch.ops.cpp_of_job.twice(ONES).sum())

    assert beside(registers, lambda: None)[0] == 8.0


def test_an_op_of_the_jobs_own_has_its_kernels():
    def registers() -> float:
        library = torch.library.Library("own_of_job", "DEF")
        KEPT.append(library)  # or torch keeps the name of an op that is gone, on which torch.compile fails later
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        return float(torch.ops.own_of_job.twice(ONES).sum())

    assert beside(registers, lambda: None)[0] == 8.0


def test_whether_distributions_check_their_values_is_each_jobs():
    def unchecked() -> bool:
        torch.distributions.Distribution.set_default_validate_args(False)
        torch.distributions.Normal(0.0, -1.0)
        return torch.distributions.Distribution._validate_args

    def checked() -> bool:
        with pytest.raises(ValueError, match="scale"):
            torch.distributions.Normal(0.0, -1.0)
        return torch.distributions.Distribution._validate_args

    assert beside(unchecked, checked) == (False, True, True)


WAIT = "import os, time\ndef wait(name):\n    while not os.path.exists(name): time.sleep(0.01)\n"
REPLACES = """
import importlib.util, sys, types, unittest.mock
import images, torch
original = images
fake = types.ModuleType("images")
fake.LIMIT = "mine"
sys.modules["images"] = sys.modules["torch.nn.init"] = fake
sys.modules.update(renamed=torch.nn.functional)
spec = importlib.util.spec_from_file_location("config", "configs/a.py")
sys.modules["config"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["config"])
def look():
    import images, config, renamed
    from torch.nn.init import LIMIT
    return images.LIMIT, LIMIT, config.VALUE, renamed.relu is torch.nn.functional.relu
print(look())
with unittest.mock.patch.dict(sys.modules, {"optional": None, "images": original}):
    import images
    print(images.LIMIT)
    try:
        import optional
    except ImportError:
        print("not optional")
import optional
print(look(), optional.LIMIT)
open("replaced", "w").close()
wait("done")
"""
LOOKS = """
wait("replaced")
import sys
import images, optional
from torch.nn.init import xavier_uniform_
print(images.LIMIT, optional.LIMIT, [name for name in ("config", "renamed") if name in sys.modules])
try:
    import config
except ImportError:
    print("no config")
open("done", "w").close()
"""


def test_what_a_script_puts_into_the_table_of_modules_is_its_own(tmp_path: Path) -> None:
    """A stand-in for a package, a package that it does not want, a module of its own, and a package by another name.
    They stood in the other script's table, too. At the end of the script, the package keeps its values."""
    script(tmp_path, "site/images.py", "LIMIT = 1\n")
    script(tmp_path, "site/optional.py", "LIMIT = 2\n")
    script(tmp_path, "configs/a.py", "VALUE = 3\n")
    script(tmp_path, "a.py", WAIT + REPLACES)
    script(tmp_path, "b.py", WAIT + LOOKS)
    script(tmp_path, "c.py", "import torch\nprint(type(torch.nn.functional.GRID_SAMPLE_PADDING_MODES))\n")
    code, _, text = installed(tmp_path, "--start", "c=after:a", "a.py", "b.py", "c.py")
    lines = {line for line in text.splitlines() if ": " in line}
    assert code == 0, text
    assert {"a: ('mine', 'mine', 3, True)", "a: 1", "a: not optional", "a: ('mine', 'mine', 3, True) 2"} < lines, text
    assert {"b: 1 2 []", "b: no config"} < lines, text
    assert "c: <class 'dict'>" in lines, text


def test_a_script_that_takes_a_shared_module_out_of_the_table_fails_at_once(tmp_path: Path) -> None:
    """The next import would make a second copy of it, for all jobs. One that is alone may."""
    script(tmp_path, "site/images.py", "LIMIT = 1\n")
    deletes = "import sys, images\n{}del sys.modules['images']\nimport images as second\nassert second is not images\n"
    waits = "import atexit\natexit.register(open, 'tried', 'w')\nwait('imported')\n"
    script(tmp_path, "a.py", WAIT + deletes.format(waits))
    script(tmp_path, "b.py", WAIT + "import images\nopen('imported', 'w').close()\nwait('tried')\n")
    script(tmp_path, "alone.py", deletes.format(""))
    assert installed(tmp_path, "alone.py")[0] == 0
    code, out, text = installed(tmp_path, "a.py", "b.py")
    states = {job["name"]: job["state"] for job in json.loads(out)["jobs"]}
    assert code == 1 and states == {"a": "failed", "b": "finished"}, text
    assert "job 'a': sys.modules['images'], replaced at" in text and "because jobs share the module" in text
