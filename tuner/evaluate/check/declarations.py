"""Checks of an implementation's declarations on one config, apart from correctness."""

from collections.abc import Iterator
from dataclasses import fields, replace
from math import prod
from typing import Any

from tuner.arch import GPU
from tuner.compiler.render import render, template_name, template_variables
from tuner.evaluate.check.edges import one_code
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation
from tuner.spec.problem import extents

_ROUNDING = 0.999


def broken(instance: Instance, gpu: GPU) -> tuple[str, ...]:
    """Return one sentence per violation. Raises TemplateError if the operator cannot be rendered."""
    return (
        *_unread(instance, gpu),
        *_frozen_sizes(instance),
        *_outside(instance.implementation, instance.problem, gpu),
        *(_misdeclared(instance, gpu) if instance.implementation.declares_work else ()),
    )


def _unread(instance: Instance, gpu: GPU) -> Iterator[str]:
    implementation, read = instance.implementation, template_variables(instance.operator, instance.implementation)
    choices = implementation.space(instance.problem, gpu.arch).choices
    for parameter in fields(implementation.config):
        others = (
            instance.with_config(replace(instance.config, **{parameter.name: value}))
            for value in choices[parameter.name]
        )
        if parameter.name not in read and all(_entries(other) == _entries(instance) for other in others):
            yield f"{template_name(implementation)} never reads {parameter.name}: a search would try identical kernels"


def _entries(instance: Instance) -> list[str]:
    """Return the entries of the plan; a template instance contains its arguments in its name."""
    return [launch.entry for launch in instance.plan().launches]


def _frozen_sizes(instance: Instance) -> Iterator[str]:
    here = render(instance).digest
    tails = (edge for edge in instance.operator.tails(instance.problem) if one_code(edge, instance.problem))
    if any(render(instance.at(tail)).digest != here for tail in tails):
        sizes = ", ".join(extents(instance.problem))
        yield f"the source changes with sizes at run time ({sizes}): constants of a plan may use only static fields"


def _outside(implementation: Implementation[Any, Any], problem: Any, gpu: GPU) -> Iterator[str]:
    default = implementation.default(problem, gpu.arch)
    if refusal := implementation.space(problem, gpu.arch).refusal(default):
        yield f"the default config is not in the space: {refusal}"


def _misdeclared(instance: Instance, gpu: GPU) -> Iterator[str]:
    works, least = instance.work(gpu), instance.operator.cost(instance.problem).bytes
    for launch, work in zip(instance.plan().launches, works, strict=True):
        launched = prod(launch.grid), -(-launch.block_threads // 32)
        if (work.ctas, work.warps) != launched:
            yield (
                f"work declares {work.ctas} blocks of {work.warps} warps for {launch.entry}, "
                f"which the plan launches with {launched[0]} of {launched[1]}"
            )
    if (declared := sum(work.dram_bytes for work in works)) < least * _ROUNDING:
        yield f"work declares {declared:.6g} bytes of DRAM traffic, less than the {least:.6g} that cost declares"
