"""Six streaming kernels in fp64, one element per thread, as timed by gpu-benches at every occupancy."""

from dataclasses import dataclass

import numpy as np

from tuner.spec import Argument, Cost, DType, Operator, Role, static

KERNELS = ("init", "read", "scale", "triad", "stencil3", "stencil5")
# Number of arrays that cross DRAM.
STREAMS = {"init": 1, "read": 1, "scale": 2, "triad": 3, "stencil3": 2, "stencil5": 2}


@dataclass(frozen=True)
class Problem:
    kernel: int = static("an index of KERNELS", default=0)
    n: int = static("elements of each array", default=1 << 27)
    blocks: int = static("blocks that an SM holds", default=2)


def reference(problem, arrays):
    raise NotImplementedError("these kernels are compiled and predicted, not run")


OPERATOR = Operator(
    name="streams",
    summary="streaming kernels",
    problem=Problem,
    arguments=(
        Argument("a", DType.INT64, ("n",), Role.OUTPUT),  # eight bytes per element
        Argument("b", DType.INT64, ("n",)),
        Argument("c", DType.INT64, ("n",)),
    ),
    reference=reference,
    cost=lambda problem: Cost(flops=0.0, bytes=8.0 * problem.n * STREAMS[KERNELS[problem.kernel]]),
    tails=lambda problem: (problem,),
    inputs=lambda problem, _rng, _kind: {name: np.zeros(problem.n, np.int64) for name in "bc"},
)
