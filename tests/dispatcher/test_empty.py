"""Tests of calls with nothing to compute, as servers make them between requests: no kernel is built, chosen or run."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.cupy_double import Driver, asarray, driver
from tuner import dispatcher, operators
from tuner.backends import emulator
from tuner.compiler import nvrtc
from tuner.dispatcher import calls
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError
from tuner.store.records import Snapshot

__all__ = ["driver"]  # a fixture

Sizes = list[tuple[int, ...]]


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be compiled")

    monkeypatch.setattr(emulator, "build", forbidden)
    monkeypatch.setattr(nvrtc, "compile", forbidden)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor is there anything to tune
        yield


def half(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float16)


def full(*shape: int) -> np.ndarray:
    return np.full(shape, 3, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def table(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def attention(B: int, T: int, S: int) -> list[np.ndarray]:
    return [half(B, T, 4, 64), half(B, S, 2, 64), half(B, S, 2, 64)]


def upstream(B: int, T: int, S: int) -> list[np.ndarray]:
    return [half(B, T, 4, 64), *attention(B, T, S), half(B, T, 4, 64), full(B, 4, T)]


def tokens(B: int, T: int) -> list[np.ndarray]:
    return [half(B, T, 2, 32) for _ in range(4)] + [half(B, T, 2)]


CACHE = half(8, 16, 2, 64)
PACKED = [half(1, 0, 4, 64), CACHE, CACHE]
POOL = full(5, 2, 32, 32)
GATE = {"use_gate_in_kernel": True, "A_log": full(2), "dt_bias": full(2, 32)}
EMPTY: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "no sequences": ("flash_attention", attention(0, 5, 7), {}),
    "no queries": ("flash_attention", attention(2, 0, 7), {"causal": True}),
    "none packed": ("flash_attention", [*attention(1, 0, 0), ints(0), ints(0)], {}),
    "empty ones packed": ("flash_attention", [*attention(1, 0, 7), ints(0, 0, 0), ints(0, 3, 7)], {"max_seqlen_q": 1}),
    "gradients of no sequences": ("flash_attention_backward", upstream(0, 5, 7), {}),
    "a window over no queries": ("streaming_attention", attention(2, 0, 7), {"window": 4}),
    "a ragged batch of none": ("streaming_attention", attention(0, 1, 7), {"window": 4, "cache_seqlens": ints()}),
    "gradients of windows": ("streaming_attention_backward", upstream(0, 5, 7), {"window": 4}),
    "no live requests": ("paged_attention", [half(0, 1, 4, 64), CACHE, CACHE, table(0, 4), ints()], {}),
    "none live, packed": ("paged_attention", [*PACKED, table(0, 4), ints(), ints(0)], {}),
    "no queries of three": ("paged_attention", [*PACKED, table(3, 4), ints(1, 2, 3), ints(0, 0, 0, 0)], {}),
    "nothing to decode": ("mla_decode", [half(0, 1, 4, 64), half(8, 16, 64), table(0, 4), ints(), 32], {}),
    "no recurrences": ("linear_attention", [*tokens(0, 5)[:3], 0.5], {"output_final_state": True}),
    "no tokens": ("kda", tokens(2, 0), {}),
    "no deltas": ("kda", tokens(0, 5), {"initial_state": full(0, 2, 32, 32), "output_final_state": True}),
    "no deltas packed": ("kda", tokens(1, 0), {"output_final_state": True, "cu_seqlens": ints(0)}),
}


@pytest.mark.parametrize(("operator", "args", "kwargs"), EMPTY.values(), ids=EMPTY)
def test_an_empty_batch_gives_empty_outputs(operator: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    outputs = calls.Dispatcher(Snapshot.load([])).call(operator, *args, **kwargs)
    assert all(output.size == 0 for output in outputs)
    query = args[0]
    assert outputs[0].dtype == query.dtype and outputs[0].shape[:-1] == query.shape[:-1]


HELD: dict[str, tuple[str, list[Any], dict[str, Any], list[float | None]]] = {
    "no keys": ("flash_attention", attention(2, 5, 0), {}, [0, -np.inf]),
    "no keys packed": ("flash_attention", [*attention(1, 3, 0), ints(0, 1, 3), ints(0, 0, 0)], {}, [0, -np.inf]),
    "no keys in a window": ("streaming_attention", attention(2, 5, 0), {"window": 4}, [0, -np.inf]),
    "tables without pages": ("paged_attention", [half(2, 1, 4, 64), CACHE, CACHE, table(2, 0), ints(0, 0)], {},
                             [0, -np.inf]),
    "no latent rows": ("mla_decode", [half(2, 1, 4, 64), half(8, 16, 64), table(2, 0), ints(0, 0), 32], {},
                       [0, -np.inf]),
    "gradients without keys": ("flash_attention_backward", upstream(2, 5, 0), {}, [0, None, None, None]),
    "gradients of logits": ("flash_attention_backward", [*upstream(0, 5, 7), None, None, full(4)], {},
                            [None, None, None, 0]),
    "gradients without queries": ("flash_attention_backward", upstream(2, 0, 7), {}, [None, 0, 0, None]),
    "windows without queries": ("streaming_attention_backward", upstream(2, 0, 7), {"window": 4}, [None, 0, 0]),
    "a state that stays": ("linear_attention", [*tokens(2, 0)[:3], 0.5, full(2, 2, 2, 32)],
                           {"output_final_state": True}, [None, 3]),
    "a state of zeros": ("linear_attention", [*tokens(2, 0)[:3], 0.5], {"output_final_state": True}, [None, 0]),
    "its gradient": ("linear_attention_backward", [*tokens(2, 0)[:3], full(2) / 9, half(2, 0, 2, 32),
                     full(2, 2, 2, 32), full(2, 2, 2, 32)], {}, [None, None, None, 0, 3]),
    "states that stay": ("kda", tokens(1, 0), {"initial_state": full(2, 2, 32, 32), "output_final_state": True,
                         "cu_seqlens": ints(0, 0, 0)}, [None, 3]),
    "sums over no tokens": ("kda_backward", [*tokens(0, 5), half(0, 5, 2, 32)], GATE, [*[None] * 6, 0, 0]),
    "gradients that pass": ("kda_backward", [*tokens(2, 0), half(2, 0, 2, 32), full(2, 2, 32, 32)],
                            {"initial_state": full(2, 2, 32, 32) * 2, **GATE}, [*[None] * 5, 3, 0, 0]),
}  # fmt: skip


@pytest.mark.parametrize(("operator", "args", "kwargs", "values"), HELD.values(), ids=HELD)
def test_outputs_with_elements_hold_what_the_mathematics_says(
    operator: str, args: list[Any], kwargs: dict[str, Any], values: list[float | None]
) -> None:
    outputs = calls.Dispatcher(Snapshot.load([])).call(operator, *args, **kwargs)
    assert [output.size > 0 for output in outputs] == [value is not None for value in values]
    assert all((output == value).all() for output, value in zip(outputs, values, strict=True) if value is not None)


def test_what_is_held_is_a_copy() -> None:
    state = full(2, 2, 2, 32)
    _, last = dispatcher.linear_attention(*tokens(2, 0)[:3], 0.5, state, output_final_state=True)
    last += 1
    assert (state == 3).all()


@pytest.mark.parametrize("indices", [{}, {"ssm_state_indices": ints(4, 1)}], ids=["in order", "by index"])
def test_a_pool_of_states_stays_as_it_is(indices: dict[str, Any]) -> None:
    pool = np.arange(5 * 2 * 32 * 32, dtype=np.float32).reshape(5, 2, 32, 32)
    before, batch = pool.copy(), 2 if indices else 5
    dispatcher.kda(*tokens(batch, 0), initial_state=pool, inplace_final_state=True, **indices)
    assert (pool == before).all()
    dispatcher.kda(*tokens(0, 1), initial_state=pool, inplace_final_state=True, ssm_state_indices=ints())
    assert (pool == before).all()


WRONG: dict[str, tuple[str, list[Any], dict[str, Any], str]] = {
    "a head without elements": ("flash_attention", [half(2, 5, 4, 0)] * 3, {}, "head_dim 0: .* supports 8 to 256"),
    "no heads of keys": ("flash_attention", [half(2, 5, 4, 64), *[half(2, 7, 0, 64)] * 2], {},
                         r"k \[.*\] = \(2, 7, 0, 64\): kv_heads must be 1 or more"),
    "queries of no sequence": ("flash_attention", [*attention(1, 3, 3), ints(0), ints(0)], {},
                               r"cu_seqlens_q .* = \(1,\): boundaries must be 2 or more"),
    "a cache without pages": ("paged_attention", [half(2, 1, 4, 64), CACHE[:0], CACHE[:0], table(2, 4), ints(0, 0)], {},
                              "pages must be 1 or more"),
    "batches that differ": ("flash_attention", [*attention(0, 5, 7)[:2], half(1, 7, 2, 64)], {}, "batch is 1, but 0"),
    "states of another number": ("kda", tokens(2, 0), {"initial_state": full(3, 2, 32, 32)},
                                 "initial_states 3: kda takes 2 here"),
    "states of nobody": ("kda", tokens(0, 5), {"initial_state": full(3, 2, 32, 32)}, "3: kda takes 0 here"),
    "two dtypes": ("flash_attention", [*attention(0, 5, 7)[:2], full(0, 7, 2, 64)], {}, "v is fp32, but q is fp16"),
}  # fmt: skip


@pytest.mark.parametrize(("operator", "args", "kwargs", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_said_of_empty_calls_too(
    operator: str, args: list[Any], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        calls.Dispatcher(Snapshot.load([])).call(operator, *args, **kwargs)


def test_strict_needs_no_record_where_nothing_runs_and_explain_says_so() -> None:
    at = Dispatcher(Snapshot.load([]), strict=True)
    at.call("flash_attention", *attention(0, 5, 7))
    explanation = at.explain("flash_attention", *attention(0, 5, 7))
    assert at.misses() == () and explanation.implementation == "" and explanation.problem["batch"] == 0
    assert str(explanation).endswith("runs no kernel: batch is 0, which leaves nothing to compute")


def test_every_operator_says_what_its_outputs_hold_or_they_are_empty() -> None:
    """A batch of nothing is served by each: an output that has elements then is a sum over the batch."""
    of_batch = {"batch", "initial_states", "final_states"}
    for operator in filter(lambda operator: hasattr(operator.problem, "batch"), map(operators.load, operators.names())):
        for output in operator.outputs:
            assert of_batch & {*output.dims} or output.without["batch"] == 0, (operator.name, output.name)


def test_a_gpu_gets_outputs_there_and_launches_nothing(driver: Driver) -> None:
    at = Dispatcher(Snapshot.load([]))
    o, lse = at.call("flash_attention", *map(asarray, attention(2, 5, 0)))
    assert (type(o).__module__, o.shape, lse.shape) == ("cupy", (2, 5, 4, 64), (2, 4, 5))
    assert (o.host == 0).all() and (lse.host == -np.inf).all()
    state = asarray(full(2, 2, 2, 32))
    _, last = at.call("linear_attention", *map(asarray, tokens(2, 0)[:3]), 0.5, state, output_final_state=True)
    assert (last.host == 3).all() and last is not state
    assert driver.launches == []
