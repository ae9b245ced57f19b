"""Tests of benchmarks/fuzz.py: its draws, and that it detects errors."""

import inspect
import random
import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tuner import operators
from tuner.base.assets import ROOT
from tuner.spec.parameters import scalars
from tuner.spec.problem import canonical, extents


@pytest.fixture(autouse=True)
def beside_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])


def drawn(operator: str, implementation: str, seed: int) -> Any:
    wanted = operators.load(operator), operators.implementation(operator, implementation)
    return import_module("fuzz_draw").draw(*wanted, random.Random(seed))


def test_a_seed_is_one_draw_and_another_seed_another() -> None:
    draws = [drawn("flash_attention", "mma_sync", seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("name", operators.names())
def test_all_sizes_of_a_problem_are_drawn(name: str) -> None:
    problem = operators.load(name).problem()
    assert {*extents(problem)} <= {*import_module("fuzz_draw")._sizes(problem, {*extents(problem)}, lambda: 7, random)}


def test_views_hold_what_they_are_made_of_in_rows_that_can_be_loaded() -> None:
    q, fuzz = operators.load("flash_attention").argument("q"), import_module("fuzz_draw")
    array = np.arange(240, dtype=np.float16).reshape(2, 5, 3, 8)
    views = [fuzz._viewed(q, array, np.random.default_rng(seed), backwards=seed > 3) for seed in range(20)]
    assert all(np.array_equal(view, array) for view in views)
    assert all(stride % 16 == 0 for view in views for stride in view.strides[:3])
    assert len({view.strides for view in views}) > 3
    forward, any_way = ([min(view.strides) for view in some] for some in (views[:4], views))
    assert min(forward) > 0 > min(any_way)


@pytest.mark.usefixtures("own_folder")
def test_a_kernel_that_writes_where_it_may_not_is_found() -> None:
    results = [import_module("fuzz_judge").tried(("row_add", "naive", seed)) for seed in range(8)]
    strays = [drawn("row_add", "naive", seed).instance.config.stray for seed in range(8)]
    complaints = ["".join(result.findings) for result in results]
    assert any("must stay" in complaint for complaint in complaints)
    assert not any(complaint for complaint, stray in zip(complaints, strays, strict=True) if stray < 0)
    assert all(result.emulated for result in results)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", operators.names())
def test_what_becomes_nan_reaches_no_more_than_the_definition_says(name: str) -> None:
    fuzz, operator = import_module("fuzz_apart"), operators.load(name)
    kinds, seen = set(), 0
    for seed in range(12):
        rng, generator = random.Random(seed), np.random.default_rng(seed)
        implementation = rng.choice(operators.implementations(name))
        problem, kind = import_module("fuzz_draw").draw(operator, implementation, rng).cases[0]
        inputs = operator.inputs(problem, generator, kind)
        arrays = {**inputs, **scalars(operator, problem, inputs)}
        exact = operator.reference(problem, arrays)
        unit = fuzz.spoil(operator, problem, arrays, generator)
        if unit is None:
            continue
        with np.errstate(all="ignore"):
            result = inspect.unwrap(operator.reference)(problem, arrays)  # wrapped, it refuses NaN
        outputs = {argument.name: np.asarray(result[argument.name]) for argument in operator.written}
        for output, array in fuzz.elsewhere(operator, outputs, exact, unit).items():
            np.testing.assert_array_equal(array, np.asarray(exact[output]), f"{unit} {canonical(problem)}")
        kinds.add(unit.name)
        everywhere = {output: np.full_like(array, np.nan) for output, array in outputs.items()}
        seen += any(np.isnan(array).any() for array in fuzz.elsewhere(operator, everywhere, exact, unit).values())
    assert {"sequence", "group of heads"} <= kinds
    assert seen > 3  # of the draws: others have one sequence, and one head
