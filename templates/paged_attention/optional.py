"""What only some problems have, a softcap, packed queries, scales of an 8-bit cache, s_aux: others do not take it."""

from dataclasses import replace

from tuner.spec import Plan

from .operator import ARGUMENTS, DESCALES, PACKED, S_AUX, SOFTCAP
from .problem import Problem


def eight_bits_refusal(problem: Problem) -> str | None:
    """Why a kernel that multiplies tiles as they were loaded does not serve a problem; None if it may."""
    if problem.eight_bits:
        return f"kv_cache_dtype {problem.kv_cache_dtype.value}: operands have 16 bits; split_keys widens what it loads"
    return None


def with_optional(problem: Problem, plan: Plan) -> Plan:
    """The plan, with launches that take the arguments that the problem has and, after them, workspaces.

    Its constants say what templates read in the place of arguments that need not be there.
    """
    capped, packed = problem.use_softcap, problem.use_cu_seqlens_q
    scaled = DESCALES if problem.eight_bits else ()
    logits = (S_AUX,) if problem.use_s_aux else ()
    there = (*((SOFTCAP,) if capped else ()), *(PACKED if packed else ()), *scaled, *logits)
    arguments = (*(each.name for each in (*ARGUMENTS, *there)), *(each.name for each in plan.workspaces))
    spelled = {
        "softcap_argument": SOFTCAP.name if capped else "0.0f",
        "cu_seqlens_q_argument": "cu_seqlens_q" if packed else "nullptr",
        "longest_argument": "max_seqlen_q" if packed else "seq_q",
        **{f"{name}_argument": _descale(name if scaled else "") for name in ("k_descale", "v_descale")},
    }
    launches = tuple(replace(launch, arguments=arguments) for launch in plan.launches)
    return replace(plan, launches=launches, constants={**plan.constants, **spelled})


def _descale(name: str) -> str:
    """A Descale of descale.cuh, of this argument if any."""
    return f"Descale{{{name}, {name}_descales_stride, {name}_kv_heads_stride, descales}}" if name else "Descale{}"
