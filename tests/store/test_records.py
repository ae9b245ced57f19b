"""Tests of read access: which record serves a problem, from which source, and why."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.store_factory import PROBLEM, read_only, record
from tuner.base.assets import ROOT
from tuner.base.fields import Fields
from tuner.errors import StoreError
from tuner.results.attempt import Evidence
from tuner.results.record import TuningRecord
from tuner.store import record_lines as tuned
from tuner.store.locations import SHIPPED
from tuner.store.records import Candidate, Match, Query, Snapshot
from tuner.store.sql import Store

STATICS = ("causal", "dtype")
CHANGED = "its source has changed since it was made"
Check = Callable[[TuningRecord], str | None]


def always(_: TuningRecord) -> str | None:
    return None


def never(_: TuningRecord) -> str | None:
    return CHANGED


def not_16(record: TuningRecord) -> str | None:
    return CHANGED if record.config["BT"] == 16 else None


def snapshot(tmp_path: Path, *records: TuningRecord) -> Snapshot:
    tuned.write(tmp_path / "records.jsonl", records)
    return Snapshot.load([tmp_path / "records.jsonl"])


def query(gpu: str = "H200", **changes: object) -> Query:
    problem: Fields = PROBLEM | changes  # type: ignore[operator]
    return Query("scan", problem, gpu, "sm_90a", STATICS)


def find(records: Snapshot, check: Check = always, gpu: str = "H200", **changes: object) -> Match | None:
    return records.find(query(gpu, **changes), check)


def explain(records: Snapshot, check: Check = always, **changes: object) -> list[Candidate]:
    return records.explain(query(**changes), check)


def block(match: Match | None) -> object:
    """Which record was found, by its config."""
    return match and match.record.config["BT"]


def test_a_problem_is_served_by_its_own_record(tmp_path: Path) -> None:
    match = find(snapshot(tmp_path, record(16, problem={"T": 999}), record(32)))
    assert match is not None
    assert (match.record, match.distance, match.why) == (record(32), 0.0, "this problem on H200")


def test_a_problem_without_a_record_is_served_by_the_nearest_in_octaves(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record(16, problem={"T": 100}), record(32, problem={"T": 4000}))
    match = find(records, T=1000)
    assert match is not None
    assert block(match) == 32
    assert match.distance == pytest.approx(math.log2(4))
    assert match.why == "near problem on H200: T=4000 for 1000"


def test_what_stands_behind_the_best_match_is_known_in_order(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record(16, problem={"T": 100}), record(32, problem={"T": 4000}), record(64))
    every = records.matches(query(T=1000), always)
    assert [(stored.record.config["BT"], stored.distance > 0) for stored in every] == [
        (64, False),
        (32, True),
        (16, True),
    ]


def test_distance_is_euclidean_over_all_extents(tmp_path: Path) -> None:
    match = find(snapshot(tmp_path, record(problem={"B": 16, "T": 16000})), B=2, T=1000)
    assert match is not None
    assert match.distance == pytest.approx(5.0)


def test_an_extent_of_zero_is_as_far_as_one(tmp_path: Path) -> None:
    match = find(snapshot(tmp_path, record(problem={"T": 0})), T=8)
    assert match is not None
    assert match.distance == pytest.approx(3.0)


@pytest.mark.parametrize("other", [{"causal": False}, {"dtype": "fp16"}])
def test_a_record_of_another_kernel_does_not_serve(tmp_path: Path, other: dict[str, object]) -> None:
    assert find(snapshot(tmp_path, record(problem=other))) is None


def test_a_record_of_another_operator_does_not_serve(tmp_path: Path) -> None:
    assert find(snapshot(tmp_path, record(operator="kda"))) is None


def test_a_record_from_before_a_field_was_added_does_not_serve(tmp_path: Path) -> None:
    assert find(snapshot(tmp_path, record()), sink=True) is None


def test_a_far_record_of_the_device_stands_before_a_near_one_of_the_arch(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record(16, gpu="sm_90a"), record(32, problem={"T": 64000}))
    assert block(find(records)) == 32


def test_a_record_of_the_arch_stands_before_one_of_another_device(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record(16, gpu="H100"), record(32, gpu="sm_90a", problem={"T": 64000}))
    match = find(records)
    assert block(match) == 32
    assert match is not None
    assert match.why == "near problem for sm_90a: T=64000 for 1000"


def test_another_device_of_the_arch_serves_last(tmp_path: Path) -> None:
    match = find(snapshot(tmp_path, record(gpu="H100")))
    assert match is not None
    assert match.why == "this problem on H100, which is sm_90a too"


def test_another_arch_of_the_family_serves_behind_all_of_the_arch(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record(16, gpu="B200"), record(32, gpu="GB300", problem={"T": 64000}))
    asked = Query("scan", PROBLEM, "B300", "sm_103a", STATICS)  # type: ignore[arg-type]
    assert [(match.record.config["BT"], match.why) for match in records.matches(asked, always)] == [
        (32, "near problem on GB300, which is sm_103a too: T=64000 for 1000"),
        (16, "this problem on B200, of the family of sm_103a"),
    ]


def test_a_gpu_by_its_own_name_serves_others_of_its_arch(tmp_path: Path) -> None:
    own = "H100 80GB HBM3 MIG 3g.40gb (sm_90a, 60 SMs)"
    match = find(snapshot(tmp_path, record(gpu=own)))
    assert match is not None
    assert match.why == f"this problem on {own}, which is sm_90a too"
    match = find(snapshot(tmp_path, record(gpu="H100"), record(gpu=own)), gpu=own)
    assert match is not None
    assert (match.record, match.distance, match.why) == (record(gpu=own), 0.0, f"this problem on {own}")


@pytest.mark.parametrize("gpu", ["B200", "sm_80", "RTX 9090", "Card (sm_99, 8 SMs)"])
def test_a_record_of_another_arch_or_an_unknown_gpu_does_not_serve(tmp_path: Path, gpu: str) -> None:
    assert find(snapshot(tmp_path, record(gpu=gpu))) is None


def test_an_arch_without_a_model_is_served_by_a_device_of_it(tmp_path: Path) -> None:
    assert find(snapshot(tmp_path, record()), gpu="sm_90a") is not None


def test_an_earlier_place_stands_before_a_later_one(tmp_path: Path) -> None:
    tuned.write(tmp_path / "mine.jsonl", [record(16, created="2026-01-01T00:00:00+00:00")])
    tuned.write(tmp_path / "shipped.jsonl", [record(32, Evidence.MEASURED)])
    assert block(find(Snapshot.load([tmp_path / "mine.jsonl", tmp_path / "shipped.jsonl"]))) == 16


def test_a_nearer_record_of_a_later_place_stands_before_a_farther_one(tmp_path: Path) -> None:
    tuned.write(tmp_path / "mine.jsonl", [record(16, problem={"T": 5})])
    tuned.write(tmp_path / "shipped.jsonl", [record(32)])
    assert block(find(Snapshot.load([tmp_path / "mine.jsonl", tmp_path / "shipped.jsonl"]))) == 32


def test_in_one_place_a_measured_record_stands_before_a_newer_predicted_one(tmp_path: Path) -> None:
    measured = record(16, Evidence.MEASURED, created="2026-01-01T00:00:00+00:00")
    assert block(find(snapshot(tmp_path, record(32), measured))) == 16


def test_in_one_place_the_newest_record_stands_first(tmp_path: Path) -> None:
    older = record(16, created="2026-01-01T00:00:00+00:00")
    assert block(find(snapshot(tmp_path, older, record(32)))) == 32


def test_the_store_and_a_snapshot_of_it_agree_on_the_current_record(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        for BT in (16, 32, 64):
            store.promote(record(BT))
        current = store.record("scan", record().identity.problem, "H200")
        match = find(Snapshot.load([tmp_path / "tuner.db"]))
    assert match is not None
    assert match.record == current == record(64)


def test_a_record_whose_source_has_changed_is_passed_over(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record(16), record(32, problem={"T": 2000}))
    assert block(find(records, check=not_16)) == 32
    assert find(snapshot(tmp_path, record()), check=never) is None


def test_a_record_is_asked_once_whether_it_is_fresh(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record())
    asked: list[TuningRecord] = []
    for T in (1000, 1000, 2000, 3000):
        find(records, check=lambda r: asked.append(r), T=T)  # type: ignore[func-returns-value]
    assert asked == [record()]


def test_a_problem_seen_before_gives_the_same_object_again(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record())
    assert find(records, T=7) is find(records, T=7) is not None


def test_a_miss_is_remembered_too(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record())
    assert find(records, check=never) is None
    assert find(records, check=always) is None


def test_explain_lists_every_record_in_order_with_its_reason(tmp_path: Path) -> None:
    records = snapshot(
        tmp_path,
        record(16),
        record(32, problem={"T": 2000}),
        record(48, gpu="H100"),
        record(64, problem={"causal": False}),
        record(80, gpu="B200"),
    )
    listed = explain(records, check=not_16)
    assert [(entry.record.config["BT"], entry.served, entry.why) for entry in listed] == [
        (16, False, "this problem on H200: its source has changed since it was made"),
        (32, True, "near problem on H200: T=2000 for 1000"),
        (48, False, "this problem on H100, which is sm_90a too: stands behind the one that serves"),
        (64, False, "another kernel: causal=false, not true"),
        (80, False, "made for B200, not for sm_90a"),
    ]
    assert listed[0].place == f"{tmp_path / 'records.jsonl'}, line 4"


def test_what_explain_calls_served_is_what_find_returns(tmp_path: Path) -> None:
    records = snapshot(tmp_path, *(record(BT, problem={"T": 10 * BT}) for BT in range(8, 80, 8)))
    for T in (1, 100, 333, 10_000):
        (served,) = (line.record for line in explain(records, T=T) if line.served)
        assert find(records, T=T) is not None
        assert served.config["BT"] == block(find(records, T=T))


def test_a_folder_stands_for_its_record_files(tmp_path: Path) -> None:
    tuned.write(tmp_path / "H200.jsonl", [record(16)])
    tuned.write(tmp_path / "B200.jsonl", [record(32, gpu="B200")])
    assert len(Snapshot.load([tmp_path]).records("scan")) == 2


def test_the_places_are_tuner_db_then_the_users_then_what_ships(tmp_path: Path) -> None:
    mine = tmp_path / "mine.db"
    with Store.open(mine) as store:
        store.promote(record(16))
    code = "from tuner.store.records import Snapshot; print([f.place for f in Snapshot.load().records('scan')])"
    listed = f"{tmp_path / 'absent.db'}{os.pathsep}{mine}"
    output = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TUNER_DB": listed, "XDG_DATA_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output == f"['{mine}, record 1']\n"


def test_a_place_that_cannot_be_read_is_named_and_the_others_serve(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("to do: tune the kernels, all of them, at last")
    tuned.write(tmp_path / "good.jsonl", [record()])
    sources = [tmp_path / "notes.db", tmp_path / "absent.db", "postgresql://me:secret@host/t", tmp_path / "good.jsonl"]
    records = Snapshot.load(sources)
    assert find(records) is not None
    reasons = ("is not a SQLite database", "there is no such file", "a server is not read by applications")
    assert all(reason in refusal for reason, refusal in zip(reasons, records.refused, strict=True))
    assert "secret" not in "".join(records.refused)


def test_a_line_that_is_no_record_is_named_and_the_others_serve(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    lines = ["{", '"text"', '{"format":2}', tuned.to_line(record())]
    path.write_text("\n".join(lines))
    records = Snapshot.load([path])
    assert find(records) is not None
    assert [refusal.partition(": ")[0] for refusal in records.refused] == [f"{path}, line {n}" for n in (1, 2, 3)]
    assert "format 2, but this program reads 1: update it" in records.refused[2]


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("created",), 2026),
        (("margin",), "wide"),
        (("config", "BT"), None),
        (("identity", "gpu"), ["H200"]),
        (("identity", "operator"), None),
        (("identity", "problem"), 7),
        (("identity", "problem", "B"), [2]),
    ],
)
def test_a_record_of_wrong_types_is_named_and_the_others_serve(
    tmp_path: Path, keys: tuple[str, ...], value: object
) -> None:
    line = tuned.to_line(record())
    data = place = json.loads(line)
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (tmp_path / "records.jsonl").write_text(f"{json.dumps(data)}\n{line}\n")
    records = Snapshot.load([tmp_path / "records.jsonl"])
    assert find(records, T=77) is not None
    assert len(records.refused) == 1


def test_a_size_that_is_a_text_is_no_neighbour(tmp_path: Path) -> None:
    records = snapshot(tmp_path, record(16, problem={"T": "many"}), record(32, problem={"T": 4000}))
    assert block(find(records, T=1000)) == 32


def test_records_are_read_while_a_search_writes(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        store.promote(record())
        assert find(Snapshot.load([tmp_path / "tuner.db"])) is not None


def test_records_are_read_where_nothing_may_be_written() -> None:
    folder = Path(tempfile.mkdtemp())
    with Store.open(folder / "tuner.db") as store:
        store.promote(record())
    with read_only(folder):
        assert find(Snapshot.load([folder / "tuner.db"])) is not None
    shutil.rmtree(folder)


def test_reading_leaves_no_trace_beside_the_database(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        store.promote(record())
    before = (tmp_path / "tuner.db").read_bytes()
    Snapshot.load([tmp_path / "tuner.db"])
    assert (tmp_path / "tuner.db").read_bytes() == before


def test_reading_records_loads_nothing_heavy() -> None:
    code = "import sys, tuner.store.records; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    heavy = {"sqlalchemy", "alembic", "optuna", "cupy", "numpy", "jinja2", "typer", "scipy"}
    assert not heavy & set(output.split())


def test_the_lines_of_a_file_do_not_depend_on_the_order_of_the_records(tmp_path: Path) -> None:
    records = [record(problem={"T": T}, gpu=gpu) for T in (9, 100, 20) for gpu in ("H200", "B200")]
    tuned.write(tmp_path / "one.jsonl", records)
    tuned.write(tmp_path / "other.jsonl", reversed(records))
    assert (tmp_path / "one.jsonl").read_text() == (tmp_path / "other.jsonl").read_text()
    assert len((tmp_path / "one.jsonl").read_text().splitlines()) == 6


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    tuned.write(tmp_path / "H200.jsonl", [record(16), record(32)])
    tuned.write(tmp_path / "H200.jsonl", [record(64)])
    assert [stored.config["BT"] for stored in tuned.read(tmp_path / "H200.jsonl")] == [64]
    assert list(tmp_path.iterdir()) == [tmp_path / "H200.jsonl"]


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").mkdir()
    with pytest.raises(StoreError, match="cannot write"):
        tuned.write(tmp_path / "records.jsonl", [record()])
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_every_record_that_ships_can_be_read() -> None:
    assert Snapshot.load(sorted(SHIPPED.glob("*.jsonl"))).refused == ()


def test_records_that_do_not_serve_are_tried_up_to_a_limit(tmp_path: Path) -> None:
    stale = [record(16, problem={"T": 1000 + step}) for step in range(300)]
    records = snapshot(tmp_path, *stale, record(32, problem={"T": 64000}))
    asked: list[TuningRecord] = []
    assert find(records, check=lambda tried: asked.append(tried) or not_16(tried)) is None  # type: ignore[func-returns-value]
    assert len(asked) == 256
    assert records.refused == ("scan: of the 256 nearest records of a problem none serves",)
    assert find(records, check=not_16, T=999) is None  # whatever earlier calls tried
    assert block(find(records, check=not_16, T=60000)) == 32


def test_explain_and_a_look_up_have_the_same_limit(tmp_path: Path) -> None:
    stale = [record(16, problem={"T": 1000 + step}) for step in range(300)]
    records = snapshot(tmp_path, *stale, record(32, problem={"T": 64000}))
    for T, config in ((1000, None), (1200, None), (60000, 32)):
        candidates = explain(records, not_16, T=T)
        assert block(find(records, check=not_16, T=T)) == config
        assert [candidate.record.config["BT"] for candidate in candidates if candidate.served] == [config][
            : bool(config)
        ]
        matches = records.matches(query(T=T), not_16)
        assert [match.record.config["BT"] for match in matches] == [config][: bool(config)]
        reasons = [candidate.why for candidate in candidates]
        assert sum("256 records are nearer" in reason for reason in reasons) == 301 - 256
