"""Records that ship: search the problems of db/shapes.toml, on this machine without any of the GPUs.

    python benchmarks/ship_records.py search                   # `make records`: all that has no current record yet
    python benchmarks/ship_records.py search --gpu sm_90a --order 1 --seconds 3600
    python benchmarks/ship_records.py refresh                  # keep the records of which only comments have changed
    python benchmarks/ship_records.py stale                    # which records were made with other source, by name
    python benchmarks/ship_records.py table                    # the predicted gain over defaults, for db/README.md
    python benchmarks/ship_records.py first-call               # what they add to the first call of a process

A search resumes where it stopped: a problem with a current record is left out, and the attempts of one that was
interrupted are in build/records.db. A record is kept where only comments of its source have changed. If the new source
compiles to the same machine code, it is verified again and kept; else its problem is searched again. Implementations
that no device has confirmed are left out, so that nothing unconfirmed runs without the user's own search.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import gpu_path  # noqa: F401  # before the package is imported

from tuner import __version__, operators
from tuner.arch import GPU, gpu
from tuner.base.assets import DB, ROOT
from tuner.base.canonical_json import decode
from tuner.base.fields import formatted
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.dispatcher import config_choice
from tuner.errors import StoreError, TunerError, UsageError
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.check.verdict_cache import VerdictCache
from tuner.evaluate.predictor import Predictor
from tuner.results.attempt import Evidence
from tuner.results.record import TuningRecord
from tuner.search.request import SearchRequest
from tuner.search.session import Session, predicted
from tuner.spec.command_line import minimal_fields
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.operator import Implementation, Operator
from tuner.spec.problem import canonical, from_fields
from tuner.store import locations, record_lines
from tuner.store.records import Snapshot
from tuner.store.sql import Store

SHAPES = DB / "shapes.toml"
WORK = ROOT / "build" / "records.db"
CODES = "code.json"  # in the folder of the records: source digest → code digest
_LITERAL_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
LIMIT = 5_000_000  # bytes of all files together


@dataclass(frozen=True)
class Shape:
    """A problem that should have a record for every GPU."""

    operator: Operator[Any]
    problem: Any
    models: str
    order: int


@dataclass(frozen=True)
class Shapes:
    """The contents of db/shapes.toml."""

    gpus: tuple[GPU, ...]
    budget: int  # tries per problem
    shapes: tuple[Shape, ...]  # each problem once, sorted by order


def read(path: Path = SHAPES) -> Shapes:
    """Return the shape in an entry. Raises UsageError if it is no problem of its operator."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    found: dict[object, Shape] = {}
    for number, entry in enumerate(data["shapes"], start=1):
        operator = operators.load(entry["operator"])
        axes = {name: value if isinstance(value, list) else [value] for name, value in entry["fields"].items()}
        for values in product(*axes.values()):
            fields = dict(zip(axes, values, strict=True))
            try:
                problem = from_fields(operator.problem, fields)
            except (TunerError, TypeError, ValueError) as error:
                raise UsageError(
                    f"{path}, shape {number}: {fields} is no problem of {operator.name}: {error}"
                ) from error
            shape = Shape(operator, problem, entry["models"], entry["order"])
            found.setdefault((operator.name, canonical(problem)), shape)
    ordered = sorted(found.values(), key=lambda shape: shape.order)
    return Shapes(tuple(map(gpu, data["gpus"])), data["budget"], tuple(ordered))


@dataclass(frozen=True)
class ProvenOnly(SearchRequest):
    """A search without implementations that no device has confirmed."""

    @property
    def implementations(self) -> tuple[Implementation[Any, Any], ...]:  # type: ignore[override]
        return proven(self.operator, self.problem, self.gpu)


def proven(operator: Operator[Any], problem: Any, target: GPU) -> tuple[Implementation[Any, Any], ...]:
    serving = (one for one in operators.implementations(operator.name) if not one.unproven)
    return tuple(one for one in serving if one.refusal(problem, target.arch) is None)


# ---- the files ----


