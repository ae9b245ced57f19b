"""A code-generating CUDA kernel autotuner: search, check, store, report and serve kernels."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.foreign.tune import tune_kernel as tune_kernel

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`tuner.tune_kernel`, loaded when it is asked for: an application that only runs kernels needs none of it."""
    if name == "tune_kernel":
        from tuner.foreign.tune import tune_kernel

        return tune_kernel
    raise AttributeError(f"module 'tuner' has no attribute {name!r}")
