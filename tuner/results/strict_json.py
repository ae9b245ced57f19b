"""Strict decoding of a record's JSON, by types that reject unknown fields, and its encoding."""

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from tuner.base.fields import Fields, Scalar
from tuner.results.attempt import Identity
from tuner.results.codec import LATER
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict

to_json = msgspec.json.Encoder(
    order="sorted"
).encode  # formats some floats and special characters differently from `canonical`


def record_in(line: str) -> tuple[Any, Fields] | None:
    """Return the fields of a record with its `format`, and those of its problem; None for other lines."""
    try:
        record = _decode(line)
        return record, _decode_fields(record.identity.problem)
    except msgspec.MsgspecError:
        return None


def verdict_of(record: Any) -> Verdict:
    """Return the verdict in the result of `record_in`."""
    return msgspec.convert(record.verdict, Verdict, from_attributes=True)


def _strict(declared: Any) -> Any:
    """Return a declared type with a struct, which rejects unknown fields, in place of each dataclass."""
    if is_dataclass(declared):
        return _struct(declared)
    arguments, origin = get_args(declared), get_origin(declared)
    if origin in (Union, UnionType):
        return Union[tuple(map(_strict, arguments))]  # noqa: UP007  # of a tuple
    if origin is tuple:
        return tuple[tuple(argument if argument is Ellipsis else _strict(argument) for argument in arguments)]  # type: ignore[misc]
    return declared


def _struct(cls: Any) -> Any:
    """Omit fields of later versions that have their default, as lines do."""
    types = get_type_hints(cls)
    of: list[Any] = [
        (item.name, _strict(types[item.name]), *([item.default] if item.name in LATER else [])) for item in fields(cls)
    ]
    if cls is Identity:
        of = [(name, msgspec.Raw if name == "problem" else kind, *default) for name, kind, *default in of]
    if cls is TuningRecord:
        of.append(("format", int))
    return msgspec.defstruct(cls.__name__, of, forbid_unknown_fields=True, omit_defaults=True, kw_only=True)


_decode = msgspec.json.Decoder(_strict(TuningRecord)).decode
_decode_fields = msgspec.json.Decoder(dict[str, Scalar]).decode
