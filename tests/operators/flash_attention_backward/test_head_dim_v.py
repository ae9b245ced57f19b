"""flash_attention_backward where values, and so the gradients of o and v, have another width than queries and keys."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.operators.flash_attention_backward.slope import gradients_and_slopes
from tests.support.claims import assert_no_spills, assert_right, compiled, drawn
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.compiler.lint import Lint, lint
from tuner.compiler.render import render
from tuner.evaluate.check.checker import CHECKED
from tuner.operators.flash_attention import operator as forward
from tuner.operators.flash_attention_backward.operator import OPERATOR
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

HOPPER = ARCHES["sm_90a"]
MLA = Problem(192, causal=True, head_dim_v=128, batch=1, heads=2, kv_heads=1, seq_q=70, seq_k=90)
NARROW = Problem(
    40, DType.FP16, True, True, True, head_dim_v=72, batch=1, heads=2, kv_heads=1, seq_q=90, seq_k=110, boundaries=4
)


def implementation(name: str) -> Any:
    return operators.implementation(OPERATOR.name, name)


def test_the_reference_is_the_derivative_of_the_forward_reference() -> None:
    problem = Problem(16, DType.FP16, head_dim_v=24, batch=1, heads=4, kv_heads=2, seq_q=5, seq_k=7)
    arrays = drawn(OPERATOR, problem, "normal")
    for gradient, slope in gradients_and_slopes(OPERATOR, problem, arrays, partial(forward.reference, problem)):
        assert gradient == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("naive", replace(NARROW, seq_q=20, seq_k=30)),
        ("mma_sync", MLA),
        ("mma_sync", NARROW),
        ("wgmma", MLA),
        ("wgmma", NARROW),
    ],
    ids=lambda each: each if isinstance(each, str) else f"{each.head_dim}/{each.head_dim_v}",
)
def test_gradients_are_right(name: str, problem: Problem) -> None:
    """Packed and capped where values are wider; both with heads that share, and rows off every tile."""
    kernel = implementation(name)
    config, arrays = kernel.default(problem, HOPPER), drawn(OPERATOR, problem, "normal")
    outputs, done = assert_right(Instance(OPERATOR, kernel, problem, config), arrays, CHECKED[0])
    assert outputs["dv"].shape[-1] == problem.head_dim_v
    assert done.counters.bank_conflicts == 0


@pytest.mark.parametrize("name", ["mma_sync", "wgmma"])
def test_products_of_both_widths_are_counted_apart(name: str) -> None:
    kernel = implementation(name)
    config = kernel.default(MLA, HOPPER)
    _, done = emulator.run(Instance(OPERATOR, kernel, MLA, config), drawn(OPERATOR, MLA, "normal"), CHECKED[0])
    works = kernel.work(MLA, config, gpu("H200"))
    assert sum(work.mma for work in works) == done.counters.mma_m16n8k16
    assert sum(work.wgmma for work in works) == done.counters.wgmma_m16n8k16


def test_a_value_narrower_than_the_narrowest_tile_of_wgmma_is_refused_by_value() -> None:
    assert "head_dim_v 8" in implementation("wgmma").refusal(replace(MLA, head_dim_v=8), HOPPER)


@pytest.mark.parametrize("D", [16, 72, 192, 256])
@pytest.mark.parametrize("DV", [16, 40, 128, 256])
@pytest.mark.parametrize("name", ["mma_sync", "naive", "wgmma"])
def test_any_two_widths_have_a_default_within_the_space(name: str, D: int, DV: int) -> None:
    problem, kernel = Problem(D, causal=True, head_dim_v=DV), implementation(name)
    for arch in ARCHES.values():
        if kernel.refusal(problem, arch) is None:
            assert kernel.space(problem, arch).refusal(kernel.default(problem, arch)) is None


@pytest.mark.parametrize("arch", ["sm_80", "sm_120a"])
@pytest.mark.slow
def test_no_default_spills(arch: str) -> None:
    assert_no_spills(OPERATOR, implementation("mma_sync"), MLA, arch)


@pytest.mark.slow
def test_the_default_of_wgmma_compiles_clean() -> None:
    kernel = implementation("wgmma")
    cubin = compiled(render(Instance.default(OPERATOR, kernel, MLA, HOPPER)), "sm_90a")
    passes = [entry for entry in cubin.entries if not entry.endswith("rows")]
    assert [lint(cubin, entry) for entry in passes] == [Lint(), Lint()]


def test_three_of_the_five_products_are_of_keys() -> None:
    wide, narrow = replace(MLA, head_dim_v=192), replace(MLA, head_dim=128, head_dim_v=128)
    assert OPERATOR.cost(MLA).flops == (3 * OPERATOR.cost(wide).flops + 2 * OPERATOR.cost(narrow).flops) / 5
