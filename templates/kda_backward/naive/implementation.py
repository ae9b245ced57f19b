"""kda_backward in fp32 with one thread per column of the state: the baseline."""

from dataclasses import dataclass

from tuner.arch import GPU, Arch
from tuner.spec import DType, Implementation, Launch, Plan, Space, Work, Workspace

from ..gate_gradients import gate_constants, gate_launch, gate_sums, gate_sums_bytes, gate_work, state_bytes
from ..operator import cost
from ..problem import Problem

COLUMNS = 32  # columns per block: one per lane of a warp


@dataclass(frozen=True, slots=True)
class Config:
    span: int  # tokens between stored states: trades memory for arithmetic


def space(_problem: Problem, _arch: Arch) -> Space[Config]:
    return Space(
        Config,
        choices={"span": (2, 4, 8, 16)},
    )


def plan(problem: Problem, config: Config) -> Plan:
    K, V, B, HV = problem.key_dim, problem.value_dim, problem.batch, problem.value_heads
    grid, smem = (_blocks(problem), HV, problem.sequences), _smem_bytes(problem)
    sizes = ("seq_len", "heads", "value_heads")
    gated = ("g", "beta", "A_log", "dt_bias", "lower_bound")
    forward = ("k", "v", *gated, "cu_seqlens", "initial_state", *sizes, "states")
    backward = ("q", "k", "v", *gated, "d_o", "cu_seqlens", "dht", "dv", "dh0", "scale", *sizes, "states", "partials")
    summed = (
        "q",
        "k",
        *gated,
        "dq",
        "dk",
        "dg",
        "dbeta",
        *sizes,
        "partials",
        *("gate_sums",) * problem.use_gate_in_kernel,
    )
    launches = (
        Launch("kda_backward_forward", grid, COLUMNS, smem, forward),
        Launch("kda_backward_reverse", grid, COLUMNS, smem, backward),
        Launch("kda_backward_sum", (problem.seq_len, HV, B), COLUMNS, 0, summed),
        *gate_launch(problem),
    )
    states = Workspace("states", DType.FP32, (B, HV, problem.pieces(config.span), K, V))
    partials = Workspace("partials", DType.FP32, (_blocks(problem), B, problem.seq_len, HV, 3 * K + 1))
    constants = {"smem_bytes": smem, **gate_constants(problem)}
    return Plan(launches, constants, (states, partials, *gate_sums(problem, problem.seq_len)))


def default(_problem: Problem, _arch: Arch) -> Config:
    return Config(8)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Each warp reads q, k and g by itself; a token of reverse repeats span / 2 steps of forward besides its own."""
    steps = problem.batch * problem.value_heads * _blocks(problem) * problem.seq_len  # tokens, summed over warps
    recomputed_steps = (config.span + 1) / 2
    floor = cost(problem).bytes
    return (
        _passes(problem, config, steps, steps=1, fma=5, smem=4, dram=floor),
        _passes(
            problem,
            config,
            steps,
            steps=recomputed_steps,
            fma=5 * recomputed_steps + 32,
            smem=4 * recomputed_steps + 8,
            dram=floor,
        ),
        _sum_work(problem),
        *gate_work(problem, problem.seq_len),
    )


def _passes(problem: Problem, config: Config, tokens: int, steps: float, fma: float, smem: float, dram: float) -> Work:
    """A launch that processes all `tokens`, each with `steps` updates of a column."""
    K, element = problem.key_dim, problem.dtype.itemsize
    row = K * (2 * element + problem.gate_dtype.itemsize) + 3 * element * COLUMNS
    states = 4 * problem.batch * problem.value_heads * problem.pieces(config.span) * K * problem.value_dim
    return Work(
        ctas=_blocks(problem) * problem.value_heads * problem.sequences,
        warps=1,
        fma=tokens * fma * K,
        mufu=tokens * steps * K,
        alu=tokens * steps * 3 * K,
        smem_wavefronts=tokens * smem * K,
        l2_bytes=tokens * steps * row + states + state_bytes(problem),
        dram_bytes=dram + states,
        chain=problem.mean_len * steps,
    )


def _sum_work(problem: Problem) -> Work:
    rows = problem.batch * problem.value_heads * problem.seq_len
    additions = rows * _blocks(problem) * (3 * problem.key_dim + 1)
    written = problem.key_dim * (2 * problem.dtype.itemsize + problem.gate_dtype.itemsize)
    gate_bytes = gate_sums_bytes(problem, problem.seq_len)
    return Work(
        ctas=rows,
        warps=1,
        fma=additions / COLUMNS,
        alu=3 * additions / COLUMNS,
        l2_bytes=4 * additions + rows * written + gate_bytes,
        dram_bytes=4 * additions + rows * written + gate_bytes,
        chain=_blocks(problem),
    )


def _smem_bytes(problem: Problem) -> int:
    """Each thread has a column of the state and one of its gradient."""
    return 2 * 4 * problem.key_dim * COLUMNS


def _blocks(problem: Problem) -> int:
    return -(-problem.value_dim // COLUMNS)


IMPLEMENTATION = Implementation(
    name="naive",
    summary="one thread per column of the state, fp32 arithmetic; the oracle of the others",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    work=work,
    example=Problem(key_dim=64, value_dim=64, use_initial_state=True, use_final_gradient=True),
    oracle=True,
)