def file_of(operator: str, target: str, folder: Path = locations.SHIPPED) -> Path:
    return folder / operator / f"{target}.jsonl"


def shipped(folder: Path = locations.SHIPPED) -> list[TuningRecord]:
    return [record for path in sorted(folder.glob("*/*.jsonl")) for record in record_lines.read(path)]


def stale(records: Sequence[TuningRecord]) -> dict[str, str]:
    """Yield the records that the current code does not serve, with the reason."""
    refusals = ((record, config_choice.refusal(record)) for record in records)
    return {name_of(record): why for record, why in refusals if why is not None}


def name_of(record: TuningRecord) -> str:
    of = record.identity
    operator = operators.load(of.operator)
    try:
        fields = minimal_fields(from_fields(operator.problem, decode(of.problem)))
    except (TunerError, TypeError, ValueError):
        fields = decode(of.problem)
    return f"{of.operator} on {of.gpu}: {formatted(fields) or 'defaults'}"


def put(record: TuningRecord, folder: Path = locations.SHIPPED) -> None:
    """Replace the record of the same problem. Raises StoreError if the files exceed the limit for shipping."""
    path = file_of(record.identity.operator, record.identity.gpu, folder)
    others = [other for other in _stored(path) if other.identity.problem != record.identity.problem]
    record_lines.write(path, [*others, record])
    total = sum(file.stat().st_size for file in folder.glob("*/*.jsonl"))
    if total > LIMIT:
        raise StoreError(f"the records that ship have {total:,} bytes, of {LIMIT:,}: remove shapes from {SHAPES}")


def _instance(record: TuningRecord) -> Instance:
    of = record.identity
    return operators.instance(InstanceFields(of.operator, of.implementation, decode(of.problem), record.config))


def code_digest(source: Source) -> str:
    """A digest of a source and its headers without comments and empty lines, with runs of blanks as one."""
    texts = [("", source.text), *source.headers]
    parts = [source.target, *source.flags, *source.constants, *source.entries]
    return sha256(
        "\0".join([*parts, *(f"{name}\0{_without_comments(text)}" for name, text in texts)]).encode()
    ).hexdigest()


def _without_comments(text: str) -> str:
    kept = _LITERAL_OR_COMMENT.sub(lambda match: match[0] if match[0][0] in "\"'" else " ", text)
    return "\n".join(filter(None, (" ".join(line.split()) for line in kept.split("\n"))))


