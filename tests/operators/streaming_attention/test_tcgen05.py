"""streaming_attention/tcgen05: its kernel on the emulator, at the edges of tiles, and bugs that must be seen."""

from dataclasses import replace
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
from tuner.operators.streaming_attention.tcgen05.config import Config
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("streaming_attention")
TCGEN05 = operators.implementation("streaming_attention", "tcgen05")
BLACKWELL, B200 = ARCHES["sm_100a"], gpu("B200")

BASE = Config(
    BN=48,
    row_tiles=2,
    stages=2,
    value_columns=32,
    polynomial=0,
    lazy_rescale=False,
    overlaid=False,
    packed_heads=1,
)
SIZES = {"batch": 1, "heads": 4, "kv_heads": 1, "slots": 0}
# Panels of one width and of several; rows of one head and of several; P beside scores and over them.
CASES: dict[str, tuple[Problem, Config]] = {
    "d40": (Problem(40, **SIZES), replace(BASE, stages=3, polynomial=4)),
    "d72_two_heads": (
        Problem(72, DType.FP16, **(SIZES | {"kv_heads": 2})),
        replace(BASE, BN=128, value_columns=0, lazy_rescale=True, overlaid=True, packed_heads=2),
    ),
    "d64_ragged": (
        Problem(64, ragged=True, **SIZES),
        replace(BASE, BN=112, row_tiles=1, value_columns=64, polynomial=8, packed_heads=4),
    ),
}


def run(problem: Problem, config: Config, mode: Mode, kind: str = "normal", operator: Any = OPERATOR) -> Any:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *emulator.run(Instance(operator, TCGEN05, problem, config), arrays, mode)


def wrong(problem: Problem, arrays: Any, outputs: Any) -> set[str]:
    return {error.name for error in errors(OPERATOR, problem, arrays, outputs) if not error.ok}


@pytest.mark.parametrize("case", CASES)
def test_windows_and_sinks_on_every_side_of_a_tile_come_out_right(case: str) -> None:
    problem, config = CASES[case]
    assert TCGEN05.space(problem, BLACKWELL).refusal(config) is None
    modes = (CHECKED[len(case) % 2],)
    assert_right_at_edges(Instance(OPERATOR, TCGEN05, problem, config), modes)


@pytest.mark.parametrize(
    ("seq_q", "seq_k", "window", "sinks"),
    [
        (130, 130, 113, 16),  # windows of the last rows begin where the sinks' places end
        (130, 130, 112, 16),  # one key later
        (300, 300, 29, 16),
        (70, 300, 48, 32),
        (129, 290, 33, 48),  # a tile of sinks only
        (64, 400, 300, 100),
        (70, 60, 2**30, 2**30),
    ],
)
def test_edges_next_to_those_of_tiles_and_pieces_are_as_declared(
    seq_q: int, seq_k: int, window: int, sinks: int
) -> None:
    of_any_size, config = CASES["d40"]
    problem = replace(of_any_size, seq_q=seq_q, seq_k=seq_k, slots=seq_k, window=window, sinks=sinks)
    arrays, outputs, happened = run(problem, config, Mode(), "equal_keys")
    assert not wrong(problem, arrays, outputs)
    (work,), counted = TCGEN05.work(problem, config, B200), happened.counters
    assert work.tcgen05 == counted.tcgen05_m16n8k16
    assert work.l2_bytes - 4 * problem.heads * seq_q == counted.bulk_bytes
    assert work.barriers == counted.barriers


BUGS = {
    "a_key_before_the_window": ("{end - this->window, end,", "{end - this->window - 1, end,"),
    "a_key_behind_the_query": ("this->window, end, this", "this->window, end + 1, this"),
    "a_key_behind_the_sinks": ("before(sinks - first)", "before(sinks + 1 - first)"),
    "windows_are_not_cut_on_the_left": ("last_begin > this->sinks ? (last_begin + BN - 1) / BN : 0", "0"),
    "windows_are_not_cut_on_the_right": (
        "(work.query(first) + ahead) / BN};",
        "(work.query(first) + ahead) / BN + 1};",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_mask_is_seen(bug: str, tmp_path: Path) -> None:
    operator = injected(OPERATOR, tmp_path, "tcgen05/keys.cuh", *BUGS[bug])
    problem = Problem(16, batch=1, heads=2, kv_heads=1, seq_q=70, seq_k=300, window=100, sinks=20)
    config = replace(BASE, BN=48, value_columns=16, row_tiles=1)
    arrays, outputs, _ = run(problem, config, Mode(), operator=operator)
    assert "lse" in wrong(problem, arrays, outputs)
