"""Everything that needs a GPU, in one command and a given time: facts, verification, searches, peers, tuned records.

    python benchmarks/gpu.py --minutes 8 --out reports/out/gpu            on a machine with a GPU
    python benchmarks/gpu.py --minutes 2 --out … --simulate               the same path on a device that is not there

What is known is written as it comes; a second call with the same --out goes on where the first was stopped.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner import arch, bench, operators, peers, summary, tune
from tuner.check import Checker
from tuner.cubin import Cubin
from tuner.device import Code
from tuner.errors import TunerError
from tuner.gpu_device import Physical
from tuner.ledger import Ledger
from tuner.measure import Bench, Measurer
from tuner.nvrtc import Compiler, Options
from tuner.operator import canonical, to_fields
from tuner.policy import MeasurementPolicy
from tuner.pool import Limits, Lost, Pool
from tuner.records import Snapshot
from tuner.render import render
from tuner.settle import settle
from tuner.simulated import Simulation
from tuner.store import Store
from tuner.trial import Task
from tuner.worker import Worker

ROOT = Path(__file__).parents[1]
# What is searched, operator by operator; a field that is left out has its default.
PROBLEMS: dict[str, tuple[dict[str, Any], ...]] = {
    "flash_attention": ({"head_dim": 128, "causal": True}, {"head_dim": 72, "causal": True}, {"head_dim": 64}),
    "streaming_attention": ({}, {"head_dim": 64}),
    "linear_attention": ({},),
    "kda": ({},),
}
SMALL: dict[str, tuple[dict[str, Any], ...]] = {
    "flash_attention": ({"head_dim": 16, "batch": 1, "heads": 2, "seq_q": 256},),
}
_SEARCHING = 0.75  # of the time that is left when the searches begin; the peers take the rest
_TRIES, _REHEARSED_TRIES = 160, 6
_CONFORMANCE_S = 120.0


class Results:
    """results.json: steps by name, each written when it is done, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.steps: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def put(self, step: str, data: Any) -> None:
        self.steps[step] = data
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.steps, indent=1, default=str))
        partial.replace(self._path)


class Run:
    """One call of this program: where it writes, how long it may take, and what it measures with."""

    def __init__(self, out: Path, minutes: float, simulate: bool, stack: ExitStack) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.simulate = out, simulate
        self.deadline = time.monotonic() + 60 * minutes
        self.results = Results(out / "results.json")
        self.place = Simulation() if simulate else Physical()
        self.policy = MeasurementPolicy()
        self.store = stack.enter_context(Store.open(out / "tuner.db"))
        self.compiler, self.checker = stack.enter_context(Compiler()), stack.enter_context(Checker(1))
        self.worker = stack.enter_context(Worker(self.place))
        self.bench = Bench(self.worker, self.policy, Ledger(out / "ledger"))
        self.gpu = arch.gpu(str(self.worker.look().facts["gpu"]))
        self.outcomes: list[tune.Outcome] = []

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def say(self, text: str) -> None:
        line = f"[{self.left_s:5.0f} s left] {text}"
        print(line, file=sys.stderr, flush=True)
        with (self.out / "log.txt").open("a") as log:
            log.write(line + "\n")

    def step(self, name: str, work: Callable[[], Any]) -> bool:
        """Do and write one step, unless it is done or the time is up; whether it was done now.

        What failed, or was not finished in its time, is taken up again by the next call.
        """
        known = self.results.steps.get(name)
        if self.left_s <= 0 or (known is not None and "error" not in known and known.get("finished", True)):
            return False
        try:
            data = work()
        except Exception as error:  # the next step may still tell something
            data = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]}
        self.results.put(name, data)
        self.say(f"{name}: {data.get('error') or data.get('summary', 'done')}")
        return True


def problems(run: Run) -> Iterator[tuple[Any, Any]]:
    """(operator, problem): the first of every operator, then the second …"""
    listed = {name: found for name, found in (SMALL if run.simulate else PROBLEMS).items() if name in operators.names()}
    for turn in range(max(map(len, listed.values()))):
        for name, found in listed.items():
            if turn < len(found):
                operator = operators.load(name)
                yield operator, operator.problem(**found[turn])


def device(run: Run) -> dict[str, Any]:
    facts = dict(run.worker.look(ceilings=True).facts)
    run.store.add_device(run.gpu.name, facts)
    return facts | {"summary": f"{facts['model']}, copies {facts['copy_gb_s']:.0f} GB/s"}


def matmul() -> dict[str, Any]:
    """In a process of its own: a framework keeps GPU memory as long as it lives."""
    memory = resource.getrlimit(resource.RLIMIT_AS)[1]
    with Pool(peers.matmul_tflop_s, workers=1, limits=Limits(120.0, memory)) as pool:
        try:
            ((_, answer),) = pool.run([8192])
        except peers.AbsentError as error:
            return {"summary": f"absent: {error}"}
    if isinstance(answer, Lost):
        return {"error": answer.reason}
    return {"tflop_s": answer, "summary": f"bf16 matmul {answer:.0f} TFLOP/s"}


