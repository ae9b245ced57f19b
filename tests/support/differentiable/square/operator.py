"""square, an operator for tests: y = x² + b, with its gradients by slopes."""
# ruff: noqa: ARG001  (what an Operator is called with)

from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Arrays, DType, Gradient, Operator, Role, extent, static


@dataclass(frozen=True, slots=True)
class Problem:
    width: int = static("elements of a row", default=4)
    rows: int = extent("rows", default=3)


ARGUMENTS = (
    Argument("x", DType.FP32, ("rows", "width")),
    Argument("b", DType.FP32, ("rows", "width")),
    Argument("y", DType.FP32, ("rows", "width"), Role.OUTPUT),
    Argument("rows", DType.INT32, role=Role.SCALAR),
)


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    x, b = (arrays[name].astype(np.float64) for name in ("x", "b"))
    return {"y": x * x + b}


OPERATOR = Operator(
    name="square",
    summary="y = x² + b, with its gradients by slopes",
    problem=Problem,
    arguments=ARGUMENTS,
    reference=reference,
    gradient=Gradient("slopes", upstream={"y": "grad_y"}, gradients={"x": "grad_x"}),
)
