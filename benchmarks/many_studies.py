"""What 20,000 studies and records cost `tuner show` and the start of a search: CPU seconds beyond an empty database.

    python benchmarks/many_studies.py                      # SQLite, and PostgreSQL where a server is installed
    python benchmarks/many_studies.py --count 1000

Each command runs in a process of its own, first on an empty database and then on the filled one, twice, and the
least CPU time of the process and its children counts. The search is of a problem of its own with a budget of one try,
whose kernel is in the cache: what differs is what it reads of the database. The studies are of one operator, as the
search is, each of another problem; `tuner show` prints what it prints on a terminal that is not there.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_path  # noqa: F401  # before the package is imported
from sqlalchemy import insert

from tests.support.store_factory import record
from tuner import operators
from tuner.spec.problem import canonical
from tuner.store import record_lines
from tuner.store.sql import Store
from tuner.store.sql.schema import STUDIES

OPERATOR = "linear_attention"
SEARCH = ("search", OPERATOR, "--gpu", "sm_80", "--seq-len", "512", "--heads", "2", "--budget", "1", "--quiet")
COMMANDS = {"tuner show": ("show",), "a search's start": (*SEARCH, "--implementation", "sequential", "--workers", "1")}
RUNS = 2


def fill(place: str, count: int) -> None:
    """Store studies of `count` problems, with an attempt and a record each."""
    operator = operators.load(OPERATOR)
    problems = [canonical(operator.problem(seq_len=1024 + number)) for number in range(count)]
    with Store.open(place) as store, tempfile.TemporaryDirectory() as folder:
        base = record()
        listed = (
            replace(base, identity=replace(base.identity, operator=OPERATOR, problem=problem, gpu="H200"))
            for problem in problems
        )
        record_lines.write(Path(folder) / "records.jsonl", listed)
        store.import_jsonl(Path(folder) / "records.jsonl")
        about = {"operator": OPERATOR, "gpu": "H200", "command": "", "seed": 0, "method": "gp", "effort": "quick"}
        about |= {"budget": 32, "versions": "{}", "started": base.created, "ended": base.created, "why": "the budget"}
        rows = [{**about, "problem": problem, "uuid": f"{number:032x}"} for number, problem in enumerate(problems)]
        store._database.write(lambda connection: connection.execute(insert(STUDIES), rows))


def cpu_seconds(words: tuple[str, ...], place: str) -> float:
    """Return the minimum CPU time of several runs of a command."""
    taken = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "tuner", *words, "--db", place]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


@contextmanager
def sqlite() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"{folder}/empty.db", f"{folder}/filled.db"


@contextmanager
def postgres() -> Iterator[tuple[str, str]]:
    from tests.support.postgres import server

    with server() as running:
        yield running.database(), running.database()


def kinds() -> Iterator[tuple[str, Any]]:
    yield "SQLite", sqlite()
    try:
        from tests.support.postgres import binaries

        installed = binaries() is not None
    except ModuleNotFoundError:  # psycopg
        installed = False
    yield "PostgreSQL", postgres() if installed else nullcontext()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="studies, and records")
    count = parser.parse_args().count
    print(f"| {count:,} studies and records | command | empty, CPU s | filled, CPU s | beyond empty, CPU s |")
    print("|---|---|---:|---:|---:|")
    for kind, places in kinds():
        with places as opened:
            if opened is None:
                print(f"| {kind} | no server here (apt-get install postgresql; pip install '.[postgres]') | | | |")
                continue
            empty, filled = opened
            with Store.open(empty):
                pass
            fill(filled, count)
            for name, words in COMMANDS.items():
                without, with_ = cpu_seconds(words, empty), cpu_seconds(words, filled)
                print(f"| {kind} | {name} | {without:.2f} | {with_:.2f} | {with_ - without:.2f} |", flush=True)


if __name__ == "__main__":
    main()
