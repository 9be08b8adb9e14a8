"""Programs that are killed or asked to end, and resume: alone, and under the supervisor."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import completed, free_port, launch, python, script, torchshare_command, wait_until
from test_checkpoints import steps_in
from test_ranks import PROGRAMS, torchrun

from torchshare.cli import supervisor
from torchshare.runtime import crashes

TRAIN = """
import os, sys, time, torch, torchshare
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
out, epochs, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = torchshare.batches(DataLoader(TensorDataset(torch.randn(64, 6), torch.arange(64) % 3), 8, shuffle=True))
optimizer = torchshare.accumulate(optimizer)
torchshare.track(model=model, optimizer=optimizer, loader=loader)
steps = 0
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
        if steps == 2:
            print("began", flush=True)
        time.sleep(0 if os.path.exists("quick") else pause)
torch.save(model.state_dict(), out)
"""
CRASHES = """
import ctypes, torch
def work():
    for step in range(10**6):
        torch.ones(4)
        if step == 50:
            ctypes.string_at(0)
work()
"""


CRASHES_BESIDE_A_WORKER = """
import ctypes, os, time, torch, torchshare
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        if index == 40 and not os.path.exists("crashed"):
            open("blocked", "w").close()
            time.sleep(20)
        return torch.ones(6)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torchshare.batches(DataLoader(Slow(), 8, num_workers=1, multiprocessing_context="fork"))
optimizer = torchshare.accumulate(optimizer)
torchshare.track(model=model, optimizer=optimizer, loader=loader)
for step, x in enumerate(loader):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    if step == 3 and not os.path.exists("crashed"):
        while not os.path.exists("blocked"):
            time.sleep(0.01)
        open("crashed", "w").close()
        ctypes.string_at(0)
"""


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)


def same(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of 8 epochs under plain Python."""
    folder = tmp_path_factory.mktemp("whole")
    script(folder, "train.py", TRAIN)
    subprocess.run([sys.executable, "train.py", "whole.pt", "8", "0"], cwd=folder, check=True, env=one_thread())
    return folder / "whole.pt"


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def start(folder: Path, *options: str, jobs: tuple[str, ...] = ("train.py out.pt 8 0.5",)) -> subprocess.Popen[str]:
    script(folder, "train.py", TRAIN)
    words = ["--checkpoint", "ckpt", "--device", "cpu", "--threads", "1", "--output", "plain", *options, *jobs]
    return launch("-m", "torchshare", "run", *words, folder=folder)


