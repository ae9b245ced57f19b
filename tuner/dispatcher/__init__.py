"""The dispatcher for applications: arrays in, the best available kernel, outputs of the same framework.

    from tuner import dispatcher
    o, lse = dispatcher.flash_attention(q, k, v, causal=True)

Every operator is a function here. Arrays on a GPU run there; NumPy arrays, and torch tensors on the CPU, run the same
generated kernel on the emulator.
"""

from typing import Any

from tuner import operators
from tuner.dispatcher.calls import Dispatcher
from tuner.dispatcher.config_choice import Explanation
from tuner.dispatcher.functions import explain, function, misses, reload, warmup
from tuner.dispatcher.untuned_warnings import Miss, UntunedWarning
from tuner.errors import suggestion

__all__ = ["Dispatcher", "Explanation", "Miss", "UntunedWarning", "explain", "misses", "reload", "warmup"]


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in operators.names():
        raise AttributeError(f"no operator {name!r}: {suggestion(name, operators.names(), 'tuner operators')}")
    return globals().setdefault(name, function(operators.load(name)))


def __dir__() -> list[str]:
    return sorted({*__all__, *operators.names()})
