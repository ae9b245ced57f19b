"""linear_attention_backward in one pass over all tensors, after one over k and v."""

from tuner.arch import GPU
from tuner.spec import DType, Implementation, Launch, Plan, Work, Workspace

from ...linear_attention import scan
from ...linear_attention.lookback.implementation import flag_words
from ...linear_attention.tiles import sum_bytes, tile_bytes
from ...linear_attention.work import blocks, row_tiles
from .. import beta_sums
from ..operator import INPUTS, OUTPUTS, SCALARS
from ..problem import Problem
from ..tiles import Config, default, smem_bytes, space, staged
from . import work as lookback_work


def plan(problem: Problem, config: Config) -> Plan:
    in_shared, smem = bool(staged(problem, config)), int(smem_bytes(problem, config))
    sum_smem = sum_bytes(config) + in_shared * 2 * tile_bytes(problem, config)
    grid, tiles, channels = (blocks(problem, config), 1, 1), row_tiles(problem, config), problem.channels
    sums = ("k", "v", "beta", "initial_state", "cu_seqlens", *SCALARS)
    scanned = ("beta", "cu_seqlens", "dht", "dh0", *SCALARS)
    main = (*INPUTS, *OUTPUTS, *SCALARS, *("beta_parts",) * problem.use_beta)
    return Plan(
        launches=(
            Launch(f"{_NAME}_sums", grid, config.threads, sum_smem, (*sums, "carries", "flags", "ticket")),
            Launch(f"{_NAME}_scan", (scan.blocks(problem), 1, 1), scan.THREADS, 0, (*scanned, "carries")),
            Launch(
                f"{_NAME}_lookback",
                grid,
                config.threads,
                smem,
                (*main, "carries", "sums", "ends", "flags", "ticket"),
            ),
            *beta_sums.launch(problem),
        ),
        constants={
            "staged": in_shared,
            "sum_smem": sum_smem,
            "smem_bytes": smem,
            **scan.constants(),
            **beta_sums.constants(problem),
        },
        workspaces=(
            Workspace("carries", DType.FP32, (tiles, channels, 2)),
            Workspace("sums", DType.FP32, (tiles, channels, 4), exchanged=True),  # two fp64 each
            Workspace("ends", DType.FP32, (tiles, channels, 4), exchanged=True),
            Workspace("flags", DType.INT32, (flag_words(problem, config),), exchanged=True),
            Workspace("ticket", DType.INT32, (1,), exchanged=True),
            *beta_sums.parts(problem, tiles),
        ),
    )


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    return (*lookback_work.work(problem, config), *beta_sums.work(problem, row_tiles(problem, config)))


_NAME = "linear_attention_backward"
IMPLEMENTATION = Implementation(
    name="lookback",
    summary="states before tiles, then one reverse pass with lookback; k and v are read twice",
    config=Config,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
