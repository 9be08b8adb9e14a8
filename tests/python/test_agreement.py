"""When jobs agree on a setting that torch has once per process, and who is told what."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LOOP, Gatekeeper, Ran, script, wait_until
from test_settings import double
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchshare
from torchshare import Job, Results
from torchshare.isolation import agreement, routing

ENDED = ("finished", "failed", "cancelled")


def one_step(before: Callable[[torch.optim.Optimizer], Any] = lambda optimizer: None) -> torch.dtype:
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before(optimizer)
    layer(torch.ones(4, 3, dtype=layer.weight.dtype)).sum().backward()
    optimizer.step()
    return layer.weight.dtype


def until(event: threading.Event) -> None:
    assert event.wait(300)


def test_no_job_agrees_on_a_value_that_another_is_about_to_change(monkeypatch: pytest.MonkeyPatch):
    """The secondary wants the value before, while the primary is between its agreement and its setting."""
    gate, original = Gatekeeper(), torch._C._set_default_dtype

    def slow(value: torch.dtype) -> None:
        if value == torch.float64:
            gate.pause()
        original(value)

    monkeypatch.setattr(torch._C, "_set_default_dtype", slow)

    def secondary(job: Job) -> torch.dtype:
        until(gate.reached)
        threading.Timer(0.2, gate.release.set).start()
        torch.set_default_dtype(torch.float32)
        until(gate.release)
        return one_step()

    def primary(job: Job) -> torch.dtype:
        double()
        wait_until(lambda: other.state in ENDED)
        return one_step()

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(primary, name="a", priority="primary")
        other = runtime.submit(secondary, name="b")
        results = runtime.wait(timeout=300, check=False)
    assert (results["a"].value, results["b"].state) == (torch.float64, "failed"), results
    assert "job 'a' runs with torch.float64, not torch.float32" in str(results["b"].exception)


def test_a_job_is_known_before_its_thread_runs(monkeypatch: pytest.MonkeyPatch):
    """Of two equal jobs the earlier one decides, however late `submit` returns."""
    has_set, original = threading.Event(), routing.expect_job

    def late(job: Any, is_script: bool) -> None:
        if job.name == "b":
            has_set.wait(0.5)
        original(job, is_script)

    monkeypatch.setattr(routing, "expect_job", late)

    def first(job: Job) -> torch.dtype:
        one_step()
        stepped.set()
        wait_until(lambda: second_job.is_set())
        wait_until(lambda: runtime.jobs[1].state in ENDED)
        return one_step()

    def second(job: Job) -> None:
        double()
        has_set.set()
        one_step()

    stepped, second_job = threading.Event(), threading.Event()
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(first, name="a")
        runtime.start()
        until(stepped)
        runtime.submit(second, name="b")
        second_job.set()
        results = runtime.wait(timeout=300, check=False)
    assert [results["a"].state, results["b"].state] == ["finished", "failed"], results


def test_a_job_in_its_first_step_is_cancelled():
    """It has been checked, and has not yet done a step."""
    inside, changed = threading.Event(), threading.Event()

    def pause(*_: Any) -> None:
        inside.set()
        until(changed)

    def primary(job: Job) -> None:
        until(inside)
        double()
        changed.set()

    def secondary(job: Job) -> None:
        one_step(lambda optimizer: optimizer.register_step_pre_hook(pause))

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(primary, name="a", priority="primary")
        runtime.submit(secondary, name="b")
        results = runtime.wait(timeout=300, check=False)
    assert [results["a"].state, results["b"].state] == ["finished", "cancelled"]


class Rows(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.loaded = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded += 1
        return torch.ones(3)


@pytest.mark.parametrize("with_job", [False, True])
def test_a_conflict_is_told_before_data_is_loaded(with_job: bool):
    has_set, rows = threading.Event(), Rows()

    def primary(job: Job) -> None:
        double()
        has_set.set()
        wait_until(lambda: other.state in ENDED)

    def secondary(job: Job) -> None:
        until(has_set)
        loader = DataLoader(rows, batch_size=2)
        for _ in job.batches(loader) if with_job else loader:
            pass
        one_step()

    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(primary, name="a", priority="primary")
        other = runtime.submit(secondary, name="b")
        results = runtime.wait(timeout=300, check=False)
    assert (results["b"].state, rows.loaded) == ("failed", 0)
    assert "torch.set_default_dtype is one per process" in str(results["b"].exception)


def test_a_job_that_waits_for_a_higher_one_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(agreement, "_TELL_S", 0.0)

    def primary(job: Job) -> None:
        wait_until(lambda: "waits" in caplog.text)
        double()

    with torchshare.Runtime(device="cpu") as runtime, caplog.at_level(logging.WARNING, "torchshare"):
        runtime.submit(primary, name="a", priority="primary")
        runtime.submit(lambda job: double(), name="b")
        runtime.wait(timeout=300)
    assert "job 'b' waits for job 'a' to set torch.set_default_dtype to torch.float64 too, 20 s" in caplog.text


# Jobs that run with what another has set, and threads of jobs


def in_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def in_turn(
    first: Callable[[], Any], second: Callable[[], Any], third: Callable[[], Any] = lambda: None, **options: Any
) -> Results:
    """The primary calls `first`, then the secondary `second`; `third` is called in it once the primary has ended."""
    is_set, has_run = threading.Event(), threading.Event()

    def primary(job: Job) -> None:
        first()
        is_set.set()
        until(has_run)

    def secondary(job: Job) -> Any:
        until(is_set)
        try:
            value = second()
        finally:
            has_run.set()
        wait_until(lambda: runtime.jobs[0].state in ENDED)
        third()
        return value

    with torchshare.Runtime(device="cpu", **options) as runtime:
        runtime.submit(primary, name="a", priority="primary")
        runtime.submit(secondary, name="b")
        return runtime.wait(timeout=300, check=False)


def text_of(results: Results) -> str:
    assert (results["a"].state, results["b"].state) == ("finished", "failed"), results
    return str(results["b"].exception)


DOUBLE = "job 'b': torch.set_default_dtype is one per process, and job 'a' runs with torch.float64, not torch.float32"


@pytest.mark.parametrize("late", [one_step, lambda: torch.ones(2, requires_grad=True).sum().backward(), lambda: None])
def test_what_a_job_made_under_the_value_of_one_that_has_ended_is_not_used(late: Callable[[], Any]):
    assert DOUBLE in text_of(in_turn(double, lambda: nn.Linear(3, 2).weight.dtype, late))


def test_it_is_not_saved(tmp_path: Path):
    results = in_turn(double, lambda: nn.Linear(3, 2), lambda: torch.save(torch.ones(2), tmp_path / "x.pt"))
    assert DOUBLE in text_of(results)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_job_that_runs_with_the_value_of_another_names_the_setting():
    results = in_turn(double, lambda: nn.Linear(3, 2)(torch.ones(3, dtype=torch.float32)))
    assert DOUBLE in text_of(results)
    assert "must have the same dtype" in str(results["b"].exception.__cause__)


def test_ops_of_a_thread_that_the_job_has_started_count():
    assert DOUBLE in text_of(in_turn(double, lambda: in_thread(lambda: torch.ones(3))))


def test_a_refusal_that_a_job_swallows_fails_it_at_its_end():
    def swallowed() -> None:
        with contextlib.suppress(RuntimeError):
            torch.use_deterministic_algorithms(True)

    results = in_turn(one_step, swallowed)
    assert "job 'b': torch.use_deterministic_algorithms is one per process" in text_of(results)


def test_a_job_that_runs_no_op_meanwhile_is_not_concerned():
    results = in_turn(double, lambda: None, one_step)
    assert (results["a"].state, results["b"].state) == ("finished", "finished"), results


def test_a_job_that_sets_the_same_before_its_ops_is_not_refused():
    results = in_turn(double, lambda: (double(), torch.ones(3)))
    assert (results["a"].state, results["b"].state) == ("finished", "finished"), results


LATE = "job 'b': torch.set_default_dtype is one per process, and the job has run ops with torch.float64, as job 'a' has"


def test_a_job_that_sets_the_same_after_its_ops_is_refused():
    """Alone, it would have run them with another value."""
    assert LATE in text_of(in_turn(double, lambda: (torch.ones(3), double())))


def test_a_job_that_sets_it_after_its_ops_when_the_other_has_ended_is_refused():
    assert LATE in text_of(in_turn(double, lambda: torch.ones(3), double))


def test_a_job_that_is_to_go_on_with_the_values_of_others_does_so_if_it_sets_them_late():
    results = in_turn(double, lambda: (torch.ones(3), double()), on_disagree="primary")
    assert (results["a"].state, results["b"].state) == ("finished", "finished"), results


def test_a_setting_of_a_thread_is_one_of_its_job():
    assert DOUBLE in text_of(in_turn(lambda: in_thread(double), lambda: nn.Linear(3, 2)))
    assert torch.get_default_dtype() == torch.float32


def test_a_thread_waits_for_higher_jobs():
    """It is not the job's own, and cannot use its sleep."""

    def first() -> None:
        wait_until(lambda: any("waits" in each for each in told))
        double()

    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "_TELL_S", 0.0)
        patch.setattr(agreement.log, "warning", lambda text, *values: told.append(text % values))
        with torchshare.Runtime(device="cpu") as runtime:
            runtime.submit(lambda job: first(), name="a", priority="primary")
            runtime.submit(lambda job: in_thread(double), name="b")
            runtime.wait(timeout=300)


