"""flash_attention where queries attend the keys near their own: windows of both sides, packed and capped."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_right_at_edges, compiled
from tests.support.counted import counted, declared
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.render import render
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED
from tuner.operators.flash_attention.mma_sync.config import Config
from tuner.operators.flash_attention.operator import Problem, cost, flash_attention
from tuner.operators.flash_attention.problem import attended_keys
from tuner.spec.dtype import DType, Precision
from tuner.spec.instance import Instance

ARCH = ARCHES["sm_90a"]
OPERATOR = operators.load("flash_attention")
KERNELS = {implementation.name: implementation for implementation in operators.implementations("flash_attention")}
WINDOW = Problem(
    head_dim=40,
    dtype=DType.FP16,
    use_window=True,
    batch=1,
    heads=4,
    kv_heads=2,
    seq_q=90,
    seq_k=131,
    window_left=21,
    window_right=6,
)


def tile(**given: Any) -> Config:
    small = {"BM": 32, "BN": 32, "warps": 2, "d_warps": 1, "stages": 2, "min_ctas": 1, "smem_budget": 232448}
    flags = {"q_in_registers": True, "swizzle": True, "lazy_rescale": True, "heavy_first": False}
    return Config(**{**small, **flags, **given})


def drawn(problem: Problem, **given: Any) -> dict[str, Any]:
    return OPERATOR.inputs(problem, np.random.default_rng(0), "normal") | given


def exact(arrays: dict[str, Any], visible: Any, softcap: float = 0.0) -> Any:
    """o in float64, written down anew: where query i attends key j, visible[i, j]."""
    q, k, v = (arrays[name][0].astype(np.float64).swapaxes(0, 1) for name in "qkv")
    k, v = (np.repeat(array, q.shape[0] // k.shape[0], axis=0) for array in (k, v))
    scores = q @ k.swapaxes(1, 2) * arrays["softmax_scale"]
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    weights = np.exp(scores) * visible
    return (weights @ v / np.maximum(weights.sum(2, keepdims=True), 1e-300)).swapaxes(0, 1)


def seen(queries: int, keys: int, left: int, right: int) -> Any:
    distance = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)  # of a key behind the query's own
    return (distance >= -left) & (distance <= right)


@pytest.mark.parametrize("name", ["naive", "mma_sync"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("capped", [False, True])
def test_windows_are_right_on_every_edge(name: str, causal: bool, packed: bool, capped: bool) -> None:
    problem = replace(WINDOW, causal=causal, use_cu_seqlens=packed, use_softcap=capped, head_dim=24, head_dim_v=24)
    modes = CHECKED if name == "mma_sync" else (Mode(),)
    assert_right_at_edges(Instance.default(OPERATOR, KERNELS[name], problem, ARCH), modes)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("packed", [False, True])
def test_windows_of_fp32_are_right_on_every_edge(precision: Precision, packed: bool) -> None:
    problem = replace(WINDOW, dtype=DType.FP32, precision=precision, use_cu_seqlens=packed, use_softcap=packed)
    assert_right_at_edges(Instance.default(OPERATOR, KERNELS["mma_tf32"], problem, ARCH), CHECKED)


@pytest.mark.parametrize(
    "config",
    [
        tile(),
        tile(BM=64, BN=48, warps=2, stages=3),  # 32 rows per warp
        tile(BM=128, BN=64, warps=4),
        tile(BM=32, BN=64, warps=4, d_warps=2, q_in_registers=False, lazy_rescale=False),
    ],
    ids=["small", "rows", "large", "shared"],
)
@pytest.mark.parametrize(("left", "right"), [(0, 0), (21, 6), (40, 40), (-1, 3), (100, -1), (1, 0)])
def test_every_make_of_tiles_leaves_out_what_is_outside(config: Config, left: int, right: int) -> None:
    """Checked against the mathematics written down anew: more queries than keys, too, and NaN where nobody looks."""
    D = 128 if config.d_warps > 1 else 40
    for queries, keys in ((90, 131), (131, 90)):
        sizes = {"seq_q": queries, "seq_k": keys, "window_left": left, "window_right": right}
        problem = replace(WINDOW, head_dim=D, head_dim_v=D, **sizes)
        arrays = drawn(problem)
        outputs, happened = emulator.run(
            Instance(OPERATOR, KERNELS["mma_sync"], problem, config), arrays, Mode(checked=True)
        )
        assert not happened.findings
        visible = seen(queries, keys, keys if left < 0 else left, queries if right < 0 else right)
        assert np.max(np.abs(outputs["o"][0].astype(np.float64) - exact(arrays, visible))) < 3e-3
        assert not outputs["o"][0][~visible.any(axis=1)].any()


@pytest.mark.parametrize("name", ["naive", "mma_sync"])
@pytest.mark.parametrize("side", ["window_left", "window_right"])
def test_a_window_that_is_off_by_one_is_seen(name: str, side: str) -> None:
    arrays = drawn(WINDOW)
    wider = replace(WINDOW, **{side: getattr(WINDOW, side) + 1})
    o = [
        emulator.run(Instance.default(OPERATOR, KERNELS[name], instance, ARCH), arrays, Mode())[0]["o"]
        for instance in (WINDOW, wider)
    ]
    right = exact(arrays, seen(90, 131, 21, 6))
    assert (
        np.max(np.abs(o[0][0].astype(np.float64) - right)) < 3e-3 < np.max(np.abs(o[1][0].astype(np.float64) - right))
    )


@pytest.mark.parametrize("name", ["naive", "mma_sync"])
def test_a_packed_sequence_has_its_own_windows_and_no_neighbours_nan(name: str) -> None:
    bounds = {
        "cu_seqlens_q": np.array([0, 1, 1, 41, 90], np.int32),
        "cu_seqlens_k": np.array([0, 35, 40, 75, 131], np.int32),
    }
    problem = replace(WINDOW, use_cu_seqlens=True, boundaries=5)
    arrays = drawn(problem, **bounds)
    kernel = KERNELS[name]
    config = tile() if name == "mma_sync" else kernel.default(problem, ARCH)
    arrays["v"][:, 75:] = np.nan  # all that the last sequence has
    outputs, happened = emulator.run(Instance(OPERATOR, kernel, problem, config), arrays, Mode(checked=True))
    assert not happened.findings
    for n, (first, end) in enumerate(pairwise(bounds["cu_seqlens_q"][:-1])):
        key, last = bounds["cu_seqlens_k"][n : n + 2]
        alone = {name: arrays[name][:, first:end] for name in "q"} | {name: arrays[name][:, key:last] for name in "kv"}
        expected = exact(arrays | alone, seen(end - first, last - key, 21, 6))
        np.testing.assert_allclose(outputs["o"][0, first:end].astype(np.float64), expected, atol=3e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (50, 20), (3, -1)])
def test_declared_work_is_what_the_emulator_counts(causal: bool, left: int, right: int) -> None:
    for config in (tile(), tile(BM=64, BN=48, warps=2, stages=3)):
        problem = replace(WINDOW, causal=causal, seq_q=200, seq_k=350, window_left=left, window_right=right)
        instance = Instance(OPERATOR, KERNELS["mma_sync"], problem, config)
        _, happened = emulator.run(instance, drawn(problem), Mode(checked=True))
        (work,), (count,) = declared(instance.work(gpu("sm_90a"))), counted(happened, instance.plan())
        assert work == count


def test_a_narrow_window_costs_what_it_attends() -> None:
    long = replace(WINDOW, seq_q=4096, seq_k=4096, window_left=64, window_right=64)
    dense = replace(long, use_window=False)
    assert cost(long).flops == pytest.approx(cost(dense).flops * 129 / 4096, rel=0.01)
    assert cost(long).flops == 4 * 40 * 4 * np.sum(seen(4096, 4096, 64, 64))
    config = tile()
    narrow, whole = (KERNELS["mma_sync"].work(instance, config, gpu("sm_90a"))[0] for instance in (long, dense))
    assert narrow.mma < 0.06 * whole.mma and narrow.l2_bytes < 0.2 * whole.l2_bytes


def test_a_mask_has_one_name() -> None:
    call = {"q": 1, "k": 2, "v": 3}
    causal = flash_attention(**call, causal=True).statics
    assert (
        flash_attention(**call, window_right=0).statics
        == causal
        == flash_attention(**call, causal=True, window_right=4).statics
    )
    assert Problem(causal=True, use_window=True, window_right=7).window_right == 0
    without = Problem(window_left=3, window_right=5)
    assert (without.window_left, without.window_right) == (0, 0)
    assert Problem(use_window=True, seq_q=5, seq_k=9, window_left=-1, window_right=-1).window_left == 9


@pytest.mark.parametrize("window", [{"window_left": -2}, {"window_right": -3}])
def test_a_window_below_minus_one_is_refused_by_name(window: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(window))):
        flash_attention(1, 2, 3, **window)
    with pytest.raises(UsageError, match=next(iter(window))):
        Problem(use_window=True, **window)


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"naive", "mma_sync", "mma_tf32", "wgmma", "tcgen05"}))
def test_kernels_that_begin_with_the_first_key_refuse_windows_by_name(name: str) -> None:
    plain = replace(WINDOW, use_window=False)
    arch = next(arch for arch in ARCHES.values() if KERNELS[name].refusal(plain, arch) is None)
    assert "use_window" in str(KERNELS[name].refusal(WINDOW, arch))


def test_the_dispatcher_takes_windows_by_name() -> None:
    arrays = drawn(WINDOW)
    q, k, v = (arrays[name] for name in "qkv")
    o, _ = dispatcher.flash_attention(q, k, v, softmax_scale=arrays["softmax_scale"], window_left=21, window_right=6)
    assert np.max(np.abs(o[0].astype(np.float64) - exact(arrays, seen(90, 131, 21, 6)))) < 3e-3
    assert attended_keys(WINDOW).tolist() == seen(90, 131, 21, 6).sum(axis=1).tolist()


@pytest.mark.parametrize(("D", "arch"), [(64, "sm_80"), (128, "sm_90a"), (72, "sm_120a"), (256, "sm_100a")])
@pytest.mark.slow
def test_defaults_with_windows_never_spill(D: int, arch: str) -> None:
    for packed, capped in ((True, False), (False, True), (True, True)):
        options = {"use_cu_seqlens": packed, "use_softcap": capped}
        problem = Problem(head_dim=D, use_window=True, batch=1, **options)
        cubin = compiled(render(Instance.default(OPERATOR, KERNELS["mma_sync"], problem, ARCHES[arch])), arch)
        assert cubin.entries["flash_attention_mma_sync"].spills == 0, options
