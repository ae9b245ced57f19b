"""The work of fused_wgmma on a problem, counted from its loops; exact counts equal the emulator's counters."""

from tuner.arch import GPU
from tuner.spec import Work

from ..launches import state_bytes
from ..operator import cost
from ..prep_scan.config import BF16, WARP
from ..prep_scan.work import (
    instructions,
    prep_step,
    prepared_mma,
    prepared_row_bytes,
    read_gate_bytes,
    step_mma,
    step_other,
)
from ..problem import Problem
from .config import CARRIERS, COLUMNS, Config, Shape, ahead, copied_bytes, shape, threads

_LOADED = 18.0  # latency of a load from DRAM, in dependent results, if a producer does not prefetch its next chunk


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, wgmma, bytes and barriers are exact unless sequences are packed; other instructions are the minimum that the
    algorithm requires. Copies between blocks also read and write shared memory."""
    K, V, chunk = problem.key_dim, problem.value_dim, shape(problem.key_dim)
    NT, heads = -(-problem.mean_len // chunk.C), problem.sequences * problem.value_heads
    blocks, carried = V // config.columns, heads * V // COLUMNS * NT
    prepared = heads * blocks // config.cluster * NT  # once per cluster
    copied = prepared * (config.cluster - 1) * copied_bytes(K)
    prep, scan = instructions(problem, chunk)
    row = blocks // config.cluster * prepared_row_bytes(problem) + 2 * problem.dtype.itemsize * V
    gate = read_gate_bytes(problem, chunk, heads * blocks * config.producers)
    launch = Work(
        ctas=heads * blocks,
        warps=int(threads(config)) // WARP,
        mma=prepared * prepared_mma(problem, chunk)
        + carried * 2 * CARRIERS,  # the products between the tokens of a chunk
        wgmma=carried * CARRIERS * 3 * K // 8,
        fma=prepared * prep.fma + heads * NT * scan.fma,
        mufu=prepared * prep.mufu,
        alu=prepared * prep.alu + heads * NT * scan.alu,
        smem_wavefronts=prepared * prep.wavefronts + carried * _carried_wavefronts(K, chunk) + 2 * copied / 128,
        l2_bytes=float(problem.batch * problem.seq_len * problem.value_heads * row + gate + state_bytes(problem)),
        dram_bytes=float(cost(problem).bytes),
        barriers=heads * blocks * (config.cluster == 1),
        chain=1 + NT,  # the first chunk is prepared before the state can advance
        stages=config.stages,
        step_mma=step_mma(K, chunk),
        step_other=max(step_other(chunk), _prepared_in_turn(problem, chunk, config)),
        cluster_bytes=float(copied),
    )
    return (launch,)


def _carried_wavefronts(K: int, chunk: Shape) -> float:
    """Wavefronts of a chunk and 64 columns: tiles that wgmma reads once for all warps; P T' per warp, and decay, a
    broadcast; v."""
    tiles = 3 * chunk.C * K * BF16 / 128
    return tiles + CARRIERS * (4 + 2 * K / 16) + chunk.C * COLUMNS * BF16 / 128


def _prepared_in_turn(problem: Problem, chunk: Shape, config: Config) -> float:
    """Time that a step waits besides its own products if producers are slower."""
    loaded = 0 if ahead(problem, config) else _LOADED
    prepared = (prep_step(problem, chunk) + loaded) / (config.producers * config.cluster)
    return prepared - step_mma(problem.key_dim, chunk)