def test_a_hook_that_a_thread_registers_is_one_of_its_job():
    def register() -> None:
        nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * 7)

    def own() -> None:
        in_thread(register)
        found.append(nn.ReLU()(torch.ones(1)).item())
        in_thread(lambda: found.append(nn.ReLU()(torch.ones(1)).item()))

    found: list[float] = []
    results = in_turn(own, lambda: nn.ReLU()(torch.ones(1)).item())
    assert (found, results["b"].value) == ([7.0, 7.0], 1.0)


def test_a_thread_of_an_ended_job_sets_nothing():
    ended, errors = threading.Event(), []

    def late() -> None:
        until(ended)
        try:
            double()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=late)
    with torchshare.Runtime(device="cpu") as runtime:
        runtime.submit(lambda job: thread.start(), name="a")
        runtime.wait(timeout=300)
        ended.set()
        thread.join(300)
    assert errors == ["job 'a' has ended: its thread cannot set torch.set_default_dtype"]


# on_disagree="primary"


def test_a_lower_job_goes_on_with_the_values_of_the_higher_one(caplog: pytest.LogCaptureFixture):
    stepped = threading.Event()

    def primary(job: Job) -> torch.dtype:
        torch.backends.cuda.enable_flash_sdp(False)
        dtype = one_step()
        stepped.set()
        return dtype

    def secondary(job: Job) -> tuple[torch.dtype, bool]:
        until(stepped)
        double()
        double()
        return one_step(), torch.backends.cuda.flash_sdp_enabled()

    def stays(job: Job) -> Any:
        value = primary(job)
        wait_until(lambda: other.state in ENDED)
        return value

    with (
        torchshare.Runtime(device="cpu", on_disagree="primary") as runtime,
        caplog.at_level(logging.WARNING, "torchshare"),
    ):
        runtime.submit(stays, name="a", priority="primary")
        other = runtime.submit(secondary, name="b")
        results = runtime.wait(timeout=300)
    assert (results["a"].value, results["b"].value) == (torch.float32, (torch.float32, False))
    assert [record.getMessage() for record in caplog.records] == [
        "job 'b': torch.set_default_dtype is torch.float32, as job 'a' runs with it, and not torch.float64",
        "job 'b': torch.backends.cuda.enable_flash_sdp is False, as job 'a' runs with it, and not True",
    ]
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_higher_job_that_comes_later_gets_its_values(caplog: pytest.LogCaptureFixture):
    stepped, came = threading.Event(), threading.Event()

    def secondary(job: Job) -> torch.dtype:
        double()
        one_step()
        stepped.set()
        until(came)
        return one_step()

    def primary(job: Job) -> torch.dtype:
        one_step()
        came.set()
        wait_until(lambda: runtime.jobs[0].state in ENDED)
        return one_step()

    with (
        torchshare.Runtime(device="cpu", on_disagree="primary") as runtime,
        caplog.at_level(logging.WARNING, "torchshare"),
    ):
        runtime.submit(secondary, name="b")
        runtime.start()
        until(stepped)
        runtime.submit(primary, name="a", priority="primary")
        results = runtime.wait(timeout=300)
    assert (results["a"].value, results["b"].value) == (torch.float32, torch.float32)
    assert "job 'b': torch.set_default_dtype is torch.float32, as job 'a' runs with it, and not torch.float64" in (
        caplog.text
    )


def test_the_option_is_checked_and_has_a_flag(tmp_path: Path):
    with pytest.raises(ValueError, match=r"""on_disagree must be "error" or "primary", got 'own'"""):
        torchshare.Runtime(device="cpu", on_disagree="own")
    higher = script(tmp_path, "higher.py", f"{LOOP}\ntorch.backends.cuda.enable_flash_sdp(False)\ntrain(20)\n")
    lower = script(tmp_path, "lower.py", f"{LOOP}\ntrain(5)\n")
    ran = Ran(tmp_path, "--on-disagree", "primary", higher, lower)
    assert (ran.code, ran.states()) == (0, ["finished", "finished"]), ran.text()


def test_a_submit_looks_at_no_other_job(monkeypatch: pytest.MonkeyPatch):
    looked: list[str] = []
    refused = agreement.Setting.refused
    monkeypatch.setattr(
        agreement.Setting, "refused", lambda setting, job: (looked.append(job.name), refused(setting, job))[1]
    )
    with torchshare.Runtime() as runtime:
        for index in range(20):
            looked.clear()
            runtime.submit(lambda job: None, name=str(index))
            assert {*looked} == {str(index)}
        runtime.wait(timeout=300)
