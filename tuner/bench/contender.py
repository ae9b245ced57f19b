"""Our kernels in a comparison: the one that an application would run, and a related operator's on the same tensors."""

from typing import Any

from tuner import operators
from tuner.arch import GPU
from tuner.base.cache import Cache
from tuner.bench import peers
from tuner.compiler import nvrtc
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.dispatcher.config_choice import choose
from tuner.errors import TemplateError
from tuner.evaluate.measure.device import Code
from tuner.results.attempt import Failed
from tuner.spec.operator import Operator
from tuner.store.records import Snapshot


def contender(operator: Operator[Any], problem: Any, gpu: GPU, snapshot: Snapshot) -> Code:
    """Return the kernel that an application would run on this problem: the record's config, or the default.

    Raises UsageError if no implementation serves it, and TemplateError if it does not compile.
    """
    instance = choose(operator, problem, (gpu,), snapshot).instance
    outcome = nvrtc.compile(render(instance), Options(gpu.arch.name), Cache.of("cubin"))
    if isinstance(outcome, Failed):
        raise TemplateError(f"{instance.name} does not compile: {outcome.reason}")
    return Code(instance.fields(), outcome.image, outcome.symbols)


def context(operator: Operator[Any], problem: Any) -> tuple[Operator[Any], Any] | None:
    """Return (operator, problem) of the context kernel on the same tensors, as defined by the operator's peers.py."""
    context = peers.context(operator.name, problem)
    return (operators.load(context.operator), context.problem) if context else None
