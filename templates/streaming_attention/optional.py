"""cache_seqlens, which only ragged batches have: launches of others do not take it, and templates spell it nullptr."""

from dataclasses import replace

from tuner.spec import Plan

from .operator import ARGUMENTS
from .problem import Problem


def with_lengths(problem: Problem, plan: Plan) -> Plan:
    """The plan, with launches that take all arguments there are and, after them, workspaces."""
    there = [each.name for each in ARGUMENTS if each.name != "cache_seqlens" or problem.ragged]
    arguments = (*there, *(each.name for each in plan.workspaces))
    pointer = "cache_seqlens" if problem.ragged else "nullptr"
    return replace(
        plan,
        launches=tuple(replace(launch, arguments=arguments) for launch in plan.launches),
        constants={**plan.constants, "cache_seqlens_pointer": pointer},
    )
