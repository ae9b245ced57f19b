"""Does the prediction order tiles as hand tuning on an A100 found?

FlashAttention-2's launch table says, in words: head_dim 64 takes 128 × 128 on 4 warps, and 8 or 2 warps are slower;
head_dim 96 and 128 take 128 × 64 on 4 warps, and 8 are slower.
"""

import pytest

from tuner import operators
from tuner.arch import gpu
from tuner.check import Checker
from tuner.evaluate import Candidate, Predictor
from tuner.nvrtc import Compiler

Tile = tuple[int, int, int]  # BM, BN, warps


def costs(head_dim: int, tiles: list[Tile]) -> dict[Tile, float]:
    """The least predicted cost of each tile over the other choices, at most a few bytes spilled outside the loop."""
    operator, target = operators.load("flash_attention"), gpu("A100")
    implementation = operators.implementation("flash_attention", "mma_sync")
    problem = operator.problem(head_dim=head_dim)
    wanted = [
        Candidate(implementation, c)
        for c in implementation.space(problem, target.arch)
        if (c.BM, c.BN, c.warps) in tiles and c.stages == 2 and c.d_warps == 1 and c.swizzle and c.lazy_rescale
    ]
    found: dict[Tile, float] = {}
    with Compiler() as compiler:
        for i, attempt in Predictor(operator, problem, target, compiler, Checker()).attempts(wanted):
            c = wanted[i].config
            tile = (c.BM, c.BN, c.warps)
            if attempt.value is not None and attempt.resources and attempt.resources.spill_bytes <= 32:
                found[tile] = min(attempt.value, found.get(tile, attempt.value))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "best", "slower"),
    [
        (64, (128, 128, 4), [(128, 128, 8), (64, 128, 2), (64, 64, 4)]),
        (96, (128, 64, 4), [(128, 64, 8), (64, 64, 4)]),
        (128, (128, 64, 4), [(128, 64, 8), (128, 128, 8), (64, 64, 4)]),
    ],
)
def test_the_tiles_that_hand_tuning_chose_rank_first(head_dim: int, best: Tile, slower: list[Tile]) -> None:
    found = costs(head_dim, [best, *slower])
    assert min(found, key=lambda tile: found[tile]) == best
