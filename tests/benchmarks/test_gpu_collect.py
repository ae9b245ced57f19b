"""Tests of collecting a run on a device: its tables, and which of its records ship."""

import sys
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.store_factory import WRONG, record
from tuner import operators
from tuner.arch import ARCHES
from tuner.base import journal
from tuner.base.assets import ROOT
from tuner.base.canonical_json import encode
from tuner.bench import Comparison, Row
from tuner.compiler.render import render
from tuner.evaluate.measure.samples import Estimate, State
from tuner.results.attempt import Evidence, Measurement
from tuner.results.codec import to_data
from tuner.results.record import TuningRecord
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields
from tuner.store import record_lines

OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=72, causal=True, batch=2, seq_q=8192)  # its goal is 450 TFLOP/s
REACHED_US = OPERATOR.cost(PROBLEM).flops / 450e6
DEVICE = {"model": "NVIDIA H200", "gpu": "H200", "driver": 13000, "copy_gb_s": 4000.0}


def measured(**changes: Any) -> TuningRecord:
    result = record(evidence=Evidence.MEASURED)
    identity = replace(result.identity, policy="measured/1 cold L2 eager", **changes)
    return replace(result, identity=identity, measurement=Measurement(REACHED_US, REACHED_US, REACHED_US, 30))


def ours(found: TuningRecord) -> TuningRecord:
    identity = replace(
        found.identity, operator=OPERATOR.name, implementation="mma_sync", problem=canonical(PROBLEM), source="gone"
    )
    return replace(found, identity=identity)


def comparison(*rows: Row) -> dict[str, Any]:
    return Comparison(OPERATOR.name, to_fields(PROBLEM), "normal", {}, "wgmma", DEVICE, "measured/1", rows).data()


def steps(**device: Any) -> dict[str, Any]:
    result = ours(measured())
    fields = {"operator": OPERATOR.name, "problem": to_fields(PROBLEM), "about": "flash_attention head_dim=72"}
    timed = fields | {"times_us": {"wgmma": 2 * REACHED_US, "mma_sync": 3 * REACHED_US}}
    beside = Row("torch SDPA cuDNN", "ok", time_us=Estimate(9, 8, 10, 30), ratio=Estimate(1.25, 1.2, 1.3, 30))
    absent = Row("torch flex_attention", "absent", "no Triton")
    return {
        "device": DEVICE | device,
        "conformance": {"summary": "1 failed, 9 passed", "failed": ["tests/gpu/test_wgmma_gpu.py::test_one[a]"]},
        "timer matmul": {"tflop_s": 900.0, "summary": "900 TFLOP/s", "proves": "the clock"},
        "verification flash_attention": {"found": {"wgmma": "right"}},
        "verification flash_attention fp16": {"found": {"wgmma": "o: wrong"}, "error": "wgmma: o: wrong"},
        "defaults flash_attention head_dim=72": timed,
        "search flash_attention head_dim=72": timed | {"record": to_data(result), "finished": False},
        "peers flash_attention head_dim=72, normal": comparison(
            Row("tuner", "ok", time_us=Estimate(REACHED_US, 1, 2, 30), ratio=Estimate(1, 1, 1, 30)), beside, absent
        ),
    }


def write_rows(folder: Path, steps: dict[str, Any]) -> None:
    rows = journal.Journal(folder / "rows.jsonl")
    for name, data in steps.items():
        rows.append({"begins": name, "may_take_s": 9.0})
        rows.append({"ends": name, **data})


def run_folder(folder: Path, records: list[TuningRecord], **device: Any) -> Path:
    folder.mkdir()
    write_rows(folder, steps(**device))
    record_lines.write(folder / "tuned" / "H200.jsonl", records)
    return folder


@dataclass(frozen=True)
class Said:
    exit_code: int
    out: str
    err: str


