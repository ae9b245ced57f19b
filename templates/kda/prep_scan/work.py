"""The work of prep_scan on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import dataclass
from typing import Any

from tuner.arch import GPU
from tuner.spec import Work

from ..launches import gate_bytes, state_bytes
from ..operands import BF16 as BF16_OPERANDS
from ..operands import Operands, operands_of
from ..operator import cost
from ..problem import Problem
from .config import (
    WARP,
    Config,
    by_registers,
    large_gate_barriers,
    prep_threads,
    scan_threads,
    triangle_blocks,
    used_image_bytes,
)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact; other instructions are the minimum that the algorithm requires. With packed
    sequences, counts are upper bounds."""
    return prep_work(problem, config), scan_work(problem, config)


def prep_work(problem: Problem, config: Any) -> Work:
    """The launch that computes the images; C, prep_groups and the fields that `instructions` reads are those of
    `config`."""
    K, C, operands = problem.key_dim, config.C, operands_of(problem)
    chunks = chunk_count(problem, C)
    mma = chunks * prep_mma(K, C, operands)
    prep, _ = instructions(problem, config)
    return Work(
        ctas=chunks,
        warps=int(prep_threads(K, config)) // WARP,
        mma=mma,
        fma=chunks * prep.fma,
        mufu=chunks * prep.mufu,
        alu=chunks * prep.alu,
        smem_wavefronts=chunks * (prep.wavefronts + used_image_bytes(K, C, operands) / 128),  # copied to the workspace
        l2_bytes=float(_prep_bytes(problem, config, chunks)),
        dram_bytes=float(key_bytes(problem) + chunks * used_image_bytes(K, C, operands)),
        barriers=(5 + large_gate_barriers(problem, config)) * chunks,
        chain=1,
        tf32=operands.tf32(mma),
        step_other=prep_step(problem, config),
    )


