"""row_norm, an operator for tests: y = weight · x / rms(x) for each row, and the rms, with and without either."""
# ruff: noqa: ARG005  (what an Operator is called with)

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import UsageError
from tuner.spec import Argument, Arrays, DType, Operator, Request, Role, Tolerance, extent, static


@dataclass(frozen=True, slots=True)
class Problem:
    width: int = static("elements of a row", default=32)
    dtype: DType = static("of x and y", default=DType.FP32, choices=(DType.FP32, DType.BF16))
    unit: bool = static("without the weight", default=False)
    with_rms: bool = static("the rms is an output", default=True)
    rows: int = extent("rows", default=64)

    def __post_init__(self) -> None:
        if self.width % 4:
            raise UsageError(f"width {self.width}: row_norm takes multiples of 4")

    @property
    def weights(self) -> int:
        return 0 if self.unit else self.width

    @property
    def roots(self) -> int:
        return self.rows if self.with_rms else 0


ARGUMENTS = (
    Argument("x", "dtype", ("rows", "width"), strided=True),
    Argument("weight", DType.FP32, ("weights",)),
    Argument("y", "dtype", ("rows", "width"), Role.OUTPUT, strided=True),
    Argument("rms", DType.FP32, ("roots",), Role.OUTPUT),
    Argument("epsilon", DType.FP32, role=Role.SCALAR, default=lambda problem: 1e-6),
    Argument("rows", DType.INT32, role=Role.SCALAR),
)


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    x = arrays["x"].astype(np.float64)
    rms = np.sqrt(np.mean(x * x, axis=1) + arrays.get("epsilon", 1e-6))
    y = x / rms[:, None]
    return {"y": y if problem.unit else y * arrays["weight"], "rms": rms[: problem.roots]}


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    return {"y": Tolerance(1e-6 if problem.dtype is DType.FP32 else 4e-3), "rms": Tolerance(1e-6)}


def row_norm(x: Any, weight: Any = None, *, with_rms: bool = True, epsilon: float | None = None) -> Request:
    """y = weight · x / rms(x), or x / rms(x). Returns (y, rms)."""
    arrays = {"x": x} | ({} if weight is None else {"weight": weight})
    scalars = {} if epsilon is None else {"epsilon": epsilon}
    return Request(arrays, {"unit": weight is None, "with_rms": with_rms}, scalars)


OPERATOR = Operator(
    name="row_norm",
    summary="rows divided by their root mean square",
    problem=Problem,
    arguments=ARGUMENTS,
    reference=reference,
    tolerance=tolerance,
    tails=lambda problem: (problem,),
    call=row_norm,
    folder=Path(__file__).parent,
)
