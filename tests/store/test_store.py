"""Tests of the store: attempts, verdicts, records, studies and facts, on every kind of database."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.store_factory import OK, WRONG, attempt, identity, proof, race, record, study
from tuner.errors import StoreError
from tuner.results.attempt import Evidence, Measurement
from tuner.store.records import Snapshot
from tuner.store.sql import Store

SERVER = os.environ.get("TUNER_TEST_POSTGRES", "")  # postgresql://…, an empty database that may be filled and emptied
KINDS = ["file", "memory", *(["server"] if SERVER else [])]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "server":
        _empty(SERVER)
    place = {"file": str(tmp_path / "tuner.db"), "memory": ":memory:", "server": SERVER}[request.param]
    with Store.open(place) as opened:
        yield opened


def _empty(url: str) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()


def test_attempts_come_back_in_the_order_in_which_they_were_appended(store: Store) -> None:
    given = [attempt(BT) for BT in (64, 16, 128, 32)]
    ids = store.append(given)
    assert [(stored.id, stored.attempt) for stored in store.attempts("scan")] == list(zip(ids, given, strict=True))


def test_equal_attempts_are_two_rows(store: Store) -> None:
    assert len(set(store.append([attempt(), attempt()]))) == 2
    assert len(store.attempts("scan")) == 2


def test_appending_nothing_stores_nothing(store: Store) -> None:
    assert store.append([]) == []


@pytest.mark.parametrize("name", ["problem", "gpu", "implementation", "policy"])
def test_attempts_are_found_by_each_part_of_their_identity(store: Store, name: str) -> None:
    other = {"problem": {"T": 5}, "gpu": "B200", "implementation": "slow", "policy": "cold/2"}[name]
    here, there = attempt(), attempt(**{name: other})
    store.append([here, there])
    result = store.attempts("scan", **{name: getattr(there.identity, name)})
    assert [entry.attempt for entry in result] == [there]


def test_attempts_of_another_operator_are_not_found(store: Store) -> None:
    store.append([attempt(operator="kda")])
    assert store.attempts("scan") == []


def test_an_attempt_remembers_its_study(store: Store) -> None:
    number = store.begin_study(**study())
    store.append([attempt()], number)
    store.append([attempt()])
    assert [stored.study for stored in store.attempts("scan")] == [number, None]


def test_attempts_of_an_unknown_study_are_refused_and_none_is_kept(store: Store) -> None:
    with pytest.raises(StoreError, match="no such study or attempt"):
        store.append([attempt()], study=17)
    assert store.attempts("scan") == []


def test_the_newest_verdict_of_an_attempt_is_given(store: Store) -> None:
    first, second, third = store.append([attempt(), attempt(), attempt()])
    store.append_verdict(first, WRONG)
    store.append_verdict(first, OK)
    store.append_verdict(second, OK)
    assert store.verdicts([first, third]) == {first: OK}


def test_verdicts_of_more_attempts_than_one_question_holds_are_found(store: Store) -> None:
    ids = store.append([attempt()] * 3)
    store.append_verdict(ids[2], OK)
    assert store.verdicts(list(range(-25_000, ids[2] + 1))) == {ids[2]: OK}


def test_a_verdict_keeps_what_is_not_a_number(store: Store) -> None:
    (number,) = store.append([attempt()])
    store.append_verdict(number, WRONG)
    (error,) = store.verdicts([number])[number].errors
    assert (str(error.rmse_ratio), str(error.max_abs)) == ("nan", "inf")


def test_a_verdict_on_an_unknown_attempt_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="no such study or attempt"):
        store.append_verdict(17, OK)


@pytest.mark.parametrize("day", ["20", "21", "22"], ids=["clock set back", "same second", "later"])
def test_the_record_that_was_stored_last_is_current_whatever_its_date_and_older_ones_are_kept(
    store: Store, day: str
) -> None:
    first = record(16, created="2026-11-21T00:00:00+00:00")
    second = record(32, created=f"2026-11-{day}T00:00:00+00:00")
    store.promote(first)
    store.promote(second)
    assert store.record("scan", second.identity.problem, "H200") == second
    assert store.records() == [second]
    assert store.all_records("scan") == [second, first]


def test_current_records_are_chosen_by_operator_and_gpu_and_limited(store: Store) -> None:
    stored = [record(operator=name, gpu=gpu) for name in ("kda", "scan") for gpu in ("B200", "H200")]
    for row in reversed(stored):
        store.promote(row)
    assert store.records() == stored
    assert store.records("scan") == stored[2:]
    assert store.records(gpu="H200") == stored[1::2]
    assert store.records(limit=3) == stored[:3]


def test_sessions_are_chosen_by_operator_and_problem(store: Store) -> None:
    numbers = [
        store.begin_study(**study(operator=name, gpu=gpu)) for name in ("kda", "scan") for gpu in ("B200", "H200")
    ]
    assert [stored.id for stored in store.studies()] == numbers
    assert [stored.id for stored in store.studies("scan")] == numbers[2:]
    assert [stored.id for stored in store.studies("scan", gpu="H200")] == numbers[3:]
    assert [stored.id for stored in store.studies_of([numbers[3], numbers[0], 99])] == [numbers[0], numbers[3]]
    store.begin_study(**study(gpu="H200"))
    problem = study()["problem"]
    assert store.searched("scan") == {(problem, "B200"), (problem, "H200")}


def test_a_newer_prediction_does_not_displace_a_measurement(store: Store) -> None:
    measured = record(evidence=Evidence.MEASURED, created="2026-11-20T00:00:00+00:00")
    store.promote(measured)
    store.promote(record(created="2026-11-21T00:00:00+00:00"))
    assert store.record("scan", measured.identity.problem, "H200") == measured


def test_each_problem_and_gpu_has_its_own_current_record(store: Store) -> None:
    given = [record(), record(gpu="B200"), record(problem={"T": 5}), record(operator="kda")]
    for tensor in given:
        store.promote(tensor)
    assert len(store.records()) == 4
    assert store.records("scan", gpu="B200") == [given[1]]
    assert store.record("scan", given[0].identity.problem, "RTX 5090") is None


def test_promoting_a_record_twice_stores_it_once(store: Store) -> None:
    assert store.promote(record()) == store.promote(record())
    assert len(store.all_records()) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"verdict": WRONG}, "its verdict is not ok: o\\[3\\] is NaN"),
        ({"evidence": Evidence.MEASURED}, "it is said to be measured, and holds no such figure"),
        ({"prediction": None}, "it is said to be predicted, and holds no such figure"),
        ({"created": "yesterday"}, "its date 'yesterday' is not ISO 8601 in UTC"),
        ({"created": "2026-11-21T10:00:00+02:00"}, "is not ISO 8601 in UTC"),
        ({"identity": replace(identity(), problem='{"T": 5}')}, "its problem is not canonical JSON"),
    ],
    ids=["wrong", "not measured", "not predicted", "no date", "other zone", "problem"],
)
def test_a_record_without_its_evidence_is_refused(store: Store, change: dict[str, object], reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        store.promote(replace(record(), **change))  # type: ignore[arg-type]
    assert store.all_records() == []


def test_of_the_proofs_of_equal_code_the_newest_counts(store: Store) -> None:
    later, elsewhere = proof(WRONG), proof(driver="12.8")
    for new in (proof(), elsewhere, later, proof(gpu="H100")):
        store.append_proof(new)
    kept = {stored.code: (stored.problem, stored.verdict.ok) for stored in store.proofs("scan", "H200")}
    assert kept == {later.code: (later.problem, False), elsewhere.code: (elsewhere.problem, True)}
    assert store.proofs("other", "H200") == []


def test_an_application_reads_of_proofs_what_a_device_found_right(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        for new in (proof(), proof(WRONG, source="bad"), proof(driver="12.8"), proof(WRONG, driver="12.8")):
            store.append_proof(new)
    snapshot = Snapshot.load([tmp_path / "tuner.db"])
    verdicts = {(code.source, code.driver): ok for code, ok in snapshot.proofs("scan", "H200").items()}
    assert verdicts == {("5eed", "13.0"): True, ("bad", "13.0"): False, ("5eed", "12.8"): False}
    assert snapshot.proofs("scan", "H100") == {}


def test_final_races_come_back_in_the_order_in_which_they_were_run(store: Store) -> None:
    given = [race(), race(own_clock=True, voided=2), race(problem="{}")]
    for tensor in given:
        store.append_race(tensor)
    assert store.races("scan") == given
    assert store.races("scan", problem=given[0].problem, gpu="H200") == given[:2]
    assert store.races("other") == []


def test_a_measurement_keeps_what_the_device_was_like(store: Store) -> None:
    result = Measurement(12.5, 12.0, 13.0, 12, sm_mhz=1755, throttle=4, temperature_c=61, late=0.25, floor_us=2.25)
    store.append([replace(attempt(), measurement=result)])
    (stored,) = store.attempts("scan")
    assert stored.attempt.measurement == result
    assert result.cycles == 12.5 * 1755


def test_a_study_is_running_until_it_ends(store: Store) -> None:
    number = store.begin_study(**study(), versions={"tuner": "0.1.0"})
    (running,) = store.studies()
    store.end_study(number, "the budget is spent")
    (ended,) = store.studies()
    assert (running.ended, running.why) == (None, None)
    assert ended == replace(running, ended=ended.ended, why="the budget is spent")
    assert (ended.seed, ended.budget, ended.versions) == (7, 32, {"tuner": "0.1.0"})


def test_a_study_ends_once(store: Store) -> None:
    number = store.begin_study(**study())
    store.end_study(number, "interrupted")
    with pytest.raises(StoreError, match=f"no study {number} is running"):
        store.end_study(number, "again")
    assert store.studies()[0].why == "interrupted"


def test_facts_are_stored_once_until_they_change(store: Store) -> None:
    first = store.add_device("H200", {"driver": "570", "sm_count": 132})
    assert store.add_device("H200", {"sm_count": 132, "driver": "570"}) == first
    assert store.add_device("H200", {"driver": "580", "sm_count": 132}) != first
    assert [device.facts["driver"] for device in store.devices()] == ["570", "580"]


def test_a_sound_database_has_nothing_to_say(store: Store) -> None:
    store.append_verdict(store.append([attempt()])[0], WRONG)
    store.promote(record())
    assert store.check() == []


def test_exported_records_are_imported_once(store: Store, tmp_path: Path) -> None:
    for new in (record(), record(gpu="B200"), record(evidence=Evidence.MEASURED, problem={"T": 7})):
        store.promote(new)
    assert store.export_jsonl(tmp_path / "out.jsonl") == 3
    with Store.open(":memory:") as other:
        assert other.import_jsonl(tmp_path / "out.jsonl") == 3
        assert other.import_jsonl(tmp_path / "out.jsonl") == 0
        assert other.records() == store.records()


def test_an_export_holds_the_current_records_of_one_gpu(store: Store, tmp_path: Path) -> None:
    store.promote(record(16, created="2026-11-20T00:00:00+00:00"))
    store.promote(record(32))
    store.promote(record(gpu="B200"))
    assert store.export_jsonl(tmp_path / "H200.jsonl", gpu="H200") == 1
    assert '"BT":32' in (tmp_path / "H200.jsonl").read_text()


def test_an_import_with_one_wrong_line_stores_nothing(store: Store, tmp_path: Path) -> None:
    store.promote(record())
    path = tmp_path / "out.jsonl"
    store.export_jsonl(path)
    path.write_text(path.read_text() + '{"format":1}\n')
    with Store.open(":memory:") as other:
        with pytest.raises(StoreError, match="line 2: not a tuning record"):
            other.import_jsonl(path)
        assert other.all_records() == []


def test_the_rows_of_a_session_are_not_called_damaged(store: Store) -> None:
    number = store.begin_study(**study())
    store.append_verdict(*store.append([attempt()], number), OK)
    assert store.check() == []
