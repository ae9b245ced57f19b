"""Tests that an operator and its gradient's operator fit together, or that one message names the mismatch."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.own_operators import own_operator
from tuner import operators
from tuner.base.assets import ROOT
from tuner.errors import TemplateError

OPERATORS = ROOT / "tests" / "support" / "differentiable"
DECLARED = 'Gradient("slopes", upstream={"y": "grad_y"}, gradients={"x": "grad_x"})'
X, DB = 'Argument("x", DType.FP32, ("rows", "width"))', 'Argument("db", DType.FP32, ("rows", "width"), Role.OUTPUT)'
OPTION = 'Argument("exponent", DType.FP32, role=Role.SCALAR)'


@contextmanager
def pair(place: Path, forward: tuple[str, str], backward: tuple[str, str] = ("", "")) -> Iterator[str]:
    """The name of a copy of square in `place`, whose gradients a copy of slopes computes; each with a text replaced."""
    with own_operator(place, ("operator.py", *backward), example=OPERATORS / "slopes") as slopes:
        old, new = (argument.replace("slopes", slopes) for argument in forward)
        edits = ("operator.py", '"slopes"', f'"{slopes}"'), ("operator.py", old, new)
        with own_operator(place, *edits, example=OPERATORS / "square") as name:
            yield name


def test_what_fits_is_the_operator_of_the_gradients(tmp_path: Path) -> None:
    with pair(tmp_path, ("", "")) as name:
        result = operators.backward(operators.load(name))
    assert result is not None and [output.name for output in result.outputs] == ["grad_x", "db"]


@pytest.mark.parametrize("name", operators.names())
def test_ours_fit(name: str) -> None:
    operator = operators.load(name)
    assert (operators.backward(operator) is None) == (operator.gradient is None)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("7", "gradient is 7: give Gradient"),
        ('Gradient("slope")', "operator of its gradient: unknown operator 'slope'"),
        ('Gradient("slopes", gradients={"x": "grad_x"})', "dy is not a parameter of own_.*: name it in upstream"),
        (
            'Gradient("slopes", upstream={"y": "grad_y"})',
            r"of x is not an output of own_\d+ \(db, grad_x\): name it in gradients",
        ),
        (DECLARED.replace('"y"', '"o"'), r"upstream names 'o', which is not an output of own_\d+ \(y\)"),
        (DECLARED.replace('"grad_y"', '"g"'), r"upstream names 'g', which is not a parameter of own_\d+ \(grad_y, x\)"),
        (DECLARED.replace('{"x"', '{"z"'), r"gradients names 'z', which is not a parameter of own_\d+ \(b, x\)"),
        (DECLARED.replace('"grad_x"', '"g"'), r"gradients names 'g', which is not an output of own_\d+ \(db, grad_x\)"),
        (DECLARED.replace(")", ', unsupported={"z": ""})'), "unsupported names 'z'"),
        (DECLARED.replace(")", ', no_gradient={"z": ""})'), "no_gradient names 'z'"),
        (DECLARED.replace(")", ', no_gradient={"y": "it is rounded"})'), "does not say what grad_y of own_.* is"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, declared: str, message: str) -> None:
    message_pattern = rf"own_\d+/operator\.py: .*{message}"
    with pair(tmp_path, (DECLARED, declared)) as name, pytest.raises(TemplateError, match=message_pattern):
        operators.backward(operators.load(name))


def test_an_option_that_the_gradients_do_not_hear_of_is_told(tmp_path: Path) -> None:
    with pair(tmp_path, (X, f"{X},\n    {OPTION}")) as name, pytest.raises(TemplateError, match="leaves out exponent"):
        operators.backward(operators.load(name))


def test_gradients_that_are_updated_in_place_are_told(tmp_path: Path) -> None:
    updated = (DB, DB.replace("OUTPUT", "UPDATED"))
    declared = (DECLARED, DECLARED.replace(")", ', no_gradient={"b": "it is a constant"})'))
    with pair(tmp_path, declared, updated) as name, pytest.raises(TemplateError, match="updates db in place"):
        operators.backward(operators.load(name))
