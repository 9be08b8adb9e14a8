"""What a job replaces in torch and other shared packages is its own, by whatever way it replaces it."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import functools
import json
import math
import random
import sys
import threading
import types
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LOOP, Ran, completed, python, script
from test_shared_torch import Meeting, both
from torch import nn
from torch.nn import functional as F

import torchshare
from torchshare import Job
from torchshare.isolation import replacements, routing
from torchshare.isolation.table import Table

ONES = torch.ones(1, 4)


def beside(replace: Callable[[], Any], look: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """What a job returns that replaces something; what another then sees; and what the program sees afterwards."""
    meeting = Meeting()

    def replaces(_job: Job) -> Any:
        mine = replace()
        meeting.stay()
        return mine

    mine, other = both(replaces, lambda _job: meeting.visit(look))
    return mine, other, look()


def output() -> float:
    torch.manual_seed(0)
    return float(nn.Linear(4, 4).requires_grad_(False)(ONES).abs().sum())


def replaced_forward() -> float:
    old = nn.Linear.forward
    nn.Linear.forward = lambda self, x: old(self, x) * 0
    return output()


def replaced_init() -> float:
    nn.init.kaiming_uniform_ = lambda tensor, *args, **kwargs: nn.init.zeros_(tensor)  # type: ignore[assignment]
    nn.init.uniform_ = lambda tensor, *args, **kwargs: nn.init.zeros_(tensor)
    return output()


def mocked() -> float:
    with unittest.mock.patch.object(nn.Linear, "forward", lambda self, x: x * 0):
        return output()


@pytest.mark.parametrize("replace", [replaced_forward, replaced_init, mocked])
def test_the_other_job_computes_as_before(replace: Callable[[], float]):
    mine, other, after = beside(replace, output)
    assert mine == 0.0
    assert other == after == output() != 0.0


def test_a_module_has_its_class_and_its_value_again_when_the_job_has_ended():
    before = nn.init.kaiming_uniform_, nn.Linear.forward, type(nn.init), dict(vars(nn.Linear))
    beside(lambda: (replaced_init(), replaced_forward()), output)
    assert (nn.init.kaiming_uniform_, nn.Linear.forward, type(nn.init), dict(vars(nn.Linear))) == before
    assert vars(nn.init)["kaiming_uniform_"] is before[0] and type(nn.init) is types.ModuleType


def replaced_class() -> Any:
    class Mine(nn.LayerNorm):
        pass

    torch.nn.LayerNorm = Mine  # type: ignore[misc]
    return isinstance(nn.LayerNorm(3), Mine)


def test_a_class():
    """The other makes, checks and derives from torch's."""
    original = nn.LayerNorm

    def look() -> Any:
        class Derived(nn.LayerNorm):
            pass

        return Derived.__mro__[1] is original, isinstance(original(3), nn.LayerNorm), type(nn.LayerNorm(3)) is original

    assert beside(replaced_class, look) == (True, (True,) * 3, (True,) * 3)


def test_an_inherited_method():
    """torch.Tensor has `cuda` from its base, which is written in C."""

    def replace() -> Any:
        torch.Tensor.cuda = lambda self, *args: self  # type: ignore[method-assign]
        return torch.ones(1).cuda().device.type

    def look() -> Any:
        return torch.Tensor.cuda is torch._C.TensorBase.cuda, "cuda" in dir(torch.Tensor)

    assert beside(replace, look) == ("cpu", (True, True), (True, True))
    assert "cuda" not in vars(torch.Tensor)


def test_static_methods_class_methods_properties_and_values_of_classes():
    dataset = torch.utils.data.Subset
    dataset.of_class = "common"
    dataset.of_function = staticmethod(lambda: "common")
    dataset.of_property = property(lambda self: "common")

    def look() -> list[str]:
        one = dataset([0], [0])
        return [one.of_class, dataset.of_class, one.of_function(), dataset.of_function(), one.of_property]

    def replace() -> list[str]:
        dataset.of_class = "mine"
        dataset.of_function = classmethod(lambda cls: "mine")
        dataset.of_property = "mine"
        one = dataset([0], [0])
        found = look()
        one.of_property = "the instance's"
        return [*found, one.of_property]

    try:
        mine, other, after = beside(replace, look)
    finally:
        del dataset.of_class, dataset.of_function, dataset.of_property
    assert (mine, other, after) == (["mine"] * 5 + ["the instance's"], ["common"] * 5, ["common"] * 5)


