"""Measure how the cost of records and attempts grows with their number: CPU time and memory, each step in its own
process.

    python benchmarks/growth.py                        # 100 to 100,000 records; about four minutes
    python benchmarks/growth.py --attempts 1000000     # and up to as many attempts; ten minutes more
    python benchmarks/growth.py --records 1000 --sampler --report 500

Records are spread over 16 operators with four kernels each; `one kernel` has all of them in one kernel, which is the
worst case for the index. A first call opens a snapshot and finds the record of a problem that is not stored, in a
process that has imported NumPy and the modules, as in applications. `nearest` is a look-up of another such problem
whose record was parsed before, `far` one of sizes beyond all that are stored. `show` is the whole command with the
filters for an operator and a GPU, and `--limit 20`.

Attempts are copies of those of one search, sixteen for each problem of linear_attention on an H100 or an H200. `a
search's start` is the CPU time of `tuner search --budget 1` of another problem beyond its time on an empty database.
The sampler searches the space of flash_attention on an H200, whose values are random effects of each parameter and
pair of parameters. The report is of copies of one searched problem with other lengths.

On a machine that others use, CPU time grows as well: `unit` is the time of a loop that adds ten million numbers.
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
from itertools import chain
from pathlib import Path
from typing import Any

from tuner.base.canonical_json import encode
from tuner.results.attempt import Attempt, Evidence, Identity, Prediction, Resources
from tuner.results.record import TuningRecord
from tuner.results.verdict import OutputError, Verdict

OPERATORS = 16
BATCH = 10_000  # attempts in one transaction
SEARCHED = "linear_attention"
PER_PROBLEM = 16  # attempts
TRIES = (32, 128, 512, 1_000, 2_000)  # of the sampler
_SEARCH = ("--heads", "2", "--implementation", "sequential", "--workers", "1", "--quiet")


def attempt(rng: random.Random, operators: int, kernels: int) -> Attempt:
    kernel = rng.randrange(kernels)
    sizes = {"batch": rng.randrange(1, 256), "seq_len": rng.randrange(1, 65536), "heads": rng.randrange(1, 64)}
    problem = {**sizes, "causal": kernel % 2 == 0, "dtype": ("bf16", "fp16")[kernel // 2]}
    number = rng.randrange(operators)
    operator = f"operator_{number:02d}" if number else "flash_attention"  # which `tuner show` accepts as a filter
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
    seconds = [sum(_timed(nearby.nearest, lookup) for lookup in sizes) / len(sizes) for _ in range(2)]
    beyond = [(batch << 10, heads << 10, length << 10) for batch, heads, length in sizes]
    far = [sum(_timed(nearby.nearest, lookup) for lookup in beyond) / len(beyond) for _ in range(2)][1]
    parsed, nearest = seconds
    return {
        "first_call_s": first,
        "nearest_parsed_us": parsed * 1e6,
        "nearest_us": nearest * 1e6,
        "far_us": far * 1e6,
    }


def show(folder: Path, _: int, _operators: int, _kernels: int) -> dict[str, float]:
    words = ("show", "flash_attention", "--gpu", "H200", "--limit", "20")
    return {"show_s": _command_s(*words, "--db", str(folder / "tuner.db"))}


def _command_s(*words: str) -> float:
    """Return the least CPU time of two runs of a command, with its children."""
    taken = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "tuner", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def _timed(call: Any, argument: Any) -> float:
    began = time.process_time()
    call(argument)
    return time.process_time() - began


def searched(database: Path, gpu: str) -> tuple[Any, list[Attempt]]:
    """Search one problem; return its record, and its attempts, repeated up to `PER_PROBLEM`."""
    from tuner.store.sql import Store

    words = ("search", SEARCHED, "--gpu", gpu, "--seq-len", "1024", "--budget", "8", *_SEARCH)
    _command_s(*words, "--db", str(database))
    with Store.open(database) as store:
        attempts = [stored.attempt for stored in store.attempts(SEARCHED)]
        (result,) = store.records()
    return result, (attempts * PER_PROBLEM)[:PER_PROBLEM]


def at_length(identity: Identity, length: int) -> Identity:
    return replace(identity, problem=encode(json.loads(identity.problem) | {"seq_len": length}))


def try_many(folder: Path, count: int, _operators: int, _kernels: int) -> dict[str, float]:
    """Append attempts, read those of one problem, and start a search."""
    from tuner.store.sql import Store

    sources = [searched(folder / f"{gpu}.db", gpu)[1] for gpu in ("H100", "H200")]
    with Store.open(folder / "attempts.db") as store:
        seconds = 0.0
        per_batch = BATCH // PER_PROBLEM
        for first in range(0, count // PER_PROBLEM, per_batch):
            lengths = range(2048 + first, 2048 + min(first + per_batch, count // PER_PROBLEM))
            copies = [
                replace(copied, identity=at_length(copied.identity, length))
                for length in lengths
                for copied in sources[length % 2]
            ]
            _add_studies(store, [copies[PER_PROBLEM * position].identity for position in range(len(lengths))])
            began = time.process_time()
            store.append(copies)
            seconds += time.process_time() - began
        appended = time.process_time()
        one = copies[-1].identity
        assert store.attempts(one.operator, one.problem, one.gpu)
        read_s = time.process_time() - appended
    with Store.open(folder / "empty.db"):
        pass
    words = ("search", SEARCHED, "--gpu", "H200", "--seq-len", "512", "--budget", "1", *_SEARCH)
    # Each run adds its own study, so that the second one finds the attempt of the first.
    empty, filled = (
        _command_s(*words, "--no-resume", "--db", str(folder / f"{name}.db")) for name in ("empty", "attempts")
    )
    return {"append_per_s": count / seconds, "one_problem_s": read_s, "start_s": filled - empty, "empty_s": empty}


def _add_studies(store: Any, identities: list[Identity]) -> None:
    """Add a finished search session for each problem, at once."""
    from uuid import uuid4

    from sqlalchemy import insert

    from tuner.store.sql.schema import STUDIES

    about = {"command": "", "seed": 0, "method": "gp", "effort": "quick", "budget": PER_PROBLEM, "versions": "{}"}
    about |= {"started": "2026-11-21T10:00:00+00:00", "ended": "2026-11-21T10:00:10+00:00", "why": "the budget"}
    rows = [
        {**about, "operator": one.operator, "problem": one.problem, "gpu": one.gpu, "uuid": uuid4().hex}
        for one in identities
    ]
    store._database.write(lambda connection: connection.execute(insert(STUDIES), rows))


def sample(_folder: Path, _count: int, _operators: int, _kernels: int) -> dict[str, float]:
    """Search a space by the Gaussian process; CPU time of a try up to some numbers of tries."""
    import numpy as np

    from tuner import operators as library
    from tuner.arch import gpu
    from tuner.search.sampler import Sampler

    operator = library.load("flash_attention")
    space = library.implementation("flash_attention", "wgmma").space(operator.problem(), gpu("H200").arch)
    rng = np.random.default_rng(0)
    codes = space.codes
    values = np.zeros(len(space))
    for axis in range(codes.shape[1]):
        values += rng.normal(0, 0.1, codes[:, axis].max() + 1)[codes[:, axis]]
        pair = codes[:, axis] * (codes[:, axis - 1].max() + 1) + codes[:, axis - 1]
        values += rng.normal(0, 0.05, pair.max() + 1)[pair]
    sampler, results, tries, began = Sampler(space, seed=0), dict[str, float](), 0, time.process_time()
    for goal in TRIES:
        while tries < goal:
            for index in sampler.ask(1):
                sampler.tell(index, float(np.exp(values[index])))
                tries += 1
        results[f"to_{goal}_ms"] = (time.process_time() - began) / tries * 1e3
    return results | {"configs": len(space)}


def report(folder: Path, count: int, _operators: int, _kernels: int) -> dict[str, float]:
    """Write the report of so many problems."""
    from tuner.store.sql import Store

    result, _ = searched(folder / "one.db", "sm_80")
    lengths = range(1024, 1024 + count)
    with Store.open(folder / "one.db") as one, Store.open(folder / "many.db") as store:
        study = one.studies()[0]  # the search ran twice, with the same options
        stored = one.attempts(SEARCHED)
        verdicts = one.verdicts([row.id for row in stored])
        code = str(study.versions["code"])
        for length in lengths:
            problem = at_length(result.identity, length).problem
            about = {"operator": SEARCHED, "problem": problem, "gpu": study.gpu, "command": "", "seed": 0}
            number = store.begin_study(**about, method="gp", effort="quick", budget=8, versions=study.versions)  # type: ignore[arg-type]
            store.end_study(number, "the budget")
            copies = [replace(row.attempt, identity=at_length(row.attempt.identity, length)) for row in stored]
            for row, copied in zip(stored, store.append(copies, number), strict=True):
                if row.id in verdicts:
                    store.append_verdict(copied, verdicts[row.id], code)
            store.promote(replace(result, identity=at_length(result.identity, length)))
    words = ("report", SEARCHED, "--gpu", "sm_80", "--heads", "2", "--seq-len", ",".join(map(str, lengths)))
    path = folder / "report.html"
    seconds = _command_s(*words, "--db", str(folder / "many.db"), "--out", str(path))
    return {"report_s": seconds, "report_mb": path.stat().st_size / 1e6}


def unit() -> float:
    """Return the CPU time of a loop of fixed length."""
    total, began = 0, time.process_time()
    for number in range(10_000_000):
        total += number
    return time.process_time() - began


STEPS = {"fill": fill, "look_up": look_up, "show": show, "try_many": try_many, "sample": sample, "report": report}


def measured(step: str, folder: Path, count: int, operators: int, kernels: int) -> dict[str, float]:
    """Return the results of a step in a separate process, and the peak memory of that process."""
    command = [sys.executable, __file__, "--step", step, str(folder), str(count), str(operators), str(kernels)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    reported: dict[str, float] = json.loads(done.stdout)
    return reported


def record_rows(counts: list[int]) -> Iterator[str]:
    names = "import, records/s | first call, CPU s | MB | nearest, µs | and its record parsed, µs | far, µs"
    yield f"| records | in | {names} | show, CPU s |"
    yield "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for count in counts:
        for operators, kernels, spread in ((OPERATORS, 4, "16 operators"), (1, 1, "one kernel")):
            with tempfile.TemporaryDirectory() as folder:
                filled, used, shown = (
                    measured(step, Path(folder), count, operators, kernels) for step in ("fill", "look_up", "show")
                )
            cells = [f"{filled['records']:,}", spread, f"{filled['import_per_s']:,.0f}"]
            cells += [f"{used['first_call_s']:.3f}", f"{used['mb']:.0f}", f"{used['nearest_us']:.0f}"]
            cells += [f"{used['nearest_parsed_us']:.0f}", f"{used['far_us']:.0f}", f"{shown['show_s']:.2f}"]
            yield f"| {' | '.join(cells)} |"


def attempt_rows(attempts: int) -> Iterator[str]:
    yield "\n| attempts | appended/s | one problem's, CPU s | a search's start, CPU s | beyond an empty database | MB |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for count in [10**power for power in range(3, 7) if 10**power <= attempts]:
        with tempfile.TemporaryDirectory() as folder:
            tried = measured("try_many", Path(folder), count, OPERATORS, 4)
        cells = [f"{count:,}", f"{tried['append_per_s']:,.0f}", f"{tried['one_problem_s']:.3f}"]
        cells += [f"{tried['empty_s'] + tried['start_s']:.2f}", f"{tried['start_s']:.2f}", f"{tried['mb']:.0f}"]
        yield f"| {' | '.join(cells)} |"


def sampler_rows() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        sampled = measured("sample", Path(folder), 0, 0, 0)
    yield f"\n| sampler, {sampled['configs']:,.0f} configs | {' | '.join(f'{goal:,} tries' for goal in TRIES)} | MB |"
    yield f"|---|{'---:|' * (len(TRIES) + 1)}"
    cells = [f"{sampled[f'to_{goal}_ms']:.1f}" for goal in TRIES]
    yield f"| CPU ms a try, up to | {' | '.join(cells)} | {sampled['mb']:.0f} |"


def report_rows(problems: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        written = measured("report", Path(folder), problems, 0, 0)
    yield "\n| problems in one report | CPU s | MB of HTML |\n|---:|---:|---:|"
    yield f"| {problems:,} | {written['report_s']:.1f} | {written['report_mb']:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="*", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument(
        "--attempts", type=int, default=0, help="maximum number of attempts, from 1,000 [default: none]"
    )
    parser.add_argument("--sampler", action="store_true", help="time the sampler up to 2,000 tries")
    parser.add_argument("--report", type=int, default=0, metavar="N", help="time the report of N problems")
    parser.add_argument("--step", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        name, folder, *numbers = arguments.step
        reported = STEPS[name](Path(folder), *map(int, numbers))
        print(json.dumps(reported | {"mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    print(f"unit: {unit():.2f} s before")
    tables = [record_rows(arguments.records)] if arguments.records else []
    tables += [attempt_rows(arguments.attempts)] if arguments.attempts else []
    tables += [sampler_rows()] if arguments.sampler else []
    tables += [report_rows(arguments.report)] if arguments.report else []
    for row in chain.from_iterable(tables):
        print(row, flush=True)
    print(f"\nunit: {unit():.2f} s after")


if __name__ == "__main__":
    main()
