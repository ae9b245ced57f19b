"""Tests of records that ship: the shapes in db/shapes.toml, the records in db/tuned, and when they serve."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.arriving import records
from tuner import operators
from tuner.arch import ARCHES, GPU, gpu
from tuner.base.assets import ROOT
from tuner.dispatcher import config_choice, device_proofs
from tuner.dispatcher.config_choice import Choice
from tuner.results.attempt import Evidence
from tuner.results.record import TuningRecord
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical
from tuner.store import locations, record_lines
from tuner.store.records import Snapshot

sys.path.insert(0, str(ROOT / "benchmarks"))
import ship_records

pytestmark = pytest.mark.usefixtures("own_folder")
A100 = gpu("A100")


def of(rows: int, number: int = 0, target: str = "sm_80") -> TuningRecord:
    """Return a record of row_norm with config `number` of the space, for `rows` rows."""
    operator, implementation = operators.load("row_norm"), operators.implementation("row_norm", "naive")
    problem = operator.problem(width=32, rows=rows)
    config = implementation.space(problem, ARCHES["sm_80"])[number]
    (record,) = records(Instance(operator, implementation, problem, config), target=target, arch="sm_80")
    return record


@pytest.fixture
def shipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Ships records in place of those of the package."""

    def ship(*listed: TuningRecord) -> Path:
        for target in {record.identity.gpu for record in listed}:
            chosen = [record for record in listed if record.identity.gpu == target]
            record_lines.write(tmp_path / "tuned" / "row_norm" / f"{target}.jsonl", chosen)
        monkeypatch.setattr(locations, "SHIPPED", tmp_path / "tuned")
        return tmp_path / "tuned"

    return ship


def run(rows: int, *sources: Path | str, target: GPU = A100) -> Choice:
    operator = operators.load("row_norm")
    problem, snapshot = operator.problem(width=32, rows=rows), Snapshot.load([*map(str, sources)])
    return config_choice.choose(operator, problem, [target], snapshot)


def mine(folder: Path, *listed: TuningRecord) -> Path:
    record_lines.write(folder / "mine.jsonl", listed)
    return folder / "mine.jsonl"


def test_a_call_without_a_search_runs_what_ships_for_its_architecture_and_explains_it(
    shipping: Callable[..., Path],
) -> None:
    folder = shipping(of(64, number=1))
    chosen = run(100, folder)
    assert dict(of(64, number=1).config) == config_choice.to_fields(chosen.instance.config)
    assert "near problem for sm_80, which ships with this program (predicted): rows=64 for 100" in chosen.why


def test_what_somebody_searched_stands_before_what_ships_however_near_that_is(
    shipping: Callable[..., Path], tmp_path: Path
) -> None:
    folder = shipping(of(64, number=1))
    for target in ("sm_80", "A100"):
        chosen = run(64, mine(tmp_path, of(8192, number=0, target=target)), folder)
        assert chosen.record is not None and dict(chosen.record.config) == dict(of(64, number=0).config)
        assert "ships" not in chosen.why


def test_what_ships_serves_only_problems_of_nearly_its_sizes(shipping: Callable[..., Path]) -> None:
    folder = shipping(of(64, number=1))
    assert run(64 << 3, folder).record is not None
    assert run((64 << 3) + 1, folder).record is None


