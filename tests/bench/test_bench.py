"""Tests of the comparison with peers, and of the one command for a GPU, on a simulated device."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.simulated_device import Simulation
from tuner import bench, operators
from tuner.arch import gpu
from tuner.base.assets import ROOT
from tuner.bench import peers
from tuner.bench.forecast import Forecast, Outlook
from tuner.bench.page import page as drawn
from tuner.bench.tables import varying
from tuner.errors import UsageError
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.predict import kernel_classes
from tuner.evaluate.predict.cost import MODEL
from tuner.evaluate.predict.predicted_time import UNJUDGED, predicted_time
from tuner.results.attempt import Prediction
from tuner.spec.instance import InstanceFields
from tuner.spec.problem import to_fields
from tuner.store.records import Snapshot
from tuner.store.sql import Store

OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=16, batch=1, heads=1, seq_q=64)
NAIVE = operators.implementation("flash_attention", "naive")
CODE = Code(
    InstanceFields("flash_attention", "naive", to_fields(PROBLEM), to_fields(NAIVE.default(PROBLEM, gpu("H200").arch))),
    b"",
)
STREAMING = operators.load("streaming_attention")
EMPTY = Snapshot.load([])


@pytest.fixture(scope="module")
def comparison() -> bench.Comparison:
    return bench.compare(CODE, Simulation("H200"), MeasurementPolicy(rounds=8), context=(CODE,))


def test_ours_is_timed_beside_a_copy_of_as_many_bytes_and_what_gives_context(comparison: bench.Comparison) -> None:
    ours, copy, context = comparison.rows[:3]
    assert [row.state for row in (ours, copy, context)] == ["ok", "roof", "ok"]
    assert ours.ratio is not None and ours.ratio.mid == 1
    assert copy.time_us is not None and 0 < copy.time_us.count <= 8
    assert copy.note.startswith(f"{OPERATOR.cost(PROBLEM).bytes / 1e6:.1f} MB")
    assert context.ratio is not None and context.ratio.mid == pytest.approx(1, rel=0.05)


def test_dense_attention_runs_beside_streaming_on_the_same_tensors() -> None:
    problem = STREAMING.problem(head_dim=16, heads=2, seq_q=32, window=8)
    dense = bench.context(STREAMING, problem)
    assert dense is not None
    ours, beside = (
        Code(
            InstanceFields(operator.name, "naive", to_fields(shape), to_fields(naive.default(shape, gpu("H200").arch))),
            b"",
        )
        for operator, shape in ((STREAMING, problem), dense)
        for naive in (operators.implementation(operator.name, "naive"),)
    )
    result = bench.compare(ours, Simulation("H200"), MeasurementPolicy(rounds=8), context=(beside,))
    assert {row.name: row.state for row in result.rows}["tuner flash_attention"] == "ok"


def test_peers_that_are_not_there_are_listed_with_the_reason(comparison: bench.Comparison) -> None:
    absent = [row for row in comparison.rows if row.state == "absent"]
    assert {row.name for row in absent} == {peer.name for peer in peers.of("flash_attention")}
    assert all(row.note for row in absent)


def test_a_comparison_is_a_table_and_json(comparison: bench.Comparison) -> None:
    assert all(len(row) == len(comparison.COLUMNS) for row in comparison.table())
    data = json.loads(json.dumps(comparison.data()))
    assert bench.Comparison.of(data) == comparison
    assert (data["device"]["model"], data["evidence"]) == ("simulated", "simulated")


def test_kernels_with_many_launches_are_timed_in_a_graph_as_well() -> None:
    kda = operators.load("kda")
    problem = kda.problem(seq_len=16, heads=1, key_dim=16, value_dim=16)
    naive = operators.implementation("kda", "naive")
    config = to_fields(naive.default(problem, gpu("H200").arch))
    code = Code(InstanceFields("kda", "naive", to_fields(problem), config), b"")
    result = bench.compare(code, Simulation("H200"), MeasurementPolicy(rounds=3), kind="weak_gate")
    assert [row.label for row in result.rows[:2]] == ["tuner", "tuner (graph)"]
    assert result.inputs == "weak_gate"
    with pytest.raises(UsageError, match="inputs 'gates': kda has strong_gate, weak_gate"):
        bench.compare(code, Simulation("H200"), kind="gates")


def test_a_forecast_has_ours_first_the_other_implementations_and_dense_attention_for_context() -> None:
    forecast = bench.forecast(STREAMING, STREAMING.problem(seq_q=4096), gpu("H200"), EMPTY)
    assert [row.name for row in forecast.rows] == [
        "streaming_attention/mma_sync",
        "streaming_attention/naive",
        "streaming_attention/split_keys",
        "streaming_attention/wgmma",
        "flash_attention/mma_sync",
    ]
    proven = [
        row.cost for row in forecast.rows if row.name != "streaming_attention/wgmma"
    ]  # which needs a record to run
    assert min(proven) == proven[0]
    assert forecast.peers == tuple(peer.name for peer in peers.of("streaming_attention"))
    assert forecast.times == UNJUDGED  # these kernels declare their work
    assert all(row["predicted_time"] is None for row in forecast.data()["rows"])


def test_a_forecast_names_the_predicted_time_of_kernels_that_devices_have_judged() -> None:
    time = predicted_time(Prediction(141_000.0, {}, "DRAM", MODEL, kernel_classes.STREAMING), gpu("A100"))
    row = Outlook("copy/plain", "a record", 0.0, 0.0, 1.0, 1.0, 141_000.0, "DRAM", time)
    times = Forecast("copy", {}, "A100", (row,), ()).times
    assert times.startswith("copy/plain: 100 µs ") and "streaming kernels" in times


def test_a_problem_is_spelled_without_what_follows_from_the_rest() -> None:
    result = bench.formatted_problem(
        "flash_attention", to_fields(OPERATOR.problem(head_dim=64, batch=1, heads=8, seq_q=4096))
    )
    assert result == "head_dim=64 dtype=bf16 precision=dtype batch=1 heads=8 seq_q=4096"
    other = OPERATOR.problem(head_dim=64, head_dim_v=32, batch=1, heads=8, kv_heads=2, seq_q=1, seq_k=4096)
    actual = bench.formatted_problem("flash_attention", to_fields(other), {"head_dim_v", "kv_heads", "seq_k"})
    assert actual == "head_dim_v=32 kv_heads=2 seq_k=4096"


def test_streaming_attention_is_predicted_to_save_what_dense_attention_reads_in_vain() -> None:
    ratios = []
    for length in (2048, 16384, 131072):
        problem = STREAMING.problem(seq_q=length, window=1024, sinks=4)
        *_, dense = (match := bench.forecast(STREAMING, problem, gpu("H200"), EMPTY)).rows
        ratios.append(dense.flops / match.rows[0].flops)
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(131072 / 2 / 1024, rel=0.2)


def test_a_sweep_is_one_table_and_a_line_a_kernel_over_the_size() -> None:
    problems = [STREAMING.problem(seq_q=length) for length in (128, 256, 512)]
    results = [bench.forecast(STREAMING, problem, gpu("H200"), EMPTY) for problem in problems]
    (table,) = bench.tables(results)
    assert table.columns[0] == "seq_q"
    assert table.title == "head_dim=128 dtype=bf16 batch=1 heads=32 window=1024 sinks=4"
    assert [row[0] for row in table.rows] == [
        str(problem.seq_q) for problem, comparison in zip(problems, results, strict=True) for _ in comparison.rows
    ]
    page = drawn(results)
    assert page.count("#row-") == sum(len(result.rows) for result in results)
    assert all(f">{row.name}</text>" in page for result in results for row in result.rows)
    assert "Predicted for H200: nothing was timed." in page


@pytest.mark.parametrize("name", ["dtype", "ragged", "same", "from_zero"])
def test_what_has_no_number_of_its_own_in_every_problem_is_no_axis(name: str) -> None:
    values = {"dtype": ("bf16", "fp16"), "ragged": (False, True), "same": (64, 64), "from_zero": (0, 64)}
    assert varying([{name: value} for value in values[name]]) == ""


def test_a_page_of_times_shows_each_contender_as_a_bar_and_no_prediction(comparison: bench.Comparison) -> None:
    page = drawn([comparison]).partition("</style>")[2]
    assert page.count("#row-") == 3
    assert "redicted" not in page and "measured" not in page.replace("measured/", "")
    assert "the device and its times are simulated" in page


def test_the_contender_is_what_an_application_would_run() -> None:
    code = bench.contender(OPERATOR, PROBLEM, gpu("H200"), EMPTY)
    assert code.instance.implementation != "naive"
    assert code.image.startswith(b"\x7fELF")


@pytest.mark.slow
def test_the_rehearsal_writes_records_and_a_second_call_repeats_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--simulate", "--minutes", "3"]
    command += ["--only", "flash_attention", "--out"]
    first = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr[-2000:]
    rows = (tmp_path / "rows.jsonl").read_text()
    steps = {row["ends"]: row for row in map(json.loads, rows.splitlines()) if "ends" in row}
    done = ["installed", "device", *["timer"] * 8, "compiled", "verification", "defaults", "search", "peers"]
    assert [name.partition(" ")[0] for name in steps] == done
    with Store.open(tmp_path / "tuner.db") as store:  # the search resumes from the times of the defaults
        tried = [stored.attempt.identity for stored in store.attempts("flash_attention")]
    assert len(tried) == len(set(tried)) == next(data for name, data in steps.items() if "search" in name)["tried"]
    assert (tmp_path / "report.html").exists()
    assert "normal" in (tmp_path / "peers" / "peers-flash_attention.html").read_text()
    assert len((tmp_path / "tuned" / "sm_90a.jsonl").read_text().splitlines()) == 1
    archive = tmp_path / "packed" / "all.tar.gz"  # in the folder that is packed
    again = [*command, str(tmp_path), "--archive", str(archive)]
    second = subprocess.run(again, capture_output=True, text=True, check=False)
    assert second.stderr.count("\n") == 1  # which device it is
    assert (tmp_path / "rows.jsonl").read_text() == rows
    with tarfile.open(archive) as packed:
        names = {Path(name).relative_to(tmp_path.name).as_posix() for name in packed.getnames()}
    assert {"rows.jsonl", "tuned/sm_90a.jsonl", "tuner.db"} <= names
    assert not any("all.tar.gz" in name for name in names)
    collect = [sys.executable, str(ROOT / "benchmarks" / "gpu_collect.py"), str(archive), "--records"]
    brought = subprocess.run([*collect, str(tmp_path / "db")], capture_output=True, text=True, check=False)
    assert brought.stdout.startswith("SIMULATED") and "| wgmma, unproven | right |" in brought.stdout
    assert brought.returncode != 0 and "was simulated" in brought.stderr
    assert not (tmp_path / "db").exists()
