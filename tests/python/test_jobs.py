"""The life of a job: its states, its result, its failure; and invalid arguments."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from conftest import Gatekeeper, python, run_ops_for_ever, wait_until

import torchshare
from torchshare import _C, Job, JobFailed
from torchshare.runtime.declared import declared
from torchshare.runtime.options import JobOptions, RuntimeOptions

BATCH = torch.ones(4, 2)


def states(runtime: torchshare.Runtime, name: str) -> list[str]:
    return [detail for kind, job, _, _, _, detail in runtime.events() if kind == "state" and job == name]


def test_a_result_has_the_value_the_metrics_and_the_counts():
    def body(job: Job) -> str:
        for batch in job.batches([BATCH] * 3, sub_batch=3):
            batch.backward(lambda x: (x * torch.ones((), requires_grad=True)).mean())
        job.log(loss=torch.tensor(0.5), accuracy=1)
        return "done"

    with torchshare.Runtime() as runtime:
        runtime.submit(body, name="a", priority="level-4")
        result = runtime.wait(300)["a"]
    assert (result.value, result.state, result.priority) == ("done", "finished", "level-4")
    assert (result.steps, result.sub_batches) == (3, 6)
    assert result.ops > 12 and result.ran_s > 0 and result.exception is None
    assert result.metrics == {"loss": 0.5, "accuracy": 1.0}


def test_a_job_without_a_core_is_named_with_its_wait():
    """Beside two ordinary processes on one core; in a process of its own, because it pins itself to that core."""
    done = python(
        "import os, subprocess, sys, time, torch, torchshare\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "def run(job):\n"
        "    end = time.monotonic() + 2\n"
        "    while time.monotonic() < end: torch.ones(100)\n"
        "busy = f'import os\\nwhile os.getppid() == {os.getpid()}: pass'\n"  # ends with this process, however that ends
        "others = [subprocess.Popen([sys.executable, '-c', busy]) for _ in range(2)]\n"
        "try:\n"
        "    with torchshare.Runtime(device='cpu', device_priority='idle') as runtime:\n"
        "        runtime.submit(run, name='starves', threads=1)\n"
        "        runtime.submit(lambda job: time.sleep(2), name='above', priority='primary', threads=1)\n"
        "        results = runtime.wait(300)\n"
        "    print(results)\n"
        "    assert 1 < results['starves'].core_wait_s <= results['starves'].ran_s + 1\n"
        "finally:\n"
        "    for other in others: other.kill()"
    )
    assert done.returncode == 0, done.stderr
    assert "job 'starves' was ready to run for " in done.stdout
    assert "while other threads of the machine had the cores" in done.stdout


def test_every_change_of_state_is_on_the_timeline():
    gatekeeper = Gatekeeper()

    def body(job: Job) -> None:
        gatekeeper.pause()
        torch.ones(1)

    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: wait_until(lambda: runtime.jobs[1].state == "delayed"), name="first")
        job = runtime.submit(body, name="a", start="after:first")
        runtime.start()
        assert gatekeeper.reached.wait(300)
        job.suspend()
        gatekeeper.release.set()
        wait_until(lambda: job.state == "suspended")
        job.resume()
        runtime.wait(300)
        assert states(runtime, "a") == ["pending", "delayed", "running", "suspended", "running", "finished"]


def test_a_suspended_job_runs_no_op_and_a_resumed_one_continues(policy):
    with torchshare.Runtime(policy=policy) as runtime:
        job = runtime.submit(run_ops_for_ever, threads=1)
        runtime.start()
        wait_until(lambda: job.result.ops > 100)
        job.suspend()
        wait_until(lambda: job.state == "suspended")
        ops = job.result.ops
        threading.Event().wait(0.05)
        assert job.result.ops == ops
        job.resume()
        wait_until(lambda: job.result.ops > ops + 100)
        job.cancel()
        runtime.wait(300)


def test_a_failure_names_its_job_and_carries_the_traceback(caplog):
    def broken(job: Job) -> None:
        for batch in job.batches([BATCH] * 3):
            batch.backward(lambda x: torch.ones(2) @ torch.ones(3))

    with torchshare.Runtime() as runtime:
        runtime.submit(broken, name="broken", priority="primary")
        runtime.submit(lambda job: "fine", name="fine")
        with pytest.raises(JobFailed, match="job 'broken' failed after 0 steps: RuntimeError: inconsistent") as caught:
            runtime.wait(300)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.results["fine"].value == "fine"
    assert caught.value.results["broken"].exception is caught.value.__cause__
    record = next(record for record in caplog.records if record.name == "torchshare")
    assert "job 'broken' failed" in record.message and "in broken" in caplog.text


def test_the_secondary_continues_when_the_primary_fails(policy):
    gatekeeper = Gatekeeper()

    def primary(job: Job) -> None:
        gatekeeper.pause()
        raise RuntimeError("out")

    with torchshare.Runtime(policy=policy) as runtime:
        runtime.submit(primary, priority="primary")
        runtime.submit(lambda job: [list(batch) for batch in job.batches([BATCH] * 100)], name="secondary")
        runtime.start()
        assert gatekeeper.reached.wait(300)
        gatekeeper.release.set()
        results = runtime.wait(300, check=False)
    assert (results["primary"].state, results["secondary"].steps) == ("failed", 100)


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (None, "finished"), (1, "failed"), ("no", "failed")])
def test_sys_exit_ends_the_job_and_not_the_process(code, state):
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: sys.exit(code), name="a")
        assert runtime.wait(300, check=False)["a"].state == state


def test_a_job_may_run_no_op_at_all():
    with torchshare.Runtime(policy="strict") as runtime:
        runtime.submit(lambda job: sum(range(1000)), name="a", priority="primary")
        result = runtime.wait(300)["a"]
    assert (result.state, result.value, result.ops) == ("finished", 499500, 0)


def test_a_jobs_own_threads_are_plain_threads():
    def body(job: Job) -> float:
        found: list[float] = []
        thread = threading.Thread(target=lambda: found.append(torch.ones(1000).sum().item()))
        thread.start()
        thread.join()
        return found[0]

    with torchshare.Runtime(policy="strict") as runtime:
        runtime.submit(body, name="a")
        result = runtime.wait(300)["a"]
    assert (result.value, result.ops) == (1000.0, 0)


def test_a_runtime_inside_a_job_is_refused():
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: torchshare.Runtime(), name="outer")
        with pytest.raises(JobFailed, match=r"job 'outer' failed .* a runtime cannot be opened inside a job"):
            runtime.wait(300)


def test_a_job_that_is_never_started_is_cancelled_at_close():
    runtime = torchshare.Runtime()
    job = runtime.submit(lambda job: None)
    runtime.close()
    assert job.state == "cancelled"
    runtime.close()  # a second call is a no-op
    with pytest.raises(RuntimeError, match="the runtime is closed"):
        runtime.submit(lambda job: None)


def test_leaving_the_with_waits_for_the_jobs_and_raises_their_failures():
    with torchshare.Runtime() as runtime:
        job = runtime.submit(lambda job: 3, name="a")
    assert job.result.value == 3
    with pytest.raises(JobFailed), torchshare.Runtime() as runtime:
        runtime.submit(lambda job: 1 / 0, name="a")
    with pytest.raises(KeyError), torchshare.Runtime() as runtime:
        job = runtime.submit(run_ops_for_ever, threads=1)
        runtime.start()
        raise KeyError
    assert job.state == "cancelled"


def test_wait_gives_up_after_its_timeout():
    with torchshare.Runtime() as runtime:
        runtime.submit(run_ops_for_ever, name="slow", threads=1)
        with pytest.raises(TimeoutError, match=r"jobs have not ended after 0.05 s: slow"):
            runtime.wait(0.05)
        runtime.cancel()


def test_the_name_of_a_job_that_has_ended_is_free():
    with torchshare.Runtime() as runtime:
        for value in (1, 2):
            job = runtime.submit(lambda job, value=value: value, name="a")
            runtime.start()
            wait_until(lambda job=job: job.state == "finished")
        assert runtime.jobs == (job,)
        assert runtime.wait()["a"].value == 2


BAD_SUBMISSIONS = {
    "name taken": ({"name": "taken"}, ValueError, "job names must be unique in a runtime, got 'taken' twice"),
    "empty name": ({"name": ""}, ValueError, "job name must not be empty"),
    "name no string": ({"name": 3}, ValueError, "job '3': name must be a string of at most 255 characters .*, got 3"),
    "name too long": ({"name": "a" * 256}, ValueError, r"job 'a{80}': name must be a string .*, got 'a*\.\.\.a*'$"),
    "name no text": ({"name": "\udc80"}, ValueError, r"job '\\udc80': name must be .*, got '\\udc80'$"),
    "no such option": (
        {"nmae": "a"},
        TypeError,
        r"submit\(\) got an unknown option 'nmae'; the options are name, priority, ",
    ),
    "priority": ({"name": "a", "priority": "high"}, ValueError, "job 'a': priority must be 'primary'"),
    "threads 0": ({"name": "a", "threads": 0}, ValueError, "job 'a': threads must be an integer from 1 to 1024, got 0"),
    "threads 1.5": (
        {"name": "a", "threads": 1.5},
        ValueError,
        "job 'a': threads must be an integer from 1 to 1024, got 1.5",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), BAD_SUBMISSIONS.values(), ids=BAD_SUBMISSIONS)
def test_bad_submissions_are_refused_and_nothing_is_lost(options, error, message):
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: "kept", name="taken")
        with pytest.raises(error, match=message):
            runtime.submit(lambda job: None, **options)
        with pytest.raises(TypeError, match="function must be a callable that takes a Job, got 3"):
            runtime.submit(3)
        assert [result.value for result in runtime.wait(300).values()] == ["kept"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device must be 'auto', 'cpu', .*, got 'tpu'"),
        ({"policy": "fair"}, "policy must be one of best_fit, edf, priority, resource, strict, got 'fair'"),
        ({"device_priority": "low"}, "device_priority must be one of auto, idle, nice, none, got 'low'"),
        ({"grace": -1.0}, "grace must be between 0 and 1 seconds, got -1.0"),
        ({"grace": float("nan")}, "grace must be between 0 and 1 seconds, got nan"),
        ({"timeline_capacity": 0}, "timeline_capacity must be a positive integer below 2.*, got 0"),
        (
            {"timeline_capacity": 2**64},
            "timeline_capacity must be a positive integer below 2.*, got 18446744073709551616",
        ),
    ],
)
def test_bad_runtimes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        torchshare.Runtime(**options)


def test_names_cannot_move_the_cursor(caplog: pytest.LogCaptureFixture) -> None:
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: 1 / 0, name="a\x1b[2J")
        results = runtime.wait(check=False)
    assert caplog.messages[0].startswith(r"job 'a\x1b[2J' failed after 0 steps")
    assert "\x1b" not in caplog.text
    assert r"a\x1b[2J" in str(results)


def test_names_begin_no_line_of_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with torchshare.Runtime() as runtime:
        runtime.submit(lambda job: 1 / 0, name="a\nERROR: all is lost")
        runtime.wait(check=False)
    assert caplog.messages[0].splitlines()[0] == r"job 'a\nERROR: all is lost' failed after 0 steps"
    assert caplog.messages[0].splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_job_blocked_outside_torch_is_left_behind_and_the_process_ends():
    done = python(
        "import threading, time, torchshare\n"
        "began = threading.Event()\n"
        "with torchshare.Runtime() as runtime:\n"
        "    job = runtime.submit(lambda job: (began.set(), threading.Event().wait()), name='stuck')\n"
        "    runtime.start()\n"
        "    began.wait()\n"
        "    time.sleep(0.2)\n"
        "    runtime.close()\n"
        "print(job.state)"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "cancelled")
    where = "its thread is still at <string>:4 (<lambda>) and was left behind"
    assert f"job 'stuck' was cancelled, but {where}" in done.stderr


@pytest.mark.parametrize("body", ["while True: torch.ones(3)", "while True: pass", "time.sleep(1000)"])
def test_an_interpreter_that_ends_takes_its_jobs_along(body):
    done = python(
        "import time, torch, torchshare\n"
        f"def train(job):\n    {body}\n"
        "runtime = torchshare.Runtime()\n"
        "runtime.submit(train)\n"
        "runtime.start()\n"
        "time.sleep(0.2)"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("declaration", "spec"), [(RuntimeOptions, _C.RuntimeOptions), (JobOptions, _C.JobSpec)])
def test_the_defaults_that_signatures_show_are_those_of_cpp(declaration: type, spec: type):
    shown = {each.name: each.option.default for each in declared(declaration)}
    known = [name for name in shown if hasattr(spec, name) and name not in {"name", "threads", "after", "ops"}]
    assert len(known) >= 5
    assert {name: shown[name] for name in known} == {name: getattr(spec(), name) for name in known}
