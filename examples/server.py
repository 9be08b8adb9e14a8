"""An HTTP server (FastAPI and uvicorn) that answers with a model, alone and beside a training.

    pip install -e ".[server]"
    python examples/server.py

A load generator in another process sends requests at random times. Prints what they took, as the client saw it, and how
fast the training was; draws that into server.png, and writes server.html about the last run.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import torch
from torch import nn

import torchshare

PIXELS = 64


class Reader(nn.Module):
    """A transformer that reads an image as a sequence of pixels."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(1, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        digits: torch.Tensor = self.classify(self.encode(self.embed(pixels.unsqueeze(-1))).mean(1))
        return digits


def serve(job: torchshare.Job, port: socket.socket, client: subprocess.Popen[str]) -> list[float]:
    """The server, until the client has ended. Returns the latencies that it saw, in seconds."""
    import uvicorn
    from fastapi import FastAPI

    model = Reader().eval()

    @job.serve
    @torch.inference_mode()
    def infer(pixels: list[float]) -> int:
        return int(model(torch.tensor([pixels])).argmax())

    app = FastAPI()

    @app.post("/digit")
    def digit(pixels: list[float]) -> int:  # FastAPI calls it in a thread of its pool
        return infer(pixels)

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    seen: list[float] = []

    def until_the_client_ends() -> None:
        try:
            seen.extend(json.loads(client.communicate()[0]))
        finally:
            server.should_exit = True

    watcher = threading.Thread(target=until_the_client_ends)
    watcher.start()
    server.run(sockets=[port])
    watcher.join()
    return seen


def train(_job: torchshare.Job, over: threading.Event) -> None:
    """An ordinary training loop, until the server has ended."""
    model = Reader(width=32, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while not over.is_set():
        x, y = torch.rand(16, PIXELS), torch.randint(0, 10, (16,))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def send(port: int, per_second: float, seconds: float) -> list[float]:
    """Sends requests at random times, each when it is due, whether the ones before are answered or not. Returns the
    latency of each, from when it was due."""
    draw = random.Random(0)
    local = threading.local()
    body = json.dumps([draw.random() for _ in range(PIXELS)])

    def ask(due: float) -> float:
        time.sleep(max(0.0, due - time.monotonic()))
        if not hasattr(local, "connection"):
            local.connection = HTTPConnection("127.0.0.1", port, timeout=60)
        local.connection.request("POST", "/digit", body, {"Content-Type": "application/json"})
        response = local.connection.getresponse()
        answer = response.read().decode()
        if response.status != 200 or not answer.isdigit():
            raise RuntimeError(f"the server answered {response.status}: {answer}")
        return time.monotonic() - due

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, [time.monotonic()] * 16))  # connects, and warms the server up
        due, end, sent = time.monotonic(), time.monotonic() + seconds, []
        while (due := due + draw.expovariate(per_second)) < end:
            sent.append(due)
        return list(pool.map(ask, sent))


Seen = tuple[list[float], float]
"""The latencies that the client saw, and the training's steps per second."""


def run(given: argparse.Namespace, trains: bool, report: str | None = None, **options: Any) -> Seen:
    """The server, with or without the training, for the time that the client sends."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as port, torchshare.Runtime("cpu") as runtime:
        command = [sys.executable, __file__, "--send-to", str(port.getsockname()[1])]
        command += ["--rate", str(given.rate), "--seconds", str(given.seconds)]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def server(job: torchshare.Job) -> list[float]:
            try:
                return serve(job, port, client)
            finally:
                over.set()
                client.kill()

        runtime.submit(server, name="server", priority="primary", threads=1, **options)
        if trains:
            runtime.submit(lambda job: train(job, over), name="training", threads=1)
        results = runtime.wait()
        if report is not None:
            runtime.write_report(report)
    return results["server"].value, results["training"].steps_per_s or 0.0 if trains else 0.0


def quantile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def draw(path: str, seen: dict[str, list[float]], slo: str) -> None:
    """Draws the part of the requests that took longer than a time, and the promise: the last curve is to stay below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    for name, times in seen.items():
        slower = [1 - index / len(times) for index in range(len(times))]
        axes.step([1e3 * each for each in sorted(times)], slower, label=name)
    found = re.fullmatch(r"p([\d.]+)<([\d.]+)(us|ms|s)", slo.replace(" ", ""))
    assert found is not None, slo  # else the runtime would have refused it
    share, limit, unit = found.groups()
    limit_ms = float(limit) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]
    axes.plot([limit_ms], [1 - float(share) / 100], "kx", label=slo)
    axes.set(xscale="log", yscale="log", xlabel="latency, ms", ylabel="requests that took longer")
    axes.grid(alpha=0.2)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of requests, each time")
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second")
    parser.add_argument("--rounds", type=int, default=1, help="how often all runs are made, one after the other")
    parser.add_argument("--picture", default="server.png", metavar="FILE")
    parser.add_argument("--slo", default="p95<30ms", help="what the server promises in the last run")
    parser.add_argument("--send-to", type=int, help=argparse.SUPPRESS)  # the load generator
    given = parser.parse_args()
    if given.send_to is not None:
        print(json.dumps(send(given.send_to, given.rate, given.seconds)))
        return
    runs: dict[str, dict[str, Any]] = {
        "alone": {"trains": False},
        "beside a training": {"trains": True},
        f"beside it, {given.slo}": {"trains": True, "slo": given.slo, "report": "server.html"},
    }
    seen: dict[str, list[float]] = {name: [] for name in runs}
    rates: dict[str, float] = dict.fromkeys(runs, 0.0)
    for _ in range(given.rounds):
        for name, options in runs.items():
            times, rate = run(given, **options)
            seen[name] += times
            rates[name] += rate / given.rounds
    print(f"{'server':28} {'p50 ms':>7} {'p95 ms':>7} {'p99 ms':>7}  training steps/s")
    for name, options in runs.items():
        figures = " ".join(f"{1e3 * quantile(seen[name], share):7.1f}" for share in (0.5, 0.95, 0.99))
        print(f"{name:28} {figures}  {f'{rates[name]:.1f}' if options['trains'] else '-':>16}")
    draw(given.picture, seen, given.slo)


if __name__ == "__main__":
    main()
