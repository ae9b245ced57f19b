"""The steps of `gpu.py`, one function each, which returns the data of its last row, with a `summary` for the log.

Intermediate results are separate rows (`run.find`). Packages that only measuring needs are imported on use.
"""

import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gpu_timer as timer
from gpu_run import Run

from tuner import bench, operators
from tuner.base.fields import formatted
from tuner.base.pool import Limits, Lost, Pool
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Options
from tuner.compiler.render import render
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.messages import TimingRequest
from tuner.evaluate.measurer import Measurer
from tuner.results.attempt import Attempt
from tuner.spec.command_line import minimal_fields
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields

ROOT = Path(__file__).parents[1]
_TRIES, _FEW_TRIES = 160, 12
_SETTLE = 0.25  # fraction of a search's time for the final race and the verdict
# Import name → (package name, what is missing without it).
_PACKAGES = {
    "numpy": ("numpy", "nothing at all"),
    "cupy": ("cupy-cuda13x", "the device"),
    "pynvml": ("nvidia-ml-py", "the device"),
    "cuda.bindings": ("cuda-bindings", "NVRTC"),
    "jinja2": ("jinja2", "every kernel"),
    "scipy": ("scipy", "intervals of times"),
    "filelock": ("filelock", "exclusive use of the device"),
    "platformdirs": ("platformdirs", "the cache"),
    "sqlalchemy": ("sqlalchemy", "searches, and records"),
    "alembic": ("alembic", "searches, and records"),
    "optuna": ("optuna", "searches"),
    "threadpoolctl": ("threadpoolctl", "searches"),
    "pygments": ("pygments", "reports"),
    "vl_convert": ("vl-convert-python", "plots of reports"),
    "pytest": ("pytest", "tests on the device"),
    "xdist": ("pytest-xdist", "parallel tests"),
    "torch": ("torch", "every peer, and the timers of others"),
    "triton": ("triton", "do_bench, and compiled peers"),
    "fla": ("flash-linear-attention", "kda's peers"),
}


