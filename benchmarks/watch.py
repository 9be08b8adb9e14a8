"""Measures what it costs an import that every assignment to an attribute of a class or module is seen.

A job imports large packages, in a process of its own with the watch on and in one with it off, alternately. The figure
is the ratio of the processor times of the job's thread; "control" is that of two processes with it off.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from record import RESULTS, interleaved, shown, spread, write

IMPORTED = ("sklearn.ensemble", "scipy.stats", "matplotlib.pyplot", "torch._inductor.compile_fx", "torch.onnx")


def imports(watched: bool) -> float:
    """Processor time of the imports, in seconds, inside a job."""
    import importlib
    import time

    import torchshare
    from torchshare import _C, Job

    def body(_job: Job) -> float:
        if not watched:
            _C.unwatch_fields()
            _C.unwatch_attributes()
        begin = time.thread_time()
        for name in IMPORTED:
            importlib.import_module(name)
        return time.thread_time() - begin

    with torchshare.Runtime(device="cpu") as runtime:
        job = runtime.submit(body)
        runtime.wait()
    seconds: float = job.result.value
    return seconds


def measure(name: str) -> float:
    command = [sys.executable, __file__, "--child", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(imports(arguments.child == "watched"))
        return
    raw = interleaved(("off", "watched", "control"), arguments.repetitions, measure)
    ratios = {
        name: spread([a / b for a, b in zip(raw[name], raw["off"], strict=True)]) for name in ("watched", "control")
    }
    seconds = spread(raw["off"])
    write("watch", {"imported": IMPORTED, "seconds": seconds, "summary": ratios}, arguments.output)
    print(f"imports of {seconds['median']:.2f} s: " + ", ".join(f"{n} {shown(r, 3)}" for n, r in ratios.items()))


if __name__ == "__main__":
    main()
