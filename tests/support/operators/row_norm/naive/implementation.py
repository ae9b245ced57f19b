"""row_norm with one thread a row."""
# ruff: noqa: ARG001  (what an Implementation is called with)

from dataclasses import dataclass

from tuner.arch import GPU, Arch
from tuner.spec import Implementation, Launch, Plan, Space, Work

from ..operator import Problem


@dataclass(frozen=True, slots=True)
class Config:
    threads: int


def plan(problem: Problem, config: Config) -> Plan:
    return Plan((Launch("row_norm_naive", (-(-problem.rows // config.threads), 1, 1), config.threads, 0),), {})


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return Space(Config, choices={"threads": (32, 64)}, constraints=())


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    elements = problem.rows * problem.width
    launch = Work(
        ctas=-(-problem.rows // config.threads),
        warps=config.threads // 32,
        mma=0,
        fma=elements / 32,
        mufu=problem.rows / 32,
        alu=elements / 32,
        smem_wavefronts=0,
        l2_bytes=8.0 * elements,
        dram_bytes=8.0 * elements,
        barriers=0,
        longest_cta=1.0,
        chain=problem.width / 1,
    )
    return (launch,)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread a row",
    config=Config,
    space=space,
    plan=plan,
    work=work,
    oracle=True,
)
