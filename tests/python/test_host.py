"""Jobs on a host of a cluster, without the cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pickle
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster_jobs import equal, training
from conftest import SOON_S, run_one, wait_until

from torchshare.checkpoints.job_files import JobFiles
from torchshare.cluster import attempt as attempt_module
from torchshare.cluster import host as host_module
from torchshare.cluster import storage as storage_module
from torchshare.cluster.host import Host
from torchshare.cluster.host_status import AttemptStatus
from torchshare.cluster.job_spec import JobSpec
from torchshare.cluster.queued_job import EndedJob
from torchshare.cluster.storage import Outcome, Storage, WrongStorage
from torchshare.runtime.job import Job


class Hosts:
    """Hosts with one storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = Storage(folder / "storage")
        self.functions: dict[str, Callable[..., Any]] = {}
        self.opened: list[Host] = []

    def host(self) -> Host:
        host = Host(self.storage, "cpu", every=1)
        load = host._function
        host._function = lambda spec: self.functions.get(spec.name) or load(spec)  # closures cannot be pickled
        self.opened.append(host)
        return host

    def spec(self, name: str, target: Callable[..., Any] | str, **options: Any) -> JobSpec:
        if callable(target):
            self.functions[name] = target
        text = target if isinstance(target, str) else name
        return JobSpec(name, f"id-{name}", text, str(self.folder), "m", options={"threads": 1, **options})

    def outcome(self, name: str) -> Outcome:
        found = self.storage.outcome(f"id-{name}")
        assert found is not None
        return found

    def log(self, name: str) -> str:
        return self.storage.log(f"id-{name}", name).read_text()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    for host in found.opened:  # a module that never finishes loading keeps its host
        if host._runtime is not None:
            host._runtime.close()


def job_on(host: Host, name: str) -> AttemptStatus:
    return next(job for job in host.status().jobs if job.name == name)


def ended(host: Host, name: str) -> AttemptStatus:
    wait_until(lambda: job_on(host, name).state != "running")
    return job_on(host, name)


def test_two_jobs_end_with_the_weights_of_jobs_alone(hosts: Hosts) -> None:
    alone = {name: run_one(training(seed=number)).value for number, name in enumerate("ab")}
    host = hosts.host()
    for number, name in enumerate("ab"):
        host.start(hosts.spec(name, training(seed=number)), 1)
    for name in "ab":
        assert ended(host, name) == AttemptStatus(name, 1, "finished", 32)
        assert equal(hosts.outcome(name).value, alone[name])
        assert hosts.log(name).endswith(f"job {name} has trained\n")
    assert [job.name for job in host.status(forget=[("a", 1), ("b", 2)]).jobs] == ["b"]


SPLIT = """
import sys, torch, torchshare
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[1] == "splits":
    torchshare.accumulate(optimizer)
data = torch.utils.data.TensorDataset(torch.randn(24, 3))
loader = torchshare.batches(torch.utils.data.DataLoader(data, 7))
rows = []
for (x,) in loader:
    rows.append(len(x))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
assert len(loader) == len(rows)
print(rows, model.weight.sum().item())
"""


def test_a_job_that_is_split_has_the_weights_of_its_sub_batch(hosts: Hosts) -> None:
    host = hosts.host()
    small = run_one(training(), sub_batch=2).value
    host.start(hosts.spec("a", training()), 1, split=4)
    assert ended(host, "a") == AttemptStatus("a", 1, "finished", 32)
    assert equal(hosts.outcome("a").value, small)
    host.start(hosts.spec("b", training(), sub_batch=4), 1, split=2)
    assert ended(host, "b").state == "finished"
    assert equal(hosts.outcome("b").value, small), "a half of the sub-batches that it has anyway"


def test_a_job_that_is_split_has_the_memory_of_its_sub_batches(hosts: Hosts) -> None:
    def needs_48_mib(job: Job) -> None:
        torch.ones(12 * 2**20)

    host = hosts.host()
    for name, split, state in (("whole", 1, "finished"), ("split", 4, "failed")):
        spec = dataclasses.replace(hosts.spec(name, needs_48_mib), memory=64 * 2**20, fixed_memory=0.5)
        host.start(spec, 1, split=split)
        assert ended(host, name).state == state
    assert "memory budget" in hosts.outcome("split").error


