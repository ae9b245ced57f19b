"""What the launches of linear_attention_backward's lookback move and compute, counted by formula."""

from tuner.operator import Work

from ..linear_attention import work as forward
from ..linear_attention.chunked import SCAN_AHEAD, SCAN_THREADS
from ..linear_attention.tiles import sum_bytes, tokens_per_thread
from ..linear_attention.work import CARRY
from .beta_sums import part_bytes
from .operator import cost
from .problem import Problem
from .tiles import TENSORS, Config, staged
from .work import PAIR, WARP, beta_bytes, state_bytes, tensor_bytes

ROUND_TRIPS = 6  # of a block, one after the other: its ticket, its tile, a release, flags, an end, a release

# An element's instructions, conversions and the key floor among the ALU's.
_WEIGHT_FMA, _WEIGHT_MUFU, _WEIGHT_ALU = 2, 2, 2  # σ(k): exponent, 1 +; ex2 and rcp
_STATE_FMA, _STATE_ALU = 3, 1  # n, σ v, s
_FORWARD_FMA, _FORWARD_MUFU, _FORWARD_ALU = 9, 1, 4  # n, 1 / n, error, how far it moves m, q do / n, dq
_BACK_FMA = 4  # the gradients of s and n with a token and before it
_OUT_FMA, _OUT_ALU = 4, 5  # dx, dk, dv


def row_tiles(problem: Problem, config: Config) -> int:
    """Tiles along the tokens of all rows."""
    return forward.row_tiles(problem.forward(), config)


def blocks(problem: Problem, config: Config) -> int:
    """Tiles of BT tokens and BK channels."""
    return forward.blocks(problem.forward(), config)


def flag_words(problem: Problem, config: Config) -> int:
    """One for the channels of a warp in each tile."""
    return blocks(problem, config) * config.BK // WARP


def work(problem: Problem, config: Config) -> tuple[Work, ...]:
    """k and v are read twice, from DRAM: between the two lie all tokens."""
    return _sums(problem, config), _scan(problem, config), _gradients(problem, config)


def _carry_bytes(problem: Problem, config: Config, pair: int = PAIR) -> int:
    """Of a pair for each tile and channel."""
    return pair * row_tiles(problem, config) * problem.channels


def _group_wavefronts(config: Config, folds: int) -> float:
    """Of a block: what groups of threads tell each other, written, folded and read."""
    return folds * 3 * sum_bytes(config) / 128


def _sums(problem: Problem, config: Config) -> Work:
    ctas, lanes, in_shared = blocks(problem, config), problem.elements / WARP, bool(staged(problem, config))
    initial = PAIR * problem.channels * problem.initial_states
    betas = forward.tile_beta_bytes(problem.forward(), config)
    moved = tensor_bytes(problem, 2) + initial
    return Work(
        ctas=ctas,
        warps=config.threads // WARP,
        mma=0,
        fma=lanes * (_WEIGHT_FMA + _STATE_FMA),
        mufu=lanes * _WEIGHT_MUFU,
        alu=lanes * (_WEIGHT_ALU + _STATE_ALU + 8 / config.width),
        smem_wavefronts=ctas * _group_wavefronts(config, 1) + in_shared * tensor_bytes(problem, 4) / 128,
        l2_bytes=moved + betas + _carry_bytes(problem, config) + 4 * (flag_words(problem, config) + 1),
        dram_bytes=moved,
        barriers=ctas,
        longest_cta=1,
        chain=1,
        stages=2 if in_shared or tokens_per_thread(config) > 1 else 1,
    )


def _scan(problem: Problem, config: Config) -> Work:
    """The sums of tiles, in L2, become what each tile starts from."""
    items, tiles = problem.batch * problem.channels, row_tiles(problem, config)
    pairs = tiles * problem.channels / WARP
    return Work(
        ctas=-(-items // SCAN_THREADS),
        warps=SCAN_THREADS // WARP,
        mma=0,
        fma=2 * pairs,
        mufu=0,
        alu=8 * pairs,
        smem_wavefronts=0,
        l2_bytes=2 * _carry_bytes(problem, config) + items * beta_bytes(problem, 1),
        dram_bytes=0,
        barriers=0,
        longest_cta=1,
        chain=tiles / problem.batch / SCAN_AHEAD,
        stages=1,
    )


def _gradients(problem: Problem, config: Config) -> Work:
    ctas, lanes, in_shared = blocks(problem, config), problem.elements / WARP, bool(staged(problem, config))
    weights, betas = 1 if config.keep_weights else 3, problem.decay != "scalar"
    read_back = 2 + 1 + 1 + max(weights, 2)  # v, do, q, and k: also where only its floor is asked for
    addresses = (TENSORS + 3) * 4 / config.width
    return Work(
        ctas=ctas,
        warps=config.threads // WARP,
        mma=0,
        fma=lanes * (weights * _WEIGHT_FMA + _STATE_FMA + _FORWARD_FMA + 2 * _BACK_FMA + _OUT_FMA + betas),
        mufu=lanes * (weights * _WEIGHT_MUFU + _FORWARD_MUFU),
        alu=lanes * (weights * _WEIGHT_ALU + _STATE_ALU + _FORWARD_ALU + _OUT_ALU + addresses),
        smem_wavefronts=ctas * _group_wavefronts(config, 2)
        + in_shared * tensor_bytes(problem, TENSORS + read_back) / 128,
        l2_bytes=tensor_bytes(problem, 7)
        + forward.tile_beta_bytes(problem.forward(), config)
        + _carry_bytes(problem, config)
        + _exchanged_bytes(problem, config)
        + state_bytes(problem, initial_reads=3, last_reads=2)
        + part_bytes(problem, row_tiles(problem, config)),
        dram_bytes=cost(problem).bytes,
        barriers=ctas * (5 + betas),
        longest_cta=1,
        chain=ROUND_TRIPS,
        stages=2 if in_shared or tokens_per_thread(config) > 1 else 1,
    )


def _exchanged_bytes(problem: Problem, config: Config) -> int:
    """What blocks tell each other when every tile finds its neighbour done, as the emulator's order has it."""
    tiles, flags = row_tiles(problem, config), flag_words(problem, config)
    published = _carry_bytes(problem, config, CARRY) + 4 * flags
    found = CARRY * problem.channels * (tiles - problem.batch) + 4 * (flags - flags // tiles * problem.batch)
    return published + found + 8 * blocks(problem, config)  # tickets read and written
