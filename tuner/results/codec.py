"""Conversion of results to JSON-compatible data and back, by the declared field types."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from tuner.base.canonical_json import decode
from tuner.base.fields import Fields, Scalar, check_printable, fields_from
from tuner.results.attempt import Attempt
from tuner.results.final_race import FinalRace
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict

V = TypeVar("V")
# Fields added in later versions. They are omitted if unknown, so that an older record keeps its digest.
LATER = ("usual_limit", "case", "sm_mhz", "throttle", "temperature_c", "late", "floor_us", "signature", "kernels")


def to_data(value: Any) -> Any:
    """Return a frozen value of this layer as JSON-compatible data, which the functions below read."""
    return _lists(to_json_data(value))


def to_json_data(value: Any) -> Any:
    """Like `to_data`, for an encoder: tuples are kept."""
    data = msgspec.to_builtins(value)
    for part in _parts(data):
        for name in LATER:
            if name in part and not part[name]:
                del part[name]
    return data


def _lists(value: Any) -> Any:
    """Replace tuples by lists, as they are read back from JSON."""
    if isinstance(value, dict):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _parts(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects in a result that have fields of later versions: output errors, measurements, and laps of a
    race.
    """
    yield data
    yield from data.get("errors") or ()
    yield from (data.get("verdict") or {}).get("errors", ())
    yield data.get("measurement") or {}
    yield data.get("prediction") or {}
    for laps in data.get("rounds") or ():
        yield from laps


def verdict_from(data: Mapping[str, Any]) -> Verdict:
    """Parse a verdict. This function and those below raise ValueError for invalid data."""
    return _parsed(Verdict, data)


def attempt_from(data: Mapping[str, Any]) -> Attempt:
    attempt = _parsed(Attempt, data)
    check_printable([data[name] for name in ("identity", "config", "resources", "prediction", "measurement")])
    if attempt.failure is None or attempt.failure.reason.isprintable():
        return attempt
    reason = "".join(letter if letter.isprintable() else "�" for letter in attempt.failure.reason)  # text from a tool
    return replace(attempt, failure=replace(attempt.failure, reason=reason))


def record_from(data: Mapping[str, Any]) -> TuningRecord:
    return _parsed(TuningRecord, data)


def race_from(data: Mapping[str, Any]) -> FinalRace:
    race = _parsed(FinalRace, data)
    contenders = len(race.contenders)
    if race.winner not in range(contenders) or any(len(laps) != contenders for laps in race.rounds):
        raise ValueError("its rounds, its contenders and its winner do not agree")
    check_printable(data)
    return race


class _Subject(msgspec.Struct):
    operator: str
    problem: dict[str, Scalar]
    gpu: str


class _Head(msgspec.Struct):
    identity: _Subject


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_fields = msgspec.json.Decoder(dict[str, Scalar]).decode


def subject_in(text: str) -> tuple[str, Fields, str] | None:
    """Return the operator, problem and GPU of a record's line without parsing the rest; None if they are not plain."""
    try:
        subject = _decode_head(text).identity
    except msgspec.MsgspecError:
        return None
    return subject.operator, subject.problem, subject.gpu


def fields_in(text: str) -> Fields:
    """Parse a problem's fields from canonical JSON. Raises ValueError for other text."""
    try:
        return _decode_fields(text)
    except msgspec.MsgspecError:
        return fields_from(decode(text))  # contains a number that JSON lacks


def _parsed(cls: type[V], data: Any) -> V:
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
