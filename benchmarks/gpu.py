"""Run everything that needs a GPU within a given time: timer checks, verification, searches, comparisons with peers.

    python benchmarks/gpu.py --minutes 8 --out reports/out/gpu            on a machine with a GPU
    python benchmarks/gpu.py --minutes 8 --plan                           print the steps, on any machine
    python benchmarks/gpu.py --minutes 2 --out … --small                  small problems and few tries
    python benchmarks/gpu.py --minutes 2 --out … --simulate               use a simulated device

Steps are ordered by importance. The timer is checked first against other timers, because all later results depend on
it. Then every implementation is verified. Then kda and flash_attention, which have performance goals, are timed,
searched and compared with peers, followed by the other operators. Each step has a time limit and does not start if less
time is left; when the time is over, the current step is interrupted.

Results are written to disk as they arrive (rows.jsonl), and presented in times.txt, log.txt, tuned/, peers/ and
report.html; --archive also writes one file. A second call with the same --out resumes where the first one stopped.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import gpu_path  # noqa: F401  # before the package is imported
import gpu_plan as plans
import gpu_steps as steps
import gpu_tables as tables
import gpu_tests as tests
import gpu_timer as timer
from gpu_plan import Planned, plan
from gpu_run import Run

from tuner import operators
from tuner.bench.peers import Rehearsed
from tuner.errors import TunerError


def everything(run: Run, only: Sequence[str], nvrtc: str = "") -> None:
    first, later = plan(only, small=run.small)
    run.step("installed", lambda: steps.installed(run), plans.INSTALLED_S)
    run.say(f"the device is {run.gpu.name}")  # raises an error without a device
    run.step("device", lambda: steps.device(run), plans.DEVICE_S)
    judge_timer(run)
    prove(run, first, only, nvrtc)
    carry_out(run, first)
    carry_out(run, later)
    if not run.simulate:
        # Repeat it if there was not enough time at first.
        test(run, "conformance", tests.CONFORMANCE, plans.CONFORMANCE_S)
        test(run, "faults", tests.FAULTS, plans.FAULTS_S)
    run.show("report", lambda: steps.report(run))
    run.show("pages", lambda: steps.pages(run))


def judge_timer(run: Run) -> None:
    if run.exclusive:
        run.worker.rest()
    with steps.judges_of_the_timer() as pool:
        for question in timer.QUESTIONS:
            work = lambda question=question: steps.timed_by_others(run, question, pool)  # noqa: E731
            run.step(f"timer {question.name}", work, question.may_take_s, {"proves": question.proves})


def prove(run: Run, first: Sequence[Planned], only: Sequence[str], nvrtc: str) -> None:
    """Run the tests that need a device, then verify every implementation on its edge cases.

    No benchmarks run during this phase. Our kernels, and peers that compile for a long time, are compiled meanwhile.
    """
    problems = {(step.operator.name, step.problem): (step.operator, step.problem) for step in first}
    compiled = lambda: run.step("compiled", lambda: steps.compiled(run, list(problems.values())), plans.COMPILED_S)  # noqa: E731
    if not run.simulate:
        test(run, "measuring", tests.MEASURING, plans.MEASURING_S)
        beside = nullcontext() if run.exclusive or run.done("conformance") else warming(run, only)
        with beside:
            test(run, "conformance", tests.CONFORMANCE, plans.CONFORMANCE_S, beside=None if run.exclusive else compiled)
        test_again(run, nvrtc)
    compiled()
    for name in dict.fromkeys(name for name, _ in problems):
        first_problem = next(pair for pair in problems.values() if pair[0].name == name)
        work = lambda problem=first_problem: steps.verification(run, *problem)  # noqa: E731
        run.step(f"verification {name}", work, plans.verification_s(name))


def test(
    run: Run, name: str, which: tests.Tests, may_take_s: float, beside: Callable[[], object] | None = None
) -> None:
    """Run tests in a separate pytest, which is killed when its time is over; call `beside` meanwhile."""
    if run.done(name) or run.left_s < may_take_s:
        return
    run.worker.rest()
    with tests.begun(which, run.out, side_by_side=beside is not None) as started:
        ends = run.left_s - may_take_s
        if beside:
            beside()
        left_s = run.left_s - ends
        run.step(name, lambda: tests.outcome(which, run.out, started, left_s), -inf, most_s=left_s)


def test_again(run: Run, nvrtc: str) -> None:
    failed = [name for name in run.rows.steps.get("conformance", {}).get("failed", ()) if "wgmma" in name]
    if failed and nvrtc:
        test(run, "wgmma with another NVRTC", tests.again(failed, nvrtc), plans.AGAIN_S)


def warming(run: Run, only: Sequence[str]) -> Any:
    program = Path(__file__).with_name("gpu_warm.py")
    return tests.beside([sys.executable, str(program), *only], run.out / "warm.txt")


def carry_out(run: Run, steps_planned: Sequence[Planned]) -> None:
    """Run each step that fits, with its share of the remaining time if that is more; unused time goes to the next
    steps.
    """
    waiting = []
    for i, step in enumerate(steps_planned):
        if run.done(step.name):
            continue
        if run.left_s < step.seconds:
            waiting.append(step.name)
            continue
        open_ = sum(other.seconds for other in steps_planned[i:] if not run.done(other.name))
        STEPS[step.kind](run, step, max(step.seconds / open_ * run.left_s, step.seconds))
    if waiting:
        run.say(f"{len(waiting)} steps wait for another call, the first is {waiting[0]}")


def defaults(run: Run, step: Planned, _: float) -> None:
    earlier = steps.known(step.operator, step.problem)
    if run.step(step.name, lambda: steps.defaults(run, step.operator, step.problem), step.seconds, earlier):
        run.show("times", lambda: tables.write(run))


def search(run: Run, step: Planned, seconds: float) -> None:
    earlier = steps.known(step.operator, step.problem)
    work = lambda: steps.search(run, step.operator, step.problem, seconds)  # noqa: E731
    if run.step(step.name, work, step.seconds, earlier, seconds):
        run.show("times", lambda: tables.write(run))
        run.reopen(f"peers {step.operator.name} {step.problem_text}, ")  # the record has changed


def compare(run: Run, step: Planned, seconds: float) -> None:
    most_s = min(max(seconds, step.patience_s), run.left_s)
    work = lambda: steps.beside_peers(run, step.operator, step.problem, step.inputs, most_s)  # noqa: E731
    run.step(step.name, work, step.seconds, most_s=most_s)


def verify_dtypes(run: Run, step: Planned, _: float) -> None:
    """Verify the other dtypes of an operator."""
    for dtype in type(step.problem).__dataclass_fields__["dtype"].metadata["choices"]:
        if dtype is not step.problem.dtype:
            other = replace(step.problem, dtype=dtype)
            name = f"verification {step.operator.name} {dtype.value}"
            work = lambda p=other: steps.verification(run, step.operator, p)  # noqa: E731
            run.step(name, work, plans.verification_s(step.operator.name))


STEPS: dict[str, Callable[[Run, Planned, float], None]] = {
    "defaults": defaults,
    "search": search,
    "peers": compare,
    "dtypes": verify_dtypes,
}


def outline(minutes: float, only: Sequence[str], *, small: bool) -> str:
    """Return the steps of calls with this many minutes, with the start of each step in seconds if all use their full
    time.
    """
    first, later = plan(only, small=small)
    budget_s, at, call, lines = plans.planned_s(60 * minutes), 0.0, 1, list[str]()
    for name, seconds in (*_head(first), *((step.name, step.seconds) for step in (*first, *later))):
        if at + seconds > budget_s:
            call, at = call + 1, 0.0
            lines.append(f"with more time, or in call {call}:")
        lines.append(f"{at:5.0f} s  {name}")
        at += seconds
    return "\n".join(lines)


def _head(first: Sequence[Planned]) -> Iterator[tuple[str, float]]:
    """Yield the steps before any timing, with their time limits in seconds."""
    yield from (("installed", plans.INSTALLED_S), ("device", plans.DEVICE_S))
    yield from ((f"timer {question.name}", question.may_take_s) for question in timer.QUESTIONS)
    yield from (("measuring", plans.MEASURING_S), ("conformance", plans.CONFORMANCE_S))
    for name in dict.fromkeys(step.operator.name for step in first):
        yield f"verification {name}", plans.verification_s(name)


def main() -> int:
    options = _parser().parse_args()
    if options.plan:
        print(outline(options.minutes, options.only, small=options.small))
        return 0
    try:
        with ExitStack() as stack:
            run = Run(
                options.out,
                options.minutes,
                stack,
                small=options.small or options.simulate,
                simulate=options.simulate,
                archive=options.archive,
                guests=_guests(options) if options.simulate else (),
            )
            everything(run, options.only, options.nvrtc)
            print(tables.text(run))
            return int(run.failed)
    except TunerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _guests(options: argparse.Namespace) -> tuple[Rehearsed, ...]:
    """Return simulated peers that are as slow and as faulty as real ones can be."""
    slow = Rehearsed(
        "rehearsed peer that compiles", ready_s=options.peer_compiles, patience_s=90 + options.peer_compiles
    )
    bad = Rehearsed(f"rehearsed peer that {options.peer}", ends=options.peer, patience_s=options.peer_patience)
    return (slow, bad) if options.peer != "ready" else (slow,)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="total time limit; one minute of it is reserved")
    parser.add_argument("--out", type=Path, default=steps.ROOT / "reports" / "out" / "gpu", help="output folder")
    parser.add_argument("--archive", type=Path, help="a .tar.gz of the output folder, updated during the run")
    parser.add_argument(
        "--small", action="store_true", help="small problems and few tries, to check that everything works"
    )
    parser.add_argument("--simulate", action="store_true", help="use a simulated device")
    parser.add_argument("--only", action="append", default=[], choices=operators.names(), help="these operators")
    parser.add_argument("--plan", action="store_true", help="print the steps without running them")
    parser.add_argument(
        "--nvrtc",
        default="",
        help="library folders of another NVRTC, separated by colons, with which failed wgmma tests are repeated",
    )
    rehearsed = parser.add_argument_group("with --simulate")
    rehearsed.add_argument(
        "--peer-compiles", type=float, default=0.5, metavar="S", help="preparation time of a simulated peer"
    )
    rehearsed.add_argument(
        "--peer", default="ready", choices=("ready", "hangs", "falls"), help="the outcome of another simulated peer"
    )
    rehearsed.add_argument("--peer-patience", type=float, default=5.0, metavar="S", help="time limit of that peer")
    return parser


if __name__ == "__main__":
    sys.exit(main())
