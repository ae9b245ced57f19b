"""paged_attention for few queries: warps and blocks split the keys of all sequences, and a second launch merges."""

from dataclasses import replace
from math import prod

from tuner.arch import GPU, Arch
from tuner.spec import DType, Implementation, Launch, Plan, Space, Work, Workspace

from ...flash_attention.mma_sync.work import with_softcap as with_softcap_work
from ...flash_attention.split_keys import config as shared
from ...flash_attention.split_keys.config import WARP, Config
from ..problem import Problem, optional_constants, unpacked
from .work import with_widening
from .work import work as work_when_full

RAGGED = 4
ENTRIES = ("paged_attention_split_keys", "paged_attention_merge")


def space(problem: Problem, arch: Arch) -> Space[Config]:
    return shared.space(problem, arch, problem.kv_cache_dtype.itemsize)


def plan(problem: Problem, config: Config) -> Plan:
    """Each sequence has `splits` shares on average, distributed by sequence length; the merge runs if there is more
    than one."""
    split, threads = config.splits > 1, WARP * config.warps
    element = problem.kv_cache_dtype.itemsize
    smem = int(shared.smem_bytes(problem.head_dim, config, element=element))
    shares = config.splits * problem.sequences
    row_tiles = -(-problem.longest * (problem.heads // problem.kv_heads) // config.BM)
    attend = Launch(ENTRIES[0], (shares * row_tiles * problem.kv_heads, 1, 1), threads, smem)
    merge = Launch(ENTRIES[1], (shared.merge_blocks(problem, config), 1, 1), threads, 0)
    spaces = parts(problem, (shares, problem.heads, problem.longest) if split else ())
    return Plan((attend, merge) if split else (attend,), {"smem_bytes": smem, **optional_constants(problem)}, spaces)


def parts(problem: Problem, rows: tuple[int, ...]) -> tuple[Workspace, ...]:
    """Workspaces for the partial results that blocks pass to the merge, with rows of this shape; of size 1 without a
    merge."""
    spaces = (
        Workspace("part_o", DType.FP32, (*rows, problem.head_dim)),
        Workspace("part_rows", DType.FP32, (*rows, 2)),
        Workspace("shares", DType.INT32, (problem.sequences, 2)),
    )
    return spaces if rows else tuple(replace(workspace, shape=(1,)) for workspace in spaces)


def default(problem: Problem, arch: Arch) -> Config:
    """A batch has at least a few splits, so that blocks of short sequences are available for longer ones."""
    equal = unpacked(problem)
    min_splits = RAGGED if equal.batch > 1 else 1
    return shared.default(equal, arch, min(equal.reach, equal.seq_k), min_splits, equal.kv_cache_dtype.itemsize)


def work(problem: Problem, config: Config, gpu: GPU) -> tuple[Work, ...]:
    """Packed queries are counted as if each sequence had the same number; reads of cu_seqlens are not counted."""
    attend, *merge = work_when_full(unpacked(problem), config)
    if problem.use_softcap:
        attend = with_softcap_work(problem.head_dim, attend)
    if problem.eight_bits:
        registers = attend.mma * 8 / config.BM  # registers of four keys or values: a warp widens its own tiles
        attend = with_widening(problem, gpu.arch, attend, registers, registers)
    blocks = [prod(launch.grid) for launch in plan(problem, config).launches]
    works = zip((attend, *merge), blocks, strict=True)
    return tuple(replace(value, ctas=n, longest_cta=value.longest_cta * n / value.ctas) for value, n in works)


IMPLEMENTATION = Implementation(
    name="split_keys",
    summary="for few queries: tensor cores, query heads of a KV head as rows, keys split over warps and blocks",
    config=Config,
    refusal=shared.refusal,
    space=space,
    plan=plan,
    default=default,
    blocks=lambda problem: (shared.block("paged_attention", problem, problem.kv_cache_dtype.itemsize),),
    work=work,
)
