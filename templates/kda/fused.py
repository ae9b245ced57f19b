"""kda in one launch on mma.sync (sm_80 and up): some warps prepare chunks, others carry the state through them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.errors import TemplateError
from tuner.operator import Implementation, Launch, Plan, Work
from tuner.space import Constraint, Space

from .operator import cost
from .optional import TENSORS, pointers, state_bytes, taken
from .prep_scan import refusal
from .prep_scan_config import BF16, WARP, image_bytes, prep_smem_bytes, prep_threads, tokens_fit
from .prep_scan_work import instructions, prep_mma, scan_mma
from .problem import Problem

ENTRY = "kda_fused"


@dataclass(frozen=True, slots=True)
class Config:
    C: int  # tokens a chunk
    BV: int  # columns of the state a block; every block of a head prepares its chunks anew
    rows: int  # of them, a warp: rows of the transposed state
    stages: int  # slots for chunks
    partials: int  # sums that the state's product with k is split into: shorter chains of mma
    prep_groups: int  # threads that share two channels of a chunk, each C / prep_groups tokens
    producers: int  # groups of threads that prepare chunks in turn


def threads(K: int, c: Any) -> Any:
    return c.BV // c.rows * WARP + c.producers * prep_threads(K, c)


def smem_bytes(K: int, c: Any) -> Any:
    """A ring of images with their values, and what each group of producers works in."""
    stage = image_bytes(K, c.C) + BF16 * c.C * c.BV
    return c.stages * stage + c.producers * (-(-prep_smem_bytes(K, c) // 128) * 128)


def register_estimate(K: int, c: Any) -> Any:
    """Registers a thread: the larger of what carries the state and what prepares chunks."""
    tokens = c.rows * c.C / 32
    carries = c.rows * K / 32 + tokens * (1.5 + c.partials) + 40
    return np.maximum(carries, np.maximum(100 + 3 * c.C // c.prep_groups, c.C + 60))


def space(problem: Problem, arch: Arch) -> Space[Config]:
    K, V = problem.key_dim, problem.value_dim
    return Space(
        Config,
        choices={
            "C": (16, 32),
            "BV": (16, 32, 48, 64, 96, 128, 256),
            "rows": (16, 32),
            "stages": (2, 3, 4),
            "partials": (1, 2),
            "prep_groups": (1, 2, 4, 8, 16),
            "producers": (1, 2, 3, 4),
        },
        constraints=(
            Constraint("blocks share the columns of the state evenly", lambda c: V % c.BV == 0),
            Constraint("warps share the columns of a block evenly", lambda c: c.BV % c.rows == 0),
            Constraint("a producer has 2 to 16 tokens", tokens_fit),
            Constraint(
                "a stage is always filled by the same producers, so that its barriers keep their order",
                lambda c: c.stages % c.producers == 0,
            ),
            Constraint("a group of producers is whole warps", lambda c: prep_threads(K, c) % WARP == 0),
            Constraint("a block has at most 1024 threads", lambda c: threads(K, c) <= arch.threads_per_block),
            Constraint(
                "the stages and the producers fit the shared memory", lambda c: smem_bytes(K, c) <= arch.smem_per_block
            ),
            Constraint(
                "the state fits the registers",
                lambda c: register_estimate(K, c) <= np.minimum(arch.registers_per_sm // threads(K, c) // 8 * 8, 255),
            ),
        ),
    )


def plan(problem: Problem, config: Config) -> Plan:
    K = problem.key_dim
    names = (*TENSORS, "scale", "lower_bound", "seq_len", "heads", "value_heads")
    smem = int(smem_bytes(K, config))
    grid = (problem.value_dim // config.BV, problem.value_heads, problem.sequences)
    launch = Launch(ENTRY, grid, int(threads(K, config)), smem, taken(problem, *names))
    return Plan((launch,), {"smem_bytes": smem, **pointers(problem)})


_THREADS = 384  # leave each 168 registers, where no arch spills


def default(problem: Problem, arch: Arch) -> Config:
    """Half of a wide state a block, and two groups of producers where shared memory holds them."""
    found = space(problem, arch)
    for BV in (64, 48, 32, 16):
        for stages, producers in ((4, 2), (2, 2), (2, 1)):
            for groups in (2, 4, 1, 8):
                config = Config(16, BV, 16, stages, 1, groups, producers)
                if threads(problem.key_dim, config) <= _THREADS and found.refusal(config) is None:
                    return config
    raise TemplateError(f"{arch.name} has no room for the smallest chunk of key_dim {problem.key_dim}")


def work(problem: Problem, config: Config, _gpu: GPU) -> Work:
    """mma, bytes and barriers are exact unless sequences are packed; other instructions are those that the mathematics
    needs."""
    K, V, C = problem.key_dim, problem.value_dim, config.C
    NT, heads = -(-problem.mean_len // C), problem.sequences * problem.value_heads
    blocks, chunks = V // config.BV, heads * NT
    prep, scan = instructions(problem, config)
    element = problem.dtype.itemsize
    keys = 2 * element * (1 + problem.use_qk_l2norm_in_kernel)
    row = blocks * (K * (keys + problem.gate_dtype.itemsize) + problem.beta_dtype.itemsize) + 2 * element * V
    return Work(
        ctas=blocks * heads,
        warps=int(threads(K, config)) // WARP,
        mma=chunks * (blocks * prep_mma(K, C) + V // 16 * scan_mma(K, C)),
        fma=chunks * (blocks * prep.fma + scan.fma),
        mufu=chunks * blocks * (2 + (not problem.safe_gate)) * C * K / WARP,
        alu=chunks * (blocks * prep.alu + scan.alu),
        smem_wavefronts=chunks * (blocks * (prep.wavefronts + 2 * C * K / 64) + scan.wavefronts),
        l2_bytes=float(problem.batch * problem.seq_len * problem.value_heads * row + state_bytes(problem)),
        dram_bytes=float(cost(problem).bytes),
        barriers=heads * blocks * (5 * NT + max(0, NT - config.stages)),
        longest_cta=1,
        chain=NT,
        stages=config.stages,
    )


IMPLEMENTATION = Implementation(
    name="fused",
    summary="one launch without a workspace: warps that prepare chunks beside warps that carry the state",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
