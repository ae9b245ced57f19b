"""Tests of derived defaults for what an operator or an implementation omits."""

from dataclasses import dataclass, make_dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.own_operators import own_operator
from tuner import operators
from tuner.arch import gpu
from tuner.dispatcher.calls import Dispatcher
from tuner.dispatcher.untuned_warnings import UntunedWarning
from tuner.errors import TemplateError, UsageError
from tuner.evaluate.check.checker import Job, check
from tuner.report.summary import usage
from tuner.spec.argument import Argument, Role
from tuner.spec.defaults import completed, completed_implementation, tails
from tuner.spec.dtype import DType
from tuner.spec.instance import InstanceFields
from tuner.spec.operator import Implementation, Operator, not_defined
from tuner.spec.plan import Launch, Plan
from tuner.spec.problem import Arrays, extent, static, to_fields
from tuner.spec.space import Constraint, Space
from tuner.spec.tolerance import Tolerance
from tuner.store.records import Snapshot

TARGET = gpu("sm_80")
EMPTY = Snapshot.load([])


@dataclass(frozen=True, slots=True)
class Problem:
    columns: int = static("N", default=8)
    dtype: DType = static("of x and y", default=DType.FP16)
    causal: bool = static("a choice that no tensor shows", default=True)
    rows: int = extent("M", default=4096)
    batch: int = extent("B", default=2)

    def __post_init__(self) -> None:
        if self.batch > self.rows:
            raise UsageError(f"batch {self.batch}: at most {self.rows}")


@dataclass(frozen=True, slots=True)
class Config:
    threads: int


def reference(problem: Problem, arrays: Arrays) -> Arrays:  # noqa: ARG001  (what an Operator is called with)
    return {"y": arrays["x"].astype(np.float64) / 3}


OPERATOR: Operator[Any] = completed(
    Operator(
        name="third",
        summary="a third",
        problem=Problem,
        arguments=(
            Argument("x", "dtype", ("batch", "rows", "columns")),
            Argument("y", "dtype", ("batch", "rows", "columns"), Role.OUTPUT),
            Argument("scale", DType.FP32, role=Role.SCALAR),
        ),
        reference=reference,
    )
)
IMPLEMENTATION: Implementation[Any, Any] = completed_implementation(
    OPERATOR,
    Implementation(
        name="naive",
        summary="",
        config=Config,
        space=lambda problem, arch: Space(  # noqa: ARG005
            Config, {"threads": (32, 64, 96)}, (Constraint("over a row", lambda c: c.threads > 8 * problem.columns),)
        ),
        plan=lambda problem, config: Plan(2 * (Launch("third", (problem.rows, 1, 1), config.threads, 0),), {}),
    ),
)


def test_inputs_are_normal_numbers_of_the_dtype_and_shape_of_each_tensor_that_is_given() -> None:
    operator = completed(replace(OPERATOR, arguments=OPERATOR.arguments[:2], inputs=not_defined))
    drawn = operator.inputs(Problem(rows=500), np.random.default_rng(0), "normal")
    assert list(drawn) == ["x"]
    assert (drawn["x"].dtype, drawn["x"].shape) == (np.float16, (2, 500, 8))
    assert abs(float(drawn["x"].astype(float).std()) - 1) < 0.05


def test_inputs_of_integers_are_not_made_up() -> None:
    index = Argument("index", DType.INT32, ("rows",))
    operator = completed(replace(OPERATOR, arguments=(index, *OPERATOR.arguments[:2]), inputs=not_defined))
    with pytest.raises(TemplateError, match="no default inputs for index, int32: define inputs"):
        operator.inputs(Problem(), np.random.default_rng(0), "normal")


def test_a_scalar_that_only_a_call_can_say_is_not_made_up() -> None:
    with pytest.raises(TemplateError, match="no default inputs for scale, a free scalar: define inputs, or give"):
        OPERATOR.inputs(Problem(), np.random.default_rng(0), "normal")