def test_a_constructor_and_a_call():
    """Python finds these on the class, not on the instance."""

    def replace() -> Any:
        init, call = nn.ReLU.__init__, nn.Module.__call__

        def __init__(self: Any, *args: Any) -> None:
            init(self, *args)
            self.mine = True

        nn.ReLU.__init__ = __init__  # type: ignore[method-assign]
        nn.Module.__call__ = lambda self, x: call(self, x) + 1
        layer = nn.ReLU()
        return layer.mine, float(layer(torch.zeros(())))

    def look() -> Any:
        layer = nn.ReLU()
        return hasattr(layer, "mine"), float(layer(torch.zeros(())))

    assert beside(replace, look) == ((True, 1.0), (False, 0.0), (False, 0.0))


def test_two_jobs_replace_the_same_one_each_calling_what_it_found():
    """As `accelerate.init_empty_weights` does, in a context. Each finds torch's, not the other's."""
    original = nn.Module.register_parameter
    meeting = Meeting()

    def counted(count: int) -> Any:
        found = nn.Module.register_parameter

        def register(self: Any, name: str, parameter: Any) -> None:
            found(self, name, parameter)
            self.count = getattr(self, "count", 0) + count

        nn.Module.register_parameter = register  # type: ignore[method-assign]
        return found is original

    def first(_job: Job) -> Any:
        found = counted(1), nn.Linear(2, 2).count
        meeting.stay()
        nn.Module.register_parameter = original  # type: ignore[method-assign]
        return *found, hasattr(nn.Linear(2, 2), "count")

    def second(_job: Job) -> Any:
        return meeting.visit(lambda: (counted(10), nn.Linear(2, 2).count))

    assert both(first, second) == [(True, 2, False), (True, 20)]
    assert nn.Module.register_parameter is original


@pytest.mark.parametrize("where", [F, nn.ReLU])
def test_two_jobs_begin_to_replace_the_same_one_at_once(where: Any, monkeypatch: pytest.MonkeyPatch):
    """What the second found there was the first one's dispatching function, which then called itself for ever."""
    name = "relu" if where is F else "forward"
    plain = vars(where)[name]
    asked, in_place, looked, back = (threading.Event() for _ in range(4))
    new = replacements._new

    def slow(owner: Any, *words: Any) -> Any:
        if threading.current_thread() is not second[0]:
            return new(owner, *words)
        asked.set()
        assert in_place.wait(60)
        attribute = new(owner, *words)
        looked.set()
        assert back.wait(60)
        return attribute

    def a(_job: Job) -> None:
        assert asked.wait(60)
        setattr(where, name, lambda *_: ONES)
        in_place.set()
        assert looked.wait(60)
        setattr(where, name, plain)
        back.set()

    second: list[threading.Thread] = []

    def b(_job: Job) -> float:
        second.append(threading.current_thread())
        setattr(where, name, lambda *_, **__: 7 * ONES)
        mine = nn.ReLU()(-ONES).sum().item()
        setattr(where, name, plain)
        return mine + nn.ReLU()(-ONES).sum().item()

    with torchshare.Runtime(device="cpu") as runtime:
        monkeypatch.setattr(replacements, "_new", slow)
        runtime.submit(b, name="b", start="now")
        runtime.submit(a, name="a", start="now")
        assert runtime.wait(120)["b"].value == 28
        assert vars(where)[name] is plain
    assert nn.ReLU()(-ONES).sum().item() == 0


def test_code_of_the_same_module_calls_the_jobs_function():
    """F.cross_entropy finds functions of its module as global variables; `from ... import` finds the job's."""

    def replace() -> Any:
        F._verify_batch_size = lambda size: (_ for _ in ()).throw(RuntimeError("mine"))  # type: ignore[assignment]
        from torch.nn.functional import _verify_batch_size as imported

        with pytest.raises(RuntimeError, match="mine"):
            F.batch_norm(torch.ones(2, 2), None, None, training=True)
        return imported is F._verify_batch_size

    def look() -> Any:
        return F.batch_norm(torch.ones(2, 2), None, None, training=True).tolist()

    assert beside(replace, look) == (True, look(), look())


