"""The worker of a farm: `dask worker ADDRESS --nthreads 1 --preload tuner.farm_worker`."""

from dataclasses import replace
from typing import Any

from tuner.backends import gpu
from tuner.farm.resources import NO_GPU, Description, of_device
from tuner.search.code_version import code_here
from tuner.search.work_unit import Unit, UnitResult, perform
from tuner.store import locations


def dask_setup(worker: Any) -> None:
    """Publish code and GPU before the worker registers. A worker with several GPUs publishes the first."""
    here = gpu.current_gpu().name if gpu.available() else NO_GPU
    published = {Description(code_here(), here).resource: 1.0}
    if here != NO_GPU and (uuid := gpu.uuid(0)):
        published[of_device(uuid)] = 1.0
    worker.state.total_resources.update(published)
    worker.state.available_resources.update(published)


def perform_here(unit: Unit) -> UnitResult:
    """Run a unit with the database in this worker's TUNER_DB, or else the one that the unit names."""
    own = next(iter(locations.named()), "")
    return perform(replace(unit, db=own if "://" in own else unit.db))
