"""The request of a search: problem, GPU, budget and options."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tuner import operators
from tuner.arch import GPU
from tuner.base.assets import TEMPLATES, python_of
from tuner.base.cache import digest_of, key_of
from tuner.errors import UsageError
from tuner.search.sampler import METHODS
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator

EFFORTS = {"quick": 32, "normal": 128, "full": 512}  # tries
_SHARE = 8  # the sweep gets 1 / _SHARE of the tries that are left
_MOST = 2**31 - 1  # what databases and generators of random numbers take
SWEEP = 32  # tries that a sweep gets at most


@dataclass(frozen=True)
class SearchRequest:
    """What to search for. `budget` is in tries and overrides `effort`; `seconds` limits the exploration."""

    operator: Operator[Any]
    problem: Any
    gpu: GPU
    effort: str = "normal"
    budget: int | None = None
    seconds: float | None = None
    seed: int = 0
    method: str = "gp"
    resume: bool = True
    implementation: str | None = None  # only this one
    command: str = ""
    history: bool = True  # start from what is stored of other GPUs, other sizes and earlier code
    retry: bool = False  # what failed on the device, and perhaps for a fault of the machine, is tried again
    history_until: int | None = None  # the last study that counts as history; None: all do

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise UsageError(f"unknown effort {self.effort!r} (known: {', '.join(EFFORTS)})")
        if self.method not in METHODS:
            raise UsageError(f"unknown sampler {self.method!r} (known: {', '.join(METHODS)})")
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"a budget of {self.budget} tries finds nothing: give at least 1")
        if self.tries > _MOST:
            raise UsageError(f"a budget of {self.tries} tries: give at most {_MOST}")
        if not 0 <= self.seed <= _MOST:
            raise UsageError(f"seed {self.seed}: give 0 to {_MOST}")

    @cached_property
    def code(self) -> str:
        """See `code_of`. Computed once: a search begins with a request of its own."""
        return code_of(self.operator)

    @cached_property
    def implementations(self) -> tuple[Implementation[Any, Any], ...]:
        """Those that are tried. Raises UsageError where none serves the problem."""
        return serving_implementations(self.operator, self.problem, self.gpu, self.implementation)

    def default(self, implementation: Implementation[Any, Any]) -> Instance:
        """What an implementation runs there where nothing was tuned."""
        return Instance.default(self.operator, implementation, self.problem, self.gpu.arch)

    @property
    def tries(self) -> int:
        return self.budget if self.budget is not None else EFFORTS[self.effort]

    def reserve(self, left: int) -> int:
        """Of `left` tries, those that a sweep around the best keeps from exploring."""
        return min(left // _SHARE, SWEEP)

    @property
    def exploring_s(self) -> float | None:
        """The share of `seconds` after which exploring makes room for the sweep."""
        return None if self.seconds is None else self.seconds * (1 - 1 / _SHARE)


def code_of(operator: Operator[Any]) -> str:
    """A digest of the Python of an operator and of those that it may call: its reference and tolerances judge, and its
    plans launch what is judged.
    """
    return key_of(*(digest_of(folder, python_of(folder)) for folder in (operator.folder.parent, TEMPLATES)))[:16]


def serving_implementations(
    operator: Operator[Any], problem: Any, gpu: GPU, only: str | None
) -> tuple[Implementation[Any, Any], ...]:
    """The implementations that a search tries, or `only` that one. Raises UsageError where none serves the problem."""
    wanted = (operators.implementation(operator.name, only),) if only else operators.implementations(operator.name)
    refusals = {one.name: one.refusal(problem, gpu.arch) for one in wanted}
    serving = tuple(one for one in wanted if refusals[one.name] is None)
    if not serving:
        reasons = "; ".join(f"{name}: {why}" for name, why in refusals.items())
        raise UsageError(f"no implementation of {operator.name} serves this problem on {gpu.name}: {reasons}")
    return serving
