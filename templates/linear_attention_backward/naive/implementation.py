"""linear_attention_backward with one thread per channel of a sequence: the baseline."""

from dataclasses import dataclass

from tuner.arch import GPU, Arch
from tuner.spec import DType, Implementation, Launch, Plan, Space, Work, Workspace

from ...linear_attention.tiles import WARP
from ...linear_attention.work import beta_bytes, tensor_bytes
from .. import beta_sums
from ..operator import INPUTS, OUTPUTS, SCALARS, cost
from ..problem import Problem
from ..work import state_bytes

ENTRY = "linear_attention_backward_naive"


@dataclass(frozen=True, slots=True)
class Config:
    threads: int  # threads per block
    span: int  # tokens between stored states: trades memory for registers


def space(_problem: Problem, _arch: Arch) -> Space[Config]:
    return Space(Config, choices={"threads": (32, 64, 128, 256), "span": (2, 4, 8)})


def plan(problem: Problem, config: Config) -> Plan:
    arguments = (*INPUTS, *OUTPUTS, *SCALARS, "states", *("beta_parts",) * problem.use_beta)
    main = Launch(ENTRY, (_blocks(problem, config), 1, 1), config.threads, 0, arguments)
    states = Workspace("states", DType.FP32, (_stored(problem, config), problem.channels, 4))  # two fp64 each
    return Plan(
        launches=(main, *beta_sums.launch(problem)),
        constants={**beta_sums.constants(problem)},
        workspaces=(states, *beta_sums.parts(problem, problem.sequences)),
    )


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """k and v are read twice, from DRAM: a thread finishes its sequence before it returns to a token. Loads of a span
    wait for those of the previous span."""
    lanes = problem.elements / WARP
    states = 2 * 16 * _stored(problem, config) * problem.channels  # written and read
    betas = problem.sequences * problem.channels * (beta_bytes(problem, 1) + 8 * problem.varlen)
    reread_bytes = tensor_bytes(problem, 2) + states
    main = Work(
        ctas=_blocks(problem, config),
        warps=config.threads // WARP,
        fma=lanes * 40,
        mufu=lanes * 6,
        alu=lanes * 40,
        l2_bytes=tensor_bytes(problem, 7)
        + reread_bytes
        + betas
        + state_bytes(problem, 1, 1)
        + beta_sums.part_bytes(problem, problem.sequences),
        dram_bytes=cost(problem).bytes + reread_bytes,
        chain=2 * -(-problem.seq_len * problem.batch // (problem.sequences * config.span)),
    )
    return (main, *beta_sums.work(problem, problem.sequences))


def _blocks(problem: Problem, config: Config) -> int:
    return -(-problem.sequences * problem.channels // config.threads)


def _stored(problem: Problem, config: Config) -> int:
    """Spans of the tokens of all sequences; for packed sequences, the maximum over all lengths."""
    if problem.varlen:
        return problem.seq_len // config.span + problem.sequences
    return problem.batch * -(-problem.seq_len // config.span)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread per channel, one token after the other, in fp64; the oracle of the others",
    config=Config,
    space=space,
    plan=plan,
    default=lambda _problem, _arch: Config(128, 4),
    work=work,
    example=Problem(use_initial_state=True, use_final_gradient=True),
    oracle=True,
)
