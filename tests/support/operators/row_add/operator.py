"""row_add, an operator for tests: rows of a table are increased in place, and summed."""
# ruff: noqa: ARG001  (what an Operator is called with)

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tuner.spec import Argument, Arrays, DType, Operator, Request, Role, Tolerance, Updated, extent, static


@dataclass(frozen=True, slots=True)
class Problem:
    width: int = static("elements of a row", default=8)
    rows: int = extent("rows to add", default=3)
    entries: int = extent("rows of the table", default=5)


ARGUMENTS = (
    Argument("x", DType.FP32, ("rows", "width"), strided="all"),
    Argument("index", DType.INT32, ("rows",)),
    Argument("table", DType.FP32, ("entries", "width"), Role.UPDATED, strided=True),
    Argument("sums", DType.FP32, ("rows",), Role.OUTPUT),
    Argument("rows", DType.INT32, role=Role.SCALAR),
)


def inputs(problem: Problem, rng: np.random.Generator, kind: str) -> Arrays:
    return {
        "x": rng.standard_normal((problem.rows, problem.width), np.float32),
        "index": rng.permutation(problem.entries)[: problem.rows].astype(np.int32),
        "table": rng.standard_normal((problem.entries, problem.width), np.float32),
    }


def reference(problem: Problem, arrays: Arrays) -> Arrays:
    table = arrays["table"].astype(np.float64)
    table[arrays["index"]] += arrays["x"]
    return {"table": table, "sums": table[arrays["index"]].sum(axis=1)}


def tolerance(problem: Problem) -> Mapping[str, Tolerance]:
    return {"table": Tolerance(1e-3), "sums": Tolerance(1e-3)}


def row_add(table: Updated, index: Any, x: Any) -> Request:
    """table[index] += x, in place. Returns the sum of each of these rows."""
    return Request({"table": table, "index": index, "x": x})


OPERATOR = Operator(
    name="row_add",
    summary="rows of a table increased in place",
    problem=Problem,
    arguments=ARGUMENTS,
    inputs=inputs,
    reference=reference,
    tolerance=tolerance,
    tails=lambda problem: (problem,),
    call=row_add,
    folder=Path(__file__).parent,
)