@pytest.mark.parametrize(("split", "limit"), [(4, 1), (1, None)])
def test_rows_that_fitted_are_remembered_in_as_many_sub_batches_only(
    hosts: Hosts, split: int, limit: int | None
) -> None:
    limits: list[int | None] = []

    def runs_out_of_memory_once(job: Job) -> None:
        model, loader = torch.nn.Linear(1, 1), torch.utils.data.DataLoader([torch.ones(1)] * 800, 8)
        job.track(model=model, loader=loader)
        for batch in job.batches(loader):
            batch.backward(lambda x: model(x).sum())
            if not limits:
                job._context.rows_at_once.halve(2)
            limits.append(job._context.rows_at_once.limit)
            time.sleep(0.01)

    host = hosts.host()
    host.start(hosts.spec("a", runs_out_of_memory_once), 1, split=4)
    wait_until(lambda: job_on(host, "a").can_save)
    host.stop("a", 1, suspend=True)
    assert ended(host, "a").state == "suspended"
    first, limits[:] = limits[0], [0]
    host.start(hosts.spec("a", runs_out_of_memory_once), 2, split=split)
    assert ended(host, "a").state == "finished"
    assert (first, limits[-1]) == (1, limit)


def test_a_job_has_the_results_of_its_predecessors(hosts: Hosts) -> None:
    found: list[Any] = []
    host = hosts.host()
    host.start(hosts.spec("a", lambda job: {"loss": 0.5}), 1)
    assert ended(host, "a").state == "finished"
    (hosts.storage.path / "outcomes" / "id-b.pkl").write_bytes(pickle.dumps(Outcome("finished", b"no pickle")))
    known = {"priority": "secondary", "steps": 3, "ran_s": 2.0}
    predecessors = (
        EndedJob("a", state="finished", error="", outcome="id-a", **known),
        EndedJob("b", state="finished", error="", outcome="id-b", **known),
        EndedJob("c", state="cancelled", error="no more", outcome="id-c", **known),
        EndedJob("e", state="finished", error="", outcome="id-e", **known),
    )
    host.start(hosts.spec("d", lambda job: found.append(job.after)), 1, predecessors=predecessors)
    assert ended(host, "d").state == "finished"
    (results,) = found
    assert [(each.name, each.state, each.value, each.steps) for each in results.values()] == [
        ("a", "finished", {"loss": 0.5}, 3),
        ("b", "finished", None, 3),
        ("c", "cancelled", None, 3),
        ("e", "finished", None, 3),
    ]
    assert str(results["e"].exception) == "the value of job 'e' is no longer in the storage"
    assert results["a"].exception is None and str(results["c"].exception) == "no more"
    assert str(results["b"].exception).startswith("the value of job 'b' cannot be loaded: UnpicklingError")


def test_a_job_of_an_array_finds_its_index(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is a function or a script, beside another one, and in the processes that it starts; also where the
    host was started by a launcher of ranks."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    (hosts.folder / "train.py").write_text(
        "import os, subprocess, sys\n"
        "code = 'import os; print(os.environ[\"TORCHSHARE_ARRAY_INDEX\"])'\n"
        "print('child', subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout.strip())\n"
        "print('own', os.environ['TORCHSHARE_ARRAY_INDEX'], bool(os.environ['PATH']))\n"
    )
    met = threading.Barrier(3)

    def function(job: Job) -> str | None:
        met.wait(SOON_S)
        return os.environ.get("TORCHSHARE_ARRAY_INDEX")

    host = hosts.host()
    for index in (7, 8):
        host.start(dataclasses.replace(hosts.spec(f"f_{index}", function), array="f", index=index), 1)
    host.start(hosts.spec("other", function), 1)
    for name, value in (("f_7", "7"), ("f_8", "8"), ("other", None)):
        assert ended(host, name).state == "finished"
        assert hosts.outcome(name).value == value
    host.start(dataclasses.replace(hosts.spec("t_3", "train.py"), array="t", index=3), 1)
    assert ended(host, "t_3").state == "finished"
    assert hosts.log("t_3") == "child 3\nown 3 True\n"


