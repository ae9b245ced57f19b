"""Tests that attempts and records with any content are read back unchanged."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.base.canonical_json import decode, encode
from tuner.results.attempt import Attempt, Evidence, Failed, Identity, Measurement, Prediction, Resources, Stage
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict
from tuner.store.record_lines import from_line, to_line
from tuner.store.sql import Store

printable = st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]) | st.just(" ")  # as str.isprintable() has it
texts = st.text(printable, max_size=8)
names = st.text("abcBTK_ é\"'", min_size=1, max_size=4)
floats = st.floats(allow_nan=False)
whole = st.integers(0, 2**40)
fields = st.dictionaries(texts, st.one_of(st.booleans(), st.integers(-(2**60), 2**60), floats, texts), max_size=3)
identities = st.builds(Identity, *[names] * 2, fields.map(encode), *[names] * 5)
failures = st.builds(Failed, st.sampled_from(Stage), texts, st.text(max_size=20))  # a log may hold any text
resources = st.builds(Resources, *[whole] * 5, texts, texts)
predictions = st.builds(Prediction, floats, st.dictionaries(texts, floats, max_size=3), texts, texts)
measurements = st.builds(
    Measurement, floats, floats, floats, whole, sm_mhz=whole, throttle=whole, temperature_c=whole, late=st.floats(0, 1)
)
attempts = st.builds(
    Attempt,
    identities,
    fields,
    st.none() | failures,
    st.none() | resources,
    st.none() | predictions,
    st.none() | measurements,
    st.floats(0, 1e6),
)
errors = st.builds(OutputError, names, st.floats(0, 1), st.floats(0, 1), st.floats(1, 9), st.floats(1, 9))
verdicts = st.builds(Verdict, st.lists(errors, min_size=1, max_size=3).map(tuple), checks=st.tuples(texts), where=texts)
dates = st.datetimes().map(lambda moment: f"{moment.isoformat()}+00:00")


@st.composite
def records(draw: st.DrawFn) -> TuningRecord:
    evidence = draw(st.sampled_from(Evidence))
    measurement = draw(measurements if evidence is Evidence.MEASURED else st.none() | measurements)
    prediction = draw(predictions if evidence is Evidence.PREDICTED else st.none() | predictions)
    base = (draw(identities), draw(fields), evidence, draw(verdicts), draw(resources), prediction, measurement)
    return TuningRecord(*base, draw(floats), draw(whole), draw(texts), draw(dates))


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store.open(":memory:") as opened:
        yield opened


few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(given_attempts=st.lists(attempts, min_size=1, max_size=4))
def test_attempts_round_trip_through_the_database(store: Store, given_attempts: list[Attempt]) -> None:
    ids = store.append(given_attempts)
    results = {attempt.id: attempt.attempt for attempt in store.attempts(given_attempts[-1].identity.operator)}
    assert results[ids[-1]] == given_attempts[-1]


@few
@given(record=records())
def test_records_round_trip_through_the_database(store: Store, record: TuningRecord) -> None:
    store.promote(record)
    key = record.identity
    assert record in store.all_records(key.operator, key.problem, key.gpu)


@few
@given(record=records())
def test_records_round_trip_through_a_line(record: TuningRecord) -> None:
    line = to_line(record)
    assert from_line(line) == record
    assert to_line(from_line(line)) == line
    assert "\n" not in line


@pytest.mark.parametrize("absent", ["failure", "resources", "prediction", "measurement"])
def test_a_part_that_is_absent_stays_absent(store: Store, absent: str) -> None:
    full = Attempt(
        Identity("full", "i", "{}", "H200", "s", "o", "t", absent),
        {"BT": 64},
        Failed(Stage.LIMIT, "too much shared memory", "log"),
        Resources(1, 2, 3, 4, 5, "registers", "ab"),
        Prediction(1.5, {"mma": 1.5}, "mma", "1"),
        Measurement(1.0, 0.5, 1.5, 9),
        0.5,
    )
    part: dict[str, Any] = {absent: None}
    store.append([replace(full, **part)])
    (result,) = store.attempts("full", policy=absent)
    assert result.attempt == replace(full, **part) != full


@few
@given(value=st.recursive(st.none() | floats | texts, lambda v: st.lists(v) | st.dictionaries(texts, v), max_leaves=9))
def test_canonical_json_reads_back_as_the_same_value(value: Any) -> None:
    assert decode(encode(value)) == value
    assert encode(decode(encode(value))) == encode(value)


def test_canonical_json_is_the_same_for_any_order_of_keys() -> None:
    assert encode({"b": 1, "a": {"d": 0.1, "c": ()}}) == '{"a":{"c":[],"d":0.1},"b":1}'


def test_canonical_json_spells_what_is_not_finite_in_plain_json() -> None:
    text = encode({"worst": float("nan"), "limits": (float("inf"), -float("inf"))})
    assert text == '{"limits":[{"$float":"inf"},{"$float":"-inf"}],"worst":{"$float":"nan"}}'
    assert decode(text)["limits"] == [float("inf"), -float("inf")]
