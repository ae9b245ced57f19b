"""`tuner bench`: our best against the peers that are installed, on the GPU of this machine."""

from collections.abc import Sequence
from typing import Any

from tuner import bench, gpu
from tuner.cli.inspect import snapshot
from tuner.cli.output import DbOption, JsonOption, emit_json, table
from tuner.gpu_device import Physical
from tuner.operator import Operator, to_fields

_COLUMNS = ("contender", "state", "time", "interval", "ratio", "interval ", "note")


def bench_command(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Race what the dispatcher serves against every peer, interleaved, outputs checked."""
    target = gpu.current_gpu()
    found = [
        (problem, bench.compare(bench.contender(operator, problem, target, snapshot(db)), Physical()))
        for problem in problems
    ]
    if as_json:
        emit_json([comparison.data() for _, comparison in found])
        return
    for problem, comparison in found:
        spelled = " ".join(f"{name}={value}" for name, value in to_fields(problem).items())
        title = f"{operator.name} {spelled} on {target.name} ({comparison.implementation}, {comparison.policy})"
        table(title, _COLUMNS, comparison.table(), right=_COLUMNS[2:6])
