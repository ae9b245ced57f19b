"""linear_attention in one pass over the tensors: tiles get their initial state from earlier tiles."""

from tuner.arch import GPU, Arch
from tuner.spec import DType, Implementation, Launch, Plan, Space, Work, Workspace

from .. import tiles
from ..operator import cost
from ..problem import Problem
from ..sizes import Sizes
from ..tiles import WARP, smem_bytes, staged
from ..work import CARRY, blocks, clearing, row_tiles, state_bytes, tile_beta_bytes, tiled

CLEAR_THREADS = 256
ROUND_TRIPS = 6  # sequential memory round trips of a block: its ticket, its tile, a release, flags, an end, a release
TICKET = 16  # bytes of shared memory for the ticket of the block, which keep subsequent data aligned


Config = tiles.Budgeted


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return tiles.space(problem, arch, TICKET)


def plan(problem: Problem, config: Config) -> Plan:
    tiles, channels, flags = row_tiles(problem, config), problem.channels, flag_words(problem, config)
    smem = int(smem_bytes(problem, config, TICKET))
    clear = ("batch", "seq_len", "heads", "flags", "ticket")
    return Plan(
        launches=(
            Launch("linear_attention_clear", (-(-flags // CLEAR_THREADS), 1, 1), CLEAR_THREADS, 0, clear),
            Launch(
                "linear_attention_lookback",
                (blocks(problem, config), 1, 1),
                config.threads,
                smem,
            ),
        ),
        constants={
            "staged": bool(staged(problem, config, TICKET)),
            "smem_bytes": smem,
            "clear_threads": CLEAR_THREADS,
        },
        workspaces=(
            Workspace("sums", DType.FP32, (tiles, channels, 2), exchanged=True),
            Workspace("ends", DType.FP32, (tiles, channels, 4), exchanged=True),  # two fp64 each
            Workspace("flags", DType.INT32, (flags,), exchanged=True),
            Workspace("ticket", DType.INT32, (1,), exchanged=True),
        ),
    )


def default(problem: Problem, arch: Arch) -> Config:
    return tiles.default(problem, arch, TICKET)


def flag_words(problem: Sizes, config: tiles.Shape) -> int:
    """One flag for the channels of a warp in each tile."""
    return blocks(problem, config) * config.BK // WARP


def exchanged_bytes(problem: Sizes, config: tiles.Shape) -> int:
    """Bytes that blocks exchange if every tile finds its predecessor complete, as in the emulator's order."""
    tiles, channels, flags = row_tiles(problem, config), problem.channels, flag_words(problem, config)
    published = CARRY * channels * tiles + 4 * flags
    read = CARRY * channels * (tiles - problem.batch) + 4 * (flags - flags // tiles * problem.batch)
    return published + read + 8 * blocks(problem, config)  # tickets are read and written


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """Flags are cleared; then every tensor is moved once."""
    flags = flag_words(problem, config)
    clear = clearing(-(-flags // CLEAR_THREADS), CLEAR_THREADS, 4 * (flags + 1))  # flags and ticket are cleared
    main = tiled(
        problem,
        config,
        ctas=blocks(problem, config),
        tensors_read=3,
        exchanged=exchanged_bytes(problem, config) + tile_beta_bytes(problem, config) + state_bytes(problem, 2),
        dram_bytes=cost(problem).bytes,
        weight_sweeps=1 if config.keep_weights else 2,
        state_sweeps=2,
        folds=2,
        chain=ROUND_TRIPS,
        in_shared=bool(staged(problem, config, TICKET)),
    )
    return clear, main


IMPLEMENTATION = Implementation(
    name="lookback",
    summary="one pass: tiles publish their sums and look back at earlier ones; every tensor moves once",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (tiles.budgeted_block("linear_attention_lookback", problem, TICKET),),
    work=work,
)
