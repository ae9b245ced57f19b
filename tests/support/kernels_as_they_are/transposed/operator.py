"""transposed: a matrix whose sizes are macros of its kernels."""

from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Arrays, DType, Operator, Role, static


@dataclass(frozen=True, slots=True)
class Problem:
    rows: int = static("M", default=4096, size=True)
    columns: int = static("N", default=2048, size=True)


def reference(problem: Problem, arrays: Arrays) -> Arrays:  # noqa: ARG001
    return {"y": arrays["x"].astype(np.float64).T}


OPERATOR = Operator(
    name="transposed",
    summary="rows become columns",
    problem=Problem,
    arguments=(
        Argument("x", DType.FP32, ("rows", "columns")),
        Argument("y", DType.FP32, ("columns", "rows"), Role.OUTPUT),
    ),
    reference=reference,
)
