"""Process-wide state of torch: jobs do not see each other's changes, and may use it at the same time. Each test holds
one job inside, so that the other certainly arrives meanwhile."""

from __future__ import annotations

import builtins
import importlib
import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SOON_S, python, run_ops_for_ever, wait_until
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx import _symbolic_trace
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.profiler import ProfilerActivity, profile

import torchshare
from torchshare import Job
from torchshare.training import optimizer_rules, step_package, step_tracer

A_WHILE_S = 0.5  # timeout for events that need not occur


class Meeting:
    """One job is inside a section; the other arrives, and lets it continue."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.leave = threading.Event()

    def stay(self, seconds: float = SOON_S) -> None:
        """Called inside the section, once."""
        if not self.inside.is_set():
            self.inside.set()
            self.leave.wait(seconds)

    def visit(self, action: Callable[[], Any]) -> Any:
        assert self.inside.wait(SOON_S)
        try:
            return action()
        finally:
            self.leave.set()


def both(first: Callable[[Job], Any], second: Callable[[Job], Any]) -> list[Any]:
    """Runs two jobs together; returns their results."""
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(first, name="first", priority="primary", threads=1)
        runtime.submit(second, name="second", threads=1)
        return [result.value for result in runtime.wait(300).values()]


def trace_step(model: nn.Module, loss_fn: Callable[..., Tensor]) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = optimizer_rules.rule_of(optimizer)
    assert not isinstance(rule, str)
    tracer = step_tracer.StepTracer(model, loss_fn, optimizer, rule)
    return tracer.gradients((torch.randn(4, 4), torch.randint(0, 2, (4,)))).kind


class Slow(nn.Module):
    """A job that runs this stays inside."""

    def __init__(self, meeting: Meeting, seconds: float = SOON_S) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.meeting = meeting
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        self.meeting.stay(self.seconds)
        return self.linear(x)


def eager_step(_job: Job | None = None) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model[0].weight.detach().flatten().tolist()


# Tracing


def test_a_symbolic_trace_leaves_the_other_jobs_modules_alone() -> None:
    meeting = Meeting()
    alone = both(eager_step, lambda job: None)[0]
    shared, code = both(lambda job: meeting.visit(eager_step), lambda job: torch.fx.symbolic_trace(Slow(meeting)).code)
    assert shared == alone
    assert "self.linear(x)" in code


def test_a_compiled_model_runs_while_the_other_job_traces() -> None:
    meeting = Meeting()
    compiled = threading.Event()

    def runs(job: Job) -> float:
        model = torch.compile(nn.Linear(4, 4), backend="eager")
        model(torch.ones(2, 4))
        compiled.set()
        return meeting.visit(lambda: model(torch.ones(2, 4)).sum().item())

    def traces(job: Job) -> str:
        assert compiled.wait(SOON_S)
        model = nn.Linear(4, 2)

        def loss_fn(x: Tensor, y: Tensor) -> Tensor:
            meeting.stay()
            return F.cross_entropy(model(x), y)

        return trace_step(model, loss_fn)

    assert isinstance((values := both(runs, traces))[0], float)
    assert values[1] == "gradients"


def test_two_kinds_of_traces_take_turns() -> None:
    compiled, symbolic = Meeting(), Meeting()

    def traces(job: Job) -> str:
        model = nn.Linear(4, 2)

        def loss_fn(x: Tensor, y: Tensor) -> Tensor:
            compiled.inside.set()
            symbolic.inside.wait(A_WHILE_S)  # set only if both are inside at once
            return F.cross_entropy(model(x), y)

        try:
            return trace_step(model, loss_fn)
        finally:
            symbolic.leave.set()

    def traces_too(job: Job) -> str:
        # If it comes first, the other job waits for it, and cannot make it leave.
        return compiled.visit(lambda: torch.fx.symbolic_trace(Slow(symbolic, A_WHILE_S)).code)

    former = nn.Module.__call__, nn.Module.__getattr__
    assert both(traces, traces_too)[0] == "gradients"
    assert (nn.Module.__call__, nn.Module.__getattr__) == former
    assert not _symbolic_trace.is_fx_symbolic_tracing()


def test_an_export_leaves_the_other_jobs_bits_alone() -> None:
    meeting = Meeting()
    alone = both(eager_step, lambda job: None)[0]

    def exports(job: Job) -> int:
        exported = torch.export.export(Slow(meeting), (torch.randn(2, 4),), strict=False)
        return len(list(exported.graph.nodes))

    def trains(job: Job) -> tuple[list[float], bool]:
        return meeting.visit(lambda: (eager_step(), torch.backends.mkldnn.enabled))

    (shared, with_mkldnn), nodes = both(trains, exports)
    assert with_mkldnn
    assert shared == alone
    assert nodes > 0


def test_two_jobs_export_at_once() -> None:
    """torch keeps the hierarchy of the model's modules, and what it loads, in global variables."""
    meeting = Meeting()

    def export(model: nn.Module) -> list[str]:
        exported = torch.export.export(model, (torch.randn(2, 4),), strict=False)
        return [entry.fqn for entry in exported.module_call_graph]

    def exports(job: Job) -> list[str]:
        return export(Slow(meeting, A_WHILE_S))

    def exports_too(job: Job) -> list[str]:
        return meeting.visit(lambda: export(nn.Sequential(nn.Linear(4, 4))))

    assert both(exports, exports_too) == [["", "linear"], ["", "0"]]


