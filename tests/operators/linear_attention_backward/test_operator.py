"""linear_attention_backward: its mathematics against differences of the forward pass, and its kernels, emulated."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.operators.flash_attention_backward.slope import gradient_and_slope
from tests.support.claims import assert_apart, assert_no_spills, assert_right, drawn
from tests.support.counted import counted, declared
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.errors import InputError, UsageError
from tuner.evaluate.check.compare import distance
from tuner.operators.linear_attention_backward.operator import OPERATOR, linear_attention_backward
from tuner.operators.linear_attention_backward.problem import Problem
from tuner.operators.linear_attention_backward.tiles import Config
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.parameters import parameters
from tuner.spec.problem import Arrays

FORWARD = operators.load("linear_attention")
HOPPER = ARCHES["sm_90a"]
RANDOM = Mode(checked=True, schedule="random", asynchronous="random", seed=1)
IN_ORDER = Mode(checked=True)
STATES: dict[str, Any] = {"use_initial_state": True, "use_final_gradient": True}
TINY = Problem(head_dim=3, dtype=DType.FP32, decay="channel", heads=2, seq_len=19, **STATES)
SMALL = Problem(head_dim=64, dtype=DType.FP32, heads=2, seq_len=150)
WITH_STATES = replace(SMALL, decay="channel", **STATES)
EVERYTHING = Problem(
    head_dim=40, dtype=DType.FP32, decay="channel", varlen=True, heads=2, seq_len=150, boundaries=9, **STATES
)
LOOKBACK = operators.implementation("linear_attention_backward", "lookback")
ALL = tuple(implementation.name for implementation in operators.implementations("linear_attention_backward"))
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "beta": "dbeta", "initial_state": "dh0"}


def draw(problem: Problem, kind: str = "normal") -> Arrays:
    return drawn(OPERATOR, problem, kind)


def run(name: str, problem: Problem, config: Any = None, mode: Mode = RANDOM, arrays: Arrays | None = None) -> Any:
    """(outputs, Run) of a config, by default the default, found right."""
    implementation = operators.implementation("linear_attention_backward", name)
    config = config or implementation.default(problem, HOPPER)
    return assert_right(Instance(OPERATOR, implementation, problem, config), arrays or draw(problem), mode)


def assert_slope(problem: Problem, name: str, kind: str) -> None:
    """The reference's gradient agrees with a difference of linear_attention along a random direction."""

    def forward(moved: Arrays) -> Arrays:
        return FORWARD.reference(problem.forward(), moved)

    result, slope = gradient_and_slope(OPERATOR, problem, draw(problem, kind), forward, name, 1e-6)
    assert result == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_reference_is_the_slope_of_the_forward_pass(name: str, kind: str) -> None:
    assert_slope(TINY, name, kind)


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_reference_is_the_slope_for_packed_sequences_and_a_beta_a_head_too(name: str) -> None:
    assert_slope(replace(TINY, varlen=True, boundaries=6, decay="head"), name, "normal")


def test_keys_below_the_floor_have_no_gradient() -> None:
    problem = replace(TINY, key_floor=1)
    arrays = draw(problem)
    reference = OPERATOR.reference(problem, arrays)["dk"]
    np.testing.assert_array_equal(reference == 0, arrays["k"] < -1)


@pytest.mark.parametrize("name", ALL)
def test_every_option_at_once_is_right(name: str) -> None:
    run(name, EVERYTHING)


@pytest.mark.parametrize("head_dim", [1, 7])
@pytest.mark.parametrize("name", ALL)
def test_any_head_dim_is_right(name: str, head_dim: int) -> None:
    run(name, Problem(head_dim=head_dim, dtype=DType.FP16, decay="head", heads=3, seq_len=67), mode=Mode())


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
@pytest.mark.parametrize("name", ALL)
def test_fp32_gradients_are_right_for_every_kind_of_input(name: str, kind: str) -> None:
    run(name, WITH_STATES, mode=IN_ORDER, arrays=draw(WITH_STATES, kind))


def test_what_rounding_leaves_of_no_gradient_is_right_in_many_channels_too() -> None:
    problem = Problem(head_dim=1024, heads=2, seq_len=1)
    run("lookback", problem, arrays=draw(problem, "far_values"))


@pytest.mark.parametrize("name", ALL)
def test_where_all_is_forgotten_the_gradient_of_keys_is_nothing(name: str) -> None:
    arrays = draw(WITH_STATES, "forget_at_once")
    outputs, _ = run(name, WITH_STATES, mode=IN_ORDER, arrays=arrays | {"dht": np.zeros_like(arrays["dht"])})
    assert np.abs(outputs["dk"]).max() < 1e-5


