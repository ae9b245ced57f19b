"""What `gpu.py` does, a function a step: each returns what results.json keeps, with a `summary` for the log."""

import resource
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_run import Run

from tuner import bench, operators
from tuner.base.pool import Limits, Lost, Pool
from tuner.base.result import Attempt, spelled
from tuner.bench import peers
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Options
from tuner.compiler.render import render
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.messages import Task
from tuner.evaluate.measurer import Measurer
from tuner.report import summary, write
from tuner.search import study
from tuner.search.final_race import final_race
from tuner.search.history import code_of
from tuner.spec.instance import Instance
from tuner.spec.problem import to_fields
from tuner.spec.telling import telling
from tuner.store.records import Snapshot

ROOT = Path(__file__).parents[1]
_TRIES, _FEW_TRIES = 160, 12


def device(run: Run) -> dict[str, Any]:
    facts = dict(run.worker.look(ceilings=True).facts)
    run.store.add_device(run.gpu.name, facts)
    graphs = f"no CUDA graphs ({facts['no_graph']})" if facts.get("no_graph") else "CUDA graphs"
    return facts | {"summary": f"{facts['model']}, copies {facts['copy_gb_s']:.0f} GB/s, {graphs}"}


def matmul(run: Run) -> dict[str, Any]:
    """In a process of its own: a framework keeps GPU memory as long as it lives."""
    if run.exclusive:
        run.worker.rest()
    memory = resource.getrlimit(resource.RLIMIT_AS)[1]
    with Pool(peers.matmul_tflop_s, workers=1, limits=Limits(120.0, memory)) as pool:
        try:
            ((_, answer),) = pool.run([8192])
        except peers.AbsentError as error:
            return {"summary": f"absent: {error}"}
    if isinstance(answer, Lost):
        return {"error": answer.reason}
    return {"tflop_s": answer, "summary": f"bf16 matmul {answer:.0f} TFLOP/s"}


