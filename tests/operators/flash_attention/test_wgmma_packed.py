"""flash_attention/wgmma on packed sequences, whose neighbours must not be seen, and with capped scores."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention.test_wgmma import (
    BASE,
    BLOCK,
    HOPPER,
    KEYS,
    OPERATOR,
    OUTPUT,
    OVER_BOTH,
    WGMMA,
    Bug,
    run,
)
from tests.support.claims import assert_right_at_edges
from tests.support.injected import injected
from tuner.arch import gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention.operator import Problem
from tuner.operators.flash_attention.wgmma.config import Config
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance


@pytest.mark.parametrize("config", [BASE, replace(OVER_BOTH, lazy_rescale=True)], ids=["over_values", "over_both"])
def test_capped_scores_come_out_right(config: Config) -> None:
    problem = Problem(40, DType.FP16, True, use_softcap=True, batch=1, heads=2, seq_q=130, seq_k=200)
    arrays, outputs, happened = run(problem, config, CHECKED[0])
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


PACKED = Problem(72, causal=True, use_cu_seqlens=True, batch=1, heads=2, kv_heads=1, seq_q=300, seq_k=350, boundaries=4)
BOUNDS = {"cu_seqlens_q": (0, 70, 230, 300), "cu_seqlens_k": (0, 37, 200, 350)}
CASES = {
    "over_values": replace(BASE, BN=48, warpgroups=3),
    "over_both": replace(OVER_BOTH, BN=96, value_columns=64, lazy_rescale=True, packed_heads=2),
}


def with_neighbour(value: float) -> Any:
    """Packed sequences of which the one in the middle holds nothing but `value`."""
    arrays = OPERATOR.inputs(PACKED, np.random.default_rng(0), "normal")
    arrays |= {name: np.array(bounds, np.int32) for name, bounds in BOUNDS.items()}
    arrays["q"][:, 70:230] = arrays["k"][:, 37:200] = arrays["v"][:, 37:200] = value
    return arrays


@pytest.mark.parametrize("name", CASES)
def test_a_packed_sequence_is_untouched_by_nan_in_the_next(name: str) -> None:
    config, beside_zeros = CASES[name], with_neighbour(0)
    outputs, _ = emulator.run(Instance(OPERATOR, WGMMA, PACKED, config), beside_zeros, Mode(), instrumented=True)
    assert all(error.ok for error in errors(OPERATOR, PACKED, beside_zeros, outputs))
    beside_nan, happened = emulator.run(Instance(OPERATOR, WGMMA, PACKED, config), with_neighbour(np.nan), CHECKED[0])
    assert not happened.findings
    assert changed(outputs, beside_nan) == set()


def changed(outputs: Any, others: Any) -> set[str]:
    """Outputs of the first and the last packed sequence of which not all bits are the same."""
    own, axes = np.r_[0:70, 230:300], {"o": 1, "lse": 2}
    pairs = {name: [arrays[name].take(own, axes[name]) for arrays in (outputs, others)] for name in axes}
    return {name for name, (one, other) in pairs.items() if one.tobytes() != other.tobytes()}


def test_packed_sequences_of_any_lengths_come_out_right_with_capped_scores() -> None:
    problem = Problem(40, causal=True, use_cu_seqlens=True, use_softcap=True, batch=1)
    assert_right_at_edges(Instance(OPERATOR, WGMMA, problem, BASE), CHECKED[:1])


@pytest.mark.parametrize("bounds", [(-30, 40, 40, 2**31 - 1), (7, 20, 60, 61), (300, 40, 10, 5), (400, 500, 600, 700)])
def test_boundaries_that_lie_stay_within_the_tensors(bounds: tuple[int, ...]) -> None:
    arrays = with_neighbour(0) | {"cu_seqlens_q": np.zeros(4, np.int32)}
    untouched, _ = emulator.run(Instance(OPERATOR, WGMMA, PACKED, BASE), arrays, Mode())
    lying = arrays | {name: np.array(bounds, np.int32) for name in BOUNDS}
    outputs, happened = emulator.run(Instance(OPERATOR, WGMMA, PACKED, BASE), lying, CHECKED[0])
    covered = np.r_[tuple(slice(*pair) for pair in pairwise(np.clip(bounds, 0, 300)))].astype(int)
    assert not happened.findings
    assert np.isfinite(outputs["o"][:, covered].astype(np.float32)).all()
    others = [np.delete(arrays["o"], covered, axis=1).tobytes() for arrays in (outputs, untouched)]
    assert others[0] == others[1], "rows of no sequence are as they were"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (replace(BASE, blocks=132), "packed sequences: one block per row tile"),
        (replace(BASE, cluster=2), "packed sequences: each block loads for itself"),
        (replace(BASE, value_columns=0), "packed sequences use panels of V of one width"),
    ],
)
def test_packed_sequences_are_refused_what_they_cannot_have(config: Config, reason: str) -> None:
    assert any(reason in refusal for refusal in WGMMA.space(PACKED, HOPPER).refusals(config))


NEIGHBOURS, FENCED = "wgmma/packed.cuh", "  fence_proxy_async();\n"
AWAITED = "  mbarrier_wait(rows.barriers.values_full(rows.keys.stage), rows.keys.parity);\n"
BUGS = (
    Bug("values_of_the_next_sequence", BLOCK, "clear_neighbours(rows, keys, smem, work);", ";", "o"),
    Bug("zeros_that_others_do_not_wait_for", NEIGHBOURS, "  named_barrier_sync(1, Tile::kConsumers);\n", "", "race"),
    Bug("zeros_that_wgmma_may_not_see", NEIGHBOURS, FENCED, "", "proxy_fence"),
    Bug("zeros_before_the_values", NEIGHBOURS, AWAITED, "", "in_flight"),
    Bug("the_next_sequence_is_stored_over", OUTPUT, "> work.sequence.queries) {", "> sizes.seq_q) {", "o"),
    Bug("keys_from_the_first_row_on", KEYS, "work.sequence.first_key + tile * BN", "tile * BN", "lse"),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_what_packed_sequences_need_is_seen(bug: Bug, tmp_path: Path) -> None:
    operator, config = injected(OPERATOR, tmp_path, bug.file, bug.old, bug.new), CASES["over_values"]
    right, _ = emulator.run(Instance(OPERATOR, WGMMA, PACKED, config), with_neighbour(0), Mode())
    outputs, happened = emulator.run(Instance(operator, WGMMA, PACKED, config), with_neighbour(np.nan), CHECKED[0])
    assert bug.seen in changed(right, outputs) | {finding.kind for finding in happened.findings}


def test_packed_sequences_of_equal_lengths_do_the_declared_work() -> None:
    problem = replace(PACKED, seq_q=384, seq_k=300, max_seqlen_q=128)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "normal")
    arrays |= {"cu_seqlens_q": np.arange(0, 512, 128, np.int32), "cu_seqlens_k": np.arange(0, 400, 100, np.int32)}
    _, happened = emulator.run(Instance(OPERATOR, WGMMA, problem, BASE), arrays, Mode())
    (work,) = WGMMA.work(problem, BASE, gpu("H200"))
    assert (work.ctas, work.wgmma) == (len(happened.block_counters), happened.counters.wgmma_m16n8k16)
    assert work.l2_bytes - 4 * 2 * 384 == happened.counters.bulk_bytes
