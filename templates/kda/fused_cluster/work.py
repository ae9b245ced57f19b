"""The work of fused_cluster on a problem, counted from its loops; exact counts equal the emulator's counters."""

from tuner.arch import GPU
from tuner.spec import Work

from ..launches import state_bytes
from ..operands import BF16
from ..operator import cost
from ..prep_scan.config import WARP, prep_threads
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
from .config import Config, copied_bytes, threads


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact unless sequences are packed; other instructions are the minimum that the
    algorithm requires. Copies between blocks also read and write shared memory."""
    K, V, C = problem.key_dim, problem.value_dim, config.C
    NT, heads = -(-problem.mean_len // C), problem.sequences * problem.value_heads
    blocks, chunks = V // config.BV, heads * NT
    prepared = chunks * blocks // config.cluster  # once per cluster
    prep, scan = instructions(problem, config)
    copied = cluster_bytes(problem, config)
    row = blocks // config.cluster * prepared_row_bytes(problem) + 2 * problem.dtype.itemsize * V
    gate = read_gate_bytes(problem, config, heads * blocks * config.producers)
    launch = Work(
        ctas=blocks * heads,
        warps=int(threads(K, config)) // WARP,
        mma=prepared * prepared_mma(problem, config) + chunks * V // 16 * scan_mma(K, C),
        fma=prepared * prep.fma + chunks * scan.fma,
        mufu=prepared * prep.mufu,
        alu=prepared * prep.alu + chunks * scan.alu,
        smem_wavefronts=prepared * prep.wavefronts + chunks * scan.wavefronts + 2 * copied / 128,
        l2_bytes=float(problem.batch * problem.seq_len * problem.value_heads * row + gate + state_bytes(problem)),
        dram_bytes=float(cost(problem).bytes),
        barriers=5 * prepared * int(prep_threads(K, config) > WARP),
        chain=1 + NT,  # the first chunk is prepared before the state can advance
        stages=config.stages,
        step_mma=step_mma(K, config, BF16),
        step_other=max(step_other(config), _prepared_in_turn(problem, config)),
        cluster_bytes=float(copied),
    )
    return (launch,)


def cluster_bytes(problem: Problem, config: Config) -> int:
    """Total bytes copied between blocks."""
    chunks = problem.sequences * problem.value_heads * -(-problem.mean_len // config.C)
    copies = problem.value_dim // config.BV // config.cluster * (config.cluster - 1)
    return chunks * copies * int(copied_bytes(problem.key_dim, config))


def _prepared_in_turn(problem: Problem, config: Config) -> float:
    """Time that a step waits besides its own products if the producers of the cluster are slower."""
    return prep_step(problem, config) / (config.producers * config.cluster) - step_mma(problem.key_dim, config, BF16)