def scan_work(problem: Problem, config: Config) -> Work:
    """The launch that scans the state over the images."""
    K, V, C, operands = problem.key_dim, problem.value_dim, config.C, operands_of(problem)
    chunks, blocks, image = chunk_count(problem, C), V // config.BV, int(used_image_bytes(K, C, operands))
    mma = chunks * V // 16 * scan_mma(K, C, operands)
    _, scan = instructions(problem, config)
    ctas = blocks * problem.sequences * problem.value_heads
    other_bytes = cost(problem).bytes - key_bytes(problem)  # v, o and the states
    return Work(
        ctas=ctas,
        warps=int(scan_threads(config)) // WARP,
        mma=mma,
        fma=chunks * scan.fma,
        alu=chunks * scan.alu,
        smem_wavefronts=chunks * (scan.wavefronts + (blocks * image + problem.dtype.itemsize * C * V) / 128),
        l2_bytes=float(_scan_bytes(problem, config, chunks * blocks)),
        dram_bytes=float(other_bytes + chunks * image),
        barriers=chunks * blocks + (config.ahead > 0) * ctas,  # one per chunk, and one before the first
        chain=-(-problem.mean_len // C),
        stages=config.stages,
        tf32=operands.tf32(mma),
        step_mma=step_mma(K, config, operands),
        step_other=step_other(config),
    )


def chunk_count(problem: Problem, C: int) -> int:
    """Images of all heads."""
    return problem.batch * problem.value_heads * images(problem, C)


def key_bytes(problem: Problem) -> int:
    """Bytes of q, k, g, beta, and the parameters of the gate, each moved once."""
    keys = 2 * problem.heads * problem.dtype.itemsize * problem.key_dim
    gates = problem.value_heads * (problem.gate_dtype.itemsize * problem.key_dim + problem.beta_dtype.itemsize)
    return problem.batch * problem.seq_len * (keys + gates) + gate_bytes(problem)


def images(problem: Problem, C: int) -> int:
    """Images per batch entry and head: with packed sequences, the maximum over all lengths."""
    return problem.seq_len // C + problem.sequences if problem.use_cu_seqlens else -(-problem.seq_len // C)


def prepared_row_bytes(problem: Problem, outputs: bool = True) -> int:
    """Bytes that preparing a token and head reads, including q only for `outputs`: q and k are read twice if normalized
    in the kernel by threads that are no part of a warp, since their norm is computed first."""
    read_twice = problem.use_qk_l2norm_in_kernel and WARP % (problem.key_dim // 4) != 0
    keys = (1 + outputs) * problem.dtype.itemsize * (1 + read_twice)
    return problem.key_dim * (keys + problem.gate_dtype.itemsize) + problem.beta_dtype.itemsize


def read_gate_bytes(problem: Problem, config: Any, groups: int) -> int:
    """Bytes of A_log and dt_bias that `groups` groups of preparing threads read: once per thread, for four channels."""
    reads = problem.use_gate_in_kernel + 4 * problem.use_dt_bias
    return 4 * int(prep_threads(problem.key_dim, config)) * groups * reads


def prep_mma(K: int, C: int, operands: Operands = BF16_OPERANDS, outputs: bool = True) -> int:
    """m16n8k16 of one chunk, or twice as many m16n8k8: M and the updates; with `outputs` also P and P T'."""
    subs, blocks = C // 16, int(triangle_blocks(C))
    tiles = 4 * blocks * K // 16 + outputs * (2 * blocks * K // 16 + subs * (subs + 1) * (subs + 2) // 3)
    return operands.products * tiles


def prepared_mma(problem: Problem, config: Any) -> int:
    """m16n8k16 of one chunk if a warp may compute M and P from registers: then gates are summed by products too."""
    K = problem.key_dim
    return prep_mma(K, config.C, operands_of(problem)) + by_registers(problem, config) * K // 4


def scan_mma(K: int, C: int, operands: Operands = BF16_OPERANDS) -> int:
    """m16n8k16 of one chunk and 16 columns of the state, or twice as many m16n8k8: keys, queries and the update;
    products between tokens of the same chunk."""
    return operands.products * (3 * (K // 16) * (C // 8) + 2 * int(triangle_blocks(C)))


def step_mma(K: int, config: Any, operands: Operands = BF16_OPERANDS) -> float:
    """Dependent mma of one chunk: the sums of the values recalled from the state, then the updates of one tile of the
    state."""
    return operands.products * (K // operands.step / config.partials + config.C // operands.step)


def step_other(config: Any) -> float:
    """Other dependent instructions: the state is packed, partial sums are added, new values are packed."""
    return 2 + (config.partials - 1)


def prep_step(problem: Problem, config: Any) -> float:
    """Time for a warp to prepare a chunk, in dependent results: 45 (from registers 30), plus 4 per token of a thread;
    more with in-kernel normalization and gates.

    Most of it is instructions that a warp issues in order: the README has the count.
    """
    token = 4 + problem.use_qk_l2norm_in_kernel + 2 * problem.use_gate_in_kernel
    return 45 - 15 * by_registers(problem, config) + token * config.C / config.prep_groups


@dataclass(frozen=True, slots=True)
class Instructions:
    """Per warp and chunk: fp32, integer and special instructions, and shared-memory wavefronts."""

    fma: float
    alu: float
    mufu: float
    wavefronts: float


def instructions(problem: Problem, config: Any) -> tuple[Instructions, Instructions]:
    """Instructions to prepare a chunk, and those of all columns of the state for it; copies are not included."""
    K, C, V = problem.key_dim, config.C, problem.value_dim
    elements, values, state = C * K / WARP, C * V / WARP, K * V / WARP
    blocks, steps, warps = triangle_blocks(C), K / 16, V // config.rows
    operands = operands_of(problem)
    wide = operands.nbytes / 2  # relative to 16-bit tiles
    # Four tiles are stored, P and M multiplied, the updates multiplied and stored. A single warp reads k^ once for P
    # and M, and in bf16 T' once for all updates.
    single_warp = prep_threads(K, config) == WARP
    saved_wavefronts = 4 * blocks * (steps - 1) * (single_warp and operands == BF16_OPERANDS)
    prep_wavefronts = wide * (2.5 * elements + (20 if single_warp else 24) * blocks * steps) - saved_wavefronts
    if by_registers(
        problem, config
    ):  # three tiles are stored; gates and k¯ are transposed, pair by pair; the decay is stored and loaded
        prep_wavefronts = 1.5 * elements + elements + elements / 2
    # Keys, queries and updates of each warp; decay, a broadcast; P T'; v.
    scan_wavefronts = warps * (wide * (12 * steps * C / 16 + 4 * blocks) + 2 * steps) + wide * values / 2
    packs = wide * state / 2 + values  # conversions of the state, and of x and o
    halves = _split_conversions(K, config, V, operands)
    fma, alu, mufu = (elements * count for count in _element_instructions(problem, by_registers(problem, config)))
    return (
        Instructions(fma + C * C / 2, alu, mufu, prep_wavefronts),
        Instructions(
            state + (config.partials - 1) * values + halves, packs + 4 * warps * steps + halves, 0, scan_wavefronts
        ),
    )


def _element_instructions(problem: Problem, registers: bool) -> tuple[float, float, float]:
    """fp32, integer and special instructions per token and channel of q, k and g before any product; a norm needs two
    squares, which are unpacked and summed, and a factor."""
    lengths, gated = problem.use_qk_l2norm_in_kernel, problem.use_gate_in_kernel
    if registers:
        return 5 + 3 * lengths, 4 + 2 * lengths, 2
    bounded = problem.use_lower_bound
    softplus = gated and not bounded
    return 8 + 3.5 * lengths + 9 * softplus + 3 * bounded, 6 + 3 * lengths + softplus, 2 + gated + bounded


def _split_conversions(K: int, config: Any, V: int, operands: Operands) -> float:
    """Conversions, and as many subtractions, that split operands of scan: the state, x, and one image per warp."""
    if operands.products == 1:
        return 0
    image = 3 * config.C * K + 256 * triangle_blocks(config.C)
    return float((V * (K + config.C) + V // config.rows * image) / WARP)


def _prep_bytes(problem: Problem, config: Config, chunks: int) -> float:
    """Bytes of q, k, g and its gate read, and images written."""
    tokens = problem.batch * problem.value_heads * problem.seq_len
    image = int(used_image_bytes(problem.key_dim, config.C, operands_of(problem)))
    return tokens * prepared_row_bytes(problem) + chunks * image + read_gate_bytes(problem, config, chunks)


def _scan_bytes(problem: Problem, config: Config, visits: int) -> float:
    """Bytes of images read, once per block; v read, o written; the states."""
    tokens = problem.batch * problem.value_heads * problem.seq_len
    images = visits * int(used_image_bytes(problem.key_dim, config.C, operands_of(problem)))
    return images + 2 * tokens * problem.dtype.itemsize * problem.value_dim + state_bytes(problem)
