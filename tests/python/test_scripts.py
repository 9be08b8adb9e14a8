"""`torchshare run train.py`: unmodified programs as jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import warnings
from pathlib import Path

import pytest
from conftest import LOOP, Ran, launch, script, torchshare_command

from torchshare.isolation import script_state

EXAMPLES = Path(__file__).parents[2] / "examples" / "scripts"


def plain_python(folder: Path, *commands: list[str]) -> dict[str, bytes]:
    """Runs scripts with plain Python. Returns the checkpoints, and deletes them."""
    for command in commands:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *command], cwd=folder, check=True, timeout=300, env=environment)
    written = {file.name: file.read_bytes() for file in folder.glob("*.pt")}
    for name in written:
        (folder / name).unlink()
    return written


def test_examples_in_a_pair_write_the_files_of_plain_python(tmp_path: Path):
    """The checkpoints are equal byte for byte: a pickled model of a class in `__main__`, and weights."""
    vision = [str(EXAMPLES / "vision" / "train.py"), "--epochs", "1", "--start-method", "spawn", "--workers", "1"]
    text = [str(EXAMPLES / "text" / "train.py"), "--steps", "30"]
    plain = plain_python(tmp_path, vision, text)
    ran = Ran(tmp_path, "--start", "text=step:2", f"vision={' '.join(vision)}", f"text={' '.join(text)}")
    assert ran.code == 0, ran.text()
    assert {name: (tmp_path / name).read_bytes() == data for name, data in plain.items()} == dict.fromkeys(plain, True)
    assert [ran.jobs["vision"]["steps"], ran.jobs["text"]["steps"]] == [16, 30]
    assert "INFO step 0: loss 4" in ran.of("text")[0] and "epoch 0: loss" in ran.of("vision")[-1]


def test_a_full_collection_in_a_script_visits_what_the_scripts_have_made(tmp_path: Path) -> None:
    """As long as it takes, no job runs Python."""
    collects = """
import gc, weakref
class Node: pass
print(len(gc.get_objects()) < 20_000)
node = Node()
node.itself, gone = node, weakref.ref(node)
del node
gc.collect()
print(gone() is None)
"""
    ran = Ran(tmp_path, "--output=prefix", script(tmp_path, "a.py", collects))
    assert (ran.code, ran.of("a")) == (0, ["True", "True"]), ran.text()


@pytest.mark.parametrize(("name", "steps"), [("lightning", 32), ("accelerate", 24), ("transformers", 32)])
def test_frameworks_scripts_write_the_files_of_plain_python(tmp_path: Path, name: str, steps: int):
    """Two of each, so that what a framework keeps in variables of classes is each script's own."""
    pytest.importorskip(name)
    commands = [
        [str(EXAMPLES / "frameworks" / f"with_{name}.py"), "--seed", str(seed), "--checkpoint", f"{name}{seed}.pt"]
        for seed in (1, 2)
    ]
    plain = plain_python(tmp_path, *commands)
    ran = Ran(tmp_path, *(" ".join(command) for command in commands))
    assert ran.code == 0, ran.text()
    assert {name: (tmp_path / name).read_bytes() == data for name, data in plain.items()} == dict.fromkeys(plain, True)
    assert [job["steps"] for job in ran.jobs.values()] == [steps, steps]


READS = """
import numpy, sys, warnings
def read():
    random = numpy.random.mtrand._rand
    return sys.argv[1], *(type(each).__name__ for each in (sys.stdout, warnings.filters, random))
print({read() for _ in range(1000)})
for _ in range(100):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(sys.argv[1])
    assert [str(each.message) for each in caught] == [sys.argv[1]]
"""


def test_code_that_has_run_often_finds_what_is_the_scripts_own(tmp_path: Path) -> None:
    """Python specializes it: 3.14 also for modules of a class that has the attributes."""
    script(tmp_path, "reads.py", READS)
    ran = Ran(tmp_path, "a=reads.py 1", "b=reads.py 2")
    assert ran.code == 0, ran.text()
    assert [ran.of(name) for name in "ab"] == [[f"{{('{n}', 'LineStream', 'list', '_RoutedState')}}"] for n in (1, 2)]


ON_GPU = """
import sys, torch
from torch import nn
torch.manual_seed(int(sys.argv[1]))
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 2)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 8, device="cuda")).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), sys.argv[2])
"""


