"""What the tensor cores of a GPU do at best: a large product by the framework."""

import numpy as np

from tuner.bench.peers.base import gpu_torch


def matmul_tflop_s(size: int = 8192) -> float:
    """The rate of a large bf16 product on random data, in 1e12 a second. Raises AbsentError where torch has no GPU."""
    torch = gpu_torch()
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.matmul(a, b)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(2e-9 * size**3 / np.median(times[3:]))
