"""Run peers that compile for a long time once while nothing is timed, so that their kernels are in their compiler's
cache.

    python benchmarks/gpu_warm.py [OPERATOR ...]

Tests run at the same time, so the fastest configs that peers select are not kept: they select again when they run
alone.
"""

import json
import os
import sys
import time

from gpu_plan import warmed
from gpu_tests import end_with_caller

from tuner.bench.timing_process import warm
from tuner.evaluate.measure.device import Code
from tuner.spec.instance import InstanceFields
from tuner.spec.problem import to_fields

_NOT_KEPT = "FLA_CACHE_RESULTS"  # variable of flash-linear-attention: whether its selection is cached


def main() -> None:
    for line in warmed(sys.argv[1:]):
        began = time.monotonic()
        problem = Code(InstanceFields(line.operator.name, "", to_fields(line.problem), {}), b"")
        for peer, why in warm(problem, line.inputs):
            took_s = round(time.monotonic() - began, 1)
            print(json.dumps({"peer": peer, "of": line.name, "seconds": took_s, "why": why}), flush=True)
            began = time.monotonic()


if __name__ == "__main__":
    os.environ[_NOT_KEPT] = "0"
    end_with_caller()
    main()
