"""A kind of device is one class; what else knows kinds of devices asks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchshare
from torchshare.cli import doctor
from torchshare.device import devices
from torchshare.device.device import Device, Finding

PACKAGE = Path(torchshare.__file__).parent
ONLY_FOR_CUDA = {"isolation/cuda.py"}  # what is replaced in torch.cuda


class Npu(Device):
    """A device as someone would add it."""

    kind = "npu"

    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def name(self, index: int = 0) -> str:
        return f"NPU number {index}"

    def findings(self) -> Iterator[Finding]:
        yield Finding("NPU", "2 of them", "graphs")


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Npu:
    added = Npu()
    monkeypatch.setattr(devices, "ALL", [*devices.ALL, added])
    return added


def test_a_device_that_is_added_is_started_named_and_found(npu: Npu) -> None:
    assert doctor.findings() is not None and Finding("NPU", "2 of them", "graphs") in list(doctor.findings())
    assert devices.name_of("npu:1") == "npu:1: NPU number 1" and devices.best() is npu
    for place in ("cpu", "npu:1", "auto"):
        devices.start(place)
    assert npu.starts == 2


def test_a_device_without_caches_and_graphs_needs_no_code_for_them(npu: Npu) -> None:
    npu.empty_cache()
    assert not devices.is_capturing()


def test_the_cpu_has_the_name_of_its_model_and_its_cores() -> None:
    assert re.fullmatch(r"cpu: .+, \d+ cores", devices.name_of("cpu"))
    assert devices.of("cpu:0") is devices.CPU and devices.CPU.is_started()


def test_a_runtime_on_the_cpu_leaves_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: pytest.fail("CUDA was initialized"))
    with torchshare.Runtime(device="cpu"):
        pass


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_cuda_is_used_by_the_device_only(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    uses = [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    if name not in ONLY_FOR_CUDA | {"device/cuda.py"}:
        assert [use for use in uses if use.startswith("torch.cuda.")] == []