@pytest.mark.gpu
def test_scripts_on_a_gpu_write_the_files_of_plain_python(tmp_path: Path):
    commands = [[script(tmp_path, "train.py", ON_GPU), str(seed), f"{seed}.pt"] for seed in (1, 2)]
    plain = plain_python(tmp_path, *commands)
    ran = Ran(tmp_path, "--policy", "strict", *(" ".join(command) for command in commands))
    assert ran.code == 0, ran.text()
    assert {name: (tmp_path / name).read_bytes() for name in plain} == plain
    assert [job["steps"] for job in ran.jobs.values()] == [20, 20]


WORLD = """
import atexit, logging, os, pickle, signal, subprocess, sys, threading, warnings
import torch, utils
from package import part
name = sys.argv[1]
assert __name__ == "__main__" and os.path.basename(__file__) == "world.py" and sys.path[0] == os.path.dirname(__file__)
import __main__
assert __main__.name == name and sys.modules["__main__"].name == name

os.environ["WORLD"] = name
os.makedirs(name)
os.chdir(name)
child = [sys.executable, "-c", "import os; print(os.environ['WORLD'], os.path.basename(os.getcwd()))"]
print("child", subprocess.run(child, capture_output=True, text=True).stdout.strip())

class Pickled:
    pass
for kind in (Pickled, utils.Setting, part.Part):
    assert type(pickle.loads(pickle.dumps(kind()))) is kind
assert utils is sys.modules["utils"]
made = type(sys)("made")
assert type(made) is type(os) and isinstance(os, type(sys)) and not hasattr(made, "path")
print("utils", utils.NAME, part.NAME)

logging.basicConfig(level=logging.INFO, format=f"{name} %(message)s")
logging.getLogger("shared").info("logged")
warnings.simplefilter("error" if name == "first" else "ignore")
try:
    warnings.warn("warned")
    print("no error")
except UserWarning as error:
    print("error", error)
atexit.register(print, "at exit", name)
signal.signal(signal.SIGUSR1, lambda *_: None)
threading.Thread(target=lambda: print("thread", name, os.environ["WORLD"], sys.argv[1])).start()
sys.argv = ["changed"]
print("stdin", repr(sys.stdin.read()))
pid = os.fork()
if pid == 0:
    print("forked", flush=True)
    sys.exit(3)
print("fork", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print("rand", torch.rand(1).item(), flush=True)
for percent in (0, 50, 100):
    print(f"\\r{percent}%", end="", file=sys.stderr)
print(file=sys.stderr)
"""


def test_each_script_has_a_world_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """The same file in two folders, each with its own modules; together with what a process has once."""
    for folder in ("first", "second"):
        script(tmp_path, f"{folder}/world.py", WORLD)
        script(tmp_path, f"{folder}/utils.py", f"NAME = '{folder}'\nclass Setting:\n    pass\n")
        (tmp_path / folder / "package").mkdir()
        script(tmp_path, f"{folder}/package/__init__.py", "")
        script(tmp_path, f"{folder}/package/base.py", f"NAME = 'part of {folder}'")
        text = "from .base import NAME\nfrom package import base\nclass Part:\n    pass\n"
        script(tmp_path, f"{folder}/package/part.py", text)
    former = dict(sys.modules)
    work = tmp_path / "work"
    work.mkdir()
    ran = Ran(work, "a=../first/world.py first", "b=../second/world.py second")
    assert ran.code == 0, ran.text()
    for job, name, error in (("a", "first", "error warned"), ("b", "second", "no error")):
        printed = [line for line in ran.of(job) if not line.startswith("rand")]
        assert printed == [
            f"child {name} {name}",
            f"utils {name} part of {name}",
            f"{name} logged",
            error,
            f"thread {name} {name} {name}",
            "stdin ''",
            "fork 3",
            "0%",
            "100%",
            f"at exit {name}",
        ]
    forked = capfd.readouterr().err.splitlines()  # the stream of the process, not of this test
    assert sorted(forked) == ["a: at exit first", "a: forked", "b: at exit second", "b: forked"]
    rand = [line for job in "ab" for line in ran.of(job) if line.startswith("rand")]
    assert rand[0] == rand[1]  # torch's own first number
    assert sys.modules["__main__"] is former["__main__"] and "utils" not in sys.modules
    assert type(sys).__name__ == "module"


