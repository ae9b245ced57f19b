"""linear_attention in three launches: sums of tiles, a scan of them, outputs from what each tile starts from."""

from tuner.arch import GPU, Arch
from tuner.dtype import DType
from tuner.operator import Implementation, Launch, Plan, Work, Workspace
from tuner.space import Space

from . import tiles
from .operator import cost
from .optional import INPUTS, OUTPUTS, SCALARS, pointers, taken
from .problem import Problem
from .tiles import (
    WARP,
    smem_bytes,
    staged,
    sum_bytes,
    tile_bytes,
)
from .work import (
    PAIR,
    beta_bytes,
    blocks,
    initial_bytes,
    row_tiles,
    state_bytes,
    tensor_bytes,
    tile_beta_bytes,
    tiled,
)

SCAN_THREADS = 64  # few, so that the scan's blocks spread over all SMs
SCAN_AHEAD = 8  # tiles that a thread of the scan loads at once


Config = tiles.Budgeted


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return tiles.space(problem, arch)


def plan(problem: Problem, config: Config) -> Plan:
    in_shared, out_smem = bool(staged(problem, config)), int(smem_bytes(problem, config))
    sum_smem = sum_bytes(config) + in_shared * 2 * tile_bytes(problem, config)
    grid, threads = (blocks(problem, config), 1, 1), config.threads
    scan_grid = (-(-problem.batch * problem.channels // SCAN_THREADS), 1, 1)
    sums = taken(problem, "k", "v", "beta", "initial_state", "cu_seqlens", *SCALARS)
    scan = taken(problem, "beta", "cu_seqlens", *SCALARS)
    out = taken(problem, *INPUTS, *OUTPUTS, *SCALARS)
    return Plan(
        launches=(
            Launch("linear_attention_sums", grid, threads, sum_smem, (*sums, "carries")),
            Launch("linear_attention_scan", scan_grid, SCAN_THREADS, 0, (*scan, "carries")),
            Launch("linear_attention_out", grid, threads, out_smem, (*out, "carries")),
        ),
        constants={
            "staged": in_shared,
            "sum_smem": sum_smem,
            "out_smem": out_smem,
            "scan_threads": SCAN_THREADS,
            "scan_ahead": SCAN_AHEAD,
            **pointers(problem),
        },
        workspaces=(Workspace("carries", DType.FP32, (row_tiles(problem, config), problem.channels, 2)),),
    )


def default(problem: Problem, arch: Arch) -> Config:
    return tiles.default(problem, arch)


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    """k and v are read twice, from DRAM where L2 is too small to keep them; every tile's pair of floats a channel is
    written and read twice."""
    ctas, in_shared = blocks(problem, config), bool(staged(problem, config))
    exchanged = _pair_bytes(problem, config) + tile_beta_bytes(problem, config)
    fits = tensor_bytes(problem, 2) < gpu.device.l2_bytes / 2
    first = tensor_bytes(problem, 2) + initial_bytes(problem)
    sums = tiled(
        problem,
        config,
        ctas=ctas,
        tensors_read=2,
        exchanged=exchanged + initial_bytes(problem),
        dram_bytes=first,
        weight_sweeps=1,
        state_sweeps=1,
        folds=1,
        chain=1,
        in_shared=in_shared,
        writes_o=False,
    )
    out = tiled(
        problem,
        config,
        ctas=ctas,
        tensors_read=3,
        exchanged=exchanged + state_bytes(problem, 2),
        dram_bytes=cost(problem).bytes - first + (0 if fits else tensor_bytes(problem, 2)),
        weight_sweeps=1 if config.keep_weights else 2,
        state_sweeps=2,
        folds=1,
        chain=1,
        in_shared=in_shared,
    )
    return sums, _scan_work(problem, config), out


def _scan_work(problem: Problem, config: Config) -> Work:
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
        l2_bytes=2 * _pair_bytes(problem, config) + items * beta_bytes(problem, 1),
        dram_bytes=0,
        barriers=0,
        longest_cta=1,
        chain=tiles / problem.batch / SCAN_AHEAD,
        stages=1,
    )


def _pair_bytes(problem: Problem, config: Config) -> int:
    """Of what all tiles hand over, once."""
    return PAIR * row_tiles(problem, config) * problem.channels


IMPLEMENTATION = Implementation(
    name="chunked",
    summary="three launches: sums of tiles, a scan of them, outputs; k and v are read twice",
    config=Config,
    refusal=lambda _problem, _arch: None,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
