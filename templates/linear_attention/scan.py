"""The launch that scans the sums of tiles into the state before each tile: one thread per channel of a row, all in
L2."""

from collections.abc import Mapping

from tuner.spec import Work

from .sizes import Sizes
from .tiles import WARP, Shape
from .work import beta_bytes, pair_bytes, row_tiles

THREADS = 64  # few, so that the blocks of the scan spread over all SMs
AHEAD = 8  # tiles that a thread loads at once


def constants() -> Mapping[str, int]:
    """The constants of its template."""
    return {"scan_threads": THREADS, "scan_ahead": AHEAD}


def blocks(problem: Sizes) -> int:
    return -(-problem.batch * problem.channels // THREADS)


def work(problem: Sizes, config: Shape) -> Work:
    tiles, betas = row_tiles(problem, config), problem.batch * problem.channels * beta_bytes(problem, 1)
    pairs = tiles * problem.channels / WARP
    return Work(
        ctas=blocks(problem),
        warps=THREADS // WARP,
        fma=2 * pairs,
        alu=8 * pairs,
        l2_bytes=2 * pair_bytes(problem, config) + betas,
        dram_bytes=0,
        chain=tiles / problem.batch / AHEAD,
        stages=1,
    )