def installed(run: Run) -> dict[str, Any]:
    """Report the installed packages, and what is missing without the others."""
    versions = {name: _version(name, package) for name, (package, _) in _PACKAGES.items()}
    missing = [name for name, version in versions.items() if not version]
    advice = [f"{name} (without it {_PACKAGES[name][1]}: pip install {_PACKAGES[name][0]})" for name in missing]
    tools = {tool: shutil.which(tool) or "" for tool in ("nvidia-smi", "ncu", "compute-sanitizer", "nvcc")}
    if tools["nvidia-smi"]:
        output = subprocess.run(
            [tools["nvidia-smi"], "-q", "-d", "CLOCK,POWER,PERFORMANCE,TEMPERATURE"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        (run.out / "nvidia-smi.txt").write_text(output.stdout + output.stderr)
    return {"packages": versions, "tools": tools, "summary": f"missing: {'; '.join(advice) or 'nothing'}"}


def _version(name: str, package: str) -> str:
    try:
        if find_spec(name) is None:
            return ""
    except (ImportError, ValueError):
        return ""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # another build of the package
        return "here"


def device(run: Run) -> dict[str, Any]:
    facts = dict(run.worker.describe(ceilings=True).facts)
    graphs = f"no CUDA graphs ({facts['no_graph']})" if facts.get("no_graph") else "CUDA graphs"
    result = facts | {"summary": f"{facts['model']}, copies {facts['copy_gb_s']:.0f} GB/s, {graphs}"}
    return _warning(timer.warned(result, str(facts["gpu"])))


def timed_by_others(run: Run, question: timer.Question, pool: Pool[Any, Any]) -> dict[str, Any]:
    """Answer a question about the timer in a separate process."""
    for _, answer in pool.run([(run.opener, question.name)], question.may_take_s):
        if isinstance(answer, Lost):
            return {"error": f"{answer.reason} {answer.log[-500:]}".strip()}
        return _warning(timer.warned(answer, run.gpu.name))
    raise AssertionError("every job has an answer")


def judges_of_the_timer() -> Pool[Any, Any]:
    """Return the process that uses the device and torch; a framework keeps its GPU memory until the process ends."""
    return Pool(timer.answer, workers=1, limits=Limits(120.0, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _warning(result: dict[str, Any]) -> dict[str, Any]:
    return result | ({"summary": f"{result['summary']}. WARNING: {result['warning']}"} if "warning" in result else {})


def compiled(run: Run, problems: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Compile every default of every implementation in parallel, so that later steps find them in the cache."""
    jobs = [
        _job(run, *implementation)
        for operator, problem in problems
        for implementation in _served(run, operator, problem)
    ]
    failed = [str(result.reason) for _, result in run.compiler.compile_many(jobs) if not isinstance(result, Cubin)]
    return {"failed": failed, "summary": f"{len(jobs) - len(failed)} of {len(jobs)} defaults compile"}


def _served(run: Run, operator: Any, problem: Any) -> list[tuple[Any, Any, Any]]:
    """Return (operator, implementation, problem), with the implementation's own example if it does not serve the
    problem.
    """
    instances = []
    for implementation in operators.implementations(operator.name):
        chosen = next(
            (p for p in (problem, implementation.example) if p and implementation.refusal(p, run.gpu.arch) is None),
            None,
        )
        if chosen is not None:
            instances.append((operator, implementation, chosen))
    return instances


def verification(run: Run, operator: Any, problem: Any) -> dict[str, Any]:
    """Verify the default config of every implementation on all edge cases of a problem's static fields.

    An implementation that does not serve the problem is verified on its own example.
    """
    verdicts = {}
    for _, implementation, chosen in _served(run, operator, problem):
        small = operator.tails(chosen)[-1]  # a naive kernel is slow on a large problem
        about = "" if chosen is problem else " (its example)"
        verdicts[implementation.name + about] = text = _verified(run, operator, implementation, small)
        run.find(found={implementation.name + about: text})
    wrong = [f"{name}: {text}" for name, text in verdicts.items() if text != "right"]
    counted = f"{len(verdicts) - len(wrong)} of {len(verdicts)} implementations right"
    summary = "; ".join([counted, *wrong])
    return {"found": verdicts, "summary": summary} | ({"error": summary} if wrong else {})


def _job(run: Run, operator: Any, implementation: Any, problem: Any) -> Any:
    return render(Instance.default(operator, implementation, problem, run.gpu.arch)), Options(run.gpu.arch.name)


def _verified(run: Run, operator: Any, implementation: Any, problem: Any) -> str:
    ((_, cubin),) = run.compiler.compile_many([_job(run, operator, implementation, problem)])
    if not isinstance(cubin, Cubin):
        return f"does not compile: {cubin.reason}"
    instance = Instance.default(operator, implementation, problem, run.gpu.arch)
    code = Code(instance.fields(), cubin.image)
    timed = run.worker.time(TimingRequest(code, run.policy, timed=False))
    return timed.failure.reason if timed.failure else "right"


def known(operator: Any, problem: Any) -> dict[str, Any]:
    """Return the known facts about a problem before it is timed."""
    least = operator.cost(problem)
    return {
        "operator": operator.name,
        "problem": to_fields(problem),
        "about": f"{operator.name} {formatted(minimal_fields(problem))}".rstrip(),
        "flops": least.flops,
        "bytes": least.bytes,
    }


def defaults(run: Run, operator: Any, problem: Any) -> dict[str, Any]:
    """Check and time the default of every implementation on one problem: microseconds, or an error."""
    measurer = Measurer(operator, problem, run.gpu, run.compiler, run.setup)
    served = [implementation for _, implementation, chosen in _served(run, operator, problem) if chosen is problem]
    fast = [instance for instance in served if not instance.oracle] or served
    instances = [Instance.default(operator, position, problem, run.gpu.arch) for position in fast]
    times = {}
    for position, attempt in measurer.try_all(instances):
        times[position] = attempt
        run.find(**_outcome({fast[position].name: attempt}))
    run.show("records", lambda: _keep(run, measurer, instances, times, operator))
    return _timed(operator, problem, {fast[position].name: attempt for position, attempt in times.items()})


def _keep(
    run: Run, measurer: Measurer, instances: list[Instance], attempts: Mapping[int, Attempt], operator: Any
) -> None:
    """Store the attempts for the search of the same problem, which resumes from them and may have little time."""
    from tuner.search.request import code_of

    if not attempts:
        return
    study = run.store.begin_study(
        operator=operator.name,
        problem=canonical(instances[0].problem),
        gpu=run.gpu.name,
        command="",
        seed=0,
        method="gp",
        effort="normal",
        budget=len(instances),
        versions={"device": measurer.device} if measurer.device else {},  # times of another device are not resumed
    )
    rows = dict(zip(attempts, run.store.append(attempts.values(), study), strict=True))
    run.store.end_study(study, "the default configs were timed")
    right = [position for position, attempt in attempts.items() if attempt.failure is None]
    for i, verdict in measurer.check([instances[position] for position in right]):
        run.store.append_verdict(rows[right[i]], verdict, code_of(operator))


def _outcome(attempts: Mapping[str, Attempt]) -> dict[str, dict[str, Any]]:
    """Return times by implementation with the device state, or errors."""
    like = ("sm_mhz", "throttle", "temperature_c", "late", "floor_us")
    return {
        "device": {
            name: {planned: getattr(attempt.measurement, planned) for planned in like}
            for name, attempt in attempts.items()
            if attempt.measurement
        },
        "times_us": {name: attempt.measurement.time_us for name, attempt in attempts.items() if attempt.measurement},
        "without": {name: attempt.failure.reason for name, attempt in attempts.items() if attempt.failure},
    }


def _timed(operator: Any, problem: Any, attempts: Mapping[str, Attempt]) -> dict[str, Any]:
    """Return the result of each implementation, and the minimum work of the problem."""
    outcome = _outcome(attempts)
    lines = [
        f"{name} {time_us:.1f} us" for name, time_us in sorted(outcome["times_us"].items(), key=lambda pair: pair[1])
    ]
    lines += [f"{name}: {why}" for name, why in outcome["without"].items()]
    return known(operator, problem) | outcome | {"summary": ", ".join(lines)}


class _Telling(Measurer):
    """A measurer that records each attempt of a search: its outcome, and the best of its implementation."""

    def __init__(self, run: Run, operator: Any, problem: Any) -> None:
        super().__init__(operator, problem, run.gpu, run.compiler, run.setup)
        self._run, self._best = run, dict[str, Attempt]()

    def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
        for position, attempt in super().try_all(batch):
            name = batch[position].implementation.name
            best = self._best.get(name, attempt)
            if attempt.measurement and not (
                best.measurement and best.measurement.time_us < attempt.measurement.time_us
            ):
                best = self._best[name] = attempt
            row = {"implementation": name, "config": to_fields(batch[position].config), **_outcome({"": attempt})}
            self._run.find(attempt=row, times_us=_outcome({name: best})["times_us"])
            yield position, attempt


def search(run: Run, operator: Any, problem: Any, seconds: float) -> dict[str, Any]:
    """Search, race the finalists, and store and export the record, in about `seconds`."""
    from tuner.results.ranking import rank
    from tuner.search import study
    from tuner.search.final_race import final_race

    seconds *= 1 - _SETTLE
    tries, deadline = _FEW_TRIES if run.small else _TRIES, time.monotonic() + seconds
    request = study.SearchRequest(
        operator, problem, run.gpu, budget=tries, seconds=seconds, command="benchmarks/gpu.py"
    )
    measurer = _Telling(run, operator, problem)
    restarts = run.worker.restarts
    outcome = study.search(request, run.store, measurer, stopped=lambda: time.monotonic() > deadline)
    outcome, standing = final_race(outcome, run.store, measurer)
    run.outcomes.append(outcome)
    run.store.export_jsonl(run.out / "tuned" / f"{run.gpu.name}.jsonl", gpu=run.gpu.name)
    record = outcome.record
    time_us = record.measurement.time_us if record and record.measurement else None
    best = {tried.instance.implementation.name: tried.attempt for tried in reversed(rank(outcome.tried))}
    return _timed(operator, problem, best) | {
        "record": asdict(record) if record else None,
        "standing": asdict(standing) if standing else None,
        "tried": len(outcome.tried),
        "failed": [tried.attempt.failure.reason for tried in outcome.tried if tried.attempt.failure],
        "drift_us": measurer.drift_monitor.times_us,
        "voided": measurer.drift_monitor.voided,
        "restarts": run.worker.restarts - restarts,
        "why_stopped": outcome.why_stopped,
        "finished": record is not None and (outcome.seconds < seconds or len(outcome.tried) >= tries),
        "summary": f"{time_us:.1f} us after {len(outcome.tried)} tries" if time_us else "no correct config was found",
    }


def beside_peers(run: Run, operator: Any, problem: Any, kind: str, seconds: float) -> dict[str, Any]:
    """Run the comparison and log it as a table. Contenders and rounds are separate rows."""
    from tuner.store.records import Snapshot

    if run.cramped:
        run.worker.rest()
    snapshot = Snapshot.load([run.out / "tuner.db"])
    related = bench.context(operator, problem)
    context = (bench.contender(*related, run.gpu, snapshot),) if related else ()
    our_contender = bench.contender(operator, problem, run.gpu, snapshot)
    comparison = run.venue.compare(
        our_contender, run.policy, context=context, kind=kind, patience_s=seconds, into=run.rows.path, guests=run.guests
    )
    if run.cramped:
        run.venue.close()
    lines = [" | ".join(filter(None, row)) for row in comparison.table()]
    finished = all(row.state not in ("lost", "untimed") for row in comparison.rows)  # it may succeed with more time
    return comparison.data() | {"finished": finished, "summary": "\n    ".join(["", *lines])}


def report(run: Run) -> None:
    from tuner.report import summary

    if run.outcomes:
        summary.write(run.outcomes, run.out / "report.html")


def pages(run: Run) -> None:
    """Write the comparisons of an operator, including earlier calls, as one page, and those of a sweep as another."""
    from tuner.bench.page import page
    from tuner.report import write

    groups: dict[str, list[bench.Comparison]] = {}
    for name, data in run.rows.steps.items():
        if data.get("rows") and data.get("finished", True):
            groups.setdefault("-".join(name.split()[:2]), []).append(bench.Comparison.of(data))
    for name, comparisons in groups.items():
        write(page(comparisons), run.out / "peers" / f"{name}.html")
