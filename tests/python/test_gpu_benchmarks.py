"""The GPU's measuring code, on numbers whose answer is known, and once on the CPU with tiny models."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GPU = ROOT / "benchmarks" / "gpu"
sys.path.insert(0, str(GPU))

import timeline  # noqa: E402

import figures  # noqa: E402
import micro  # noqa: E402
from record import spread  # noqa: E402


def job(rate: float) -> dict[str, float]:
    return {"rate": rate, "step_ms": 1e3 / rate, "p99_ms": 2e3 / rate}


def repetition(primary: float, secondary: float, processes: float = 0.5) -> dict[str, Any]:
    """Relative rates of one mode of ours; both jobs do 10 steps/s alone."""
    return {
        "alone": [job(10), job(10)],
        "processes": [job(10 * processes), job(10 * processes)],
        "torchshare-strict": [job(10 * primary), job(10 * secondary)],
    }


def test_figures_are_relative_to_alone_in_the_same_repetition() -> None:
    found = figures.summary([repetition(1.0, 0.25), repetition(0.8, 0.4)])["torchshare-strict"]
    assert found["primary_slowdown"] == spread([1.0, 1.25])
    assert found["secondary_share"] == pytest.approx(spread([0.25, 0.4]))
    assert found["aggregate"] == pytest.approx(spread([1.25, 1.2]))
    assert found["vs_processes"] == pytest.approx(spread([1.25, 1.2]))


def test_a_mode_that_failed_says_why_and_the_others_stay() -> None:
    broken = repetition(1.0, 0.25) | {"processes": {"error": "out of memory"}}
    found = figures.summary([broken])
    assert found["processes"] == {"error": "out of memory"}
    assert found["torchshare-strict"]["aggregate"]["median"] == 1.25
    assert "vs_processes" not in found["torchshare-strict"]
    assert figures.table("a pair", found).row_count == len(found)


def test_a_repetition_that_is_cut_short_leaves_what_it_had() -> None:
    begun = {"alone": [job(10), job(10)]}
    failing = repetition(1.0, 0.25) | {"processes": {"error": "out of memory"}}
    found = figures.summary([failing, begun])
    assert found["processes"] == {"error": "out of memory"}
    assert found["torchshare-strict"]["repetitions"] == 1
    assert set(figures.summary([begun])) == {"alone", "in-turn"}


@pytest.mark.parametrize(
    ("primary", "secondary", "reached"), [(0.99, 0.3, True), (0.9, 0.3, False), (0.99, 0.19, False)]
)
def test_a_target_is_reached_or_not_and_its_number_is_said(primary: float, secondary: float, reached: bool) -> None:
    name = f"{figures.TARGET_PAIR} fp32"
    lines = figures.targets({name: figures.summary([repetition(primary, secondary)])})
    assert f": {'reached' if reached else 'NOT reached'}: torchshare-strict {primary:.3f}, {secondary:.2f}" in lines[0]
    assert lines[1].startswith("aggregate >= two processes on every pair: reached" if secondary >= 0.2 else "aggregate")
    assert lines[2].endswith("not measured")


def test_targets_that_were_not_measured_are_not_reached() -> None:
    assert all("not measured" in line for line in figures.targets({}))


@pytest.mark.slow
def test_it_runs_on_the_cpu_with_tiny_models(tmp_path: Path) -> None:
    script = GPU / "pairs.py"
    options = "--device cpu --tiny --window 0.3 --repetitions 1 --dtypes fp32 --modes torchshare-graphs"
    ran = subprocess.run(
        [sys.executable, script, *options.split(), "--pairs", "mobilenet-64+bert-8", "--output", tmp_path],
        capture_output=True, text=True, timeout=550, check=True,
    )  # fmt: skip
    assert "torchshare-graphs" in ran.stdout
    summary = json.loads((tmp_path / "pairs.json").read_text())["summary"]["mobilenet-64+bert-8 fp32"]
    assert summary["torchshare-graphs"]["aggregate"]["median"] > 0


@pytest.mark.slow
def test_profiles_of_a_pair_are_written_for_the_simulator(tmp_path: Path) -> None:
    options = "--tiny --pairs lstm-64+bert-8 --splits 1 --window 0.1"
    command = [sys.executable, GPU / "profiles.py", *options.split(), "--output", tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=550, check=True)
    assert re.search(r"^lstm-64:  [\d.]+ ms in 1$", ran.stdout, re.M) and "1 beside 1:" in ran.stdout
    assert [each["job"] for each in json.loads((tmp_path / "profiles.json").read_text())["profiles"]] == [
        "lstm-64", "bert-8"
    ]  # fmt: skip
    first, second = (tmp_path / "ratios.csv").read_text().splitlines()
    assert first == "job_a,job_b,xi_a,xi_b" and second.startswith("lstm-64,bert-8,")
    jobs = "job,arrival_s,duration_s,gpus,model\na,0,100,1,lstm-64\nb,0,100,1,bert-8\n"
    (tmp_path / "jobs.csv").write_text(jobs)
    options = "--trace jobs.csv --interference ratios.csv --policy sjf-bsbf --gpus 1 --gpus-per-node 1"
    command = [sys.executable, "-m", "torchshare", "simulate", *options.split()]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0 and "sjf-bsbf" in ran.stdout, ran.stderr


def plan(*stages: str, **environment: str) -> list[str]:
    command = ["/bin/sh", GPU / "run_all.sh", "--plan", *stages]
    ran = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def test_the_plan_has_a_line_per_stage_and_their_sum() -> None:
    lines = plan()
    limits = [int(found[1]) for line in lines if (found := re.match(r"\w+ +at most +(\d+) s  \w", line))]
    names = [line.split()[0] for line in lines[: len(limits)]]
    assert names[:3] == ["build", "doctor", "tests"] and len(names) == 11
    assert lines[len(limits)].startswith(f"in all at most {-(-sum(limits) // 60)} min; ")
    assert all(line.startswith("missing: ") for line in lines[len(limits) + 1 :])


def test_the_plan_of_some_stages() -> None:
    lines = plan("tests")
    assert lines[0].startswith("tests      at most 180 s  ")
    assert lines[1].startswith("in all at most ")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        plan("tests", "bogus")
    assert refused.value.returncode == 2
    assert refused.value.stderr.startswith("there is no stage 'bogus'; there are build doctor tests ")


def test_the_first_hour_has_three_commands_of_nine_minutes_in_which_all_headlines_are_measured() -> None:
    stages = [name for group in ("first", "headline-1", "headline-2") for name in minutes(group, at_most=9)]
    assert stages[:1] == ["build"] and stages[-4:] == minutes("headline", at_most=18)
    assert sorted(stages[-4:]) == ["fikit", "micro", "pairs", "profiles"]


def minutes(group: str, at_most: int) -> list[str]:
    """The group's stages, which take that long at most."""
    lines = plan(group)
    (total,) = (number for number, line in enumerate(lines) if line.startswith("in all at most "))
    assert int(lines[total].split()[4]) <= at_most
    return [line.split()[0] for line in lines[:total]]


