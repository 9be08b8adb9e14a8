"""Traces and interference tables: valid files are read, invalid ones refused with file, line, column and value."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from torchshare.simulation.adaptdl import JOBS, read_packaged
from torchshare.simulation.applications import APPLICATIONS
from torchshare.simulation.generated import PHILLY, generate, parse_mix
from torchshare.simulation.job_trace import Limits, read_trace
from torchshare.simulation.ratios import read_ratios, uniform

HEADER = "job,arrival_s,gpus,duration_s,memory_gib,model\n"
LIMITS = Limits(gpus=8, memory_gib=16)


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_plain_trace_is_read_as_it_stands(tmp_path):
    trace = read_trace(written(tmp_path, HEADER + "a,0,1,10.5,,\nb,2.5,8,3,16,resnet\n"), "csv", LIMITS)
    assert trace.names == ["a", "b"]
    assert trace.arrival.tolist() == [0, 2.5]
    assert trace.gpus.tolist() == [1, 8]
    assert trace.duration.tolist() == [10.5, 3]
    assert trace.memory_gib.tolist() == [0, 16]
    assert trace.models == ["", "resnet"]


def test_the_last_two_columns_may_be_missing(tmp_path):
    trace = read_trace(written(tmp_path, "job,arrival_s,gpus,duration_s\na,0,1,10\n"), "csv", LIMITS)
    assert trace.memory_gib.tolist() == [0]


MODELS = "job,arrival_s,gpus,duration_s,memory_gib,rows,memory_fixed_gib,memory_per_row_gib,alpha_s,beta_s\n"


def test_memory_and_time_by_rows_are_read_from_the_columns_of_a_profile(tmp_path):
    rows = "a,0,1,10,,32,2,0.25,0.1,0.0125\nb,0,1,10,4,,,,,\nc,0,1,10,,3,0,2,0,1\n"
    trace = read_trace(written(tmp_path, MODELS + rows), "csv", LIMITS)
    assert trace.memory_gib.tolist() == [10, 4, 6]
    assert trace.fixed_memory.tolist() == pytest.approx([0.2, math.nan, 0], nan_ok=True)
    assert trace.fixed_time.tolist() == pytest.approx([0.2, math.nan, 0], nan_ok=True)
    assert trace.sub_batches.tolist() == [8, 8, 2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (",32,2,1,,", "memory must be at most 16 GiB, that of a GPU, got 34 GiB"),
        (",,2,0.1,,", "column 'rows' must not be empty"),
        (",0,2,0.1,,", "column 'rows' must be a number >= 1, got '0'"),
        (",1e-200,,,0,1e-200", "column 'rows' must be a number >= 1, got '1e-200'"),
        (",0.5,,,,", "column 'rows' must be a number >= 1, got '0.5'"),
        (",32,2,,,", "column 'memory_per_row_gib' must not be empty"),
        (",32,,2,,", "column 'memory_fixed_gib' must not be empty"),
        (",32,abc,,,", "column 'memory_fixed_gib' must be a number >= 0, got 'abc'"),
        ("4,32,2,,,", "column 'memory_gib' must be empty beside memory by rows, got 4"),
        (",32,,,1,", "column 'beta_s' must not be empty"),
        (",32,,,,1", "column 'alpha_s' must not be empty"),
        (",32,,,nan,", "column 'alpha_s' must be a number >= 0, got 'nan'"),
        (",,,,1,1", "column 'rows' must not be empty"),
        ("4,32,2,0.1,,", "column 'memory_gib' must be empty beside memory by rows, got 4"),
        (",32,-1,0.1,,", "column 'memory_fixed_gib' must be a number >= 0, got '-1'"),
        (",32,1,-0.1,,", "column 'memory_per_row_gib' must be a number >= 0, got '-0.1'"),
        (",32,,,-1,1", "column 'alpha_s' must be a number >= 0, got '-1'"),
        (",32,,,1,0", "column 'beta_s' must be a number > 0, got '0'"),
    ],
)
def test_a_wrong_model_of_memory_or_time_is_refused(tmp_path, columns, message):
    with pytest.raises(ValueError, match="trace.csv:2: " + re.escape(message)):
        read_trace(written(tmp_path, f"{MODELS}a,0,1,10,{columns}\n"), "csv", LIMITS)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("b,-1,1,10,,", r"trace.csv:3: column 'arrival_s' must be a number >= 0, got '-1'"),
        ("b,4,1,10,,", r"trace.csv:3: column 'arrival_s' must ascend, got 4 after 5"),
        ("b,,1,10,,", r"trace.csv:3: column 'arrival_s' must not be empty"),
        ("b,soon,1,10,,", r"trace.csv:3: column 'arrival_s' must be a number >= 0, got 'soon'"),
        ("b,nan,1,10,,", r"trace.csv:3: column 'arrival_s' must be a number >= 0, got 'nan'"),
        ("b,6,0,10,,", r"trace.csv:3: column 'gpus' must be a positive integer, got '0'"),
        ("b,6,1.5,10,,", r"trace.csv:3: column 'gpus' must be a positive integer, got '1.5'"),
        ("b,6,9,10,,", r"trace.csv:3: column 'gpus' must be at most 8, the GPUs of the cluster, got 9"),
        ("b,6,1,0,,", r"trace.csv:3: column 'duration_s' must be a number > 0, got '0'"),
        ("b,6,1,inf,,", r"trace.csv:3: column 'duration_s' must be a number > 0, got 'inf'"),
        ("b,6,1,10,17,", r"trace.csv:3: memory must be at most 16 GiB, that of a GPU, got 17 GiB"),
        ("b,6,1,10,-1,", r"trace.csv:3: column 'memory_gib' must be a number >= 0, got '-1'"),
        ("a,6,1,10,,", r"trace.csv:3: job names must be unique, got 'a' twice"),
        (",6,1,10,,", r"trace.csv:3: column 'job' must not be empty"),
        ("b", r"trace.csv:3: column 'arrival_s' must not be empty"),
    ],
)
def test_a_bad_row_is_refused_or_skipped_and_counted(tmp_path, row, message):
    path = written(tmp_path, HEADER + f"a,5,1,10,,\n{row}\nc,7,1,10,,\n")
    with pytest.raises(ValueError, match=message):
        read_trace(path, "csv", LIMITS)
    trace = read_trace(path, "csv", LIMITS, skip_bad_rows=True)
    assert trace.names == ["a", "c"]
    assert len(trace.bad_rows) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'job' is missing"),
        ("job,gpus\n", r":1: the header must have the columns job,arrival_s,gpus,duration_s, 'arrival_s' is missing"),
        (HEADER, "must have at least one valid job, got 0 bad rows"),
        (HEADER + "a,x,1,1,,\n", "column 'arrival_s'"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_trace(written(tmp_path, text), "csv", LIMITS)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.csv: No such file"):
        read_trace(tmp_path / "nowhere.csv", "csv", LIMITS)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a CSV file"):
        read_trace(tmp_path / "binary", "csv", LIMITS)


def test_philly_rows_are_put_in_order_and_counted_from_the_first(tmp_path):
    header = "timestamp,duration,num_gpus,gpu_time,cluster\n"
    text = header + "2017-10-09 07:00:10,66.0,1,66.0,x\n2017-10-09 07:00:00,5,4,20,x\n"
    trace = read_trace(written(tmp_path, text), "philly", LIMITS)
    assert trace.arrival.tolist() == [0, 10]
    assert trace.names == ["philly-3", "philly-2"]
    bad = written(tmp_path, text + "yesterday,1,1,1,x\n", "bad.csv")
    with pytest.raises(ValueError, match="column 'timestamp' must be YYYY-MM-DD HH:MM:SS, got 'yesterday'"):
        read_trace(bad, "philly", LIMITS)


def test_adaptdl_durations_come_from_the_runtimes(tmp_path):
    header = "application,num_gpus,global_batch,exclusive_runtime_s"
    runtimes = written(tmp_path, f"{header}\nbert,2,48,100.5\n", "runtimes")
    text = "name,time,application,num_replicas,batch_size\nbert-0,3,bert,2,48\n"
    trace = read_trace(written(tmp_path, text), "adaptdl", LIMITS, runtimes=runtimes)
    assert trace.duration.tolist() == [100.5]
    assert trace.models == ["bert"]
    assert trace.memory_gib.tolist() == [0], "its step is not known"
    timed = written(tmp_path, f"{header},accum_steps,step_time_s,sync_time_s\nbert,2,48,100.5,1,0.9,0\n", "timed")
    trace = read_trace(written(tmp_path, text), "adaptdl", Limits(8), runtimes=timed)
    assert trace.memory_gib.tolist() == [14], "24 rows of each GPU are two sub-batches of the largest size"
    with pytest.raises(ValueError, match="needs --runtimes FILE"):
        read_trace(written(tmp_path, text), "adaptdl", LIMITS)
    slow = written(tmp_path, timed.read_text().replace("0.9,0", "0.9,1.8"), "slow")
    with pytest.raises(ValueError, match=r"slow:2: column 'sync_time_s' must be at most 'step_time_s', 0.9, got 1.8"):
        read_trace(written(tmp_path, text), "adaptdl", Limits(8), runtimes=slow)
    other = written(tmp_path, text.replace("48", "96"), "other")
    with pytest.raises(ValueError, match="no runtime for 2 GPUs and batch 96"):
        read_trace(other, "adaptdl", LIMITS, runtimes=runtimes)
    wrong = written(tmp_path, "application,num_gpus,global_batch,exclusive_runtime_s\nbert,2,48,-1\n", "wrong")
    with pytest.raises(ValueError, match=r"wrong:2: column 'exclusive_runtime_s' must be a number > 0, got '-1'"):
        read_trace(written(tmp_path, text), "adaptdl", LIMITS, runtimes=wrong)


def test_packaged_traces_have_the_jobs_that_their_names_say():
    assert [len(read_packaged(f"adaptdl:{jobs}", Limits(64))) for jobs in JOBS] == [8, 8, 8, 8]
    (trace,) = read_packaged("adaptdl:240/6", Limits(64))
    assert (trace.source, len(trace.names), trace.load) == ("adaptdl:240/6", 240, None)
    assert (np.diff(trace.arrival) >= 0).all() and trace.arrival[-1] < 8 * 3600
    assert set(trace.models) == {"bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"}
    first = {name: float(trace.duration[index]) for index, name in reversed([*enumerate(trace.models)])}
    assert (first["ncf"], first["yolov3"]) == (33.0, 12869.9)


def test_adaptdls_jobs_have_memory_and_times_by_rows():
    (trace,) = read_packaged("adaptdl:240/6", Limits(64, memory_gib=16))
    at = trace.models.index("yolov3")  # 64 rows on 4 GPUs in two sub-batches of 8; a step takes 0.88 s
    known = APPLICATIONS["yolov3"]
    assert trace.memory_gib[at] == pytest.approx(known.fixed_gib + 8 * known.per_row_gib)
    assert trace.fixed_memory[at] == pytest.approx(known.fixed_gib / trace.memory_gib[at])
    assert trace.fixed_time[at] == pytest.approx(2 * known.alpha_s / (0.50093 + (0.50093 - 0.11896)))
    assert trace.sub_batches[at] == 8
    with pytest.raises(
        ValueError, match=r"adaptdl:240/6:\d+: memory must be at most 13 GiB, that of a GPU, got 14 GiB"
    ):
        read_packaged("adaptdl:240/6", Limits(64, memory_gib=13))
    drawn = generate(50, Limits(64, memory_gib=13), mix=None, seed=1)
    assert drawn.memory_gib.max() <= 13
    assert np.isfinite(drawn.fixed_time).all() and np.isfinite(drawn.fixed_memory).all()


@pytest.mark.parametrize("mix", [PHILLY, None])
def test_a_generated_trace_has_the_load_that_was_asked_for(mix):
    trace = generate(2000, Limits(16), mix=mix, load=1.5, seed=1)
    assert trace.load == 1.5
    assert trace.gpus.max() <= 16
    assert (trace.gpus * trace.duration).sum() == pytest.approx(1.5 * 16 * trace.arrival[-1], rel=0.01)
    hourly = generate(2000, Limits(16), mix=mix, jobs_per_hour=50, seed=1)
    assert hourly.load is None
    assert hourly.arrival[-1] == pytest.approx(40 * 3600, rel=0.01)
    assert np.array_equal(hourly.duration, trace.duration)


def test_generated_sizes_have_their_shares_and_medians():
    mix = parse_mix("1:3:100:0.5,4:1:1000:0")
    trace = generate(20_000, Limits(4), mix=mix, seed=2)
    assert np.mean(trace.gpus == 1) == pytest.approx(0.75, abs=0.02)
    assert np.median(trace.duration[trace.gpus == 1]) == pytest.approx(100, rel=0.05)
    assert np.log(trace.duration[trace.gpus == 1]).std() == pytest.approx(0.5, rel=0.05)
    assert set(trace.duration[trace.gpus == 4].round(6)) == {1000.0}


PAIRS = "gpu,job_a,job_b,xi_a,xi_b\nv100,A,B,1.5,1.2\nv100,A,A,0.98,1.1\nk80,A,B,3,3\n"


def test_a_table_of_pairs_gives_each_its_own_ratio(tmp_path):
    ratios = read_ratios(written(tmp_path, PAIRS), "v100", {"mine": "B"})
    a, b, mine = ratios.rows(["A", "B", "mine"])
    assert (ratios.matrix[a, b], ratios.matrix[b, a]) == (1.5, 1.2)
    assert ratios.matrix[a, mine] == 1.5
    assert math.isinf(ratios.matrix[b, b]), "a pair that was not measured does not share"
    assert ratios.matrix[a, a] >= 1
    assert ratios.raised == 1


def test_wrong_tables_are_refused(tmp_path):
    path = written(tmp_path, PAIRS)
    with pytest.raises(ValueError, match="has ratios for k80, v100, choose one with --gpu-type"):
        read_ratios(path, None, {})
    with pytest.raises(ValueError, match="has no pair for GPU 't4', only for k80, v100"):
        read_ratios(path, "t4", {})
    with pytest.raises(ValueError, match=r"--model-as x=C: 'C' must be one of 'A', 'B'"):
        read_ratios(path, "v100", {"x": "C"})
    with pytest.raises(ValueError, match="has no model 'C'"):
        read_ratios(path, "v100", {}).rows(["A", "C"])
    with pytest.raises(ValueError, match=r":2: column 'xi_a' must be a number > 0, got '0'"):
        read_ratios(written(tmp_path, "job_a,job_b,xi_a,xi_b\nA,B,0,1\n"), None, {})
    for ratio in (0.9, math.nan, math.inf):
        with pytest.raises(ValueError, match="interference ratio"):
            uniform(ratio)


def test_one_ratio_needs_no_models():
    assert np.array_equal(uniform(1.3).rows(["", "anything"]), [0, 0])
