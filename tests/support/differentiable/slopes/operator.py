"""slopes, an operator for tests: the gradients of square."""
# ruff: noqa: ARG001  (what an Operator is called with)

from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Arrays, DType, Operator, Role, extent, static


@dataclass(frozen=True, slots=True)
class Problem:
    width: int = static("elements of a row", default=4)
    rows: int = extent("rows", default=3)


ARGUMENTS = (
    Argument("grad_y", DType.FP32, ("rows", "width")),
    Argument("x", DType.FP32, ("rows", "width")),
    Argument("grad_x", DType.FP32, ("rows", "width"), Role.OUTPUT),
    Argument("db", DType.FP32, ("rows", "width"), Role.OUTPUT),
    Argument("rows", DType.INT32, role=Role.SCALAR),
)


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    grad_y, x = (arrays[name].astype(np.float64) for name in ("grad_y", "x"))
    return {"grad_x": 2 * x * grad_y, "db": grad_y}


OPERATOR = Operator(
    name="slopes",
    summary="the gradients of square",
    problem=Problem,
    arguments=ARGUMENTS,
    reference=reference,
)
