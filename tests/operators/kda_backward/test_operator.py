"""kda_backward: its mathematics against differences of the forward pass, and its kernels, emulated and compiled."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention_backward.slope import gradient_and_slope
from tests.support.claims import assert_no_spills, assert_right, assert_right_at
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.errors import InputError, UsageError
from tuner.evaluate.check.checker import CHECKED
from tuner.evaluate.check.compare import distance
from tuner.operators.kda_backward.chunked.config import Config
from tuner.operators.kda_backward.operator import kda_backward
from tuner.operators.kda_backward.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.problem import Arrays

OPERATOR, FORWARD = operators.load("kda_backward"), operators.load("kda")
NAIVE, CHUNKED = (operators.implementation("kda_backward", name) for name in ("naive", "chunked"))

SMALL = Problem(key_dim=64, value_dim=64, use_initial_state=True, use_final_gradient=True)
RAW = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
GATES = {
    "softplus": {"use_gate_in_kernel": True, "use_dt_bias": True},
    "softplus_without_bias": {"use_gate_in_kernel": True},
    "bounded": {"use_gate_in_kernel": True, "use_dt_bias": True, "use_lower_bound": True},
}
FP32 = {"dtype": DType.FP32, "gate_dtype": DType.FP32, "beta_dtype": DType.FP32}
TINY = replace(SMALL, key_dim=16, value_dim=32, seq_len=19, heads=1, value_heads=2, **FP32)
BASE = Config(
    BV=32,
    rows=16,
    stages=3,
    span=1,
    channels=32,
    slab_warps=1,
    values=16,
    prepare_warps=2,
    prepare_ctas=1,
    gradient_ctas=1,
)
WIDE_RAW = replace(SMALL, key_dim=208, value_dim=16, **RAW, **GATES["softplus"])
# A covering set: each value of every tunable and static flag, and what the kernels treat apart: rows normalised by one
# warp, by several, and by warps of several slabs; a state for each chunk, for two, four and eight; dims without a full
# swizzle.
CASES = {
    "slab_of_all_channels": (SMALL, replace(BASE, channels=64, stages=4, span=8, values=32)),
    "normalised_by_several_warps": (replace(SMALL, **RAW), replace(BASE, channels=16, span=4, slab_warps=2, values=32)),
    "rows32_gate_in_the_kernel_v_first_fp32_gate": (
        replace(SMALL, value_dim=32, **GATES["softplus"], state_v_first=True, gate_dtype=DType.FP32),
        replace(BASE, rows=32, stages=2, span=4, values=16),
    ),
    "safe_gate_fp16_dims_without_full_swizzle_a_state_for_two_chunks": (
        replace(
            SMALL,
            key_dim=48,
            value_dim=48,
            safe_gate=True,
            dtype=DType.FP16,
            gate_dtype=DType.FP16,
            use_initial_state=False,
        ),
        replace(BASE, BV=48, span=2, channels=16, slab_warps=3, prepare_ctas=4, gradient_ctas=2),
    ),
    "bounded_gate_normalised_by_one_warp_fp32_beta": (
        replace(
            SMALL,
            key_dim=32,
            value_dim=64,
            beta_dtype=DType.FP32,
            use_final_gradient=False,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            safe_gate=True,
            **GATES["bounded"],
        ),
        replace(BASE, BV=64, values=64),
    ),
    "two_slabs_a_warp_normalised_v16": (
        WIDE_RAW,
        replace(BASE, BV=16, span=2, channels=16, prepare_warps=1, slab_warps=6),
    ),
}
PLAIN_GATE, NORMALISED, GATED_V_FIRST, TWO_CHUNKS = list(CASES.values())[:4]
# More chunks than the ring has slots, the last of them short; a batch, and heads of q that value heads share.
PLACES = (
    ({"seq_len": 70, "heads": 1, "value_heads": 1}, "weak_gate"),
    ({"batch": 2, "seq_len": 19, "heads": 2, "value_heads": 4}, "gate_spikes"),
)
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta", "initial_state": "dh0"}
GATED = {**GRADIENTS, "A_log": "dA_log", "dt_bias": "ddt_bias"}


def drawn(problem: Problem, kind: str = "weak_gate") -> Arrays:
    return OPERATOR.inputs(problem, np.random.default_rng(0), kind)


def run(case: tuple[Problem, Config], arrays: Arrays, problem: Problem) -> Arrays:
    """The outputs of chunked with a case's config, found right."""
    return assert_right(Instance(OPERATOR, CHUNKED, problem, case[1]), arrays, CHECKED[0])[0]