@pytest.mark.parametrize("what", ["splits", "does not"])
def test_a_script_is_split_where_it_accumulates(hosts: Hosts, what: str) -> None:
    (hosts.folder / "train.py").write_text(SPLIT)
    host = hosts.host()
    for name, split, options in (("a", 2, {}), ("b", 1, {"sub_batch": 4} if what == "splits" else {})):
        host.start(hosts.spec(name, f"train.py '{what}'", **options), 1, split=split)
        assert ended(host, name).state == "finished", hosts.log(name)
    printed, as_sub_batch = (hosts.log(name).splitlines()[-1] for name in "ab")
    assert printed == as_sub_batch
    assert printed.startswith("[4, 3, 4, 3, 4, 3, 3] " if what == "splits" else "[7, 7, 7, 3] ")
    assert ("splits nothing without torchshare.accumulate" in hosts.log("a")) == (what != "splits")


def test_a_job_that_is_suspended_goes_on_anywhere_with_the_same_weights(
    hosts: Hosts, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run_one(training(20)).value
    pause, sleep = [0.1], time.sleep  # long, so that it does not end before it is suspended
    monkeypatch.setattr("cluster_jobs.time", types.SimpleNamespace(sleep=lambda _seconds: sleep(pause[0])))
    spec = hosts.spec("a", training(20, 0.1))
    first, second = hosts.host(), hosts.host()
    first.start(hosts.spec("partner", training(1_000_000, 0.005)), 1)
    for number, host in enumerate([first, second, first], 1):
        host.start(spec, number)
        wait_until(lambda host=host: job_on(host, "a").can_save and job_on(host, "a").steps > 20)
        host.stop("a", number, suspend=True)
        assert ended(host, "a").state == "suspended"
    pause[0] = 0.0
    second.start(spec, 4)
    assert ended(second, "a").state == "finished"
    assert equal(hosts.outcome("a").value, alone)
    assert caplog.text.count("job 'a': resumes at step") == 3
    assert job_on(first, "partner").state == "running"
    first.stop("partner", 1, suspend=False)
    assert ended(first, "partner").state == "cancelled"


def test_a_job_goes_on_after_its_host_ended(hosts: Hosts) -> None:
    spec = hosts.spec("a", training(20, 0.01))
    first = hosts.host()
    first.start(spec, 1)
    wait_until(lambda: job_on(first, "a").steps > 20)
    first.save_all()
    second = hosts.host()
    second.start(spec, 2)
    assert ended(second, "a").state == "finished"
    assert equal(hosts.outcome("a").value, run_one(training(20)).value)


INTERRUPTED = """
import sys, torch, torchshare
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torchshare.track(model=model, optimizer=optimizer)
try:
    while True:
        for (x,) in torchshare.batches([(torch.ones(4, 3),)] * 100):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
except KeyboardInterrupt:
    {handler}
"""


@pytest.mark.parametrize("handler", ["print('stopped')", "sys.exit(1)", "raise RuntimeError('stopped')"])
@pytest.mark.parametrize("all_jobs", [False, True])
def test_a_script_that_handles_the_interrupt_of_a_suspension_has_not_ended(
    hosts: Hosts, handler: str, all_jobs: bool
) -> None:
    (hosts.folder / "train.py").write_text(INTERRUPTED.format(handler=handler))
    host = hosts.host()
    host.start(hosts.spec("a", "train.py"), 1)
    wait_until(lambda: job_on(host, "a").steps > 20)
    if all_jobs:
        host.save_all()
    else:
        host.stop("a", 1, suspend=True)
    status = ended(host, "a")
    assert (status.state, status.error) == ("suspended", "")
    assert hosts.storage.outcome("id-a") is None


@pytest.mark.parametrize("mark", [None, "other"])
def test_a_host_without_its_storage_does_not_start(tmp_path: Path, mark: str | None) -> None:
    """It made a folder of that name, and its jobs' results were on a disk that nobody saw."""
    if mark is not None:
        (tmp_path / "mark").write_text(mark)
    what = "another cluster's mark" if mark else "not the mark of the scheduler (No such file or directory)"
    line = f"{tmp_path} is not the cluster's storage on this node: it has {what}"
    with pytest.raises(WrongStorage, match=f"^{re.escape(line)}$"):
        Host(Storage(tmp_path, "mark"), "cpu")
    assert list(tmp_path.iterdir()) == ([tmp_path / "mark"] if mark else [])


def test_a_job_that_reaches_its_end_while_it_is_told_to_suspend_has_finished(hosts: Hosts) -> None:
    began, ends = threading.Event(), threading.Event()

    def train(job: Any) -> int:
        began.set()
        assert ends.wait(300)
        return 7

    host = hosts.host()
    host.start(hosts.spec("a", train), 1)
    assert began.wait(300)
    attempt = host._attempts["a"]
    attempt.stopped = attempt.suspends = True  # `stop` waits for the checkpoint
    ends.set()
    assert ended(host, "a").state == "finished"
    assert hosts.outcome("a").value == 7


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("missing.py --x", "target 'missing.py --x': no such file"),
        ("missing.py:train", "target 'missing.py:train': no such file"),
        ("bad.py", "RuntimeError: on purpose"),
        ("bad.py:train", "ZeroDivisionError: division by zero"),
        ("exit.py", "SystemExit: 3"),
    ],
)
def test_a_job_that_cannot_run_fails_with_its_reason(hosts: Hosts, target: str, error: str) -> None:
    (hosts.folder / "bad.py").write_text(
        "def train(job): 1 / 0\nif __name__ == '__main__': raise RuntimeError('on purpose')\n"
    )
    (hosts.folder / "exit.py").write_text("import sys; sys.exit(3)\n")
    host = hosts.host()
    host.start(hosts.spec("a", target), 1)
    status = ended(host, "a")
    assert (status.state, status.error[: len(error)]) == ("failed", error)
    assert hosts.outcome("a").error == status.error
    assert error.split(": ")[-1] in hosts.log("a")


