"""Jobs on several ranks: process groups, and what ranks must agree on. Each test starts two processes with torchrun."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import preloaded
import pytest
from conftest import free_port, on_both, torchshare_command
from torch.distributed import run

from torchshare.cli import launch

PROGRAMS = Path(__file__).parent / "ranks"
TWO_RANKS = ["--standalone", "--nproc-per-node=2"]
SCRIPT = Path(__file__).parents[2] / "examples" / "scripts" / "ddp" / "train.py"


def torchrun(
    *arguments: str, folder: Path, timeout: float = 300, launcher: str = "torch.distributed.run"
) -> subprocess.CompletedProcess[str]:
    """Runs a program on two ranks."""
    run = preloaded.Process(
        ["-m", *launcher.split(), *TWO_RANKS, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    out, err = run.communicate(timeout=timeout)  # kills all of its processes if it takes too long
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


def two_ranks(arguments: list[str], folder: Path, watched: int, timeout: float) -> tuple[int, str, str]:
    """Runs Python on two ranks without a launcher, until the watched one ends: its status and output."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": folder}
    ranks = [preloaded.Process(arguments, env={**os.environ, **place, "RANK": str(rank)}, **pipes) for rank in range(2)]
    try:
        out, err = ranks[watched].communicate(timeout=timeout)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return ranks[watched].returncode, out, err