def short(case: tuple[Problem, Config], seq_len: int) -> Problem:
    """A case's problem for one head."""
    return replace(case[0], seq_len=seq_len, heads=1, value_heads=1)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"key_dim": 24}, "key_dim 24"),
        ({"value_dim": 272}, "value_dim 272"),
        ({"dtype": DType.INT32}, "dtype int32"),
        ({"seq_len": 0}, "seq_len 0"),
        ({"heads": 4, "value_heads": 6}, "value_heads 6 is not a multiple of heads 4"),
        ({"batch": 70000}, "sequences 70000"),
        ({"batch": 2, "use_cu_seqlens": True}, "batch 2"),
        ({"allow_neg_eigval": True}, "use_beta_sigmoid_in_kernel"),
        ({"use_dt_bias": True}, "use_gate_in_kernel"),
    ],
)
def test_what_no_kernel_takes_is_refused_by_name_and_value(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Problem(**fields)


def assert_slope(problem: Problem, name: str, kind: str) -> None:
    """The reference's gradient agrees with a difference of kda along a random direction."""
    inputs = FORWARD.inputs(problem.forward(), np.random.default_rng(0), kind)

    def forward(moved: Arrays) -> Arrays:
        return FORWARD.reference(problem.forward(), {**inputs, **moved})

    result, slope = gradient_and_slope(OPERATOR, problem, drawn(problem, kind), forward, name, 1e-5)
    assert result == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_reference_is_the_slope_of_the_forward_pass(name: str, kind: str) -> None:
    assert_slope(TINY, name, kind)


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_reference_is_the_slope_before_norms_and_sigmoid_too(name: str) -> None:
    assert_slope(replace(TINY, **RAW), name, "weak_gate")


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("gate", ["softplus", "bounded"])
def test_the_reference_is_the_slope_before_the_gate_too(gate: str, name: str) -> None:
    assert_slope(replace(TINY, **GATES[gate]), name, "strong_gate")


@pytest.mark.parametrize("name", GATED)
def test_the_reference_is_the_slope_for_packed_sequences_too(name: str) -> None:
    packed = replace(TINY, use_cu_seqlens=True, boundaries=5, state_v_first=True, **GATES["softplus"])
    assert_slope(packed, name, "weak_gate")


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_the_chunked_form_differs_from_the_recurrence_by_rounding_only(kind: str) -> None:
    problem = replace(SMALL, seq_len=77, heads=1, value_heads=2)
    arrays = drawn(problem, kind)
    exact, rounded = OPERATOR.reference(problem, arrays), OPERATOR.rounded(problem, arrays)
    for name in GRADIENTS.values():
        ratio, _ = distance(rounded[name], exact[name])
        assert 1e-4 < ratio < 1.5e-2, name


def test_gradients_of_a_shared_head_are_those_of_its_value_heads_summed() -> None:
    apart = replace(TINY, heads=2)
    arrays = drawn(TINY, "strong_gate")
    repeated = {**arrays, **{name: np.repeat(arrays[name], 2, axis=2) for name in ("q", "k")}}
    shared, separate = OPERATOR.reference(TINY, arrays), OPERATOR.reference(apart, repeated)
    for name in ("dq", "dk"):
        np.testing.assert_allclose(shared[name], separate[name].sum(axis=2, keepdims=True), atol=1e-12)
    np.testing.assert_array_equal(shared["dg"], separate["dg"])


def test_a_call_names_the_gradient_of_o_as_its_peers_do_and_leaves_absent_states_out() -> None:
    tensors = {name: object() for name in ("q", "k", "v", "g", "beta")}
    gradient = object()
    request = kda_backward(**tensors, do=gradient, scale=0.5)
    assert request.arrays == {**tensors, "d_o": gradient}
    assert request.statics["use_initial_state"] is False
    assert request.scalars == {"scale": 0.5}


@pytest.mark.parametrize("wrong", [{"layout": "tbhd"}, {"scale": float("nan")}, {"lower_bound": 1.0}, {"A_log": 1}])
def test_a_wrong_layout_or_number_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        kda_backward(*[object()] * 6, **wrong)


@pytest.mark.parametrize("gate", GATES)
def test_naive_is_right_before_each_gate_and_for_v_first_states(gate: str) -> None:
    problem = replace(SMALL, key_dim=16, value_dim=48, state_v_first=True, **RAW, **GATES[gate], **FP32)
    config = NAIVE.default(problem, ARCHES["sm_90a"])
    sizes = {"seq_len": 11, "heads": 2, "value_heads": 4}
    assert_right_at(Instance(OPERATOR, NAIVE, problem, config), (sizes, "strong_gate"))


@pytest.mark.parametrize("implementation", [NAIVE, CHUNKED], ids=lambda implementation: implementation.name)
def test_packed_sequences_of_any_length_are_right(implementation: Any) -> None:
    problem = replace(SMALL, key_dim=32, value_dim=32, use_cu_seqlens=True, **GATES["softplus"])
    config = implementation.default(problem, ARCHES["sm_90a"])
    places = (({"seq_len": 1, "heads": 1, "value_heads": 1, "boundaries": 2}, "weak_gate"),)
    tokens = 30 if implementation is NAIVE else 70
    places += (({"seq_len": tokens, "heads": 2, "value_heads": 4, "boundaries": 6}, "strong_gate"),)
    assert_right_at(Instance(OPERATOR, implementation, problem, config), *places)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_chunked_is_right(case: str) -> None:
    assert_right_at(Instance(OPERATOR, CHUNKED, *CASES[case]), *PLACES)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
def test_chunks_are_right_for_every_kind_of_input(kind: str) -> None:
    problem = short(PLAIN_GATE, 45)
    run(PLAIN_GATE, drawn(problem, kind), problem)


@pytest.mark.slow
def test_the_gradients_of_the_gates_parameters_do_not_depend_on_the_schedule() -> None:
    problem = replace(short(GATED_V_FIRST, 45), batch=2)
    arrays = drawn(problem)
    first, second = (
        emulator.run(Instance(OPERATOR, CHUNKED, problem, GATED_V_FIRST[1]), arrays, mode)[0]
        for mode in (Mode(True, "order"), CHECKED[1])
    )
    for name in ("dA_log", "ddt_bias"):
        np.testing.assert_array_equal(first[name], second[name])


def test_what_a_token_gives_to_its_own_key_and_query_costs_a_strong_gates_gradient_no_precision() -> None:
    problem = short(PLAIN_GATE, 77)
    arrays = drawn(problem, "strong_gate")
    outputs = run(PLAIN_GATE, arrays, problem)
    assert distance(outputs["dg"], OPERATOR.reference(problem, arrays)["dg"])[0] < 5e-3


@pytest.mark.parametrize("gate", [-1e4, -np.inf])
def test_a_token_that_forgets_all_by_far_leaves_the_others_their_precision(gate: float) -> None:
    problem = short(PLAIN_GATE, 45)
    arrays = drawn(problem)
    arrays["g"][:, (3, 20), :, ::2] = gate
    run(PLAIN_GATE, arrays, problem)


def test_beta_of_zero_has_a_gradient_all_the_same() -> None:
    problem = short(PLAIN_GATE, 33)
    arrays = drawn(problem)
    arrays["beta"][:, 5:20] = 0
    outputs = run(PLAIN_GATE, arrays, problem)
    exact = OPERATOR.reference(problem, arrays)["dbeta"]
    assert np.all(exact[:, 5:20] != 0)
    ratio, _ = distance(outputs["dbeta"][:, 5:20], exact[:, 5:20])
    assert ratio < 1e-2


def test_tokens_get_nothing_from_the_gradients_of_earlier_outputs() -> None:
    problem = short(PLAIN_GATE, 40)
    arrays = drawn(problem, "strong_gate")
    changed = {**arrays, "d_o": arrays["d_o"].copy()}
    changed["d_o"][:, :21] = 7.0
    before, after = (run(PLAIN_GATE, variant, problem)["dv"][:, 21:] for variant in (arrays, changed))
    np.testing.assert_array_equal(before, after)


def test_an_application_gets_all_gradients_in_the_dtypes_and_the_layout_of_its_tensors() -> None:
    fields = {"key_dim": 16, "value_dim": 32, "seq_len": 20, "heads": 1, "value_heads": 2, "gate_dtype": DType.FP32}
    problem = replace(SMALL, **fields, **GATES["softplus"])
    arrays = drawn(problem)
    first = {name: np.moveaxis(arrays[name], 1, 2).copy() for name in ("q", "k", "v", "g", "beta", "d_o")}
    result = dispatcher.kda_backward(
        *first.values(),
        arrays["dht"],
        initial_state=arrays["initial_state"],
        use_gate_in_kernel=True,
        A_log=arrays["A_log"],
        dt_bias=arrays["dt_bias"].reshape(-1),
        layout="bhtd",
    )
    assert [x.dtype for x in result[:5]] == [first[name].dtype for name in ("q", "k", "v", "g", "beta")]
    exact = OPERATOR.reference(problem, arrays)
    for name, x in zip(GATED.values(), result, strict=True):
        rows = x if name in ("dh0", "dA_log", "ddt_bias") else np.moveaxis(x, 2, 1)
        assert distance(rows, exact[name])[0] < 1e-2, name


def test_a_gradient_of_another_shape_than_o_is_refused() -> None:
    arrays = drawn(replace(SMALL, seq_len=20, heads=1, value_heads=1))
    with pytest.raises(InputError, match="d_o"):
        dispatcher.kda_backward(*(arrays[name] for name in ("q", "k", "v", "g", "beta")), arrays["d_o"][:, :19])


@pytest.mark.parametrize("seq_len", [45, 140])
@pytest.mark.parametrize(
    "case", [PLAIN_GATE, NORMALISED, GATED_V_FIRST, TWO_CHUNKS], ids=["plain", "normalised", "gated", "two_chunks"]
)
def test_chunked_counts_its_mma_bytes_and_barriers_and_has_no_bank_conflict(
    case: tuple[Problem, Config], seq_len: int
) -> None:
    problem = replace(case[0], seq_len=seq_len, heads=1, value_heads=2)
    _, done = assert_right(Instance(OPERATOR, CHUNKED, problem, case[1]), drawn(problem), CHECKED[0])
    work = CHUNKED.work(problem, case[1], gpu("H200"))
    assert sum(launch_work.mma for launch_work in work) == done.counters.mma_m16n8k16
    assert sum(launch_work.barriers for launch_work in work) == done.counters.barriers
    assert (
        sum(launch_work.l2_bytes for launch_work in work)
        == done.counters.global_read_bytes + done.counters.global_write_bytes
    )
    assert done.counters.bank_conflicts == 0


@pytest.mark.parametrize(
    ("problem", "arch"),
    [(WIDE_RAW, "sm_80"), (replace(SMALL, key_dim=256, value_dim=256), "sm_90a"), (SMALL, "sm_120a")],
    ids=["k208_raw", "k256", "k64"],
)
@pytest.mark.slow
def test_the_default_compiles_without_spills_also_where_registers_are_scarcest(problem: Problem, arch: str) -> None:
    assert_no_spills(OPERATOR, CHUNKED, problem, arch)
