"""Every operator as a function that JAX transforms: jit, grad, vmap.

    import tuner.jax
    o, lse = tuner.jax.flash_attention(q, k, v, causal=True)  # jax.Arrays in, jax.Arrays out

`tuner.jax.<operator>` takes what `tuner.dispatcher.<operator>` takes. Arrays on the CPU run the generated kernel on the
emulator, arrays on a GPU run there on XLA's stream. flash_attention, streaming_attention, kda and linear_attention have
gradients (reverse mode, first order). `jax.vmap` folds its axis into the batch where all of its arrays have one, and
calls once an element otherwise. jit on sharded arrays, and jax.shard_map, compute each device's own part. Arrays that
an operator would update in place are refused, since JAX's never change. `dot_product_attention` takes what jax.nn's
takes.
"""

from typing import Any

from tuner import operators

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError("tuner.jax needs JAX: pip install jax", name="jax") from error

from tuner.jax.attention import FallbackWarning, dot_product_attention
from tuner.jax.functions import function

__all__ = ["FallbackWarning", "dot_product_attention"]


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in operators.names():
        raise AttributeError(f"no operator {name!r} (known: {', '.join(operators.names())})")
    return globals().setdefault(name, function(operators.load(name)))


def __dir__() -> list[str]:
    return sorted([*__all__, *operators.names()])
