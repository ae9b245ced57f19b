"""Results as JSON-compatible data, and back."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from enum import Enum
from reprlib import repr as shortened
from typing import Any, TypeVar

from tuner.base.fields import fields_from
from tuner.results.attempt import (
    Attempt,
    Evidence,
    Failed,
    Identity,
    Lint,
    Measurement,
    Prediction,
    Resources,
    Stage,
)
from tuner.results.final_race import FinalRace, Lap, Runner
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict

V = TypeVar("V")
_LATER = ("usual_limit", "case", "sm_mhz", "throttle", "temperature_c", "late", "floor_us")  # of errors and times
_ACCEPTED = {str: str, int: int, float: float | int, float | None: float | int | None}  # by the annotation of a field


def to_data(value: Any) -> Any:
    """A frozen value of this module as JSON-able data, which the functions below read.

    What came later is left out where it is not known, so that an older record keeps its text and its digest.
    """
    return _plain(asdict(value, dict_factory=_told))


def _told(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if value or name not in _LATER}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def verdict_from(data: Mapping[str, Any]) -> Verdict:
    errors = tuple(_typed(OutputError, error) for error in data["errors"])
    return _typed(Verdict, {"errors": errors, "where": data["where"]} | _texts(data, "findings", "checks"))


def attempt_from(data: Mapping[str, Any]) -> Attempt:
    """Raises KeyError, TypeError or ValueError for data that is no attempt."""
    failure = data["failure"]
    return Attempt(
        identity=_typed(Identity, data["identity"]),
        config=fields_from(data["config"]),
        failure=_typed(Failed, {**failure, "stage": Stage(failure["stage"])}) if failure else None,
        resources=_resources_from(data["resources"]),
        prediction=_prediction_from(data["prediction"]),
        measurement=_maybe(Measurement, data["measurement"]),
        seconds=data["seconds"],
    )


def record_from(data: Mapping[str, Any]) -> TuningRecord:
    """Raises KeyError, TypeError or ValueError for data that is no record."""
    made = {
        "identity": _typed(Identity, data["identity"]),
        "config": fields_from(data["config"]),
        "evidence": Evidence(data["evidence"]),
        "verdict": verdict_from(data["verdict"]),
        "resources": _resources_from(data["resources"]),
        "prediction": _prediction_from(data["prediction"]),
        "measurement": _maybe(Measurement, data["measurement"]),
    }
    return _typed(TuningRecord, made | {name: data[name] for name in ("margin", "tried", "tuner", "created")})


def race_from(data: Mapping[str, Any]) -> FinalRace:
    """Raises KeyError, TypeError or ValueError for data that is no final race."""
    runners = tuple(_typed(Runner, {**each, "config": fields_from(each["config"])}) for each in data["contenders"])
    rounds = tuple(tuple(_typed(Lap, lap) for lap in each) for each in data["rounds"])
    if not runners or any(len(each) != len(runners) for each in rounds) or data["winner"] not in range(len(runners)):
        raise ValueError("its rounds, its contenders and its winner do not agree")
    return _typed(FinalRace, {**data, "contenders": runners, "rounds": rounds})


def _resources_from(data: Any) -> Any:
    if data is None:
        return None
    lint = data.get("lint")
    found = Lint(**_texts(lint, "failures", "unchecked")) if lint else None
    return _typed(Resources, {**data, "lint": found})


def _prediction_from(data: Any) -> Any:
    return None if data is None else _typed(Prediction, {**data, "terms": fields_from(data["terms"])})


def _texts(data: Mapping[str, Any], *names: str) -> dict[str, tuple[str, ...]]:
    for name in names:
        if not isinstance(data[name], list) or not all(isinstance(each, str) for each in data[name]):
            raise TypeError(f"{name} is {data[name]!r}, no list of texts")
    return {name: tuple(data[name]) for name in names}


def _maybe(cls: Any, data: Mapping[str, Any] | None) -> Any:
    return None if data is None else _typed(cls, data)


def _typed(cls: type[V], data: Mapping[str, Any]) -> V:
    """A value of `cls`, whose plain fields hold what they say. Raises TypeError where one does not."""
    value = cls(**data)
    for each in fields(cls):  # type: ignore[arg-type]  # V is a dataclass
        found = getattr(value, each.name)
        if each.type in _ACCEPTED and not isinstance(found, _ACCEPTED[each.type]):  # type: ignore[index]
            raise TypeError(f"{each.name} is {shortened(found)}, of another type than {each.type}")
        if cls is Identity and not str(found).isprintable():  # it reaches terminals: no escape sequence may
            raise ValueError(f"{each.name} is {shortened(found)}, which has characters that are not printable")
    return value
