"""row_softmax: softmax of each row of a matrix."""

from dataclasses import dataclass

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Argument, Arrays, DType, Operator, Role, extent, static


@dataclass(frozen=True, slots=True)
class Problem:
    """The problem; each field is an option of the commands.

    static: selects code, so a template may read it. extent: a size at run time, so one kernel serves every value.
    """

    columns: int = static("N: elements of a row", default=256)
    dtype: DType = static("of x and y", default=DType.FP16, choices=(DType.BF16, DType.FP16))
    rows: int = extent("M", default=4096)

    def __post_init__(self) -> None:
        """Refuse problems that no implementation supports, with name and value."""
        if not 1 <= self.columns <= 65536:
            raise UsageError(f"columns {self.columns}: row_softmax supports 1 to 65536")
        if self.rows < 1:
            raise UsageError(f"rows {self.rows}: row_softmax supports 1 or more")


ARGUMENTS = (  # in the order of the kernel's parameters; dims and dtypes are fields of Problem
    Argument("x", "dtype", ("rows", "columns")),
    Argument("y", "dtype", ("rows", "columns"), Role.OUTPUT),
    # a size that the kernel reads is an argument too: Argument("rows", DType.INT32, role=Role.SCALAR)
)


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    """One array for each input argument. At least one kind should be numerically difficult for the kernel."""
    x = rng.standard_normal((problem.rows, problem.columns))
    return {"x": (x * (50 if kind == "one_takes_all" else 1)).astype(problem.dtype.numpy)}


def reference(problem: Problem, arrays: Arrays) -> Arrays:  # noqa: ARG001  (the signature of Operator.reference)
    """Every output in float64; kernels are compared with it."""
    x = arrays["x"].astype(np.float64)
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": p / p.sum(axis=1, keepdims=True)}


OPERATOR = Operator(
    name="row_softmax",
    summary="softmax of each row of a matrix",
    problem=Problem,
    arguments=ARGUMENTS,
    reference=reference,
    inputs=inputs,
    input_kinds=("normal", "one_takes_all"),
)
