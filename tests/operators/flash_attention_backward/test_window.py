"""flash_attention_backward where queries attend the keys near their own."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention_backward.slope import gradients_and_slopes
from tests.support.claims import assert_right_at_edges, compiled, drawn
from tests.support.counted import counted
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.render import render
from tuner.evaluate.check.checker import CHECKED, PLAIN
from tuner.operators.flash_attention import operator as forward
from tuner.operators.flash_attention_backward.mma_sync.config import Config
from tuner.operators.flash_attention_backward.operator import OPERATOR
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

HOPPER = ARCHES["sm_90a"]
KERNELS = {
    implementation.name: implementation for implementation in operators.implementations("flash_attention_backward")
}
MMA_SYNC = KERNELS["mma_sync"]
SMALL = Problem(
    head_dim=16,
    dtype=DType.FP16,
    use_window=True,
    batch=1,
    heads=4,
    kv_heads=2,
    seq_q=9,
    seq_k=11,
    window_left=3,
    window_right=2,
)
TILES = Config(64, 32, 4, 2, 1, 1, 64, 32, 4, 2, 1)
draw = partial(drawn, OPERATOR, kind="normal")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("capped", [False, True])
def test_the_reference_is_the_derivative_of_the_forward_reference(causal: bool, capped: bool) -> None:
    problem = replace(SMALL, causal=causal, use_softcap=capped)
    both = gradients_and_slopes(OPERATOR, problem, draw(problem), partial(forward.reference, problem))
    for gradient, slope in both:
        assert gradient == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("name", ["naive", "mma_sync"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("capped", [False, True])
def test_windows_are_right_on_every_edge(name: str, causal: bool, packed: bool, capped: bool) -> None:
    options = {"causal": causal, "use_cu_seqlens": packed, "use_softcap": capped, "use_lse_gradient": packed}
    problem = Problem(head_dim=40, use_window=True, batch=1, **options)
    modes = CHECKED if name == "mma_sync" else PLAIN
    assert_right_at_edges(Instance.default(OPERATOR, KERNELS[name], problem, HOPPER), modes)


@pytest.mark.parametrize(
    ("head_dim", "config"),
    [
        (72, Config(64, 16, 2, 3, 1, 1, 64, 48, 2, 3, 1)),  # 32 rows per warp, three slots
        (104, Config(32, 16, 2, 2, 3, 1, 32, 16, 2, 2, 1)),  # slices
    ],
)
def test_gradients_are_right_for_every_make_of_tiles(head_dim: int, config: Config) -> None:
    problem = Problem(head_dim=head_dim, use_window=True)
    assert_right_at_edges(Instance(OPERATOR, MMA_SYNC, problem, config), CHECKED)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (50, 20), (3, -1), (190, 0)])
def test_declared_work_is_what_the_emulator_counts(causal: bool, left: int, right: int) -> None:
    for queries, keys in ((200, 150), (150, 260)):
        window = {"window_left": left, "window_right": right}
        sizes = {"batch": 2, "heads": 2, "kv_heads": 1, "seq_q": queries, "seq_k": keys}
        problem = Problem(head_dim=64, causal=causal, use_window=True, **sizes, **window)
        instance = Instance(OPERATOR, MMA_SYNC, problem, TILES)
        _, run = emulator.run(instance, draw(problem), Mode(checked=True))
        for work, (mma, moved, barriers, conflicts) in zip(
            instance.work(gpu("sm_90a")), counted(run, instance.plan()), strict=True
        ):
            assert (work.mma, work.barriers, 0) == (mma, barriers, conflicts)
            assert work.l2_bytes == pytest.approx(moved, rel=0.02)


def test_a_narrow_window_costs_what_it_attends() -> None:
    long = Problem(head_dim=64, use_window=True, batch=1, heads=2, seq_q=4096, window_left=64, window_right=64)
    narrow, whole = (
        MMA_SYNC.work(instance, TILES, gpu("sm_90a")) for instance in (long, replace(long, use_window=False))
    )
    assert sum(pair.mma for pair in narrow) < 0.06 * sum(pair.mma for pair in whole)


def test_windows_of_both_sides_reach_the_dispatcher() -> None:
    problem = replace(SMALL, seq_q=70, seq_k=75, window_left=9, window_right=4)
    arrays: dict[str, Any] = draw(problem)
    given = {name: arrays[name] for name in ("dout", "q", "k", "v", "o", "lse")}
    gradients = dispatcher.flash_attention_backward(**given, window_left=9, window_right=4)
    exact = OPERATOR.reference(problem, arrays)
    for gradient, name in zip(gradients, ("dq", "dk", "dv"), strict=False):
        assert np.linalg.norm(gradient - exact[name]) < 2e-3 * np.linalg.norm(exact[name])


@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"naive", "mma_sync"}))
def test_kernels_that_begin_with_the_first_tile_refuse_windows_by_name(name: str) -> None:
    problem = Problem(head_dim=64)
    arch = next(arch for arch in ARCHES.values() if KERNELS[name].refusal(problem, arch) is None)
    assert "use_window" in str(KERNELS[name].refusal(replace(problem, use_window=True), arch))


@pytest.mark.parametrize(("D", "arch"), [(64, "sm_120a"), (128, "sm_90a"), (256, "sm_80")])
@pytest.mark.slow
def test_defaults_with_windows_never_spill(D: int, arch: str) -> None:
    for packed, capped in ((True, False), (False, True), (True, True)):
        options = {"use_cu_seqlens": packed, "use_softcap": capped}
        problem = Problem(head_dim=D, use_window=True, batch=1, **options)
        cubin = compiled(render(Instance.default(OPERATOR, MMA_SYNC, problem, ARCHES[arch])), arch)
        assert all(entry.spills == 0 for entry in cubin.entries.values()), options