@pytest.mark.parametrize("name", ALL)
def test_empty_sequences_hand_the_gradient_of_their_state_on(name: str) -> None:
    problem = replace(EVERYTHING, boundaries=8)
    arrays = draw(problem) | {"cu_seqlens": np.array([0, 0, 0, 5, 5, 149, 150, 150], np.int32)}
    outputs, _ = run(name, problem, arrays=arrays)
    np.testing.assert_array_equal(outputs["dh0"][[0, 1, 3, 6]], arrays["dht"][[0, 1, 3, 6]])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sequence", [0, 2, 3])
def test_a_packed_sequence_that_becomes_nan_leaves_the_others_as_they_are(name: str, sequence: int) -> None:
    problem, bounds = replace(EVERYTHING, boundaries=5), [0, 41, 41, 97, 150]
    arrays = draw(problem) | {"cu_seqlens": np.array(bounds, np.int32)}
    own = np.s_[:, bounds[sequence] : bounds[sequence + 1]]
    tokens, states = (np.s_[:, : own[1].start], np.s_[:, own[1].stop :]), (np.s_[:sequence], np.s_[sequence + 1 :])
    assert_apart(
        Instance.default(OPERATOR, operators.implementation("linear_attention_backward", name), problem, HOPPER),
        arrays,
        dict.fromkeys(("q", "k", "v", "d_o"), own) | {"initial_state": sequence, "dht": sequence},
        {**dict.fromkeys(("dq", "dk", "dv"), tokens), "dh0": states},
        rounding=1e-5,  # of means, which a tile counts from that of the sequence before it
    )


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("end", [0, 90])
def test_tokens_behind_the_last_boundary_have_gradients_of_zero_and_change_nothing_else(name: str, end: int) -> None:
    problem = replace(EVERYTHING, boundaries=5)
    arrays = draw(problem) | {"cu_seqlens": np.array([0, 0, 4, 41, 90], np.int32) * (end > 0)}
    for array_name in ("q", "k", "v", "d_o"):
        arrays[array_name][:, end:] = np.nan
    outputs, _ = run(name, problem, arrays=arrays, mode=IN_ORDER)
    assert all(not outputs[name][:, end:].any() for name in ("dq", "dk", "dv"))


def test_no_token_gets_anything_from_the_gradients_of_earlier_outputs() -> None:
    arrays = draw(WITH_STATES)
    changed = {**arrays, "d_o": arrays["d_o"].copy()}
    changed["d_o"][:, :70] = 7
    for name in ALL:
        before, after = (
            run(name, WITH_STATES, arrays=variant, mode=IN_ORDER)[0]["dv"][:, 70:] for variant in (arrays, changed)
        )
        np.testing.assert_array_equal(before, after)


LONG = Problem(head_dim=1, dtype=DType.FP32, heads=1, seq_len=2**13)


def test_gradients_do_not_drift_over_a_long_memory() -> None:
    """Where every sum rounds the same way, errors of a chain in fp32 grow with its length."""
    ones, rows = np.ones((1, LONG.seq_len, 1, 1), np.float32), np.arange(LONG.seq_len).reshape(1, -1, 1, 1)
    values = (1.3 + rows % 2).astype(np.float32)
    tensors = {"q": 0.1 * ones, "k": -0.7 * ones, "v": values, "d_o": 1.1 * ones, "beta_scalar": np.ones(())}
    arrays = draw(LONG) | {name: np.asarray(x, np.float32) for name, x in tensors.items()}
    exact = OPERATOR.reference(LONG, arrays)
    for implementation in operators.implementations("linear_attention_backward"):
        config = implementation.default(LONG, HOPPER)
        outputs, _ = emulator.run(Instance(OPERATOR, implementation, LONG, config), arrays, Mode())
        for gradient in ("dq", "dv"):
            np.testing.assert_allclose(outputs[gradient], exact[gradient], rtol=4e-6, err_msg=implementation.name)
        assert distance(outputs["dk"], exact["dk"])[0] < 1e-5, implementation.name


TILES = [
    Config(16, 64, 64, 4, 1, False, 13568),  # a warp's lanes are two groups; tensors in registers
    Config(32, 32, 64, 1, 1, True, 13568),  # single elements, weights kept
    Config(64, 128, 256, 2, 1, False, 232448),  # staged in shared memory, weights computed in each sweep
    Config(256, 32, 512, 2, 1, True, 232448),  # one tile for all tokens
]


@pytest.mark.parametrize("config", TILES, ids=str)
def test_tiles_of_every_make_are_right(config: Config) -> None:
    problem = replace(SMALL, decay="head", **STATES)
    assert LOOKBACK.space(problem, HOPPER).refusal(config) is None
    run("lookback", problem, config)


def test_tiles_are_right_and_equal_in_every_bit_whatever_order_they_come_in() -> None:
    problem = replace(SMALL, head_dim=32, heads=1, seq_len=400, decay="head")
    arrays, config = draw(problem), Config(4, 32, 64, 1, 1, True, 13568)
    modes = [IN_ORDER, *(Mode(True, "random", "random", seed) for seed in range(2))]
    results = [run("lookback", problem, config, mode, arrays)[0] for mode in modes]
    for name in GRADIENTS.values():
        assert all(np.array_equal(result[name], results[0][name]) for result in results), name


