"""A unit of a farm without a search: it stores what a search would store, for benchmarks of the farm."""

from functools import cache

from tuner import operators
from tuner.results.attempt import Attempt, Evidence, Identity, Prediction, Resources
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict
from tuner.search.work_unit import Unit, UnitResult
from tuner.spec.problem import canonical, from_fields
from tuner.store import record_lines
from tuner.store.sql import Store

_RIGHT = Verdict((OutputError("o", 0.0, 0.0, 1e-3, 1e-3),), (), ("simulated",))


def simulate(unit: Unit) -> UnitResult:
    """Store what a search stores, each row in a transaction of its own."""
    operator = operators.load(unit.operator)
    problem = canonical(from_fields(operator.problem, unit.problem))
    store = _store(unit.db)
    study = store.begin_study(
        operator=unit.operator,
        problem=problem,
        gpu=unit.gpu,
        command="simulated",
        seed=0,
        method="gp",
        effort="quick",
        budget=int(unit.search["budget"]),
    )
    for number in range(int(unit.search["budget"])):
        attempt = _attempt(unit, problem, number)
        (row,) = store.append([attempt], study)
    store.append_verdict(row, _RIGHT, "simulated")
    record = _record(attempt)
    store.promote(record, study)
    store.end_study(study, "simulated")
    return UnitResult(record=record_lines.to_line(record), tried=number + 1)


@cache
def _store(database: str) -> Store:
    """Return the store of this worker, opened once: opening is not part of the rate."""
    return Store.open(database)


def _attempt(unit: Unit, problem: str, number: int) -> Attempt:
    identity = Identity(unit.operator, "mma_sync", problem, unit.gpu, f"{number:064x}", "", "none", "simulated/1")
    resources = Resources(128, 0, 1024, 128, 2, "registers", f"{number:064x}")
    return Attempt(identity, {"BM": number}, None, resources, Prediction(100.0 + number, {}, "tensor", "simulated/1"))


def _record(attempt: Attempt) -> TuningRecord:
    assert attempt.resources is not None
    return TuningRecord(
        identity=attempt.identity,
        config=attempt.config,
        evidence=Evidence.PREDICTED,
        verdict=_RIGHT,
        resources=attempt.resources,
        prediction=attempt.prediction,
        measurement=None,
        margin=0.0,
        tried=attempt.config["BM"],
        tuner="simulated",
        created="2000-01-01T00:00:00+00:00",
    )