def test_a_relative_entry_of_sys_path_is_in_the_scripts_working_folder(tmp_path: Path):
    """Python keeps what it has found there: a script in another folder ran this one's module."""
    for name, waits in (("one", ""), ("two", "while not os.path.exists('../one/done'): time.sleep(0.01)\n")):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / "src" / "model.py").write_text(f"WHO = {name!r}\n")
        (tmp_path / f"{name}.py").write_text(
            f"import os, sys, time\nos.chdir({name!r})\nsys.path.insert(0, 'src')\n{waits}"
            "import model\nprint('model of', model.WHO)\nopen('done', 'w').close()\n"
        )
    ran = Ran(tmp_path, "one.py", "two.py")
    assert (ran.code, ran.of("one"), ran.of("two")) == (0, ["model of one"], ["model of two"]), ran.text()


def test_a_module_that_only_one_script_has_of_its_own(tmp_path: Path):
    """The other script gets the installed module of that name, whoever comes first."""
    own = script(tmp_path, "own/a.py", "import colorsys\nprint(colorsys.OWN)\nimport time; time.sleep(0.3)")
    script(tmp_path, "own/colorsys.py", "OWN = 'mine'")
    other = script(tmp_path, "other/b.py", "import colorsys, sys\nprint(colorsys.rgb_to_hsv(0, 0, 0))\n" + "x" * 0)
    for jobs in ((f"a={own}", f"b={other}"), (f"b={other}", f"a={own}")):
        ran = Ran(tmp_path, *jobs)
        assert ran.code == 0, ran.text()
        assert "mine" in ran.of("a") and "(0.0, 0.0, 0)" in ran.of("b")


FAULTS = {
    "import": ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
    "own import": ("import broken", 'broken.py", line 1, in <module>'),
    "exit": ("import sys; sys.exit('this is the end')", "this is the end"),
    "_exit": ("import os; os._exit(7)", "os._exit(7) ends the job, not the process"),
    "input": ("input()", "EOFError: EOF when reading a line"),
    "raise": ("def f():\n    raise ValueError('wrong')\nf()", "ValueError: wrong"),
}


@pytest.mark.parametrize(("text", "message"), FAULTS.values(), ids=FAULTS)
def test_a_script_that_fails_leaves_the_other_alone(tmp_path: Path, text: str, message: str):
    script(tmp_path, "broken.py", "1 / 0")
    script(tmp_path, "bad.py", text)
    script(tmp_path, "good.py", LOOP + "train(20)\nprint('trained')")
    ran = Ran(tmp_path, "bad.py", "good.py")
    assert (ran.code, ran.states()) == (1, ["failed", "finished"])
    assert message in ran.text() and "trained" in ran.of("good")
    assert ran.jobs["good"]["steps"] == 20
    files = [line.split('"')[1] for line in ran.lines if line.startswith("  File ")]
    assert all(str(tmp_path) in file for file in files)  # none of ours, nor of importlib


def test_a_missing_file_or_a_syntax_error_is_found_before_any_work(tmp_path: Path):
    script(tmp_path, "good.py", "print('ran')")
    script(tmp_path, "unfinished.py", "x = (\n")
    for bad, message in (
        ("gone.py", "target 'gone.py': no such file gone.py"),
        ("-m gone.train --x", "target '-m gone.train --x': no module named 'gone'"),
        ("-m email.gone", "no module named 'email.gone'"),
        ("unfinished.py", "SyntaxError: '(' was never closed"),
        ("good", "target must be"),
    ):
        done = torchshare_command("run", "good.py", bad, folder=tmp_path)
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False)
        assert message in done.stderr


def test_modules_and_packages_run_with_python_m(tmp_path: Path):
    script(tmp_path, "pkg/__init__.py", "print('package')")
    script(tmp_path, "pkg/__main__.py", "from .train import NAME\nprint('main', NAME, __package__)")
    script(tmp_path, "pkg/train.py", "import sys\nNAME = __name__\nprint(__name__, sys.argv[1:], __spec__.name)")
    ran = Ran(tmp_path, "a=-m pkg.train --lr 0.1", "b=-m pkg", "c=pkg --x")
    assert [ran.of("a"), ran.of("b")] == [
        ["package", "__main__ ['--lr', '0.1'] pkg.train"],
        ["package", "pkg.train [] pkg.train", "main pkg.train pkg"],
    ], ran.text()
    assert "attempted relative import with no known parent package" in ran.text()  # as in plain Python


