"""The work of the launches of the implementations, counted by formula.

Bytes are exact and equal the emulator's counters, except for reads of cu_seqlens; instructions are the minimum that the
algorithm requires.
"""

from tuner.spec import Work

from .operator import cost
from .problem import Problem
from .sizes import Sizes
from .tiles import WARP, Shape, sum_bytes, tokens_per_thread

PAIR = 8  # bytes of s and n in fp32
CARRY = 16  # bytes of s and n in fp64

# Instructions per element; conversions and the key floor count as ALU.
WEIGHT_FMA, WEIGHT_MUFU, WEIGHT_ALU = 2, 2, 2  # σ(k): exponent, 1 +; ex2 and rcp
STATE_FMA, STATE_ALU = 3, 1  # n, σ v, s
_OUT_FMA, _OUT_MUFU, _OUT_ALU = 2, 1, 2


def tensor_bytes(problem: Sizes, tensors: float) -> float:
    """Bytes of `tensors` tensors of the shape of q."""
    return tensors * problem.elements * problem.dtype.itemsize


def beta_bytes(problem: Sizes, channels: int) -> int:
    """Bytes of β that a thread reads for its channels, which share a head."""
    return {"scalar": 0, "head": 4, "channel": 4 * channels}[problem.decay]


def state_bytes(problem: Problem, initial_reads: int) -> int:
    """Bytes of the initial states, read `initial_reads` times, and of the final states."""
    return initial_reads * initial_bytes(problem) + PAIR * problem.channels * problem.final_states


def initial_bytes(problem: Problem) -> int:
    """Bytes of the initial states."""
    return PAIR * problem.channels * problem.initial_states


def per_thread(problem: Problem, threads: int, width: int, ahead: int, compensation: int = 0) -> Work:
    """A thread computes `width` channels of a sequence over all of its tokens, `ahead` at a time; `compensation`:
    instructions per element that recover rounding errors."""
    items = problem.sequences * problem.channels // width
    overhead = items * (beta_bytes(problem, width) + 8 * problem.varlen)
    moved = tensor_bytes(problem, 4) + state_bytes(problem, 1)
    lanes = problem.elements / WARP
    return Work(
        ctas=-(-items // threads),
        warps=threads // WARP,
        fma=lanes * (WEIGHT_FMA + STATE_FMA + _OUT_FMA + compensation),
        mufu=lanes * (WEIGHT_MUFU + _OUT_MUFU),
        alu=lanes * (WEIGHT_ALU + STATE_ALU + _OUT_ALU + 8 / width),
        l2_bytes=moved + overhead,
        dram_bytes=cost(problem).bytes,
        chain=-(-problem.seq_len * problem.batch // (problem.sequences * ahead)),
        stages=2 if ahead > 1 else 1,
    )


def clearing(ctas: int, threads: int, nbytes: int) -> Work:
    """A launch that only writes `nbytes` of zeros, which stay in L2."""
    return Work(
        ctas=ctas,
        warps=threads // WARP,
        fma=0,
        alu=ctas * threads / WARP * 4,
        l2_bytes=nbytes,
        dram_bytes=0,
        chain=1,
    )


def row_tiles(problem: Sizes, config: Shape) -> int:
    """Tiles along the tokens of all rows."""
    return problem.batch * -(-problem.seq_len // config.BT)


def blocks(problem: Sizes, config: Shape) -> int:
    """Tiles of BT tokens and BK channels."""
    return row_tiles(problem, config) * -(-problem.channels // config.BK)


def pair_bytes(problem: Sizes, config: Shape) -> int:
    """Bytes of s and n in fp32 that all tiles pass on, counted once."""
    return PAIR * row_tiles(problem, config) * problem.channels


def tile_beta_bytes(problem: Sizes, config: Shape) -> int:
    """Bytes of β that the threads of every tile read: each group for its vectors, then the threads that fold
    channels."""
    groups = config.threads * config.width // config.BK
    vectors = groups * problem.channels // config.width * beta_bytes(problem, config.width)
    return row_tiles(problem, config) * (vectors + problem.channels * beta_bytes(problem, 1))


def tiled(
    problem: Problem,
    config: Shape,
    *,
    ctas: int,
    tensors_read: int,  # number of tensors read among q, k and v
    exchanged: int,  # all other bytes that SMs read and write, except o
    dram_bytes: float,
    weight_sweeps: float,  # times that σ of an element is computed
    state_sweeps: float,  # times that the state of an element is computed
    folds: int,  # times that the groups of a tile are folded
    chain: float,
    in_shared: bool,
    writes_o: bool = True,
) -> Work:
    """Work of a launch whose blocks compute tiles."""
    lanes = problem.elements / WARP
    tile_sums = sum_bytes(config) / 128
    moved = tensor_bytes(problem, tensors_read + writes_o)
    addresses = (tensors_read + writes_o) * 4 / config.width
    # tensors read from shared memory: k and v, then q, v, and k if σ was not kept
    read_back = 2 + writes_o * (1 + weight_sweeps)
    return Work(
        ctas=ctas,
        warps=config.threads // WARP,
        fma=lanes * (weight_sweeps * WEIGHT_FMA + state_sweeps * STATE_FMA + writes_o * _OUT_FMA),
        mufu=lanes * (weight_sweeps * WEIGHT_MUFU + writes_o * _OUT_MUFU),
        alu=lanes * (weight_sweeps * WEIGHT_ALU + state_sweeps * STATE_ALU + writes_o * _OUT_ALU + addresses),
        smem_wavefronts=blocks(problem, config) * folds * 3 * tile_sums
        + in_shared * tensor_bytes(problem, tensors_read + read_back) / 128,
        l2_bytes=moved + exchanged,
        dram_bytes=dram_bytes,
        barriers=ctas * (1 + 2 * writes_o),
        chain=chain,
        stages=2 if in_shared or tokens_per_thread(config) > 1 else 1,
    )
