"""Measure how the cost of records and attempts grows with their number: CPU time and memory, each step in its own
process.

    python benchmarks/growth.py                        # 100 to 100,000 records; about two minutes
    python benchmarks/growth.py --attempts 1000000     # and up to as many attempts

Records are spread over 16 operators with four kernels each; `one kernel` has all of them in one kernel, which is the
worst case for the index. A first call opens a snapshot and finds the record of a problem that is not stored, in a
process that has imported NumPy and the modules, as in applications. `nearest` is a look-up of another such problem
whose record was parsed before.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.base.canonical_json import encode
from tuner.results.attempt import Attempt, Evidence, Identity, Prediction, Resources
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict

OPERATORS = 16
BATCH = 10_000  # attempts in one transaction


def attempt(rng: random.Random, operators: int, kernels: int) -> Attempt:
    kernel = rng.randrange(kernels)
    sizes = {"batch": rng.randrange(1, 256), "seq_len": rng.randrange(1, 65536), "heads": rng.randrange(1, 64)}
    problem = {**sizes, "causal": kernel % 2 == 0, "dtype": ("bf16", "fp16")[kernel // 2]}
    operator = f"operator_{rng.randrange(operators):02d}"
    named = Identity(operator, "fast", encode(problem), "H200", "5eed", "-arch=sm_90a", "nvrtc 13.4", "predicted/1")
    config = {"BT": 64, "swizzle": True, "stages": rng.randrange(9)}
    used = Resources(168, 0, 49152, 128, 2, "registers", "ab12")
    return Attempt(named, config, None, used, Prediction(rng.random(), {"mma": 2.5, "barriers": 1.0}, "mma", "1"))


def record(rng: random.Random, operators: int, kernels: int) -> TuningRecord:
    tried = attempt(rng, operators, kernels)
    verdict = Verdict((OutputError("o", 0.001, 0.01, 0.004, 0.1),), checks=("T=63 seed=1",))
    assert tried.resources is not None
    about = (tried.resources, tried.prediction, None)
    created = "2026-11-21T10:00:00+00:00"
    return TuningRecord(tried.identity, tried.config, Evidence.PREDICTED, verdict, *about, 0.03, 128, "0.1.0", created)


def fill(folder: Path, count: int, operators: int, kernels: int) -> dict[str, float]:
    """Import `count` records into a new database."""
    from tuner.store import record_lines
    from tuner.store.sql import Store

    rng = random.Random(count)
    record_lines.write(folder / "records.jsonl", (record(rng, operators, kernels) for _ in range(count)))
    with Store.open(folder / "tuner.db") as store:
        began = time.process_time()
        new = store.import_jsonl(folder / "records.jsonl")
        return {"records": new, "import_per_s": new / (time.process_time() - began)}


def look_up(folder: Path, _: int, operators: int, kernels: int) -> dict[str, float]:
    """Make the first call of an application, then others at sizes that are not stored."""
    import numpy  # noqa: F401

    import tuner.store.nearest_records  # noqa: F401
    from tuner.store.records import Query, Snapshot

    rng = random.Random(0)
    stored = record(rng, operators, kernels)
    began = time.process_time()
    problem = json.loads(stored.identity.problem)
    query = Query(stored.identity.operator, problem, "H200", "sm_90a", ("causal", "dtype"))
    snapshot = Snapshot.load([folder / "tuner.db"])
    match = snapshot.find(replace(query, problem=problem | {"seq_len": 70_000}), lambda _: None)
    first = time.process_time() - began
    assert match is not None
    nearby = snapshot.nearby(query, lambda _: None)
    sizes = [(rng.randrange(1, 256), rng.randrange(1, 64), rng.randrange(1, 65536)) for _ in range(500)]  # by name
    seconds = [sum(_timed(nearby.nearest, each) for each in sizes) / len(sizes) for _ in range(2)]
    return {"first_call_s": first, "nearest_parsed_us": seconds[0] * 1e6, "nearest_us": seconds[1] * 1e6}


def _timed(call: Any, argument: Any) -> float:
    began = time.process_time()
    call(argument)
    return time.process_time() - began


def try_many(folder: Path, count: int, operators: int, kernels: int) -> dict[str, float]:
    """Append attempts, then read those of one problem, as a search does when it starts."""
    from tuner.store.sql import Store

    rng = random.Random(count)
    with Store.open(folder / "attempts.db") as store:
        began = time.process_time()
        for first in range(0, count, BATCH):
            batch = [attempt(rng, operators, kernels) for _ in range(min(BATCH, count - first))]
            store.append(batch)
        appended = time.process_time()
        one = batch[-1].identity
        found = store.attempts(one.operator, one.problem, one.gpu)
        assert found
        return {"append_per_s": count / (appended - began), "one_problem_s": time.process_time() - appended}


STEPS = {"fill": fill, "look_up": look_up, "try_many": try_many}


def measured(step: str, folder: Path, count: int, operators: int, kernels: int) -> dict[str, float]:
    """Return the results of a step in a separate process, and the peak memory of that process."""
    command = [sys.executable, __file__, "--step", step, str(folder), str(count), str(operators), str(kernels)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    reported: dict[str, float] = json.loads(done.stdout)
    return reported


def rows(counts: list[int], attempts: int) -> Iterator[str]:
    yield "| records | in | import, records/s | first call, CPU s | MB | nearest, µs | and its record parsed, µs |"
    yield "|---:|---|---:|---:|---:|---:|---:|"
    for count in counts:
        for operators, kernels, spread in ((OPERATORS, 4, "16 operators"), (1, 1, "one kernel")):
            with tempfile.TemporaryDirectory() as folder:
                filled = measured("fill", Path(folder), count, operators, kernels)
                used = measured("look_up", Path(folder), count, operators, kernels)
            cells = [f"{filled['records']:,}", spread, f"{filled['import_per_s']:,.0f}", f"{used['first_call_s']:.2f}"]
            cells += [f"{used['mb']:.0f}", f"{used['nearest_us']:.0f}", f"{used['nearest_parsed_us']:.0f}"]
            yield f"| {' | '.join(cells)} |"
    if attempts:
        yield "\n| attempts | appended/s | one problem's, CPU s | MB |\n|---:|---:|---:|---:|"
    for count in [10**power for power in range(3, 7) if 10**power <= attempts]:
        with tempfile.TemporaryDirectory() as folder:
            tried = measured("try_many", Path(folder), count, OPERATORS, 4)
        yield f"| {count:,} | {tried['append_per_s']:,.0f} | {tried['one_problem_s']:.3f} | {tried['mb']:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument(
        "--attempts", type=int, default=0, help="maximum number of attempts, starting at 1,000 [default: none]"
    )
    parser.add_argument("--step", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        name, folder, *numbers = given.step
        reported = STEPS[name](Path(folder), *map(int, numbers))
        print(json.dumps(reported | {"mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    for row in rows(given.records, given.attempts):
        print(row, flush=True)


if __name__ == "__main__":
    main()
