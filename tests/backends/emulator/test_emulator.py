"""Tests of operators on the emulator: arguments from arrays, several launches, killable processes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.patience import given_up_soon
from tuner import operators
from tuner.backends import emulator
from tuner.backends.emulator import Finding, Mode, Pool
from tuner.errors import InputError
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation

MODES = (Mode(), Mode(True, "random", "random", 1))

pytestmark = pytest.mark.usefixtures("own_folder")


def run(name: str, mode: Mode, rows: int = 70, **arrays: Any) -> tuple[dict[str, Any], emulator.Run, dict[str, Any]]:
    operator, implementation = operators.load("row_norm"), operators.implementation("row_norm", name)
    problem = operator.problem(rows=rows)
    given = {**operator.inputs(problem, np.random.default_rng(0), operator.input_kinds[0]), **arrays}
    config = next(iter(_configs(implementation)))
    outputs, happened = emulator.run(Instance(operator, implementation, problem, config), given, mode)
    return outputs, happened, dict(operator.reference(problem, {"epsilon": 1e-6, **given}))


def _configs(implementation: Implementation[Any, Any]) -> Iterator[Any]:
    yield implementation.config(threads=32)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", ["naive", "two_pass"])
def test_an_implementation_computes_its_reference(name: str, mode: Mode) -> None:
    outputs, happened, expected = run(name, mode)
    assert happened.findings == ()
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-5, atol=1e-6)


def test_a_strided_input_reaches_the_kernel_with_its_own_strides() -> None:
    storage = np.random.default_rng(1).standard_normal((70, 48)).astype(np.float32)
    outputs, happened, expected = run("naive", MODES[1], x=storage[:, :32])
    assert happened.findings == ()
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-5, atol=1e-6)


def test_the_counters_of_all_launches_are_summed() -> None:
    _, one, _ = run("naive", MODES[1])
    _, two, _ = run("two_pass", MODES[1])
    assert len(one.block_counters) == 3
    assert len(two.block_counters) == 6
    assert two.counters.global_write_bytes > one.counters.global_write_bytes


def test_an_input_of_a_wrong_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"x is float32\[70, 31\], the problem says float32\[70, 32\]"):
        run("naive", MODES[0], x=np.zeros((70, 31), np.float32))


def double(job: int) -> int:
    """A job that ends well, but for two: one never ends, one kills its process."""
    while job == 3:
        pass
    if job == 4:
        import os

        os.abort()
    return 2 * job


def test_a_job_that_crashes_or_never_ends_costs_only_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up_soon(monkeypatch, lambda call: call[2] == 3)
    with Pool(workers=2) as pool:
        answers = dict(pool.map(double, range(6)))
    assert [answers[i] for i in (0, 1, 2, 5)] == [0, 2, 4, 10]
    assert [isinstance(answers[i], Finding) and answers[i].kind for i in (3, 4)] == ["lost", "lost"]
