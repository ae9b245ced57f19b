"""mla_decode on mma.sync: blocks split the latent rows of all sequences, and a second launch merges their results."""

from tuner.arch import GPU, Arch
from tuner.spec import DType, Implementation, Plan, Work

from ..problem import Problem
from . import config as sizes
from .config import ENTRIES, Config
from .work import work as work_when_full


def refusal(problem: Problem, _arch: Arch) -> str | None:
    DV = problem.head_dim_v
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma.sync multiplies 16-bit operands"
    if DV > 256 and DV % 32:
        return f"head_dim_v {DV}: above 256, warps share O's columns in pairs of 16, which requires a multiple of 32"
    return None


def plan(problem: Problem, config: Config) -> Plan:
    return sizes.plan(problem, config, ENTRIES)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    return work_when_full(problem, config)


IMPLEMENTATION = Implementation(
    name="split_keys",
    summary="tensor cores, heads and queries as rows; latent rows are loaded once; blocks split all sequences",
    config=Config,
    refusal=refusal,
    space=sizes.space,
    plan=plan,
    blocks=lambda problem: (sizes.block(problem, ENTRIES[0]),),
    default=sizes.default,
    work=work,
)
