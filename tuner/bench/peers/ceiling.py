"""The peak tensor-core rate of a GPU: a large matrix product by the framework."""

import time

import numpy as np

from tuner.bench.peers.base import gpu_torch

_WARM_S, _TIMES = 0.1, 10  # the time that clocks take to rise from idle


def matmul_tflop_s(size: int = 8192) -> float:
    """Return the rate in TFLOP/s of a large bf16 product on random data, on a warmed-up device.

    Raises AbsentError if torch has no GPU.
    """
    torch = gpu_torch()
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def milliseconds() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.matmul(a, b)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    milliseconds()  # loads the kernels
    warm = time.monotonic() + _WARM_S
    while time.monotonic() < warm:
        milliseconds()
    return float(2e-9 * size**3 / np.median([milliseconds() for _ in range(_TIMES)]))
