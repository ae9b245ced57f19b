"""Records with the current source, so that the dispatcher runs the configs that a test or a benchmark names."""

from tuner.compiler.render import render
from tuner.results.attempt import Evidence, Identity, Resources
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields
from tuner.store.read import ListedRecords, StoredRecord
from tuner.store.records import Snapshot


def snapshot(*instances: Instance, target: str, arch: str) -> Snapshot:
    """Return records of configs on their problems, for a GPU of an arch."""
    records: list[StoredRecord] = []
    for instance in instances:
        name, problem = instance.operator.name, canonical(instance.problem)
        digest = render(instance).digest
        identity = Identity(
            name, instance.implementation.name, problem, target, digest, f"-arch={arch}", "nvrtc 13.5", "p/1"
        )
        record = TuningRecord(
            identity,
            to_fields(instance.config),
            Evidence.PREDICTED,
            Verdict((OutputError("o", 0.0, 0.0, 1e-6, 1e-6),)),
            Resources(32, 0, 0, 128, 16, "threads", "5a55"),
            None,
            None,
            margin=0.1,
            tried=2,
            tuner="0.1.0",
            created="2026-11-21T00:00:00+00:00",
        )
        records.append(StoredRecord(record, "a test", to_fields(instance.problem), arch))
    return Snapshot([ListedRecords(records)])
