"""Strict decoding of a record's JSON, by types that reject unknown fields, and its encoding."""

from dataclasses import fields, is_dataclass
from operator import itemgetter
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from tuner.base.fields import Fields, Scalar
from tuner.results.attempt import Identity
from tuner.results.codec import LATER
from tuner.results.record import TuningRecord

# Both format some floats and special characters differently from `canonical_json`.
to_json = msgspec.json.Encoder(order="sorted").encode
_encode = msgspec.json.Encoder(order="deterministic").encode  # keeps the order of a struct's fields, which are sorted

# Rows of plain values in a compact form, for temporary files.
pack = msgspec.msgpack.Encoder().encode
unpack_rows = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode


def record_in(line: bytes) -> tuple[Any, Fields] | None:
    """Return a value with the fields and properties of a record and its `format`, and the fields of its problem.

    Returns None for other lines, and for lines that differ from their own encoding (`to_json`).
    """
    try:
        record = _decode(line)
        fields_of_problem = _decode_fields(record.identity.problem)
    except msgspec.MsgspecError:
        return None
    canonical = _encode(record) == line and to_json(fields_of_problem) == bytes(record.identity.problem)
    return (record, fields_of_problem) if canonical else None


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
    return msgspec.defstruct(
        cls.__name__,
        sorted(of, key=itemgetter(0)),
        namespace={name: value for name, value in vars(cls).items() if isinstance(value, property)},
        forbid_unknown_fields=True,
        omit_defaults=True,
        kw_only=True,
        gc=False,  # records contain no reference cycles
    )


_decode = msgspec.json.Decoder(_strict(TuningRecord)).decode
_decode_fields = msgspec.json.Decoder(dict[str, Scalar]).decode
