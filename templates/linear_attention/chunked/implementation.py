"""linear_attention in three launches: sums of tiles, a scan over them, and outputs from the state before each tile."""

from tuner.arch import GPU
from tuner.spec import DType, Implementation, Launch, Plan, Work, Workspace

from .. import scan, tiles
from ..operator import SCALARS, cost
from ..problem import Problem
from ..tiles import smem_bytes, staged, sum_bytes, tile_bytes
from ..work import blocks, initial_bytes, pair_bytes, row_tiles, state_bytes, tensor_bytes, tile_beta_bytes, tiled

Config = tiles.Budgeted


def plan(problem: Problem, config: Config) -> Plan:
    in_shared, out_smem = bool(staged(problem, config)), int(smem_bytes(problem, config))
    sum_smem = sum_bytes(config) + in_shared * 2 * tile_bytes(problem, config)
    grid, threads = (blocks(problem, config), 1, 1), config.threads
    sums = ("k", "v", "beta", "initial_state", "cu_seqlens", *SCALARS, "carries")
    scanned = ("beta", "cu_seqlens", *SCALARS, "carries")
    return Plan(
        launches=(
            Launch("linear_attention_sums", grid, threads, sum_smem, sums),
            Launch("linear_attention_scan", (scan.blocks(problem), 1, 1), scan.THREADS, 0, scanned),
            Launch("linear_attention_out", grid, threads, out_smem),
        ),
        constants={
            "staged": in_shared,
            "sum_smem": sum_smem,
            "out_smem": out_smem,
            **scan.constants(),
        },
        workspaces=(Workspace("carries", DType.FP32, (row_tiles(problem, config), problem.channels, 2)),),
    )


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    """k and v are read twice, from DRAM if L2 cannot hold them; a pair of floats per tile and channel is written and
    read twice."""
    ctas, in_shared = blocks(problem, config), bool(staged(problem, config))
    exchanged = pair_bytes(problem, config) + tile_beta_bytes(problem, config)
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
    return sums, scan.work(problem, config), out


IMPLEMENTATION = Implementation(
    name="chunked",
    summary="three launches: sums of tiles, a scan of them, outputs; k and v are read twice",
    config=Config,
    space=tiles.space,
    plan=plan,
    default=tiles.default,
    blocks=lambda problem: (tiles.budgeted_block("linear_attention_out", problem),),
    work=work,
)
