"""The papers' tables: rows are those of the simulations they name, and claims follow from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pages
import pytest
from conftest import torchshare_command
from test_simulate import random_trace

from torchshare.__main__ import main
from torchshare.simulation import papers
from torchshare.simulation.papers import POLICIES, Part, Point, reach
from torchshare.simulation.ratios import uniform
from torchshare.simulation.simulate import Case, Setting, simulate

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "results" / "papers.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which the command ran, without anything beside it, and what it printed."""
    folder = tmp_path_factory.mktemp("papers")
    outputs = ("--report", "papers.html", "--save", "papers.json", "--plot", "papers.png")
    done = torchshare_command("papers", *outputs, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder, done.stdout


def document(folder: Path) -> Any:
    return json.loads((folder / "papers.json").read_text())


def test_every_row_is_the_simulation_that_its_labels_name():
    traces = [random_trace(30, seed) for seed in range(2)]
    points = [Point(f"{ratio:.1f}", traces, Setting(gpus=8), ratio) for ratio in (1.0, 1.5)]
    first, second = papers.simulate_parts(
        [Part("a", "A", "", points, "ratio"), Part("b", "B", "", [Point("", traces, Setting(gpus=16))])]
    )
    assert [(row["policy"], row["ratio"]) for row in first.rows] == [(p, r) for r in ("1.0", "1.5") for p in POLICIES]
    jct = [
        simulate(Case(trace, "sjf-bsbf", uniform(1.5), Setting(gpus=8), "")).figures["avg_jct_s"] for trace in traces
    ]
    row = first.row("sjf-bsbf", "1.5")
    assert row["avg_jct_s"] == pytest.approx(sum(jct) / 2)
    assert row["avg_jct_s_spread"] == [min(jct), max(jct)]
    baseline = first.row("tiresias", "1.5")["avg_jct_s"]
    assert first.against("sjf-bsbf", "tiresias")["1.5"] == pytest.approx(row["avg_jct_s"] / baseline - 1)
    assert second.row("fifo", "")["avg_jct_s"] <= first.row("fifo", "1.0")["avg_jct_s"]
    assert [line[0] for line in second.cells()] == ["policy", *POLICIES]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((-0.3, -0.2, -0.1), "at ratio 1.0"),
        ((-0.3, -0.27, -0.1), "up to ratio 1.1"),
        ((-0.1, -0.3, -0.3), "from ratio 1.1"),
        ((-0.3, -0.2, -0.3), "at 1.0, 1.2"),
        ((-0.3, -0.4, -0.5), "at every ratio"),
        ((0.3, -0.2, 0.5), "at no ratio"),
        ((-0.266, -0.2, -0.264), "at ratio 1.0"),
    ],
)
def test_a_claim_holds_where_the_change_is_at_least_so_great(changes, expected):
    assert reach(dict(zip(("1.0", "1.1", "1.2"), changes, strict=True)), -0.27) == expected


def test_the_command_prints_every_table_and_where_the_claims_hold(made):
    folder, printed = made
    found = document(folder)
    titles = [table["title"] for table in found["tables"].values()]
    assert all(f"\n{title}\n" in printed for title in titles)
    assert len(found["claims"]) == 6
    for claim in found["claims"]:
        line = next(line for line in printed.splitlines() if claim["paper"] in line and claim["workload"] in line)
        assert line.split() == " ".join(claim.values()).split()
    for claim, name in zip(found["claims"], ("small_ratios", "known_ratios", "many_ratios"), strict=False):
        rows = found["tables"][name]["rows"]
        average = {(row["policy"], row["ratio"]): row["avg_jct_s"] for row in rows}
        ratios = [ratio for policy, ratio in average if policy == "sjf-bsbf"]
        met = [ratio for ratio in ratios if average["sjf-bsbf", ratio] < 0.735 * average["tiresias", ratio]]
        assert len(ratios) == 11
        assert (claim["reached"] == "at no ratio") == (met == []), name
        assert not met or met[-1] in claim["reached"] or met == ratios, name
    assert "Not here: FIKIT's table" in printed
    assert max(map(len, printed.splitlines())) < 160


def test_the_documentation_shows_what_the_command_prints(made):
    page = (ROOT / "docs" / "papers.md").read_text()
    assert f"$ torchshare papers\n{made[1]}```\n" in page


def test_sub_batches_let_more_jobs_share(made):
    rows = document(made[0])["tables"]["memory_1.25"]["rows"]
    shared = {(row["policy"], row["memory"]): row["shared_fraction"] for row in rows}
    for policy in ("sjf-ffs", "sjf-bsbf", "pair-srsf"):
        assert shared[policy, "whole batches"] < 0.7 * shared[policy, "sub-batches"]


def test_the_policy_like_pollux_is_near_what_adaptdl_found(made):
    rows = document(made[0])["tables"]["jobs"]["rows"]
    average = {(row["policy"], row["jobs"]): row["avg_jct_s"] for row in rows}
    for jobs in ("80", "160", "240", "320"):
        assert average["like pollux", jobs] == pytest.approx(average["AdaptDL's own pollux", jobs], rel=0.05)


def test_the_page_shows_the_tables_that_are_printed(made):
    folder, printed = made
    page = (folder / "papers.html").read_text()
    shown = pages.Page(page)
    assert len(page) < 300_000
    origin = shown.tables.pop("")
    assert origin[0][0] == "command"
    assert {"claims", *document(folder)["tables"]} == shown.tables.keys()
    lines = [line.split() for line in printed.splitlines()]
    for table in shown.tables.values():
        for cells in table:
            assert " ".join(cells).split() in lines
    assert any(name == "svg" for name, _ in shown.tags)
    assert (folder / "papers.png").read_bytes().startswith(b"\x89PNG")
    if pages.browser() is not None:
        assert pages.rendered(folder / "papers.html", width=1280)[1] == []


def test_the_recorded_tables_are_what_is_simulated_now(made):
    recorded, now = json.loads(RECORDED.read_text()), document(made[0])
    assert recorded["claims"] == now["claims"]
    assert recorded["tables"].keys() == now["tables"].keys()
    for name, table in now["tables"].items():
        assert [row["avg_jct_s"] for row in recorded["tables"][name]["rows"]] == pytest.approx(
            [row["avg_jct_s"] for row in table["rows"]]
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report", "nowhere/page.html"], "--report must be a file in an existing folder, got nowhere/page.html"),
        (["--plot", "plot.txt"], "--plot must end in .png, .svg or .pdf, got plot.txt"),
        (["--save", "."], "--save must be a file in an existing folder, got ."),
        (["--report", "a", "--save", "a"], "--save must not be --report, got a"),
    ],
)
def test_wrong_outputs_are_named_before_anything_runs(capsys, arguments, message):
    assert main(["papers", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1
