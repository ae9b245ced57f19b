"""scale_sum: y = alpha · x in another type, and signed bytes that say where it is negative."""

from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Arrays, DType, Operator, Role, extent


@dataclass(frozen=True, slots=True)
class Problem:
    n: int = extent("elements", default=1 << 20)


ARGUMENTS = (
    Argument("x", DType.FP32, ("n",)),
    Argument("y", DType.FP64, ("n",), Role.OUTPUT),
    Argument("sign", DType.INT8, ("n",), Role.OUTPUT),
    Argument("alpha", DType.FP64, role=Role.SCALAR, default=lambda _: 0.75),
    Argument("n", DType.INT32, role=Role.SCALAR),
)


def reference(problem: Problem, arrays: Arrays) -> Arrays:  # noqa: ARG001
    y = arrays["alpha"] * arrays["x"].astype(np.float64)
    return {"y": y, "sign": np.sign(y)}


OPERATOR = Operator(name="scale_sum", summary="y = alpha x", problem=Problem, arguments=ARGUMENTS, reference=reference)
