"""blur: a weighted sum over 3 × 3 neighbours of an 8-bit image, and which pixels it saturates."""

from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Array, Arrays, DType, Operator, Role, extent


@dataclass(frozen=True, slots=True)
class Problem:
    width: int = extent("pixels a row", default=1920)
    height: int = extent("rows", default=1080)

    @property
    def taps(self) -> int:
        return 9


ARGUMENTS = (
    Argument("image", DType.UINT8, ("height", "width")),
    Argument("c_weights", DType.FP32, ("taps",), constant=True),
    Argument("blurred", DType.UINT8, ("height", "width"), Role.OUTPUT),
    Argument("excess", DType.FP64, ("height", "width"), Role.OUTPUT),
    Argument("width", DType.UINT32, role=Role.SCALAR),
    Argument("height", DType.UINT32, role=Role.SCALAR),
)


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:  # noqa: ARG001
    """Weights are sixteenths, so that every sum is exact in fp32."""
    return {
        "image": rng.integers(0, 256, (problem.height, problem.width), np.uint8),
        "c_weights": (rng.integers(0, 5, 9) / 16).astype(np.float32),
    }


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    image: Array = np.pad(arrays["image"].astype(np.float64), 1)
    weights = arrays["c_weights"].astype(np.float64).reshape(3, 3)
    total = sum(
        weights[i, j] * image[i : i + problem.height, j : j + problem.width] for i in range(3) for j in range(3)
    )
    return {"blurred": np.floor(np.minimum(total, 255.0)), "excess": np.maximum(total - 255.0, 0.0)}


OPERATOR = Operator(
    name="blur", summary="3 × 3 neighbours", problem=Problem, arguments=ARGUMENTS, reference=reference, inputs=inputs
)
