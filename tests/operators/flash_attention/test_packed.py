"""flash_attention over packed sequences and with capped scores."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_right_at_edges, compiled
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.bench import peers
from tuner.bench.peers import AbsentError
from tuner.compiler.render import render
from tuner.errors import UsageError
from tuner.evaluate.check.checker import CHECKED, PLAIN, Job, check
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention.mma_sync.config import Config
from tuner.operators.flash_attention.operator import Problem, flash_attention
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields

OPERATOR = operators.load("flash_attention")
KERNELS = {name: operators.implementation("flash_attention", name) for name in ("naive", "mma_sync", "split_keys")}
MMA_SYNC = KERNELS["mma_sync"]
ARCH = ARCHES["sm_90a"]
TILE = Config(
    BM=32,
    BN=32,
    warps=2,
    d_warps=1,
    stages=2,
    smem_budget=ARCH.smem_per_block,
    min_ctas=1,
    q_in_registers=True,
    swizzle=True,
    lazy_rescale=True,
    heavy_first=True,
)
PACKED = Problem(head_dim=40, causal=True, use_cu_seqlens=True, batch=1, heads=4, kv_heads=2, seq_q=90, seq_k=131)
BOUNDS = {
    "cu_seqlens_q": np.array([0, 1, 1, 41, 60, 90], np.int32),
    "cu_seqlens_k": np.array([0, 35, 40, 55, 131, 131], np.int32),
}


def drawn(problem: Problem, **given: Any) -> dict[str, Any]:
    return OPERATOR.inputs(problem, np.random.default_rng(0), "normal") | given


def packed(**sizes: Any) -> Problem:
    return replace(PACKED, boundaries=len(BOUNDS["cu_seqlens_q"]), **sizes)


def run(name: str, problem: Problem, arrays: dict[str, Any], mode: Mode = Mode(checked=True)) -> Any:  # noqa: B008
    kernel = KERNELS[name]
    config = TILE if name == "mma_sync" else kernel.default(problem, ARCH)
    return emulator.run(Instance(OPERATOR, kernel, problem, config), arrays, mode)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch": 2}, "batch 2: cu_seqlens packs all sequences into a batch of 1"),
        ({"max_seqlen_q": -1}, "max_seqlen_q -1: "),
    ],
)
def test_a_wrong_packed_problem_is_refused_by_field_and_value(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        packed(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"cu_seqlens_q": 1}, {"softcap": -1.0}, {"softcap": float("inf")}, {"max_seqlen_q": 5}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_the_call_refuses_half_of_the_boundaries_and_wrong_caps(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        flash_attention(1, 2, 3, **wrong)


def test_problems_without_packed_sequences_have_no_sizes_of_them() -> None:
    problem = Problem(boundaries=7, max_seqlen_q=100)
    assert (problem.boundaries, problem.max_seqlen_q, problem.sequences) == (0, 0, problem.batch)


def test_inputs_have_sequences_of_one_query_of_none_and_without_keys() -> None:
    arrays = drawn(replace(PACKED, boundaries=6))
    queries, keys = (np.diff(arrays[name]) for name in ("cu_seqlens_q", "cu_seqlens_k"))
    assert queries[0] == 1 and queries[1] == 0 and keys[-1] == 0
    assert (queries.sum(), keys.sum()) == (90, 131)
    assert max(np.diff(drawn(replace(PACKED, boundaries=4, max_seqlen_q=31))["cu_seqlens_q"])) <= 31


@pytest.mark.parametrize("name", ["naive", "mma_sync"])
def test_a_packed_sequence_gets_what_it_gets_alone_to_the_bit(name: str) -> None:
    arrays = drawn(packed(), **BOUNDS)
    outputs, happened = run(name, packed(), arrays)
    assert not happened.findings
    for n, (first, end) in enumerate(pairwise(BOUNDS["cu_seqlens_q"])):
        key, last = BOUNDS["cu_seqlens_k"][n : n + 2]
        if first == end or key == last:
            assert not outputs["o"][:, first:end].any() and np.isneginf(outputs["lse"][:, :, first:end]).all()
            continue
        alone = replace(PACKED, use_cu_seqlens=False, seq_q=int(end - first), seq_k=int(last - key))
        own = drawn(alone, q=arrays["q"][:, first:end], k=arrays["k"][:, key:last], v=arrays["v"][:, key:last])
        expected, _ = run(name, alone, own)
        assert np.array_equal(outputs["o"][:, first:end], expected["o"])
        assert np.array_equal(outputs["lse"][:, :, first:end], expected["lse"])


@pytest.mark.parametrize("name", ["naive", "mma_sync"])
@pytest.mark.parametrize(
    "bounds",
    [(7, 20, 60), (-30, 40, 2**31 - 1), (90, 3, 50), (-5, -4, -3), (200, 300, 400)],
    ids=["gaps", "beyond", "descending", "before", "behind"],
)
def test_boundaries_that_lie_stay_within_the_tensors(name: str, bounds: tuple[int, ...]) -> None:
    problem = replace(PACKED, boundaries=3)
    entries = np.array(bounds, np.int32)
    before, _ = run(name, problem, drawn(problem, cu_seqlens_q=np.zeros(3, np.int32), cu_seqlens_k=entries))
    outputs, happened = run(name, problem, drawn(problem, cu_seqlens_q=entries, cu_seqlens_k=entries))
    assert not happened.findings
    covered = np.zeros(90, bool)
    for first, end in pairwise(np.clip(entries, 0, 90)):
        covered[first:end] = True
    assert np.array_equal(outputs["o"][:, ~covered], before["o"][:, ~covered], equal_nan=True)  # as it was poisoned
    assert np.isfinite(outputs["o"][:, covered].astype(np.float32)).all()


def test_rows_of_another_sequence_that_are_nan_do_not_leak() -> None:
    arrays = drawn(packed(), **BOUNDS)
    clean, _ = run("mma_sync", packed(), arrays)
    for name in ("k", "v"):
        arrays[name][:, 55:] = np.nan  # all of sequence 3, which lies behind the keys of sequence 2
    outputs, _ = run("mma_sync", packed(), arrays)
    assert np.array_equal(outputs["o"][:, :41], clean["o"][:, :41])


@pytest.mark.parametrize("name", ["naive", "mma_sync"])
def test_packed_and_capped_problems_are_right_on_every_edge(name: str) -> None:
    problem = replace(PACKED, dtype=DType.FP16, head_dim=72, head_dim_v=72, use_softcap=True)
    config = to_fields(KERNELS[name].default(problem, ARCH))
    modes = PLAIN + (CHECKED if name == "mma_sync" else ())
    verdict = check(Job(InstanceFields("flash_attention", name, to_fields(problem), config), modes))
    assert verdict.ok, verdict.reason


def test_warps_that_share_rows_serve_packed_and_capped_problems() -> None:
    config = replace(TILE, BM=16, BN=64, warps=4, d_warps=4, q_in_registers=False, lazy_rescale=False, stages=3)
    problem = replace(PACKED, head_dim=192, head_dim_v=192, causal=False, use_softcap=True)
    assert_right_at_edges(Instance(OPERATOR, MMA_SYNC, problem, config), CHECKED)


def test_declared_work_of_equal_lengths_is_what_the_emulator_counts() -> None:
    problem = replace(packed(seq_q=200, seq_k=350), max_seqlen_q=70)
    bounds = {"cu_seqlens_q": np.arange(0, 201, 40), "cu_seqlens_k": np.arange(0, 351, 70)}
    arrays = drawn(problem, **{name: bound.astype(np.int32) for name, bound in bounds.items()})
    _, happened = run("mma_sync", problem, arrays)
    (work,), counted = MMA_SYNC.work(problem, TILE, gpu("sm_90a")), happened.counters
    assert work.ctas == 3 * 4 * 5
    assert work.mma == counted.mma_m16n8k16 + counted.mma_m16n8k8 / 2
    assert work.barriers == counted.barriers
    of_boundaries = work.ctas * 64 * 4 * 4  # each thread reads four
    assert work.l2_bytes == counted.global_read_bytes + counted.global_write_bytes - of_boundaries
    assert counted.bank_conflicts == 0


def test_the_floor_of_packed_sequences_is_that_of_a_batch_of_equal_ones() -> None:
    alone = replace(PACKED, use_cu_seqlens=False, batch=5, seq_q=40, seq_k=70)
    costs = [OPERATOR.cost(instance) for instance in (packed(seq_q=200, seq_k=350), alone)]
    assert costs[0].flops == costs[1].flops
    assert costs[0].bytes == costs[1].bytes + 2 * 4 * 6


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("softcap", [0.25, 50.0])
def test_a_cap_is_a_hyperbolic_tangent_to_fp32s_precision(name: str, softcap: float) -> None:
    """lse over a single key is its score: over all of what tanh bends, and far beyond."""
    problem = Problem(head_dim=8, dtype=DType.FP16, use_softcap=True, batch=1, heads=1, seq_q=400, seq_k=1)
    scores = np.concatenate([np.linspace(-6, 6, 390), [-1e3, -1e2, -1e-3, 0, 1e-4, 1e-2, 30, 1e2, 1e3, 6e4]])
    q, k = (np.zeros((1, rows, 1, 8), np.float16) for rows in (400, 1))
    q[0, :, 0, 0], k[..., 0] = scores, 1
    arrays = drawn(problem, q=q, k=k, softmax_scale=softcap, softcap=softcap)
    outputs, happened = run(name, problem, arrays)
    assert not happened.findings
    exact = softcap * np.tanh(q[0, :, 0, 0].astype(np.float64))
    assert np.max(np.abs(outputs["lse"][0, 0] - exact)) < 2**-20 * softcap


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_capped_scores_come_out_right_for_every_kind(name: str, kind: str) -> None:
    problem = Problem(head_dim=24, causal=True, use_softcap=True, batch=1, heads=2, kv_heads=1, seq_q=40, seq_k=70)
    arrays = OPERATOR.inputs(problem, np.random.default_rng(0), kind)
    outputs, _ = run(name, problem, arrays, Mode())
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))


def test_the_reference_caps_scores_before_the_softmax() -> None:
    problem = Problem(head_dim=8, use_softcap=True, batch=1, heads=1, seq_q=3, seq_k=4)
    arrays = drawn(problem, softcap=0.5)
    q, k = (arrays[name][0, :, 0].astype(np.float64) for name in "qk")
    weights = np.exp(0.5 * np.tanh(8**-0.5 * q @ k.T / 0.5))
    reference = OPERATOR.reference(problem, arrays)
    np.testing.assert_allclose(reference["lse"][0, 0], np.log(weights.sum(axis=1)))
    far = OPERATOR.reference(problem, arrays | {"softcap": 1e6})
    plain = OPERATOR.reference(replace(problem, use_softcap=False), arrays)
    np.testing.assert_allclose(far["o"], plain["o"], rtol=1e-9)


def test_more_sequences_than_a_grid_has_blocks_are_refused() -> None:
    many = replace(PACKED, seq_q=10**6, boundaries=70_001)
    assert "sequences 70000" in str(MMA_SYNC.refusal(many, ARCH))
    assert KERNELS["naive"].refusal(many, ARCH) is None


@pytest.mark.parametrize(
    ("D", "arch", "capped"), [(128, "sm_80", True), (72, "sm_120a", False), (256, "sm_100a", True)]
)
@pytest.mark.slow
def test_defaults_for_packed_sequences_never_spill(D: int, arch: str, capped: bool) -> None:
    problem = Problem(head_dim=D, causal=True, use_cu_seqlens=True, use_softcap=capped, batch=1)
    cubin = compiled(render(Instance.default(OPERATOR, MMA_SYNC, problem, ARCHES[arch])), arch)
    assert cubin.entries["flash_attention_mma_sync"].spills == 0


def test_the_dispatcher_serves_packed_numpy_arrays() -> None:
    arrays = drawn(packed(), **BOUNDS)
    q, k, v = (arrays[name] for name in "qkv")
    scale = arrays["softmax_scale"]
    options = {"causal": True, "softmax_scale": scale, "softcap": 3.0, "max_seqlen_q": 40}
    o, lse = dispatcher.flash_attention(q, k, v, **BOUNDS, **options)
    reference = OPERATOR.reference(packed(use_softcap=True), arrays)
    assert np.max(np.abs(o.astype(np.float64) - reference["o"])) < 0.02
    np.testing.assert_allclose(lse, reference["lse"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flag", ["use_cu_seqlens", "use_softcap"])
def test_peers_that_would_compute_something_else_are_absent(flag: str) -> None:
    problem = Problem(batch=1, **{flag: True})  # type: ignore[arg-type]  # a flag
    for peer in peers.of("flash_attention"):
        with pytest.raises(AbsentError, match=flag):
            peer.prepare(problem, {}, {})
