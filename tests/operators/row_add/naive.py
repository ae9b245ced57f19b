"""row_add with one thread a row, and, on demand, a bug."""
# ruff: noqa: ARG001, ARG005  (what an Implementation is called with)

from dataclasses import dataclass

from tuner.arch import GPU, Arch
from tuner.operator import Implementation, Launch, Plan, Work
from tuner.space import Space

from .operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    stray: int  # a row of the table that is written although it may not be; -1: none


def plan(problem: Problem, config: Config) -> Plan:
    return Plan((Launch("row_add_naive", (-(-problem.rows // 32), 1, 1), 32, 0),), {})


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(Config, choices={"stray": (-1, 0, 1, 2, 3, 4)}, constraints=())


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    elements = problem.rows * problem.width
    launch = Work(
        ctas=-(-problem.rows // 32),
        warps=1,
        mma=0,
        fma=elements / 32,
        mufu=0,
        alu=0,
        smem_wavefronts=0,
        l2_bytes=12.0 * elements,
        dram_bytes=12.0 * elements,
        barriers=0,
        longest_cta=1.0,
        chain=problem.width,
    )
    return (launch,)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread a row",
    config=Config,
    refusal=lambda problem, arch: None,
    space=space,
    plan=plan,
    default=lambda problem, arch: Config(-1),
    work=work,
)
