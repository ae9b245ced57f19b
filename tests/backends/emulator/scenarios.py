"""Seven complete kernels, each on a problem with tails, run on the emulator and compared with float64."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from tests.backends.emulator.emulated import source
from tuner.backends.emulator import Buffer, Kernel, Mode, Run, build, tensor_map

BF16 = ml_dtypes.bfloat16
Replacements = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scenario:
    """A kernel, and how to run it: launch(kernel, mode) gives what happened and whether the numbers are right."""

    name: str
    launch: Callable[[Kernel, Mode], tuple[Run, bool]]
    arch: str  # the first that runs it

    def build(self, checked: bool, replace: Replacements = ()) -> Kernel:
        return build(source(f"{self.name}.cu", (self.name,), replace), checked=checked)


def scenarios() -> dict[str, Scenario]:
    hopper = (flash_attention, softmax, hopper_attention, hopper_gemm, multicast_gemm, shared_ring)
    result = dict.fromkeys(hopper, "sm_90a") | {blackwell_mlp: "sm_100a"}
    return {launch.__name__: Scenario(launch.__name__, launch, arch) for launch, arch in result.items()}


def flash_attention(kernel: Kernel, mode: Mode, T: int = 200) -> tuple[Run, bool]:
    H, D, BM, pitch = 2, 72, 64, 176
    q, k, v, o, lse = attention(H, T, D)
    with ExitStack() as stack:
        inputs = [stack.enter_context(Buffer.of(name, x)) for name, x in zip("qkv", (q, k, v), strict=True)]
        s_o = stack.enter_context(Buffer("o", o.size * 2, writable=True, initialized=False))
        s_lse = stack.enter_context(Buffer("lse", lse.size * 4, writable=True, initialized=False))
        scalars = [np.int32(T), np.float32(D**-0.5 * np.log2(np.e))]
        run = kernel.launch(
            "flash_attention", (-(-T // BM), H, 1), 128, 5 * 64 * pitch, [*inputs, s_o, s_lse, *scalars], mode
        )
        right = close(s_o.view(BF16, o.shape), o, 0.02) and close(s_lse.view(np.float32, lse.shape), lse, 1e-4)
    return run, right


def softmax(kernel: Kernel, mode: Mode) -> tuple[Run, bool]:
    rows, N = 6, 1000
    x = np.random.default_rng(1).standard_normal((rows, N)).astype(np.float32)
    y = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    y /= y.sum(1, keepdims=True)
    with ExitStack() as stack:
        s_x = stack.enter_context(Buffer.of("x", x))
        s_y = stack.enter_context(Buffer("y", x.nbytes, writable=True, initialized=False))
        s_sum = stack.enter_context(Buffer.of("column_sum", np.zeros(N, np.float32), writable=True))
        smem_bytes = 64 + 4 * N + 4 * 128
        run = kernel.launch("softmax", (rows, 1, 1), 128, smem_bytes, [s_x, s_y, s_sum, np.int32(N)], mode)
        right = close(s_y.view(np.float32, x.shape), y, 1e-6) and close(s_sum.view(np.float32, (N,)), y.sum(0), 1e-6)
    return run, right


def hopper_attention(kernel: Kernel, mode: Mode, T: int = 200) -> tuple[Run, bool]:
    H, D, tile = 2, 64, 8192
    q, k, v, o, _ = attention(H, T, D)
    with ExitStack() as stack:
        maps = []
        for name, x in zip("qkv", (q, k, v), strict=True):
            buffer = stack.enter_context(Buffer.of(name, x))
            maps.append(tensor_map(buffer, buffer.view(BF16, x.shape), (1, 64, 64), swizzle=128))
        s_o = stack.enter_context(Buffer("o", o.size * 2, writable=True, initialized=False))
        scalars = [np.int32(T), np.float32(D**-0.5 * np.log2(np.e))]
        run = kernel.launch("hopper_attention", (-(-T // 64), H, 1), 256, 5 * tile + 40, [*maps, s_o, *scalars], mode)
        return run, close(s_o.view(BF16, o.shape), o, 0.02)


def hopper_gemm(kernel: Kernel, mode: Mode) -> tuple[Run, bool]:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((rows, 64)).astype(BF16) for rows in (192, 64))
    c = 2 * a.astype(np.float64) @ b.astype(np.float64).T
    with ExitStack() as stack:
        s_a, s_b = (stack.enter_context(Buffer.of(name, x)) for name, x in (("a", a), ("b", b)))
        s_c = stack.enter_context(Buffer("c", c.size * 4, writable=True, initialized=False))
        view = s_c.view(np.float32, c.shape)
        maps = (
            tensor_map(s_b, s_b.view(BF16, b.shape), (64, 64), swizzle=128),
            tensor_map(s_c, view, (64, 32), swizzle=128),
        )
        run = kernel.launch("hopper_gemm", (3, 1, 1), 128, 5 * 8192 + 1024, [s_a, *maps], mode)
        return run, close(view, c, 1e-4)


def multicast_gemm(kernel: Kernel, mode: Mode, M: int = 200, K: int = 256) -> tuple[Run, bool]:
    a, b, c = gemm(M, K)
    with ExitStack() as stack:
        s_a, s_b = (stack.enter_context(Buffer.of(name, x)) for name, x in (("a", a), ("b", b)))
        s_c = stack.enter_context(Buffer("c", M * 64 * 4, writable=True, initialized=False))
        boxes = ((s_a, a, (64, 64)), (s_b, b, (32, 64)))
        maps = [tensor_map(buffer, buffer.view(BF16, x.shape), box, swizzle=128) for buffer, x, box in boxes]
        arguments = [*maps, s_c, np.int32(M), np.int32(K)]
        run = kernel.launch("multicast_gemm", (4, 1, 1), 160, 4 * 8192 + 32, arguments, mode, cluster=2)
        return run, close(s_c.view(np.float32, c.shape), c, 1e-4)


def shared_ring(kernel: Kernel, mode: Mode, n: int = 320) -> tuple[Run, bool]:
    x = np.arange(n, dtype=np.int32)
    with Buffer.of("x", x) as s_x, Buffer("y", 2 * x.nbytes, writable=True, initialized=False) as s_y:
        run = kernel.launch("shared_ring", (2, 1, 1), 64, 4 * 128 + 64, [s_x, s_y, np.int32(n)], mode, cluster=2)
        return run, bool((s_y.view(np.int32, (2, n)) == 2 * x + 1).all())


def blackwell_mlp(kernel: Kernel, mode: Mode, M: int = 200, N: int = 256) -> tuple[Run, bool]:
    a, b, c, y = mlp(M, N)
    with ExitStack() as stack:
        s_a, s_b, s_c = (stack.enter_context(Buffer.of(name, x)) for name, x in (("a", a), ("b", b), ("c", c)))
        s_y = stack.enter_context(Buffer("y", M * 64 * 4, writable=True, initialized=False))
        maps = [tensor_map(stride, stride.view(BF16, (N, 64)), (64, 64), swizzle=128) for stride in (s_b, s_c)]
        arguments = [s_a, *maps, s_y, np.int32(M), np.int32(N)]
        run = kernel.launch("blackwell_mlp", (2, 1, 1), 192, 6 * 8192 + 80, arguments, mode)
        return run, close(s_y.view(np.float32, y.shape), y, 0)


@cache
def mlp(M: int, N: int) -> tuple[np.ndarray, ...]:
    """Return a [M][64], b and c [N][64] in bf16, of integers so small that sums and their rounding to bf16 are exact;
    y.
    """
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(-1, 2, (rows, 64)).astype(BF16) for rows in (M, N, N))
    y = np.maximum(a.astype(np.float64) @ b.astype(np.float64).T, 0) @ c.astype(np.float64)
    return a, b, c, y


@cache
def gemm(M: int, K: int) -> tuple[np.ndarray, ...]:
    """a [M][K] and b [64][K] in bf16, of integers, and their product, which is exact."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, (rows, K)).astype(BF16) for rows in (M, 64))
    return a, b, a.astype(np.float64) @ b.astype(np.float64).T


@cache
def attention(H: int, T: int, D: int) -> tuple[np.ndarray, ...]:
    """q, k, v in bf16; o and lse of causal attention in float64."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((H, T, D)).astype(BF16) for _ in range(3))
    scores = np.einsum("htd,hsd->hts", q.astype(np.float64), k.astype(np.float64)) * D**-0.5
    scores[:, np.triu(np.ones((T, T), bool), 1)] = -np.inf
    largest = scores.max(-1, keepdims=True)
    p = np.exp(scores - largest)
    total = p.sum(-1, keepdims=True)
    return q, k, v, p @ v.astype(np.float64) / total, (largest + np.log(total))[..., 0]


def close(actual: np.ndarray, exact: np.ndarray, largest: float) -> bool:
    return bool(np.abs(actual.astype(np.float64) - exact).max() <= largest)  # False for NaN
