"""Tests of JAX programs on our operators: eager, jit, grad and vmap, compared with JAX."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import tuner.jax  # noqa: E402
from tuner import dispatcher  # noqa: E402
from tuner.errors import InputError  # noqa: E402

T, H, D = 33, 4, 24


def drawn(*shapes: tuple[int, ...], dtype: Any = jnp.float32) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


def rows(kv_heads: int = H, dtype: Any = jnp.float32) -> list[Any]:
    return drawn((2, T, H, D), (2, T, kv_heads, D), (2, T, kv_heads, D), dtype=dtype)


def ours(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return tuner.jax.flash_attention(q, k, v, **options)[0]


def theirs(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal)


def gradients(attend: Any, *arrays: Any) -> Any:
    """By all arrays, of a loss that weights no two elements alike."""

    def loss(*each: Any) -> Any:
        o = attend(*each)
        return (o * jnp.arange(o.size, dtype=jnp.float32).reshape(o.shape)).sum() / o.size

    return jax.jit(jax.grad(loss, argnums=tuple(range(len(arrays)))))(*arrays)


def close(found: Any, right: Any, atol: float = 1e-5) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), found, right)


@pytest.mark.parametrize("kv_heads", [H, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients_are_jaxs(causal: bool, kv_heads: int) -> None:
    arrays = rows(kv_heads)
    o = ours(*arrays, causal=causal)
    assert isinstance(o, jax.Array)
    close(o, theirs(*arrays, causal=causal))
    close(
        gradients(lambda *each: ours(*each, causal=causal), *arrays),
        gradients(lambda *each: theirs(*each, causal=causal), *arrays),
    )


def test_both_outputs_have_gradients() -> None:
    def summed(q: Any, k: Any, v: Any) -> Any:
        o, lse = tuner.jax.flash_attention(q, k, v)
        return o.sum() + (lse * lse).sum()

    def right(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("bthd,bshd->bhts", q, k) * D**-0.5
        lse = jax.nn.logsumexp(s, -1)
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(s), v).sum() + (lse * lse).sum()

    close(jax.grad(summed, (0, 1, 2))(*rows()), jax.grad(right, (0, 1, 2))(*rows()), atol=5e-5)


def test_bf16_stays_bf16() -> None:
    arrays = rows(dtype=jnp.bfloat16)
    o = jax.jit(ours)(*arrays)
    assert o.dtype == jnp.bfloat16
    close(o.astype(jnp.float32), theirs(*(array.astype(jnp.float32) for array in arrays)), atol=2e-2)
    assert {gradient.dtype for gradient in gradients(ours, *arrays)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("axis", [0, 2])
def test_a_mapped_axis_becomes_the_batch_of_one_call(axis: int) -> None:
    q, k, v = (row[:, : 30 + axis] for row in rows())  # of a length that nobody else calls
    many = jnp.stack([q, 2 * q, 3 * q], axis)
    result = jax.block_until_ready(jax.vmap(lambda query: ours(query, k, v), in_axes=axis)(many))
    called = [miss.problem["batch"] for miss in dispatcher.misses() if miss.problem.get("seq_q") == 30 + axis]
    assert called == [6]
    close(result, jax.vmap(lambda query: theirs(query, k, v), in_axes=axis)(many))


def test_gradients_are_mapped_and_mapped_calls_have_gradients() -> None:
    many = [jnp.stack([row, 0.5 * row]) for row in rows()]
    close(jax.vmap(jax.grad(lambda *each: ours(*each).sum(), (0, 1, 2)))(*many),
          jax.vmap(jax.grad(lambda *each: theirs(*each).sum(), (0, 1, 2)))(*many))  # fmt: skip
    close(gradients(jax.vmap(ours), *many), gradients(jax.vmap(theirs), *many))


def packed(q: Any, k: Any, v: Any) -> Any:
    bounds = jnp.array([0, 13, T], jnp.int32)
    return tuner.jax.flash_attention(q, k, v, bounds, bounds)[0]


def apart(q: Any, k: Any, v: Any) -> Any:
    return jnp.concatenate(
        [theirs(*(tensor[:, part] for tensor in (q, k, v))) for part in (slice(13), slice(13, T))], 1
    )


def test_packed_sequences_are_served_and_mapped_one_by_one() -> None:
    arrays = [row[:1] for row in rows()]
    close(packed(*arrays), apart(*arrays))
    close(gradients(packed, *arrays), gradients(apart, *arrays))
    many = [jnp.stack([array, 0.5 * array]) for array in arrays]
    close(jax.vmap(packed)(*many), jax.vmap(apart)(*many))


def delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[Any, Any]:
    """Kimi Delta Attention, token by token; tokens first."""

    def step(state: Any, x: Any) -> tuple[Any, Any]:
        q, k, v, g, beta = x
        state = state * jnp.exp(g)[..., None]
        error = (v - jnp.einsum("bhkv,bhk->bhv", state, k)) * beta[..., None]
        state = state + jnp.einsum("bhk,bhv->bhkv", k, error)
        return state, jnp.einsum("bhkv,bhk->bhv", state, q) * q.shape[-1] ** -0.5

    last, o = jax.lax.scan(step, state, [jnp.moveaxis(tensor, 1, 0) for tensor in (q, k, v, g, beta)])
    return jnp.moveaxis(o, 0, 1), last


def test_kda_and_its_gradients_are_those_of_the_recurrence() -> None:
    q, k, v, g, beta, state = drawn(
        (2, 20, 2, 16), (2, 20, 2, 16), (2, 20, 2, 16), (2, 20, 2, 16), (2, 20, 2), (2, 2, 16, 16)
    )
    k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
    arrays = (q, k, v, -jnp.abs(g) / 4, jax.nn.sigmoid(beta), state)

    def summed(call: Any) -> Any:
        def loss(*each: Any) -> Any:
            o, last = call(*each)
            return (o * o).sum() + (last * jnp.cos(jnp.arange(last.size)).reshape(last.shape)).sum()

        return jax.jit(jax.grad(loss, range(6)))

    def kda(*each: Any) -> Any:
        return tuner.jax.kda(*each[:5], initial_state=each[5], output_final_state=True)

    close(kda(*arrays), delta_rule(*arrays))
    close(summed(kda)(*arrays), summed(delta_rule)(*arrays), atol=5e-5)


def test_linear_attention_and_its_gradients_are_those_of_the_sums() -> None:
    arrays = drawn((1, 40, 2, 8), (1, 40, 2, 8), (1, 40, 2, 8))

    def right(q: Any, k: Any, v: Any) -> Any:
        weight = jax.nn.sigmoid(k)
        decay = jnp.tril(0.9 ** (jnp.arange(40)[:, None] - jnp.arange(40)))
        return q * jnp.einsum("ts,bshd->bthd", decay, weight * v) / jnp.einsum("ts,bshd->bthd", decay, weight)

    def linear(q: Any, k: Any, v: Any) -> Any:
        return tuner.jax.linear_attention(q, k, v, 0.9)[0]

    close(linear(*arrays), right(*arrays))
    close(gradients(linear, *arrays), gradients(right, *arrays))


@pytest.mark.parametrize("under", [jax.jit, jax.vmap, jax.grad])
def test_a_tracer_is_told_where_to_go(under: Any) -> None:
    with pytest.raises(InputError, match=r"q is traced by JAX, in jit, grad or vmap: call the function of tuner.jax"):
        under(lambda q: dispatcher.flash_attention(q, *rows()[1:])[0].sum())(rows()[0])


def test_eager_calls_of_the_dispatcher_return_jaxs_arrays() -> None:
    o, lse = dispatcher.flash_attention(*rows(dtype=jnp.bfloat16))
    assert isinstance(o, jax.Array) and isinstance(lse, jax.Array)
    assert (o.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    close(o, ours(*rows(dtype=jnp.bfloat16)), atol=0)


def test_what_does_not_fit_is_refused_while_it_is_traced() -> None:
    q, k, v = rows()
    with pytest.raises(InputError, match=r"v \[.*\] = \(2, 5, 4, 24\): seq_k is 5, but 33 in k"):
        jax.jit(ours)(q, k, v[:, :5])
    with pytest.raises(InputError, match="head_dim 20"):
        jax.jit(ours)(q[..., :20], k[..., :20], v)
    with pytest.raises(InputError, match="k is bf16"):
        ours(q, k.astype(jnp.bfloat16), v)
    with pytest.raises(InputError, match="must be positive and finite, as a number"):
        jax.jit(lambda scale: ours(q, k, v, softmax_scale=scale))(0.5)


def test_what_would_be_updated_in_place_is_refused() -> None:
    q, k, v, g, beta, pool = drawn(
        (1, 1, 2, 16), (1, 1, 2, 16), (1, 1, 2, 16), (1, 1, 2, 16), (1, 1, 2), (1, 2, 16, 16)
    )
    with pytest.raises(InputError, match="kda would update state_pool in place, and JAX's arrays never change"):
        tuner.jax.kda(q, k, v, -jnp.abs(g), beta, initial_state=pool, inplace_final_state=True)


def test_an_operator_without_gradients_says_so() -> None:
    q, pages = jnp.zeros((1, 1, 2, 16)), jnp.zeros((3, 16, 2, 16))
    table, lengths = jnp.zeros((1, 2), jnp.int32), jnp.ones(1, jnp.int32)
    with pytest.raises(InputError, match="paged_attention has no gradient"):
        jax.grad(lambda q: tuner.jax.paged_attention(q, pages, pages, table, lengths)[0].sum())(q)


UNREAD = """
import jax.numpy as jnp
import tuner.jax
q = jnp.ones((1, 16, 2, 72))
o, lse = tuner.jax.flash_attention(q, q, q)
"""


def test_a_program_may_end_while_a_call_runs() -> None:
    done = subprocess.run([sys.executable, "-c", UNREAD], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr


def test_an_error_at_run_time_keeps_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_STRICT", "1")
    dispatcher.reload()
    try:
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"UsageError: .*tuner search flash_attention"):
            jax.block_until_ready(jax.jit(ours)(*rows()))
    finally:
        monkeypatch.undo()
        dispatcher.reload()
