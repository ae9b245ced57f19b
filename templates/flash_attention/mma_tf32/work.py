"""The work of mma_tf32 on a problem, counted from its loops; exact counts equal the emulator's counters."""

from dataclasses import dataclass

import numpy as np

from tuner.arch import GPU
from tuner.spec import Precision, Work

from ..mma_sync.work import Visits, copy_wavefronts, global_bytes
from ..operator import cost
from ..problem import Problem, unpacked
from .config import ELEMENT, Config, q_in_ring

WARP = 32
ROUNDING = 3  # instructions of cvt.rna.tf32: test for finite, add half of the last bit, truncate


def terms(problem: Problem) -> int:
    """Number of tf32 terms that represent an element."""
    return 1 if problem.precision is Precision.TF32 else 2


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes, barriers and wavefronts are exact, except for barriers of warps that share rows; other instructions
    are the minimum that the algorithm requires, with address arithmetic estimated. Packed sequences are counted as if
    their lengths were equal, in a grid sized for the longest."""
    equal = unpacked(problem)
    widths, visits = (problem.head_dim, problem.head_dim_v), Visits.of(equal, config)
    heads, blocks, tiles = equal.batch * equal.heads, len(visits.blocks), int(np.sum(visits.blocks))
    ctas = problem.sequences * problem.heads * -(-problem.longest // config.BM)
    group, tile = _group_tile(problem, config), _tile(*widths, config)
    query = _query_wavefronts(equal, config)
    mma = heads * visits.groups * group.mma
    return (
        Work(
            ctas=ctas,
            warps=config.warps,
            mma=mma,
            fma=heads * visits.groups * group.fma,
            mufu=heads * visits.groups * group.mufu,
            alu=heads * (visits.groups * group.alu + tiles * tile.alu),
            smem_wavefronts=heads * (visits.groups * group.wavefronts + tiles * tile.wavefronts + query),
            l2_bytes=float(heads * global_bytes(equal, visits, ELEMENT)),
            dram_bytes=float(cost(problem).bytes),
            barriers=heads * (2 * tiles + blocks * _barriers_outside_the_loop(*widths, config)),
            longest_cta=float(np.max(visits.blocks) * ctas / (heads * tiles)) if tiles else 1.0,
            chain=float(np.max(visits.blocks, initial=0)),
            stages=config.stages,
            tf32=mma,
        ),
    )


@dataclass(frozen=True, slots=True)
class Instructions:
    """Warp instructions for one tile of keys; `mma` is counted in m16n8k16, each of which is two m16n8k8."""

    mma: float
    fma: float
    mufu: float
    alu: float
    wavefronts: float


def _group_tile(problem: Problem, config: Config) -> Instructions:
    """Instructions of the warps that share rows."""
    several, capped = terms(problem) - 1, problem.use_softcap
    m, parts, keys = config.rows_per_warp // 16, config.d_warps, config.BN // 8
    columns, columns_v = problem.head_dim // 8, problem.head_dim_v // 8
    total_columns = columns + columns_v
    query, p, keys_and_values = parts * m * 4 * columns, parts * m * 4 * keys, 2 * keys * total_columns
    scores, row_values, shared = 4 * m * keys, 2 * m * parts, parts > 1
    # Splitting into two terms takes an addition, a mask and a subtraction; their products are added to sums in fp32.
    # With one term, only the addition remains for P.
    split = (p + keys_and_values + query) * several
    rounded = (p + ROUNDING * keys_and_values * (not config.round_on_arrival)) * (1 - several)
    return Instructions(
        mma=(2 * several + 1) * m * keys * total_columns / 2,
        # scale, maximum and sum of each score; rescaling of O, which is too rare to count when lazy
        fma=(3 + 3 * capped) * scores
        + 6 * row_values
        + (0 if config.lazy_rescale else 4 * m * columns_v)
        + split
        + several * 4 * m * keys * total_columns,
        mufu=(1 + 2 * capped) * scores + row_values,
        alu=2 * split + rounded + 6 * row_values + parts * (columns + keys),
        wavefronts=keys_and_values + query * (not config.q_in_registers) + shared * (p + scores + row_values * parts),
    )


def _tile(D: int, DV: int, config: Config) -> Instructions:
    """Instructions of a block's warps to copy and round one tile of K and one of V."""
    elements = config.BN * (D + DV) / WARP  # elements per lane
    copies = sum(copy_wavefronts(2 * width, config.swizzle, config.BN, WARP * config.warps) for width in (D, DV))
    return Instructions(
        mma=0,
        fma=0,
        mufu=0,
        # address, bound and pointer of each chunk
        alu=5 * elements / 4 + 24 * config.warps + config.round_on_arrival * ROUNDING * elements,
        wavefronts=copies + config.round_on_arrival * 2 * elements,
    )


def _query_wavefronts(problem: Problem, config: Config) -> float:
    """Shared-memory wavefronts of Q for one head."""
    D, blocks, groups = problem.head_dim, -(-problem.seq_q // config.BM), -(-problem.seq_q // config.rows_per_warp)
    copies = copy_wavefronts(2 * D, config.swizzle, config.BM, WARP * config.warps)
    rounded = (2 - terms(problem)) * 2 * config.BM * D / WARP
    to_registers = groups * config.d_warps * config.rows_per_warp * D / WARP * config.q_in_registers
    return blocks * (copies + rounded) + to_registers


def _barriers_outside_the_loop(D: int, DV: int, config: Config) -> int:
    """One barrier after the loop; Q on its way to registers needs one more, or two if staged in the ring."""
    return 1 + int(config.q_in_registers) + int(q_in_ring(D, DV, config))
