"""flash_attention_backward: its mathematics, its kernels on the emulator, what they do, and how it is called."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention_backward.slope import gradients_and_slopes
from tests.support.claims import assert_no_spills, assert_right_at_edges, compiled, dealt_arches, drawn
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.bench import peers
from tuner.compiler.render import render
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED
from tuner.operators.flash_attention import operator as forward
from tuner.operators.flash_attention.cases import sequences
from tuner.operators.flash_attention_backward.mma_sync import implementation as mma_sync
from tuner.operators.flash_attention_backward.mma_sync.config import Config
from tuner.operators.flash_attention_backward.operator import OPERATOR, flash_attention_backward
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

HOPPER = ARCHES["sm_90a"]
SMALL = Problem(head_dim=16, dtype=DType.FP16, batch=1, heads=4, kv_heads=2, seq_q=5, seq_k=7)
draw = partial(drawn, OPERATOR, kind="normal")


@pytest.mark.parametrize("lse_used", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("capped", [False, True])
def test_the_reference_is_the_derivative_of_the_forward_reference(causal: bool, lse_used: bool, capped: bool) -> None:
    # causal: two queries attend no key
    problem = replace(SMALL, causal=causal, seq_q=7, seq_k=5, use_lse_gradient=lse_used, use_softcap=capped)
    both = gradients_and_slopes(OPERATOR, problem, draw(problem), partial(forward.reference, problem))
    for gradient, slope in both:
        assert gradient == pytest.approx(slope, rel=1e-7)


def test_a_query_without_a_key_has_no_gradient_and_gives_none() -> None:
    problem = replace(SMALL, causal=True, seq_q=7, seq_k=5)
    reference = OPERATOR.reference(problem, arrays := draw(problem))
    assert not reference["dq"][:, :2].any()
    arrays["dout"][:, :2] = 1000
    np.testing.assert_array_equal(OPERATOR.reference(problem, arrays)["dv"], reference["dv"])


@pytest.mark.parametrize(
    ("head_dim", "config"),
    [
        (8, Config(32, 16, 2, 2, 1, 1, 32, 16, 2, 2, 1)),
        (72, Config(64, 16, 2, 3, 1, 1, 64, 48, 2, 3, 1)),  # 32 rows per warp, three slots
        (104, Config(32, 16, 2, 2, 3, 1, 32, 16, 2, 2, 1)),  # 13 column tiles in slices of 6
        (160, Config(64, 32, 4, 2, 2, 1, 64, 64, 4, 2, 1)),  # a swizzle over four chunks, slices of ten
        (248, Config(32, 16, 2, 2, 2, 1, 32, 16, 2, 2, 1)),
    ],
)
def test_gradients_are_right_for_every_make_of_tiles(head_dim: int, config: Config) -> None:
    problem = Problem(head_dim=head_dim, causal=True)
    assert mma_sync.IMPLEMENTATION.space(problem, HOPPER).refusal(config) is None
    assert_right_at_edges(Instance(OPERATOR, mma_sync.IMPLEMENTATION, problem, config))


@pytest.mark.parametrize("implementation", ["naive", "mma_sync", "wgmma"])
def test_a_gradient_of_lse_is_taken_in_at_every_edge(implementation: str) -> None:
    """Its inputs have NaN for a query that attends no key."""
    problem = Problem(head_dim=24, causal=True, use_lse_gradient=True)
    kernel = operators.implementation(OPERATOR.name, implementation)
    assert_right_at_edges(Instance.default(OPERATOR, kernel, problem, HOPPER), CHECKED)


def test_fp32_is_right_at_every_edge() -> None:
    problem = Problem(head_dim=16, dtype=DType.FP32, causal=True)
    served = [
        implementation
        for implementation in operators.implementations(OPERATOR.name)
        if implementation.refusal(problem, HOPPER) is None
    ]
    assert [implementation.name for implementation in served] == ["naive"]
    assert_right_at_edges(Instance.default(OPERATOR, served[0], problem, HOPPER))


@pytest.mark.parametrize("implementation", ["naive", "mma_sync"])
def test_packed_sequences_are_right_at_every_edge(implementation: str) -> None:
    """Among them are one of a single query, one without queries and one without keys."""
    problem = Problem(head_dim=24, batch=1, causal=True, use_cu_seqlens=True, use_lse_gradient=True)
    kernel = operators.implementation(OPERATOR.name, implementation)
    assert_right_at_edges(Instance.default(OPERATOR, kernel, problem, HOPPER), CHECKED)


def test_a_packed_sequence_has_the_bits_that_it_has_alone() -> None:
    problem = replace(SMALL, causal=True, use_cu_seqlens=True, seq_q=150, seq_k=170, boundaries=4)
    arrays = draw(problem)
    given = {name: arrays[name] for name in ("dout", "q", "k", "v", "o", "lse")}
    bounds = {name: arrays[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    dq, dk, dv, _ = dispatcher.flash_attention_backward(**given, **bounds, causal=True)
    for _, queries, keys in sequences(problem, arrays):
        alone = {name: given[name][:, queries] for name in ("dout", "q", "o")}
        alone |= {name: given[name][:, keys] for name in ("k", "v")}
        alone["lse"] = np.ascontiguousarray(given["lse"][:, :, queries])
        gradients = dispatcher.flash_attention_backward(**alone, causal=True)
        packed = (dq[:, queries], dk[:, keys], dv[:, keys], np.zeros(0, np.float32))
        assert all(np.array_equal(one, other) for one, other in zip(gradients, packed, strict=True))


@pytest.mark.parametrize(("implementation", "packed"), [("naive", False), ("mma_sync", False), ("mma_sync", True)])
def test_capped_scores_are_right_at_every_edge(implementation: str, packed: bool) -> None:
    problem = Problem(head_dim=40, dtype=DType.FP16, batch=1, causal=True, use_cu_seqlens=packed, use_softcap=True)
    kernel = operators.implementation(OPERATOR.name, implementation)
    assert_right_at_edges(Instance.default(OPERATOR, kernel, problem, HOPPER), CHECKED)


@pytest.mark.parametrize(
    ("implementation", "head_dim", "arch"),
    [("mma_sync", 64, "sm_120a"), ("mma_sync", 128, "sm_90a"), ("mma_sync", 256, "sm_80"), ("naive", 64, "sm_100a")],
)
@pytest.mark.slow
def test_no_default_spills_where_scores_are_capped(implementation: str, head_dim: int, arch: str) -> None:
    problem = Problem(head_dim=head_dim, causal=True, batch=1, use_cu_seqlens=True, use_softcap=True)
    assert_no_spills(OPERATOR, operators.implementation(OPERATOR.name, implementation), problem, arch)


@pytest.mark.parametrize("implementation", ["mma_sync", "wgmma"])
def test_the_passes_are_the_same_machine_code_whether_lse_has_a_gradient(implementation: str) -> None:
    kernel, results = operators.implementation(OPERATOR.name, implementation), []
    for used in (False, True):
        problem = Problem(head_dim=16, use_lse_gradient=used)
        cubin = compiled(render(Instance.default(OPERATOR, kernel, problem, HOPPER)), HOPPER.name)
        results.append([cubin.code(f"flash_attention_backward_{name}") for name in ("dkv", "dq", "rows")])
    assert results[0][:2] == results[1][:2]
    assert results[0][2] != results[1][2]


@pytest.mark.parametrize(("position", "head_dim"), list(enumerate([40, 64, 80, 96, 128, 192, 256])))
@pytest.mark.slow
def test_no_default_spills(position: int, head_dim: int) -> None:
    """Every head_dim on two arches, which are dealt out."""
    packed = head_dim == 128  # that of all others is dense
    problem = Problem(head_dim=head_dim, causal=True, batch=1, use_cu_seqlens=packed)
    for arch in dealt_arches(position):
        assert_no_spills(OPERATOR, mma_sync.IMPLEMENTATION, problem, arch)


@pytest.mark.parametrize("causal", [False, True])
def test_declared_work_is_what_the_emulator_counts(causal: bool) -> None:
    problem = Problem(
        head_dim=64, causal=causal, use_lse_gradient=causal, batch=2, heads=2, kv_heads=1, seq_q=200, seq_k=150
    )
    instance = Instance(OPERATOR, mma_sync.IMPLEMENTATION, problem, Config(64, 32, 4, 2, 1, 1, 64, 32, 4, 2, 1))
    _, run = emulator.run(instance, draw(problem), Mode(checked=True))
    works = instance.work(gpu("sm_90a"))
    assert sum(work.mma for work in works) == run.counters.mma_m16n8k16
    assert sum(work.barriers for work in works) == run.counters.barriers
    moved = run.counters.global_read_bytes + run.counters.global_write_bytes
    assert sum(work.l2_bytes for work in works) == pytest.approx(moved, rel=0.002)
    assert run.counters.bank_conflicts == 0


def test_the_products_of_both_passes_are_seven_where_the_mathematics_needs_five() -> None:
    problem = Problem(head_dim=128, batch=1, heads=1, seq_q=1024)
    config = mma_sync.default(problem, HOPPER)
    executed = sum(work.mma for work in mma_sync.IMPLEMENTATION.work(problem, config, gpu("sm_90a"))) * 16 * 8 * 16 * 2
    assert executed / OPERATOR.cost(problem).flops == pytest.approx(7 / 5)


def test_an_application_gets_gradients_in_its_own_layout() -> None:
    problem = replace(SMALL, causal=True)
    arrays = draw(problem)
    swapped: dict[str, Any] = {
        name: np.ascontiguousarray(arrays[name].swapaxes(1, 2)) for name in ("dout", "q", "k", "v", "o")
    }
    gradients = dispatcher.flash_attention_backward(**swapped, lse=arrays["lse"], causal=True, layout="bhtd")
    right = OPERATOR.reference(problem, arrays)
    for name, gradient in zip(("dq", "dk", "dv"), gradients, strict=False):
        np.testing.assert_allclose(gradient.swapaxes(1, 2), right[name], atol=4e-3)


def test_the_gradient_of_lse_may_be_given_or_not() -> None:
    problem = replace(SMALL, use_lse_gradient=True)
    arrays = draw(problem)
    given = {name: arrays[name] for name in ("dout", "q", "k", "v", "o", "lse")}
    view = np.moveaxis(np.moveaxis(arrays["dlse"], 2, 0).copy(), 0, 2)
    for used in (True, False):
        gradients = dispatcher.flash_attention_backward(**given, dlse=view if used else None)
        right = OPERATOR.reference(replace(problem, use_lse_gradient=used), arrays)
        np.testing.assert_allclose(gradients[0], right["dq"], atol=4e-3)


def test_a_scale_that_is_not_positive_is_refused() -> None:
    with pytest.raises(UsageError, match=r"softmax_scale -1.*must be positive"):
        flash_attention_backward(*(None,) * 6, softmax_scale=-1)


@pytest.mark.parametrize("peer", peers.of(OPERATOR.name), ids=lambda peer: peer.name)
def test_peers_that_return_no_lse_do_not_take_its_gradient(peer: peers.Peer) -> None:
    with pytest.raises(peers.AbsentError, match="accepts no gradient"):
        peer.prepare(replace(SMALL, use_lse_gradient=True), {}, {})


def test_the_operator_is_found() -> None:
    names = [implementation.name for implementation in operators.implementations("flash_attention_backward")]
    assert names == ["mma_sync", "naive", "tcgen05", "wgmma", "wgmma_once"]
