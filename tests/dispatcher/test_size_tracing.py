"""Tests of traced computations: at other sizes they return the true result, or nothing."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.dispatcher.binding import Binding, Tensor
from tuner.dispatcher.config_choice import Choice
from tuner.dispatcher.on_gpu import Numbers
from tuner.dispatcher.size_tracing import Followed, follow
from tuner.errors import TunerError
from tuner.spec.instance import Instance
from tuner.spec.problem import extents


@dataclass(frozen=True)
class Halves:
    lower: int
    upper: tuple[int, ...]


@cache
def kept(size: int) -> int:
    return 2 * size


COMPUTATIONS: dict[str, Callable[[Sequence[int]], Any]] = {
    "arithmetic": lambda s: (s[0] * s[1] - 3, -(-s[0] // s[1]), s[0] % 7, {"a": s[1] & 12}),
    "multiples": lambda s: (s[0] * 128 * 2 % 16, -(-(4 * s[0]) * 6 // 8), -(s[0] * 6) // 4, -(-s[1] * 6 // 3) * -2),
    "comparisons": lambda s: max(s[0], s[1]) if s[0] > 40 else min(s) + 1,
    "truth": lambda s: s[1] if s[0] - s[1] else -1,
    "products": lambda s: (math.prod(s), sum(s)),
    "values": lambda s: Halves(s[0] // 2, (s[0] - s[0] // 2, s[1])),
    "NumPy takes the smaller": lambda s: int(np.minimum(s[0], 64)) * s[1],
    "NumPy multiplies": lambda s: np.int64(3) * s[0] + s[1],
    "membership": lambda s: "even" if s[0] in (2, 4, 48) else s[1],
    "the number itself": lambda s: (math.gcd(s[0], 16), s[1]),
    "a root": lambda s: (math.sqrt(s[0]), s[1]),
    "a range": lambda s: (sum(range(s[0])), s[1]),
    "text": lambda s: (f"{s[0]}", s[1]),
    "so many zeros": lambda s: (tuple(np.zeros(s[0]).tolist()), s[1]),
    "a sequence, repeated": lambda s: ((1,) * s[0], s[1]),
    "whole numbers": lambda s: (isinstance(s[0], int | np.integer), s[1]),
}
SIZES = [(first, second) for first in (1, 2, 16, 39, 41, 48, 64, 100) for second in (1, 3, 16, 48)]


@pytest.mark.parametrize("compute", COMPUTATIONS.values(), ids=COMPUTATIONS)
def test_what_is_followed_is_what_is_computed_or_nothing(compute: Callable[[Sequence[int]], Any]) -> None:
    for own in SIZES:
        followed = follow(compute, own)
        assert followed is not None
        assert followed(own) == compute(own)
        assert all(match in (None, compute(sizes)) for sizes in SIZES if (match := followed(sizes)) or True)


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [("arithmetic", (41, 3), (64, 16)), ("values", (5, 1), (9, 48)), ("NumPy takes the smaller", (100, 3), (70, 16))],
)
def test_sizes_that_go_the_same_way_are_followed(name: str, own: tuple[int, int], others: tuple[int, int]) -> None:
    followed = follow(COMPUTATIONS[name], own)
    assert followed is not None
    assert followed(others) == COMPUTATIONS[name](others)


@pytest.mark.parametrize("own", [8, 9])
def test_the_number_itself_is_a_condition(own: int) -> None:
    followed = follow(lambda s: math.gcd(s[0], 16), (own,))
    assert followed is not None
    assert followed((own,)) == math.gcd(own, 16)
    assert followed((own + 8,)) is None


def test_a_division_by_nothing_is_left_to_the_computation() -> None:
    followed = follow(lambda s: s[0] // s[1], (8, 2))
    assert followed is not None
    assert followed((9, 3)) == 3
    assert followed((9, 0)) is None
    multiple = follow(lambda s: (s[0] // s[1] * 16 % 8, s[0]), (8, 2))
    assert multiple is not None
    assert multiple((9, 3)) == (0, 9)
    assert multiple((9, 0)) is None


@pytest.mark.parametrize(
    "compute",
    [
        lambda s: kept(s[0]),
        lambda s: {s[0]: 1},
        lambda s: 1.5 * s[0],
        lambda s: s[0] / 2,
        lambda s: np.array([s[0], 1]),
        lambda s: [][s[0]],
    ],
    ids=["a cache", "a key", "a float", "a quotient", "an array of sizes", "what fails"],
)
def test_what_cannot_be_followed_is_not(compute: Callable[[Sequence[int]], Any]) -> None:
    assert follow(compute, (3,)) is None


def implementations() -> list[Any]:
    return [
        pytest.param(name, implementation.name, id=f"{name}-{implementation.name}")
        for name in operators.names()
        for implementation in operators.implementations(name)
    ]


def numbers(operator: Any, chosen: Choice, problem: Any) -> Numbers | None:
    """Return the arguments of launches on dense arrays; None if the config does not fit the problem."""
    if not chosen.fits(problem):
        return None
    shapes = {argument.name: argument.shape(problem) for argument in operator.arguments if argument.dims}
    tensors = {
        name: Tensor(shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))), tuple(range(len(shape))))
        for name, shape in shapes.items()
    }
    return Numbers.of(operator, Binding(problem, tensors), chosen.instance.at(problem).plan())


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "kind"), implementations())
def test_every_plan_is_followed_to_the_same_launches(name: str, kind: str) -> None:
    operator, implementation = operators.load(name), operators.implementation(name, kind)
    base = implementation.example or operator.problem()
    arch = next(arch for arch in ARCHES.values() if implementation.refusal(base, arch) is None)
    instance = Instance.default(operator, implementation, base, arch)
    chosen = Choice(instance, gpu(arch.name), None, "")
    names = extents(base)
    ways: list[Followed[Any]] = []
    followed = tried = 0
    for sizes in drawn(base):

        def compute(sizes: Sequence[int]) -> Any:
            return numbers(operator, chosen, replace(base, **dict(zip(names, sizes, strict=True)))) or "unfit"

        try:
            fresh = compute(sizes)
        except TunerError:  # no problem
            continue
        results = [result for way in ways if (result := way(sizes)) is not None]
        assert all(result == fresh for result in results)
        tried, followed = tried + 1, followed + bool(results)
        if not results and (way := follow(compute, sizes)):
            assert way(sizes) == fresh
            ways.append(way)
    assert tried >= 50
    assert followed >= 0.8 * tried


def drawn(base: Any) -> Iterator[tuple[int, ...]]:
    """A problem's sizes with one of them changed, then with all that are more than a few."""
    own, rng = {extent: getattr(base, extent) for extent in extents(base)}, np.random.default_rng(0)
    for name in own:
        yield from (tuple((own | {name: int(size)}).values()) for size in rng.integers(1, max(own[name], 64), 20))
    long = {name: size for name, size in own.items() if size >= 64}
    for _ in range(60):
        yield tuple((own | {name: int(rng.integers(size // 2, size + 1)) for name, size in long.items()}).values())
