"""Cost of a farm's coordinator and database: simulated searches on real workers and a real PostgreSQL server.

    python benchmarks/farm.py --workers 1,2 --simulate 1000

A simulated problem stores the rows of a search with `--rows` attempts: a study, each attempt in its own transaction, a
verdict and a record. The CPU times of this process and of the server do not depend on the load of the machine; rows
per second do. From the CPU times follow the numbers of workers that keep the coordinator, or one core of the server,
busy if each problem takes a worker `--problem-seconds`. The server runs without fsync.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_path  # noqa: F401  # the checkout that this program is in

from tuner import operators
from tuner.arch import gpu
from tuner.errors import MachineError
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.search import fleet
from tuner.search.many_problems import CampaignRequest
from tuner.search.portfolio import Terms
from tuner.search.request import SearchRequest

if TYPE_CHECKING:
    from tests.support.postgres import Server


@dataclass(frozen=True)
class Cost:
    """The cost of one run. CPU times are in seconds."""

    coordinator: float  # CPU per problem
    server: float  # CPU per row
    rows_per_s: float


def measure(workers: int, problems: int, rows: int, server: "Server") -> Cost:
    from tests.support import farm as processes
    from tests.support.simulated_units import simulate
    from tuner.farm.client import Farm
    from tuner.farm.resources import NO_GPU, Description
    from tuner.search.code_version import code_here

    operator, db = operators.load("flash_attention"), server.database()
    searches = tuple(
        SearchRequest(operator, operator.problem(head_dim=64, seq_q=number), gpu("sm_90a"), budget=rows, history=False)
        for number in range(1, problems + 1)
    )
    request = CampaignRequest(searches, Terms(), MeasurementPolicy(), db=db)
    wanted = Description(code_here(), NO_GPU)
    with (
        tempfile.TemporaryDirectory() as folder,
        processes.scheduler(Path(folder)) as address,
        processes.workers(address, workers, Path(folder), {"TUNER_DB": db}),
        Farm(address, patience_s=120) as farm,
        fleet.opened(
            request, fleet.Workers(farm.executor(wanted, simulate), lambda: 2 * farm.capacity(wanted), db=db)
        ) as opened,
    ):
        processes.wait_until(lambda: farm.capacity(wanted) == workers, "the workers do not come")
        coordinator, before, began = time.process_time(), server.cpu_s(), time.monotonic()
        results = opened.results(searches, lambda: False)
        seconds = time.monotonic() - began
        coordinator, stored = time.process_time() - coordinator, server.cpu_s() - before
    failed = [result.error for result in results.values() if not result.record]
    assert not failed, failed[0]
    return Cost(coordinator / problems, stored / (problems * rows), problems * rows / seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2", help="numbers of workers, such as 1,2")
    parser.add_argument("--simulate", type=int, default=1000, metavar="N", help="problems")
    parser.add_argument("--rows", type=int, default=32, metavar="N", help="attempts per problem, as of --effort quick")
    parser.add_argument("--problem-seconds", type=float, default=30.0, metavar="N", help="time of a real problem")
    options = parser.parse_args()
    from tests.support.postgres import binaries, server

    if binaries() is None:
        raise MachineError("no PostgreSQL server here (apt-get install postgresql)")
    print("| workers | coordinator: CPU per problem | busy at | server: CPU per row | one core busy at | rows/s |")
    print("|---:|---:|---:|---:|---:|---:|")
    with server() as running:
        for count in map(int, options.workers.split(",")):
            cost = measure(count, options.simulate, options.rows, running)
            by_coordinator = options.problem_seconds / cost.coordinator
            by_server = options.problem_seconds / (options.rows * cost.server)
            cells = (
                f"{count}",
                f"{1e3 * cost.coordinator:.1f} ms",
                f"{by_coordinator:,.0f} workers",
                f"{1e3 * cost.server:.2f} ms",
                f"{by_server:,.0f} workers",
                f"{cost.rows_per_s:.0f}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
