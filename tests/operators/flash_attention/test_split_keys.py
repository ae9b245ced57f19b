"""flash_attention for few queries: its counts, its kernels on the emulator and through NVRTC, and when it is chosen."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_no_spills, assert_right_at_edges, compiled, dealt_arches
from tests.support.counted import counted, declared
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.render import render
from tuner.dispatcher.calls import Dispatcher
from tuner.dispatcher.config_choice import choose
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention.operator import Problem
from tuner.operators.flash_attention.split_keys.config import Config
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

OPERATOR = operators.load("flash_attention")
SPLIT_KEYS = operators.implementation("flash_attention", "split_keys")
HEAD_DIMS = (40, 64, 72, 112, 128, 192, 256)
H200 = gpu("H200")
EMPTY = Snapshot({}, ())

BASE = Config(BM=16, BN=16, warps=2, stages=2, splits=1, q_in_registers=False)
# Every tunable away from BASE at least once, with and without a merge, a tail of 8 columns and a mask.
CASES = {
    "d8_two_row_tiles": (8, True, replace(BASE, BM=32, splits=4)),
    "d40_one_split": (40, False, replace(BASE, warps=4, stages=3)),
    "d48_merged_rows_end_within_the_banks": (48, True, replace(BASE, splits=2)),
    "d72_query_in_registers": (72, True, replace(BASE, BN=48, splits=2, q_in_registers=True)),
    "d128_more_shares_than_tiles": (128, False, replace(BASE, BN=32, warps=4, splits=4)),
    "d256_one_warp": (256, True, replace(BASE, warps=1, splits=2)),
}
# batch 1, 32 query heads on 8 heads of K and V
DECODING = Problem(batch=1, heads=32, kv_heads=8, seq_q=1, seq_k=8192)
PROMPT = replace(DECODING, causal=True, seq_q=4096, seq_k=4096)


def run(problem: Problem, config: Config, kind: str = "normal", mode: Mode | None = None) -> Any:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    return arrays, *emulator.run(Instance(OPERATOR, SPLIT_KEYS, problem, config), arrays, mode or Mode())


@pytest.mark.parametrize(
    "case", ["d8_two_row_tiles", "d40_one_split", "d48_merged_rows_end_within_the_banks", "d72_query_in_registers"]
)
def test_declared_work_is_what_the_emulator_counts(case: str) -> None:
    D, causal, config = CASES[case]
    for problem in OPERATOR.tails(Problem(head_dim=D, causal=causal)):
        _, _, happened = run(problem, config, mode=Mode(checked=True))
        works = SPLIT_KEYS.work(problem, config, H200)
        assert declared(works) == counted(happened, SPLIT_KEYS.plan(problem, config))


@pytest.mark.parametrize("group", [1, 4, 16])
def test_a_step_of_decoding_reads_keys_once_a_kv_head(group: int) -> None:
    problem = replace(DECODING, heads=8 * group)
    attend, *_ = SPLIT_KEYS.work(problem, BASE, H200)
    keys = 2 * 2 * problem.head_dim * problem.seq_k * problem.kv_heads
    assert keys < attend.l2_bytes < 1.02 * keys
    assert attend.ctas == problem.kv_heads


@pytest.mark.parametrize("target", ["A100", "RTX 4090", "H200", "B200"])
def test_a_default_fills_the_sms_when_keys_are_many(target: str) -> None:
    attend, _ = SPLIT_KEYS.plan(DECODING, SPLIT_KEYS.default(DECODING, gpu(target).arch)).launches
    assert 0.85 <= np.prod(attend.grid) / gpu(target).device.sm_count <= 1


def test_a_default_gives_every_warp_a_tile() -> None:
    config = SPLIT_KEYS.default(replace(DECODING, seq_k=512), H200.arch)
    assert 1 < config.splits <= 512 / (config.BN * config.warps)


@pytest.mark.parametrize(("queries", "D"), [(1, 128), (8, 128), (8, 256)])
def test_a_default_reads_keys_once_for_all_rows_that_a_warp_can_hold(queries: int, D: int) -> None:
    problem = replace(DECODING, head_dim=D, head_dim_v=D, seq_q=queries)  # 4 or 32 rows a KV head
    attend, _ = SPLIT_KEYS.work(problem, SPLIT_KEYS.default(problem, H200.arch), H200)
    keys = 2 * 2 * D * problem.seq_k * problem.kv_heads
    assert attend.l2_bytes // keys == (1 if D <= 128 else 2)


def test_a_default_does_not_split_what_fills_the_device_alone() -> None:
    assert SPLIT_KEYS.default(replace(DECODING, batch=64), H200.arch).splits == 1


@pytest.mark.parametrize("case", CASES)
def test_every_tunable_gives_the_right_result(case: str) -> None:
    D, causal, config = CASES[case]
    problem = Problem(head_dim=D, causal=causal, dtype=DType.FP16 if D % 16 else DType.BF16)
    modes = (Mode(True, "reverse", "early"), *CHECKED)
    assert_right_at_edges(Instance(OPERATOR, SPLIT_KEYS, problem, config), modes)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
@pytest.mark.parametrize("case", ["d40_one_split", "d72_query_in_registers"])
def test_hostile_inputs_come_out_right(kind: str, case: str) -> None:
    D, causal, config = CASES[case]
    problem = Problem(head_dim=D, causal=causal, batch=1, heads=6, kv_heads=2, seq_q=11, seq_k=150)
    arrays, outputs, happened = run(problem, config, kind)
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_equal_keys_count_the_attended_ones() -> None:
    problem = Problem(head_dim=40, causal=True, batch=1, heads=1, seq_q=20, seq_k=90)
    arrays, outputs, _ = run(problem, replace(BASE, splits=4), "equal_keys")
    scores = arrays["softmax_scale"] * arrays["q"][0, :, 0].astype(float) @ arrays["k"][0, 0, 0].astype(float)
    np.testing.assert_allclose(np.exp(outputs["lse"][0, 0] - scores), np.arange(71, 91), rtol=1e-5)


def test_views_of_another_layout_need_no_copy() -> None:
    problem = Problem(head_dim=40, batch=2, heads=4, kv_heads=2, seq_q=3, seq_k=70)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(5), "normal")
    views = arrays | {name: arrays[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for name in "qkv"}
    config = replace(BASE, splits=2)
    plain, _ = emulator.run(Instance(OPERATOR, SPLIT_KEYS, problem, config), arrays, Mode())
    strided, _ = emulator.run(Instance(OPERATOR, SPLIT_KEYS, problem, config), views, Mode())
    assert np.array_equal(plain["o"], strided["o"])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.slow
def test_no_number_of_splits_makes_the_merge_spill(arch: str) -> None:
    config = replace(BASE, warps=8, splits=128)
    cubin = compiled(render(Instance(OPERATOR, SPLIT_KEYS, Problem(), config)), arch)
    assert all(usage.spills == 0 for usage in cubin.entries.values())


@pytest.mark.parametrize(("position", "D"), list(enumerate(HEAD_DIMS)))
@pytest.mark.slow
def test_defaults_never_spill(position: int, D: int) -> None:
    """Every head_dim on two arches; arches, dtypes and masks are dealt out."""
    for i, arch in enumerate(dealt_arches(position), 2 * position):
        problem = replace(
            DECODING, head_dim=D, head_dim_v=D, causal=i % 4 > 1, dtype=(DType.BF16, DType.FP16)[i // 3 % 2]
        )
        assert SPLIT_KEYS.space(problem, ARCHES[arch]).refusal(SPLIT_KEYS.default(problem, ARCHES[arch])) is None
        assert_no_spills(OPERATOR, SPLIT_KEYS, problem, arch)


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "H200"])
def test_without_a_record_few_queries_split_keys_and_many_do_not(target: str) -> None:
    chosen = [
        choose(OPERATOR, problem, (gpu(target),), EMPTY).instance.implementation.name for problem in (DECODING, PROMPT)
    ]
    assert chosen == ["split_keys", "mma_sync"]


@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
def test_a_step_of_decoding_gives_the_last_row_of_one_causal_call(layout: str) -> None:
    at, rng = Dispatcher(EMPTY), np.random.default_rng(7)
    positions = 1 if layout == "bthd" else 2
    q, k, v = (rng.standard_normal((2, 600, heads, 16)).astype(np.float16) for heads in (8, 2, 2))
    q = q[:, -40:]
    if layout == "bhtd":
        q, k, v = (tensor.swapaxes(1, 2).copy() for tensor in (q, k, v))
    whole, _ = at.call("flash_attention", q, k, v, causal=True, layout=layout)
    last = np.take(q, [-1], axis=positions)
    assert at.explain("flash_attention", last, k, v, causal=True, layout=layout).implementation == "split_keys"
    step, _ = at.call("flash_attention", last, k, v, causal=True, layout=layout)
    np.testing.assert_allclose(step.astype(float), np.take(whole, [-1], axis=positions).astype(float), atol=2e-3)