def test_builtin_functions():
    def replace() -> Any:
        found = builtins.sum
        builtins.sum = lambda *args: found(*args) + 1
        torch.relu, math.sqrt = (lambda x: "mine"), (lambda x: "mine")  # type: ignore[assignment]
        return sum([1]), torch.relu(ONES), math.sqrt(4), torch.load.__name__

    def look() -> Any:
        return sum([1]), float(torch.relu(-ONES).sum()), math.sqrt(4), torch.load.__name__

    assert beside(replace, look) == ((2, "mine", "mine", "load"), (1, 0.0, 2.0, "load"), look())


def test_a_partial_of_what_was_there():
    def replace() -> Any:
        torch.zeros = functools.partial(torch.zeros, dtype=torch.int8)
        return str(torch.zeros(1).dtype)

    def look() -> Any:
        return str(torch.zeros(1).dtype)

    assert beside(replace, look) == ("torch.int8", "torch.float32", "torch.float32")


def test_a_deleted_attribute_is_missing_for_the_job_only():
    def replace() -> Any:
        del torch.nn.init.eye_
        return hasattr(nn.init, "eye_")

    assert beside(replace, lambda: hasattr(nn.init, "eye_")) == (False, True, True)


def test_processes_that_the_job_forks_have_its_replacements():
    class Data(torch.utils.data.Dataset[float]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, _index: int) -> float:
            return float(F.relu(torch.ones(())))

    def replace() -> Any:
        F.relu = lambda x: x * 7  # type: ignore[assignment]
        loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="fork")
        return [float(each) for each in loader]

    assert beside(replace, lambda: float(F.relu(torch.ones(()))))[:2] == ([7.0, 7.0], 1.0)


def test_compiled_code_of_both():
    """Dynamo traces each job's function into its graph."""

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return F.relu(x)

    def run(net: type[nn.Module]) -> tuple[float, int]:
        graphs = []

        def backend(module: Any, _inputs: Any) -> Any:
            graphs.append(module)
            return module.forward

        compiled = torch.compile(net(), backend=backend, fullgraph=True)
        return float(compiled(torch.ones(()))), len(graphs)

    def replace() -> Any:
        F.relu = lambda x: x * 7  # type: ignore[assignment]
        return run(type("Mine", (nn.Module,), {"forward": lambda self, x: F.relu(x)}))

    assert beside(replace, lambda: run(Net))[:2] == ((7.0, 1), (1.0, 1))


def test_compiled_code_that_calls_the_function_of_its_own_module():
    def run(double: Callable[[Any], Any]) -> float:
        return float(torch.compile(double, backend="eager", fullgraph=True)(torch.ones(1, 2, 2, 2)).sum())

    def replace() -> Any:
        F._list_with_default = lambda size, default: [2, 2]  # type: ignore[assignment]
        return run(lambda x: F.adaptive_avg_pool2d(x, 1))

    assert beside(replace, lambda: run(lambda x: F.adaptive_avg_pool2d(x, 1)))[:2] == (8.0, 2.0)


# What is new.


def test_a_new_attribute_is_the_jobs_and_ends_with_it():
    """Libraries mark so what they have patched, and patch it only once."""

    meeting = Meeting()

    def patch(_job: Job) -> Any:
        patched = [hasattr(each, "_is_patched") for each in (nn.Linear, nn.init, torch.Tensor)]
        if not any(patched):
            nn.Module._is_patched = nn.init._is_patched = torch.Tensor._is_patched = True  # type: ignore
            torch.Tensor.times = lambda self, factor: self * factor  # type: ignore[attr-defined]
        layer = nn.Linear(1, 1)
        layer.mine = torch.Tensor._is_patched  # type: ignore[attr-defined]
        found = patched, layer._is_patched, nn.init._is_patched, float(torch.ones(()).times(3))  # type: ignore
        meeting.stay()
        return found

    assert both(patch, lambda job: meeting.visit(lambda: patch(job))) == [([False] * 3, True, True, 3.0)] * 2
    assert not any("_is_patched" in vars(each) for each in (nn.Module, nn.init, torch.Tensor))
    assert type(nn.init) is types.ModuleType


