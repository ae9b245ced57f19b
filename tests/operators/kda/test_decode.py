"""kda with states that live in a pool, V-first states and head-first beta."""

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from tests.support.claims import assert_no_spills, assert_right_at, assert_right_on_tails
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.backends import emulator
from tuner.dispatcher import config_choice
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, UsageError
from tuner.evaluate.check.checker import CHECKED
from tuner.operators.kda.naive.implementation import Config as NaiveConfig
from tuner.operators.kda.operator import kda
from tuner.operators.kda.problem import Problem
from tuner.operators.kda.recurrent.implementation import Config as RecurrentConfig
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

OPERATOR = operators.load("kda")
RECURRENT = operators.implementation("kda", "recurrent")
STATES = {"use_initial_state": True, "output_final_state": True}
POOL = {"inplace_final_state": True, "use_state_indices": True}
SMALL = Problem(key_dim=32, value_dim=32, heads=1, **POOL)
RAW = {"use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
# Every vector width of the stored state, both orders, with and without indices, and sequences of any lengths.
POOLED = {
    "naive": ("naive", SMALL, NaiveConfig(32)),
    "naive_v_first_packed": ("naive", replace(SMALL, state_v_first=True, use_cu_seqlens=True), NaiveConfig(32)),
    "by_one": ("recurrent", SMALL, RecurrentConfig(BV=16, columns=1, splits=4, BT=2)),
    "by_two_packed_raw": ("recurrent", replace(SMALL, use_cu_seqlens=True, **RAW), RecurrentConfig(16, 2, 8, 4)),
    "by_four": ("recurrent", replace(SMALL, value_dim=48), RecurrentConfig(16, 4, 8, 4)),
    "v_first": ("recurrent", replace(SMALL, key_dim=64, state_v_first=True), RecurrentConfig(32, 2, 4, 4)),
    "an_entry_a_sequence": ("recurrent", replace(SMALL, use_state_indices=False), RecurrentConfig(32, 4, 8, 4)),
}


def drawn(problem: Problem) -> dict[str, Any]:
    return OPERATOR.inputs(problem, np.random.default_rng(0), "weak_gate")


def decode(at: Dispatcher, arrays: dict[str, Any], **changed: Any) -> Any:
    """A call with the tensors of `arrays`, its pool and its indices."""
    given = {name: arrays[name] for name in ("q", "k", "v", "g", "beta", "ssm_state_indices")}
    return at.call("kda", **{"initial_state": arrays["state_pool"], "inplace_final_state": True, **given, **changed})


def test_token_after_token_through_the_pool_is_the_sequence_at_once() -> None:
    whole = replace(SMALL, batch=2, seq_len=5, pool_states=4)
    arrays = drawn(whole)
    together = OPERATOR.reference(whole, arrays)
    one, pool, o = replace(whole, seq_len=1), arrays["state_pool"], []
    for t in range(whole.seq_len):
        token = {name: arrays[name][:, t : t + 1] for name in ("q", "k", "v", "g", "beta")}
        reference = OPERATOR.reference(one, {**arrays, **token, "state_pool": pool})
        pool = reference["state_pool"]
        o.append(reference["o"])
    np.testing.assert_allclose(np.concatenate(o, axis=1), together["o"], atol=1e-12)
    np.testing.assert_allclose(pool, together["state_pool"], atol=1e-12)


def test_v_first_states_are_the_others_turned() -> None:
    plain = Problem(key_dim=16, value_dim=32, batch=2, seq_len=3, heads=1, **STATES)
    arrays = drawn(plain)
    turned = {**arrays, "initial_state": arrays["initial_state"].swapaxes(2, 3)}
    one = OPERATOR.reference(plain, arrays)
    other = OPERATOR.reference(replace(plain, state_v_first=True), turned)
    np.testing.assert_array_equal(one["final_state"], other["final_state"].swapaxes(2, 3))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"use_state_indices": True}, "set inplace_final_state"),
        ({"inplace_final_state": True, "output_final_state": True}, "drop use_initial_state and output_final_state"),
        ({"inplace_final_state": True, "batch": 3, "pool_states": 5}, "pool_states 5: without indices"),
    ],
)
def test_what_a_pool_cannot_be_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Problem(**fields)


@pytest.mark.parametrize("wrong", [{"ssm_state_indices": 0}, {"inplace_final_state": True}])
def test_indices_need_a_pool_and_a_pool_is_an_initial_state(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="ssm_state_indices need inplace_final_state"):
        kda(*[object()] * 5, **wrong)


@pytest.mark.parametrize("case", POOLED)
def test_a_pool_is_updated_and_the_rest_of_it_is_not(case: str) -> None:
    name, problem, config = POOLED[case]
    implementation = operators.implementation("kda", name)
    assert_right_on_tails(Instance(OPERATOR, implementation, problem, config))


@pytest.mark.parametrize("name", ["naive", "recurrent"])
def test_v_first_states_without_a_pool_are_right(name: str) -> None:
    implementation = operators.implementation("kda", name)
    problem = Problem(key_dim=32, value_dim=64, state_v_first=True, **STATES)
    place = {"batch": 2, "seq_len": 19, "heads": 2, "value_heads": 4}, "weak_gate"
    assert_right_at(Instance.default(OPERATOR, implementation, problem, ARCHES["sm_90a"]), place)


@pytest.mark.parametrize("name", ["prep_scan", "fused"])
def test_kernels_of_chunks_refuse_pools_and_say_what_serves_them(name: str) -> None:
    reason = operators.implementation("kda", name).refusal(SMALL, ARCHES["sm_90a"])
    assert reason is not None
    assert "use recurrent" in reason


