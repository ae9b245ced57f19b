"""rms_norm: each row of a matrix divided by its root mean square, times weights."""

from dataclasses import dataclass

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Argument, Arrays, DType, Operator, Role, extent, static


@dataclass(frozen=True, slots=True)
class Problem:
    """The problem; each field is an option of the commands.

    static: selects code, so a template may read it. extent: a size at run time, so one kernel serves every value.
    """

    columns: int = static("N: elements of a row", default=1024)
    rows: int = extent("M", default=4096)

    def __post_init__(self) -> None:
        """Refuse problems that no implementation supports, with name and value."""
        if self.columns % 8 or not 8 <= self.columns <= 65536:
            raise UsageError(f"columns {self.columns}: rms_norm supports multiples of 8 up to 65536")
        if self.rows < 1:
            raise UsageError(f"rows {self.rows}: rms_norm supports 1 or more")


ARGUMENTS = (  # in the order of the kernel's parameters; dims are fields of Problem
    Argument("x", DType.FP16, ("rows", "columns")),
    Argument("w", DType.FP16, ("columns",)),
    Argument("y", DType.FP16, ("rows", "columns"), Role.OUTPUT),
    Argument("epsilon", DType.FP32, role=Role.SCALAR, default=lambda _: 1e-6),
)


def reference(problem: Problem, arrays: Arrays) -> Arrays:  # noqa: ARG001  (the signature of Operator.reference)
    """Every output in float64; kernels are compared with it."""
    x = arrays["x"].astype(np.float64)
    scale = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + arrays["epsilon"])
    return {"y": x * scale * arrays["w"].astype(np.float64)}


OPERATOR = Operator(
    name="rms_norm",
    summary="each row divided by its root mean square, times weights",
    problem=Problem,
    arguments=ARGUMENTS,
    reference=reference,
)