def test_two_jobs_load_exported_programs_at_once() -> None:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(nn.Linear(4, 4), (torch.randn(2, 4),)), buffer)

    def load(job: Job) -> int:
        return sum(
            torch.export.load(io.BytesIO(buffer.getvalue())).module()(torch.ones(2, 4)).shape == (2, 4)
            for _ in range(10)
        )

    assert both(load, load) == [10, 10]


def test_a_cancel_does_not_land_inside_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    former = nn.Module.__call__
    reached = threading.Event()
    original = _symbolic_trace._PatchedFnSetAttr.revert

    def slow(self: Any) -> None:
        reached.set()
        end = time.monotonic() + A_WHILE_S
        while time.monotonic() < end:
            pass
        original(self)

    def traces(job: Job) -> None:
        torch.fx.symbolic_trace(nn.Linear(2, 2))
        run_ops_for_ever(job)

    with torchshare.Runtime(device="cpu") as runtime:
        monkeypatch.setattr(_symbolic_trace._PatchedFnSetAttr, "revert", slow)
        job = runtime.submit(traces, threads=1)
        runtime.start()
        assert reached.wait(SOON_S)
        job.cancel()
        assert runtime.wait(SOON_S, check=False)["traces"].state == "cancelled"
        monkeypatch.undo()
    assert nn.Module.__call__ is former
    assert not _symbolic_trace.is_fx_symbolic_tracing()


def test_two_jobs_script_and_trace_modules_at_once() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) * 2

    def make(job: Job) -> int:
        equal = 0
        for _ in range(30):
            net = Net().eval()
            x = torch.ones(3, 4)
            equal += torch.equal(torch.jit.trace(net, (x,))(x), net(x))
        return equal

    assert both(make, make) == [30, 30]


def asks(x: Tensor) -> Tensor:
    return x if torch.compiler.is_compiling() else x + 1


def test_a_function_that_checks_is_compiling_can_be_scripted_in_a_job() -> None:
    def body(job: Job) -> list[float]:
        compiled = torch.compile(asks, backend="eager", fullgraph=True)
        return [function(torch.ones(1)).item() for function in (asks, torch.jit.script(asks), compiled)]

    assert both(body, lambda job: None)[0] == [2.0, 2.0, 1.0]


def test_a_reset_of_dynamo_in_a_job_drops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda job: torch._dynamo.reset(), name="resets")
        runtime.wait(SOON_S)
    assert "job 'resets': torch._dynamo.reset() does nothing in a job" in caplog.text


# Differentiation and parametrizations


def dual(function: Callable[[Tensor], Tensor]) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(torch.ones(2), torch.ones(2)))).tangent