def test_megabytes_of_output_arrive_whole_or_in_files(tmp_path: Path):
    script(tmp_path, "loud.py", "import sys\nfor i in range(50000): print(sys.argv[1], i, 'x' * 40)")
    ran = Ran(tmp_path, "a=loud.py 1", "b=loud.py 2")
    for job, number in (("a", 1), ("b", 2)):
        printed = [line for line in ran.of(job) if line.endswith("xx")]
        assert printed == [f"{number} {i} {'x' * 40}" for i in range(50000)]
    ran = Ran(tmp_path, "--output", "logs", "a=loud.py 1", "b=loud.py 2")
    assert [len((tmp_path / "logs" / f"{job}.log").read_text().splitlines()) for job in "ab"] == [50000, 50000]
    assert len(ran.lines) < 50


def test_a_script_trains_on_though_its_log_cannot_be_written(tmp_path: Path):
    """A full disk, and a log that cannot be created."""
    script(tmp_path, "a.py", LOOP + "for i in range(3): train(1); print('line', i)")
    (tmp_path / "logs" / "b.log").mkdir(parents=True)
    (tmp_path / "logs" / "a.log").symlink_to("/dev/full")
    ran = Ran(tmp_path, "--output", "logs", "a=a.py", "b=a.py", "c=a.py")
    assert [(job["state"], job["steps"]) for job in ran.jobs.values()] == [("finished", 3)] * 3, ran.text()
    assert (tmp_path / "logs" / "c.log").read_text() == "line 0\nline 1\nline 2\n"
    assert sorted(line for line in ran.lines if "lost" in line) == [
        "job 'a': its output is lost from here on: No space left on device",
        "job 'b': its output is lost from here on: Is a directory",
    ]


def test_one_script_prints_as_in_plain_python(tmp_path: Path):
    script(tmp_path, "a.py", "import sys  # --steps, --json\nprint('x', end='\\r')\nprint(sys.argv)")
    done = torchshare_command("run", "a.py", "--steps=3", "-x", "--json", folder=tmp_path)
    assert done.stderr == ""
    assert done.stdout.startswith("x\r['a.py', '--steps=3', '-x', '--json']\njob ")


def test_steps_are_counted_by_the_optimizer(tmp_path: Path):
    """So that start conditions and the timeline work. Of several optimizers, one counts."""
    script(tmp_path, "loop.py", LOOP + "train(int(sys.argv[1]))")
    script(
        tmp_path,
        "gan.py",
        LOOP + "other = torch.nn.Linear(3, 2)\nsecond = torch.optim.Adam(other.parameters())\n"
        "for _ in range(5):\n    train(1)\n    train(1, other, second)\ntrain(3, other, second)\n",
    )
    timeline = tmp_path / "t.json"
    ran = Ran(tmp_path, "--start", "step:9", "--timeline", str(timeline), "--sub-batch", "2", "loop.py 12", "gan.py")
    assert ran.code == 0, ran.text()
    assert [job["steps"] for job in ran.jobs.values()] == [12, 8]
    events = json.loads(timeline.read_text())["traceEvents"]
    assert sum(event.get("cat") == "step" or event.get("name", "").startswith("step") for event in events) >= 19
    assert "job 'loop': sub_batch=2 had no effect" in ran.text()


