"""Searches with what this machine has: measured where the GPU that is asked for is here, predicted elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tuner import gpu
from tuner.arch import GPU
from tuner.cache import cache_dir
from tuner.check import Checker
from tuner.errors import MachineError
from tuner.evaluate import Predictor
from tuner.gpu_device import Physical
from tuner.ledger import Ledger
from tuner.measure import Bench, Measurer
from tuner.nvrtc import Compiler
from tuner.policy import MeasurementPolicy
from tuner.result import Evidence
from tuner.settle import settle
from tuner.store import Store
from tuner.tune import Outcome, Progress, Request, search
from tuner.worker import Worker

Observe = Callable[[Progress], None]
Search = Callable[[Request, Observe, Callable[[], bool]], Outcome]


def evidence_for(target: GPU) -> Evidence:
    """What a search for `target` can know on this machine."""
    return Evidence.MEASURED if _is_here(target) else Evidence.PREDICTED


@contextmanager
def session(target: GPU, store: Store, compiler: Compiler, checker: Checker) -> Iterator[Search]:
    """A function that searches one problem for `target`; a device process lives as long as the session."""
    if evidence_for(target) is Evidence.PREDICTED:

        def predicted(request: Request, observe: Observe, stopped: Callable[[], bool]) -> Outcome:
            evaluator = Predictor(request.operator, request.problem, target, compiler, checker)
            return search(request, store, evaluator, observe, stopped)

        yield predicted
        return
    with Worker(Physical()) as worker:
        bench = Bench(worker, MeasurementPolicy(), Ledger(cache_dir() / "ledger" / target.name))

        def measured(request: Request, observe: Observe, stopped: Callable[[], bool]) -> Outcome:
            evaluator: Any = Measurer(request.operator, request.problem, target, compiler, checker, bench)
            outcome, _ = settle(search(request, store, evaluator, observe, stopped), store, evaluator, request.seed)
            return outcome

        yield measured


def _is_here(target: GPU) -> bool:
    if not gpu.available():
        return False
    try:
        return gpu.current_gpu().name == target.name
    except MachineError:  # a model that we do not know is not the one that was asked for
        return False