def test_a_new_attribute_of_a_class_leaves_those_of_its_bases_and_instances():
    def replace() -> Any:
        nn.ReLU.training = 7  # type: ignore[assignment,misc]
        nn.ReLU.__call__ = lambda self, x: x * 7  # type: ignore[method-assign]
        nn.ReLU.__note__ = "mine"  # type: ignore[attr-defined]
        return nn.ReLU.training, nn.ReLU().training, nn.ReLU()(2), nn.ReLU.__note__  # type: ignore[attr-defined]

    def look() -> Any:
        layer = nn.ReLU()
        layer.added = 1  # type: ignore[assignment]
        return [hasattr(nn.ReLU, name) for name in ("training", "__note__")], layer.training, float(layer(ONES).sum())

    before = dict(vars(nn.ReLU))
    expected = look()
    assert beside(replace, look) == ((7, True, 14, "mine"), expected, expected)
    assert dict(vars(nn.ReLU)) == before


def make_falsy() -> None:
    nn.Module.__bool__ = lambda self: False  # type: ignore[attr-defined]


def test_a_new_special_method_fails_the_job_at_once():
    def replace() -> str:
        with pytest.raises(RuntimeError) as caught:
            make_falsy()
        return str(caught.value)

    message, other, after = beside(replace, lambda: bool(nn.ReLU()))
    line = make_falsy.__code__.co_firstlineno + 1
    assert message == (
        f"job 'first': torch.nn.modules.module.Module.__bool__, replaced at {__file__}:{line}, cannot be the job's "
        "own, because Python reads it, and job 'second' uses torch, too; run them in two processes, or allow it with "
        "shared_patches"
    )
    assert other and after


def test_a_job_alone_may_add_a_special_method_until_it_ends():
    def replace(_job: Job) -> Any:
        make_falsy()
        nn.Module.__bool__ = functools.partial(lambda self: False)  # type: ignore[attr-defined]
        return "__bool__" in vars(nn.Module)

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(replace, name="alone")
        assert runtime.wait(300)["alone"].value
    assert "__bool__" not in vars(nn.Module) and nn.ReLU()


def test_a_new_variable_that_the_modules_code_reads_fails_the_job_at_once():
    """In place of the builtin function, which it reads without one."""

    def replace() -> None:
        with pytest.raises(RuntimeError, match="cannot be the job's own, because torch's code reads it"):
            torch.nn.init.isinstance = lambda *args: False  # type: ignore[attr-defined]

    assert beside(replace, output)[1] == output()


# What cannot be each job's own.


def replaced_value() -> Any:
    torch.nn.modules.transformer.LayerNorm = nn.Identity  # type: ignore[assignment,misc]


def look_at_value() -> str:
    return str(type(nn.TransformerEncoderLayer(4, 1, 4).norm1).__name__)


def test_a_class_that_its_module_reads_fails_the_job_at_once():
    before = torch.nn.modules.transformer.LayerNorm

    def replace() -> str:
        with pytest.raises(RuntimeError) as caught:
            replaced_value()
        return str(caught.value)

    message, other, _ = beside(replace, look_at_value)
    assert other == "LayerNorm" and torch.nn.modules.transformer.LayerNorm is before
    line = replaced_value.__code__.co_firstlineno + 1
    assert message == (
        f"job 'first': torch.nn.modules.transformer.LayerNorm, replaced at {__file__}:{line}, cannot be the job's own, "
        "because torch's code reads it, and job 'second' uses torch, too; run them in two processes, or allow it with "
        "shared_patches"
    )


def test_shared_patches_allows_it_until_the_job_ends(caplog: pytest.LogCaptureFixture):
    meeting = Meeting()

    def replaces(_job: Job) -> None:
        replaced_value()
        meeting.stay()

    with torchshare.Runtime(device="cpu", shared_patches=True) as runtime:
        runtime.submit(replaces, name="first")
        runtime.submit(lambda _job: meeting.visit(look_at_value), name="second")
        assert runtime.wait(300)["second"].value == "Identity"
    assert look_at_value() == "LayerNorm"
    assert "job 'first' has replaced torch.nn.modules.transformer.LayerNorm" in caplog.text


def test_a_job_alone_may_replace_anything():
    def replaces(_job: Job) -> str:
        replaced_value()
        return look_at_value()

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(replaces, name="alone")
        assert runtime.wait(300)["alone"].value == "Identity"
    assert look_at_value() == "LayerNorm"