def test_the_plan_says_what_is_missing_and_runs_nothing(tmp_path: Path) -> None:
    """On a machine that has only a shell's own tools."""
    for tool in ("dirname", "find", "sed", "tr"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    missing = [
        line for line in plan(PATH=str(tmp_path), RESULTS=str(tmp_path / "results")) if line.startswith("missing: ")
    ]
    for what in ("torch for CUDA", "a GPU", "cmake", "packages", "compute-sanitizer"):
        assert any(line.startswith(f"missing: {what}") for line in missing), what
    assert any("wheels.sh numpy rich" in line for line in missing)
    assert not (tmp_path / "results").exists()


def kernel(name: str, stream: int, begin: float, length: float) -> dict[str, Any]:
    return {"cat": "kernel", "name": name, "ts": begin, "dur": length, "args": {"stream": stream}}


def test_the_lanes_of_a_gpus_trace() -> None:
    """Kineto's events: the primary's stream has the marker, the secondary's is the busiest of the others."""
    events = [
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0.0, "dur": 5.0, "args": {}},
        kernel("at::cuda::(anonymous namespace)::spin_kernel(long)", 20, 1000.0, 10.0),
        *(kernel("gemm", 20, 2000.0 + 100 * i, 60.0) for i in range(50)),
        *(kernel("conv", 7, 2060.0 + 100 * i, 20.0) for i in range(50)),
        {**kernel("Memset", 13, 1000.0, 1.0), "cat": "gpu_memset"},
    ]
    primary, secondary = timeline.lanes(events, "cuda", 0)
    assert len(primary) == 51 and len(secondary) == 50
    said = timeline.report(primary[1:], secondary)
    assert "49 gaps between them" in said and "gaps filled: 1.0 of 2.0 ms (50.0%), 49 of 49" in said