def test_a_script_runs_in_its_folder_and_adds_to_its_log(hosts: Hosts) -> None:
    (hosts.folder / "train.py").write_text("import os, sys; print(os.getcwd(), sys.argv)\n")
    hosts.storage.logs("id-a").mkdir(parents=True)
    hosts.storage.log("id-a", "a").write_text("before\n")
    host = hosts.host()
    host.start(hosts.spec("a", "train.py --x 1"), 1)
    assert ended(host, "a").state == "finished"
    assert hosts.log("a") == f"before\n{hosts.folder} ['train.py', '--x', '1']\n"


def test_a_job_that_has_ended_is_not_run_again(hosts: Hosts, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    spec = hosts.spec("a", training(1, marks=marks))
    first, second = hosts.host(), hosts.host()
    first.start(spec, 1)
    assert ended(first, "a").state == "finished"
    first.start(spec, 1)
    second.start(spec, 2)  # a scheduler that does not know
    assert ended(second, "a") == AttemptStatus("a", 2, "finished")
    assert marks.read_text() == "end\n"


def test_a_name_that_is_used_again_is_another_job(hosts: Hosts) -> None:
    """The queue has forgotten the first one."""
    specs = [dataclasses.replace(hosts.spec("a", "a"), submission=f"id-{number}") for number in range(2)]
    for number, spec in enumerate(specs):
        hosts.functions["a"] = training(seed=number)
        host = hosts.host()
        host.start(spec, 1)
        assert ended(host, "a") == AttemptStatus("a", 1, "finished", 32)
        outcome = hosts.storage.outcome(spec.submission)
        assert outcome is not None
        assert equal(outcome.value, run_one(training(seed=number)).value)
        assert hosts.storage.log(spec.submission, "a").read_text() == "job a has trained\n"


def test_a_job_that_was_believed_lost_is_started_again_beside_itself(hosts: Hosts) -> None:
    spec = hosts.spec("a", training(20, 0.02))
    host = hosts.host()
    host.start(spec, 1)
    wait_until(lambda: job_on(host, "a").steps > 0)
    host.start(spec, 2)
    assert (ended(host, "a").state, job_on(host, "a").attempt) == ("finished", 2)
    assert equal(hosts.outcome("a").value, run_one(training(20)).value)


def test_a_value_that_cannot_be_kept_fails_the_job(hosts: Hosts) -> None:
    host = hosts.host()
    host.start(hosts.spec("a", lambda job: lambda: 0), 1)
    assert ended(host, "a").error.startswith("RuntimeError: its return value cannot be kept: ")


def test_a_value_that_only_its_client_can_load_is_kept(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("module_of_a_client")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("class Value: pass", module.__dict__)
    host = hosts.host()
    spec = hosts.spec("a", lambda job: module.__dict__["Value"]())
    host.start(spec, 1)
    assert ended(host, "a").state == "finished"
    monkeypatch.delitem(sys.modules, module.__name__)
    assert hosts.outcome("a").state == "finished"  # as a scheduler reads it, whose host has died
    other = hosts.host()
    other.start(spec, 2)
    assert ended(other, "a") == AttemptStatus("a", 2, "finished")


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("sys.exit(3)", "target 'exits.py:train' cannot be loaded: SystemExit: 3"),
        ("raise ValueError", "target 'exits.py:train' cannot be loaded: ValueError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_module_that_exits_fails_its_job(hosts: Hosts, statement: str, error: str) -> None:
    (hosts.folder / "exits.py").write_text(f"import sys\n{statement}\ndef train(job): pass\n")
    host = Host(hosts.storage, "cpu")
    host.start(hosts.spec("a", "exits.py:train"), 1)
    assert ended(host, "a") == AttemptStatus("a", 1, "failed", error=error)
    assert str(hosts.folder / "exits.py") in hosts.log("a").splitlines()[1]  # the first frame is the user's


@pytest.mark.parametrize(("text", "error"), [("", "ValueError"), ("bad lr", "ValueError: bad lr")])
def test_a_jobs_own_value_error_shows_its_type(hosts: Hosts, text: str, error: str) -> None:
    def fail(job: Job) -> None:
        raise ValueError(text) if text else ValueError

    host = hosts.host()
    host.start(hosts.spec("a", fail), 1)
    assert ended(host, "a") == AttemptStatus("a", 1, "failed", error=error)
    assert hosts.log("a").splitlines()[-1] == error and "in fail" in hosts.log("a")


def test_what_torchshare_refuses_itself_is_one_line(hosts: Hosts) -> None:
    host = Host(hosts.storage, "cpu")
    host.start(hosts.spec("a", "gone.py:train"), 1)
    assert ended(host, "a").error == f"target 'gone.py:train': no such file {hosts.folder / 'gone.py'}"
    assert hosts.log("a").splitlines() == [ended(host, "a").error]


@pytest.mark.parametrize(("suspend", "state"), [(True, "suspended"), (False, "cancelled")])
def test_a_job_that_takes_long_to_load_can_be_stopped_and_delays_no_report(
    hosts: Hosts, suspend: bool, state: str
) -> None:
    loading, loaded = threading.Event(), threading.Event()
    host = hosts.host()

    def load(spec: JobSpec) -> Callable[..., Any]:
        loading.set()
        assert loaded.wait(300)
        return lambda job: None

    host._function = load
    host.start(hosts.spec("a", "a.py"), 1)
    try:
        assert loading.wait(300)
        assert wait_for(host.status).jobs == [AttemptStatus("a", 1, "running")]
        host.stop("a", 1, suspend=suspend)
    finally:
        loaded.set()
    assert ended(host, "a") == AttemptStatus("a", 1, state)
    assert hosts.storage.outcome("id-a") is None


def test_a_module_that_never_finishes_loading_fails_its_job_and_delays_no_other(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = hosts.folder / "ends"
    waits = f"import os, time\nwhile not os.path.exists({str(ends)!r}): time.sleep(0.01)\n"
    for name, text in (("slow.py", waits), ("endless.py", waits), ("good.py", "")):
        (hosts.folder / name).write_text(f"{text}def train(job): pass\n")
    host = hosts.host()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(host_module, "_LOAD_S", 0.1)
            for name in ("endless.py:train", "endless.py:test"):
                host.start(hosts.spec(name, name), 1)
            for name in ("endless.py:train", "endless.py:test"):
                assert ended(host, name).error == f"'{name}' was not loaded within 0.1 s"
        for name in ("slow.py:train", "good.py:train"):
            host.start(hosts.spec(name, name), 1)
        assert ended(host, "good.py:train").state == "finished"
        assert job_on(host, "slow.py:train").state == "running"
    finally:
        ends.touch()
    assert ended(host, "slow.py:train").state == "finished"


def test_a_job_that_does_not_stop_does_not_run_twice(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "_SAVE_S", 0.5)
    began, held = threading.Event(), threading.Lock()

    def endless(job: Any) -> None:
        began.set()
        while True:
            with contextlib.suppress(BaseException), held:  # in C, where no exception of the cancellation reaches it
                return

    host = hosts.host()
    spec = hosts.spec("a", endless)
    with held:
        host.start(spec, 1)
        assert began.wait(300)
        host.start(spec, 2)
        assert ended(host, "a").error == "its attempt before had not stopped 0.5 s after it was told to"


def wait_for(function: Callable[[], Any]) -> Any:
    """What it returns, if it does soon."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result(SOON_S)


def test_files_of_jobs_that_were_forgotten_are_removed(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for name in ("open", "ended", "gone"):
        storage.put_function(name, b"")
        storage.put_outcome(f"{name}.1.0", Outcome("finished"))
        storage.logs(name).mkdir(parents=True)
        storage.log(name, "job").touch()
    storage.prune(kept=["open", "ended"], needed=["open"])
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if path.is_file())
    logs, outcomes = ["jobs/ended/job.log", "jobs/open/job.log"], ["outcomes/ended.1.0.pkl", "outcomes/open.1.0.pkl"]
    assert files == ["functions/open.pkl", *logs, *outcomes]


def test_the_first_outcome_counts(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    assert storage.put_outcome("id", Outcome("finished", pickle.dumps(1))).value == 1
    assert storage.put_outcome("id", Outcome("failed", None, "late")).value == 1
    assert sorted(path.name for path in (tmp_path / "outcomes").iterdir()) == ["id.pkl"]


class FullDisk:
    """`call` raises the error of a full disk until `free`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.full = True
        self.tried = threading.Semaphore(0)

    def __call__(self, *arguments: Any) -> Any:
        self.tried.release()
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._call(*arguments)

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self.tried.acquire(timeout=SOON_S)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "FIRST_WAIT_S", 0.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("end", ["writes", "suspend", "cancel"])
def test_a_finished_job_whose_outcome_cannot_be_written_waits_for_the_disk(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It had failed for good."""
    disk = FullDisk(storage_module._write)
    monkeypatch.setattr(storage_module, "_write", disk)
    host = hosts.host()
    host.start(hosts.spec("a", lambda job: 7), 1)
    disk.wait(3)
    status = job_on(host, "a")
    trouble = "it has finished, and its outcome cannot be written: [Errno 28] No space left on device"
    assert (status.state, status.trouble) == ("running", trouble)
    if end == "writes":
        disk.full = False
        assert ended(host, "a") == AttemptStatus("a", 1, "finished")
    else:
        host.stop("a", 1, suspend=end == "suspend")
        state = "suspended" if end == "suspend" else "cancelled"
        assert ended(host, "a") == AttemptStatus("a", 1, state, error=trouble)
        disk.full = False
        host.start(hosts.spec("a", lambda job: 7), 2)
        assert ended(host, "a") == AttemptStatus("a", 2, "finished")
    assert hosts.outcome("a").value == 7


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0"),
    ],
)
def test_a_job_that_a_full_disk_ends_goes_on_from_its_checkpoint(hosts: Hosts, error: Exception) -> None:
    """Where it writes its own result."""
    full = [True]
    train = training(2)

    def saves(job: Any) -> Any:
        weights = train(job)
        if full[0]:
            raise error
        return weights

    alone = run_one(train).value
    host = hosts.host()
    host.start(hosts.spec("a", saves), 1)
    status = ended(host, "a")
    assert status.state == "suspended"
    assert status.error.startswith("goes on from its checkpoint when the disk has space: ")
    full[0] = False
    host.start(hosts.spec("a", saves), 2)
    assert ended(host, "a").state == "finished"
    assert equal(hosts.outcome("a").value, alone)


def test_a_job_without_a_checkpoint_that_a_full_disk_ends_fails(hosts: Hosts) -> None:
    def writes(job: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    host = hosts.host()
    host.start(hosts.spec("a", writes), 1)
    assert ended(host, "a") == AttemptStatus("a", 1, "failed", error="OSError: [Errno 28] No space left on device")


@pytest.mark.usefixtures("quick")
def test_a_job_is_suspended_when_its_checkpoint_could_be_written(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had done since its last one would be done again. Nor does it say that it can be, before that."""
    host = hosts.host()
    disk = FullDisk(JobFiles.write)
    monkeypatch.setattr(JobFiles, "write", lambda *arguments: disk(*arguments))
    host._every = "1h"
    host.start(hosts.spec("a", training(2000, 0.002)), 1)
    wait_until(lambda: job_on(host, "a").can_save and job_on(host, "a").steps > 5)
    stopping = threading.Thread(target=host.stop, args=("a", 1), kwargs={"suspend": True})
    stopping.start()
    disk.wait(3)
    status = job_on(host, "a")
    assert (status.state, status.can_save, status.has_saved) == ("running", False, False)
    assert status.trouble == "no checkpoint can be written: No space left on device"
    disk.full = False
    stopping.join(300)
    assert ended(host, "a").state == "suspended"
    assert list(hosts.storage.logs("id-a").glob("a.*.pt"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_job_that_prints_on_a_full_disk_finishes(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    log = hosts.storage.log("id-a", "a")
    log.parent.mkdir(parents=True)
    log.symlink_to("/dev/full")

    def prints(job: Any) -> int:
        print("x" * 100)
        return 7

    host = hosts.host()
    host.start(hosts.spec("a", prints), 1)
    assert ended(host, "a").state == "finished"
    assert "job 'a': its output is lost from here on: No space left on device" in caplog.text


@pytest.mark.usefixtures("quick")
def test_a_host_whose_storage_goes_away_takes_and_ends_no_job(tmp_path: Path) -> None:
    """The folder below is there then, and had taken the results."""
    path = tmp_path / "storage"
    storage = Storage(path, Storage(path).put_mark())
    host = Host(storage, "cpu")
    goes_on = threading.Event()

    def load(spec: JobSpec) -> Callable[..., Any]:
        def wait(job: Any) -> int:
            assert goes_on.wait(300)
            if spec.name == "fails":
                raise FileNotFoundError("its data")
            return 7

        return wait

    host._function = load
    for name in ("ends", "fails"):
        host.start(JobSpec(name, name, name, "/", "m", options={"threads": 1}), 1)
    wait_until(lambda: all(each.job is not None for each in host._attempts.values()))
    assert host.status().refusal == ""
    path.rename(tmp_path / "away")
    path.mkdir()
    goes_on.set()
    host.start(JobSpec("new", "new", "new", "/", "m"), 1)
    wait_until(lambda: all(each.refusal for each in host._attempts.values()))
    refusal = f"{path} is not the cluster's storage on this node: it has not the mark of the scheduler"
    assert host.status().refusal.startswith(refusal)
    assert ended(host, "fails").state == "suspended"
    assert {job.name: job.state for job in host.status().jobs if job.name != "fails"} == {
        "ends": "running",
        "new": "running",
    }
    assert not list(path.iterdir())
    host.save_all()
    assert {job.state for job in host.status().jobs} == {"suspended"}
