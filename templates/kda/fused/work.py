"""The work of fused on a problem, counted from its loops; exact counts equal the emulator's counters."""

from typing import Any

from tuner.arch import GPU
from tuner.spec import Work

from ..launches import state_bytes
from ..operands import operands_of
from ..operator import cost
from ..prep_scan.config import WARP
from ..prep_scan.work import (
    instructions,
    prep_step,
    prepared_mma,
    prepared_row_bytes,
    read_gate_bytes,
    scan_mma,
    step_mma,
    step_other,
)
from ..problem import Problem
from .config import Config, block_threads, chunk_barriers


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact unless sequences are packed; other instructions are the minimum that the
    algorithm requires."""
    K, V, C, operands = problem.key_dim, problem.value_dim, config.C, operands_of(problem)
    NT, heads = -(-problem.mean_len // C), problem.sequences * problem.value_heads
    blocks, chunks = V // config.BV, heads * NT
    mma = chunks * (blocks * prepared_mma(problem, config) + V // 16 * scan_mma(K, C, operands))
    prep, scan = instructions(problem, config)
    element = problem.dtype.itemsize
    row = blocks * prepared_row_bytes(problem) + 2 * element * V
    gate = read_gate_bytes(problem, config, heads * blocks * config.producers)
    launch = Work(
        ctas=blocks * heads,
        warps=int(block_threads(K, config, config.BV, config.rows)) // WARP,
        mma=mma,
        fma=chunks * (blocks * prep.fma + scan.fma),
        mufu=chunks * blocks * prep.mufu,
        alu=chunks * (blocks * prep.alu + scan.alu),
        smem_wavefronts=chunks * (blocks * prep.wavefronts + scan.wavefronts),
        l2_bytes=float(problem.batch * problem.seq_len * problem.value_heads * row + gate + state_bytes(problem)),
        dram_bytes=float(cost(problem).bytes),
        barriers=heads * blocks * (chunk_barriers(problem, config) * NT + max(0, NT - config.stages)),
        chain=1 + NT,  # the first chunk is prepared before the state can advance
        stages=config.stages,
        tf32=operands.tf32(mma),
        step_mma=step_mma(K, config, operands),
        step_other=max(step_other(config), prepared_in_turn(problem, config)),
    )
    return (launch,)


def prepared_in_turn(problem: Problem, config: Any) -> float:
    """Time that a step waits besides its own products if the producers are slower."""
    return prep_step(problem, config) / config.producers - step_mma(problem.key_dim, config, operands_of(problem))
