"""The steps of `gpu.py`, their order and their time limits; a step that does not fit into the remaining time is
skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner import bench, operators
from tuner.spec.dtype import DType, Precision
from tuner.spec.operator import Operator
from tuner.spec.problem import to_fields

Fields = Mapping[str, Any]

_HEAD_DIMS = (128, 64, 72, 80, 96, 40, 160, 192)
_TOKENS = 16384  # total over the sequences of a batch
KDA: tuple[Fields, ...] = ({}, {"batch": 2, "heads": 16, "seq_len": 4096, "key_dim": 64, "value_dim": 64})
# Problems that are searched for the other operators, and later for these; omitted fields have their default.
PROBLEMS: dict[str, tuple[Fields, ...]] = {
    "flash_attention": (
        {"batch": 16, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 8192},  # a decoding step
        {"head_dim": 192, "head_dim_v": 128, "causal": True, "batch": 2, "seq_q": 8192},  # prompts of latent attention
        {"head_dim": 64, "dtype": DType.FP32, "precision": Precision.TF32, "batch": 2},
    ),
    "flash_attention_backward": (
        {"batch": 2, "causal": True, "seq_q": 8192},
        {"batch": 2, "head_dim": 72, "causal": True, "seq_q": 8192},
    ),
    "kda_backward": ({},),
    "linear_attention": ({}, {"batch": 2, "heads": 16, "seq_len": 4096, "head_dim": 64}),
    "mla_decode": ({}, {"heads": 16}, {"batch": 16, "heads": 64, "max_pages": 512}),
    "paged_attention": (
        {},
        {"batch": 4, "seq_q": 512},  # chunks of prompts
        {"batch": 1, "max_pages": 2048},
        {"batch": 64, "head_dim": 64, "heads": 16},
    ),
    "streaming_attention": (
        {"seq_q": 32768},
        {"batch": 32, "heads": 32, "kv_heads": 8, "seq_q": 1, "seq_k": 32768, "rolling": True},
    ),
}
SMALL: dict[str, Fields] = {
    "flash_attention": {"head_dim": 16, "batch": 1, "heads": 2, "seq_q": 256},
    "flash_attention_backward": {"head_dim": 16, "batch": 1, "heads": 2, "seq_q": 128},
    "kda": {"key_dim": 64, "value_dim": 64, "heads": 2, "seq_len": 64},
    "kda_backward": {"key_dim": 16, "value_dim": 16, "heads": 2, "seq_len": 64},
    "linear_attention": {"head_dim": 16, "heads": 2, "seq_len": 64},
    "linear_attention_backward": {"head_dim": 16, "heads": 2, "seq_len": 64},
    "mla_decode": {"head_dim": 192, "head_dim_v": 128, "batch": 2, "heads": 2, "max_pages": 2},
    "paged_attention": {"head_dim": 16, "batch": 2, "heads": 2, "kv_heads": 1, "max_pages": 4},
    "streaming_attention": {"head_dim": 16, "heads": 2, "seq_q": 128, "window": 32},
    "streaming_attention_backward": {"head_dim": 16, "heads": 2, "seq_q": 128, "window": 32},
}
# Seconds, if a peer is compiled again for every shape.
_COMPARING = dict.fromkeys(("paged_attention", "streaming_attention", "streaming_attention_backward"), 45)
_DEFAULTS_S = 6.0
_TUNING_S = 320.0  # kda's peer tunes several hundred configs at the first call, before the race
_SWEEP = tuple(2**n for n in range(10, 18))  # queries of streaming_attention, compared with dense attention


# Time limits of steps in seconds, estimated from the code and from published figures before the first run.
INSTALLED_S, DEVICE_S, COMPILED_S = 5.0, 15.0, 40.0
MEASURING_S, CONFORMANCE_S, AGAIN_S, FAULTS_S = 45.0, 120.0, 60.0, 90.0  # for tests, which are killed at the limit
_UNPLANNED, _MOST_UNPLANNED_S = 1 / 8, 60.0
_JUDGED_S, _IMPLEMENTATION_S = 4.0, 2.0  # for verification: inputs and references, and each implementation


@dataclass(frozen=True)
class Planned:
    """A step that starts if `seconds` are left. A comparison may take up to `patience_s` if there is enough time."""

    kind: str  # name of a function in `gpu.STEPS`
    operator: Operator[Any]
    problem: Any
    seconds: float = field(compare=False)
    patience_s: float = field(default=0.0, compare=False)
    inputs: str = ""  # kind of inputs in a comparison with peers
    group: str = field(default="", compare=False)  # comparisons of a group share a page

    @property
    def name(self) -> str:
        of = f"{self.group or self.kind} {self.operator.name} {self.problem_text}"
        return f"{of}, {self.inputs}" if self.inputs else of

    @property
    def problem_text(self) -> str:
        """The problem as text."""
        return bench.formatted_problem(self.operator.name, to_fields(self.problem))


def planned(kind: str, operator: str, fields: Fields, seconds: float, inputs: str = "", group: str = "") -> Planned:
    operator_ = operators.load(operator)
    kind_of_inputs = inputs or operator_.input_kinds[0] if kind == "peers" else ""
    patience_s = _TUNING_S if kind == "peers" and operator == "kda" else 0.0
    return Planned(kind, operator_, operator_.problem(**fields), seconds, patience_s, kind_of_inputs, group)


def plan(only: Sequence[str], *, small: bool) -> tuple[list[Planned], list[Planned]]:
    """Return the most important steps, and the steps for the remaining time."""
    names = list(only or operators.names())
    if small:
        return [step for name in names for step in _all_of(name, SMALL.get(name, {}), 10, 10)], []
    first, later = list(dict.fromkeys(_first(names))), list(dict.fromkeys(_later(names)))
    return first, [step for step in later if all(step != other for other in first)]


def planned_s(seconds: float) -> float:
    """Return the planned part of a call's time; the rest covers steps that exceed their limits."""
    return seconds - min(_UNPLANNED * seconds, _MOST_UNPLANNED_S)


