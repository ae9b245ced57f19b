"""Tests of arguments that are updated in place, with any strides."""

from typing import Any

import numpy as np
import pytest

from tests.support.cupy_double import Driver, asarray, driver
from tests.support.simulated_device import Simulation
from tuner import operators
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.render import render
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError
from tuner.evaluate.check.checker import PLAIN, Job, check
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.device_arguments import Arena
from tuner.evaluate.measure.device_check import DeviceCheck, cases
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.operator import Operator
from tuner.spec.parameters import signature
from tuner.spec.problem import to_fields

__all__ = ["driver"]  # a fixture

SIMULATION = Simulation("sm_90a", emulated=True)


@pytest.fixture
def row_add(own_folder: None) -> Operator[Any]:  # noqa: ARG001
    return operators.load("row_add")


def inputs(operator: Operator[Any]) -> dict[str, Any]:
    return operator.inputs(operator.problem(), np.random.default_rng(0), "normal")


def naive() -> tuple[Any, Any]:
    implementation = operators.implementation("row_add", "naive")
    return implementation, implementation.config(-1)


def untouched(operator: Operator[Any], given: dict[str, Any]) -> int:
    return min(set(range(operator.problem().entries)) - set(given["index"].tolist()))


def judge(operator: Operator[Any], stray: int) -> DeviceCheck:
    code = Code(InstanceFields("row_add", "naive", to_fields(operator.problem()), {"stray": stray}), b"")
    result = DeviceCheck(SIMULATION.open(), code, 1.0)
    for case in cases(operator, code.instance.problem, every=True):
        result.run(case, twice=True)
    return result


def test_a_kernel_may_write_to_it_and_knows_its_strides(row_add: Operator[Any]) -> None:
    implementation, config = naive()
    plan = implementation.plan(row_add.problem(), config)
    text = signature(row_add, row_add.problem(), plan, plan.launches[0])
    assert "float* __restrict__ table, long long table_entries_stride, float* __restrict__ sums" in text
    assert "float const* __restrict__ x, long long x_rows_stride, long long x_width_stride" in text


@pytest.mark.parametrize("mode", [Mode(), Mode(True, "random", "random", 1)], ids=str)
def test_the_emulator_updates_a_copy(row_add: Operator[Any], mode: Mode) -> None:
    given = inputs(row_add)
    before = given["table"].copy()
    outputs, happened = emulator.run(Instance(row_add, naive()[0], row_add.problem(), naive()[1]), given, mode)
    assert happened.findings == ()
    assert np.array_equal(given["table"], before)
    np.testing.assert_allclose(outputs["table"], row_add.reference(row_add.problem(), given)["table"], rtol=1e-6)


def test_any_strides_reach_the_kernel(row_add: Operator[Any]) -> None:
    given = inputs(row_add)
    turned = {**given, "x": np.ascontiguousarray(given["x"].T).T}
    one, other = (
        emulator.run(Instance(row_add, naive()[0], row_add.problem(), naive()[1]), variant, Mode(True))[0]
        for variant in (given, turned)
    )
    assert np.array_equal(one["table"], other["table"])


def test_a_right_kernel_passes_on_the_emulator_and_on_a_device(row_add: Operator[Any]) -> None:
    result = judge(row_add, -1)
    assert result.right, result.verdict("here").reason
    verdict = check(Job(InstanceFields("row_add", "naive", to_fields(row_add.problem()), {"stray": -1}), PLAIN))
    assert verdict.ok, verdict.reason
    assert {error.name for error in verdict.errors} == {"table", "sums"}


def test_a_change_far_below_the_tolerance_is_found_where_nothing_may_change(row_add: Operator[Any]) -> None:
    entry = untouched(row_add, inputs(row_add))
    verdict = check(Job(InstanceFields("row_add", "naive", to_fields(row_add.problem()), {"stray": entry}), PLAIN))
    assert f"table [{entry}, 0] must stay" in verdict.reason
    assert not verdict.ok


def test_a_device_finds_it_too(row_add: Operator[Any]) -> None:
    problem = to_fields(row_add.problem())
    (case,) = cases(row_add, problem, every=True)
    assert "must stay" in judge(row_add, untouched(row_add, dict(case.arrays))).verdict("here").reason


def test_a_run_goes_on_from_the_last_one_until_the_memory_is_poisoned(row_add: Operator[Any]) -> None:
    device, given = SIMULATION.open(), inputs(row_add)
    implementation, config = naive()
    plan = implementation.plan(row_add.problem(), config)
    program = device.load(
        Code(InstanceFields("row_add", "naive", to_fields(row_add.problem()), to_fields(config)), b""), plan
    )
    with Arena(device, row_add, row_add.problem(), given) as arena:
        call, tables = arena.call(plan), []
        for again in (False, False, True):
            if again:
                arena.poison()
            device.run(program, call, 1.0)
            tables.append(arena.outputs()["table"])
    row = given["index"][0]
    np.testing.assert_allclose(tables[1][row], given["table"][row] + 2 * given["x"][0], rtol=1e-5)
    assert np.array_equal(tables[0], tables[2])


def test_a_call_changes_the_callers_own_array(row_add: Operator[Any], at: Dispatcher) -> None:
    given = inputs(row_add)
    expected = row_add.reference(row_add.problem(), given)
    storage = np.full((10, 12), 7, np.float32)
    table = storage[::2, :8]
    table[...] = given["table"]
    sums = at.call("row_add", table, given["index"], given["x"])
    np.testing.assert_allclose(sums, expected["sums"], rtol=1e-5)
    np.testing.assert_allclose(table, expected["table"], rtol=1e-6)
    assert (storage[1::2] == 7).all()
    assert (storage[:, 8:] == 7).all()


def test_an_array_that_cannot_be_written_is_refused(row_add: Operator[Any], at: Dispatcher) -> None:
    given = inputs(row_add)
    given["table"].flags.writeable = False
    with pytest.raises(InputError, match="table is read-only, and it is updated in place"):
        at.call("row_add", given["table"], given["index"], given["x"])


def test_an_array_whose_elements_share_memory_is_refused(row_add: Operator[Any], at: Dispatcher) -> None:
    given = inputs(row_add)
    table = np.lib.stride_tricks.as_strided(given["table"], given["table"].shape, (0, 4))
    with pytest.raises(InputError, match="elements share memory"):
        at.call("row_add", table, given["index"], given["x"])


def test_an_array_on_a_gpu_is_updated_where_it_is(row_add: Operator[Any], driver: Driver, at: Dispatcher) -> None:
    given = inputs(row_add)
    implementation, config = naive()
    source = render(Instance(row_add, implementation, row_add.problem(), config), "host")
    driver.know(emulator.build(source, checked=False))
    table = asarray(given["table"])
    at.call("row_add", table, asarray(given["index"]), asarray(given["x"]))
    np.testing.assert_allclose(table.host, row_add.reference(row_add.problem(), given)["table"], rtol=1e-6)