def compiled(run: Run, problems: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Every default of every implementation, side by side, so that later steps find them in the cache."""
    jobs = [_job(run, *each) for operator, problem in problems for each in _served(run, operator, problem)]
    failed = [str(found.reason) for _, found in run.compiler.compile_many(jobs) if not isinstance(found, Cubin)]
    return {"failed": failed, "summary": f"{len(jobs) - len(failed)} of {len(jobs)} defaults compile"}


def _served(run: Run, operator: Any, problem: Any) -> list[tuple[Any, Any, Any]]:
    """(operator, implementation, problem) of those that serve a problem here, or else their own example."""
    found = []
    for each in operators.implementations(operator.name):
        chosen = next((p for p in (problem, each.example) if p and each.refusal(p, run.gpu.arch) is None), None)
        if chosen is not None:
            found.append((operator, each, chosen))
    return found


def verification(run: Run, operator: Any, problem: Any) -> dict[str, Any]:
    """The default config of every implementation, on every edge case of a problem's static fields.

    One that does not serve these is verified on its own example.
    """
    found = {}
    for _, each, chosen in _served(run, operator, problem):
        small = operator.tails(chosen)[-1]  # a naive kernel takes long for a large one
        about = "" if chosen is problem else " (its example)"
        found[each.name + about] = _verified(run, operator, each, small)
    wrong = [f"{name}: {text}" for name, text in found.items() if text != "right"]
    counted = f"{len(found) - len(wrong)} of {len(found)} implementations right"
    told = "; ".join([counted, *wrong])
    return {"found": found, "summary": told} | ({"error": told} if wrong else {})


def _job(run: Run, operator: Any, implementation: Any, problem: Any) -> Any:
    return render(Instance.default(operator, implementation, problem, run.gpu.arch)), Options(run.gpu.arch.name)


def _verified(run: Run, operator: Any, implementation: Any, problem: Any) -> str:
    ((_, cubin),) = run.compiler.compile_many([_job(run, operator, implementation, problem)])
    if not isinstance(cubin, Cubin):
        return f"does not compile: {cubin.reason}"
    instance = Instance.default(operator, implementation, problem, run.gpu.arch)
    code = Code(instance.fields(), cubin.image)
    timed = run.worker.time(Task(code, run.policy, timed=False))
    return timed.fell.reason if timed.fell else "right"


def defaults(run: Run, operator: Any, problem: Any) -> dict[str, Any]:
    """The default of every implementation, judged and timed on one problem: microseconds, or what went wrong."""
    measurer = Measurer(operator, problem, run.gpu, run.compiler, run.checker, run.setup)
    served = [each for _, each, chosen in _served(run, operator, problem) if chosen is problem]
    fast = [each for each in served if not each.oracle] or served
    instances = [Instance.default(operator, each, problem, run.gpu.arch) for each in fast]
    found = dict(measurer.attempts(instances))
    _keep(run, measurer, instances, found, code_of(operator))
    return _timed(operator, problem, {fast[position].name: attempt for position, attempt in found.items()})


def _keep(run: Run, measurer: Measurer, instances: list[Instance], found: Mapping[int, Attempt], code: str) -> None:
    """For the search of the same problem, which may have little time: it goes on from these."""
    rows = dict(zip(found, run.store.append(found.values()), strict=True))
    right = [position for position, attempt in found.items() if attempt.failure is None]
    for i, verdict in measurer.verdicts([instances[position] for position in right]):
        run.store.append_verdict(rows[right[i]], verdict, code)


def _timed(operator: Any, problem: Any, attempts: Mapping[str, Attempt]) -> dict[str, Any]:
    """What is known of each implementation, and the least that the problem takes."""
    times = {name: each.measurement.time_us for name, each in attempts.items() if each.measurement}
    without = {name: each.failure.reason for name, each in attempts.items() if each.failure}
    told = [f"{name} {time_us:.1f} us" for name, time_us in sorted(times.items(), key=lambda pair: pair[1])]
    told += [f"{name}: {why}" for name, why in without.items()]
    least = operator.cost(problem)
    return {
        "operator": operator.name,
        "problem": to_fields(problem),
        "about": f"{operator.name} {spelled(telling(problem))}".rstrip(),
        "times_us": times,
        "without": without,
        "flops": least.flops,
        "bytes": least.bytes,
        "summary": ", ".join(told),
    }


def search(run: Run, operator: Any, problem: Any, seconds: float) -> dict[str, Any]:
    """Search, race the finalists, store and export the record. No config is begun when the seconds are over."""
    tries, deadline = _FEW_TRIES if run.small else _TRIES, time.monotonic() + seconds
    request = study.SearchRequest(
        operator, problem, run.gpu, budget=tries, seconds=seconds, command="benchmarks/gpu.py"
    )
    measurer = Measurer(operator, problem, run.gpu, run.compiler, run.checker, run.setup)
    restarts = run.worker.restarts
    outcome = study.search(request, run.store, measurer, stopped=lambda: time.monotonic() > deadline)
    outcome, standing = final_race(outcome, run.store, measurer)
    run.outcomes.append(outcome)
    run.store.export_jsonl(run.out / "tuned" / f"{run.gpu.name}.jsonl", gpu=run.gpu.name)
    record = outcome.record
    time_us = record.measurement.time_us if record and record.measurement else None
    best = {each.instance.implementation.name: each.attempt for each in reversed(study.ranked(outcome.tried))}
    return _timed(operator, problem, best) | {
        "record": asdict(record) if record else None,
        "standing": asdict(standing) if standing else None,
        "tried": len(outcome.tried),
        "failed": [each.attempt.failure.reason for each in outcome.tried if each.attempt.failure],
        "drift_us": measurer.drift.times_us,
        "voided": measurer.drift.voided,
        "restarts": run.worker.restarts - restarts,
        "why_stopped": outcome.why_stopped,
        "finished": record is not None and (outcome.seconds < seconds or len(outcome.tried) >= tries),
        "summary": f"{time_us:.1f} us after {len(outcome.tried)} tries" if time_us else "nothing right was found",
    }


def beside_peers(run: Run, operator: Any, problem: Any, kind: str, seconds: float) -> dict[str, Any]:
    """The comparison, in the log as a table."""
    run.worker.rest()  # its tensors would stand in the way of the peers'
    snapshot = Snapshot.load([run.out / "tuner.db"])
    related = bench.context(operator, problem)
    context = (bench.contender(*related, run.gpu, snapshot),) if related else ()
    ours = bench.contender(operator, problem, run.gpu, snapshot)
    found = bench.compare(ours, run.place, run.policy, context=context, kind=kind, patience_s=seconds)
    lines = [" | ".join(row) for row in found.table()]
    finished = all(row.state != "lost" for row in found.rows)  # with more time it may come through
    return found.data() | {"finished": finished, "summary": "\n    ".join(["", *lines])}


def report(run: Run) -> None:
    summary.write(run.outcomes, run.out / "report.html")


def page(run: Run, group: str) -> None:
    """All comparisons of a group of steps so far, of earlier calls too, as one page."""
    steps = [data for name, data in run.results.steps.items() if name.startswith(f"{group} ") and "rows" in data]
    if steps:
        found = [bench.Comparison.of(data) for data in steps]
        write(bench.page(found), run.out / "peers" / f"{group.replace(' ', '-')}.html")
