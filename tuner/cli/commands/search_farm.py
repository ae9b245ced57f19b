"""`tuner search --farm ADDRESS`: a search whose problems run on the workers of a Dask scheduler."""

from collections.abc import Callable

from tuner.cli.fleet_display import FleetDisplay
from tuner.cli.output import say
from tuner.search import fleet
from tuner.search.code_version import code_here
from tuner.search.many_problems import Campaign, CampaignRequest
from tuner.store import locations
from tuner.store.sql import without_password


def farmed(
    request: CampaignRequest,
    stopped: Callable[[], bool],
    *,
    address: str,
    insecure: bool,
    predicted: bool,
    quiet: bool,
) -> Campaign:
    """Search on the workers that have the GPU of the request; for an architecture, on workers without a GPU.

    Raises UsageError if the database is no server or the address is not safe, and MachineError if no worker fits.
    """
    from tuner.farm.client import Farm  # only a farm needs Dask
    from tuner.farm.resources import NO_GPU, Description

    db = without_password(request.db or locations.database())
    target = request.gpu
    measured = not predicted and target.name != target.arch.name
    wanted = Description(code_here(), target.name if measured else NO_GPU)
    with Farm(address, insecure=insecure) as farm:
        farm.require(wanted, say)
        for sentence in farm.refused(wanted):
            say(sentence)
        with FleetDisplay("worker", quiet) as display:
            workers = fleet.Workers(
                farm.executor(wanted),
                lambda: farm.capacity(wanted),
                measured=measured,
                db=db,
                show=display.show,
            )
            return fleet.run(request, workers, stopped)
