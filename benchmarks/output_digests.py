"""Print digests of what every implementation's default computes on the emulator; equal lines mean bitwise equal
results.

    python benchmarks/output_digests.py [--only kda] [--edges 2] > bits.txt

Each line is an edge case: digests of the inputs, drawn with NumPy, and of the outputs of a plain and of a checked run.
All NaNs have the same digest, because processors differ in the sign of a generated NaN. Compare the files of two
machines.
"""

import argparse
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.evaluate.check.edges import served
from tuner.spec.instance import Instance
from tuner.spec.parameters import scalars

MODES = (Mode(), Mode(True, "random", "late", 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="an operator")
    parser.add_argument(
        "--edges", type=int, default=2, help="number of edge cases of each implementation, from the last [2]"
    )
    options = parser.parse_args()
    for instance in _defaults(options.only):
        for edge in served(instance)[-options.edges :]:
            at = instance.at(edge.problem)
            inputs = at.operator.inputs(at.problem, np.random.default_rng(0), edge.kind)
            arrays = {**inputs, **scalars(at.operator, at.problem, inputs)}
            digests = [digest(emulator.run(at, arrays, mode)[0]) for mode in MODES]
            print(instance.name, edge.name(at.operator), digest(arrays), *digests, sep="; ", flush=True)


def _defaults(only: str | None) -> Iterator[Instance]:
    for operator in map(operators.load, [only] if only else operators.names()):
        for implementation in operators.implementations(operator.name):
            problem = operator.problem() if implementation.example is None else implementation.example
            arch = next(arch for arch in ARCHES.values() if implementation.refusal(problem, arch) is None)
            yield Instance.default(operator, implementation, problem, arch)


def digest(arrays: Mapping[str, Any]) -> str:
    """Return twelve hex digits of names and values."""
    digester = sha256()
    for name, value in sorted(arrays.items()):
        array = np.asarray(value)
        digester.update(name.encode())
        digester.update(
            np.where(array == array, array, array.dtype.type("nan")).tobytes() if _real(array) else array.tobytes()
        )
    return digester.hexdigest()[:12]


def _real(array: np.ndarray) -> bool:
    return array.dtype.kind in "fV"  # NumPy does not classify bf16 as a float


if __name__ == "__main__":
    main()
