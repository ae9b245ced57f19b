"""Tests of jax.nn.dot_product_attention's signature, compared with jax.nn, and of Flax layers."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import tuner.jax  # noqa: E402
from tuner.errors import InputError  # noqa: E402

H = 12  # no multiple of 8
WHOLE = {"mask": np.tri(17, 33, dtype=bool) & (np.arange(33) != 3)}
LENGTHS = {"query_seq_lengths": np.array([17, 5], np.int32), "key_value_seq_lengths": np.array([0, 20], np.int32)}
HOLES = {"mask": (np.arange(66).reshape(2, 1, 1, 33) % 3 > 0)}
CALLS: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "causal, of more keys": ((17, 33), {"is_causal": True}),
    "causal, of more queries": ((33, 17), {"is_causal": True, "scale": 0.3}),
    "window, of queries without keys": ((33, 9), {"local_window_size": (4, 2)}),
    "causal window": ((33, 33), {"local_window_size": 5, "is_causal": True}),
    "lengths, one of them 0": ((17, 33), LENGTHS),
    "causal, keys left out": ((17, 33), {"is_causal": True, **HOLES}),
    "window, lengths and keys left out": ((17, 33), {"local_window_size": (3, 8), **HOLES, **LENGTHS}),
    "a mask of queries and keys": ((17, 33), WHOLE),
}


def drawn(queries: int, keys: int, dtype: Any = jnp.float32) -> list[Any]:
    shapes = (2, queries, 4, H), (2, keys, 2, H), (2, keys, 2, H)
    return [
        jax.random.normal(key, shape, dtype)
        for key, shape in zip(jax.random.split(jax.random.key(0), 3), shapes, strict=True)
    ]


def close(ours: Any, theirs: Any, atol: float = 2e-5) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=atol), ours, theirs)


def gradients(attend: Any, arrays: list[Any], options: dict[str, Any]) -> Any:
    """Of a loss that weights no two elements alike."""

    def loss(*rows: Any) -> Any:
        o = attend(*rows, **options)
        return (o * jnp.cos(jnp.arange(o.size)).reshape(o.shape)).sum()

    return jax.grad(loss, (0, 1, 2))(*arrays)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("error::tuner.jax.FallbackWarning")
def test_calls_are_those_of_jax(call: str) -> None:
    sizes, options = CALLS[call]
    arrays = drawn(*sizes)
    ours, theirs = (
        attend(*arrays, return_residual=True, **options)
        for attend in (tuner.jax.dot_product_attention, jax.nn.dot_product_attention)
    )
    close(ours, theirs)


@pytest.mark.parametrize("call", ["window, of queries without keys", "window, lengths and keys left out"])
@pytest.mark.filterwarnings("error::tuner.jax.FallbackWarning")
def test_gradients_are_those_of_jax(call: str) -> None:
    sizes, options = CALLS[call]
    arrays = drawn(*sizes)
    close(gradients(tuner.jax.dot_product_attention, arrays, options),
          gradients(jax.nn.dot_product_attention, arrays, options))  # fmt: skip


def test_one_sequence_needs_no_batch_and_16_bits_stay() -> None:
    q, k, v = (x[0] for x in drawn(17, 17, jnp.float16))
    o = tuner.jax.dot_product_attention(q, k, v, mask=HOLES["mask"][:1, ..., :17])
    assert (o.dtype, o.shape) == (q.dtype, q.shape)
    close(o, jax.nn.dot_product_attention(q, k, v, mask=HOLES["mask"][:1, ..., :17]), atol=2e-3)


def test_what_is_not_served_jax_computes_with_a_warning_or_is_refused() -> None:
    q, k, v = drawn(17, 33)
    bias = jnp.ones((1, 1, 17, 33))
    unserved: list[tuple[str, dict[str, Any]]] = [
        ("bias is not supported", {"bias": bias}),
        ("a scale that is traced or not positive", {"scale": 0}),
        ("a mask other than keys that are left out", {"mask": WHOLE["mask"][:, ::-1]}),
        ("local_window_size", {"local_window_size": (-1, 5)}),
    ]
    for reason, options in unserved:
        with pytest.warns(tuner.jax.FallbackWarning, match=reason):
            o = tuner.jax.dot_product_attention(q, k, v, **options)
        close(o, jax.nn.dot_product_attention(q, k, v, **options), atol=0)
        with pytest.raises(InputError, match=reason):
            tuner.jax.dot_product_attention(q, k, v, **options, implementation="kerntune")
    with pytest.warns(tuner.jax.FallbackWarning, match="a traced mask"):
        jax.jit(lambda mask: tuner.jax.dot_product_attention(q, k, v, mask=mask))(WHOLE["mask"])
    close(tuner.jax.dot_product_attention(q, k, v, bias, implementation="xla"), jax.nn.dot_product_attention(q, k, v))
    with pytest.raises(InputError, match="implementation 'flash': give None, 'kerntune', 'xla', 'cudnn'"):
        tuner.jax.dot_product_attention(q, k, v, implementation="flash")


def attention(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False, **_: Any) -> Any:
    mask = None if mask is None else mask.astype(bool)
    return tuner.jax.dot_product_attention(query, key, value, mask=mask, is_causal=is_causal, implementation="kerntune")


def test_a_layer_of_nnx_and_its_gradients() -> None:
    nnx = pytest.importorskip("flax.nnx")
    x, padding = jax.random.normal(jax.random.key(1), (2, 17, 24)), jnp.arange(17) < jnp.array([[17], [9]])

    def trained(**options: Any) -> Any:
        layer = nnx.MultiHeadAttention(2, 24, decode=False, rngs=nnx.Rngs(0), **options)

        @nnx.jit
        def step(layer: Any) -> Any:
            return nnx.value_and_grad(lambda layer: layer(x, mask=padding[:, None, None]).sum())(layer)

        loss, learned = step(layer)
        return loss, nnx.to_pure_dict(learned)

    close(trained(attention_fn=attention), trained())


def test_a_layer_of_linen() -> None:
    linen = pytest.importorskip("flax.linen")
    x = jax.random.normal(jax.random.key(1), (2, 17, 24))
    ours, theirs = (linen.MultiHeadDotProductAttention(2, **options) for options in ({"attention_fn": attention}, {}))
    learned = theirs.init(jax.random.key(2), x)
    mask = linen.make_causal_mask(x[..., 0])
    close(ours.apply(learned, x, mask=mask), theirs.apply(learned, x, mask=mask))
