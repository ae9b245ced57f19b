"""streaming_attention/wgmma: its kernel on the emulator, at the edges of tiles, and bugs that must be seen."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_right_at_edges
from tests.support.injected import injected
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.operators.streaming_attention.problem import Problem
from tuner.operators.streaming_attention.wgmma.config import Config
from tuner.operators.streaming_attention.wgmma.work import tiles
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("streaming_attention")
WGMMA = operators.implementation("streaming_attention", "wgmma")
HOPPER, H200 = ARCHES["sm_90a"], gpu("H200")

BASE = Config(
    BN=48,
    warpgroups=2,
    stages=2,
    overlap=1,
    ping_pong=True,
    value_columns=32,
    polynomial=0,
    lazy_rescale=False,
    packed_heads=1,
    cluster=1,
    blocks=0,
)
SIZES = {"batch": 1, "heads": 4, "kv_heads": 1, "slots": 0}
# Panels of one width and of several; rows of one head and of several; a block a row tile, blocks that walk, clusters.
CASES: dict[str, tuple[Problem, Config]] = {
    "d40_over_both": (Problem(40, **SIZES), replace(BASE, overlap=2, ping_pong=False, stages=3)),
    "d72_cluster_of_heads": (
        Problem(72, DType.FP16, **SIZES),
        replace(BASE, BN=80, value_columns=0, lazy_rescale=True, packed_heads=2, cluster=2),
    ),
    "d64_ragged_walks": (
        Problem(64, ragged=True, **SIZES),
        replace(BASE, BN=160, warpgroups=3, value_columns=64, polynomial=8, packed_heads=4, blocks=132),
    ),
}


def run(problem: Problem, config: Config, mode: Mode, kind: str = "normal", operator: Any = OPERATOR) -> Any:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *emulator.run(Instance(operator, WGMMA, problem, config), arrays, mode)


def wrong(problem: Problem, arrays: Any, outputs: Any) -> set[str]:
    return {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}


def test_a_default_multiplies_little_more_than_rows_attend() -> None:
    """16 queries of 8 heads share a row tile: their windows together have 143 keys, and sinks are filled up to 16."""
    problem = Problem(128, heads=64, kv_heads=8, seq_q=65536, window=128, sinks=4)
    config = WGMMA.default(problem, HOPPER)
    assert (config.BN, int(tiles(problem, config).max())) == (160, 1)


@pytest.mark.parametrize("case", CASES)
def test_windows_and_sinks_on_every_side_of_a_tile_come_out_right(case: str) -> None:
    problem, config = CASES[case]
    modes = (CHECKED[len(case) % 2],)
    assert_right_at_edges(Instance(OPERATOR, WGMMA, problem, config), modes)


@pytest.mark.parametrize(
    ("seq_q", "seq_k", "window", "sinks"),
    [
        (130, 130, 113, 16),  # windows of the second row tile begin where the sinks' places end
        (130, 130, 112, 16),  # one key later
        (70, 300, 49, 17),
        (70, 300, 48, 32),
        (129, 290, 33, 48),  # a tile of sinks only
        (64, 400, 300, 100),
        (70, 60, 2**30, 2**30),
    ],
)
def test_edges_next_to_those_of_tiles_and_pieces_are_as_declared(
    seq_q: int, seq_k: int, window: int, sinks: int
) -> None:
    of_any_size, config = CASES["d40_over_both"]
    problem = replace(of_any_size, seq_q=seq_q, seq_k=seq_k, slots=seq_k, window=window, sinks=sinks)
    arrays, outputs, happened = run(problem, config, Mode(), "equal_keys")
    assert not wrong(problem, arrays, outputs)
    (work,), counted = WGMMA.work(problem, config, H200), happened.counters
    assert work.wgmma == counted.wgmma_m16n8k16
    assert work.l2_bytes - 4 * problem.heads * seq_q == counted.bulk_bytes


def test_two_heads_of_a_kv_head_read_each_key_once() -> None:
    of_any_size, config = CASES["d72_cluster_of_heads"]
    problem = replace(of_any_size, seq_q=200, seq_k=250, slots=250, window=100, sinks=20)
    arrays, outputs, happened = run(problem, config, Mode())
    (work,), (alone,) = (WGMMA.work(problem, variant, H200) for variant in (config, replace(config, cluster=1)))
    assert not wrong(problem, arrays, outputs)
    assert work.wgmma == alone.wgmma == happened.counters.wgmma_m16n8k16
    assert work.l2_bytes - 4 * problem.heads * 200 == happened.counters.bulk_bytes
    assert work.l2_bytes < 0.7 * alone.l2_bytes


def test_blocks_that_walk_do_the_declared_work() -> None:
    problem, config = CASES["d64_ragged_walks"]
    problem = replace(problem, seq_q=200, seq_k=250, slots=250, window=100, sinks=20)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "normal") | {"cache_seqlens": np.array([250], np.int32)}
    _, happened = emulator.run(Instance(OPERATOR, WGMMA, problem, config), arrays, Mode())
    _, work = WGMMA.work(problem, config, H200)
    assert (work.ctas, work.wgmma) == (3, happened.counters.wgmma_m16n8k16)


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new` in panels/keys.cuh."""

    name: str
    old: str
    new: str
    cluster: int = 1


PLACED = "position + row < first ? position + row : position + row - moved"
BUGS = (
    Bug("a_key_before_the_window", "begin = end - window", "begin = end - window - 1"),
    Bug("a_key_behind_the_sinks", "before(sinks - first)", "before(sinks + 1 - first)"),
    Bug("windows_are_not_cut_on_the_left", "begin > sinks ? (begin + BN - 1) / BN : 0", "0"),
    Bug("sinks_and_windows_in_one_box", "position >= first || position + BN <= first", "true"),
    Bug("sinks_at_the_place_of_windows", PLACED, "position + row - moved"),
    Bug("both_blocks_load_the_same_pieces", "cluster_rank() * kPiece", "0", cluster=2),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_the_walk_is_seen(bug: Bug, tmp_path: Path) -> None:
    operator = injected(OPERATOR, tmp_path, "panels/keys.cuh", bug.old, bug.new)
    problem = Problem(16, batch=1, heads=2, kv_heads=1, seq_q=70, seq_k=300, window=100, sinks=20)
    config = replace(BASE, BN=48, value_columns=16, warpgroups=1, ping_pong=False, cluster=bug.cluster)
    arrays, outputs, happened = run(problem, config, Mode(), operator=operator)
    assert "lse" in wrong(problem, arrays, outputs) or happened.findings
