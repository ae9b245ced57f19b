"""What an implementation promises beyond being right, checked on one config: what it breaks, in words."""

from collections.abc import Iterator
from dataclasses import fields
from math import prod
from typing import Any

from tuner.arch import GPU
from tuner.compiler.render import render, template_name, template_variables
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator
from tuner.spec.problem import extents

_ROUNDING = 0.999


def broken(instance: Instance, gpu: GPU) -> tuple[str, ...]:
    """A sentence for each promise that is not kept. Raises TemplateError where the operator cannot even be rendered."""
    return (
        *_unread(instance.operator, instance.implementation),
        *_frozen_sizes(instance),
        *_outside(instance.implementation, instance.problem, gpu),
        *(_misdeclared(instance, gpu) if instance.implementation.declared else ()),
    )


def _unread(operator: Operator[Any], implementation: Implementation[Any, Any]) -> Iterator[str]:
    read = template_variables(operator, implementation)
    for each in fields(implementation.config):
        if each.name not in read:
            yield f"{template_name(implementation)} never reads {each.name}: a search would try equal kernels"


def _frozen_sizes(instance: Instance) -> Iterator[str]:
    here = render(instance).digest
    if any(render(instance.at(tail)).digest != here for tail in instance.operator.tails(instance.problem)):
        sizes = ", ".join(extents(instance.problem))
        yield f"the source changes with sizes at run time ({sizes}): constants of a plan follow from static fields only"


def _outside(implementation: Implementation[Any, Any], problem: Any, gpu: GPU) -> Iterator[str]:
    default = implementation.default(problem, gpu.arch)
    if refusal := implementation.space(problem, gpu.arch).refusal(default):
        yield f"the default config is not in the space: {refusal}"


def _misdeclared(instance: Instance, gpu: GPU) -> Iterator[str]:
    works, least = instance.work(gpu), instance.operator.cost(instance.problem).bytes
    for launch, work in zip(instance.plan().launches, works, strict=True):
        launched = prod(launch.grid), -(-launch.threads // 32)
        if (work.ctas, work.warps) != launched:
            yield (
                f"work declares {work.ctas} blocks of {work.warps} warps for {launch.entry}, "
                f"which the plan launches with {launched[0]} of {launched[1]}"
            )
    if (declared := sum(work.dram_bytes for work in works)) < least * _ROUNDING:
        yield f"work declares {declared:.6g} bytes of DRAM traffic, less than the least of {least:.6g} that cost says"
