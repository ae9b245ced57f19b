"""streaming_attention: its definition, the counts of its loops, and its kernels on the emulator and through NVRTC."""

import re
from collections import Counter
from dataclasses import replace
from itertools import chain, cycle, product
from typing import Any

import numpy as np
import pytest

from tests.operators.small_tiles import SMALL_TILES
from tests.support.claims import DISTINCT_ARCHES, assert_no_spills, assert_right_at_edges
from tests.support.counted import counted, declared
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, UsageError
from tuner.evaluate.check.checker import CHECKED, PLAIN
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention import operator as dense
from tuner.operators.streaming_attention.mma_sync import config as mma_sync_config
from tuner.operators.streaming_attention.operator import streaming_attention
from tuner.operators.streaming_attention.problem import Problem, attended_keys, attends, slots
from tuner.operators.streaming_attention.split_keys import implementation as split_keys
from tuner.operators.streaming_attention.visits import Keys, Walks
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

OPERATOR = operators.load("streaming_attention")
NAIVE, MMA_SYNC, SPLIT_KEYS = (
    operators.implementation("streaming_attention", name) for name in ("naive", "mma_sync", "split_keys")
)
HEAD_DIMS = (8, 40, 64, 104, 128, 256)
H200 = gpu("H200")
REVERSE = Mode(True, "reverse", "early")

BASE = mma_sync_config.Config(**SMALL_TILES, narrow=16, packed_heads=1)
SPLIT = split_keys.Config(BM=16, BN=16, warps=2, stages=2, splits=1, q_in_registers=False)
# Tiles wider and narrower than windows, with and without narrow spans, warps that share rows, Q in all its places.
CASES: dict[str, tuple[int, Any, Any]] = {
    "d8_narrow_spans": (8, MMA_SYNC, replace(BASE, BN=64, narrow=32, stages=3)),
    "d40_wide_tiles": (40, MMA_SYNC, replace(BASE, BN=128, narrow=32, lazy_rescale=True)),
    "d72_query_through_the_ring": (72, MMA_SYNC, replace(BASE, BN=48, q_in_registers=True, smem_budget=14336)),
    "d40_packed_heads": (40, MMA_SYNC, replace(BASE, BM=128, packed_heads=8)),
    "d72_packed_pairs": (72, MMA_SYNC, replace(BASE, BM=128, narrow=0, packed_heads=2, lazy_rescale=True)),
    "d128_two_warps_share_rows": (128, MMA_SYNC, replace(BASE, BM=32, BN=64, narrow=32, d_warps=2)),
    "d256_padded_whole_tiles": (256, MMA_SYNC, replace(BASE, swizzle=False, BM=32, warps=2, narrow=0)),
    "d8_split": (8, SPLIT_KEYS, replace(SPLIT, splits=4, BM=32)),
    "d40_one_split": (40, SPLIT_KEYS, replace(SPLIT, warps=4, stages=3)),
    "d72_split_in_registers": (72, SPLIT_KEYS, replace(SPLIT, splits=2, BN=48, q_in_registers=True)),
    "d256_split": (256, SPLIT_KEYS, replace(SPLIT, splits=2)),
}


def of_case(name: str) -> tuple[Problem, Any, Any]:
    """Problem, implementation and config, of which all tests of a case build one kernel."""
    D, implementation, config = CASES[name]
    return Problem(head_dim=D, dtype=DType.FP16 if D % 16 else DType.BF16), implementation, config


def run(implementation: Any, problem: Problem, config: Any, kind: str = "normal") -> Any:
    """(arrays, outputs, Run) under the race detector, without findings."""
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *found(implementation, problem, config, arrays)


def found(implementation: Any, problem: Problem, config: Any, arrays: Any) -> Any:
    outputs, happened = emulator.run(Instance(OPERATOR, implementation, problem, config), arrays, CHECKED[0])
    assert not happened.findings
    return outputs, happened


def random_problem(rng: np.random.Generator) -> Problem:
    seq_q, seq_k, window = (int(n) for n in rng.integers(1, 300, size=3))
    return Problem(seq_q=seq_q, seq_k=seq_k, window=window, sinks=int(rng.integers(0, 120)))