def note_codes(folder: Path = locations.SHIPPED) -> None:
    """Store the code digest of every current record beside its source digest, for `refresh`."""
    earlier, codes = _codes(folder), dict[str, str]()
    for record in shipped(folder):
        source = record.identity.source
        if source in earlier:
            codes[source] = earlier[source]
        elif config_choice.refusal(record) is None:
            codes[source] = code_digest(render(_instance(record)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CODES).write_text(json.dumps(codes, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def _codes(folder: Path) -> dict[str, str]:
    path = folder / CODES
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def refresh(folder: Path = locations.SHIPPED) -> int:
    """Keep the records of which only comments have changed, with today's source digest. Returns their number."""
    codes, kept = _codes(folder), 0
    for record in shipped(folder):
        if config_choice.refusal(record) is None or record.identity.source not in codes:
            continue
        try:
            source = render(_instance(record))
        except (TunerError, LookupError, TypeError, ValueError, ArithmeticError):
            continue
        if code_digest(source) == codes[record.identity.source]:
            put(replace(record, identity=replace(record.identity, source=source.digest), signature=""), folder)
            kept += 1
    note_codes(folder)
    return kept


def drop(record: TuningRecord, folder: Path = locations.SHIPPED) -> None:
    path = file_of(record.identity.operator, record.identity.gpu, folder)
    others = [other for other in _stored(path) if other.identity.problem != record.identity.problem]
    if others:
        record_lines.write(path, others)
    else:
        path.unlink(missing_ok=True)


def _stored(path: Path) -> list[TuningRecord]:
    return list(record_lines.read(path)) if path.exists() else []


# ---- searching ----


class Searches:
    """Searches for one GPU."""

    def __init__(self, target: GPU, store: Store, compiler: Compiler, checker: Checker, budget: int) -> None:
        self._target, self._budget = target, budget
        self._predictor = Predictor(target, compiler, checker)
        self._session = Session(store, predicted(target, compiler, checker))

    def record(self, shape: Shape, earlier: TuningRecord | None) -> tuple[TuningRecord | None, str]:
        """Return the record of a problem, and what was done to obtain it."""
        if earlier is not None and (kept := self._same_code(earlier)):
            return kept, "verified again: its machine code is the same"
        request = ProvenOnly(shape.operator, shape.problem, self._target, budget=self._budget, command="make records")
        outcome = self._session.search(request, lambda _: None, lambda: False)
        return outcome.record, f"searched: {len(outcome.tried)} configs, {outcome.why_stopped}"

    def _same_code(self, earlier: TuningRecord) -> TuningRecord | None:
        """Return the record with the current source, if the change left the machine code unchanged and its check
        passes.
        """
        of = earlier.identity
        try:
            fields = InstanceFields(of.operator, of.implementation, decode(of.problem), earlier.config)
            instance = operators.instance(fields)
            space = instance.implementation.space(instance.problem, self._target.arch)
            if space.refusal(instance.config) is not None:
                return None
            ((_, attempt),) = self._predictor.try_all([instance])
        except TunerError:
            return None
        if attempt.resources is None or attempt.resources.sass_digest != earlier.resources.sass_digest:
            return None
        ((_, verdict),) = self._predictor.check([instance])
        if not verdict.ok:
            return None
        created = datetime.now(UTC).isoformat(timespec="seconds")
        new = {"identity": attempt.identity, "resources": attempt.resources, "prediction": attempt.prediction}
        return replace(earlier, **new, verdict=verdict, tuner=__version__, created=created, signature="")


def search(
    asked: Shapes, targets: Sequence[GPU], orders: range, seconds: float, workers: int, folder: Path = locations.SHIPPED
) -> None:
    """Give every problem a current record, those of order 1 on all GPUs first. No search starts after `seconds`."""
    deadline = time.monotonic() + seconds
    refresh(folder)
    existing = {(r.identity.operator, r.identity.problem, r.identity.gpu): r for r in shipped(folder)}
    WORK.parent.mkdir(parents=True, exist_ok=True)
    with (
        Store.open(WORK) as store,
        Compiler(workers) as compiler,
        Checker(workers, known=VerdictCache.of_user()) as checker,
    ):
        searches = {target.name: Searches(target, store, compiler, checker, asked.budget) for target in targets}
        for shape, target in _turns(asked.shapes, targets, orders):
            if time.monotonic() > deadline:
                print("stopped: its time is over; the same command goes on from here")
                return
            earlier = existing.get((shape.operator.name, canonical(shape.problem), target.name))
            if earlier is not None and config_choice.refusal(earlier) is None:
                continue
            if not proven(shape.operator, shape.problem, target):
                continue
            began = time.monotonic()
            record, how = searches[target.name].record(shape, earlier)
            if record is not None and record.evidence is Evidence.PREDICTED:
                put(record, folder)
                note_codes(folder)
            elif earlier is not None:
                drop(earlier, folder)
            named = formatted(minimal_fields(shape.problem)) or "defaults"
            print(
                f"{shape.operator.name} on {target.name}: {named}: {how} ({time.monotonic() - began:.0f} s)", flush=True
            )


def _turns(shapes: Sequence[Shape], targets: Sequence[GPU], orders: range) -> Iterator[tuple[Shape, GPU]]:
    for order in sorted({shape.order for shape in shapes} & set(orders)):
        for target in targets:
            yield from ((shape, target) for shape in shapes if shape.order == order)


# ---- the table ----


def gains(records: Sequence[TuningRecord], workers: int) -> Iterator[tuple[TuningRecord, str, float]]:
    """Yield each record with what an untuned call runs, and how much higher its predicted cost is (0.5 is 50 %)."""
    none = Snapshot.load([])
    with Compiler(workers) as compiler, Checker(1) as checker:
        for record in records:
            of, target = record.identity, gpu(record.identity.gpu)
            fields = InstanceFields(of.operator, of.implementation, decode(of.problem), record.config)
            winner = operators.instance(fields)
            untuned = config_choice.choose(winner.operator, winner.problem, [target], none).instance
            costs = dict(_costs(Predictor(target, compiler, checker), [winner, untuned]))
            if None not in costs.values():
                yield record, untuned.implementation.name, costs[1] / costs[0] - 1


def _costs(predictor: Predictor, configs: Sequence[Instance]) -> Iterator[tuple[int, Any]]:
    for position, attempt in predictor.try_all(configs):
        yield position, attempt.value


def table(workers: int) -> Iterator[str]:
    """Return the number of problems per operator with a record for each GPU, and the median of their gains."""
    grouped: dict[tuple[str, str], list[float]] = {}
    for record, _, gain in gains([record for record in shipped() if config_choice.refusal(record) is None], workers):
        grouped.setdefault((record.identity.operator, record.identity.gpu), []).append(gain)
    yield "| operator | GPU | problems | median predicted gain | largest |"
    yield "|---|---|---:|---:|---:|"
    for (operator, target), values in sorted(grouped.items()):
        yield f"| `{operator}` | {target} | {len(values)} | {statistics.median(values):.0%} | {max(values):.0%} |"


# ---- the first call ----

FIRST = """
import sys, time
from tuner import arch, operators
from tuner.dispatcher import choice
from tuner.store.records import Snapshot

operator = operators.load("flash_attention")
problem = operator.problem(causal=True, batch=1, heads=32, kv_heads=8, seq_q=5000)
began = time.process_time()
records = Snapshot.load(sys.argv[1:])
loaded = time.process_time()
chosen = choice.choose(operator, problem, [arch.gpu("A100")], records)
print(1e3 * (loaded - began), 1e3 * (time.process_time() - loaded), chosen.why, sep="|")
"""


def first_call() -> Iterator[str]:
    """Return the CPU time of loading the records and choosing the first kernel: the minimum of five processes."""
    yield "| records | loading, CPU ms | the first choice, CPU ms | what it runs |"
    yield "|---|---:|---:|---|"
    for what, sources in (("none", []), ("those that ship", [str(locations.SHIPPED)])):
        command = [sys.executable, "-c", FIRST, *sources]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("|") for _ in range(5)]
        loading, choosing = (min(float(run[column]) for run in runs) for column in (0, 1))
        yield f"| {what} | {loading:.1f} | {choosing:.1f} | {runs[0][2].strip()} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "refresh", "stale", "table", "first-call"])
    parser.add_argument("--gpu", action="append", help="only this architecture [default: all of the file]")
    parser.add_argument("--operator", action="append", help="only this operator [default: all of the file]")
    parser.add_argument("--order", type=int, default=0, help="only shapes of this order [default: all]")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no problem after so long")
    parser.add_argument("--budget", type=int, help="tries a problem [default: of the file]")
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1), help="processes")
    options = parser.parse_args()
    asked = read()
    asked = replace(asked, budget=options.budget or asked.budget)
    if options.operator:
        asked = replace(asked, shapes=tuple(shape for shape in asked.shapes if shape.operator.name in options.operator))
    if options.what == "search":
        targets = tuple(map(gpu, options.gpu)) if options.gpu else asked.gpus
        orders = range(options.order, options.order + 1) if options.order else range(1, 100)
        search(asked, targets, orders, options.seconds, options.workers)
    elif options.what == "refresh":
        print(f"{refresh()} records kept: only comments of their source have changed")
    elif options.what == "stale":
        for name, why in stale(shipped()).items():
            print(f"{name}: {why}")
    else:
        for row in first_call() if options.what == "first-call" else table(options.workers):
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
