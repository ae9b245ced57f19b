"""streaming_attention for few queries: warps and blocks share the keys, and a second launch merges blocks."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.arch import GPU, Arch
from tuner.dtype import DType
from tuner.operator import Implementation, Launch, Plan, Work, Workspace
from tuner.space import Constraint, Space

from ..flash_attention.mma_sync import MAX_GRID_YZ
from .operator import Problem, cost
from .visits import Keys, Walks

ENTRY, MERGE = "streaming_attention_split_keys", "streaming_attention_merge"
WARP = 32
ELEMENT = 2  # bytes of fp16 and bf16
BLOCKS = 512  # a default does not split further once there are so many


@dataclass(frozen=True, slots=True)
class Config:
    BM: int  # rows a block: queries times the query heads of a KV head
    BN: int  # keys a tile; each is one warp's
    warps: int
    stages: int  # slots of a warp for tiles of K and V: one is read while the others are filled
    splits: int  # blocks that share the keys of a tile of rows
    q_in_registers: bool  # or read again from shared memory for each tile


def refusal(problem: Problem, _arch: Arch) -> str | None:
    if problem.dtype is DType.FP32:
        return "dtype fp32: mma.sync multiplies 16-bit operands"
    if max(problem.kv_heads, problem.batch) > MAX_GRID_YZ:
        return f"batch {problem.batch} or kv_heads {problem.kv_heads} exceeds {MAX_GRID_YZ}, a grid's limit in y and z"
    return None


def space(problem: Problem, arch: Arch) -> Space[Config]:
    D = problem.head_dim
    return Space(
        Config,
        choices={
            "BM": (16, 32),
            "BN": (16, 32, 48, 64),
            "warps": (1, 2, 4, 8),
            "stages": (2, 3, 4, 6, 8),
            "splits": (1, 2, 4, 8, 16, 32, 64),
            "q_in_registers": (False, True),
        },
        constraints=(
            Constraint("the tiles fit the shared memory of a block", lambda c: smem_bytes(D, c) <= arch.smem_per_block),
            Constraint(
                "accumulators, scores and operands fit the registers",
                lambda c: register_estimate(D, c) <= arch.registers_per_thread,
            ),
        ),
    )


def smem_bytes(D: int, c: Any) -> Any:
    """Shared memory of a block, in bytes; `c` is a config or columns of many."""
    tiles = (c.BM + c.stages * c.BN) * ELEMENT * D
    merged = c.BM * 4 * 8 * (D // 8 | 1)  # a warp's rows of O in fp32, in the place of its tiles
    return c.warps * (np.maximum(tiles, merged) + 8 * c.BM)


def register_estimate(D: int, c: Any) -> Any:
    """Registers a thread: O, scores, Q where it stays, and 50 for what no config does without."""
    return c.BM * (D + c.BN + np.where(c.q_in_registers, D / 2, 0)) / WARP + 50


def plan(problem: Problem, config: Config) -> Plan:
    D, split = problem.head_dim, config.splits > 1
    items = (problem.batch, problem.heads, problem.seq_q)
    spaces = (("part_o", (*items, D)), ("part_rows", (*items, 2)))
    grid = (config.splits * _row_tiles(problem, config), problem.kv_heads, problem.batch)
    launches = [Launch(ENTRY, grid, WARP * config.warps, int(smem_bytes(D, config)))]
    if split:
        launches.append(Launch(MERGE, (_merge_blocks(problem, config), 1, 1), WARP * config.warps, 0))
    return Plan(
        launches=tuple(launches),
        constants={"smem_bytes": int(smem_bytes(D, config))},
        workspaces=tuple(
            Workspace(name, DType.FP32, (config.splits, *shape) if split else (1,)) for name, shape in spaces
        ),
    )


def _row_tiles(problem: Problem, config: Config) -> int:
    return -(-problem.seq_q * (problem.heads // problem.kv_heads) // config.BM)


def _merge_blocks(problem: Problem, config: Config) -> int:
    parts = problem.batch * problem.heads * problem.seq_q * (problem.head_dim // 4)
    return -(-parts // (WARP * config.warps))


def default(problem: Problem, arch: Arch) -> Config:
    """Four warps, and as many splits as leave each warp two tiles, until there are blocks enough."""
    BN = 32 if problem.head_dim <= 128 else 16
    config = Config(16, BN, 4, 4, 1, False)
    if 2 * smem_bytes(problem.head_dim, config) > arch.smem_per_sm:  # two blocks an SM before four stages
        config = replace(config, stages=2)
    tiles = -(-min(problem.reach, problem.seq_k) // BN)
    blocks = _row_tiles(problem, config) * problem.kv_heads * problem.batch
    splits = max(n for n in (1, 2, 4, 8, 16) if n == 1 or (n * 8 <= tiles and n * blocks <= BLOCKS))
    return replace(config, splits=splits)


def work(problem: Problem, config: Config, _gpu: GPU) -> tuple[Work, ...]:
    """mma, bytes and barriers are exact; the rest is what the mathematics needs."""
    split = config.splits > 1
    parts = _parts(problem, config) * (4 * problem.head_dim + 8) if split else 0
    launch = _attend_work(problem, config, parts)
    return (launch, _merge_work(problem, config)) if split else (launch,)


def _attend_work(problem: Problem, config: Config, parts: int) -> Work:
    """The tiles of keys; `parts` bytes go to the merge in the place of the outputs."""
    D, group = problem.head_dim, problem.heads // problem.kv_heads
    walks = Walks(Keys.of(problem, config.BM, _row_tiles(problem, config), group), config.BN)
    heads, items = problem.batch * problem.kv_heads, problem.batch * problem.heads * problem.seq_q
    tiles, blocks = heads * int(np.sum(walks.tiles)), heads * len(walks.tiles) * config.splits
    scores = config.BM * config.BN / WARP
    query_steps = D // 16 + (D % 16) / 16  # a step of 8 columns is half an mma
    merged = 2 * (blocks * config.warps * config.BM * D / WARP)  # elements in and out, by warps
    read = ELEMENT * D * (2 * heads * int(np.sum(walks.keys_read)) + items * config.warps * config.splits)
    outputs = items * (ELEMENT * D + 4)
    written = parts or outputs
    return Work(
        ctas=blocks,
        warps=config.warps,
        mma=tiles * config.BM / 16 * (config.BN / 8) * (query_steps + D / 16),
        fma=tiles * 3 * scores + merged,
        mufu=tiles * scores,
        alu=tiles * (scores + 10 * config.BN * D / 8 / WARP),
        smem_wavefronts=tiles * (config.BN * D / 16 + config.BN * D / 32 + config.BM * D / 32) + merged,
        l2_bytes=float(read + written),
        dram_bytes=float(cost(problem).bytes - outputs + written),
        barriers=float(blocks),
        longest_cta=1.0,
        chain=float(-(-int(np.max(walks.tiles)) // (config.warps * config.splits))),
        stages=config.stages,
    )


def _merge_work(problem: Problem, config: Config) -> Work:
    """A thread takes four elements of a row through its parts, and reads the two floats of each for itself."""
    rows, D = _parts(problem, config), problem.head_dim
    elements = rows * D / WARP
    outputs = problem.batch * problem.heads * problem.seq_q * (ELEMENT * D + 4)
    return Work(
        ctas=_merge_blocks(problem, config),
        warps=config.warps,
        mma=0.0,
        fma=elements * 2,
        mufu=elements / 2,
        alu=elements,
        smem_wavefronts=0.0,
        l2_bytes=float(rows * (4 * D + 8 * (D // 4)) + outputs),
        dram_bytes=float(outputs),  # the parts have just been written, and are few: they are still in L2
        barriers=0.0,
        longest_cta=1.0,
        chain=1.0,
    )


def _parts(problem: Problem, config: Config) -> int:
    """Rows of O that blocks hand to the merge."""
    return problem.batch * problem.heads * problem.seq_q * config.splits


IMPLEMENTATION = Implementation(
    name="split_keys",
    summary="for few queries: tensor cores, query heads of a KV head as rows, keys shared by warps and blocks",
    config=Config,
    refusal=refusal,
    space=space,
    plan=plan,
    default=default,
    work=work,
)