def test_a_job_that_is_submitted_later_is_refused():
    meeting = Meeting()

    def replaces(_job: Job) -> None:
        replaced_value()
        meeting.stay()

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.start()
        runtime.submit(replaces, name="first")
        with pytest.raises(RuntimeError, match=r"job 'late': job 'first' has replaced .*LayerNorm"):
            meeting.visit(lambda: runtime.submit(lambda _job: look_at_value(), name="late"))
        runtime.wait(300)
        runtime.submit(lambda _job: look_at_value(), name="late")
        assert runtime.wait(300)["late"].value == "LayerNorm"


# Not the job's business.


def test_the_programs_own_modules_and_classes_are_its_jobs_together():
    class Counter:
        value = 0

    def count(_job: Job) -> None:
        Counter.value += 1
        sys.modules[__name__].seen = True  # type: ignore[attr-defined]

    both(count, count)
    assert Counter.value == 2 and seen


seen = False


def test_what_libraries_do_to_themselves_and_to_classes_that_they_make():
    """torch's own code replaces attributes of torch while it traces; the standard library adds some to new classes."""

    def replace() -> Any:
        traced = torch.fx.symbolic_trace(nn.Linear(4, 4))
        enum = types.new_class("E", (__import__("enum").Enum,), {}, lambda body: body.__setitem__("a", 1))
        made = dataclasses.make_dataclass("Made", ["x"])(3)
        return float(traced(ONES).numel()), enum["a"].value, made.x, copy.copy(nn.Sequential()).training

    before = dict(vars(nn.Sequential))
    assert beside(replace, output)[0] == (4.0, 1, 3, True)
    assert dict(vars(nn.Sequential)) == before


def test_a_metaclass_with_a_setattr_of_its_own_and_classes_in_c_behave_as_without_jobs():
    class Meta(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            super().__setattr__(name, value + 1)

    class Own(metaclass=Meta):
        value = 0

    def replace() -> Any:
        Own.value = 1
        with pytest.raises(TypeError, match="immutable type"):
            int.bit_length = None  # type: ignore[method-assign,assignment]
        with pytest.raises(AttributeError):
            del Own.missing  # type: ignore[attr-defined]
        return Own.value

    assert beside(replace, lambda: 0)[0] == 2


def test_the_watch_ends_with_the_last_runtime():
    """And finds classes that were made meanwhile."""
    made: list[Any] = []

    def make(_job: Job) -> None:
        made.append(type("Meta", (type,), {}))

    both(make, make)
    changed = made[0]("Made", (), {"value": 0})
    changed.value = 1
    assert changed.value == 1 and type.__setattr__(changed, "value", 2) is None


# Isolation is installed as a whole.


def test_patches_that_cannot_be_installed_leave_nothing_and_the_next_runtime_installs_them(
    monkeypatch: pytest.MonkeyPatch,
):
    before = random.random, torch.random.default_generator, nn.utils.clip_grad_norm_.__code__

    def fails(_original: Any) -> None:
        raise OSError("no passwd entry")

    with monkeypatch.context() as patch:
        last = Table()
        last.value("torch.nn", "Linear", why="Fails.")(fails)
        patch.setattr(routing, "TABLES", [*routing.TABLES, last])
        with pytest.raises(OSError, match="no passwd entry"):
            torchshare.Runtime(device="cpu")
    assert (random.random, torch.random.default_generator, nn.utils.clip_grad_norm_.__code__) == before
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda _job: torch.initial_seed(), name="seeded", seed=7)
        assert runtime.wait(300)["seeded"].value == 7


# Scripts.


