"""The work of segmented_once on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import dataclass

from tuner.arch import GPU
from tuner.spec import Work

from ..fused.config import chunk_barriers
from ..fused.work import prepared_in_turn
from ..launches import state_bytes
from ..operands import operands_of
from ..operator import cost
from ..prep_scan.config import BF16, WARP
from ..prep_scan.work import (
    instructions,
    prep_mma,
    prepared_row_bytes,
    read_gate_bytes,
    scan_mma,
    step_mma,
    step_other,
)
from ..problem import Problem
from ..segmented.config import FP32
from ..segmented.work import chunks_of_segments
from .config import Config, correct_threads, pass_threads

TILE = 16  # tokens of a warp of correct at a time, and rows of a map


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of one sequence and head."""

    chunks: tuple[int, ...]  # chunks of each segment
    tokens: int  # tokens in total
    pulled: int  # tokens after the first segment, whose queries are multiplied by the map back to its start
    ends: int  # segments whose final state pass stores: another starts there, or it is an output

    @classmethod
    def of(cls, problem: Problem, config: Config) -> "Segments":
        chunks, tokens = chunks_of_segments(problem, config), problem.mean_len
        ends = len(chunks) - 1 + (problem.output_final_state and len(chunks) > 1)
        return cls(tuple(chunks), tokens, tokens - min(tokens, chunks[0] * config.C), ends)

    def stored_bytes(self, K: int, V: int) -> int:
        """Bytes of B of each segment, of A of all but the first, and of pulled queries."""
        return FP32 * K * (self.ends * V + max(0, self.ends - 1) * K) + BF16 * K * self.pulled

    @property
    def products(self) -> int:
        """Products of a map and a state: the final state of each segment is recomputed from all previous ones."""
        return sum(range(self.ends))


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact; packed sequences are assumed to have equal lengths. Other instructions are the
    minimum that the algorithm requires."""
    segments = Segments.of(problem, config)
    return (
        _pass_work(problem, config, segments),
        _correct_work(problem, config, segments, min(1.0, gpu.device.l2_bytes / _cached_bytes(problem, segments))),
    )


def _cached_bytes(problem: Problem, segments: Segments) -> int:
    """Bytes that pass leaves in L2 in order of access: v, o and its stores. Rows of q, k and g are the first to be
    evicted."""
    heads, values = problem.sequences * problem.value_heads, 2 * problem.dtype.itemsize * problem.value_dim
    return heads * (segments.tokens * values + segments.stored_bytes(problem.key_dim, problem.value_dim))


def _pass_work(problem: Problem, config: Config, segments: Segments) -> Work:
    K, V, C, operands = problem.key_dim, problem.value_dim, config.C, operands_of(problem)
    heads, chunks = problem.sequences * problem.value_heads, sum(segments.chunks)
    columns = chunks * V + sum(segments.chunks[1:]) * K  # over all chunks
    prep, scan = instructions(problem, config)
    prepared, carried = heads * chunks, heads * columns / V
    row = prepared_row_bytes(problem) + 2 * problem.dtype.itemsize * V
    final = FP32 * K * V * problem.final_states * problem.value_heads
    # with several segments, correct writes the last states
    states = state_bytes(problem) - final * (len(segments.chunks) > 1)
    stored = heads * segments.stored_bytes(K, V)
    gate = read_gate_bytes(problem, config, heads * len(segments.chunks) * config.producers)
    return Work(
        ctas=heads * config.segments,
        warps=int(pass_threads(problem, config)) // WARP,
        mma=prepared * prep_mma(K, C, operands) + heads * columns // 16 * scan_mma(K, C, operands),
        fma=prepared * prep.fma + carried * scan.fma,
        mufu=prepared * prep.mufu,
        alu=prepared * prep.alu + carried * scan.alu,
        smem_wavefronts=prepared * prep.wavefronts + carried * scan.wavefronts,
        l2_bytes=float(heads * segments.tokens * row + gate + stored + states),
        dram_bytes=float(cost(problem).bytes - state_bytes(problem) + stored + states),
        barriers=heads * sum(n * chunk_barriers(problem, config) + max(0, n - config.stages) for n in segments.chunks),
        chain=1 + segments.chunks[0],
        stages=config.stages,
        step_mma=step_mma(K, config, operands),
        step_other=max(step_other(config), prepared_in_turn(problem, config)),
    )


def _correct_work(problem: Problem, config: Config, segments: Segments, cached_fraction: float) -> Work:
    """`cached_fraction`: the fraction of the data written by pass that is still in L2, since it is read from the
    end."""
    K, V, element = problem.key_dim, problem.value_dim, problem.dtype.itemsize
    heads, threads, starts = problem.sequences * problem.value_heads, correct_threads(problem), len(segments.chunks) - 1
    tiles = heads * -(-segments.pulled // TILE)
    products = heads * segments.products * K * K * V / WARP  # fma
    maps, states = FP32 * heads * segments.products * K * K, FP32 * heads * K * V * sum(range(1, segments.ends + 1))
    pulled, outputs = heads * segments.pulled * BF16 * K, heads * segments.pulled * element * V
    final = FP32 * K * V * problem.final_states * problem.value_heads * (starts > 0)
    # In sequence: maps, 16 rows at a time with a barrier, a load, and enough fma to take twice as long; then the tiles
    # of each warp, which are loaded one ahead.
    merges, walked = max(0, segments.ends - 1), -(-segments.chunks[0] * config.C // TILE * WARP // threads)
    chain = merges + walked
    return Work(
        ctas=heads * (config.segments - 1 + problem.output_final_state),
        warps=threads // WARP,
        mma=tiles * (K // 16) * (V // 8),
        fma=products,
        alu=products / 16 + tiles * V,
        smem_wavefronts=products * (1 / 16 + 1 / 4),
        l2_bytes=float(maps + states + pulled + 2 * outputs + final),
        dram_bytes=float((pulled + outputs) * (1 - cached_fraction) + outputs + final),
        barriers=heads * (segments.products * (K // TILE) + starts),
        chain=chain,
        stages=2,
        step_mma=K / 16 * walked / chain,
        step_other=(K / 4 * merges + 4 * walked) / chain,
    )