def test_rounded_is_the_reference_rounded_once() -> None:
    result = OPERATOR.rounded(Problem(), {"x": np.ones((1, 1, 8), np.float16)})["y"]
    assert (result.dtype, set(result.flat)) == (np.float64, {float(np.float16(1 / 3))})


@pytest.mark.parametrize(("dtype", "absolute"), [(DType.FP16, 1e-3), (DType.BF16, 8e-3), (DType.FP32, 1e-5)])
def test_a_tolerance_follows_from_the_dtype(dtype: DType, absolute: float) -> None:
    assert OPERATOR.tolerance(Problem(dtype=dtype)) == {"y": Tolerance(absolute)}


def test_the_least_cost_moves_every_tensor_once_and_what_is_updated_twice() -> None:
    assert OPERATOR.cost(Problem()).bytes == 2 * (2 * 4096 * 8) * 2
    state = Argument("state", DType.FP32, ("rows",), Role.UPDATED)
    updating = completed(replace(OPERATOR, arguments=(*OPERATOR.arguments, state), cost=not_defined))
    assert updating.cost(Problem()).bytes == OPERATOR.cost(Problem()).bytes + 2 * 4096 * 4


def test_tails_keep_the_statics_and_leave_out_what_the_problem_refuses() -> None:
    result = OPERATOR.tails(Problem(causal=False))
    assert [(entry.rows, entry.batch) for entry in result] == [(1, 1), (7, 7), (131, 2)]
    assert {(entry.columns, entry.causal) for entry in result} == {(8, False)}


@dataclass(frozen=True, slots=True)
class InVectors:
    columns: int = extent("K", default=1024)
    rows: int = extent("M", default=64)

    def __post_init__(self) -> None:
        if self.columns % 8 or self.rows > 1024:
            raise UsageError(f"columns {self.columns}: multiples of 8")


def test_tails_of_an_extent_that_takes_multiples_are_multiples() -> None:
    results = [(tail.columns, tail.rows) for tail in tails(InVectors())]
    assert results == [(8, 1), (56, 7), (136, 2), (16, 131)]


@dataclass(frozen=True, slots=True)
class Large:
    rows: int = extent("M", default=4096)

    def __post_init__(self) -> None:
        if self.rows < 1000:
            raise UsageError(f"rows {self.rows}: 1000 or more")


def test_tails_that_the_problem_refuses_must_be_written() -> None:
    with pytest.raises(TemplateError, match=r"no default tails, .*: define tails"):
        tails(Large())


def test_a_call_takes_the_tensors_by_place_and_by_name_what_they_do_not_show() -> None:
    assert str(signature(OPERATOR.call)) == "(x: Any, *, causal: bool = True, scale: float)"
    request = OPERATOR.call("x", scale=2.0)
    assert (request.arrays, request.statics, request.scalars) == ({"x": "x"}, {"causal": True}, {"scale": 2.0})


def test_a_scalar_with_a_default_may_be_given_in_a_call() -> None:
    epsilon = Argument("epsilon", DType.FP32, role=Role.SCALAR, default=lambda _problem: 1e-6)
    operator = completed(
        replace(OPERATOR, arguments=(*OPERATOR.arguments[:2], epsilon), inputs=not_defined, call=not_defined)
    )
    assert operator.call("x").scalars == operator.call("x", epsilon=None).scalars == {}
    assert operator.call("x", epsilon=0.5).scalars == {"epsilon": 0.5}


def test_a_size_that_no_tensor_shows_must_be_given_in_a_call() -> None:
    shown = tuple(replace(argument, dims=("rows", "columns")) for argument in OPERATOR.arguments[:1])
    operator = completed(replace(OPERATOR, arguments=(*shown, *OPERATOR.arguments[1:]), call=not_defined))
    assert signature(operator.call).parameters["batch"].default is Parameter.empty


def test_a_choice_without_a_default_must_be_given_in_a_call() -> None:
    kinds = make_dataclass("Kinds", [("mode", str, static("how"))], bases=(Problem,), kw_only=True, frozen=True)
    call = completed(replace(OPERATOR, problem=kinds, call=not_defined)).call
    assert signature(call).parameters["mode"].default is Parameter.empty