def test_ctrl_c_is_a_keyboard_interrupt_in_scripts(tmp_path: Path):
    """A script may catch it and go on; the second Ctrl-C stops it."""
    stop = "try:\n    print('go', flush=True)\n    train(10**9)\nexcept KeyboardInterrupt:\n    pass\n"
    script(tmp_path, "stops.py", LOOP + "import time\n" + stop + "time.sleep(0.2)\ntrain(3)\nprint('evaluated')")
    script(tmp_path, "goes_on.py", LOOP + stop * 2)
    script(tmp_path, "waits.py", "print('go', flush=True)\nimport time\ntime.sleep(1000)")
    process = launch(
        *("-m", "torchshare", "run", "--max-concurrent", "3", "stops.py", "goes_on.py", "waits.py"), folder=tmp_path
    )
    for _ in range(3):
        while not process.stdout.readline().endswith(": go\n"):
            pass
    process.send_signal(signal.SIGINT)
    said = ""
    while "evaluated" not in said or said.count(": go\n") < 1:  # that is goes_on.py's second
        said += process.stdout.readline()
    time.sleep(1)  # stops.py ends
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    states = {
        line.split()[0]: line.split()[2] for line in out.splitlines() if line.startswith(("stops", "goes", "wait"))
    }
    assert process.returncode == 130 and "Traceback" not in err
    assert states == {"stops": "finished", "goes_on": "finished", "waits": "cancelled"}


def test_what_stands_for_an_attribute_of_a_script_can_be_read_and_assigned_while_others_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread may read it from the module's dictionary before the module's class is replaced, and assign it
    later, as `warnings.catch_warnings` and `contextlib.redirect_stdout` do."""
    routed = {
        (warnings, "filters"): script_state._RoutedFilters("filters", warnings.filters),
        (sys, "stdout"): script_state.RoutedStream("stdout", sys.stdout),
    }
    for (module, name), stand_in in routed.items():
        outer = getattr(module, name)
        monkeypatch.setitem(module.__dict__, name, stand_in)
        seen = getattr(module, name)
        assert seen is stand_in
        with monkeypatch.context() as patched:
            patched.setattr(module, "__class__", {warnings: script_state._Warnings, sys: script_state._Sys}[module])
            setattr(module, name, seen)
            assert getattr(module, name) is outer
        again = type(stand_in)(name, seen)  # the next patches
        assert again.outer is outer
    assert list(warnings.filters) == list(warnings.filters[:]) != []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("said", stacklevel=1)
    assert [str(each.message) for each in caught] == ["said"]
    print("written")


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_each_script_has_the_run_of_its_logger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An installed package that keeps it in a variable: both scripts logged to the run of the second."""
    logger = "run = None\ndef init(name):\n    global run\n    run = name\n"
    script(tmp_path, f"site/{name}.py", logger)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path)  # sys.path[0] is the program's own folder
    logs = f"""
import os, sys, time, {name}
{name}.init(sys.argv[1])
open(f"{{sys.argv[1]}}.there", "w").close()
until = time.monotonic() + 300
while not (os.path.exists("a.there") and os.path.exists("b.there")) and time.monotonic() < until:
    time.sleep(0.01)
print({name}.run)
"""
    each = script(tmp_path, "each.py", logs)
    ran = Ran(tmp_path, f"a={each} a", f"b={each} b")
    assert (ran.of("a"), ran.of("b")) == (["a"], ["b"]), ran.text()


COUNTS = """
#include <Python.h>
static int initialized = 0;
static int begin(PyObject* module) { return PyModule_AddIntConstant(module, "initialized", ++initialized); }
static PyModuleDef_Slot slots[] = {{Py_mod_exec, begin}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "counted", NULL, 0, NULL, slots};
PyMODINIT_FUNC PyInit_counted(void) { return PyModuleDef_Init(&definition); }
"""


@pytest.mark.parametrize("is_namespace", [False, True])
def test_a_package_with_c_code_on_the_path_has_one_python_half(tmp_path: Path, is_namespace: bool) -> None:
    """Two halves would initialize the C code twice: protobuf, loaded so, crashed the process."""
    package = tmp_path / "path" / "half_c" / "inner"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import counted\n")
    if not is_namespace:
        (package.parent / "__init__.py").write_text("")
    (tmp_path / "counted.c").write_text(COUNTS)
    suffix, include = sysconfig.get_config_var("EXT_SUFFIX"), sysconfig.get_path("include")
    target = package / f"counted{suffix}"
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", "counted.c", "-o", target], cwd=tmp_path, check=True)
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(
            "import sys\nsys.path.append('path')\n"
            "import half_c.inner.counted as c\nprint('initialized', c.initialized)\n"
        )
    ran = Ran(tmp_path, "a.py", "b.py")
    assert ran.code == 0, ran.text()
    assert ran.text().count("initialized 1") == 2, ran.text()
