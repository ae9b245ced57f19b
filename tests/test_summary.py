"""The Python line that a search prints for its winner."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from tuner import operators
from tuner.dispatcher import UntunedWarning
from tuner.operators.kda.problem import Problem as Kda
from tuner.summary import usage


@pytest.mark.parametrize("name", operators.names())
def test_the_line_for_an_application_runs_as_it_is_printed(name: str) -> None:
    operator = operators.load(name)
    problem = operator.tails(operator.problem())[0]
    arrays = operator.inputs(problem, np.random.default_rng(0), operator.input_kinds[0])
    spelled = {"beta_scalar": "beta", "d_o": "do"}  # where the call has another word than the kernel
    given = {spelled.get(name, name): array for name, array in arrays.items() if np.size(array)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntunedWarning)
        exec(usage(operator, problem), given)
    right = operator.reference(problem, arrays)
    for argument in operator.outputs:
        np.testing.assert_allclose(given[argument.name].astype(np.float64), right[argument.name], atol=0.05)


def test_the_line_names_the_options_that_differ_from_their_defaults() -> None:
    problem = replace(Kda(heads=2, seq_len=64), use_initial_state=True, output_final_state=True)
    line = usage(operators.load("kda"), problem).splitlines()[-1]
    assert (
        line
        == "o, final_state = dispatcher.kda(q, k, v, g, beta, initial_state=initial_state, output_final_state=True)"
    )
