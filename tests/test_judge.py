"""What a judge asks of a device, answered by the emulator: what is right must not be called wrong where a GPU is."""

from typing import Any

import pytest
from claims import example, first_arch

from tuner import emulator, operators
from tuner.emulator import Mode
from tuner.judge import cases
from tuner.operator import Implementation, Operator, to_fields
from tuner.verify import compare

ALL = [(operators.load(name), each) for name in operators.names() for each in operators.implementations(name)]


@pytest.mark.parametrize(("operator", "implementation"), ALL, ids=lambda each: each.name)
def test_the_smallest_edge_is_right_with_every_kind_of_inputs(
    operator: Operator[Any], implementation: Implementation[Any, Any]
) -> None:
    problem = example(operator, implementation)
    config = implementation.default(problem, first_arch(implementation, problem))
    smallest = to_fields(operator.tails(problem)[0])
    for case in cases(operator, smallest, every=True)[: len(operator.input_kinds)]:
        # Built as test_operators.py has it built.
        outputs, run = emulator.run(
            operator, implementation, case.problem, config, case.arrays, Mode(), instrumented=True
        )
        assert run.findings == ()
        for name, (exact, rounded, tolerance) in case.right.items():
            error = compare(name, outputs[name], exact, rounded, tolerance)
            assert error.ok, f"{case.name}: {error.reason}"