def test_the_call_is_named_and_told_as_its_operator() -> None:
    assert (OPERATOR.call.__name__, OPERATOR.call.__doc__) == ("third", "a third")


def test_the_default_is_the_first_config_that_the_constraints_allow() -> None:
    assert IMPLEMENTATION.default(Problem(), TARGET.arch) == Config(96)
    assert IMPLEMENTATION.refusal(Problem(), TARGET.arch) is None


def test_without_any_config_the_constraints_say_why() -> None:
    with pytest.raises(UsageError, match=r"naive has no config .* sm_80: 'over a row' refuses 3"):
        IMPLEMENTATION.default(Problem(columns=64), TARGET.arch)


def test_work_is_the_least_shared_out_among_the_launches_and_known_not_to_be_declared() -> None:
    problem = Problem()
    works = IMPLEMENTATION.work(problem, Config(96), TARGET)
    assert [(work.ctas, work.warps) for work in works] == [(4096, 3)] * 2
    assert sum(work.dram_bytes for work in works) == OPERATOR.cost(problem).bytes
    assert not IMPLEMENTATION.declares_work


def test_a_thread_has_one_load_of_16_bytes_in_flight_where_no_work_is_declared() -> None:
    problem = Problem(columns=8000)
    works = IMPLEMENTATION.work(problem, Config(96), TARGET)
    assert sum(work.chain * work.ctas * 96 * 16 for work in works) == pytest.approx(OPERATOR.cost(problem).bytes)


SCALED = (
    ("operator.py", "    # a size", '    Argument("scale", DType.FP32, role=Role.SCALAR),\n    # a size'),
    ("operator.py", 'return {"x"', 'return {"scale": 3.0, "x"'),
    ("operator.py", '{"y": p /', '{"y": arrays["scale"] * p /'),
    ("block/kernel.cu.jinja", "held[step][j] * inverse", "held[step][j] * inverse * scale"),
)


def test_a_scalar_that_only_a_call_can_say_is_checked_and_dispatched(tmp_path: Path) -> None:
    with own_operator(tmp_path, *SCALED) as name:
        problem, config = operators.load(name).problem(), {"threads": 32, "vector": 8}
        assert check(Job(InstanceFields(name, "block", to_fields(problem), config))).ok
        x = np.zeros((3, 256), np.float16)
        with pytest.warns(UntunedWarning):
            assert np.allclose(Dispatcher(EMPTY).call(name, x, scale=512.0), 2.0)
        with pytest.raises(TypeError, match="scale"):
            Dispatcher(EMPTY).call(name, x)


def test_a_call_that_forgets_a_scalar_is_told_so(tmp_path: Path) -> None:
    forgetful = ("operator.py", "inputs=inputs,", "inputs=inputs, call=lambda x: Request({'x': x}),")
    imported = ("operator.py", "Role, extent", "Request, Role, extent")
    error = pytest.raises(TemplateError, match=r"call\(\) gives no value for the scalar scale")
    with own_operator(tmp_path, *SCALED, forgetful, imported) as name, error:
        Dispatcher(EMPTY).call(name, np.zeros((3, 256), np.float16))


def test_a_call_that_returns_no_request_is_told_what_to_return(tmp_path: Path) -> None:
    edit = ("operator.py", "inputs=inputs,", "inputs=inputs, call=lambda x: {'x': x},")
    error = pytest.raises(TemplateError, match=r"call\(\) returned a dict: return a Request")
    with own_operator(tmp_path, edit) as name, error:
        Dispatcher(EMPTY).call(name, np.zeros((3, 256), np.float16))


def test_a_report_shows_the_call_with_its_free_scalar_and_where_the_operator_is_found(tmp_path: Path) -> None:
    with own_operator(tmp_path, *SCALED) as name:
        shown = usage(operators.load(name), operators.load(name).problem())
    assert f"dispatcher  # TUNER_OPERATORS says where {name} is\n" in shown
    assert f"y = dispatcher.{name}(x, scale=scale)\n" in shown
