"""The work of segmented_fused on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import dataclass

from tuner.arch import GPU
from tuner.spec import Work

from ..fused.config import chunk_barriers
from ..fused.work import prepared_in_turn
from ..launches import state_bytes
from ..operands import operands_of
from ..prep_scan.config import WARP, prep_threads
from ..prep_scan.work import (
    instructions,
    prep_mma,
    prepared_row_bytes,
    scan_mma,
    step_mma,
    step_other,
)
from ..problem import Problem
from ..segmented.config import FP32
from ..segmented.work import chunks_of_segments, map_mma, merge_work
from .config import Config, map_threads, scan_threads


@dataclass(frozen=True, slots=True)
class Visits:
    """Segments that the blocks of a launch process, of one sequence and head."""

    chunks: tuple[int, ...]  # chunks of each segment
    tokens: int  # tokens in total
    blocks: int  # blocks that share a segment's columns
    columns: int  # columns of a segment
    outputs: bool  # whether o is computed, or only the state

    def prep_mma(self, problem: Problem, C: int) -> int:
        return self.blocks * prep_mma(problem.key_dim, C, operands_of(problem), self.outputs)

    def chunk_mma(self, problem: Problem, C: int) -> int:
        """Products per chunk, over all blocks."""
        carry = scan_mma if self.outputs else map_mma
        return self.prep_mma(problem, C) + self.columns // 16 * carry(problem.key_dim, C, operands_of(problem))

    def l2_bytes(self, problem: Problem, config: Config) -> int:
        """Bytes of q, k, g, dt_bias and beta, once per block; of v, and of o."""
        producers = self.blocks * len(self.chunks) * config.producers * int(prep_threads(problem.key_dim, config))
        bias = 4 * FP32 * producers * problem.use_dt_bias  # four channels per thread
        rows = self.blocks * prepared_row_bytes(problem, self.outputs) + self.value_bytes(problem)
        return self.tokens * rows + bias

    def dram_bytes(self, problem: Problem) -> float:
        """Each tensor is moved once."""
        keys = (1 + self.outputs) * problem.dtype.itemsize * problem.heads / problem.value_heads
        gates = problem.key_dim * (keys + problem.gate_dtype.itemsize) + problem.beta_dtype.itemsize
        return self.tokens * (gates + self.value_bytes(problem))

    def value_bytes(self, problem: Problem) -> int:
        return (1 + self.outputs) * problem.dtype.itemsize * problem.value_dim

    def barriers(self, problem: Problem, config: Config) -> int:
        counts = (n * chunk_barriers(problem, config) + max(0, n - config.stages) for n in self.chunks)
        return self.blocks * sum(counts)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact; packed sequences are assumed to have equal lengths. Other instructions are the
    minimum that the algorithm requires."""
    K, V, chunks = problem.key_dim, problem.value_dim, chunks_of_segments(problem, config)
    first = min(problem.mean_len, chunks[0] * config.C)
    inner, scanned = chunks[1:-1], chunks[1:]
    blocks, map_blocks = V // config.BV, (K + V) // config.map_columns
    first_segment = Visits((chunks[0],), first, blocks, V, outputs=True)
    maps = Visits(tuple(inner), sum(inner) * config.C, map_blocks, K + V, outputs=False)
    later_segments = Visits(tuple(scanned), problem.mean_len - first, blocks, V, outputs=True)
    heads, last = problem.sequences * problem.value_heads, state_bytes(problem)
    start = FP32 * K * V * problem.initial_states * problem.value_heads
    stored = FP32 * heads * K * ((len(inner) + bool(scanned)) * V + len(inner) * K)
    ends = 0 if scanned else last - start
    return (
        _launch_work(
            problem, config, (first_segment, maps), map_blocks, int(map_threads(K, config)), start + stored + ends
        ),
        merge_work(problem, config),
        _launch_work(
            problem,
            config,
            (later_segments,),
            blocks,
            int(scan_threads(K, config)),
            (FP32 * heads * len(scanned) * K * V + last - start) * bool(scanned),
        ),
    )


def _launch_work(
    problem: Problem, config: Config, visits: tuple[Visits, ...], blocks: int, threads: int, states: int
) -> Work:
    """`blocks` blocks per segment that prepare and carry; `states`: bytes of states and maps read and written."""
    K, V, C, operands = problem.key_dim, problem.value_dim, config.C, operands_of(problem)
    heads = problem.sequences * problem.value_heads
    prep, scan = instructions(problem, config)
    mma = sum(heads * sum(visit.chunks) * visit.chunk_mma(problem, C) for visit in visits)
    # Instructions of each kind are proportional to its products, since a map needs fewer because it does not compute o.
    prepared = heads * sum(sum(v.chunks) * v.prep_mma(problem, C) for v in visits) / prep_mma(K, C, operands)
    carried = (mma - prepared * prep_mma(K, C, operands)) / (V // 16 * scan_mma(K, C, operands))
    segments = sum(len(visit.chunks) for visit in visits)
    rates = FP32 * threads * heads * blocks * segments * problem.use_gate_in_kernel  # A_log, once per thread
    longest = max(max(visit.chunks, default=0) for visit in visits)
    return Work(
        ctas=blocks * heads * (config.segments - 1),
        warps=threads // WARP,
        mma=mma,
        fma=prepared * prep.fma + carried * scan.fma,
        mufu=prepared * prep.mufu,
        alu=prepared * prep.alu + carried * scan.alu,
        smem_wavefronts=prepared * prep.wavefronts + carried * scan.wavefronts,
        l2_bytes=float(heads * sum(visit.l2_bytes(problem, config) for visit in visits) + rates + states),
        dram_bytes=float(heads * sum(visit.dram_bytes(problem) for visit in visits) + states),
        barriers=heads * sum(visit.barriers(problem, config) for visit in visits),
        chain=1 + longest,
        stages=config.stages,
        tf32=operands.tf32(mma),
        step_mma=step_mma(K, config, operands),
        step_other=max(step_other(config), prepared_in_turn(problem, config)),
    )
