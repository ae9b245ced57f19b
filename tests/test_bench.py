"""The comparison with peers, and the one command for a GPU, on a device that is not there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner import bench, operators, peers
from tuner.arch import gpu
from tuner.device import Code
from tuner.operator import to_fields
from tuner.policy import MeasurementPolicy
from tuner.records import Snapshot
from tuner.simulated import Simulation

ROOT = Path(__file__).parents[1]
OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=16, batch=1, heads=1, seq_q=64)
NAIVE = operators.implementation("flash_attention", "naive")
CODE = Code("flash_attention", "naive", to_fields(PROBLEM), to_fields(NAIVE.default(PROBLEM, gpu("H200").arch)), b"")


@pytest.fixture(scope="module")
def comparison() -> bench.Comparison:
    return bench.compare(CODE, Simulation("H200"), MeasurementPolicy(rounds=8))


def test_ours_is_timed_and_the_roof_is_named(comparison: bench.Comparison) -> None:
    ours, roof = comparison.rows[:2]
    assert (ours.name, ours.state) == ("tuner", "ok")
    assert ours.ratio is not None
    assert ours.ratio.mid == 1
    assert roof.state == "roof"
    assert "GB/s" in roof.note


def test_peers_that_are_not_there_are_listed_with_the_reason(comparison: bench.Comparison) -> None:
    absent = [row for row in comparison.rows if row.state == "absent"]
    assert {row.name for row in absent} == {peer.name for peer in peers.of("flash_attention")}
    assert all(row.note for row in absent)


def test_a_comparison_is_a_table_and_json(comparison: bench.Comparison) -> None:
    assert len(comparison.table()) == len(comparison.rows)
    assert json.loads(json.dumps(comparison.data()))["device"]["model"] == "simulated"


def test_the_contender_is_what_an_application_would_run() -> None:
    code = bench.contender(OPERATOR, PROBLEM, gpu("H200"), Snapshot.load([]))
    assert code.implementation != "naive"
    assert code.image.startswith(b"\x7fELF")


def test_the_rehearsal_writes_records_and_a_second_call_repeats_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--simulate", "--minutes", "3", "--out"]
    first = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr[-2000:]
    steps = json.loads((tmp_path / "results.json").read_text())
    assert [name.partition(" ")[0] for name in steps] == ["device", "verification", "search", "peers", "report"]
    assert len((tmp_path / "tuned" / "sm_90a.jsonl").read_text().splitlines()) == 1
    second = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert second.stderr == ""
    assert json.loads((tmp_path / "results.json").read_text()) == steps