def test_a_gpu_that_runs_an_unproven_implementation_right_takes_its_default_instead(
    shipping: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shipping(of(64, number=1))
    monkeypatch.setattr(device_proofs.Verdicts, "found_unproven_right", True)
    assert run(64, folder).record is None


def test_records_that_ship_are_read_when_their_operator_is_called(
    shipping: Callable[..., Path],
) -> None:
    folder = shipping(of(64))
    (folder / "flash_attention").mkdir()
    (folder / "flash_attention" / "sm_80.jsonl").write_bytes(b"\xff")  # an error for the reader
    snapshot = Snapshot.load([str(folder)], strict=True)
    operator = operators.load("row_norm")
    assert config_choice.choose(operator, operator.problem(width=32, rows=64), [A100], snapshot).record is not None


# ---- the list of problems ----


def test_every_shape_is_a_problem_that_some_proven_implementation_serves() -> None:
    asked = ship_records.read()
    assert {target.name for target in asked.gpus} == set(ARCHES)
    for shape in asked.shapes:
        serving = [target for target in asked.gpus if ship_records.proven(shape.operator, shape.problem, target)]
        assert serving, f"{shape.operator.name} {shape.problem}"
    assert {shape.operator.name for shape in asked.shapes} >= {path.parent.name for path in _operators()}


def _operators() -> list[Path]:
    return sorted((ROOT / "templates").glob("*/operator.py"))


# ---- the files ----


def test_what_ships_is_small_predicted_verified_and_of_proven_implementations() -> None:
    files = sorted(locations.SHIPPED.glob("**/*.jsonl"))
    assert sum(file.stat().st_size for file in files) <= ship_records.LIMIT
    asked = {(shape.operator.name, canonical(shape.problem)) for shape in ship_records.read().shapes}
    for file in locations.SHIPPED.glob("*/*.jsonl"):
        for record in record_lines.read(file):
            identity = record.identity
            assert (file.parent.name, file.stem) == (identity.operator, identity.gpu)
            assert record.evidence is Evidence.PREDICTED and record.prediction is not None
            assert record.verdict.ok and record.verdict.checks
            assert not operators.implementation(identity.operator, identity.implementation).unproven
            assert (identity.operator, identity.problem) in asked, "no shape asks for it: remove the line"


def test_records_whose_source_has_changed_are_named() -> None:
    """If the build changes kernels, it continues and names what `make records` must search again."""
    if stale := ship_records.stale(ship_records.shipped()):
        pytest.skip(f"`make records` is to search {len(stale)} records again: {'; '.join(sorted(stale))}")


def test_a_record_with_other_source_is_stale_by_name() -> None:
    record = of(64)
    other = replace(of(128), identity=replace(of(128).identity, source="5eed"))
    assert ship_records.stale([record, other]) == {
        "row_norm on sm_80: rows=128": "its source has changed since it was made"
    }


# ---- searching ----


def test_a_search_writes_records_resumes_and_keeps_what_compiles_to_the_same_code(
    shipping: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shipping()
    monkeypatch.setattr(ship_records, "WORK", tmp_path / "work" / "records.db")
    operator = operators.load("row_norm")
    shapes = tuple(ship_records.Shape(operator, operator.problem(rows=rows), "a test", 1) for rows in (8, 16))
    asked = ship_records.Shapes((gpu("sm_80"),), 2, shapes)

    def search() -> list[str]:
        ship_records.search(asked, asked.gpus, range(1, 9), 600.0, 1, folder)
        return capsys.readouterr().out.splitlines()

    assert [line.split(": ")[2] for line in search()] == ["searched", "searched"]
    first, second = ship_records.shipped(folder)
    assert config_choice.refusal(first) is None and first.evidence is Evidence.PREDICTED
    assert search() == []
    ship_records.put(replace(first, identity=replace(first.identity, source="5eed")), folder)
    (line,) = search()
    assert "verified again: its machine code is the same" in line
    again = ship_records.shipped(folder)
    assert [record.identity for record in again] == [first.identity, second.identity]
    other_code = replace(first.resources, sass_digest="5eed")
    ship_records.put(replace(first, identity=replace(first.identity, source="5eed"), resources=other_code), folder)
    (line,) = search()
    assert "searched" in line


def test_a_record_is_kept_where_only_comments_of_its_source_have_changed(tmp_path: Path) -> None:
    commented, changed = (
        replace(of(rows), identity=replace(of(rows).identity, source=f"{rows:016x}")) for rows in (64, 128)
    )
    source = ship_records.render(ship_records._instance(commented))
    for record in (commented, changed):
        ship_records.put(record, tmp_path)
    codes = {commented.identity.source: ship_records.code_digest(source), changed.identity.source: "another"}
    (tmp_path / ship_records.CODES).write_text(json.dumps(codes))
    assert ship_records.refresh(tmp_path) == 1
    assert list(ship_records.stale(ship_records.shipped(tmp_path))) == ["row_norm on sm_80: rows=128"]


def test_the_digest_of_code_ignores_comments_alone() -> None:
    source = ship_records.render(ship_records._instance(of(64)))
    same = replace(source, text=f"// one\n{source.text}  /* two\n lines */\n")
    assert ship_records.code_digest(same) == ship_records.code_digest(source) and same.digest != source.digest
    texts = (*(f'{source.text}\nasm("{word}");\n' for word in ("// a", "// b")), f"{source.text}\nint x;")
    assert len({ship_records.code_digest(replace(source, text=text)) for text in (source.text, *texts)}) == 4


def test_files_that_grow_too_large_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship_records, "LIMIT", 100)
    with pytest.raises(ship_records.StoreError, match="remove shapes"):
        ship_records.put(of(64), tmp_path)


def test_the_gain_of_a_record_over_an_untuned_call_is_computed_by_todays_prediction() -> None:
    ((record, untuned, gain),) = list(ship_records.gains([of(64, number=1)], 1))
    assert record.identity.operator == "row_norm" and untuned in ("naive", "two_pass")
    assert -1 < gain < 100