def test_scripts_with_the_habits_of_loaders_write_what_plain_python_writes(tmp_path: Path):
    """One of them skips initialisation, as GPTQ's loaders do, and puts layers on `meta`, as accelerate does."""
    script(
        tmp_path,
        "patches.py",
        """
import builtins, functools, threading, time, torch
from torch import nn
torch.nn.init.kaiming_uniform_ = torch.nn.init.uniform_ = lambda *args, **kwargs: None
torch.load = functools.partial(torch.load, weights_only=False)
old, forward = nn.Module.register_parameter, nn.Linear.forward
def register(self, name, parameter):
    old(self, name, parameter)
    self._parameters[name] = nn.Parameter(self._parameters[name].to("meta"))
nn.Module.register_parameter = register
assert nn.Linear(4, 4).weight.is_meta
nn.Linear.forward = lambda self, x: forward(self, x) * 2
found = []
thread = threading.Thread(target=lambda: found.append(nn.Linear(4, 4).weight.is_meta))
thread.start(), thread.join()
assert found == [True]
open("replaced", "w").close()
deadline = time.monotonic() + 300
while not __import__("os").path.exists("done") and time.monotonic() < deadline:
    time.sleep(0.01)
""",
    )
    script(
        tmp_path,
        "trains.py",
        """
import os, sys, time, torch
deadline = time.monotonic() + 300
while not os.path.exists("replaced") and time.monotonic() < deadline:
    time.sleep(0.01)
"""
        + LOOP
        + """
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
train(5, model, torch.optim.SGD(model.parameters(), lr=0.1))
torch.save(model.state_dict(), sys.argv[1])
open("done", "w").close()
""",
    )
    (tmp_path / "replaced").touch()
    done = python(
        f"import os, runpy, sys; os.chdir({str(tmp_path)!r}); sys.argv = ['trains.py', 'weights.pt']; "
        "import torch; torch.set_num_threads(1); runpy.run_path('trains.py', run_name='__main__')"
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "replaced").unlink()
    (tmp_path / "done").unlink()
    plain = (tmp_path / "weights.pt").read_bytes()
    ran = Ran(tmp_path, "patches.py", "trains.py weights.pt")
    assert ran.code == 0, ran.text()
    assert (tmp_path / "weights.pt").read_bytes() == plain


INSTALLED = """
import os, sys
sys.path.append({folder!r})  # as an installed package
from torchshare.__main__ import main
sys.exit(main(["run", "--json", *sys.argv[1:]]))
"""


def installed(folder: Path, *scripts: str) -> tuple[int, str, str]:
    """Runs scripts beside an installed package of the folder "site"."""
    done = completed("-c", INSTALLED.format(folder=str(folder / "site")), *scripts, folder=folder)
    return done.returncode, done.stdout, done.stderr


def test_what_a_package_replaces_when_it_is_imported_is_so_in_each_script_that_imports_it(tmp_path: Path):
    """Only the first import of a process runs its code."""
    script(tmp_path, "site/patching.py", "import torch.nn.functional as F\nF.relu = lambda x: x * 5\n")
    script(tmp_path, "site/indirect.py", "import patching\n")
    look = "import torch\nprint('relu', float(torch.nn.functional.relu(torch.ones(()))))\n"
    wait = "import os, time\nwhile not os.path.exists('imported'): time.sleep(0.01)\n"
    script(tmp_path, "a.py", "import patching\nopen('imported', 'w').close()\n" + look)
    script(tmp_path, "b.py", wait + "import indirect\n" + look)
    script(tmp_path, "c.py", wait + look)
    code, _, text = installed(tmp_path, "a.py", "b.py", "c.py")
    lines = [line for line in text.splitlines() if "relu" in line]
    assert code == 0, text
    assert sorted(lines) == ["a: relu 5.0", "b: relu 5.0", "c: relu 1.0"]


@pytest.mark.parametrize("scripts", [("a.py", "b.py"), ("b.py", "a.py")])
def test_a_value_of_a_package_that_only_one_script_uses_may_be_replaced(tmp_path: Path, scripts: tuple[str, str]):
    """Whichever's `__main__` is the process's."""
    script(tmp_path, "site/images.py", "LIMIT = 1\ndef limit(): return LIMIT\n")
    script(tmp_path, "a.py", LOOP + "import images\nimages.LIMIT = None\ntrain(2)\nprint('limit', images.limit())\n")
    script(tmp_path, "b.py", LOOP + "train(2)\n")
    code, _, text = installed(tmp_path, *scripts)
    assert code == 0 and "a: limit None" in text and "images" not in text.replace("import images", "")


def test_a_value_of_a_package_that_both_scripts_use_fails_the_one_that_replaces_it(tmp_path: Path):
    script(tmp_path, "site/images.py", "LIMIT = 1\ndef limit(): return LIMIT\n")
    wait = "import os, time\nwhile not os.path.exists('{}'): time.sleep(0.01)\n"
    tries = "import images, atexit; atexit.register(open, 'tried', 'w')\nimages.LIMIT = None\n"
    script(tmp_path, "a.py", wait.format("imported") + tries)
    script(
        tmp_path,
        "b.py",
        LOOP
        + "import images\nopen('imported', 'w').close()\ntrain(2)\n"
        + wait.format("tried")
        + "print('limit', images.limit())",
    )
    code, out, text = installed(tmp_path, "a.py", "b.py")
    states = {job["name"]: job["state"] for job in json.loads(out)["jobs"]}
    assert code == 1 and states == {"a": "failed", "b": "finished"}
    assert "a.py:4, cannot be the job's own, because images's code reads it, and job 'b' uses images, too" in text
    assert "b: limit 1" in text
    for name in ("imported", "tried"):
        (tmp_path / name).unlink()
    code, _, text = installed(tmp_path, "--shared-patches", "a.py", "b.py")
    assert code == 0 and "job 'a' has replaced images.LIMIT" in text


