"""Tests of sharded arrays: each device computes its own sequences and heads, in jit and in shard_map."""

import re
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import tuner.jax  # noqa: E402
from tuner.errors import InputError  # noqa: E402

if len(jax.devices()) < 4:
    pytest.skip("four devices are needed", allow_module_level=True)
ROWS, HEADS = P("data", None, "model"), P("model")
GATHERS = re.compile(r" (all-gather|all-to-all|collective-permute)\(")


def drawn(kv_heads: int = 2) -> list[Any]:
    shapes = (4, 16, 4, 16), (4, 16, kv_heads, 16), (4, 16, kv_heads, 16), (4,)
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def mesh(kind: AxisType) -> Any:
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind,) * 2)


def loss(q: Any, k: Any, v: Any, s_aux: Any) -> Any:
    o, lse = tuner.jax.flash_attention(q, k, v, s_aux=s_aux, causal=True)
    return (o * o * o).sum() + (lse * lse).sum()


gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))


def close(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-4), ours, theirs)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_nothing_is_gathered_for_sequences_and_heads(kind: AxisType) -> None:
    """The gradient of s_aux, which all sequences share, is summed over their devices."""
    arrays, devices = drawn(), mesh(kind)
    shardings = [NamedSharding(devices, spec) for spec in (ROWS, ROWS, ROWS, HEADS)]
    sharded = [jax.device_put(x, sharding) for x, sharding in zip(arrays, shardings, strict=True)]
    assert not GATHERS.search(gradients.lower(*sharded).compile().as_text())
    results = gradients(*sharded)
    close(results, gradients(*arrays))
    assert all(x.sharding.is_equivalent_to(s, x.ndim) for x, s in zip(results, shardings, strict=True))
    o, lse = tuner.jax.flash_attention(*sharded[:3], causal=True)  # outside of jit too
    assert o.sharding.is_equivalent_to(shardings[0], 4)
    assert lse.sharding.is_equivalent_to(NamedSharding(devices, P("data", "model")), 3)


def test_heads_that_devices_cannot_divide_are_replicated() -> None:
    arrays, devices = drawn(kv_heads=1), mesh(AxisType.Auto)
    specs = ROWS, P("data"), P("data"), HEADS
    sharded = [jax.device_put(x, NamedSharding(devices, spec)) for x, spec in zip(arrays, specs, strict=True)]
    close(gradients(*sharded), gradients(*arrays))
    along = [jax.device_put(x, NamedSharding(devices, P(None, "data"))) for x in arrays[:3]]  # over tokens
    close(tuner.jax.flash_attention(*along), tuner.jax.flash_attention(*arrays[:3]))


@pytest.mark.parametrize("manual", [("data", "model"), ("data",)])
def test_gradients_flow_through_shard_map(manual: tuple[str, ...]) -> None:
    """Those of k, v and s_aux, which the devices along `model` or all of them share, are summed."""
    arrays = drawn()
    queries = P("data", *[None, "model"] * ("model" in manual))
    if "model" in manual:  # of two heads that a device has, and one that keys have
        specs = queries, queries, queries, P("model")
    else:
        specs = queries, P("data"), P("data"), P()

    def summed(*rows: Any) -> Any:
        return jax.lax.psum(loss(*rows), manual)

    over_devices = jax.shard_map(
        summed, mesh=mesh(AxisType.Auto), in_specs=specs, out_specs=P(), axis_names=set(manual)
    )
    close(jax.jit(jax.grad(over_devices, (0, 1, 2, 3)))(*arrays), gradients(*arrays))


def test_derivatives_that_are_not_served_are_named() -> None:
    arrays = drawn()
    for derivative in (jax.hessian(loss), jax.grad(lambda *rows: jax.grad(loss)(*rows).sum())):
        with pytest.raises(InputError, match=r"flash_attention has first derivatives in reverse mode only: jax\.hes"):
            derivative(*arrays)
