"""Windows, and logits of heads, of the kernels on panels: wgmma and tcgen05."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention import test_tcgen05, test_wgmma
from tests.support.claims import assert_right_at_edges, compiled
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.render import render
from tuner.evaluate.check.checker import CHECKED
from tuner.operators.flash_attention.operator import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("flash_attention")
KERNELS = {name: operators.implementation("flash_attention", name) for name in ("wgmma", "tcgen05")}
ARCH = {"wgmma": ARCHES["sm_90a"], "tcgen05": ARCHES["sm_100a"]}
CASES: dict[str, Any] = {"wgmma": test_wgmma.CASES, "tcgen05": test_tcgen05.CASES}
GPU = {"wgmma": "H200", "tcgen05": "B200"}
SIZES: dict[str, Any] = {"dtype": DType.FP16, "batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 150, "seq_k": 191}
WINDOW: dict[str, Any] = {"use_window": True, "window_left": 21, "window_right": 6}
LSE_BYTES = 4 * SIZES["heads"] * SIZES["seq_q"]

EDGES = {
    "window": WINDOW,
    "logits": {"use_s_aux": True, "causal": True},
    "causal window, logits": {**WINDOW, "causal": True, "use_s_aux": True},
    "packed window, logits, softcap": {**WINDOW, "use_cu_seqlens": True, "use_s_aux": True, "use_softcap": True},
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("options", EDGES.values(), ids=EDGES)
def test_windows_and_logits_are_right_on_every_edge(name: str, options: dict[str, Any]) -> None:
    problem = Problem(head_dim=24, **SIZES | options)
    assert_right_at_edges(Instance.default(OPERATOR, KERNELS[name], problem, ARCH[name]), CHECKED)


def config_of(name: str, D: int, **changes: Any) -> Any:
    """Of the cases of other tests, whose tiles differ; no clusters, which windows do not have."""
    alone = {"cluster": 1} if name == "wgmma" else {}
    return replace(CASES[name][D], **alone, **changes)


def computed(name: str, problem: Problem, config: Any, **arrays: Any) -> tuple[dict[str, Any], Any, Any]:
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), "normal") | arrays
    instance = Instance(OPERATOR, KERNELS[name], problem, config)
    return arrays, *emulator.run(instance, arrays, Mode(checked=True))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("D", "packed_heads", "left", "right"), [(16, 1, 0, 0), (64, 2, 100, -1), (72, 1, 21, 6), (40, 2, -1, 3)]
)
def test_every_make_of_tiles_leaves_out_what_is_outside(
    name: str, D: int, packed_heads: int, left: int, right: int
) -> None:
    """Work is counted, too: tiles of keys before and behind the windows are neither loaded nor multiplied."""
    window = {"use_window": True, "window_left": left, "window_right": right}
    problem = Problem(head_dim=D, **SIZES | window, use_s_aux=True)
    config = config_of(name, D, packed_heads=packed_heads, heavy_first=False)
    arrays, outputs, happened = computed(name, problem, config)
    assert not happened.findings
    expected = OPERATOR.reference(problem, arrays)
    np.testing.assert_allclose(outputs["o"].astype(np.float64), expected["o"], atol=3e-3)
    np.testing.assert_allclose(outputs["lse"], expected["lse"], atol=1e-4)
    (work,) = KERNELS[name].work(problem, config, gpu(GPU[name]))
    products = "wgmma" if name == "wgmma" else "tcgen05"
    assert getattr(work, products) == getattr(happened.counters, f"{products}_m16n8k16")
    assert work.l2_bytes - LSE_BYTES == happened.counters.bulk_bytes


def test_blocks_that_walk_take_windows() -> None:
    problem = Problem(head_dim=40, **SIZES | WINDOW | {"seq_q": 330, "seq_k": 400}, use_s_aux=True)
    config = config_of("wgmma", 40, blocks=8, heavy_first=False)
    arrays, outputs, happened = computed("wgmma", problem, config)
    assert not happened.findings
    np.testing.assert_allclose(outputs["o"], OPERATOR.reference(problem, arrays)["o"], atol=3e-3)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("logit", [-np.inf, -1e30, -200.0, 12.0, 200.0, 1e30])
def test_logits_of_any_size_are_right(name: str, logit: float) -> None:
    """Where one takes nearly all, P in 16 bits keeps its mantissa; where there is none, no sum counts it."""
    problem = Problem(head_dim=16, **SIZES | {"seq_q": 70, "seq_k": 40}, causal=True, use_s_aux=True)
    logits = np.full(4, logit, np.float32)
    arrays, outputs, _ = computed(name, problem, config_of(name, 16, heavy_first=False), s_aux=logits)
    expected = OPERATOR.reference(problem, arrays)
    np.testing.assert_allclose(outputs["lse"], expected["lse"], rtol=1e-6, atol=1e-4)
    scale = np.sqrt(np.mean(expected["o"] ** 2))
    assert np.sqrt(np.mean((outputs["o"] - expected["o"]) ** 2)) <= 5e-4 * scale + 1e-7


@pytest.mark.parametrize("name", KERNELS)
def test_windows_have_no_clusters_and_a_narrow_one_costs_what_it_attends(name: str) -> None:
    long = Problem(head_dim=128, **WINDOW, batch=1, heads=8, kv_heads=2, seq_q=8192)
    dense = replace(long, use_window=False)
    kernel, arch = KERNELS[name], ARCH[name]
    config = kernel.default(long, arch)
    assert kernel.space(long, arch).refusal(config) is None
    if name == "wgmma":
        assert config.cluster == 1 and "cluster" in {field.name for field in fields(config)}
        assert kernel.space(long, arch).refusal(replace(config, cluster=2)) is not None
    narrow, whole = (kernel.work(problem, config, gpu(GPU[name]))[-1] for problem in (long, dense))
    assert narrow.l2_bytes < 0.2 * whole.l2_bytes


SPILLS = [
    (64, {"use_cu_seqlens": True, "batch": 1}),
    (128, {"causal": True}),
    (256, {"use_softcap": True}),
]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.slow
def test_defaults_with_windows_and_logits_never_spill(name: str) -> None:
    for D, options in SPILLS:
        problem = Problem(head_dim=D, **WINDOW, use_s_aux=True, **options)
        cubin = compiled(render(Instance.default(OPERATOR, KERNELS[name], problem, ARCH[name])), ARCH[name].name)
        assert all(entry.spills == 0 for entry in cubin.entries.values()), (D, options)