def resumed(folder: Path) -> subprocess.CompletedProcess[str]:
    words = ("--checkpoint", "ckpt", "--resume", "--device", "cpu", "--threads", "1", "train.py out.pt 8 0")
    return torchshare_command("run", *words, folder=folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_writes_a_checkpoint_and_the_run_resumes(tmp_path: Path, whole: Path, number: signal.Signals):
    """Under plain Python, the script's own lines do nothing."""
    process = start(tmp_path, "--every", "1h")
    assert process.stdout.readline() == "began\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number, err
    (step,) = steps_in(tmp_path / "ckpt")
    assert 1 < step < 64 and not (tmp_path / "out.pt").exists()
    done = resumed(tmp_path)
    assert done.returncode == 0 and f"resumes at step {step}" in done.stderr, done.stderr
    assert same(tmp_path / "out.pt", whole)
    done = torchshare_command("run", "--checkpoint", "ckpt", "train.py out.pt 8 0", folder=tmp_path)
    assert done.returncode == 2 and "has checkpoints of it: resume from them" in done.stderr


BLOCKED = """
import signal, threading, time, os, torch, torchshare
from torchshare.isolation import process_signals
def train(job):
    model = torch.nn.Linear(1, 1)
    job.track(model=model)
    for batch in job.batches([torch.ones(1, 1)] * 3):
        batch.backward(lambda x: model(x).sum())
        inside.set()
        time.sleep(100)
def kill():
    inside.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    while not process_signals.terminating():
        time.sleep(0.01)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
inside = threading.Event()
with torchshare.Runtime(device="cpu", checkpoint="ckpt") as runtime:
    runtime.submit(train)
    runtime.start()
    began = time.monotonic()
    threading.Thread(target=kill, daemon=True).start()
    try:
        runtime.wait()
    finally:
        print(f"waited {time.monotonic() - began:.1f}")
"""


def test_a_second_sigterm_does_not_wait(tmp_path: Path):
    """The first one waits: it is not the end of the step that ends this job."""
    process = launch("-c", BLOCKED, folder=tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 143, err
    assert 1 <= float(out.split()[-1]) < 90  # the step takes 100


@pytest.mark.slow
def test_a_run_that_crashed_serves_metrics_again(tmp_path: Path) -> None:
    """Though the worker of its loader has not yet noticed."""
    script(tmp_path, "train.py", CRASHES_BESIDE_A_WORKER)
    port = free_port()
    options = f"--checkpoint ckpt --every 5 --device cpu --max-restarts 1 --metrics-port {port}"
    process = launch("-m", "torchshare", "run", *options.split(), "train.py", folder=tmp_path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert err.count(f"metrics at http://127.0.0.1:{port}/metrics") == 2, err


KILLS = """
import os, random, signal, shutil, sys, time
from pathlib import Path
import torch, torchshare, torch._dynamo
sys.path.insert(0, sys.argv[1])
from test_checkpoints import Fault, identical, noisy, sgd

beats = os.pipe()

class Slow(Fault):
    def step(self):
        os.write(beats[1], b".")
        time.sleep(0.01)

def run(folder, fault):
    with torchshare.Runtime(device="cpu", checkpoint=folder, every=1, resume=True) as runtime:
        os.write(beats[1], b".")
        runtime.submit(noisy(fault), name="a", threads=1)
        runtime.submit(sgd(fault), name="b", threads=1)
        results = runtime.wait(300)
    torch.save([results[name].value for name in "ab"], folder / "end.tmp")
    os.rename(folder / "end.tmp", folder / "end")

folder, kills = Path(sys.argv[2]), int(sys.argv[3])
chance = random.Random(int(sys.argv[4]))
torch.set_num_threads(1)

def attempt(folder, fault, patience, after=1):
    global beats
    beats = os.pipe()
    pid = os.fork()
    if pid == 0:
        folder.mkdir(exist_ok=True)
        run(folder, fault)
        os._exit(0)
    os.close(beats[1])
    if patience is not None:
        for _ in range(after):
            os.read(beats[0], 1)
        time.sleep(patience)
        os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] in (0, signal.SIGKILL)
    return (folder / "end").exists()

assert attempt(folder / "whole", Fault(), None)
whole = torch.load(folder / "whole" / "end", weights_only=True)
rounds = killed = 0
while killed < kills or not rounds:
    patience = chance.uniform(0, 0.8) if killed < kills else None
    ended = attempt(folder / "killed", Slow(), patience, after=10 if killed % 2 else 1)  # steps, or at the start
    killed += 1
    if ended:
        assert identical(torch.load(folder / "killed" / "end", weights_only=True), whole)
        shutil.rmtree(folder / "killed")
        rounds += 1
print("rounds", rounds)
"""


@pytest.mark.parametrize("kills", [5, pytest.param(25, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_at_random_moments(kills: int, tmp_path: Path):
    """Two jobs that write a checkpoint at every step."""
    done = completed("-c", KILLS, str(Path(__file__).parent), str(tmp_path), str(kills), "7", timeout=550)
    assert done.returncode == 0 and "rounds" in done.stdout, done.stderr
    assert "resumes at step" in done.stderr


# The supervisor


def child_of(process: subprocess.Popen[str]) -> int:
    def children() -> list[str]:
        return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()

    wait_until(lambda: bool(children()))
    return int(children()[0])


def test_a_killed_process_is_started_again_and_resumes(tmp_path: Path, whole: Path):
    process = start(tmp_path, "--max-restarts", "3", "--every", "2")
    assert process.stdout.readline() == "began\n"
    wait_until(lambda: len(list((tmp_path / "ckpt").glob("*.pt"))) == 2)
    os.kill(child_of(process), signal.SIGKILL)
    (tmp_path / "quick").touch()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "torchshare: the process was ended by SIGKILL; restart 1 of 3\n" in err and "resumes at step" in err
    assert same(tmp_path / "out.pt", whole)


def test_signals_are_passed_on_and_end_the_supervisor(tmp_path: Path):
    process = start(tmp_path, "--max-restarts", "3")
    assert process.stdout.readline() == "began\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 143 and "restart" not in err, err
    assert len(steps_in(tmp_path / "ckpt")) == 1


@pytest.mark.slow
def test_a_job_that_crashes_three_times_in_a_row_is_dropped(tmp_path: Path, whole: Path):
    script(tmp_path, "bad.py", CRASHES)
    jobs = ("bad.py", "train.py out.pt 8 0.01")
    process = start(tmp_path, "--max-restarts", "3", "--every", "1", "--start", "step:1000", jobs=jobs)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    assert f"job 'bad' crashed the process: SIGSEGV at {tmp_path}/bad.py:7 (work); restart 3 of 3\n" in err
    assert "torchshare: job 'bad' is dropped: 3 times in a row, job 'bad' crashed the process: SIGSEGV at" in err
    assert 'bad.py", line 7 in work' in err
    assert same(tmp_path / "out.pt", whole)


@pytest.mark.slow
def test_restarts_are_limited_and_failures_are_no_crashes(tmp_path: Path):
    script(tmp_path, "bad.py", CRASHES)
    process = start(tmp_path, "--max-restarts", "1", jobs=("bad.py",))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGSEGV
    assert err.count("restart 1 of 1") == 1 and err.count("no restart is left of 1") == 1
    script(tmp_path, "fails.py", "import torch\nraise ValueError(torch.ones(1))")
    process = start(tmp_path, "--max-restarts", "1", jobs=("fails.py",))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "; restart" not in err, err


def test_supervision_is_refused_where_it_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script(tmp_path, "train.py", TRAIN)
    for words, message in (
        (("--max-restarts", "3"), "--max-restarts needs --checkpoint"),
        (("--max-restarts", "x", "--checkpoint", "c"), "--max-restarts must be a non-negative integer, got x"),
        (("--checkpoint", "c", "--every", "soon"), "every must be a number of steps, or a time such as"),
        (("--resume",), "resume has no effect without checkpoint"),
    ):
        done = torchshare_command("run", *words, "train.py out.pt 1 0", folder=tmp_path)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    done = torchshare_command("run", "--max-restarts", "3", "--checkpoint", "c", "train.py", folder=tmp_path)
    assert done.returncode == 2 and "torchrun restarts them" in done.stderr


def test_what_a_child_reports():
    def read(text: str, status: int) -> tuple[int, crashes.Crash | None]:
        return supervisor.read(io.BytesIO(text.encode()), status)

    job = '["job", 255, "a"]\n'
    stack = (
        'Fatal Python error: Aborted\n\nCurrent thread 0x00ff (most recent call first):\n  File "x.py", line 3 in f\n'
    )
    assert read(job, 0) == (0, None)
    assert read(job, 1) == (1, None)
    assert read(job, -signal.SIGTERM) == (143, None)
    status, crash = read(job + stack, -signal.SIGABRT)
    assert (status, crash.job, crash.how) == (134, "a", "job 'a' crashed the process: SIGABRT at x.py:3 (f)")
    assert read(stack, -signal.SIGABRT)[1].job is None
    left = '["left", 255, "a"]\n'  # and its thread's id may be that of another one
    assert read(job + left + stack, -signal.SIGABRT)[1].job is None
    assert read(job + left + '["job", 255, "b"]\n' + stack, -signal.SIGABRT)[1].job == "b"
    assert read(job + '["end", 0, ""]\n' + stack, -signal.SIGABRT) == (0, None)  # as torch 2.11 may, at exit
    lost = "device 'cuda:0' is lost to this process"
    assert read(job + f'["lost", 0, "{lost}"]\n', 1) == (1, crashes.Crash(lost, None))


AFTER_A_JOB = """
import ctypes, os, sys, threading, torchshare
from torchshare.runtime import crash_log
crash_log.open_for(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))
with torchshare.Runtime("cpu") as runtime:
    runtime.submit(lambda job: None, name="a")
    runtime.wait()
for _ in range(10):
    threads = [threading.Thread(target=threading.Event().wait, args=(0.01,)) for _ in range(5)]
    [thread.start() for thread in threads]
thread = threading.Thread(target=ctypes.string_at, args=(0,))
thread.start()
thread.join()
"""


def test_a_job_that_has_ended_is_not_blamed_for_a_later_thread(tmp_path: Path):
    report = tmp_path / "report"
    done = subprocess.run([sys.executable, "-c", AFTER_A_JOB, str(report)], capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGSEGV
    text = report.read_text()
    assert [line[0] for line in crashes.lines_of(text)] == ["job", "left"]
    assert crashes.stack_in(text)
    assert crashes.crash_in(text) is None


# Ranks


@pytest.mark.slow
def test_ranks_resume_from_the_newest_step_that_all_have(tmp_path: Path):
    ran = torchrun(str(PROGRAMS / "resume.py"), str(tmp_path / "ckpt"), folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    every = "every must be a number of steps, because the ranks must save at the same one"
    assert sorted(ran.stdout.splitlines()) == sorted(2 * ["kept: True", "identical: True", every]), ran.stderr
    assert ran.stderr.count("job 'a': resumes at step 9") == 2


def test_plain_python_may_call_track():
    done = python("import torchshare, torch\ntorchshare.track(model=torch.nn.Linear(1, 1))")
    assert done.returncode == 0, done.stderr