def test_the_compiler_may_move_no_access_to_what_tiles_exchange() -> None:
    """Behind __restrict__ a load may pass the acquire before it, and a store the release behind it."""
    plan = LOOKBACK.plan(SMALL, LOOKBACK.default(SMALL, HOPPER))
    exchanged = {"sums", "ends", "flags", "ticket"}
    for parameter in parameters(OPERATOR, SMALL, plan, plan.launches[2]):
        assert ("__restrict__" in parameter.declaration) == (parameter.pointer and parameter.argument not in exchanged)


@pytest.mark.slow
def test_the_default_for_every_option_at_once_never_spills() -> None:
    assert_no_spills(OPERATOR, LOOKBACK, replace(EVERYTHING, dtype=DType.FP16), "sm_80")


@pytest.mark.slow
def test_the_scan_of_packed_sequences_without_a_final_gradient_does_not_spill_either() -> None:
    packed = replace(EVERYTHING, head_dim=64, dtype=DType.BF16, use_final_gradient=False)
    assert_no_spills(OPERATOR, LOOKBACK, packed, "sm_90a")


def test_between_the_two_passes_only_keys_and_values_are_read_again() -> None:
    problem = Problem()
    works = LOOKBACK.work(problem, LOOKBACK.default(problem, HOPPER), gpu("H200"))
    assert sum(work.dram_bytes for work in works) == pytest.approx(9 / 7 * OPERATOR.cost(problem).bytes)


def test_values_far_from_zero_cost_little_even_over_a_long_memory() -> None:
    """Their differences alone decide dk and dbeta."""
    problem = Problem(head_dim=8, dtype=DType.FP32, heads=1, seq_len=2**12, decay="channel")
    arrays = draw(problem, "far_values") | {"beta": np.ones((1, 8), np.float32)}
    config = LOOKBACK.default(problem, HOPPER)
    outputs, _ = emulator.run(Instance(OPERATOR, LOOKBACK, problem, config), arrays, Mode())
    exact = OPERATOR.reference(problem, arrays)
    assert distance(outputs["dk"], exact["dk"])[0] < 5e-6
    assert distance(outputs["dbeta"], exact["dbeta"])[0] < 5e-4


COUNTED = [
    Problem(head_dim=40, heads=3, batch=2, seq_len=150),
    WITH_STATES,
    replace(SMALL, decay="head", head_dim=20, key_floor=1),  # many keys below it
]


@pytest.mark.parametrize("problem", COUNTED, ids=["bf16", "fp32 with states", "a beta a head"])
@pytest.mark.parametrize("name", ALL)
def test_declared_bytes_and_barriers_are_those_that_the_emulator_counts(name: str, problem: Problem) -> None:
    implementation = operators.implementation("linear_attention_backward", name)
    config = implementation.default(problem, HOPPER)
    _, done = run(name, problem, config, IN_ORDER, draw(problem, "never_forget"))
    works = implementation.work(problem, config, gpu("sm_90a"))
    assert declared(works) == counted(done, implementation.plan(problem, config))


@pytest.mark.parametrize("name", ALL)
def test_keys_above_a_small_floor_have_their_gradient_and_those_below_none(name: str) -> None:
    problem = COUNTED[2]
    arrays = draw(problem)
    outputs, _ = run(name, problem, mode=IN_ORDER, arrays=arrays)
    np.testing.assert_array_equal(outputs["dk"] == 0, arrays["k"] < -problem.key_floor)


def test_a_call_leaves_out_what_it_is_not_given() -> None:
    q = np.zeros((1, 4, 2, 8), np.float32)
    request = linear_attention_backward(q, q, q, 0.5, q)
    assert set(request.arrays) == {"q", "k", "v", "d_o"}
    assert request.statics["use_initial_state"] is request.statics["use_final_gradient"] is False
    assert request.scalars == {"beta_scalar": 0.5}


@pytest.mark.parametrize(("options", "message"), [({"beta": 1.5}, "beta 1.5"), ({"layout": "tbhd"}, "layout 'tbhd'")])
def test_values_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    q = np.zeros((1, 4, 2, 8), np.float32)
    with pytest.raises(UsageError, match=message):
        linear_attention_backward(q, q, q, do=q, **{"beta": 0.5, **options})


def test_a_gradient_of_another_shape_than_o_is_refused() -> None:
    q = np.zeros((1, 4, 2, 8), np.float32)
    with pytest.raises(InputError, match="d_o"):
        dispatcher.linear_attention_backward(q, q, q, 0.5, q[:, :3])


def test_the_example_of_the_readme_runs() -> None:
    text = (OPERATOR.folder / "README.md").read_text()
    results: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0], results)
    assert results["dk"].shape == results["k"].shape
    assert results["dbeta"].shape == (2, 1)
