"""Tests of calls at new lengths: nothing is planned, chosen or compiled again, and results are correct."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support import served
from tests.support.cupy_double import Driver, asarray, driver, ndarray
from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import emulator
from tuner.backends.gpu import tensor_map
from tuner.compiler.render import render
from tuner.dispatcher import config_choice
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError
from tuner.evaluate.check.compare import errors
from tuner.spec.default_sizes import round_sizes
from tuner.spec.instance import Instance
from tuner.store.records import Snapshot

__all__ = ["driver"]  # a fixture

OPERATOR = operators.load("flash_attention")
WGMMA = operators.implementation("flash_attention", "wgmma")


class Counted:
    """Calls of a function, which runs as before."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls, self._function = 0, getattr(owner, name)
        patch.setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._function(*args, **kwargs)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Return what a call computes without a cache: its choice and its plan."""
    return Counted(monkeypatch, config_choice, "choose")


@pytest.fixture
def at() -> Dispatcher:
    return Dispatcher(Snapshot.load([]))


def drawn(keys: int, *, queries: int = 1, heads: int = 2, D: int = 16, dtype: Any = np.float16) -> dict[str, Any]:
    rng = np.random.default_rng(keys)
    shapes = {"q": (1, queries, heads, D), "k": (1, keys, heads, D), "v": (1, keys, heads, D)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def check(arrays: dict[str, Any], outputs: tuple[Any, Any], **fields: Any) -> None:
    q, k = arrays["q"], arrays["k"]
    dtype = OPERATOR.problem().dtype.of(q.dtype)
    heads = {"heads": q.shape[2], "kv_heads": k.shape[2]}
    problem = OPERATOR.problem(
        q.shape[3], dtype, batch=q.shape[0], seq_q=q.shape[1], seq_k=k.shape[1], **heads, **fields
    )
    o, lse = (getattr(output, "host", output) for output in outputs)
    inputs = {**arrays, "softmax_scale": q.shape[3] ** -0.5}
    assert all(error.ok for error in errors(OPERATOR, problem, inputs, {"o": o, "lse": lse}))


def test_a_generation_is_planned_twice_for_dispatcher_its_kernels(at: Dispatcher, chosen: Counted) -> None:
    for keys in range(65, 129):
        arrays = drawn(keys)
        check(arrays, at.call("flash_attention", **arrays))
    sizes = {next(round_sizes((keys,))) for keys in range(65, 129)}
    assert chosen.calls <= 1 + len(sizes)
    assert sum(miss.calls for miss in at.misses()) == 64
    assert {miss.problem["seq_k"] for miss in at.misses()} == set(range(65, 129))


def test_what_runs_is_what_would_be_chosen(at: Dispatcher, chosen: Counted) -> None:
    for keys in (70, 71, 72, 79, 80):
        at.call("flash_attention", **drawn(keys))
    before = chosen.calls
    explanation = at.explain("flash_attention", **drawn(77))
    at.call("flash_attention", **drawn(77))
    assert chosen.calls == before + 1  # by explain alone
    fresh = Dispatcher(Snapshot.load([]))
    check(drawn(77), fresh.call("flash_attention", **drawn(77)))
    assert explanation.config == fresh.explain("flash_attention", **drawn(77)).config
    outputs = (dispatcher.call("flash_attention", **drawn(77)) for dispatcher in (at, fresh))
    assert all(np.array_equal(one, other) for one, other in zip(*outputs, strict=True))


def test_views_of_other_strides_are_no_other_kind_of_call(at: Dispatcher, chosen: Counted) -> None:
    for keys, room in ((70, 80), (71, 80), (72, 96), (73, 128)):
        arrays = drawn(keys)
        wide = {name: np.zeros((1, room, 2, 16), np.float16) for name in "kv"}
        for name, array in wide.items():
            array[:, :keys] = arrays[name]
        check(arrays, at.call("flash_attention", arrays["q"], wide["k"][:, :keys], wide["v"][:, :keys]))
    assert chosen.calls == 2


def test_size_arguments_are_traced_too(at: Dispatcher, chosen: Counted) -> None:
    operator = operators.load("streaming_attention")
    drawn = {seen: operator.inputs(rolling(seen), np.random.default_rng(seen), "normal") for seen in range(65, 81)}
    for seen, arrays in drawn.items():
        q, k, v = (arrays[name] for name in "qkv")
        o, lse = at.call("streaming_attention", q, k, v, window=16, sinks=4, seq_k=seen)
        assert all(error.ok for error in errors(operator, rolling(seen), arrays, {"o": o, "lse": lse}))
    assert chosen.calls <= 3


def test_a_size_that_64_bits_do_not_hold_is_refused_after_others_were_traced(at: Dispatcher) -> None:
    operator = operators.load("streaming_attention")
    for seen in (65, 66, 67, 68):
        arrays = operator.inputs(rolling(seen), np.random.default_rng(seen), "normal")
        q, k, v = (arrays[name] for name in "qkv")
        at.call("streaming_attention", q, k, v, window=16, sinks=4, seq_k=seen)
    with pytest.raises(InputError, match="seq_k is 73786976294838206464, which does not fit in 64 bits"):
        at.call("streaming_attention", q, k, v, window=16, sinks=4, seq_k=2**66)


def test_a_size_argument_of_another_number_type_is_another_kind_of_call(at: Dispatcher) -> None:
    operator = operators.load("streaming_attention")
    for number in (int, np.int64, int, np.int64):
        for seen in (65, 66, 67, 68):
            arrays = operator.inputs(rolling(seen), np.random.default_rng(seen), "normal")
            q, k, v = (arrays[name] for name in "qkv")
            o, lse = at.call("streaming_attention", q, k, v, window=16, sinks=4, seq_k=number(seen))
            assert all(error.ok for error in errors(operator, rolling(seen), arrays, {"o": o, "lse": lse}))


def rolling(seen: int) -> Any:
    operator = operators.load("streaming_attention")
    sizes = {"batch": 1, "heads": 2, "seq_q": 1, "slots": 20, "window": 16, "sinks": 4}
    return operator.problem(16, operator.problem().dtype, rolling=True, seq_k=seen, **sizes)


def test_what_does_not_fit_is_refused_in_the_same_words(at: Dispatcher) -> None:
    for keys in (70, 71, 72):
        at.call("flash_attention", **drawn(keys))
    odd = drawn(73)
    with pytest.raises(InputError, match=r"v .*seq_k is 72, but 73 in k"):
        at.call("flash_attention", odd["q"], odd["k"], odd["v"][:, :72])
    with pytest.raises(InputError, match="dims"):
        at.call("flash_attention", odd["q"], odd["k"][0], odd["v"])
    nothing = drawn(74)
    o, lse = at.call("flash_attention", nothing["q"], nothing["k"][:, :0], nothing["v"][:, :0])
    assert (o == 0).all()
    assert np.isneginf(lse).all()


def sources_run(patch: pytest.MonkeyPatch) -> list[str]:
    """Digests of what the emulator runs, as it runs them."""
    ran, run = list[str](), emulator.Kernel.run

    def noted(self: emulator.Kernel, *args: Any, **options: Any) -> Any:
        ran.append(self.source.digest)
        return run(self, *args, **options)

    patch.setattr(emulator.Kernel, "run", noted)
    return ran


def test_a_default_for_round_sizes_that_does_not_fit_some_of_them_runs_where_it_fits(
    at: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, ran = operators.load("streaming_attention"), sources_run(monkeypatch)
    kernels = set()
    for heads, kv_heads, queries in 2 * ((36, 4, 1), (18, 9, 9)):  # rounded, a head of keys has an even number of both
        for keys in (9, 10, 11, 12):
            sizes = {"batch": 1, "heads": heads, "kv_heads": kv_heads, "seq_q": queries, "seq_k": keys, "slots": keys}
            problem = operator.problem(128, window=1024, sinks=4, **sizes)
            arrays = operator.inputs(problem, np.random.default_rng(keys), "normal")
            q, k, v = (arrays[name] for name in "qkv")
            o, lse = at.call("streaming_attention", q, k, v, window=1024, sinks=4)
            assert all(error.ok for error in errors(operator, problem, arrays, {"o": o, "lse": lse}))
            instance = config_choice.choose(operator, problem, config_choice.any_gpu(), Snapshot.load([])).instance
            assert ran[-1] == render(instance, "host").digest
            kernels.add(ran[-1])
    assert len(kernels) > 1


def test_the_record_that_is_nearest_serves_each_length(chosen: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    mma = operators.implementation("flash_attention", "mma_sync")
    problems = [
        OPERATOR.problem(16, OPERATOR.problem().dtype.FP16, batch=1, heads=2, seq_q=9, seq_k=keys) for keys in (64, 256)
    ]
    default = mma.default(problems[0], ARCHES["sm_80"])
    configs = [config for config in list(mma.space(problems[0], ARCHES["sm_80"]))[:40] if config != default][:2]
    instances = [Instance(OPERATOR, mma, problem, config) for problem, config in zip(problems, configs, strict=True)]
    at = Dispatcher(served.snapshot(*instances, target="sm_80", arch="sm_80"))
    ran = sources_run(monkeypatch)
    for keys in (60, 61, 250, 251):
        at.call("flash_attention", **drawn(keys, queries=9))
    before = chosen.calls
    for keys, instance in zip((100, 127, 129, 200), np.repeat(np.array(instances), 2), strict=True):
        arrays = drawn(keys, queries=9)
        check(arrays, at.call("flash_attention", **arrays))
        assert ran[-1] == render(instance, "host").digest
    assert chosen.calls == before


def test_threads_may_call_with_new_lengths_at_once(at: Dispatcher, chosen: Counted) -> None:
    for keys in (96, 95):
        at.call("flash_attention", **drawn(keys))
    lengths = [*range(81, 95), *range(81, 95)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda keys: at.call("flash_attention", **drawn(keys)), lengths))
    for keys, outputs in zip(lengths, results, strict=True):
        check(drawn(keys), outputs)
    assert chosen.calls == 2
    assert sum(miss.calls for miss in at.misses()) == 2 + len(lengths)


def test_a_repeated_call_makes_no_tensor_map_and_a_new_length_only_those_that_changed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, chosen: Counted
) -> None:
    problem = OPERATOR.problem(32, batch=1, heads=2, kv_heads=2, seq_q=70, seq_k=90)
    instance = Instance.default(OPERATOR, WGMMA, problem, ARCHES["sm_90a"])
    driver.know(emulator.build(render(instance, "host"), checked=False))
    at = Dispatcher(served.snapshot(instance, target="H200", arch="sm_90a"))
    made: dict[tuple[Any, ...], Any] = {}

    def pooled(shape: Any, dtype: Any) -> ndarray:
        """Memory as from a pool: freed blocks are reused."""
        return made.setdefault((tuple(shape), np.dtype(dtype)), asarray(np.zeros(shape, dtype)))

    monkeypatch.setattr(sys.modules["cupy"], "empty", pooled)
    encoded = Counted(monkeypatch, tensor_map, "encoded")
    of_a_call = []
    q = asarray(drawn(90, queries=70, D=32, dtype=ml_dtypes.bfloat16)["q"])
    for keys in (90, 91, 92, 93, 94):
        arrays = drawn(keys, queries=70, D=32, dtype=ml_dtypes.bfloat16) | {"q": q.host.copy()}
        inputs = [q, *(asarray(arrays[name]) for name in "kv")]
        before = encoded.calls
        check(arrays, at.call("flash_attention", *inputs))
        of_a_call.append(encoded.calls - before)
        check(arrays, at.call("flash_attention", *inputs))
        assert encoded.calls - before == of_a_call[-1]
    assert of_a_call[3:] == [2, 2]  # of k and v
    assert chosen.calls == 2
