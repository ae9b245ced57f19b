"""Tests of problems as families and sizes, and of lines that are imported unchanged."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.test_migrations import insert, steps_until
from tests.support.store_factory import PROBLEM, record
from tuner.base.canonical_json import encode
from tuner.errors import StoreError
from tuner.results.attempt import Evidence
from tuner.store import canonical_lines, record_lines
from tuner.store.packed_problems import packed
from tuner.store.records import Query, Snapshot
from tuner.store.sql import Store
from tuner.store.sql.rows import RECORD_COLUMNS, imported_row, record_row

FIELDS = st.dictionaries(st.text(), st.integers() | st.booleans() | st.floats() | st.text(), max_size=4)
BEFORE = "0008"


def row_of(line: str) -> dict[str, Any]:
    return dict(zip(RECORD_COLUMNS, imported_row(line), strict=True))


def config(database: Path, **problem: Any) -> object:
    """The block size of the record that serves a problem."""
    query = Query("scan", PROBLEM | problem, "H200", "sm_90a", ("causal", "dtype"))
    match = Snapshot.load([database]).find(query, lambda _: None)
    return match and match.record.config["BT"]


@given(FIELDS)
def test_a_family_is_canonical_json_without_the_sizes(problem: dict[str, Any]) -> None:
    family, sizes = packed(problem)
    numbers = [name for name, value in json.loads(family).items() if value is None]
    assert family == encode({**problem, **dict.fromkeys(numbers)})
    assert sizes == " ".join(str(problem[name]) for name in sorted(numbers))


def test_records_of_an_older_database_are_found_by_their_sizes(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    Store.open(path, migrations=steps_until(BEFORE, tmp_path / "migrations")).close()
    for BT, T in ((16, 100), (32, 4000)):
        insert(path, "records", record_row(record(BT, problem={"T": T}), None))
    assert config(path, T=1000) == 32  # as it is, by a program of today
    with Store.open(path) as store:
        assert store.check() == []
    assert [config(path, T=T) for T in (1, 1000)] == [16, 32]
    assert config(path, T=1000, causal=False) is None


def test_a_number_that_selects_code_has_to_be_equal(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        store.promote(record(16, problem={"B": 3}))
        store.promote(record(32, problem={"T": 64000}))
    query = Query("scan", PROBLEM, "H200", "sm_90a", ("B", "causal", "dtype"))  # type: ignore[arg-type]
    match = Snapshot.load([tmp_path / "tuner.db"]).find(query, lambda _: None)
    assert match is not None
    assert match.record.config["BT"] == 32


@pytest.mark.parametrize("sizes", ["2 many", "2", "2 1000 7"])
def test_sizes_that_are_no_numbers_are_named(tmp_path: Path, sizes: str) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        store.promote(record())
    with closing(sqlite3.connect(tmp_path / "tuner.db")) as connection, connection:
        connection.execute("UPDATE records SET sizes = ?", (sizes,))
    records = Snapshot.load([tmp_path / "tuner.db"])
    query = Query("scan", PROBLEM | {"T": 7}, "H200", "sm_90a", ("causal", "dtype"))  # type: ignore[arg-type]
    assert records.find(query, lambda _: None) is None
    assert "the sizes of its records are" in records.refused[0]
    with Store.open(tmp_path / "tuner.db") as store:
        assert "sizes are those of another record" in store.check()[0]


@pytest.mark.parametrize("evidence", list(Evidence))
def test_a_canonical_line_is_imported_as_it_is(evidence: Evidence) -> None:
    line = record_lines.to_line(record(evidence=evidence))
    assert canonical_lines.parts(line) is not None
    assert row_of(line) == record_row(record(evidence=evidence), None)


@pytest.mark.parametrize(
    "changes",
    [
        {"margin": 1e-5},
        {"margin": 1e22},
        {"margin": float("inf")},
        {"tuner": "0.1.0 é"},
        {"created": "2026-11-21T10:00:00Z"},
    ],
)
def test_a_line_with_unusual_values_gives_the_row_of_its_record(changes: dict[str, Any]) -> None:
    unusual = replace(record(), **changes)
    assert row_of(record_lines.to_line(unusual)) == record_row(unusual, None)


@pytest.mark.parametrize(
    "respelled",
    [
        lambda data: json.dumps(data),
        lambda data: encode(data | {"later": 1}),
        lambda data: encode(data | {"signature": ""}),
        lambda data: encode(data | {"config": dict(reversed(data["config"].items()))}).replace(":64", ": 64"),
        lambda data: encode(data).replace("0.03", "0.030"),
        lambda data: encode(data).replace('"swizzle":true', '"swizzle": true'),
        lambda data: encode(data).replace('"BT":64,"swizzle":true', '"swizzle":true,"BT":64'),
        lambda data: encode(data).replace('"B":2,"T":1000', '"T":1000,"B":2'),
    ],
)
def test_a_line_that_is_spelled_in_another_way_gives_the_row_of_its_record(respelled: Any) -> None:
    line = respelled(json.loads(record_lines.to_line(record())))
    assert canonical_lines.parts(line) is None
    assert row_of(line) == record_row(record(), None)


def test_a_line_without_evidence_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f"{record_lines.to_line(record())}\n{record_lines.to_line(replace(record(), prediction=None))}\n")
    with Store.open(tmp_path / "tuner.db") as store:
        with pytest.raises(StoreError, match=r"records\.jsonl, line 2: no record for scan on H200: .* no such figure"):
            store.import_jsonl(path)
        assert store.records() == []


def test_a_line_with_a_character_that_no_terminal_should_get_is_refused() -> None:
    line = record_lines.to_line(record()).replace("nvrtc 13.4", "nvrtc\x7f13.4")
    assert canonical_lines.parts(line) is None
    with pytest.raises(StoreError, match="not printable"):
        imported_row(line)
