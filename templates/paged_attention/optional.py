"""What only some problems have, the softcap and packed queries: launches of others do not take it."""

from dataclasses import replace

from tuner.operator import Plan

from .operator import ARGUMENTS, PACKED, SOFTCAP
from .problem import Problem


def with_optional(problem: Problem, plan: Plan) -> Plan:
    """The plan, with launches that take the arguments that the problem has and, after them, workspaces.

    Its constants say what templates read in the place of arguments that need not be there.
    """
    capped, packed = problem.use_softcap, problem.use_cu_seqlens_q
    there = (*((SOFTCAP,) if capped else ()), *(PACKED if packed else ()))
    arguments = (*(each.name for each in (*ARGUMENTS, *there)), *(each.name for each in plan.workspaces))
    spelled = {
        "softcap_argument": SOFTCAP.name if capped else "0.0f",
        "cu_seqlens_q_argument": "cu_seqlens_q" if packed else "nullptr",
        "longest_argument": "max_seqlen_q" if packed else "seq_q",
    }
    launches = tuple(replace(launch, arguments=arguments) for launch in plan.launches)
    return replace(plan, launches=launches, constants={**plan.constants, **spelled})
