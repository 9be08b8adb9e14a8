"""Processes of its own: a pool, a queue, a command and a fork; environment, working folder, atexit and signals."""

import atexit
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile

import torch
from torch import nn

RANK = int(os.environ.get("RANK", 0))


def make_shard(seed):
    """In a process of a pool."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 4, generator=generator).tolist(), os.environ["RUN_NAME"], os.path.basename(os.getcwd())


def evaluate(state, results):
    model = nn.Linear(4, 1)
    model.load_state_dict(state)
    results.put(model(torch.ones(1, 4)).item())


def clean_up(signum, frame):
    sys.exit(128 + signum)


@atexit.register
def say_goodbye():
    with open("goodbye.txt", "w") as file:
        file.write(f"{os.environ['RUN_NAME']} {os.path.basename(os.getcwd())} {sys.argv[1:]}\n")


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    signal.signal(signal.SIGTERM, clean_up)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.environ["RUN_NAME"] = "children"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.makedirs("children_run", exist_ok=True)
    os.chdir("children_run")
    torch.manual_seed(RANK + 23)
    random.seed(23)

    with multiprocessing.Pool(2) as pool:
        shards = pool.map(make_shard, range(2))
        pool.close()
        pool.join()  # else, once in 1,000 times, a worker misses the SIGTERM that it handles, in plain Python, too
    log = [f"{name} {folder}" for _, name, folder in shards]
    x = torch.tensor([row for shard, _, _ in shards for row in shard])
    code = "import os; print(os.environ['RUN_NAME'], os.path.basename(os.getcwd()))"
    log.append(subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True).stdout.strip())
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    log.append(f"forked {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = multiprocessing.Queue()
    for epoch in range(2):
        for rows in x[torch.randperm(len(x))].split(8):
            optimizer.zero_grad()
            loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        child = multiprocessing.Process(target=evaluate, args=(model.state_dict(), results))
        child.start()
        log.append(f"{epoch} {loss.item()!r} {results.get(timeout=60)!r} {random.random()!r}")
        child.join()
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("\n".join(log))
    os.replace(file.name, "children.log")
    torch.save(model.state_dict(), "children.pt")
