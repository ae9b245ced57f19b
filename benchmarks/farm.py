"""What the coordinator of a farm costs: problems whose searches are simulated, on real workers and a real PostgreSQL.

    python benchmarks/farm.py --workers 1,2 --simulate 1000

A simulated problem stores what a search of `--rows` tries stores: a study, a row an attempt, a verdict, a record.
Printed are the CPU of this process a problem, rows a second, and the number of workers at which each binds if a problem
takes a worker `--problem-seconds`.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gpu_path  # noqa: F401  # the checkout that this program is in

from tuner import operators
from tuner.arch import gpu
from tuner.errors import MachineError
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.search import fleet
from tuner.search.many_problems import CampaignRequest
from tuner.search.portfolio import Terms
from tuner.search.request import SearchRequest


def measure(workers: int, problems: int, rows: int, place: Callable[[], str]) -> tuple[float, float, float]:
    """(CPU seconds of this process a problem, rows a second, problems a second)."""
    from tests.support import farm as processes
    from tests.support.simulated_units import simulate
    from tuner.farm.client import Farm
    from tuner.farm.resources import NO_GPU, Description
    from tuner.search.code_version import code_here

    operator, db = operators.load("flash_attention"), place()
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
        used, began = _cpu(), time.monotonic()
        results = opened.results(searches, lambda: False)
        used, seconds = _cpu() - used, time.monotonic() - began
    failed = [result.error for result in results.values() if not result.record]
    assert not failed, failed[0]
    return used / problems, problems * rows / seconds, problems / seconds


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2", help="numbers of workers, such as 1,2")
    parser.add_argument("--simulate", type=int, default=1000, metavar="N", help="problems")
    parser.add_argument("--rows", type=int, default=32, metavar="N", help="attempts of a problem: --effort quick")
    parser.add_argument("--problem-seconds", type=float, default=30.0, metavar="N", help="what a real one takes")
    options = parser.parse_args()
    from tests.support.postgres import binaries, server

    if binaries() is None:
        raise MachineError("no PostgreSQL server here (apt-get install postgresql)")
    print("| workers | coordinator's CPU a problem | rows/s | the coordinator binds at | the store binds at least at |")
    print("|---|---|---|---|---|")
    with server() as running:
        for count in map(int, options.workers.split(",")):
            cpu, rows, _ = measure(count, options.simulate, options.rows, running.database)
            by_cpu, by_store = options.problem_seconds / cpu, rows * options.problem_seconds / options.rows
            print(
                f"| {count} | {1e3 * cpu:.1f} ms | {rows:.0f} | {by_cpu:.0f} workers | {by_store:.0f} workers |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
