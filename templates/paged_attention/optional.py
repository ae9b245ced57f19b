"""The softcap, which only some problems have: launches of others do not take it, and templates spell it 0."""

from dataclasses import replace

from tuner.operator import Plan

from .operator import ARGUMENTS, SOFTCAP
from .problem import Problem


def with_softcap(problem: Problem, plan: Plan) -> Plan:
    """The plan, with launches that take the arguments that the problem has and, after them, workspaces."""
    there = (SOFTCAP.name,) if problem.use_softcap else ()
    arguments = (*(each.name for each in ARGUMENTS), *there, *(each.name for each in plan.workspaces))
    spelled = {"softcap_argument": SOFTCAP.name if problem.use_softcap else "0.0f"}
    launches = tuple(replace(launch, arguments=arguments) for launch in plan.launches)
    return replace(plan, launches=launches, constants={**plan.constants, **spelled})
