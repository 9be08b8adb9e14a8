"""examples/cpp, built against this torchshare like a user's C++ program. test_wheel.py does it with the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import run_one
from torch import nn
from torch.nn import functional as F

from torchshare import Job
from torchshare.training.step_tracer import StepTracer

ROOT = Path(__file__).parents[2]
STEPS = 200


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    prefix = run(sys.executable, "-m", "torchshare", "--cmake-prefix").strip()
    run("cmake", "-S", ROOT / "examples" / "cpp", "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder / "build")
    return folder / "build" / "pair"


def losses(line: str) -> tuple[float, float]:
    words = line.split()
    return float(words[-3]), float(words[-1])


@pytest.mark.slow
def test_a_pair_of_libtorch_loops(example: Path) -> None:
    lines = sorted(run(example).splitlines())
    assert [line.split()[:2] for line in lines] == [["line", "primary"], ["second", "secondary"]]
    for line in lines:
        first, last = losses(line)
        assert first > 0.5 and last < 0.01


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("counts_apart", [False, True])
def test_a_step_saved_by_python_trains_on_in_cpp(
    example: Path, tmp_path: Path, counts_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++ prints the losses that Python gets when it continues from the same state. On a GPU, the number of steps is
    increased outside of the graph."""
    monkeypatch.setattr(StepTracer, "_counts_apart", lambda *_: counts_apart)

    def train(job: Job) -> torch.Tensor:
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batch = torch.randn(10, 6), torch.randint(0, 4, (10,))
        step = job.compiled_step(model, lambda x, y: F.cross_entropy(model(x), y), optimizer, batch)
        with pytest.raises(RuntimeError, match="none trained on"):
            step.save(tmp_path / "early")
        job.fit(step, [batch], steps=3)
        step.save(tmp_path / "step")
        return job.fit(step, [batch], steps=STEPS)

    expected = run_one(train, timeout=300).value
    line = next(line for line in run(example, tmp_path / "step").splitlines() if line.startswith("second"))
    assert losses(line) == pytest.approx((expected[0].item(), expected[-1].item()), abs=1e-4)


@pytest.mark.slow
def test_a_folder_without_a_step(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([example, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "'second' failed" in done.stderr and "tensors.pt' cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("2.99.0", rf"torchshare was built with torch {re.escape(torch.__version__)}, and .*/torch is 2.99.0"),
        (None, r"no torch in CMAKE_PREFIX_PATH. Give -DCMAKE_PREFIX_PATH=\$\(torchshare --cmake-prefix\)"),
    ],
    ids=["another torch", "no torch"],
)
def test_cmake_says_which_torch_is_missing(tmp_path: Path, version: str | None, message: str) -> None:
    found = tmp_path / "torch"
    if version:
        (found / "lib").mkdir(parents=True)
        (found / "lib" / "libtorch_cpu.so").touch()
        (found / "version.py").write_text(f"__version__ = '{version}'\n")
    prefix = f"{ROOT / 'torchshare' / 'cpp'};{found}"
    command = ["cmake", "-S", ROOT / "examples" / "cpp", "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert re.search(message, " ".join(done.stderr.split()))
