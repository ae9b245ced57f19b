"""Tests that a command imports only what it needs."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.store_factory import race, record
from tuner.cli.app import build
from tuner.results.attempt import Evidence, Measurement
from tuner.results.codec import race_from, to_data
from tuner.store import record_lines
from tuner.store.sql import Store

HEAVY = {"numpy", "optuna", "scipy", "sqlalchemy", "alembic", "jinja2", "cupy", "tuner.operators"}


def loaded(*arguments: str) -> set[str]:
    """The modules in a process that ran `tuner ARGUMENTS`."""
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); import tuner.cli as c"
    line = [sys.executable, "-c", f"{code}; c.main()", *arguments]
    return set(subprocess.run(line, capture_output=True, text=True, check=True).stderr.split())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_the_version_load_nothing_heavy(option: str) -> None:
    assert not HEAVY & loaded(option)


def test_the_records_of_a_file_are_listed_without_sqlalchemy_and_as_json_without_numpy(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    with Store.open(db) as store:
        store.promote(record())
    assert not {"sqlalchemy", "alembic", "optuna"} & loaded("show", "--db", str(db))
    assert not HEAVY & loaded("show", "--db", str(db), "--json")


def test_show_lists_the_records_that_the_store_says_are_current(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    with Store.open(db) as store:
        for each in (
            record(16, created="2026-11-21T10:00:02+00:00"),
            record(32, created="2026-11-21T10:00:02+00:00"),
            record(64, gpu="sm_80"),
            record(64, Evidence.MEASURED, gpu="sm_80", created="2026-11-21T09:00:00+00:00"),
            record(16, problem={"T": 63}),
        ):
            store.promote(each)
        current = [to_data(stored_record) for stored_record in store.records()]
    shown = CliRunner().invoke(build(), ["show", "--db", str(db), "--json"])
    document = json.loads(shown.stdout)["records"]
    assert [row.pop("race") for row in document if row["evidence"] == "measured"] == [None]
    for row, record_ in zip(document, current, strict=True):
        if row["measurement"]:  # all that is known of a time is told, and the record leaves out what is not
            assert row["measurement"] == row["measurement"] | record_["measurement"]
            row["measurement"] = record_["measurement"]
    assert {row.pop("predicted_time") for row in document} == {None}  # no device has judged such kernels
    assert len(current) == 3
    assert document == current


def test_show_tells_what_the_device_was_like_and_the_race_that_settled_a_record(tmp_path: Path) -> None:
    db, result = tmp_path / "tuner.db", record(64, Evidence.MEASURED)
    time = Measurement(12.5, 12.25, 12.75, 30, sm_mhz=1965, throttle=4, temperature_c=62, late=0.125, floor_us=2.25)
    settled = race(policy=result.identity.policy)
    with Store.open(db) as store:
        store.promote(replace(result, measurement=time))
        for final_race in (settled, race(policy="another")):
            store.append_race(final_race)
    shown = CliRunner().invoke(build(), ["show", "--db", str(db), "--json"])
    (document,) = json.loads(shown.stdout)["records"]
    assert document["measurement"] == asdict(time) | {"cycles": 12.5 * 1965}
    assert race_from(document["race"]) == settled
    assert "24562 cycles" in " ".join(CliRunner().invoke(build(), ["show", "--db", str(db)]).stdout.split())


def test_show_lists_the_records_of_a_file_in_which_a_line_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(f"{record_lines.to_line(record())}\n{{\n")
    shown = CliRunner().invoke(build(), ["show", "--db", str(path)])
    assert shown.exit_code == 0
    assert f"passed over: {path}, line 2: " in shown.stderr
    assert "predicted" in shown.stdout


def test_explain_names_what_it_cannot_read_once(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("{\n")
    explained = CliRunner().invoke(build(), ["explain", "flash_attention", "--gpu", "sm_80", "--db", str(path)])
    assert explained.exit_code == 0
    assert explained.stderr.count(f"passed over: {path}, line 1: ") == 1


def test_show_spells_a_problem_whose_dtype_is_unknown_today(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(record_lines.to_line(record(operator="flash_attention", problem={"dtype": "fp5"})))
    shown = CliRunner().invoke(build(), ["show", "--db", str(path)])
    assert shown.exit_code == 0
    assert "dtype=fp5" in shown.stdout


def test_show_of_a_database_that_is_not_there_makes_none(tmp_path: Path) -> None:
    done = CliRunner().invoke(build(), ["show", "--db", str(tmp_path / "none.db")])
    assert (done.exit_code, list(tmp_path.iterdir())) == (0, [])
    assert "no records in" in done.stderr


def test_a_table_of_many_records_is_cut_and_says_how_to_get_the_others(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    with Store.open(db) as store:
        for number in range(5):
            store.promote(record(problem={"T": 100 + number}))
            store.promote(record(32, problem={"T": 100 + number}, gpu="sm_80"))

    def shown(*options: str) -> tuple[int, bool]:
        done = CliRunner().invoke(build(), ["show", "--db", str(db), *options])
        assert done.exit_code == 0, done.output
        return done.output.count("\nscan "), "these are the first" in done.output

    assert shown("--limit", "3") == (3, True)
    assert shown("--limit", "10") == shown() == (10, False)
    assert shown("--limit", "3", "--gpu", "sm_80") == (3, True)
    assert (
        len(
            json.loads(CliRunner().invoke(build(), ["show", "--db", str(db), "--limit", "3", "--json"]).stdout)[
                "records"
            ]
        )
        == 10
    )


def test_show_passes_over_a_damaged_record_and_lists_the_one_before_it(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    with Store.open(db) as store:
        store.promote(record(16))
        damaged = store.promote(record(32))
        store.promote(record(64, problem={"T": 7}))
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE records SET record = replace(record, '128', '129') WHERE id = ?", (damaged,))
    for options in (["--limit", "1"], ["--limit", "2"], []):
        shown = CliRunner().invoke(build(), ["show", "--db", str(db), *options])
        assert f"passed over: {db}, record {damaged}: it has changed since it was stored" in shown.stderr
        assert "BT=16" in " ".join(shown.stdout.split()) and "BT=32" not in shown.stdout


def test_show_with_filters_reads_no_other_records(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    with Store.open(db) as store:
        store.promote(record(16, gpu="sm_80"))
        damaged = store.promote(record(32))
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE records SET record = '' WHERE id = ?", (damaged,))
    shown = CliRunner().invoke(build(), ["show", "--db", str(db), "--gpu", "sm_80", "--json"])
    assert [data["config"]["BT"] for data in json.loads(shown.stdout)["records"]] == [16]
    assert "passed over" not in shown.stderr
