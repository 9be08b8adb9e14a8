"""Packages of compiled steps: what is refused, and the cache that holds them."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import zipfile
from pathlib import Path

import preloaded
import pytest
import torch
from compiled_jobs import COMPILING_S, Training, compiled, run_one
from conftest import wait_until

import torchshare
from torchshare import _C, Job
from torchshare.training import step_package

pytestmark = pytest.mark.timeout(2 * COMPILING_S)


def package_with(cache: Path, tmp_path: Path, what: str, value: str) -> str:
    """The package of a step on the CPU, with changed metadata."""
    run_one(compiled("mlp", steps=2))
    needed = (b"compiled step", b'"AOTI_DEVICE_KEY": "cpu"')  # stored uncompressed
    step = next(path for path in cache.glob("*.pt2") if all(text in path.read_bytes() for text in needed))
    made = tmp_path / "changed.pt2"
    with zipfile.ZipFile(step) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith("metadata.json"):
                data = json.dumps({**json.loads(data), what: value}).encode()
            target.writestr(item, data)
    return str(made)


def test_packages_that_do_not_fit_are_refused(cache: Path, tmp_path: Path) -> None:
    changed = package_with(cache, tmp_path, "torchshare.torch", "2.9.1")
    here = re.escape(torch.__version__.partition("+")[0])
    with pytest.raises(ValueError, match=rf"must be compiled for torch {here}, got 2\.9\.1"):
        _C.StepPackage(changed)
    (tmp_path / "no.pt2").write_text("no package")
    with pytest.raises(ValueError, match="is not the package of a compiled step"):
        _C.StepPackage(str(tmp_path / "no.pt2"))
    graph = _C.StepPackage(package_with(cache, tmp_path, "a", "b"))
    with pytest.raises(ValueError, match=r"expects \d+ inputs, got 1"):
        graph.check([torch.ones(3)])
    one = "Double[1] strides [1] cpu"
    graph = _C.StepPackage(package_with(cache, tmp_path, "torchshare.inputs", one))
    with pytest.raises(ValueError, match=r"expects input 0 to be Double\[1\] strides \[1\] cpu, got Float\[1\]"):
        graph.check([torch.ones(1)])


@pytest.mark.slow
def test_the_cache_is_used_and_damage_to_it_repaired(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torchshare")

    def compilations(job: Job) -> int:
        caplog.clear()
        training = Training("mlp")
        training.step(job)
        return sum("compiling" in record.message for record in caplog.records)

    run_one(compilations)
    assert run_one(compilations).value == 0
    for package in own_cache.glob("*.pt2"):
        package.unlink()
    assert run_one(compilations).value == 1
    damaged = next(own_cache.glob("*.pt2"))
    damaged.write_bytes(damaged.read_bytes()[:-30] + bytes(30))
    assert run_one(compilations).value == 1
    assert run_one(compilations).value == 0
    assert len(list(own_cache.glob("*.pt2"))) == 1


@pytest.mark.slow
def test_two_jobs_with_the_same_step_compile_it_once(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torchshare")
    with torchshare.Runtime() as runtime:
        for name in ("first", "second"):
            runtime.submit(compiled("mlp", steps=3), name=name, threads=1)
        runtime.wait(timeout=COMPILING_S)
    assert sum("compiling" in record.message for record in caplog.records) == 1


def test_a_cancel_ends_a_compilation(own_cache: Path) -> None:
    def train(job: Job) -> None:
        Training("transformer").step(job)

    preloaded.Process(["-c", ""]).wait()  # starts the server that compilations are forked from: a cancel waits for that
    with torchshare.Runtime() as runtime:
        job = runtime.submit(train, threads=1)
        runtime.start()
        wait_until(lambda: any(own_cache.glob("compile-*")))
        job.cancel()
        assert runtime.wait(timeout=300)["train"].state == "cancelled"
    assert not any(own_cache.glob("compile-*")) and not any(own_cache.glob("*.pt2")), "it was compiled to its end"


@pytest.mark.slow
def test_a_package_that_crashes_when_it_is_loaded_leaves_the_job_in_eager(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a compiler with another C++ library than torch's: seen on an H200, where both jobs' process crashed."""
    (tmp_path / "crash.c").write_text("__attribute__((constructor)) void crash(void) { __builtin_trap(); }")
    crash = tmp_path / "crash.o"
    subprocess.run(["gcc", "-c", "-fPIC", "-o", crash, tmp_path / "crash.c"], check=True)
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" -shared "*) set -- "$@" {crash};; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(step_package, "Popen", subprocess.Popen)  # one that has not read CXX yet

    def train(job: Job) -> str | None:
        training = Training("mlp")
        step = training.step(job)
        for batch in job.batches(training.batches):
            step(batch)
        return step.fallback

    assert run_one(train).value == "the compiler failed: the package was compiled, but does not load"
