"""A search request: problem, GPU, budget and options."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tuner import operators
from tuner.arch import GPU
from tuner.base.assets import TEMPLATES, python_of
from tuner.base.cache import digest_of, key_of
from tuner.errors import UsageError
from tuner.search.sampler import is_method, unknown_method
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator

EFFORTS = {"quick": 32, "normal": 128, "full": 512}  # tries
_SHARE = 8  # the sweep gets 1 / _SHARE of the remaining tries
_MOST = 2**31 - 1  # the maximum for databases and random number generators
SWEEP = 32  # maximum number of tries of a sweep


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
    implementation: str | None = None  # search only this implementation
    command: str = ""
    history: bool = True  # use stored results of other GPUs, other sizes and earlier code
    retry: bool = False  # retry configs whose failure on the device may be the machine's fault
    history_until: int | None = None  # the last study that counts as history; None: all
    code_digest: str = ""  # of `code_of`, if the caller computed it for several requests; empty: computed when needed

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise UsageError(f"unknown effort {self.effort!r} (known: {', '.join(EFFORTS)})")
        if not is_method(self.method):
            raise UsageError(unknown_method(self.method))
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"a budget of {self.budget} tries finds nothing: give at least 1")
        if self.tries > _MOST:
            raise UsageError(f"a budget of {self.tries} tries: give at most {_MOST}")
        if not 0 <= self.seed <= _MOST:
            raise UsageError(f"seed {self.seed}: give 0 to {_MOST}")

    @cached_property
    def code(self) -> str:
        """The digest of `code_of`, computed once per request unless `code_digest` is set."""
        return self.code_digest or code_of(self.operator)

    @cached_property
    def implementations(self) -> tuple[Implementation[Any, Any], ...]:
        """The implementations to search. Raises UsageError if none serves the problem."""
        return serving_implementations(self.operator, self.problem, self.gpu, self.implementation)

    def default(self, implementation: Implementation[Any, Any]) -> Instance:
        """Return the config that an implementation runs when no record exists."""
        return Instance.default(self.operator, implementation, self.problem, self.gpu.arch)

    @property
    def tries(self) -> int:
        return self.budget if self.budget is not None else EFFORTS[self.effort]

    def reserve(self, left: int) -> int:
        """Return how many of `left` tries are reserved for a sweep around the best."""
        return min(left // _SHARE, SWEEP)

    @property
    def exploring_s(self) -> float | None:
        """The share of `seconds` for exploration; the sweep gets the rest."""
        return None if self.seconds is None else self.seconds * (1 - 1 / _SHARE)


def code_of(operator: Operator[Any]) -> str:
    """Return a digest of the Python code of an operator and the operators it may use.

    Their references and tolerances decide verdicts, and their plans decide launches.
    """
    return key_of(*(digest_of(folder, python_of(folder)) for folder in (operator.folder.parent, TEMPLATES)))[:16]


def serving_implementations(
    operator: Operator[Any], problem: Any, gpu: GPU, only: str | None
) -> tuple[Implementation[Any, Any], ...]:
    """Return the implementations to search, or just `only`. Raises UsageError if none serves the problem."""
    chosen = None if only is None else operators.implementation(operator.name, only)
    wanted = operators.implementations(operator.name) if chosen is None else (chosen,)
    refusals = {one.name: one.refusal(problem, gpu.arch) for one in wanted}
    serving = tuple(one for one in wanted if refusals[one.name] is None)
    if not serving:
        reasons = "; ".join(f"{name}: {why}" for name, why in refusals.items())
        raise UsageError(f"no implementation of {operator.name} serves this problem on {gpu.name}: {reasons}")
    return serving
