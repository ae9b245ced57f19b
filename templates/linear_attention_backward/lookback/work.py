"""The work of the launches of linear_attention_backward's lookback, counted by formula."""

from tuner.spec import Work

from ...linear_attention import scan
from ...linear_attention.lookback.implementation import ROUND_TRIPS, exchanged_bytes, flag_words
from ...linear_attention.tiles import WARP, sum_bytes, tokens_per_thread
from ...linear_attention.work import (
    PAIR,
    STATE_ALU,
    STATE_FMA,
    WEIGHT_ALU,
    WEIGHT_FMA,
    WEIGHT_MUFU,
    blocks,
    pair_bytes,
    row_tiles,
    tensor_bytes,
    tile_beta_bytes,
)
from ..beta_sums import part_bytes
from ..operator import cost
from ..problem import Problem
from ..tiles import TENSORS, Config, staged
from ..work import state_bytes

# Instructions per element besides those of weights and states; conversions and the key floor count as ALU.
_FORWARD_FMA, _FORWARD_MUFU, _FORWARD_ALU = 9, 1, 4  # n, 1 / n, error, change of m, q do / n, dq
_BACK_FMA = 4  # the gradients of s and n with a token and before it
_OUT_FMA, _OUT_ALU = 4, 5  # dx, dk, dv


def work(problem: Problem, config: Config) -> tuple[Work, ...]:
    """k and v are read twice, from DRAM: all tokens are processed between the two reads."""
    return _sums(problem, config), scan.work(problem, config), _gradients(problem, config)


def _group_wavefronts(config: Config, folds: int) -> float:
    """Wavefronts per block of the values that groups of threads exchange: written, folded and read."""
    return folds * 3 * sum_bytes(config) / 128


def _sums(problem: Problem, config: Config) -> Work:
    ctas, lanes, in_shared = blocks(problem, config), problem.elements / WARP, bool(staged(problem, config))
    initial = PAIR * problem.channels * problem.initial_states
    betas = tile_beta_bytes(problem, config)
    moved = tensor_bytes(problem, 2) + initial
    return Work(
        ctas=ctas,
        warps=config.threads // WARP,
        fma=lanes * (WEIGHT_FMA + STATE_FMA),
        mufu=lanes * WEIGHT_MUFU,
        alu=lanes * (WEIGHT_ALU + STATE_ALU + 8 / config.width),
        smem_wavefronts=ctas * _group_wavefronts(config, 1) + in_shared * tensor_bytes(problem, 4) / 128,
        l2_bytes=moved + betas + pair_bytes(problem, config) + 4 * (flag_words(problem, config) + 1),
        dram_bytes=moved,
        barriers=ctas,
        chain=1,
        stages=2 if in_shared or tokens_per_thread(config) > 1 else 1,
    )


def _gradients(problem: Problem, config: Config) -> Work:
    ctas, lanes, in_shared = blocks(problem, config), problem.elements / WARP, bool(staged(problem, config))
    weights, betas = 1 if config.keep_weights else 3, problem.decay != "scalar"
    read_back = 2 + 1 + 1 + max(weights, 2)  # v, do, q, and k, which is needed at least for its floor
    addresses = (TENSORS + 3) * 4 / config.width
    return Work(
        ctas=ctas,
        warps=config.threads // WARP,
        fma=lanes * (weights * WEIGHT_FMA + STATE_FMA + _FORWARD_FMA + 2 * _BACK_FMA + _OUT_FMA + betas),
        mufu=lanes * (weights * WEIGHT_MUFU + _FORWARD_MUFU),
        alu=lanes * (weights * WEIGHT_ALU + STATE_ALU + _FORWARD_ALU + _OUT_ALU + addresses),
        smem_wavefronts=ctas * _group_wavefronts(config, 2)
        + in_shared * tensor_bytes(problem, TENSORS + read_back) / 128,
        l2_bytes=tensor_bytes(problem, 7)
        + tile_beta_bytes(problem, config)
        + pair_bytes(problem, config)
        + exchanged_bytes(problem, config)
        + state_bytes(problem, initial_reads=3, last_reads=2)
        + part_bytes(problem, row_tiles(problem, config)),
        dram_bytes=cost(problem).bytes,
        barriers=ctas * (5 + betas),
        chain=ROUND_TRIPS,
        stages=2 if in_shared or tokens_per_thread(config) > 1 else 1,
    )
