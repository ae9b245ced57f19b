"""linear_attention: its mathematics, its implementations on the emulator, what they move, and how it is called."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_apart, assert_no_spills, assert_right, compiled, drawn
from tests.support.counted import by_launch, global_bytes
from tuner import dispatcher, operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.backends.emulator import Buffer, Mode
from tuner.compiler.render import render
from tuner.compiler.usage import occupancy
from tuner.errors import InputError, UsageError
from tuner.operators.linear_attention.chunked import implementation as chunked
from tuner.operators.linear_attention.halo import implementation as halo
from tuner.operators.linear_attention.lookback import implementation as lookback
from tuner.operators.linear_attention.operator import OPERATOR, linear_attention
from tuner.operators.linear_attention.problem import Problem
from tuner.operators.linear_attention.sequential import implementation as sequential
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.parameters import parameters
from tuner.spec.problem import Arrays

HOPPER = ARCHES["sm_90a"]
RANDOM = Mode(checked=True, schedule="random", asynchronous="random", seed=1)
IN_ORDER = Mode(checked=True)
SMALL = Problem(head_dim=64, dtype=DType.FP32, heads=2, seq_len=150)
WITH_STATES = replace(SMALL, decay="channel", use_initial_state=True, output_final_state=True)
EVERYTHING = Problem(
    head_dim=40,
    dtype=DType.FP32,
    decay="channel",
    use_initial_state=True,
    output_final_state=True,
    varlen=True,
    heads=2,
    seq_len=150,
    boundaries=9,
)
ALL = ("naive", "sequential", "chunked", "lookback", "halo")


def served(name: str, problem: Problem) -> Problem:
    """The problem, or what of it the implementation serves."""
    return replace(problem, beta_bound=0.9, use_initial_state=False) if name == "halo" else problem


def draw(problem: Problem, kind: str = "normal") -> Arrays:
    return drawn(OPERATOR, problem, kind)


def run(name: str, problem: Problem, config: Any = None, mode: Mode = RANDOM, arrays: Arrays | None = None) -> Any:
    """(outputs, Run) of a config, by default the default, found right."""
    implementation = operators.implementation("linear_attention", name)
    config = config or implementation.default(problem, HOPPER)
    return assert_right(Instance(OPERATOR, implementation, problem, config), arrays or draw(problem), mode)


def test_without_forgetting_the_output_is_the_weighted_mean_of_the_past() -> None:
    arrays = draw(SMALL) | {"beta_scalar": 1.0}
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    weight = 1 / (1 + np.exp(-k))
    mean = np.cumsum(weight * v, axis=1) / np.cumsum(weight, axis=1)
    np.testing.assert_allclose(OPERATOR.reference(SMALL, arrays)["o"], q * mean, rtol=1e-12, atol=1e-12)


def test_forgetting_at_once_leaves_the_product_of_q_and_v() -> None:
    arrays = draw(SMALL, "forget_at_once")
    expected = arrays["q"].astype(np.float64) * arrays["v"]
    np.testing.assert_allclose(OPERATOR.reference(SMALL, arrays)["o"], expected, rtol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_every_option_at_once_is_right(name: str) -> None:
    run(name, served(name, EVERYTHING))


@pytest.mark.parametrize("head_dim", [1, 7])
@pytest.mark.parametrize("name", ["sequential", "lookback"])
def test_any_head_dim_is_right(name: str, head_dim: int) -> None:
    run(name, Problem(head_dim=head_dim, dtype=DType.FP16, decay="head", heads=3, seq_len=67), mode=Mode())


@pytest.mark.parametrize("kind", OPERATOR.input_kinds)
@pytest.mark.parametrize("name", ["sequential", "chunked", "lookback"])
def test_fp32_is_within_a_hundred_thousandth(name: str, kind: str) -> None:
    arrays = draw(WITH_STATES, kind)
    outputs, _ = run(name, WITH_STATES, mode=IN_ORDER, arrays=arrays)
    exact = OPERATOR.reference(WITH_STATES, arrays)["o"]
    assert np.linalg.norm(outputs["o"] - exact) <= 1e-5 * np.linalg.norm(exact)


TILES = [
    lookback.Config(16, 64, 64, 4, 1, False, 13568),  # a warp's lanes are two groups
    lookback.Config(64, 32, 64, 1, 1, True, 13568),  # single elements, weights kept
    lookback.Config(64, 128, 256, 2, 1, False, 115712),  # staged in shared memory
    lookback.Config(256, 32, 512, 4, 1, True, 28160),  # one tile for all tokens
]


@pytest.mark.parametrize("config", TILES, ids=str)
def test_tiles_of_every_make_are_right(config: lookback.Config) -> None:
    assert lookback.IMPLEMENTATION.space(SMALL, HOPPER).refusal(config) is None
    run("lookback", SMALL, config)


# The kernels that this operator began with, as systems of one space: fp32, D = 64.
ORIGINALS: dict[str, tuple[str, Any]] = {
    "one token after the other": ("sequential", sequential.Config(32, 1, 1)),
    "chunks of 128, float4, 4 threads a dimension": ("chunked", chunked.Config(128, 64, 256, 4, 1, False, 13568)),
    "blocks of 32 channels, chunks of 64": ("chunked", chunked.Config(64, 32, 128, 4, 1, False, 13568)),
    "all of a chunk of 128 in 96 KB of shared memory": ("chunked", chunked.Config(128, 64, 256, 4, 1, False, 115712)),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_original_kernels_are_configs(name: str) -> None:
    implementation, config = ORIGINALS[name]
    assert operators.implementation("linear_attention", implementation).space(SMALL, HOPPER).refusal(config) is None
    run(implementation, SMALL, config, Mode())


def test_the_original_of_96_kb_stages_three_whole_tiles() -> None:
    _, config = ORIGINALS["all of a chunk of 128 in 96 KB of shared memory"]
    assert chunked.plan(SMALL, config).launches[-1].smem_bytes >= 96 * 1024


@pytest.mark.parametrize("name", ALL)
@pytest.mark.slow
def test_the_default_for_every_option_at_once_never_spills(name: str) -> None:
    implementation = operators.implementation("linear_attention", name)
    assert_no_spills(OPERATOR, implementation, served(name, replace(EVERYTHING, dtype=DType.FP16)), "sm_80")


def test_packed_sequences_are_right_where_some_are_empty() -> None:
    problem = replace(EVERYTHING, boundaries=8)
    arrays = draw(problem) | {"cu_seqlens": np.array([0, 0, 0, 5, 5, 149, 150, 150], np.int32)}
    for name in ("naive", "chunked", "lookback"):
        outputs, _ = run(name, problem, arrays=arrays)
        np.testing.assert_array_equal(outputs["final_state"][[0, 1, 3, 6]], arrays["initial_state"][[0, 1, 3, 6]])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_final_state_continues_a_sequence() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 90, 7), np.float32) for _ in range(3))
    beta = np.array([0.9, 1], np.float32)
    whole, last = dispatcher.linear_attention(q, k, v, beta, output_final_state=True, layout="bhtd")
    parts, state = [], None
    for tokens in (slice(0, 37), slice(37, 90)):
        part, state = dispatcher.linear_attention(
            *(x[:, :, tokens] for x in (q, k, v)), beta, initial_state=state, output_final_state=True, layout="bhtd"
        )
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts, axis=2), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, last, rtol=1e-5)


def test_tokens_behind_the_last_boundary_change_nothing_else() -> None:
    problem = replace(EVERYTHING, boundaries=7)
    whole = draw(problem) | {"cu_seqlens": np.array([0, 0, 40, 41, 90, 90, 90], np.int32)}
    for name in ALL:
        served_problem = served(name, problem)
        arrays = whole | {"initial_state": whole["initial_state"][: served_problem.initial_states]}
        implementation = operators.implementation("linear_attention", name)
        config = implementation.default(served_problem, HOPPER)
        outputs, done = emulator.run(Instance(OPERATOR, implementation, served_problem, config), arrays, IN_ORDER)
        exact = OPERATOR.reference(served_problem, arrays)
        assert not done.findings
        np.testing.assert_allclose(outputs["o"][:, :90], exact["o"][:, :90], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs["final_state"], exact["final_state"], rtol=1e-5, atol=1e-6)


LONG = Problem(head_dim=1, dtype=DType.FP32, heads=1, seq_len=2**16, output_final_state=True)


@pytest.mark.parametrize("beta", [1, 1 - 2**-16])
@pytest.mark.parametrize("name", ["naive", "sequential", "chunked", "lookback"])
def test_equal_keys_do_not_drift_over_a_long_memory(name: str, beta: float) -> None:
    """Where every sum rounds the same way, errors of a chain in fp32 grow with its length."""
    ones = np.ones((1, LONG.seq_len, 1, 1), np.float32)
    arrays = draw(LONG) | {"q": ones, "k": -0.7 * ones, "v": 1.3 * ones, "beta_scalar": beta}
    implementation = operators.implementation("linear_attention", name)
    outputs, _ = emulator.run(Instance.default(OPERATOR, implementation, LONG, HOPPER), arrays, Mode())
    weight = 1 / (1 + np.exp(0.7))
    n = weight * (LONG.seq_len if beta == 1 else -np.expm1(LONG.seq_len * np.log(beta)) / (1 - beta))
    np.testing.assert_allclose(outputs["o"], 1.3 * ones, rtol=4e-6)
    np.testing.assert_allclose(outputs["final_state"].ravel(), [1.3 * n, n], rtol=2e-6)


@pytest.mark.parametrize("name", ["chunked", "lookback"])
def test_the_longer_tiles_of_few_channels_are_right(name: str) -> None:
    problem = Problem(head_dim=8, heads=1, seq_len=2**14)
    config = operators.implementation("linear_attention", name).default(problem, HOPPER)
    assert config.BT == 4 * operators.implementation("linear_attention", name).default(Problem(), HOPPER).BT
    run(name, problem, config, Mode())


@pytest.mark.parametrize("seed", range(4))
def test_tiles_find_their_past_whatever_order_blocks_start_in(seed: int) -> None:
    problem = replace(SMALL, batch=2, decay="head")
    run("lookback", problem, lookback.Config(8, 32, 64, 4, 1, False, 13568), Mode(True, "random", "random", seed))


@pytest.mark.parametrize("seed", range(2))
def test_a_look_goes_back_over_as_many_tiles_as_it_takes(seed: int) -> None:
    problem = replace(SMALL, head_dim=32, heads=1, seq_len=400)
    run("lookback", problem, lookback.Config(4, 32, 64, 1, 1, True, 13568), Mode(True, "random", "random", seed))


def test_no_bit_depends_on_the_order_in_which_tiles_come() -> None:
    problem, config = replace(SMALL, batch=2), lookback.Config(8, 32, 64, 4, 1, False, 13568)
    arrays = draw(problem)
    modes = [IN_ORDER, *(Mode(True, "random", "random", seed) for seed in range(5))]
    outputs = [run("lookback", problem, config, mode, arrays)[0]["o"] for mode in modes]
    assert all(np.array_equal(output, outputs[0]) for output in outputs)


@pytest.mark.slow
def test_the_scan_of_packed_sequences_that_leave_no_state_does_not_spill_either() -> None:
    """Where ptxas is told no least number of blocks it aims at more of them, with registers too few."""
    packed = replace(EVERYTHING, head_dim=64, dtype=DType.BF16, output_final_state=False)
    assert_no_spills(OPERATOR, operators.implementation("linear_attention", "chunked"), packed, "sm_90a")


def test_the_compiler_may_move_no_access_to_what_tiles_exchange() -> None:
    """Behind __restrict__ a load may pass the acquire before it, and a store the release behind it."""
    plan = lookback.plan(SMALL, config := lookback.default(SMALL, HOPPER))
    assert lookback.IMPLEMENTATION.space(SMALL, HOPPER).refusal(config) is None
    for parameter in parameters(OPERATOR, SMALL, plan, plan.launches[-1]):
        exchanged = parameter.argument in {space.name for space in plan.workspaces}
        assert ("__restrict__" in parameter.declaration) == (parameter.pointer and not exchanged)


def test_a_second_run_on_the_same_workspace_is_right() -> None:
    plan = lookback.plan(SMALL, config := lookback.Config(16, 64, 64, 4, 1, False, 13568))
    arrays = draw(SMALL)
    kernel = emulator.build(render(Instance(OPERATOR, lookback.IMPLEMENTATION, SMALL, config), "host"), checked=False)
    held: dict[str, Any] = {space.name: Buffer(space.name, space.nbytes, writable=True) for space in plan.workspaces}
    for buffer in held.values():
        buffer.view(np.dtype(np.uint8), (buffer.nbytes,))[:] = 1  # garbage that looks like published flags
    for name in ("q", "k", "v", "o"):
        held[name] = Buffer(name, arrays["q"].nbytes, writable=True)
        held[name].view(arrays["q"].dtype, arrays["q"].shape)[...] = arrays.get(name, np.nan)
    o = held["o"].view(arrays["q"].dtype, arrays["q"].shape)
    for _ in range(2):
        o[...] = np.nan
        for launch in plan.launches:
            values = [_value(parameter, held, arrays) for parameter in parameters(OPERATOR, SMALL, plan, launch)]
            done = kernel.launch(launch.entry, launch.grid, launch.threads, launch.smem_bytes, values, Mode())
            assert not done.findings, done.findings[0]
        np.testing.assert_allclose(o, OPERATOR.reference(SMALL, arrays)["o"], rtol=1e-4, atol=1e-5)


def _value(parameter: Any, held: dict[str, Any], arrays: Arrays) -> Any:
    if parameter.pointer:
        return held[parameter.argument]
    if parameter.axis is not None:
        return np.int64(arrays["q"].strides[parameter.axis] // arrays["q"].itemsize)
    return parameter.dtype.numpy.type(arrays[parameter.argument])


@pytest.mark.parametrize("kind", ["extreme_keys", "never_forget"])
def test_a_halo_is_exact_at_its_bound(kind: str) -> None:
    problem = replace(SMALL, seq_len=400, beta_bound=0.8, key_floor=10, output_final_state=True)
    assert halo.reach(problem) < 200
    run("halo", problem, halo.Config(32, 64, 64, 4, 1, False), Mode(), draw(problem, kind))


def test_a_halo_is_right_even_where_its_promise_is_broken() -> None:
    problem = replace(SMALL, beta_bound=0.5, key_floor=10)
    run("halo", problem, halo.Config(16, 64, 64, 4, 1, False), Mode(), draw(problem) | {"beta_scalar": 1.0})


@pytest.mark.parametrize(
    ("problem", "reason"),
    [(SMALL, "beta_bound 1.0"), (replace(SMALL, beta_bound=0.9, use_initial_state=True), "initial state")],
)
def test_a_halo_says_what_it_cannot_serve(problem: Problem, reason: str) -> None:
    assert reason in (halo.refusal(problem, HOPPER) or "")


COUNTED = [Problem(head_dim=40, heads=3, batch=2, seq_len=150), WITH_STATES]


@pytest.mark.parametrize("problem", COUNTED, ids=["bf16", "fp32 with states"])
@pytest.mark.parametrize("name", ALL)
def test_declared_bytes_are_those_that_the_emulator_counts(name: str, problem: Problem) -> None:
    problem = served(name, problem)
    problem = replace(problem, key_floor=10) if name == "halo" else problem
    implementation = operators.implementation("linear_attention", name)
    config = implementation.default(problem, HOPPER)
    _, done = run(name, problem, config, IN_ORDER, draw(problem, "never_forget"))
    counted = [global_bytes(launch) for launch in by_launch(done, implementation.plan(problem, config))]
    assert [work.l2_bytes for work in implementation.work(problem, config, gpu("sm_90a"))] == counted


def test_staged_tiles_move_as_many_bytes() -> None:
    config = TILES[2]
    _, done = run("lookback", SMALL, config, IN_ORDER)
    declared = sum(work.l2_bytes for work in lookback.work(SMALL, config, gpu("sm_90a")))
    assert declared == global_bytes(done.counters)
    assert done.counters.cp_async_bytes == 3 * SMALL.elements * 4


@pytest.mark.parametrize("name", ["naive", "sequential", "lookback"])
def test_one_pass_moves_the_least_there_is(name: str) -> None:
    problem = Problem()
    implementation = operators.implementation("linear_attention", name)
    works = implementation.work(problem, implementation.default(problem, HOPPER), gpu("H200"))
    assert sum(work.dram_bytes for work in works) == OPERATOR.cost(problem).bytes
    # β, and what tiles tell each other
    assert sum(work.l2_bytes for work in works) <= 1.07 * sum(work.dram_bytes for work in works)


def test_chunks_read_keys_and_values_again_where_they_exceed_the_cache() -> None:
    works = chunked.work(Problem(), chunked.IMPLEMENTATION.default(Problem(), HOPPER), gpu("H200"))
    assert sum(work.dram_bytes for work in works) == pytest.approx(1.5 * OPERATOR.cost(Problem()).bytes)


def test_the_default_can_feed_an_h200() -> None:
    """Five times Little's 26 KB on an SM, since a block loads for about a fifth of its life; and no more instructions
    than 49 issue slots and 6 of the special function unit an element leave room for."""
    problem, config = Problem(), lookback.default(Problem(), HOPPER)
    launch = lookback.plan(problem, config).launches[-1]
    cubin = compiled(render(Instance(OPERATOR, lookback.IMPLEMENTATION, problem, config)), "sm_90a")
    ctas = occupancy(cubin.entries[launch.entry], launch, HOPPER).ctas
    assert ctas * 3 * config.BT * config.BK * problem.dtype.itemsize >= 5 * 26 * 1024
    mix, elements = cubin.instruction_mix(launch.entry), config.BT * config.BK / launch.threads
    assert sum(mix.values()) <= 36 * elements
    assert mix["MUFU.EX2"] + mix["MUFU.RCP"] <= 3.1 * elements


def test_the_example_of_the_readme_runs() -> None:
    code = re.findall(r"^```python\n(.*?)^```", (OPERATOR.folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)[
        0
    ]
    results: dict[str, Any] = {}
    exec(code, results)
    assert results["o"].shape == results["q"].shape
    assert results["state"].shape == (1, 2, 2, 8)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("sequence", [0, 2])
def test_a_packed_sequence_that_becomes_nan_leaves_the_others_as_they_are(name: str, sequence: int) -> None:
    problem, bounds = replace(served(name, EVERYTHING), boundaries=5), [0, 41, 41, 97, 150]
    arrays = draw(problem) | {"cu_seqlens": np.array(bounds, np.int32)}
    own = np.s_[:, bounds[sequence] : bounds[sequence + 1]]
    tokens = (np.s_[:, : own[1].start], np.s_[:, own[1].stop :])
    assert_apart(
        Instance.default(OPERATOR, operators.implementation("linear_attention", name), problem, HOPPER),
        arrays,
        {"q": own, "k": own, "v": own, "initial_state": sequence},
        {"o": tokens, "final_state": (np.s_[:sequence], np.s_[sequence + 1 :])},
    )


def test_beta_decides_how_it_comes() -> None:
    q = np.zeros((1, 4, 2, 8), np.float32)
    requests = [linear_attention(q, q, q, beta) for beta in (0.5, np.ones(2, np.float32), np.ones((2, 8), np.float32))]
    assert [request.statics["decay"] for request in requests] == ["scalar", "head", "channel"]
    assert requests[0].scalars == {"beta_scalar": 0.5}
    assert requests[1].arrays["beta"].shape == (2, 1)


def test_a_beta_that_fp32_rounds_above_its_bound_keeps_the_promise() -> None:
    q = np.zeros((1, 4, 2, 8), np.float32)
    beta = float(np.float32(0.2))
    assert beta > 0.2
    assert linear_attention(q, q, q, beta, beta_bound=0.2).scalars == {"beta_scalar": beta}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.5}, r"beta 1\.5: must be between 0 and beta_bound, 1\.0"),
        ({"beta": 0.9, "beta_bound": 0.5}, r"beta 0\.9: must be between 0 and beta_bound, 0\.5"),
        ({"beta": np.zeros((1, 2, 3), np.float32)}, r"beta has 3 dims: pass a number, or an array \[H\]"),
        ({"beta": [0.9, 0.8]}, r"beta is a list: pass a number, or an fp32 array \[H\] or \[H, D\]"),
        ({"beta": "0.9"}, "beta is a str: pass a number"),
        ({"beta": 0.9, "layout": "tbhd"}, "layout 'tbhd': linear_attention supports bthd, bhtd"),
    ],
)
def test_values_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    q = np.zeros((1, 4, 2, 8), np.float32)
    with pytest.raises(UsageError, match=message):
        linear_attention(q, q, q, **options)


def test_more_than_kernels_can_count_is_refused() -> None:
    Problem(heads=1, head_dim=1, seq_len=2**29)
    with pytest.raises(UsageError, match="rounded up to 256, is 274877906944: linear_attention supports up to"):
        Problem(heads=1, head_dim=1, seq_len=2**30)


def test_packed_sequences_in_a_batch_are_refused() -> None:
    q = np.zeros((2, 4, 2, 8), np.float32)
    with pytest.raises(InputError, match="varlen needs one row"):
        dispatcher.linear_attention(q, q, q, 0.9, cu_seqlens=np.array([0, 4], np.int32))
