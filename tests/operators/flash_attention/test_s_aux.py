"""A logit a head that joins the softmax's denominator: flash_attention, its gradients, and paged_attention."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_right_at_edges, compiled
from tests.support.counted import counted
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.render import render
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED, PLAIN
from tuner.operators.flash_attention.operator import Problem
from tuner.operators.flash_attention_backward.problem import Problem as Backward
from tuner.operators.paged_attention.problem import Problem as Paged
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

ARCH = ARCHES["sm_90a"]
OPERATORS = {name: operators.load(name) for name in ("flash_attention", "flash_attention_backward", "paged_attention")}
SIZES: dict[str, Any] = {"head_dim": 24, "use_s_aux": True, "batch": 1, "heads": 4, "kv_heads": 2}
LOGITS = np.array([-3, 0.5, 4, -np.inf], np.float32)
SERVING = {
    "flash_attention": ("naive", "mma_sync", "mma_tf32"),
    "flash_attention_backward": ("naive", "mma_sync"),
    "paged_attention": ("naive", "mma_sync", "split_keys"),
}
PAIRS = [(name, case) for name, serving in SERVING.items() for case in serving]


def dispatched(**options: Any) -> tuple[dict[str, Any], Any, Any]:
    problem = Problem(**SIZES, dtype=DType.FP16, seq_q=20, seq_k=33)
    arrays = OPERATORS["flash_attention"].inputs(problem, np.random.default_rng(0), "normal")
    o, lse = dispatcher.flash_attention(arrays["q"], arrays["k"], arrays["v"], s_aux=LOGITS, **options)
    return arrays, o.astype(np.float64), lse.astype(np.float64)


def test_a_logit_takes_its_share_of_the_softmax_and_gives_nothing() -> None:
    """Without it o is larger by the whole over what is left: the definition, from a call that knows no logit."""
    arrays, o, lse = dispatched(causal=True)
    plain, sums = dispatcher.flash_attention(arrays["q"], arrays["k"], arrays["v"], causal=True)
    np.testing.assert_allclose(lse, np.logaddexp(sums, LOGITS[:, None]), atol=1e-5)
    left = np.exp(sums - lse).swapaxes(1, 2)[..., None]
    np.testing.assert_allclose(o, plain * left, atol=2e-3)
    np.testing.assert_allclose(o[:, :, 3], plain[:, :, 3], atol=1e-3)  # a logit of -inf is none


def test_a_query_without_keys_has_the_logit_alone() -> None:
    sizes = {**SIZES, "seq_q": 33, "seq_k": 20, "causal": True, "dtype": DType.FP16}
    arrays = OPERATORS["flash_attention"].inputs(Problem(**sizes), np.random.default_rng(0), "normal")
    o, lse = dispatcher.flash_attention(*(arrays[name] for name in "qkv"), s_aux=LOGITS, causal=True)
    assert not o[:, :13].any()
    np.testing.assert_allclose(lse[0, :, :13], np.tile(LOGITS[:, None], 13), rtol=1e-6)


def test_logits_without_any_key_are_refused_by_name() -> None:
    q, k = (np.zeros((1, rows, 4, 24), np.float16) for rows in (3, 0))
    with pytest.raises(UsageError, match="s_aux: pass it with keys"):
        dispatcher.flash_attention(q, k, k, s_aux=LOGITS)
    with pytest.raises(UsageError, match="s_aux: pass it with keys"):
        dispatcher.flash_attention(*(array.swapaxes(1, 2) for array in (q, k, k)), s_aux=LOGITS, layout="bhtd")
    table, lengths = np.zeros((1, 0), np.int32), np.zeros(1, np.int32)
    with pytest.raises(UsageError, match="s_aux: pass it with keys"):
        dispatcher.paged_attention(q, q, q, table, lengths, s_aux=LOGITS)


@pytest.mark.parametrize(("operator", "name"), PAIRS, ids=map("/".join, PAIRS))
@pytest.mark.parametrize("packed", [False, True])
def test_logits_are_right_on_every_edge(operator: str, name: str, packed: bool) -> None:
    flag = "use_cu_seqlens_q" if operator == "paged_attention" else "use_cu_seqlens"
    options: dict[str, Any] = {**SIZES, flag: packed, "use_softcap": packed, "head_dim": 40}
    if operator != "paged_attention":
        options |= {"causal": True, "use_window": packed}
    options["dtype"] = DType.FP32 if name == "mma_tf32" else DType.FP16
    kernel = operators.implementation(operator, name)
    problem = OPERATORS[operator].problem(**options)
    modes = PLAIN if name == "naive" else CHECKED
    assert_right_at_edges(Instance.default(OPERATORS[operator], kernel, problem, ARCH), modes)


@pytest.mark.parametrize("name", ["mma_sync", "split_keys"])
@pytest.mark.parametrize("eight_bits", [False, True])
def test_of_parts_that_are_merged_one_counts_the_logit(name: str, eight_bits: bool) -> None:
    kernel = operators.implementation("paged_attention", name)
    cache = {"kv_cache_dtype": DType.FP8_E4M3} if eight_bits else {}
    problem = Paged(**{**SIZES, "head_dim": 48}, page_size=16, max_pages=40, **cache)
    config = replace(kernel.default(problem, ARCH), splits=4)
    assert_right_at_edges(Instance(OPERATORS["paged_attention"], kernel, problem, config), CHECKED)
    arrays = OPERATORS["paged_attention"].inputs(problem, np.random.default_rng(0), "normal")
    o = [
        emulator.run(Instance(OPERATORS["paged_attention"], kernel, problem, variant), arrays, Mode())[0]["lse"]
        for variant in (config, replace(config, splits=1))
    ]
    np.testing.assert_allclose(*o, atol=1e-5)


@pytest.mark.parametrize("lse_used", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_the_references_gradient_of_a_logit_is_a_slope(lse_used: bool, packed: bool) -> None:
    problem = Backward(**SIZES, seq_q=9, seq_k=11, use_lse_gradient=lse_used, use_cu_seqlens=packed, boundaries=4)
    operator, forward = OPERATORS["flash_attention_backward"], OPERATORS["flash_attention"]
    drawn = operator.inputs(problem, np.random.default_rng(0), "normal")
    given = {name: np.asarray(x, np.int32 if name.startswith("cu") else np.float64) for name, x in drawn.items()}

    def loss(logits: Any) -> float:
        result = forward.reference(problem, given | {"s_aux": logits})
        of_o = np.sum(result["o"] * given["dout"])
        return float(of_o + (np.sum(result["lse"] * given["dlse"]) if lse_used else 0))

    for head, step in enumerate(1e-5 * np.eye(4)):
        slope = (loss(given["s_aux"] + step) - loss(given["s_aux"] - step)) / 2e-5
        assert operator.reference(problem, given)["ds_aux"][head] == pytest.approx(slope, rel=1e-6)


def test_declared_work_is_what_the_emulator_counts() -> None:
    kernel = operators.implementation("flash_attention_backward", "mma_sync")
    problem = Backward(**SIZES, seq_q=200, seq_k=150)
    instance = Instance.default(OPERATORS["flash_attention_backward"], kernel, problem, ARCH)
    arrays = instance.operator.inputs(problem, np.random.default_rng(0), "normal")
    _, run = emulator.run(instance, arrays, Mode(checked=True))
    *_, work = instance.work(gpu("sm_90a"))
    *_, (mma, moved, barriers, conflicts) = counted(run, instance.plan())
    assert (work.mma, work.barriers, 0) == (mma, barriers, conflicts)
    assert work.l2_bytes == moved


def test_gradients_without_logits_have_an_empty_one() -> None:
    problem = Backward(**{**SIZES, "use_s_aux": False}, seq_q=9, seq_k=11)
    arrays = OPERATORS["flash_attention_backward"].inputs(problem, np.random.default_rng(0), "normal")
    given = {name: arrays[name] for name in ("dout", "q", "k", "v", "o", "lse")}
    *_, ds_aux = dispatcher.flash_attention_backward(**given)
    assert ds_aux.shape == (0,)


OTHERS = [
    (name, implementation.name)
    for name, serving in SERVING.items()
    for implementation in operators.implementations(name)
    if implementation.name not in serving
    and (name, implementation.name) not in [("flash_attention", "wgmma"), ("flash_attention", "tcgen05")]
]


@pytest.mark.parametrize(("operator", "name"), OTHERS, ids=map("/".join, OTHERS))
def test_kernels_that_sum_keys_alone_refuse_logits_by_name(operator: str, name: str) -> None:
    kernel = operators.implementation(operator, name)
    plain = OPERATORS[operator].problem(head_dim=64)
    arch = next(arch for arch in ARCHES.values() if kernel.refusal(plain, arch) is None)
    assert "use_s_aux" in str(kernel.refusal(replace(plain, use_s_aux=True), arch))


@pytest.mark.parametrize(("operator", "name"), PAIRS, ids=map("/".join, PAIRS))
@pytest.mark.slow
def test_defaults_with_logits_never_spill(operator: str, name: str) -> None:
    dtype = DType.FP32 if name == "mma_tf32" else DType.BF16
    for D, arch in ((64, "sm_90a"), (128, "sm_80"), (128, "sm_120a")):
        window = {} if operator == "paged_attention" else {"use_window": True, "causal": True}
        problem = OPERATORS[operator].problem(head_dim=D, use_s_aux=True, dtype=dtype, **window)
        kernel = operators.implementation(operator, name)
        instance = Instance.default(OPERATORS[operator], kernel, problem, ARCHES[arch])
        assert all(entry.spills == 0 for entry in compiled(render(instance), arch).entries.values()), (D, arch)
