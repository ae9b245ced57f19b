"""Check default configs on this machine's GPU once, and store the verdicts.

A call without a record runs a default config. An implementation whose instructions no device has confirmed (`unproven`)
serves such calls only on a device that has verified exactly this code.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tuner import operators
from tuner.arch import GPU
from tuner.backends import gpu
from tuner.base.cache import cache_dir
from tuner.base.fields import Fields
from tuner.compiler.nvrtc import Compiler, toolkit
from tuner.compiler.render import render
from tuner.errors import TunerError, UsageError
from tuner.evaluate.measure.crash_ledger import Ledger
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.worker import DeviceOpener, Worker
from tuner.evaluate.measurer import Measurer, Setup
from tuner.results.attempt import Failed
from tuner.results.proof import Proof
from tuner.spec.default_sizes import round_sizes
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.problem import extents, to_fields
from tuner.store.sql import Store

Prover = Callable[[Operator[Any], Any], Iterator["Judged"]]


@dataclass(frozen=True, slots=True)
class Judged:
    """A default config, with the device's verdict or the reason why there is none."""

    implementation: str
    config: Fields
    proof: Proof | None
    why_not: str = ""  # reason why it was not checked
    earlier: bool = False  # the verdict was already stored

    @property
    def right(self) -> bool:
        return self.proof is not None and self.proof.verdict.ok

    @property
    def reason(self) -> str:
        """Why it is not correct; empty if it is."""
        return self.proof.verdict.reason if self.proof else self.why_not


def default_instances(operator: Operator[Any], problem: Any, target: GPU) -> tuple[Instance, ...]:
    """Return the default configs that a call on `problem` without a record may run, each source once.

    They are the defaults of the problem itself and of its round sizes, if these fit the problem.
    """
    sizes, arch = tuple(getattr(problem, name) for name in extents(problem)), target.arch
    distinct: dict[tuple[str, str], Instance] = {}
    for implementation in operators.implementations(operator.name):
        if implementation.refusal(problem, arch) is not None:
            continue
        space = implementation.space(problem, arch)
        for alike in (*_resized(problem, round_sizes(sizes)), problem):
            if implementation.refusal(alike, arch) is not None:
                continue
            instance = Instance.default(operator, implementation, alike, arch).at(problem)
            if space.refusal(instance.config) is None:
                distinct.setdefault((implementation.name, render(instance).digest), instance)
    return tuple(distinct.values())


def _resized(problem: Any, candidates: Iterator[tuple[int, ...]]) -> Iterator[Any]:
    """Yield valid problems like `problem` with other sizes."""
    names = extents(problem)
    for sizes in candidates:
        try:
            yield replace(problem, **dict(zip(names, sizes, strict=True)))
        except (TunerError, ArithmeticError, TypeError, ValueError):
            continue


def judge(store: Store, measurer: Measurer, instances: Sequence[Instance], *, again: bool = False) -> Iterator[Judged]:
    """Yield every instance with its verdict: the stored one for this driver and compiler, or else a new one.

    `again` repeats failed checks. New verdicts are stored immediately.
    """
    stored = {proof.code: proof for proof in store.proofs(measurer.operator.name, measurer.gpu.name)}
    open_ = []
    for instance in instances:
        proof = stored.get(measurer.checked_code(instance))
        if proof is None or (again and not proof.verdict.ok):
            open_.append(instance)
        else:
            yield _judged(instance, proof, earlier=True)
    for position, outcome in measurer.prove(open_):
        if isinstance(outcome, Proof) and store.writable:
            store.append_proof(outcome)
        yield _judged(open_[position], outcome)


def _judged(instance: Instance, outcome: Proof | Failed, *, earlier: bool = False) -> Judged:
    name, config = instance.implementation.name, to_fields(instance.config)
    if isinstance(outcome, Failed):
        return Judged(name, config, None, f"{outcome.stage.value}: {outcome.reason}")
    return Judged(name, config, outcome, earlier=earlier)


@contextmanager
def prover(
    target: GPU, db: str | None = None, *, retry: bool = False, opener: DeviceOpener | None = None
) -> Iterator[Prover]:
    """Provide a function that checks the defaults of a problem on this machine's GPU, in a process that may crash.

    `retry` repeats failed checks, and clears recorded crashes. Raises UsageError if `target` is not in this machine,
    and MachineError if the driver cannot load the compiler's output.
    """
    if opener is None:
        if not gpu.is_here(target):
            raise UsageError(f"no {target.name} in this machine: `--gpu {gpu.HERE}` names the GPU that is")
        gpu.check_driver(toolkit())
    ledger = cache_dir() / "ledger" / target.name
    if retry:
        ledger.unlink(missing_ok=True)
    with Store.open(db) as store, Compiler() as compiler, Worker(opener or Physical()) as worker:
        setup = Setup(worker, ledger=Ledger(ledger))

        def prove(operator: Operator[Any], problem: Any) -> Iterator[Judged]:
            instances = default_instances(operator, problem, target)
            yield from judge(store, Measurer(operator, problem, target, compiler, setup), instances, again=retry)

        yield prove
