"""Performance goals on an H200, by problem; `gpu_plan.py` times and searches these problems first."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_plan import KDA, Fields, attention

from tuner import operators
from tuner.spec.problem import canonical, from_fields

_GPU = "H200"
_KDA_MS = (0.40, 0.06)
# TFLOP/s by head_dim, counting unmasked products: (full attention, causal).
_ATTENTION = {
    64: (480, 450),
    72: (490, 450),
    80: (530, 490),
    96: (570, 530),
    128: (630, 600),
    160: (640, 590),
    192: (660, 610),
}


@dataclass(frozen=True)
class Goal:
    """An upper bound on time, or a lower bound on throughput."""

    text: str
    time_us: float

    def reached(self, time_us: float) -> float:
        """Return the achieved fraction; at least 1 if the goal is reached."""
        return self.time_us / time_us


def goal(operator: str, problem: Fields, gpu: str) -> Goal | None:
    """Return the goal of a problem in plain fields, or None."""
    if gpu != _GPU:
        return None
    key = canonical(from_fields(operators.load(operator).problem, problem))
    return next((target for of, fields, target in _goals() if of == operator and _spelled(of, fields) == key), None)


def _goals() -> Iterator[tuple[str, Fields, Goal]]:
    for fields, ms in zip(KDA, _KDA_MS, strict=True):
        yield "kda", fields, Goal(f"{ms:.2f} ms", 1e3 * ms)
    operator = operators.load("flash_attention")
    for seq in (8192, 16384):
        for fields in attention(seq):
            if rates := _ATTENTION.get(fields["head_dim"]):
                rate = rates[fields["causal"]]
                flops = operator.cost(operator.problem(**fields)).flops
                yield operator.name, fields, Goal(f"{rate} TFLOP/s", flops / rate / 1e6)


def _spelled(operator: str, fields: Fields) -> str:
    return canonical(operators.load(operator).problem(**fields))
