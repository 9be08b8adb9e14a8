"""AdaptDL's applications in sub-batches: step time and memory by the rows that run at once on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

_LARGEST_GIB = 14.0  # assumed at `largest_rows` on a T4, which has 16 GB


@dataclass(frozen=True)
class Application:
    """Step time alpha_s + beta_s * rows, and memory fixed_gib + per_row_gib * rows.

    Times are fitted to AdaptDL's measurements on one T4 (step_time - sync_time of traces/APPLICATION/placements.csv),
    by least squares of the relative error; yolov3 is off by 26 % at 6 rows. Memory is an assumption, for AdaptDL does
    not say it: `fixed_gib` is 0.6 GiB of CUDA and 12 bytes per parameter with SGD, 16 with Adam; the rest grows with
    the rows to `largest_gib` at the most rows that AdaptDL runs at once on a GPU (max_local_bsz of its
    applications.py).
    """

    alpha_s: float
    beta_s: float
    largest_rows: int
    fixed_gib: float
    largest_gib: float = _LARGEST_GIB

    @property
    def per_row_gib(self) -> float:
        return (self.largest_gib - self.fixed_gib) / self.largest_rows


APPLICATIONS = {
    "bert": Application(0.2095, 0.05827, 12, 2.3),
    "cifar10": Application(0.0199, 6.496e-4, 1024, 0.7),
    "deepspeech2": Application(0.1894, 0.02548, 80, 1.1),
    "imagenet": Application(0.0706, 0.004314, 200, 0.9),
    # Small rows: its largest size is hardly limited by memory.
    "ncf": Application(0.00721, 4.564e-7, 32768, 1.0, largest_gib=3.0),
    "yolov3": Application(0.1736, 0.02651, 8, 1.3),
}