def jvp(function: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.func.jvp(function, (torch.ones(2),), (torch.ones(2),))[1]


@pytest.mark.parametrize("differentiate", [jvp, dual])
def test_forward_mode_differentiation_is_each_jobs_own(differentiate: Callable[[Any], Tensor]) -> None:
    meeting = Meeting()

    def first(x: Tensor) -> Tensor:
        meeting.stay(A_WHILE_S)
        return x.sin()

    def second(x: Tensor) -> Tensor:
        meeting.leave.set()
        time.sleep(0.1)  # the other job leaves its level meanwhile, if they share one
        return x.sin() * x

    values = both(lambda job: differentiate(first), lambda job: meeting.visit(lambda: differentiate(second)))
    one = torch.ones(2)
    assert torch.equal(values[0], one.cos())
    assert torch.equal(values[1], one.cos() + one.sin())


def test_cached_parametrizations_are_each_jobs_own() -> None:
    meeting = Meeting()

    def trains(job: Job | None) -> list[float]:
        torch.manual_seed(0)
        model = parametrizations.weight_norm(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def caches(job: Job) -> bool:
        model = parametrizations.weight_norm(nn.Linear(4, 4))
        with parametrize.cached():
            meeting.stay()
            return model.weight is model.weight

    alone = both(trains, lambda job: None)[0]
    assert both(lambda job: meeting.visit(lambda: trains(job)), caches) == [alone, True]


# Autocast


def tied(seed: int, steps: int) -> Callable[[Job], Tensor]:
    """Trains a layer that is used several times in each forward pass, under autocast."""

    def train(job: Job) -> Tensor:
        torch.manual_seed(seed)
        cell = nn.Linear(32, 32)
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.5)
        for _ in range(steps):
            x = torch.randn(16, 32)
            with torch.autocast("cpu", torch.bfloat16):
                for _ in range(6):
                    x = torch.tanh(cell(x))
            optimizer.zero_grad()
            x.float().square().mean().backward()
            optimizer.step()
        return cell.weight.detach().clone()

    return train


def test_autocast_gives_the_weights_that_it_gives_alone() -> None:
    alone = both(tied(0, 60), lambda job: None)[0]
    assert torch.equal(both(tied(0, 60), tied(1, 200))[0], alone)


def test_autocast_caches_no_weights_in_jobs_and_is_unchanged_elsewhere() -> None:
    def body(job: Job) -> list[bool]:
        seen = [torch.is_autocast_cache_enabled()]
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(torch.is_autocast_cache_enabled())
        return [*seen, torch.is_autocast_cache_enabled()]

    assert both(body, lambda job: None)[0] == [False] * 3
    assert torch.is_autocast_cache_enabled()


# The profiler, imports, forks, the stand-in for CUDA


def test_a_second_profiler_is_refused_by_name() -> None:
    meeting = Meeting()

    def profiles(job: Job) -> int:
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            torch.ones(3).add(1)
            meeting.stay()
        return len(profiled.key_averages())

    def refused(job: Job) -> str:
        def attempt() -> str:
            with pytest.raises(RuntimeError) as caught, profile(activities=[ProfilerActivity.CPU]):
                pass
            return str(caught.value)

        return meeting.visit(attempt)

    events, message = both(profiles, refused)
    assert events > 0
    assert message == "job 'second': torch's profiler is in use by job 'first'; a process has only one"


def test_a_job_is_not_suspended_inside_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_with_ops.py").write_text(
        "import builtins, torch\nbuiltins.meeting.stay()\ntorch.ones(2).add(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "meeting", meeting := Meeting(), raising=False)

    def imports(job: Job) -> str:
        return importlib.import_module("module_with_ops").__name__

    with torchshare.Runtime(device="cpu") as runtime:
        second = runtime.submit(lambda job: (imports(job), run_ops_for_ever(job)), name="second", threads=1)
        runtime.start()
        meeting.visit(second.suspend)
        first = runtime.submit(imports, name="first", priority="primary", threads=1)
        wait_until(lambda: first.state == "finished" and second.state == "suspended", SOON_S)
        runtime.cancel()
        runtime.wait(SOON_S)


def test_a_package_is_unlocked_though_a_forked_process_has_its_file(tmp_path: Path) -> None:
    path = tmp_path / "package.lock"
    meeting = Meeting()

    def hold() -> None:
        with step_package._locked(path, time.sleep):
            meeting.stay()

    holder = threading.Thread(target=hold)
    holder.start()
    assert meeting.inside.wait(SOON_S)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until it is closed
        os._exit(0)
    os.close(reader)
    meeting.leave.set()
    holder.join()
    with step_package._locked(path, time.sleep):
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child has the file still"
    os.close(writer)
    os.waitpid(child, 0)


def test_the_stand_in_for_cuda_outlives_the_thread_that_asked_first() -> None:
    done = python(
        "import threading, torch, torchshare\n"
        "def run():\n"
        "    with torchshare.Runtime(device='cpu') as runtime:\n"
        "        runtime.submit(lambda job: torch.ones(2).sum().item(), name='a')\n"
        "        return runtime.wait(300)['a'].value\n"
        "first = threading.Thread(target=run); first.start(); first.join()\n"
        "print(run())"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "2.0"), done.stderr


# Turns


def test_a_job_with_the_turn_is_not_suspended() -> None:
    """Otherwise all jobs that wait for their turn would be suspended with it."""
    inside = threading.Event()

    def lower(job: Job) -> None:
        with forward_ad.dual_level():
            inside.set()
            for _ in range(20):
                time.sleep(0.01)

    def primary(job: Job) -> None:
        assert inside.wait(300)
        time.sleep(0.05)
        with forward_ad.dual_level():
            pass

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(primary, priority="primary", threads=1)
        job = runtime.submit(lower, threads=1)
        runtime.start()
        assert inside.wait(300)
        job.suspend()
        wait_until(lambda: runtime.results["primary"].state == "finished")
        job.resume()


def test_a_job_that_is_cancelled_while_it_waits_for_forward_mode_leaves_the_lock() -> None:
    inside, free = threading.Event(), threading.Event()

    def first(job: Job) -> str:
        with forward_ad.dual_level():
            inside.set()
            while not free.is_set():
                time.sleep(0.01)
        with forward_ad.dual_level():
            return "again"

    def second(job: Job) -> None:
        assert inside.wait(300)
        with forward_ad.dual_level():
            pass

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(first, threads=1)
        waiting = runtime.submit(second, threads=1)
        runtime.start()
        assert inside.wait(300)
        time.sleep(0.2)
        waiting.cancel()
        wait_until(lambda: waiting.state == "cancelled")
        free.set()
        assert runtime.wait(300)["first"].value == "again"


def test_a_level_of_forward_mode_may_be_older_than_the_runtime() -> None:
    level = forward_ad.enter_dual_level()
    with torchshare.Runtime(device="cpu"):
        forward_ad.exit_dual_level(level=level)
    assert forward_ad._current_level == -1


def test_a_turn_that_a_job_still_holds_is_released_at_its_end() -> None:
    def body(job: Job) -> None:
        forward_ad.enter_dual_level()
        torch._dynamo.convert_frame.compile_lock.__enter__()

    with torchshare.Runtime(device="cpu") as runtime:
        for name in ("a", "b"):
            runtime.submit(body, name=name, threads=1)
            runtime.wait(300)
        assert not torch._dynamo.convert_frame.compile_lock.is_held_elsewhere()
    assert forward_ad._current_level == -1


def test_a_job_that_imports_does_not_wait_for_the_one_that_waits_for_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of an import and the turn at tracing, acquired in both orders."""
    (tmp_path / "scripts_itself.py").write_text(
        "import time, torch\ntime.sleep(0.3)\n@torch.jit.script\ndef double(x: torch.Tensor):\n    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importing = threading.Event()

    def imports(job: Job) -> None:
        importing.set()
        importlib.import_module("scripts_itself")

    def traces(job: Job) -> None:
        def function(x: Tensor) -> Tensor:
            assert importing.wait(300)
            time.sleep(0.1)
            return importlib.import_module("scripts_itself").double(x)

        torch.jit.trace(function, torch.ones(2), check_trace=False)

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(imports, threads=1)
        runtime.submit(traces, threads=1)
        runtime.wait(300)


def test_a_child_that_is_forked_during_a_trace_may_trace() -> None:
    done = python(
        "import os, sys, threading, torch, torchshare\n"
        "inside, forked = threading.Event(), threading.Event()\n"
        "def function(x):\n"
        "    inside.set()\n"
        "    assert forked.wait(300)\n"
        "    return 2 * x\n"
        "with torchshare.Runtime(device='cpu') as runtime:\n"
        "    runtime.submit(lambda job: torch.jit.trace(function, torch.ones(2), check_trace=False), threads=1)\n"
        "    runtime.start()\n"
        "    inside.wait(300)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        torch.jit.trace(lambda x: 2 * x, torch.ones(2))\n"
        "        torch.optim.SGD([torch.ones(2)], lr=0.1)\n"
        "        os._exit(7)\n"
        "    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "    forked.set()\n"
        "print(code)"
    )
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


def test_a_class_is_scripted_and_a_jvp_compiled_as_without_a_runtime() -> None:
    @torch.jit.script
    class Scale:
        def __init__(self) -> None:
            self.by = torch.ones(1)

    def body(job: Job) -> Tensor:
        return torch.compile(lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1], backend="eager")(torch.ones(2))

    with torchshare.Runtime(device="cpu") as runtime:

        @torch.jit.script
        class Other:
            def __init__(self) -> None:
                self.by = torch.ones(1)

        runtime.submit(body, threads=1)
        value = runtime.wait(300)["body"].value
    torch.testing.assert_close(value, torch.ones(2).cos())


def test_each_thread_has_its_own_active_module_of_ddp() -> None:
    """torch.compile splits a graph by the buckets of that module. Before, it took another job's."""
    ddp = torch.nn.parallel.DistributedDataParallel
    mine = object.__new__(ddp)
    seen = []
    with torchshare.Runtime("cpu"), mine._inside_ddp_forward():
        thread = threading.Thread(target=lambda: seen.append(ddp._get_active_ddp_module()))
        thread.start()
        thread.join()
        seen.append(ddp._get_active_ddp_module())
    assert seen == [None, mine] and ddp._get_active_ddp_module() is None


def test_a_value_that_a_class_drops_is_not_found_in_it_any_more() -> None:
    """CPython clears its attribute cache after it has released the value; a thread that read it in between crashed."""

    class Owner:
        value: Any = None

    class Dropped:
        def __del__(self) -> None:
            seen.append(Owner.value)

    seen: list[Any] = []
    with torchshare.Runtime("cpu"):
        Owner.value = Dropped()
        assert isinstance(Owner.value, Dropped)
        Owner.value = 1
    assert seen == [1]