def verification_s(operator: str) -> float:
    """Return the time limit for verifying every implementation of an operator."""
    return _JUDGED_S + _IMPLEMENTATION_S * len(operators.implementations(operator))


def warmed(only: Sequence[str]) -> Iterator[Planned]:
    """Yield the comparisons whose peers compile for a long time, so that they compile once while nothing is timed."""
    for name, problems in (("kda", KDA), ("flash_attention", (_shape(128, 8192, causal=True),))):
        if name in (only or operators.names()):
            yield from (planned("peers", name, fields, 0.0) for fields in problems)


def _first(names: Sequence[str]) -> Iterator[Planned]:
    """Yield kda and flash_attention with their goals and peers, then all other goals, a record of every operator, and
    peers.

    Comparisons with peers come last because frameworks compile for a long time.
    """
    if "kda" in names:
        yield from _all_of("kda", KDA[0], 40, 60)
    if "flash_attention" in names:
        yield from _all_of("flash_attention", _shape(128, 8192, causal=True), 40, 60)
    if "kda" in names:
        yield from _all_of("kda", KDA[1], 25, 30)
    if "flash_attention" in names:
        yield from (planned("defaults", "flash_attention", fields, _DEFAULTS_S) for fields in attention(8192))
    yield from sorted(_rest_of_first(names), key=lambda step: step.kind == "peers")


def _rest_of_first(names: Sequence[str]) -> Iterator[Planned]:
    if "flash_attention" in names:
        for head_dim in (64, 72):
            yield from _searched("flash_attention", _shape(head_dim, 8192, causal=True), 30, 25)
    for name in names:
        if name not in ("kda", "flash_attention"):
            yield from _all_of(name, PROBLEMS.get(name, ({},))[0], 14, _COMPARING.get(name, 15))


def _later(names: Sequence[str]) -> Iterator[Planned]:
    """Yield the other dtypes, the attention shapes with goals, then other sequence lengths, and the rest."""
    yield from (planned("dtypes", name, {}, 6) for name in names)
    if "kda" in names:
        yield from (planned("peers", "kda", fields, 8, "weak_gate") for fields in KDA)
    if "flash_attention" in names:
        for fields in attention(8192):
            yield from _searched("flash_attention", fields, 15, 20)
        for seq in (16384, 2048):  # uses the records of 8192
            yield from (planned("peers", "flash_attention", fields, 20) for fields in attention(seq))
    for turn in range(max(map(len, PROBLEMS.values()))):
        for name in names:
            for fields in PROBLEMS.get(name, ({},))[turn : turn + 1]:
                yield from _all_of(name, fields, 14, _COMPARING.get(name, 15))
    if "streaming_attention" in names:
        for seq in _SWEEP:
            yield planned("peers", "streaming_attention", {"seq_q": seq}, 15, group="sweep")


def attention(seq: int) -> Iterator[Fields]:
    return (_shape(head_dim, seq, causal=causal) for causal in (True, False) for head_dim in _HEAD_DIMS)


def _shape(head_dim: int, seq: int, *, causal: bool) -> Fields:
    return {"head_dim": head_dim, "causal": causal, "batch": _TOKENS // seq, "seq_q": seq}


def _all_of(name: str, fields: Fields, searching: float, comparing: float) -> Iterator[Planned]:
    yield planned("defaults", name, fields, _DEFAULTS_S)
    yield from _searched(name, fields, searching, comparing)


def _searched(name: str, fields: Fields, searching: float, comparing: float) -> Iterator[Planned]:
    yield planned("search", name, fields, searching)
    yield planned("peers", name, fields, comparing)
