"""The worker's side of a farm: what it publishes when it starts, and how it performs a unit."""

from dataclasses import replace
from typing import Any

from tuner.backends import gpu
from tuner.farm.resources import NO_GPU, Description, device_resource
from tuner.search.code_version import code_here
from tuner.search.work_unit import Unit, UnitResult, perform
from tuner.store import locations


def dask_setup(worker: Any) -> None:
    """Publish code and GPU before the worker registers. A worker that sees several GPUs publishes the first."""
    name = gpu.current_gpu().name if gpu.available() else NO_GPU
    published = {Description(code_here(), name).resource: 1.0}
    if name != NO_GPU and (uuid := gpu.uuid(0)):
        published[device_resource(uuid)] = 1.0
    worker.state.total_resources.update(published)
    worker.state.available_resources.update(published)


def perform_here(unit: Unit) -> UnitResult:
    """Perform a unit in the database that TUNER_DB names on this worker, else in the one that the unit names."""
    server = next((database for database in locations.named() if "://" in database), "")
    return perform(replace(unit, db=server or unit.db))
