"""row_norm in two launches: squares summed into a workspace, then rows scaled."""
# ruff: noqa: ARG001, ARG005  (what an Implementation is called with)

from dataclasses import dataclass, replace

from tuner.arch import GPU, Arch
from tuner.spec import DType, Implementation, Launch, Plan, Space, Work, Workspace

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    threads: int


def plan(problem: Problem, config: Config) -> Plan:
    grid = (-(-problem.rows // config.threads), 1, 1)
    sums = Launch("row_norm_sums", grid, config.threads, 0, ("x", "rows", "squares"))
    scale = Launch("row_norm_scale", grid, config.threads, 0)
    return Plan((sums, scale), {}, (Workspace("squares", DType.FP32, (problem.rows,)),))


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(Config, choices={"threads": (32, 64)}, constraints=())


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    """Both launches read x; only the second writes."""
    elements = problem.rows * problem.width
    sums = Work(
        ctas=-(-problem.rows // config.threads),
        warps=config.threads // 32,
        mma=0,
        fma=elements / 32,
        mufu=problem.rows / 32,
        alu=elements / 32,
        smem_wavefronts=0,
        l2_bytes=4.0 * elements,
        dram_bytes=4.0 * elements,
        barriers=0,
        longest_cta=1.0,
        chain=problem.width / 32,
    )
    return sums, replace(sums, l2_bytes=8.0 * elements, dram_bytes=8.0 * elements)


IMPLEMENTATION = Implementation(
    name="two_pass",
    summary="two launches with a workspace",
    config=Config,
    refusal=lambda problem, arch: "rows of 8 have one pass" if problem.width == 8 else None,
    space=space,
    plan=plan,
    work=work,
)
