"""A code-generating CUDA kernel autotuner: search, check, store, report and serve kernels."""

__version__ = "0.1.0"
