"""Each CUDA call fails in turn, with each error that its documentation lists, while two jobs train."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_errors import documented

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("TORCHSHARE_EMULATOR" not in os.environ, reason="needs the emulated device"),
    pytest.mark.timeout(900),
]

Outcome = dict[str, Any]
Run = Callable[..., Outcome]

HEADERS = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
STICKY = {  # "any further CUDA work will return the same error", as driver_types.h says of them
    *("cudaErrorLaunchFailure", "cudaErrorLaunchTimeout", "cudaErrorIllegalAddress", "cudaErrorAssert"),
    *("CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_ILLEGAL_ADDRESS"),
}


# torch's device guards call these in their destructors, which must not throw: plain torch aborts, too.
TORCH_ABORTS = {"cudaGetDevice", "cudaSetDevice"}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs one case; see failure_cases.py."""
    program = Path(__file__).with_name("failure_cases.py")
    with subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cases:
        assert cases.stdin is not None
        assert cases.stdout is not None

        def send(**case: Any) -> Outcome:
            print(json.dumps(case), file=cases.stdin, flush=True)
            outcome: Outcome = json.loads(cases.stdout.readline())
            return outcome

        yield send
        cases.stdin.close()


def text_of(error: int) -> str:
    strings = ctypes.CDLL("libcudart.so.13").cudaGetErrorString
    strings.restype = ctypes.c_char_p
    return str(strings(error).decode())


def complaint(outcome: Outcome, clean: dict[str, str], name: str, error: int) -> str | None:
    """Returns what is wrong with the outcome, or None: a job has the right weights, or failed with the error's name."""
    if outcome["status"] != 0:
        return f"the process ended with {outcome['status']}"
    if outcome["left"]:
        return f"threads are left: {outcome['left']}"
    if outcome["runtime"] is not None:  # it could not start, or could not close
        return None if text_of(error) in outcome["runtime"] else f"the runtime says {outcome['runtime']}"
    failed = {job: said for job, said in outcome["jobs"].items() if said != clean[job]}
    for job, said in failed.items():
        if text_of(error) not in str(said) and name not in str(said):
            return f"job {job} says {said}"
    if name not in STICKY and len(failed) > 1:
        return f"both jobs failed: {failed}"
    if name in STICKY and len(failed) < 2:
        return f"only {sorted(failed)} failed: {outcome['jobs']}"
    return None


def check_every_call(run: Run, policy: str, positions: list[float]) -> None:
    errors = documented(HEADERS)
    first = run(policy=policy, count=sorted(errors))
    assert first["status"] == 0, first
    clean = first["jobs"]
    assert first == {**first, "runtime": None, "left": []}
    assert all(len(digest) == 64 for digest in clean.values()), clean
    calls = {call: count for call, count in first["calls"].items() if count > 0 and call not in TORCH_ABORTS}
    complaints = []
    for call, count in calls.items():
        for name, error in errors[call].items():
            for skip in sorted({int(position * (count - 1)) for position in positions}):
                outcome = run(policy=policy, call=call, error=error, skip=skip)
                wrong = complaint(outcome, clean, name, error)
                if wrong is not None:
                    complaints.append(f"{call} {skip + 1} of {count} returns {name}: {wrong}")
    assert len(calls) > 20
    assert not complaints, f"{len(complaints)} cases:\n" + "\n".join(complaints)


def test_a_call_that_fails_fails_its_job_alone(run: Run) -> None:
    check_every_call(run, "priority", [0.5])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["priority", "strict", "best_fit", "resource"])
def test_a_call_that_fails_anywhere_fails_its_job_alone(run: Run, policy: str) -> None:
    check_every_call(run, policy, [0, 0.25, 0.5, 0.75, 1])
