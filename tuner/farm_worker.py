"""The preload of a farm's worker: `dask worker ADDRESS --nthreads 1 --preload tuner.farm_worker`."""

from tuner.farm.worker import dask_setup

__all__ = ["dask_setup"]
