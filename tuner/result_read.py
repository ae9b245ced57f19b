"""Values of `result` from data that anybody may have written: a file's lines, a database's rows."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from tuner.result import (
    Attempt,
    Evidence,
    Failed,
    Fields,
    Identity,
    Lint,
    Measurement,
    OutputError,
    Prediction,
    Resources,
    Scalar,
    Stage,
    TuningRecord,
    Verdict,
)

V = TypeVar("V")
_ACCEPTED = {str: str, int: int, float: float | int, float | None: float | int | None}  # by the annotation of a field


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


def fields_from(data: Any) -> Fields:
    """A Problem or a Config as data. Raises TypeError for what is none."""
    if not isinstance(data, dict) or not all(isinstance(value, Scalar) for value in data.values()):
        raise TypeError(f"{data!r} is no object of numbers, texts and booleans")
    return dict(data)


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
            raise TypeError(f"{each.name} is {found!r}, of another type than {each.type}")
    return value
