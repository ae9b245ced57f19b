"""Everything that needs a GPU, in one command and a given time: facts, verification, searches, peers, tuned records.

    python benchmarks/gpu.py --minutes 8 --out reports/out/gpu            on a machine with a GPU
    python benchmarks/gpu.py --minutes 8 --plan                           what that would do, on any machine
    python benchmarks/gpu.py --minutes 2 --out … --small                  the same, with small problems and few tries
    python benchmarks/gpu.py --minutes 2 --out … --simulate               … and on a device that is not there

Steps are ordered by what they tell: after verification the defaults of all implementations race on the problems that
have figures to reach, then two of these are searched and compared with peers, then every operator gets a record, then
these meet their peers, and only then comes more. What is known is written as it comes (results.json, times.txt,
log.txt, tuned/, peers/, report.html), with --archive as one file too; a second call with the same --out goes on where
the first was stopped.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_steps as steps
import gpu_tables as tables
import gpu_tests as tests
from gpu_plan import Planned, plan
from gpu_run import Run

from tuner import bench, operators
from tuner.errors import TunerError
from tuner.spec.problem import to_fields

_PROVED = 0.2  # of the time, by whose end the tests of the emulator's conformance are waited for no longer
_PATIENCE_S = 60.0  # for peers, at least: torch compiles for each shape, and to be cut short costs all of it twice


def everything(run: Run, only: Sequence[str]) -> None:
    first, later = plan(only, small=run.small)
    run.step("device", lambda: steps.device(run))
    prove(run, first)
    carry_out(run, first)
    if run.exclusive:
        run.step("conformance", lambda: alone(run, tests.CONFORMANCE))
    if not run.simulate:
        run.step("measuring", lambda: alone(run, tests.MEASURING))
    carry_out(run, later, whole=True)


def alone(run: Run, which: tests.Tests) -> dict[str, Any]:
    """Tests that have the device to themselves."""
    run.worker.rest()
    with tests.begun(which, run.out) as started:
        return tests.outcome(which, run.out, started, run.left_s)


def prove(run: Run, first: Sequence[Planned]) -> None:
    """Every implementation on its edge cases and, beside that, the tests of the emulator's conformance.

    On a GPU that one process at a time may open, these are behind all else that is planned first.
    """
    tested = run.simulate or run.exclusive or run.done("conformance")
    with nullcontext() if tested else tests.begun(tests.CONFORMANCE, run.out, side_by_side=True) as started:
        listed = {(each.operator.name, each.problem): (each.operator, each.problem) for each in first}
        run.step("compiled", lambda: steps.compiled(run, list(listed.values())))
        for name in dict.fromkeys(name for name, _ in listed):
            given = next(found for found in listed.values() if found[0].name == name)
            run.step(f"verification {name}", lambda given=given: steps.verification(run, *given))
        if started:
            left_s = run.until(_PROVED)
            run.step("conformance", lambda: tests.outcome(tests.CONFORMANCE, run.out, started, left_s))
    if not run.simulate:
        run.step("matmul", lambda: steps.matmul(run))


def carry_out(run: Run, listed: Sequence[Planned], *, whole: bool = False) -> None:
    """Each step with its share of the time that is left; one that is quicker leaves its rest to the next.

    Of a `whole` list no step gets less than its seconds: what does not fit waits for another call.
    """
    for i, each in enumerate(listed):
        if run.left_s <= (each.seconds if whole else 0) or run.done(each.name):
            continue
        open_ = sum(other.seconds for other in listed[i:] if not run.done(other.name))
        share = each.seconds / open_ * run.left_s
        STEPS[each.kind](run, each, max(share, each.seconds) if whole else share)


def defaults(run: Run, each: Planned, _: float) -> None:
    if run.step(each.name, lambda: steps.defaults(run, each.operator, each.problem)):
        run.show("times", lambda: tables.write(run))


def search(run: Run, each: Planned, seconds: float) -> None:
    if run.step(each.name, lambda: steps.search(run, each.operator, each.problem, seconds)):
        run.show("report", lambda: steps.report(run))
        run.show("times", lambda: tables.write(run))
        of = bench.spelled(each.operator.name, to_fields(each.problem))
        for kind in each.operator.input_kinds:
            run.results.steps.pop(f"peers {each.operator.name} {of}, {kind}", None)  # of another record


def compare(run: Run, each: Planned, seconds: float) -> None:
    patience_s = max(seconds, _PATIENCE_S)
    if run.step(each.name, lambda: steps.beside_peers(run, each.operator, each.problem, each.inputs, patience_s)):
        group = f"{each.group or each.kind} {each.operator.name}"
        run.show("page", lambda: steps.page(run, group))


def verify_dtypes(run: Run, each: Planned, _: float) -> None:
    """The other dtypes of an operator."""
    for dtype in type(each.problem).__dataclass_fields__["dtype"].metadata["choices"]:
        if dtype is not each.problem.dtype:
            other = replace(each.problem, dtype=dtype)
            name = f"verification {each.operator.name} {dtype.value}"
            run.step(name, lambda p=other: steps.verification(run, each.operator, p))


STEPS: dict[str, Callable[[Run, Planned, float], None]] = {
    "defaults": defaults,
    "search": search,
    "peers": compare,
    "dtypes": verify_dtypes,
}


def outline(minutes: float, only: Sequence[str], *, small: bool) -> str:
    """What calls of so many minutes would do, with the second at which each step begins if all take their time."""
    first, later = plan(only, small=small)
    whole = 60 * minutes
    at = whole * _PROVED
    scale = (whole - at) / sum(each.seconds for each in first)
    lines = ["    0 s  device, verification of every implementation, conformance"]
    for each in first:
        lines.append(f"{at:5.0f} s  {each.name}")
        at += scale * each.seconds
    call, at = 1, whole
    for each in later:
        if at + each.seconds > whole:
            call, at = call + 1, 0.0
            lines.append(f"with more time, or in call {call}:")
        lines.append(f"{at:5.0f} s  {each.name}")
        at += each.seconds
    return "\n".join(lines)


def main() -> int:
    given = _parser().parse_args()
    if given.plan:
        print(outline(given.minutes, given.only, small=given.small))
        return 0
    try:
        with ExitStack() as stack:
            run = Run(
                given.out,
                given.minutes,
                stack,
                small=given.small or given.simulate,
                simulate=given.simulate,
                archive=given.archive,
            )
            everything(run, given.only)
    except TunerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(tables.text(run))
    return 1 if any("error" in data for data in run.results.steps.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="stop beginning new steps after this long")
    parser.add_argument(
        "--out", type=Path, default=steps.ROOT / "reports" / "out" / "gpu", help="where everything is written"
    )
    parser.add_argument("--archive", type=Path, help="a .tar.gz of all that, kept up to date as the run goes on")
    parser.add_argument("--small", action="store_true", help="small problems and few tries: does it all work here?")
    parser.add_argument("--simulate", action="store_true", help="the same on a simulated device")
    parser.add_argument("--only", action="append", default=[], choices=operators.names(), help="these operators")
    parser.add_argument("--plan", action="store_true", help="print the order of the steps, and do nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