@on_both
def test_jobs_have_default_groups_of_their_own_and_ddp_is_bit_identical(tmp_path: Path, device: str):
    ran = torchrun(str(PROGRAMS / "groups.py"), device, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    for what in ("priority: [True, True]", "strict: [True, True]", "best_fit: [True, True]", "inherits: True"):
        assert ran.stdout.splitlines().count(what) == 2  # ranks


@on_both
def test_what_holds_on_one_rank_holds_on_all(tmp_path: Path, device: str):
    """Suspend, cancel, failure; sub-batches may differ; other jobs are refused."""
    ran = torchrun(str(PROGRAMS / "agree.py"), device, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    checks = ["failure_on_one_rank", "other_jobs", "ranks_may_differ_in_sub_batches", "suspend_and_cancel"]
    assert sorted(ran.stdout.splitlines()) == sorted(2 * checks)
    assert ran.stderr.count("job 'a' ends on rank 0: it failed with ValueError: no data on rank 1") == 2


@pytest.mark.slow
def test_fsdp2_and_pipeline_schedules_are_bit_identical(tmp_path: Path):
    ran = torchrun(str(PROGRAMS / "sharded.py"), folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 2 * 5, ran.stdout


def test_all_ranks_take_the_same_decisions(tmp_path: Path):
    """Starts, suspensions, the bound, cancellations; except in runtimes of their own."""
    ran = torchrun(str(PROGRAMS / "decisions.py"), folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 2 * 7, ran.stdout


DYING = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(10**6):
    dist.all_reduce(torch.ones(4))
    if step == 100 and dist.get_rank() == 1 and sys.argv[1:]:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_rank_killed_in_a_collective_ends_all_jobs(tmp_path: Path):
    (tmp_path / "dying.py").write_text(DYING)
    ran = torchrun("dying.py kill", "dying.py", folder=tmp_path, launcher="torchshare launch")
    assert ran.returncode == 1 and "Signal 9 (SIGKILL)" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "reason"), [(0, "the store of the ranks is lost"), (1, "rank 1 has not been heard of")]
)
def test_a_rank_killed_during_a_decision_ends_all_jobs(dies: int, reason: str, tmp_path: Path):
    """The error names the reason: the program's own wait for the jobs would end with another one."""
    arguments = [str(PROGRAMS / "dying.py"), str(dies)]
    _, out, err = two_ranks(arguments, tmp_path, watched=1 - dies, timeout=300)
    assert reason in err and reason in out and "running" not in out.splitlines()[-1], out + err


DIES = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    torch.ones(4).sum()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("whole_exit")
def test_the_results_of_a_run_are_told_though_a_rank_has_died(tmp_path: Path):
    """Exit status 2 would say that the command was wrong."""
    (tmp_path / "dies.py").write_text(DIES)
    arguments = ["-m", "torchshare", "run", "--timeline", "out.json", "dies.py"]
    status, out, err = two_ranks(arguments, tmp_path, watched=0, timeout=300)
    assert status == 1, out + err
    assert "rank 1 has not been heard of" in err
    assert "dies" in out and "steps/s" in out
    assert (tmp_path / "out.json").exists()


RESTARTED = """
import os, signal, sys, torch, torch.distributed as dist
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
total = torch.ones(4)
for step in range(50):
    dist.all_reduce(total)
    total /= 2
    if step == 20 and dist.get_rank() == 1 and sys.argv[1] == "dies" and attempt == "0":
        os.kill(os.getpid(), signal.SIGKILL)
open(f"{sys.argv[1]}.{attempt}.{dist.get_rank()}", "w").close()
"""


@pytest.mark.slow
def test_jobs_begin_again_after_an_elastic_restart(tmp_path: Path):
    (tmp_path / "restarted.py").write_text(RESTARTED)
    targets = ["restarted.py dies", "restarted.py stays"]
    ran = torchrun("--max-restarts=1", *targets, folder=tmp_path, launcher="torchshare launch", timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert {path.name for path in tmp_path.glob("dies.*")} == {"dies.1.0", "dies.1.1"}
    assert {path.name for path in tmp_path.glob("stays.1.*")} == {"stays.1.0", "stays.1.1"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rounds_do_not_deadlock(tmp_path: Path):
    ran = torchrun(str(PROGRAMS / "rounds.py"), "30", folder=tmp_path, timeout=550)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("round ") == 30


@pytest.mark.slow
def test_launch_runs_ddp_scripts_on_all_ranks_as_torchrun_does(tmp_path: Path):
    """Bit-identical, although the other job has groups too. Only the first rank prints results."""
    (tmp_path / "plain").mkdir()
    plain = torchrun(str(SCRIPT), "--seed", "2", "--epochs", "1", "--checkpoint", "plain/2.pt", folder=tmp_path)
    assert plain.stdout, plain.stderr  # the status may be an error: on a busy machine, torch 2.11 may abort at exit
    commands = [f"{SCRIPT} --seed {seed} --epochs 1 --checkpoint {seed}.pt" for seed in (1, 2)]
    options = ["--policy", "strict", "--timeline", "trace.json"]
    ran = torchrun(*options, *commands, folder=tmp_path, launcher="torchshare launch")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "2.pt").read_bytes() == (tmp_path / "plain" / "2.pt").read_bytes()
    assert [line.split()[:4] for line in ran.stdout.splitlines() if "[" not in line][:3] == [
        ["job", "priority", "state", "steps"],
        ["train", "primary", "finished", "16"],
        ["train-2", "secondary", "finished", "16"],
    ]
    assert f"train-2[0]: {plain.stdout.strip()}" in ran.stdout.splitlines()
    assert (tmp_path / "trace.json").exists() and (tmp_path / "trace.rank1.json").exists()


def test_launch_checks_the_options_before_it_starts_processes(tmp_path: Path):
    for words, message in (
        (["--frob", "2", "a.py"], "unknown option --frob; see torchshare run --help"),
        (["a.py", "b.py", "--frob"], "options come before the targets"),
    ):
        ran = torchshare_command("launch", "--nproc-per-node=2", *words, folder=tmp_path)
        assert ran.returncode == 2 and message in ran.stderr, ran.stderr
    assert "torchrun's options" in torchshare_command("launch", "--help", folder=tmp_path).stdout


def test_launch_takes_torchruns_options_up_to_the_first_other_word():
    parser = run.get_args_parser()
    assert launch.split(parser, ["--nnodes", "2", "--standalone", "-r", "3", "--seed", "1", "a.py", "--role", "x"]) == (
        ["--nnodes", "2", "--standalone", "-r", "3"],
        ["--seed", "1", "a.py", "--role", "x"],
    )
    assert launch.split(parser, ["--role=x", "-m", "train"]) == (["--role=x"], ["-m", "train"])
