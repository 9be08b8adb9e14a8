"""Each CUDA call fails in turn, with each error that its documentation lists, while two jobs train."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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

HEADERS = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1] / "include"
STICKY = {  # "any further CUDA work will return the same error", as driver_types.h says of them
    *("cudaErrorLaunchFailure", "cudaErrorLaunchTimeout", "cudaErrorIllegalAddress", "cudaErrorAssert"),
    *("CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_ILLEGAL_ADDRESS"),
}


# torch's device guards call these in their destructors, which must not throw: plain torch aborts, too.
TORCH_ABORTS = {"cudaGetDevice", "cudaSetDevice"}


class Cases:
    """Runs cases, as many at a time as there are cores; see failure_cases.py."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("failure_cases.py")
        self._idle: queue.Queue[subprocess.Popen[str]] = queue.Queue()
        self._processes = [
            subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(os.cpu_count() or 1)
        ]
        for process in self._processes:
            self._idle.put(process)

    def run(self, case: dict[str, Any]) -> Outcome:
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(case), file=process.stdin, flush=True)
        outcome: Outcome = json.loads(process.stdout.readline())
        self._idle.put(process)
        return outcome

    def run_all(self, cases: list[dict[str, Any]]) -> list[Outcome]:
        with ThreadPoolExecutor(len(self._processes)) as pool:
            return list(pool.map(self.run, cases))

    def close(self) -> None:
        for process in self._processes:
            process.communicate()


@pytest.fixture(scope="module")
def cases() -> Iterator[Cases]:
    cases = Cases()
    yield cases
    cases.close()


def text_of(error: int) -> str:
    strings = ctypes.CDLL("libcudart.so.13").cudaGetErrorString
    strings.restype = ctypes.c_char_p
    return str(strings(error).decode())


def complaint(outcome: Outcome, clean: dict[str, str], name: str, error: int, both_run: bool) -> str | None:
    """Returns what is wrong with the outcome, or None: a job has the right weights, or failed with the error's name.

    `both_run`: neither job can have ended before the call fails, so both fail if the error is sticky.
    """
    if outcome["status"] != 0:
        return f"the process ended with {outcome['status']}"
    if outcome["left"]:
        return f"threads are left: {outcome['left']}"
    if outcome["runtime"] is not None:  # it could not start, or could not close
        no_gpu = (
            "device must be one of 0 GPUs" in outcome["runtime"]
        )  # torch has warned with the error of cudaGetDeviceCount
        return None if text_of(error) in outcome["runtime"] or no_gpu else f"the runtime says {outcome['runtime']}"
    failed = {job: said for job, said in outcome["jobs"].items() if said != clean[job]}
    for job, said in failed.items():
        if text_of(error) not in str(said) and name not in str(said):
            return f"job {job} says {said}"
    if name not in STICKY and len(failed) > 1:
        return f"both jobs failed: {failed}"
    if name in STICKY and both_run and len(failed) < 2:
        return f"only {sorted(failed)} failed: {outcome['jobs']}"
    return None


def check_every_call(cases: Cases, policy: str, positions: list[float]) -> None:
    errors = documented(HEADERS)
    first = cases.run({"policy": policy, "count": sorted(errors)})
    assert first == {**first, "status": 0, "runtime": None, "left": []}
    clean = first["jobs"]
    assert all(len(digest) == 64 for digest in clean.values()), clean
    calls = {call: count for call, count in first["calls"].items() if count > 0 and call not in TORCH_ABORTS}
    assert len(calls) > 20
    failures = [
        (call, name, error, skip)
        for call, count in calls.items()
        for name, error in errors[call].items()
        for skip in sorted({int(position * (count - 1)) for position in positions})
    ]
    outcomes = cases.run_all(
        [{"policy": policy, "call": call, "error": error, "skip": skip} for call, _, error, skip in failures]
    )
    complaints = [
        f"{call} {skip + 1} of {calls[call]} returns {name}: {wrong}"
        for (call, name, error, skip), outcome in zip(failures, outcomes, strict=True)
        if (wrong := complaint(outcome, clean, name, error, positions == [0.5])) is not None
    ]
    assert not complaints, f"{len(complaints)} of {len(failures)} cases:\n" + "\n".join(complaints)


def test_a_call_that_fails_fails_its_job_alone(cases: Cases) -> None:
    check_every_call(cases, "priority", [0.5])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["priority", "strict", "best_fit", "resource"])
def test_a_call_that_fails_anywhere_fails_its_job_alone(cases: Cases, policy: str) -> None:
    check_every_call(cases, policy, [0, 0.25, 0.5, 0.75, 1])
