"""Profiles of pairs of trainings on one GPU: each job alone in 1, 2, 4, ... sub-batches and beside the other.

Writes profiles.json, a list of what `torchshare profile` writes of a job, and ratios.csv, the table of interference
that `torchshare simulate --interference` reads. `python benchmarks/gpu/profiles.py --pairs resnet50-128+bert-8`
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

import torchshare
from torchshare.profiles.profile import Profile
from torchshare.profiling.measure import measure
from torchshare.profiling.measurement import Candidate
from torchshare.profiling.plan import write_ratios

from jobs import StepMeter
from record import RESULTS, write
from training import KINDS, Training

PAIRS = (
    *("shufflenet-512+gpt2-1", "resnet50-128+bert-8", "mobilenet-64+lstm-64", "resnet18-128+resnet50-128"),
    *("resnet18-128+lstm-64", "mobilenet-64+bert-8"),
)


def trains(kind: str, tiny: bool) -> Callable[[torchshare.Job], Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return lambda job: Training(kind, device, torch.float32, tiny).run(StepMeter(sys.maxsize), job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--splits", type=int, default=4, help="sub-batch sizes: 1, 1/2, 1/4, ... of the batch")
    parser.add_argument("--window", type=float, default=0.5, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="small models and batches, to see whether it runs")
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu", help="folder of the files")
    arguments = parser.parse_args()
    profiles: list[Profile] = []
    failed: list[str] = []
    for pair in arguments.pairs:
        candidates = [Candidate(kind, trains(kind, arguments.tiny), threads=1) for kind in pair.split("+")]
        try:
            found, _ = measure(candidates, splits=arguments.splits, window=arguments.window, rounds=arguments.rounds)
        except (ValueError, RuntimeError) as error:
            print(f"{pair}: {error}", file=sys.stderr)
            failed.append(pair)
            continue
        profiles += found
        write("profiles", {"profiles": [each.model_dump(mode="json") for each in profiles]}, arguments.output)
        write_ratios(profiles, arguments.output / "ratios.csv")
        for each in found:
            times = (f"{1e3 * alone.step_s.median:.1f} ms in {alone.sub_batches}" for alone in each.alone)
            print(f"{each.job}:", *times, sep="  ")
        for each in found[0].partners[0].beside:
            print(f"  {each.sub_batches} beside {each.partner_sub_batches}: {each.ratio:.2f}, {each.partner_ratio:.2f}")
    whole = [profile.partners[0].beside[0] for profile in profiles if profile.partners]
    ratios = [ratio for each in whole for ratio in (each.ratio, each.partner_ratio)]
    if ratios:
        print(f"median ratio of whole batches: {statistics.median(ratios):.2f}; `torchshare papers` sweeps 1.0 to 2.0")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