def conformance(run: Run) -> dict[str, Any]:
    """The tests that need a device."""
    command = [sys.executable, "-m", "pytest", "-q", str(ROOT / "tests" / "gpu")]
    limit = min(_CONFORMANCE_S, run.left_s)
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=ROOT, check=False)
    text = done.stdout + done.stderr
    (run.out / "conformance.txt").write_text(text)
    return {"exit": done.returncode, "summary": text.strip().rpartition("\n")[2]}


def verification(run: Run, operator: Any) -> dict[str, Any]:
    """The default config of every implementation, on every edge case."""
    problem = operator.tails(operator.problem())[-1]  # a naive kernel takes long for a large one
    found: dict[str, str] = {}
    for implementation in operators.implementations(operator.name):
        refusal = implementation.refusal(problem, run.gpu.arch)
        found[implementation.name] = (
            f"refused: {refusal}" if refusal else _verified(run, operator, implementation, problem)
        )
    right = sum(text == "right" for text in found.values())
    return {"found": found, "summary": f"{right} of {len(found)} implementations right"}


def _verified(run: Run, operator: Any, implementation: Any, problem: Any) -> str:
    config = implementation.default(problem, run.gpu.arch)
    job = render(operator, implementation, problem, config), Options(run.gpu.arch.name)
    ((_, cubin),) = run.compiler.compile_many([job])
    if not isinstance(cubin, Cubin):
        return f"does not compile: {cubin.reason}"
    code = Code(operator.name, implementation.name, to_fields(problem), to_fields(config), cubin.image)
    timed = run.worker.time(Task(code, run.policy, timed=False))
    return timed.fell.reason if timed.fell else "right"


def search(run: Run, operator: Any, problem: Any, seconds: float) -> dict[str, Any]:
    """Search, race the finalists, store and export the record."""
    tries = _REHEARSED_TRIES if run.simulate else _TRIES
    request = tune.Request(operator, problem, run.gpu, budget=tries, seconds=seconds, command="benchmarks/gpu.py")
    measurer = Measurer(operator, problem, run.gpu, run.compiler, run.checker, run.bench)
    outcome, standing = settle(tune.search(request, run.store, measurer), run.store, measurer)
    run.outcomes.append(outcome)
    run.store.export_jsonl(run.out / "tuned" / f"{run.gpu.name}.jsonl", gpu=run.gpu.name)
    record = outcome.record
    time_us = record.measurement.time_us if record and record.measurement else None
    return {
        "record": asdict(record) if record else None,
        "standing": asdict(standing) if standing else None,
        "tried": len(outcome.tried),
        "failed": [each.attempt.failure.reason for each in outcome.tried if each.attempt.failure],
        "drift_us": measurer.drift,
        "restarts": run.worker.restarts,
        "why_stopped": outcome.why_stopped,
        "finished": record is not None and (outcome.seconds < seconds or len(outcome.tried) >= tries),
        "summary": f"{time_us:.1f} us after {len(outcome.tried)} tries" if time_us else "nothing right was found",
    }


def beside_peers(run: Run, operator: Any, problem: Any) -> dict[str, Any]:
    snapshot = Snapshot.load([run.out / "tuner.db"])
    found = bench.compare(bench.contender(operator, problem, run.gpu, snapshot), run.place, run.policy)
    lines = [" | ".join(row) for row in found.table()]
    return found.data() | {"summary": "\n    ".join(["", *lines])}


def report(run: Run) -> dict[str, Any]:
    path = summary.write(run.outcomes, run.out / "report.html")
    return {"summary": str(path.name)}


def everything(run: Run) -> None:
    run.step("device", lambda: device(run))
    for name in operators.names() if not run.simulate else SMALL:
        run.step(f"verification {name}", lambda name=name: verification(run, operators.load(name)))
    if not run.simulate:
        run.step("matmul", matmul)
    listed = list(problems(run))
    end = time.monotonic() + _SEARCHING * max(run.left_s, 0)
    for i, (operator, problem) in enumerate(listed):
        share = max(end - time.monotonic(), 0) / (len(listed) - i)
        name = f"{operator.name} {canonical(problem)}"
        if run.step(f"search {name}", lambda o=operator, p=problem, s=share: search(run, o, p, s)):
            run.results.steps.pop(f"peers {name}", None)  # of another record
        run.step(f"peers {name}", lambda o=operator, p=problem: beside_peers(run, o, p))
    if not run.simulate:
        run.step("conformance", lambda: conformance(run))
    if run.outcomes:
        run.step(f"report {len(run.outcomes)}", lambda: report(run))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="stop beginning new steps after this long")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "reports" / "out" / "gpu", help="where everything is written"
    )
    parser.add_argument("--simulate", action="store_true", help="rehearse on a simulated device, with small problems")
    given = parser.parse_args()
    try:
        with ExitStack() as stack:
            run = Run(given.out, given.minutes, given.simulate, stack)
            everything(run)
    except TunerError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 1 if any("error" in data for data in run.results.steps.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
