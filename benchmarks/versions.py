"""Compares two environments with other versions of torch: `overhead.py` and `pairs.py` by each interpreter, in turns.

torchshare must be built for each in a clone of its own (torchshare/ has the modules for one torch):
python benchmarks/versions.py ../other/.venv-2.11.0/bin/python .venv/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from pairs import MODES, PAIRS
from record import RESULTS, interleaved, shown, spread, write

HERE = Path(__file__).parent


def run(python: str, name: str, *options: str) -> dict[str, Any]:
    """What that interpreter's run of a benchmark writes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, str(HERE / f"{name}.py"), "--output", folder, *options], check=True)
        found: dict[str, Any] = json.loads((Path(folder) / f"{name}.json").read_text())
    return found


def measure(python: str, options: argparse.Namespace) -> dict[str, Any]:
    """The version of torch, and figures by name."""
    overhead = run(python, "overhead", "--rounds", str(options.rounds))
    figures = {}
    for kind, ratios in overhead["summary"].items():
        figures[f"{kind} in a plain thread, steps/s"] = 1e3 / ratios["step_ms"]["median"]
        figures[f"{kind} alone, a job / a plain thread"] = ratios["torchshare"]["median"]
    common = ["--repetitions", "1", "--window", str(options.window)]
    pairs = run(python, "pairs", *common, "--pairs", *options.pairs, "--modes", *options.modes)
    for pair, (repetition,) in pairs["repetitions"].items():
        alone = [repetition["alone"][kind]["rate"] for kind in PAIRS[pair][:2]]
        for mode, relative in repetition["modes"].items():
            rates = [each * rate for each, rate in zip(relative, alone, strict=True)]
            figures[f"{pair} in {mode}, steps/s of both"] = sum(rates)
    return {"torch": overhead["environment"]["torch"], "figures": figures}


def summary(former: list[dict[str, Any]], newer: list[dict[str, Any]]) -> dict[str, Any]:
    """Per figure: both versions, and the ratios within each repetition."""
    found = {}
    for name in newer[0]["figures"]:
        old, new = ([each["figures"][name] for each in version] for version in (former, newer))
        ratios = [b / a for a, b in zip(old, new, strict=True)]
        found[name] = {"former": spread(old), "newer": spread(new), "newer / former": spread(ratios)}
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("former", help="the interpreter with the former torch")
    options.add_argument("newer", help="that with the newer one")
    options.add_argument("--repetitions", type=int, default=3)
    options.add_argument("--rounds", type=int, default=8, help="of overhead.py")
    options.add_argument("--window", type=float, default=4.0, help="seconds of a measurement of pairs.py")
    options.add_argument("--pairs", nargs="+", choices=PAIRS, default=["conv+conv", "tiny+tiny"])
    options.add_argument("--modes", nargs="+", choices=MODES, default=["two processes", "torchshare"])
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    pythons = {"former": arguments.former, "newer": arguments.newer}
    raw = interleaved(pythons, arguments.repetitions, lambda which: measure(pythons[which], arguments))
    former, newer = raw["former"], raw["newer"]
    figures = summary(former, newer)
    torchs = {"former": former[0]["torch"], "newer": newer[0]["torch"]}
    write("versions", {"torch": torchs, "summary": figures, "repetitions": [former, newer]}, arguments.output)
    for name, each in figures.items():
        print(f"{name:50}", "  ".join(f"{which} {shown(figure)}" for which, figure in each.items()))


if __name__ == "__main__":
    main()