@pytest.mark.parametrize(
    ("field", "value"), [("window", 0), ("sinks", -1), ("window", 2**31), ("head_dim", 12), ("dtype", DType.INT32)]
)
def test_a_wrong_size_is_refused_by_name_and_value(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{field} {getattr(value, 'value', value)}"):
        Problem(**{field: value})


def test_slots_differ_from_keys_only_in_a_rolling_cache() -> None:
    with pytest.raises(UsageError, match="slots 20: must equal seq_k 100, unless the cache is rolling"):
        Problem(seq_q=1, seq_k=100, slots=20)
    assert Problem(rolling=True, seq_q=1, seq_k=100, window=16, sinks=4).slots == 20


def test_a_cache_that_lost_an_attended_key_is_refused() -> None:
    with pytest.raises(UsageError, match="slots 20: 2 queries with window 16 and 4 sinks attend 21 of 100 keys"):
        Problem(rolling=True, seq_q=2, seq_k=100, slots=20, window=16, sinks=4)


@pytest.mark.parametrize(
    ("seq_q", "seq_k", "window", "sinks"), [(6, 6, 2, 1), (3, 7, 1, 0), (7, 4, 2, 3), (5, 5, 9, 9)]
)
def test_the_reference_agrees_with_the_definition_key_by_key(seq_q: int, seq_k: int, window: int, sinks: int) -> None:
    sizes = {"seq_q": seq_q, "seq_k": seq_k, "window": window, "sinks": sinks}
    problem = Problem(head_dim=8, batch=2, heads=4, kv_heads=2, **sizes)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(1), "normal")
    outputs = OPERATOR.reference(problem, arrays)
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    for b, t, h in product(range(2), range(seq_q), range(4)):
        p = t + seq_k - seq_q
        keys = sorted({j for j in range(sinks) if j <= p} | {j for j in range(p - window + 1, p + 1) if j >= 0})
        weights = np.array([np.exp(8**-0.5 * (q[b, t, h] @ k[b, j, h // 2])) for j in keys])
        expected = sum((w * v[b, j, h // 2] for w, j in zip(weights, keys, strict=True)), np.zeros(8))
        np.testing.assert_allclose(outputs["o"][b, t, h], expected / weights.sum() if keys else 0)
        assert outputs["lse"][b, h, t] == pytest.approx(np.log(weights.sum()) if keys else -np.inf)


@pytest.mark.parametrize(("window", "sinks"), [(50, 0), (1, 50), (30, 25)])
def test_a_window_and_sinks_that_cover_everything_are_causal_attention(window: int, sinks: int) -> None:
    sizes = {"head_dim": 16, "batch": 1, "heads": 2, "seq_q": 30, "seq_k": 50}
    problem = Problem(window=window, sinks=sinks, **sizes)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(2), "normal")
    causal = dense.reference(dense.Problem(causal=True, **sizes), arrays)
    assert all(np.array_equal(OPERATOR.reference(problem, arrays)[name], causal[name]) for name in causal)


def test_the_count_of_attended_keys_is_that_of_the_mask() -> None:
    rng = np.random.default_rng(3)
    for problem in (random_problem(rng) for _ in range(50)):
        assert np.array_equal(attended_keys(problem), attends(problem).sum(axis=1))


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_rolling_cache_gives_what_all_keys_give(room: int) -> None:
    kept = Problem(head_dim=8, batch=1, heads=2, seq_q=3, seq_k=50, window=7, sinks=4)
    rolling = replace(kept, rolling=True, slots=kept.reach + room)
    every, cached = (OPERATOR.inputs(problem, np.random.default_rng(4), "normal") for problem in (kept, rolling))
    assert cached["k"].shape[1] == rolling.slots
    assert np.array_equal(OPERATOR.reference(kept, every)["o"], OPERATOR.reference(rolling, cached)["o"])


def test_a_ragged_cache_that_rolls_has_slots_for_all_that_is_attended() -> None:
    with pytest.raises(UsageError, match="slots 20: 2 queries with window 16 and 4 sinks attend 21 keys"):
        Problem(rolling=True, ragged=True, seq_q=2, slots=20, window=16, sinks=4)
    assert Problem(rolling=True, ragged=True, seq_q=2, window=16, sinks=4).slots == 21


@pytest.mark.parametrize("rolling", [False, True])
def test_each_sequence_of_a_ragged_batch_is_as_if_it_were_alone(rolling: bool) -> None:
    sizes = {"head_dim": 8, "heads": 2, "seq_q": 3, "slots": 30, "window": 7, "sinks": 4, "rolling": rolling}
    problem = Problem(ragged=True, batch=3, **sizes)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(4), "normal")
    lengths = arrays["cache_seqlens"].tolist()
    outputs = OPERATOR.reference(problem, arrays)
    assert lengths[-1] == 0 and not outputs["o"][-1].any() and (outputs["lse"][-1] == -np.inf).all()
    for b, length in enumerate(lengths[:-1]):
        alone = replace(problem, ragged=False, batch=1, seq_k=length, slots=30 if rolling else length)
        one = {name: arrays[name][b : b + 1, : alone.slots] for name in ("k", "v")} | {"q": arrays["q"][b : b + 1]}
        expected = OPERATOR.reference(alone, one)
        assert all(np.array_equal(outputs[name][b : b + 1], expected[name]) for name in expected)


def test_positions_wrap_around_behind_the_sinks() -> None:
    problem = Problem(rolling=True, seq_q=1, seq_k=9, slots=5, window=3, sinks=2)
    assert slots(problem).tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 2]


def test_the_floor_counts_attended_pairs_and_every_attended_key_once() -> None:
    cost = OPERATOR.cost(Problem(head_dim=64, batch=2, heads=4, kv_heads=2, seq_q=3, seq_k=100, window=5, sinks=2))
    assert cost.flops == 4 * 64 * (2 * 4) * (3 * 7)
    assert cost.bytes == 2 * 64 * 2 * (2 * 3 * 4 + 2 * 9 * 2) + 4 * (2 * 4 * 3)


def test_the_call_refuses_a_window_that_is_no_count() -> None:
    at = Dispatcher(Snapshot({}, ()))
    q = np.zeros((1, 4, 1, 8), np.float16)
    for window in (0, 2.5):
        with pytest.raises(InputError, match=f"window {window}"):
            at.call("streaming_attention", q, q, q, window=window)
    with pytest.raises(UsageError, match="layout 'tbhd'"):
        streaming_attention(q, q, q, window=1, layout="tbhd")


def test_the_call_refuses_a_cache_of_no_positions() -> None:
    q = np.zeros((1, 1, 1, 8), np.float16)
    with pytest.raises(UsageError, match="seq_k 0: pass the number of positions so far"):
        streaming_attention(q, q, q, window=1, seq_k=0)


def test_the_example_of_the_readme_gives_the_last_position_twice() -> None:
    text = (OPERATOR.folder / "README.md").read_text()
    results: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0], results)
    np.testing.assert_allclose(results["step"][:, 0].astype(float), results["o"][:, 49].astype(float), atol=2e-3)


def test_tiles_hold_every_attended_key_once_and_none_of_them_is_idle() -> None:
    rng = np.random.default_rng(5)
    for _ in range(40):
        problem, BM, BN = random_problem(rng), 16 * int(rng.integers(1, 9)), 16 * int(rng.integers(1, 9))
        blocks = -(-problem.seq_q // BM)
        walks = Walks(Keys.of(problem, BM, blocks), BN)
        for block in range(blocks):
            attended = np.flatnonzero(attends(problem)[block * BM : (block + 1) * BM].any(axis=0))
            held = [[key for key in attended if key in tile] for tile in tiles(walks, block)]
            assert sorted(chain.from_iterable(held)) == attended.tolist()
            assert all(held)


@pytest.mark.parametrize("narrow", [16, 32])
def test_a_warp_takes_a_narrow_span_where_it_holds_all_that_its_rows_attend(narrow: int) -> None:
    rng = np.random.default_rng(6)
    for _ in range(40):
        problem, rows = random_problem(rng), 16 * int(rng.integers(1, 3))
        blocks = -(-problem.seq_q // (4 * rows))
        walks = Walks(Keys.of(problem, 4 * rows, blocks), 64)
        widths: Counter[int] = Counter()
        for part in range(4 * blocks):
            attended = np.flatnonzero(attends(problem)[part * rows : (part + 1) * rows].any(axis=0))
            for tile in tiles(walks, part // 4):
                keys = [key - tile[0] for key in attended if key in tile]
                if keys:
                    first = min(keys[0] // 16 * 16, 64 - narrow)
                    widths[narrow if keys[-1] < first + narrow else 64] += 1
        assert walks.spans(Keys.of(problem, rows, 4 * blocks), narrow) == (widths[64], widths[narrow])


def tiles(walks: Walks, block: int) -> list[range]:
    """The keys of each tile that a block visits."""
    prefix, begin, end = (int(bound[block]) for bound in (walks.keys.prefix, walks.window_begin, walks.keys.last + 1))
    firsts = (*range(0, prefix, walks.BN), *range(begin, end, walks.BN))
    return [range(first, min(first + walks.BN, prefix) if first < prefix else first + walks.BN) for first in firsts]


@pytest.mark.parametrize(
    "case", ["d8_narrow_spans", "d72_query_through_the_ring", "d72_packed_pairs", "d8_split", "d40_one_split"]
)
def test_declared_work_is_what_the_emulator_counts(case: str) -> None:
    of_any_size, implementation, config = of_case(case)
    for problem in OPERATOR.tails(of_any_size):
        _, _, happened = run(implementation, problem, config)
        works = implementation.work(problem, config, H200)
        assert declared(works) == counted(happened, implementation.plan(problem, config))


@pytest.mark.parametrize("window", [1, 64, 1000])
def test_twice_the_length_is_twice_the_work(window: int) -> None:
    def mma(seq_q: int) -> float:
        return MMA_SYNC.work(Problem(seq_q=seq_q, window=window, sinks=4), BASE, H200)[0].mma

    first = mma(2048)  # at the start, windows are cut short
    assert mma(4096) - first == mma(6144) - mma(4096) == (mma(131072) - first) / 63


def test_a_warp_multiplies_its_window_and_sinks_and_less_than_two_narrow_spans_more() -> None:
    long = Problem(head_dim=64, batch=1, heads=1, seq_q=65536, window=64, sinks=4)
    executed = MMA_SYNC.work(long, BASE, H200)[0].mma * 4096 / (4 * 64)  # pairs of queries and keys
    assert executed / long.seq_q == pytest.approx(64 + 16 + 16, rel=1e-3)
    whole = MMA_SYNC.work(long, replace(BASE, narrow=0), H200)[0].mma * 4096 / (4 * 64)
    assert whole / long.seq_q == pytest.approx(32 + 96, rel=1e-2)


def test_a_step_of_decoding_reads_what_it_attends_whatever_came_before() -> None:
    for seq_k in (1000, 100000):
        problem = Problem(batch=8, heads=32, kv_heads=4, seq_q=1, seq_k=seq_k, window=512, sinks=4)
        (work,) = SPLIT_KEYS.work(problem, replace(SPLIT, BN=64), H200)
        assert work.l2_bytes < 1.1 * OPERATOR.cost(problem).bytes


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_gives_the_right_result(case: str) -> None:
    problem, implementation, config = of_case(case)
    assert_right_at_edges(Instance(OPERATOR, implementation, problem, config), (REVERSE, *CHECKED))


CACHES = {"rolling": {"rolling": True}, "ragged": {"ragged": True}, "rolling_ragged": {"rolling": True, "ragged": True}}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(("implementation", "D"), [(NAIVE, 8), (SPLIT_KEYS, 40)], ids=["naive", "split_keys"])
def test_caches_that_roll_and_batches_of_any_lengths_come_out_right(implementation: Any, D: int, cache: str) -> None:
    problem = Problem(head_dim=D, **CACHES[cache])
    assert_right_at_edges(Instance.default(OPERATOR, implementation, problem, ARCHES["sm_80"]), CHECKED)


def test_mma_sync_comes_out_right_for_lengths_of_any_batch() -> None:
    assert_right_at_edges(Instance(OPERATOR, MMA_SYNC, Problem(head_dim=40, ragged=True), BASE), CHECKED)


@pytest.mark.parametrize(
    ("implementation", "D"), [(NAIVE, 8), (SPLIT_KEYS, 40), (MMA_SYNC, 40)], ids=["naive", "split_keys", "mma_sync"]
)
def test_lengths_that_no_cache_has_count_as_the_nearest(implementation: Any, D: int) -> None:
    problem = Problem(head_dim=D, heads=1, batch=2, seq_q=2, slots=20, window=7, sinks=4, ragged=True)
    default = implementation.default(Problem(head_dim=D, ragged=True), ARCHES["sm_80"])
    config = BASE if implementation is MMA_SYNC else default
    full = OPERATOR.inputs(replace(problem, ragged=False), np.random.default_rng(5), "normal")
    wrong, nearest = (full | {"cache_seqlens": np.array(interval, np.int32)} for interval in ([-1, 21], [0, 20]))
    outputs, _ = found(implementation, problem, config, wrong)
    assert all(error.ok for error in errors(OPERATOR, problem, nearest, outputs))


def test_the_naive_kernel_serves_fp32() -> None:
    problem = Problem(head_dim=72, dtype=DType.FP32)
    assert_right_at_edges(Instance.default(OPERATOR, NAIVE, problem, ARCHES["sm_80"]), PLAIN)
    assert all("fp32" in implementation.refusal(problem, ARCHES["sm_80"]) for implementation in (MMA_SYNC, SPLIT_KEYS))


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
@pytest.mark.parametrize("case", ["d40_wide_tiles", "d72_split_in_registers"])
def test_hostile_inputs_come_out_right(kind: str, case: str) -> None:
    problem, implementation, config = of_case(case)
    problem = replace(problem, batch=1, heads=4, kv_heads=2, seq_q=70, seq_k=150, window=33, sinks=7, slots=0)
    arrays, outputs, _ = run(implementation, problem, config, kind)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


@pytest.mark.parametrize("case", ["d8_narrow_spans", "d40_packed_heads", "d8_split"])
def test_edges_next_to_those_of_tiles_come_out_right(case: str) -> None:
    of_any_size, implementation, config = of_case(case)
    rng = np.random.default_rng(9)
    near = np.array([16, 32, 64])
    for _ in range(16):
        window, seq_k = (int(rng.choice(near) + rng.integers(-1, 2)) for _ in range(2))
        sinks, more = int(rng.integers(0, 48)), int(rng.integers(0, 80))
        sizes = {"heads": 2, "kv_heads": 1, "seq_q": seq_k, "seq_k": seq_k + more, "window": window, "sinks": sinks}
        problem = replace(of_any_size, batch=1, slots=0, **sizes)
        arrays, outputs, _ = run(implementation, problem, config, "equal_keys")
        assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs)), problem


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (12, 2), (6, 2), (8, 2)])
def test_heads_are_packed_as_far_as_their_number_has_the_power_of_two(heads: int, kv_heads: int) -> None:
    problem, _, config = of_case("d40_packed_heads")
    sizes = {"seq_q": 37, "seq_k": 90, "window": 20, "sinks": 3}
    problem = replace(problem, batch=2, heads=heads, kv_heads=kv_heads, slots=0, **sizes)
    arrays, outputs, happened = run(MMA_SYNC, problem, config)
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    assert declared(MMA_SYNC.work(problem, config, H200)) == counted(happened, MMA_SYNC.plan(problem, config))


def test_packed_heads_read_keys_once_and_multiply_fewer_of_them() -> None:
    long = Problem(head_dim=128, heads=8, kv_heads=1, seq_q=65536, window=128, sinks=4)
    config = MMA_SYNC.default(long, ARCHES["sm_90a"])
    packed, alone = (MMA_SYNC.work(long, replace(config, packed_heads=heads), H200)[0] for heads in (8, 1))
    assert config.packed_heads == 8
    assert packed.l2_bytes < 0.72 * alone.l2_bytes
    assert packed.mma / alone.mma == pytest.approx(160 / 176, rel=2e-3)


def test_equal_keys_count_the_attended_ones() -> None:
    problem, _, config = of_case("d40_wide_tiles")
    problem = replace(problem, batch=1, heads=1, kv_heads=1, seq_q=90, seq_k=200, window=50, sinks=20, slots=0)
    arrays, outputs, _ = run(MMA_SYNC, problem, config, "equal_keys")
    scores = arrays["softmax_scale"] * arrays["q"][0, :, 0].astype(float) @ arrays["k"][0, 0, 0].astype(float)
    np.testing.assert_allclose(np.exp(outputs["lse"][0, 0] - scores), attended_keys(problem), rtol=1e-5)


@pytest.mark.parametrize("case", ["d40_wide_tiles", "d40_one_split"])
def test_views_of_another_layout_need_no_copy(case: str) -> None:
    problem, implementation, config = of_case(case)
    problem = replace(problem, batch=2, heads=4, kv_heads=2, seq_q=19, seq_k=35, window=9, sinks=2, slots=0)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(5), "normal")
    views = arrays | {name: arrays[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name in "qkv"}
    plain, strided = (found(implementation, problem, config, inputs)[0] for inputs in (arrays, views))
    assert np.array_equal(plain["o"], strided["o"])


def test_decoding_over_a_rolling_cache_gives_what_one_call_over_all_positions_gives() -> None:
    at, rng = Dispatcher(Snapshot({}, ())), np.random.default_rng(7)
    q, k, v = (rng.standard_normal((1, 30, heads, 16)).astype(np.float16) for heads in (4, 2, 2))
    whole, _ = at.call("streaming_attention", q, k, v, window=5, sinks=2)
    cache = np.full((2, 1, 7, 2, 16), np.nan, np.float16)
    for position in range(30):
        slot = position if position < 7 else 2 + (position - 2) % 5
        cache[:, 0, slot] = k[0, position], v[0, position]
        if position in (0, 4, 6, 7, 19, 29):
            query = q[:, position : position + 1]
            step, _ = at.call("streaming_attention", query, *cache, window=5, sinks=2, seq_k=position + 1)
            np.testing.assert_allclose(step[0, 0].astype(float), whole[0, position].astype(float), atol=2e-3)


def test_one_call_decodes_sequences_of_different_lengths_and_serves_the_next_step_too() -> None:
    at, rng = Dispatcher(Snapshot({}, ())), np.random.default_rng(8)
    q, k, v = (rng.standard_normal((2, 12, heads, 16)).astype(np.float16) for heads in (4, 2, 2))
    whole, _ = at.call("streaming_attention", q, k, v, window=5, sinks=2)
    for lengths in ([3, 12], [4, 9]):
        ends = np.array(lengths, np.int32)
        query = q[np.arange(2), ends - 1][:, None]
        step, _ = at.call("streaming_attention", query, k, v, window=5, sinks=2, cache_seqlens=ends)
        np.testing.assert_allclose(step[:, 0].astype(float), whole[np.arange(2), ends - 1].astype(float), atol=2e-3)


def test_the_call_refuses_a_cache_told_in_two_ways_or_not_at_all() -> None:
    q = np.zeros((1, 1, 1, 8), np.float16)
    with pytest.raises(UsageError, match="seq_k 3 and cache_seqlens: pass one of them"):
        streaming_attention(q, q, q, window=1, seq_k=3, cache_seqlens=np.ones(1, np.int32))
    with pytest.raises(UsageError, match="rolling=True: pass seq_k or cache_seqlens"):
        streaming_attention(q, q, q, window=1, rolling=True)


# Each head_dim and each arch; implementations, dtypes, caches and groups of heads are dealt out.
COMPILED = list(zip((*HEAD_DIMS, 128, 256, 40), cycle(DISTINCT_ARCHES), strict=False))


@pytest.mark.parametrize("i", range(len(COMPILED)), ids=[f"d{D}-{arch}" for D, arch in COMPILED])
@pytest.mark.slow
def test_defaults_never_spill(i: int) -> None:
    D, arch = COMPILED[i]
    implementation = SPLIT_KEYS if D in (8, 40, 64) else MMA_SYNC
    dtype, kv_heads = (DType.BF16, DType.FP16)[i // 2 % 2], (4, 32)[i // 4 % 2]
    problem = Problem(head_dim=D, dtype=dtype, rolling=implementation is SPLIT_KEYS and i < 2, kv_heads=kv_heads)
    assert implementation.space(problem, ARCHES[arch]).refusal(implementation.default(problem, ARCHES[arch])) is None
    assert_no_spills(OPERATOR, implementation, problem, arch)


@pytest.mark.parametrize("kv_heads", [32, 4])
@pytest.mark.parametrize("D", [104, 128])
@pytest.mark.parametrize(("arch", "packed"), [("sm_80", 64), ("sm_90a", 32)])
def test_tiles_are_as_wide_as_the_registers_let_them(arch: str, packed: int, D: int, kv_heads: int) -> None:
    problem = Problem(head_dim=D, heads=32, kv_heads=kv_heads, window=1024)
    result = MMA_SYNC.default(problem, ARCHES[arch]).BN
    assert result == (packed if kv_heads < 32 else 64)
    assert_no_spills(OPERATOR, MMA_SYNC, problem, arch)


def test_narrow_windows_and_lengths_of_their_own_have_narrower_tiles() -> None:
    wide = Problem(head_dim=128, window=256)
    others = (replace(wide, window=255), replace(wide, ragged=True))
    assert [MMA_SYNC.default(variant, ARCHES["sm_90a"]).BN for variant in (wide, *others)] == [64, 32, 32]


@pytest.mark.slow
def test_the_plain_kernel_spills_nothing_of_256_columns_in_fp32() -> None:
    assert_no_spills(OPERATOR, NAIVE, Problem(head_dim=256, dtype=DType.FP32), "sm_120a")
