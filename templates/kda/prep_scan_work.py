"""What prep_scan does for a problem, counted from its loops: the emulator's counters agree with the exact ones."""

from dataclasses import dataclass
from typing import Any

from tuner.arch import GPU
from tuner.operator import Work

from .operator import cost
from .optional import state_bytes
from .prep_scan_config import (
    WARP,
    Config,
    scan_threads,
    triangle_blocks,
    used_image_bytes,
)
from .problem import Problem


def work(problem: Problem, config: Config, _gpu: GPU) -> Work:
    """Work of both launches. mma, bytes and barriers are exact; other instructions are those that the mathematics
    needs. With packed sequences, counts are bounds from above. `ctas`, `warps` and `chain` are those of scan, which
    is the serial part."""
    NT = images(problem, config.C)
    chunks = problem.batch * problem.value_heads * NT
    blocks = problem.value_dim // config.BV
    warps = int(scan_threads(config)) // WARP
    tiles = problem.value_dim // 16  # of 16 columns of the state
    prep, scan = instructions(problem, config)
    copied = blocks * used_image_bytes(problem.key_dim, config.C) + 2 * config.C * problem.value_dim
    return Work(
        ctas=blocks * problem.sequences * problem.value_heads,
        warps=warps,
        mma=chunks * (prep_mma(problem.key_dim, config.C) + tiles * scan_mma(problem.key_dim, config.C)),
        fma=chunks * (prep.fma + scan.fma),
        mufu=chunks * (2 + (not problem.safe_gate)) * config.C * problem.key_dim / WARP,
        alu=chunks * (prep.alu + scan.alu),
        smem_wavefronts=chunks * (prep.wavefronts + scan.wavefronts + copied / 128),
        l2_bytes=float(_prep_bytes(problem, config, chunks) + _scan_bytes(problem, config, chunks * blocks)),
        dram_bytes=float(cost(problem).bytes + 2 * chunks * used_image_bytes(problem.key_dim, config.C)),
        barriers=chunks * (5 + blocks),
        longest_cta=1,
        chain=-(-problem.mean_len // config.C),
        stages=config.stages,
    )


def images(problem: Problem, C: int) -> int:
    """Chunks of a batch's head that have an image: with packed sequences, what any lengths may need."""
    return problem.seq_len // C + problem.sequences if problem.use_cu_seqlens else -(-problem.seq_len // C)


def prep_mma(K: int, C: int) -> int:
    """m16n8k16 of one chunk: M and P; the updates; P T'."""
    subs, blocks = C // 16, int(triangle_blocks(C))
    return 4 * blocks * K // 16 + 2 * blocks * K // 16 + subs * (subs + 1) * (subs + 2) // 3


def scan_mma(K: int, C: int) -> int:
    """m16n8k16 of one chunk and 16 columns of the state: keys, queries, the update; tokens of the same chunk."""
    return 3 * (K // 16) * (C // 8) + 2 * int(triangle_blocks(C))


@dataclass(frozen=True, slots=True)
class Instructions:
    """Of a warp, for one chunk: fp32 and integer ones, and cycles of shared memory."""

    fma: float
    alu: float
    wavefronts: float


def instructions(problem: Problem, config: Any) -> tuple[Instructions, Instructions]:
    """What preparing a chunk takes, and what all columns of the state do with it; copies are not among them."""
    K, C, V = problem.key_dim, config.C, problem.value_dim
    elements, values, state = C * K / WARP, C * V / WARP, K * V / WARP
    blocks, steps, warps = triangle_blocks(C), K / 16, V // config.rows
    # Four tiles stored, P and M multiplied, the updates multiplied, stored and copied out.
    prep_wavefronts = 3.5 * elements + 24 * blocks * steps
    # Keys, queries and updates of each warp; decay, a broadcast; P T'; v.
    scan_wavefronts = warps * (12 * steps * C / 16 + 2 * steps + 4 * blocks) + values / 2
    packs = state / 2 + values  # of the state, and of x and o
    return (
        Instructions(14 * elements + C * C / 2, 6 * elements, prep_wavefronts),
        Instructions(state + (config.partials - 1) * values, packs + 4 * warps * steps, scan_wavefronts),
    )


def _prep_bytes(problem: Problem, config: Config, chunks: int) -> float:
    """q, k and g in (twice where rows are normalised first), images out."""
    tokens = problem.batch * problem.value_heads * problem.seq_len
    keys = 2 * problem.dtype.itemsize * (1 + problem.use_qk_l2norm_in_kernel)
    row = problem.key_dim * (keys + problem.gate_dtype.itemsize) + problem.beta_dtype.itemsize
    return tokens * row + chunks * int(used_image_bytes(problem.key_dim, config.C))


def _scan_bytes(problem: Problem, config: Config, visits: int) -> float:
    """Images in, once a block; v in, o out; the states."""
    tokens = problem.batch * problem.value_heads * problem.seq_len
    images = visits * int(used_image_bytes(problem.key_dim, config.C))
    return images + 2 * tokens * problem.dtype.itemsize * problem.value_dim + state_bytes(problem)
