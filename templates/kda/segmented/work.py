"""The work of segmented on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import dataclass, replace
from typing import Any

from tuner.arch import GPU
from tuner.spec import Work

from ..launches import state_bytes
from ..operands import Operands, operands_of
from ..operator import cost
from ..prep_scan.config import WARP, scan_threads, triangle_blocks, used_image_bytes
from ..prep_scan.work import (
    chunk_count,
    instructions,
    key_bytes,
    prep_work,
    scan_mma,
    step_mma,
    step_other,
)
from ..problem import Problem
from .config import FP32, Config, merge_threads


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact; packed sequences are assumed to have equal lengths. Other instructions are the
    minimum that the algorithm requires."""
    return (
        prep_work(problem, config),
        _map_work(problem, config, MapVisits.of(problem, config)),
        merge_work(problem, config),
        _scan_work(problem, config),
    )


def map_mma(K: int, C: int, operands: Operands) -> int:
    """m16n8k16 of one chunk and 16 columns, or twice as many m16n8k8: keys and the update."""
    return operands.products * 2 * (K // 16) * (C // 8)


def map_image_bytes(K: int, C: int, operands: Operands) -> int:
    """Bytes of the part of an image that advances the state: keys, updates, decay."""
    return int(used_image_bytes(K, C, operands)) - operands.nbytes * (C * K + 256 * int(triangle_blocks(C)))


def chunks_of_segments(problem: Problem, config: Any) -> list[int]:
    """Chunks of each segment that is not empty: the same number in each, fewer in the last."""
    NT = -(-problem.mean_len // config.C)
    per_segment = -(-NT // config.segments)
    return [min(per_segment, NT - first) for first in range(0, NT, per_segment)]


@dataclass(frozen=True, slots=True)
class MapVisits:
    """Data that the blocks of map visit, summed over all heads."""

    chunks: int  # chunks whose v is read: those of every segment except the last
    tokens: int  # tokens in these chunks
    columns: int  # columns of B and A together, per chunk
    states: int  # number of B written
    maps: int  # number of A written

    @classmethod
    def of(cls, problem: Problem, config: Config) -> "MapVisits":
        heads, chunks = problem.sequences * problem.value_heads, chunks_of_segments(problem, config)
        first, inner = sum(chunks[:-1]), sum(chunks[1:-1])
        return cls(
            chunks=heads * first,
            tokens=heads * min(problem.mean_len, first * config.C),
            columns=heads * (first * problem.value_dim + inner * problem.key_dim),
            states=heads * (len(chunks) - 1),
            maps=heads * max(0, len(chunks) - 2),
        )


def _map_work(problem: Problem, config: Config, visits: MapVisits) -> Work:
    """B of every segment except the last, A of those in between: columns of the state without queries and o."""
    K, V, C, S = problem.key_dim, problem.value_dim, config.C, config.segments
    heads, passes = problem.sequences * problem.value_heads, visits.columns // config.BV  # chunks, by blocks
    operands, element = operands_of(problem), problem.dtype.itemsize
    image, mma = map_image_bytes(K, C, operands), map_mma(K, C, operands)
    share = mma / scan_mma(K, C, operands)
    _, scan = instructions(problem, config)  # instructions for V columns
    blocks = (visits.states * V + visits.maps * K) // config.BV  # without those that return at once
    moved = element * V * visits.tokens + FP32 * K * (visits.states * V + visits.maps * K)
    if visits.states:
        moved += state_bytes(replace(problem, output_final_state=False))
    return Work(
        ctas=(V + K) // config.BV * heads * (S - 1),
        warps=int(scan_threads(config)) // WARP,
        mma=visits.columns // 16 * mma,
        fma=visits.columns / V * scan.fma,
        alu=visits.columns / V * scan.alu * share,
        smem_wavefronts=visits.columns / V * scan.wavefronts * share + passes * (image + element * C * config.BV) / 128,
        l2_bytes=float(passes * image + moved),
        dram_bytes=float(visits.chunks * image + moved),
        barriers=passes + (config.ahead > 0) * blocks,
        chain=chunks_of_segments(problem, config)[0],
        stages=config.stages,
        tf32=operands.tf32(visits.columns // 16 * mma),
        step_mma=step_mma(K, config, operands),
        step_other=step_other(config),
    )


def merge_work(problem: Problem, config: Any) -> Work:
    """A map times a state for every segment between the first and the last, in fp32."""
    K, V, heads = problem.key_dim, problem.value_dim, problem.sequences * problem.value_heads
    blocks, maps = V // (2 * config.merge_columns), max(0, len(chunks_of_segments(problem, config)) - 2)
    products = heads * maps * K * K * V / WARP
    states = FP32 * heads * K * V * (2 * maps + (maps > 0))  # each is read once, and all but the first are written
    return Work(
        ctas=blocks * heads,
        warps=merge_threads(K) // WARP,
        fma=products,
        alu=products / 16,
        smem_wavefronts=products * (1 / config.merge_columns + 1 / 4),
        l2_bytes=float(states + FP32 * heads * maps * blocks * K * K),
        dram_bytes=float(states + FP32 * heads * maps * K * K),
        barriers=heads * blocks * maps * (K // 16),
        chain=max(maps, 1),
        stages=2,
        step_other=K / 4,  # 16 rows of a map: a barrier, a load, and enough fma to take twice as long
    )


def _scan_work(problem: Problem, config: Config) -> Work:
    """All columns of the state over all images once more, from the initial state of each segment."""
    K, V, C = problem.key_dim, problem.value_dim, config.C
    operands, chunks, blocks = operands_of(problem), chunk_count(problem, C), V // config.BV
    image = int(used_image_bytes(K, C, operands))
    heads, segments = problem.sequences * problem.value_heads, chunks_of_segments(problem, config)
    moved = cost(problem).bytes - key_bytes(problem) + FP32 * heads * (len(segments) - 1) * K * V  # v, o and states
    mma = chunks * V // 16 * scan_mma(K, C, operands)
    _, scan = instructions(problem, config)
    return Work(
        ctas=blocks * heads * config.segments,
        warps=int(scan_threads(config)) // WARP,
        mma=mma,
        fma=chunks * scan.fma,
        alu=chunks * scan.alu,
        smem_wavefronts=chunks * (scan.wavefronts + (blocks * image + problem.dtype.itemsize * C * V) / 128),
        l2_bytes=float(chunks * blocks * image + moved),
        dram_bytes=float(chunks * image + moved),
        barriers=chunks * blocks + (config.ahead > 0) * blocks * heads * len(segments),
        chain=segments[0],
        stages=config.stages,
        tf32=operands.tf32(mma),
        step_mma=step_mma(K, config, operands),
        step_other=step_other(config),
    )