def test_each_state_is_read_once_and_written_once() -> None:
    problem = replace(SMALL, use_state_indices=False, batch=3, seq_len=1, value_heads=2, pool_states=3)
    config = RECURRENT.default(problem, ARCHES["sm_90a"])
    _, done = emulator.run(Instance(OPERATOR, RECURRENT, problem, config), drawn(problem), CHECKED[0])
    (work,) = RECURRENT.work(problem, config, gpu("H200"))
    assert work.l2_bytes == done.counters.global_read_bytes + done.counters.global_write_bytes


RAW_POOL, POOL_64 = Problem(state_v_first=True, **POOL, **RAW), Problem(key_dim=64, value_dim=64, **POOL)


@pytest.mark.parametrize(("arch", "problem"), [*zip(ARCHES, cycle((RAW_POOL, POOL_64)), strict=False)], ids=[*ARCHES])
@pytest.mark.slow
def test_decoding_compiles_without_spills_for_every_arch(arch: str, problem: Problem) -> None:
    assert_no_spills(OPERATOR, RECURRENT, problem, arch)


def test_a_call_updates_the_callers_pool_wherever_its_rows_lie(at: Dispatcher) -> None:
    problem = replace(SMALL, batch=4, seq_len=1, value_heads=2, pool_states=6)
    arrays = drawn(problem)
    expected = OPERATOR.reference(problem, arrays)
    pages = np.full((6, 3, 32, 40), 7, np.float32)
    pool = pages[:, 1:, :, :32]
    pool[...] = arrays["state_pool"]
    o, final_state = decode(at, arrays, initial_state=pool)
    np.testing.assert_allclose(o.astype(float), expected["o"], atol=2e-2)
    np.testing.assert_allclose(pool, expected["state_pool"], atol=1e-5)
    assert final_state.shape == (0, 2, 32, 32)
    assert (pages[:, 0] == 7).all()
    assert (pages[..., 32:] == 7).all()


def test_a_negative_index_skips_the_sequence(at: Dispatcher) -> None:
    arrays = drawn(replace(SMALL, batch=2, seq_len=1, pool_states=3))
    before = arrays["state_pool"].copy()
    column = np.array([[9, -1], [9, 2]], np.int32)[:, 1]
    o, _ = decode(at, arrays, ssm_state_indices=column)
    assert not o[0].any()
    assert o[1].any()
    assert np.array_equal(arrays["state_pool"][:2], before[:2])
    assert not np.array_equal(arrays["state_pool"][2], before[2])


def test_a_pool_that_cannot_be_written_is_refused(at: Dispatcher) -> None:
    arrays = drawn(replace(SMALL, batch=1, seq_len=1))
    arrays["state_pool"].flags.writeable = False
    with pytest.raises(InputError, match="state_pool is read-only"):
        decode(at, arrays)


@pytest.mark.parametrize("packed", [False, True], ids=["tokens", "packed"])
def test_head_first_tensors_take_head_first_beta(at: Dispatcher, packed: bool) -> None:
    problem = Problem(key_dim=16, value_dim=16, batch=1, seq_len=21, heads=1, value_heads=2, use_cu_seqlens=packed)
    arrays = drawn(problem)
    tensors = [arrays[name] for name in ("q", "k", "v", "g", "beta")]
    turned = [np.ascontiguousarray(tensor.swapaxes(1, 2)) for tensor in tensors]
    lengths = {"cu_seqlens": np.array([0, 5, 21])} if packed else {}
    plain, _ = at.call("kda", *tensors, **lengths)
    head_first, _ = at.call("kda", *turned, layout="bhtd", **lengths)
    assert np.array_equal(plain, head_first.swapaxes(1, 2))


@pytest.mark.parametrize("target", [*ARCHES, "H200"])
def test_one_token_runs_recurrent_and_many_run_chunks(target: str) -> None:
    chosen = {
        T: {
            config_choice.choose(OPERATOR, problem, (gpu(target),), Snapshot.load([])).instance.implementation.name
            for dim in (64, 128)
            for batch in (1, 64)
            for states in ({}, STATES)
            for problem in [Problem(dim, dim, batch=batch, seq_len=T, heads=8, **states)]
        }
        for T in (1, 4096)
    }
    assert chosen[1] == {"recurrent"}
    assert not chosen[4096] & {"recurrent", "naive"}


def test_torch_knows_that_the_pool_changes() -> None:
    torch = pytest.importorskip("torch")
    import tuner.torch as registered

    assert "Tensor(a!)? initial_state=None" in registered.schema(OPERATOR)
    plain = {"dtype": DType.FP32, "gate_dtype": DType.FP32, "beta_dtype": DType.FP32}
    arrays = drawn(replace(SMALL, batch=2, seq_len=1, pool_states=3, **plain))
    names = ("q", "k", "v", "g", "beta", "state_pool", "ssm_state_indices")

    def step(q: Any, k: Any, v: Any, g: Any, beta: Any, pool: Any, indices: Any) -> Any:
        options = {"initial_state": pool, "inplace_final_state": True, "ssm_state_indices": indices}
        return torch.ops.tuner.kda(q, k, v, g, beta, **options)[0] + pool.sum()

    eager, compiled = ([torch.from_numpy(arrays[name].copy()) for name in names] for _ in range(2))
    graph = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(step(*eager), graph(*compiled))
    assert torch.equal(eager[5], compiled[5])
    assert not np.array_equal(eager[5].numpy(), arrays["state_pool"])