Collect = Callable[..., Said]
Programs = Callable[[str], Any]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    """In this process: they start in a second, and are asked often."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module


@pytest.fixture
def collect(programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Collect:
    program = programs("gpu_collect")

    def run(*arguments: Path | str) -> Said:
        monkeypatch.setattr(sys, "argv", ["gpu_collect.py", *map(str, arguments)])
        return Said(program.main(), *capsys.readouterr())

    return run


def test_tables_tell_what_is_right_how_fast_it_is_and_what_a_goal_lacks(tmp_path: Path, collect: Collect) -> None:
    output = collect(run_folder(tmp_path / "out", []))
    assert output.exit_code == 0, output.err
    assert "NVIDIA H200, driver for CUDA 13.0, copies 4000 GB/s, bf16 matmul 900 TFLOP/s." in output.out
    assert "Tests of conformance: 1 failed, 9 passed." in output.out
    assert "- conformance: tests/gpu/test_wgmma_gpu.py::test_one[a]" in output.out
    assert "| verified | bf16 | fp16 |" in output.out and "| wgmma, unproven | right | o: wrong |" in output.out
    row = next(line for line in output.out.splitlines() if line.startswith("| head_dim=72 |"))
    assert f"wgmma {2 * REACHED_US:.4g} | mma_sync {REACHED_US:.4g} (" in row
    assert "| 450 |" in row and "50%" in row and "450 TFLOP/s: 100%" in row
    assert "torch SDPA cuDNN, × |" in output.out and "1.25 (1.2 … 1.3)" in output.out
    assert "- torch flex_attention: absent, no Triton" in output.out
    assert "- verification flash_attention fp16: wgmma: o: wrong" in output.out
    assert "- search flash_attention head_dim=72: not finished" in output.out


def test_measured_records_of_an_archive_are_added_to_those_that_ship(tmp_path: Path, collect: Collect) -> None:
    earlier, new = measured(problem=encode({"T": 1})), ours(measured())
    record_lines.write(tmp_path / "db" / "H200.jsonl", [earlier])
    packed = tmp_path / "gpu.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(run_folder(tmp_path / "out", [new]), "out")
    for _ in range(2):  # another time adds nothing
        output = collect(packed, "--records", tmp_path / "db")
        assert output.exit_code == 0, output.err
        assert list(record_lines.read(tmp_path / "db" / "H200.jsonl")) == [new, earlier]
    assert "2 records, 0 new; 1 of the run are not served, because the source has changed since" in output.err


def test_a_slower_record_takes_no_place_of_one_that_is_served(tmp_path: Path, collect: Collect) -> None:
    naive = operators.implementation(OPERATOR.name, "naive")
    config = naive.default(PROBLEM, ARCHES["sm_90a"])
    result = ours(measured())
    source = render(Instance(OPERATOR, naive, PROBLEM, config)).digest
    served = replace(result.identity, implementation="naive", source=source)
    fast = replace(result, identity=served, config=to_fields(config), measurement=Measurement(90, 89, 91, 30))
    for low_us, stays in ((92.0, fast), (91.0, None)):
        slow = replace(result, measurement=Measurement(95, low_us, 98, 30), created="2026-11-22T10:00:00+00:00")
        record_lines.write(tmp_path / f"{low_us}" / "H200.jsonl", [fast])
        output = collect(run_folder(tmp_path / f"out{low_us}", [slow]), "--records", tmp_path / f"{low_us}")
        assert list(record_lines.read(tmp_path / f"{low_us}" / "H200.jsonl")) == [stays or slow]
        assert ("slower than the shipped records" in output.err) == bool(stays)


@pytest.mark.parametrize(
    ("device", "changes", "why"),
    [
        ({"model": "simulated"}, {}, "simulated"),
        ({}, {"policy": "measured/1 cold L2 eager simulated"}, "not measured"),
        ({}, {"policy": "predicted/7"}, "not measured"),
        ({}, {"gpu": "H100"}, "of H100, not of H200"),
        ({}, {"verdict": WRONG}, "its verdict is not ok"),
    ],
)
def test_what_was_not_measured_on_the_device_or_is_not_right_does_not_ship(
    tmp_path: Path, collect: Collect, device: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    given = ours(measured())
    verdict = changes.pop("verdict", given.verdict)
    refused = replace(given, identity=replace(given.identity, **changes), verdict=verdict)
    output = collect(run_folder(tmp_path / "out", [ours(measured()), refused], **device), "--records", tmp_path)
    assert output.exit_code != 0
    assert why in output.err
    assert not (tmp_path / "H200.jsonl").exists()


def test_rows_alone_are_read_and_what_was_under_way_is_told_as_far_as_it_came(tmp_path: Path, collect: Collect) -> None:
    folder = run_folder(tmp_path / "out", [])
    rows = journal.Journal(folder / "rows.jsonl")
    fields = {"operator": OPERATOR.name, "problem": to_fields(PROBLEM), "about": "flash_attention head_dim=64"}
    rows.append({"begins": "defaults flash_attention head_dim=64", **fields})
    rows.append({"finds": "defaults flash_attention head_dim=64", "times_us": {"wgmma": 4 * REACHED_US}})
    rows.append({"finds": "defaults flash_attention head_dim=64", "times_us": {"naive": 9 * REACHED_US}})
    rows.append({"begins": "peers flash_attention head_dim=64, normal"})
    entered, empty = Row("tuner", "ok"), comparison()
    rows.append({"event": "meets", **empty})
    rows.append({"event": "enters", "row": asdict(entered)})
    state = asdict(State(sm_mhz=1755))
    for time_us in (3.0, 4.0, 5.0):
        rows.append({"event": "round", "times_us": [time_us], "states": [state]})
    path = tmp_path / "alone.jsonl"
    path.write_bytes((folder / "rows.jsonl").read_bytes() + b'{"event": "round", "times_us": [7')
    output = collect(path)
    assert output.exit_code == 0, output.err
    assert f"| head_dim=64 | wgmma {4 * REACHED_US:.4g} |" in output.out
    assert sum("| 4 (" in line for line in output.out.splitlines()) == 1  # the median of the rounds so far
    assert "- defaults flash_attention head_dim=64: not finished" in output.out
    assert "- peers flash_attention head_dim=64, normal: not finished" in output.out


def test_a_run_that_ended_before_it_knew_its_device_is_told_and_has_no_records(
    tmp_path: Path, collect: Collect
) -> None:
    write_rows(tmp_path, {"installed": {"summary": "missing: torch"}})
    assert "The device is not known" in collect(tmp_path).out
    output = collect(tmp_path, "--records", tmp_path / "db")
    assert output.exit_code == 2 and "has no records" in output.err


def test_what_the_timer_says_and_warnings_stand_above_the_tables(tmp_path: Path, collect: Collect) -> None:
    slow = {"summary": "copies 3000 GB/s", "proves": "the flush", "warning": "copies at 3000 GB/s"}
    write_rows(tmp_path, steps() | {"timer copies": slow})
    result = collect(tmp_path).out
    assert "| matmul | 900 TFLOP/s | the clock |" in result and "| copies | copies 3000 GB/s | the flush |" in result
    assert "- timer copies: copies at 3000 GB/s" in result


def test_a_simulated_device_is_named_so_above_its_tables(tmp_path: Path, collect: Collect) -> None:
    output = collect(run_folder(tmp_path / "out", [], model="simulated"))
    assert output.out.startswith("SIMULATED, nothing here was measured: ")


@pytest.mark.parametrize("content", [None, "", '{"begins": '])
def test_what_is_no_run_is_said_to_be_none(tmp_path: Path, collect: Collect, content: str | None) -> None:
    if content is not None:
        (tmp_path / "rows.jsonl").write_text(content)
    output = collect(tmp_path)
    assert (output.exit_code, output.out) == (2, "")
    assert output.err.startswith("error: ")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8])
def test_an_archive_that_is_cut_off_is_said_to_be_none(tmp_path: Path, collect: Collect, share: float) -> None:
    packed = tmp_path / "gpu.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(run_folder(tmp_path / "out", [ours(measured())]), "out")
    packed.write_bytes(packed.read_bytes()[: int(share * packed.stat().st_size)])
    output = collect(packed, "--records", tmp_path / "db")
    assert (output.exit_code, output.out) == (2, "")
    assert not (tmp_path / "db").exists()


def test_what_failed_is_read_from_what_pytest_says_as_it_goes_and_ends(programs: Programs, tmp_path: Path) -> None:
    log = tmp_path / "conformance.txt"
    log.write_text(
        "[gw0] [ 83%] FAILED tests/gpu/test_a.py::test_one[x] \n[gw1] [ 84%] PASSED tests/gpu/test_a.py::test_two \n"
        "tests/gpu/test_b.py::test_three FAILED [ 90%]\nFAILED tests/gpu/test_a.py::test_one[x] - assert 0\n"
    )
    result = programs("gpu_tests")._unfinished(log)
    assert result["failed"] == ["tests/gpu/test_a.py::test_one[x]", "tests/gpu/test_b.py::test_three"]
    assert "2 failed, 1 passed so far" in result["summary"]
