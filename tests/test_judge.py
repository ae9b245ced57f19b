"""What a judge asks of a device, answered by the emulator: what is right must not be called wrong where a GPU is."""

from typing import Any

import pytest

from tuner import emulator, operators
from tuner.arch import ARCHES
from tuner.emulator import Mode
from tuner.judge import cases
from tuner.operator import Implementation, Operator, to_fields
from tuner.verify import compare

HOPPER = ARCHES["sm_90a"]
ALL = [(operators.load(name), each) for name in operators.names() for each in operators.implementations(name)]


def served(operator: Operator[Any], implementation: Implementation[Any, Any]) -> Any:
    """The operator's default problem, or else the implementation's example."""
    default = operator.problem()
    return default if implementation.refusal(default, HOPPER) is None else implementation.example


@pytest.mark.parametrize(("operator", "implementation"), ALL, ids=lambda each: each.name)
def test_the_smallest_edge_is_right_with_every_kind_of_inputs(
    operator: Operator[Any], implementation: Implementation[Any, Any]
) -> None:
    smallest = operator.tails(served(operator, implementation))[0]
    config = implementation.default(smallest, HOPPER)
    for case in cases(operator, to_fields(smallest), every=True)[: len(operator.input_kinds)]:
        outputs, run = emulator.run(operator, implementation, case.problem, config, case.arrays, Mode())
        assert run.findings == ()
        for name, (exact, rounded, tolerance) in case.right.items():
            error = compare(name, outputs[name], exact, rounded, tolerance)
            assert error.ok, f"{case.name}: {error.reason}"
