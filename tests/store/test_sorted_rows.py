"""Rows in one order, and imports that are larger than what is sorted in memory."""

from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.store_factory import record
from tuner.errors import StoreError
from tuner.store import record_lines
from tuner.store.sql import Store, sorted_rows
from tuner.store.sql.sorted_rows import SortedRows

ROWS = st.lists(st.tuples(st.text(), st.integers(0, 9), st.none() | st.text()))


@pytest.fixture
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_rows, "_RUN", 8)
    monkeypatch.setattr(sorted_rows, "_CHUNK", 3)


@given(rows=ROWS)
def test_rows_are_read_in_order_and_again(rows: list[tuple[str, int, str | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_rows, "_RUN", 4)
        patch.setattr(sorted_rows, "_CHUNK", 3)
        with SortedRows(itemgetter(1, 0)) as several:
            several.extend(rows)
            assert list(several) == list(several) == sorted(rows, key=itemgetter(1, 0))


@pytest.mark.usefixtures("_small_runs")
def test_a_file_of_several_runs_is_imported_whole_and_once(tmp_path: Path) -> None:
    records = [record(problem={"T": 7 * number % 31}) for number in range(31)]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(f"{record_lines.to_line(of_size)}\n" for of_size in records))
    with Store.open(":memory:") as store:
        assert store.import_jsonl(path) == 31
        assert store.import_jsonl(path) == 0
        assert sorted(map(record_lines.to_line, store.records())) == sorted(map(record_lines.to_line, records))


@pytest.mark.usefixtures("_small_runs")
def test_of_a_file_of_several_runs_with_a_wrong_last_line_nothing_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(f"{record_lines.to_line(record(problem={'T': T}))}\n" for T in range(20)) + "{}\n")
    with Store.open(":memory:") as store:
        with pytest.raises(StoreError, match="line 21: not a tuning record"):
            store.import_jsonl(path)
        assert store.all_records() == []


@pytest.mark.usefixtures("_small_runs")
def test_a_full_temporary_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_rows.tempfile, "tempdir", str(tmp_path / "missing"))
    with SortedRows(itemgetter(0)) as several, pytest.raises(StoreError, match="set TMPDIR"):
        several.extend((number,) for number in range(9))
