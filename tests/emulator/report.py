"""report.py FOLDER: a table of what the tests on the emulated device did, from pytest's junit files."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def outcome(case: ElementTree.Element) -> str:
    children = {child.tag for child in case}
    return next((tag for tag in ("failure", "error", "skipped") if tag in children), "passed")


def main(folder: Path) -> None:
    print(f"{'slots:jitter (us)':20}{'passed':>8}{'failed':>8}{'skipped':>8}  why skipped")
    for path in sorted(folder.glob("*.xml")):
        cases = list(ElementTree.parse(path).iter("testcase"))
        counts = Counter(outcome(case) for case in cases)
        reasons = Counter(skip.get("message", "") for case in cases for skip in case.iter("skipped"))
        why = "; ".join(f"{reason} ({count})" for reason, count in reasons.items())
        failed = counts["failure"] + counts["error"]
        print(f"{path.stem:20}{counts['passed']:8}{failed:8}{counts['skipped']:8}  {why}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