def test_a_trace_without_kernels_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="expected kernels of two jobs"):
        timeline.lanes([{"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0.0, "dur": 5.0}], "cuda", 0)


@pytest.mark.parametrize("name", ["run_all.sh", "wheels.sh"])
def test_the_scripts_are_sound_shell(name: str) -> None:
    subprocess.run(["sh", "-n", GPU / name], check=True)
    named = re.findall(r"benchmarks/gpu/\w+\.(?:py|sh)", (GPU / name).read_text())
    assert all((ROOT / path).exists() for path in named)


def test_what_torchshare_costs_alone_is_measured_in_turns(tmp_path: Path) -> None:
    options = "--device cpu --tiny --kinds lstm-64 --modes strict --rounds 2 --window 0.05"
    command = [sys.executable, GPU / "alone.py", *options.split(), "--output", tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "strict" in ran.stdout
    figures = json.loads((tmp_path / "alone.json").read_text())["lstm-64"]
    assert figures["plain"]["over_plain"] == spread([1.0])
    assert figures["strict"]["over_plain"]["min"] > 0


def test_a_figure_is_compared_with_the_first_mode_in_the_same_turn() -> None:
    times = {"a": iter([1.0, 2.0]), "b": iter([2.0, 2.0])}
    found = micro.in_turns({name: lambda name=name: {"ms": next(times[name])} for name in times}, 2, "ms")
    assert found == {"a": {"ms": spread([1.0, 2.0])}, "b": {"ms": spread([2.0]), "ms_over_a": spread([2.0, 1.0])}}


def test_a_stall_is_what_the_longest_step_with_a_call_in_it_takes_more() -> None:
    steps = [(0.0, 1.0), (1.0, 2.0), (2.0, 5.0), (5.0, 5.5), (6.0, 7.0)]
    found = micro.stalls(steps, [(2.5, 5.25), (5.6, 5.8)])
    assert found == {"step_ms": 1e3, "stall_ms": 1e3, "stall_max_ms": 2e3, "call_ms": pytest.approx(1475.0)}
    with pytest.raises(RuntimeError, match="expected calls, and steps without a call, got 0 calls in 5 steps"):
        micro.stalls(steps, [])
    with pytest.raises(RuntimeError, match="got 1 calls in 5 steps"):
        micro.stalls(steps, [(0.0, 9.0)])


@pytest.mark.slow
def test_the_small_figures_are_measured_on_the_cpu_and_one_that_fails_says_why(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--tiny", "--window", "0.1", "--repetitions", "1", "--output", tmp_path]
    ran = subprocess.run([sys.executable, GPU / "micro.py", *options], capture_output=True, text=True, timeout=300)
    found = json.loads((tmp_path / "micro.json").read_text())
    assert ran.returncode == 0 and list(found) == ["environment", "priority", "launches", "first_step"], ran.stderr
    assert set(found["launches"]) == {"one thread", "two threads", "two jobs", "two processes"}
    assert found["first_step"]["second job"]["later_step_ms"]["median"] > 0
    failing = [sys.executable, GPU / "micro.py", *options, "--figures", "sms", "launches"]
    ran = subprocess.run(failing, capture_output=True, text=True, timeout=300)
    found = json.loads((tmp_path / "micro.json").read_text())
    assert ran.returncode == 1 and ran.stderr.splitlines()[-1] == "failed: sms"
    assert "error" in found["sms"] and found["launches"]["one thread"]["per_second"]["median"] > 0