def test_a_script_that_imports_the_package_later_fails_there(tmp_path: Path):
    """It never steps an optimizer. Packages that change the standard library while they are imported are no reason."""
    script(tmp_path, "site/images.py", "LIMIT = 1\ndef limit(): return LIMIT\n")
    script(tmp_path, "site/indirect.py", "from images import limit\n")
    script(tmp_path, "site/regular.py", "import re\nre._MAXCACHE = re._MAXCACHE\nre._MAXCACHE += 1\n")
    wait = "import os, re, time\ndef wait(name):\n    while not os.path.exists(name): time.sleep(0.01)\n"
    replaces = "import regular, torch, images\nimages.LIMIT = None\nopen('replaced', 'w').close()\nwait('done')\n"
    late = "wait('replaced')\ntry:\n    import indirect\n    print('limit', indirect.limit())\n"
    script(tmp_path, "a.py", wait + replaces)
    script(tmp_path, "b.py", wait + late + "finally:\n    open('done', 'w').close()\n")
    code, out, text = installed(tmp_path, "a.py", "b.py")
    states = {job["name"]: job["state"] for job in json.loads(out)["jobs"]}
    assert code == 1 and states == {"a": "finished", "b": "failed"}, text
    assert f"job 'b': job 'a' has replaced images.LIMIT ({tmp_path}/a.py:5) for all jobs" in text
    assert "limit None" not in text and "Warning" not in text and "_MAXCACHE" not in text


LAZY = """
import torch
from torch import nn
class Block(nn.LayerNorm):
    pass
def norm(kind=torch.nn.LayerNorm):
    return kind.__name__
"""


@pytest.mark.parametrize("option", ["", "--shared-patches"])
def test_a_package_that_is_imported_first_does_not_keep_what_a_script_has_replaced(tmp_path: Path, option: str) -> None:
    """Its base classes and default arguments were the one script's for both."""
    script(tmp_path, "site/lazy.py", LAZY)
    script(tmp_path, "site/unconcerned.py", "import torch\nrelu = torch.nn.functional.relu\n")
    replaces = (
        "import torch\nclass Mine(torch.nn.LayerNorm):\n    pass\ntorch.nn.LayerNorm = Mine\n"
        "import unconcerned\nassert torch.nn.LayerNorm is Mine\n"
        "try:\n    import lazy\n    print('norm', lazy.norm())\nfinally:\n    open('imported', 'w').close()\n"
    )
    wait = "import os, time\nwhile not os.path.exists('imported'): time.sleep(0.01)\n"
    script(tmp_path, "a.py", replaces)
    script(tmp_path, "b.py", wait + "import lazy\nprint('norm', lazy.norm())")
    code, out, text = installed(tmp_path, *filter(None, [option]), "a.py", "b.py")
    if option:
        assert code == 0 and "a: norm Mine" in text, text
        return
    states = {job["name"]: job["state"] for job in json.loads(out)["jobs"]}
    assert code == 1 and states == {"a": "failed", "b": "finished"}, text
    assert "job 'a': lazy is imported first after the job has replaced torch.nn.LayerNorm, and would keep it" in text
    assert "b: norm LayerNorm" in text


def test_a_package_that_a_script_alone_imports_gets_what_it_has_replaced(tmp_path: Path) -> None:
    script(tmp_path, "site/lazy.py", LAZY)
    script(
        tmp_path,
        "a.py",
        "import torch\nclass Mine(torch.nn.LayerNorm):\n    pass\ntorch.nn.LayerNorm = Mine\n"
        "import lazy\nprint('norm', lazy.norm())\n",
    )
    code, out, _ = installed(tmp_path, "a.py")
    assert code == 0 and "norm Mine" in out + _
