"""Micro kernels: one call per primitive, with integer-valued inputs and the results that NumPy computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.backends.emulator.emulated import Call, Uninitialized

BF16, FP16, E4M3 = ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Micro:
    """A call, the first arch that has the primitive, and its outputs as a function of its inputs."""

    name: str
    arch: str
    call: Call
    expected: Callable[[Arrays], Arrays]


def integers(seed: int, shape: tuple[int, ...], dtype: object, low: int = -4, high: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def micros() -> list[Micro]:
    return [
        *_conversions(),
        *_matrices(),
        *_products(),
        *_threads(),
        *_blocks(),
        *_hopper(),
        *_wgmma(),
        *_clusters(),
        *_pairs(),
        *_tensor_memory(),
        *_tcgen05(),
    ]


def sm80(entry: str, inputs: Arrays, outputs: Mapping[str, np.ndarray | Uninitialized], **rest: object) -> Call:
    return Call("primitives_sm80.cu", entry, inputs, outputs, **rest)  # type: ignore[arg-type]


def sm90(entry: str, inputs: Arrays, outputs: Mapping[str, np.ndarray | Uninitialized], **rest: object) -> Call:
    return Call("primitives_sm90.cu", entry, inputs, outputs, **rest)  # type: ignore[arg-type]


def sm100(entry: str, inputs: Arrays, outputs: Mapping[str, np.ndarray | Uninitialized], **rest: object) -> Call:
    return Call("primitives_sm100.cu", entry, inputs, outputs, threads=128, **rest)  # type: ignore[arg-type]


def cluster(entry: str, inputs: Arrays, outputs: Mapping[str, np.ndarray | Uninitialized], **rest: object) -> Call:
    return Call("primitives_cluster.cu", entry, inputs, outputs, **rest)  # type: ignore[arg-type]


def _conversions() -> list[Micro]:
    every = np.arange(65536, dtype=np.uint16)
    b, h = every.view(BF16).astype(np.float32), every.view(FP16).astype(np.float32)
    finite = every[~(np.isnan(b) | np.isnan(h))]
    x = np.concatenate([integers(0, (2048,), np.float32, -70000, 70000), *_halfway_values()])

    def converted(inputs: Arrays) -> Arrays:
        with np.errstate(over="ignore"):
            halves = [inputs["x"].astype(kind) for kind in (BF16, FP16)]
            negated = [(-inputs["x"]).astype(kind) for kind in (BF16, FP16)]
        words = [
            lo.view(np.uint16).astype(np.uint32) | hi.view(np.uint16).astype(np.uint32) << 16
            for lo, hi in zip(halves, negated, strict=True)
        ]
        back = [part.astype(np.float32) for pair in zip(halves, negated, strict=True) for part in pair]
        return {"b": halves[0], "h": halves[1], "packed": np.stack(words, 1), "back": np.stack(back, 1)}

    def widened(inputs: Arrays) -> Arrays:
        return {"b": inputs["bits"].view(BF16).astype(np.float32), "h": inputs["bits"].view(FP16).astype(np.float32)}

    def rounded(inputs: Arrays) -> Arrays:
        return {"y": (inputs["x"].view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)}

    n = len(x)
    convert_outputs = {
        "b": Uninitialized(BF16, (n,)),
        "h": Uninitialized(FP16, (n,)),
        "packed": Uninitialized(np.uint32, (n, 2)),
        "back": Uninitialized(np.float32, (n, 4)),
    }
    m = len(finite)
    widen_outputs = {"b": Uninitialized(np.float32, (m,)), "h": Uninitialized(np.float32, (m,))}
    per_thread = {"threads": 256}
    return [
        Micro(
            "convert",
            "sm_80",
            sm80("convert", {"x": x}, convert_outputs, scalars=(np.int32(n),), grid=(-(-n // 256), 1, 1), **per_thread),
            converted,
        ),
        Micro(
            "widen",
            "sm_80",
            sm80(
                "widen",
                {"bits": finite},
                widen_outputs,
                scalars=(np.int32(m),),
                grid=(-(-m // 256), 1, 1),
                **per_thread,
            ),
            widened,
        ),
        Micro(
            "round_tf32",
            "sm_80",
            sm80(
                "round_to_tf32",
                {"x": x},
                {"y": Uninitialized(np.uint32, (n,))},
                scalars=(np.int32(n),),
                grid=(-(-n // 256), 1, 1),
                **per_thread,
            ),
            rounded,
        ),
        *_bytes(),
    ]


def _bytes() -> list[Micro]:
    """Every byte in every place of a register, by integers and, since sm_89, by an instruction."""
    every = np.arange(256, dtype=np.uint8)
    four = np.stack([np.roll(every, 37 * i) for i in range(4)], axis=1)

    def widened(inputs: Arrays) -> Arrays:
        values = inputs["four"].view(np.uint8).reshape(-1, 4).view(E4M3).astype(np.float32)
        halves = [_one_nan(values.astype(kind)).astype(np.uint32) for kind in (FP16, BF16)]
        in_order, apart = ((0, 1), (2, 3)), ((0, 2), (1, 3))
        pairs = [bits[:, i] | bits[:, j] << 16 for bits in halves for order in (in_order, apart) for i, j in order]
        return {"pairs": np.stack(pairs, axis=1), "values": values}

    outputs = {"pairs": Uninitialized(np.uint32, (256, 8)), "values": Uninitialized(np.float32, (256, 4))}
    inputs = {"four": four.view(np.uint32)[:, 0]}
    call = sm80("convert_bytes", inputs, outputs, scalars=(np.int32(256),), grid=(2, 1, 1), threads=128)
    return [Micro(f"convert_bytes_{arch}", arch, call, widened) for arch in ("sm_80", "sm_89")]


def _one_nan(halves: np.ndarray) -> np.ndarray:
    """Their bits, with the one NaN that conversions give."""
    return np.where(np.isnan(halves), np.uint16(0x7FFF), halves.view(np.uint16))


def _halfway_values() -> list[np.ndarray]:
    """Values half-way between two of bf16 and of fp16, which round to even."""
    upper = np.arange(0x3F80, 0x4080, dtype=np.uint32)
    bf16 = (upper << 16 | 0x8000).view(np.float32)
    fp16 = (upper << 13 | 0x1000 | 0x38000000).astype(np.uint32).view(np.float32)
    return [bf16, fp16]


def _matrices() -> list[Micro]:
    tiles = np.arange(256, dtype=np.uint16).reshape(32, 8)

    def loaded(inputs: Arrays) -> Arrays:
        out = np.zeros((6, 32, 4), np.uint32)
        matrices = inputs["in"].reshape(4, 8, 8)
        for variant in range(6):
            for i in range((1, 2, 4)[variant % 3]):
                matrix = matrices[i].T if variant >= 3 else matrices[i]
                pairs = np.ascontiguousarray(matrix).reshape(32, 2).astype(np.uint32)
                out[variant, :, i] = pairs[:, 0] | pairs[:, 1] << 16
        return {"out": out}

    words = np.random.default_rng(1).integers(0, 2**32, (32, 4), np.uint32)

    def stored(inputs: Arrays) -> Arrays:
        out = np.zeros((6, 32, 8), np.uint16)
        for variant in range(6):
            for i in range((1, 2, 4)[variant % 3]):
                matrix = np.ascontiguousarray(inputs["in"][:, i]).view(np.uint16).reshape(8, 8)
                out[variant, 8 * i : 8 * i + 8] = matrix.T if variant >= 3 else matrix
        return {"out": out}

    def transposed(inputs: Arrays) -> Arrays:
        matrix = np.ascontiguousarray(inputs["in"]).view(np.uint16).reshape(8, 8)
        return {"out": np.ascontiguousarray(matrix.T).view(np.uint32).reshape(32)}

    return [
        Micro(
            "movmatrix",
            "sm_80",
            sm80("transpose", {"in": words[:, 0].copy()}, {"out": Uninitialized(np.uint32, (32,))}),
            transposed,
        ),
        Micro(
            "ldmatrix",
            "sm_80",
            sm80("load_matrices", {"in": tiles}, {"out": Uninitialized(np.uint32, (6, 32, 4))}, smem_bytes=512),
            loaded,
        ),
        Micro(
            "stmatrix",
            "sm_90a",
            sm90("store_matrices", {"in": words}, {"out": Uninitialized(np.uint16, (6, 32, 8))}, smem_bytes=512),
            stored,
        ),
    ]


def _multiplied(inputs: Arrays) -> Arrays:
    a, b = (inputs[name].astype(np.float64) for name in "ab")
    return {"d": (inputs["c"] + a @ b).astype(np.float32) if "c" in inputs else (a @ b).astype(np.float32)}


def _products() -> list[Micro]:
    shapes = {
        "mma_k16_bf16": (16, BF16),
        "mma_k16_fp16": (16, FP16),
        "mma_k8_bf16": (8, BF16),
        "mma_k8_fp16": (8, FP16),
        "mma_k8_tf32": (8, np.float32),
    }
    return [
        Micro(
            entry,
            "sm_80",
            sm80(
                entry,
                {
                    "a": integers(2, (16, k), dtype),
                    "b": integers(3, (k, 8), dtype),
                    "c": integers(4, (16, 8), np.float32),
                },
                {"d": Uninitialized(np.float32, (16, 8))},
            ),
            _multiplied,
        )
        for entry, (k, dtype) in shapes.items()
    ]


def _threads() -> list[Micro]:
    source = integers(5, (512,), np.uint8, 0, 256)
    values = integers(6, (32,), np.int32, -9, 10)
    return [
        Micro(
            "cp_async",
            "sm_80",
            sm80("copy_partly", {"in": source}, {"out": Uninitialized(np.uint8, (32, 48))}, smem_bytes=32 * 48),
            _copied_partly,
        ),
        Micro(
            "warp_functions",
            "sm_80",
            sm80("warp_functions", {"in": values}, {"out": np.zeros((20, 32), np.int32)}),
            _warp_functions,
        ),
    ]


def _copied_partly(inputs: Arrays) -> Arrays:
    out = np.zeros((32, 48), np.uint8)
    for lane in range(32):
        for at, size, count in ((0, 16, lane % 17), (16, 8, lane % 9), (24, 8, 8), (32, 4, lane % 5), (36, 4, 4)):
            out[lane, at : at + count] = inputs["in"][lane * size : lane * size + count]
    return {"out": out}


def _warp_functions(inputs: Arrays) -> Arrays:
    x, lane = inputs["in"], np.arange(32)
    unsigned = x.view(np.uint32)
    halves = x.reshape(2, 16)
    up = np.where(lane >= 3, lane - 3, lane)
    up16 = np.where(lane % 16 >= 3, lane - 3, lane)
    down = np.where(lane < 30, lane + 2, lane)
    down4 = np.where(lane % 4 < 2, lane + 2, lane)
    rows = [
        x[np.full(32, 5)], x[lane // 8 * 8 + (lane + 7) % 8], x[up], x[up16], x[down], x[down4],
        x[lane ^ 9], x[lane ^ 5],
        np.full(32, int((x > 0) @ (1 << lane.astype(np.uint64)))),
        np.repeat((halves == 3).any(1), 16), np.repeat((halves > -100).all(1), 16), np.full(32, x.sum()),
        np.repeat(halves.sum(1), 16), np.full(32, x.min()), np.full(32, x.max()),
        np.full(32, unsigned.max()), np.full(32, np.bitwise_and.reduce(unsigned)),
        np.repeat(np.bitwise_or.reduce(unsigned.reshape(2, 16), 1), 16), np.full(32, np.bitwise_xor.reduce(unsigned)),
    ]  # fmt: skip
    out = np.zeros((20, 32), np.int32)
    out[:19] = np.stack([row.astype(np.uint64).astype(np.uint32).view(np.int32) for row in rows])
    out[19, :8] = 1
    return {"out": out}


def _blocks() -> list[Micro]:
    values = integers(7, (256,), np.int32, -9, 10)
    bins = integers(8, (1000,), np.int32, 0, 16)
    rows = integers(9, (40, 32), np.int32, -9, 10)
    ones = {"arrived": np.zeros(1, np.uint32)}

    def block_functions(inputs: Arrays) -> Arrays:
        squares = inputs["in"][:32] ** 2 + np.arange(4)[:, None]
        return {"out": np.concatenate([[inputs["in"].sum()], squares.ravel()]).astype(np.int32)}

    def counted(inputs: Arrays) -> Arrays:
        histogram = np.bincount(inputs["in"], minlength=16).astype(np.int32)
        return {"histogram": histogram, "tickets": np.array([8], np.uint32), "drawn": np.ones(8, np.int32)}

    def scanned(inputs: Arrays) -> Arrays:
        sums = inputs["in"].ravel().cumsum().reshape(40, 32).astype(np.int32)
        return {
            "out": sums,
            "ticket": np.array([40], np.uint32),
            "prefix": sums[:, 31],
            "ready": np.ones(40, np.uint32),
        }

    def last_block(inputs: Arrays) -> Arrays:
        partial = inputs["in"].reshape(40, -1).sum(1).astype(np.int32)
        return {"partial": partial, "arrived": np.array([40], np.uint32), "total": partial.sum(keepdims=True)}

    totals = {"partial": Uninitialized(np.int32, (40,)), **ones, "total": Uninitialized(np.int32, (1,))}
    return [
        Micro("barriers", "sm_80", sm80("block_functions", {"in": values}, {"out": Uninitialized(np.int32, (129,))},
                                        threads=256, smem_bytes=256), block_functions),
        Micro("atomics", "sm_80", sm80("count", {"in": bins}, {
            "histogram": np.zeros(16, np.int32), "tickets": np.zeros(1, np.uint32),
            "drawn": Uninitialized(np.int32, (8,))}, scalars=(np.int32(1000),), grid=(8, 1, 1), threads=128,
            smem_bytes=64), counted),
        Micro("look_back", "sm_80", sm80("scan", {"in": rows}, {
            "out": Uninitialized(np.int32, (40, 32)), "ticket": np.zeros(1, np.uint32),
            "prefix": Uninitialized(np.int32, (40,)), "ready": np.zeros(40, np.uint32)}, grid=(40, 1, 1),
            smem_bytes=16), scanned),
        Micro("last_block_fences", "sm_80", sm80("last_block", {"in": rows}, totals, grid=(40, 1, 1)), last_block),
        Micro("last_block_acq_rel", "sm_80", sm80("last_block_ordered", {"in": rows[:, 0].copy()}, totals,
                                                  grid=(40, 1, 1)), last_block),
        Micro("last_block_release", "sm_80", sm80("last_block_released", {"in": rows[:, 0].copy()}, totals,
                                                  grid=(40, 1, 1)), last_block),
    ]  # fmt: skip


def _hopper() -> list[Micro]:
    rounds = integers(10, (7, 32), np.int32, -9, 10)
    words = integers(11, (128,), np.int32, -9, 10)
    terms = np.random.default_rng(12).standard_normal((7, 128)).astype(np.float32)  # whose order shows in the sum
    return [
        Micro("mbarrier", "sm_90a", sm90("pipeline", {"in": rounds}, {"out": Uninitialized(np.int32, (7, 32))},
                                         scalars=(np.int32(7),), threads=64, smem_bytes=512),
              lambda inputs: {"out": inputs["in"][:, ::-1]}),
        Micro("cp_async_bulk_add", "sm_90a", sm90("add_in_turn", {"in": terms}, {
            "out": Uninitialized(np.float32, (128,)), "turn": np.zeros(2, np.int32)}, grid=(7, 1, 1), threads=128,
            smem_bytes=528), lambda inputs: {"out": np.add.accumulate(inputs["in"])[-1], "turn": np.array([7, 7])}),
        Micro("cp_async_bulk", "sm_90a", sm90("bulk_copy", {"in": words}, {"out": Uninitialized(np.int32, (128,))},
                                              threads=128, smem_bytes=1040), lambda inputs: {"out": inputs["in"] * 2}),
    ]  # fmt: skip


def _wgmma() -> list[Micro]:
    shapes = dict.fromkeys(
        [f"wgmma_{swizzle}{major}" for major in ("", "_mn") for swizzle in ("none", 32, 64, 128)], (64, BF16)
    ) | {"wgmma_n8": (8, FP16), "wgmma_n72": (72, BF16), "wgmma_n256": (256, FP16)}
    return [
        Micro(entry, "sm_90a", sm90(entry, {"a": integers(12, (64, 64), dtype), "b": integers(13, (64, n), dtype)},
                                    {"d": Uninitialized(np.float32, (64, n))}, threads=128, smem_bytes=49152),
              _multiplied)
        for entry, (n, dtype) in shapes.items()
    ]  # fmt: skip


def _clusters() -> list[Micro]:
    given, rounds = integers(14, (8, 16), np.int32, -9, 10), integers(15, (7, 16), np.int32, -9, 10)
    words = integers(16, (8, 5), np.uint32, 0, 1 << 31)

    def numbers(_: Arrays) -> Arrays:
        blocks = np.arange(16)
        rank = blocks % 4
        out = np.stack([rank, np.full(16, 4), 100 + blocks - rank + (rank + 1) % 4, np.ones(16)], 1)
        return {"told": 100 + blocks, "out": out}

    def given_to_others(inputs: Arrays) -> Arrays:
        out = np.repeat(inputs["in"].reshape(2, 1, 4, 16), 4, axis=1)
        out[:, range(4), range(4)] = -1
        return {"out": out.reshape(8, 4, 16)}

    return [
        Micro("cluster_sync", "sm_90a", cluster("exchange_numbers", {}, {
            "told": Uninitialized(np.int32, (16,)), "out": Uninitialized(np.int32, (16, 4))}, grid=(8, 2, 1),
            threads=48, cluster=4), numbers),
        Micro("cp_async_bulk_multicast", "sm_90a", cluster("give_to_others", {"in": given}, {
            "out": Uninitialized(np.int32, (8, 4, 16))}, grid=(8, 1, 1), smem_bytes=272, cluster=4), given_to_others),
        Micro("mbarrier_arrive_cluster", "sm_90a", cluster("take_turns", {"in": rounds}, {
            "out": Uninitialized(np.int32, (2, 7, 16))}, scalars=(np.int32(7),), grid=(2, 1, 1), threads=64,
            smem_bytes=160, cluster=2), lambda inputs: {"out": np.stack([inputs["in"]] * 2)}),
        Micro("store_async", "sm_90a", cluster("tell_the_next", {"in": words}, {
            "out": Uninitialized(np.uint32, (8, 5))}, grid=(8, 1, 1), smem_bytes=40, cluster=4),
            lambda inputs: {"out": np.roll(inputs["in"].reshape(2, 4, 5), 1, axis=1).reshape(8, 5)}),
        Micro("cp_async_bulk_to_block", "sm_90a", cluster("make_in_turn", {"in": rounds}, {
            "out": Uninitialized(np.int32, (2, 7, 16))}, scalars=(np.int32(7),), grid=(2, 1, 1), threads=64,
            smem_bytes=160, cluster=2), lambda inputs: {"out": 3 * np.stack([inputs["in"]] * 2)}),
    ]  # fmt: skip


def _pairs() -> list[Micro]:
    a, b = (integers(seed, (128, 2), np.float32, -(1 << 23), 1 << 23) for seed in (20, 21))
    exact = a.astype(np.int64) * b.astype(np.int64)
    product = exact.astype(np.float32)
    left = (exact - product.astype(np.int64)).astype(np.float32)  # what an fma must not lose
    return [
        Micro("pairs", "sm_100a", sm100("pairs", {"a": a, "b": b, "c": -product}, {
            "out": Uninitialized(np.float32, (3, 128, 2))}), lambda _: {"out": np.stack([left, a + b, product])}),
    ]  # fmt: skip


def _tensor_memory() -> list[Micro]:
    words = np.random.default_rng(17).integers(0, 1 << 31, (128, 128), np.uint32)
    widths = {n: (np.uint32, np.float32)[i % 2] for i, n in enumerate((1, 2, 4, 8, 16, 32, 64, 128))}
    return [
        Micro("tensor_memory_columns", "sm_100a", sm100("tensor_columns", {}, {
            "out": Uninitialized(np.uint32, (128, 96))}, smem_bytes=16),
            lambda _: {"out": np.arange(128 * 96, dtype=np.uint32).reshape(128, 96)}),
        *(Micro(f"tensor_memory_{n}", "sm_100a", sm100(f"tensor_memory_{n}", {"in": words[:, :n].copy().view(dtype)}, {
            "out": Uninitialized(dtype, (128, n))}, smem_bytes=16), lambda inputs: {"out": inputs["in"]})
          for n, dtype in widths.items()),
    ]  # fmt: skip


def _tcgen05() -> list[Micro]:
    shapes = dict.fromkeys(
        [f"tcgen05_{swizzle}{major}" for major in ("", "_mn") for swizzle in ("none", 32, 64, 128)], (64, BF16)
    ) | {"tcgen05_n16": (16, FP16), "tcgen05_n80": (80, BF16), "tcgen05_n256": (256, FP16)}
    return [
        Micro(entry, "sm_100a", sm100(entry, {"a": integers(18, (128, 64), dtype), "b": integers(19, (64, n), dtype)},
                                      {"d": Uninitialized(np.float32, (128, n))}, smem_bytes=49152 + 16), _multiplied)
        for entry, (n, dtype) in shapes.items()
    ]  # fmt: skip


def approximations(x: np.ndarray) -> tuple[Call, np.ndarray, np.ndarray]:
    """ex2, lg2, rcp and tanh of x: the call, float64 results [4, n], and the errors that the PTX ISA allows [4, n].

    2^-22 relative for ex2; 2^-22 for lg2, absolute between 0.5 and 2 and relative elsewhere; 1 ulp for rcp; 2^-11
    relative for tanh.
    """
    n, operand = len(x), x.astype(np.float32)
    outputs = {"y": Uninitialized(np.float32, (4, n))}
    call = Call("primitives_sm80.cu", "approximate", {"x": operand}, outputs, (np.int32(n),), (-(-n // 256), 1, 1), 256)
    wide = operand.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.stack([np.exp2(wide), np.log2(wide), 1 / wide, np.tanh(wide)])
        limits = np.array([2**-22, 2**-22, 0, 2**-11])[:, None] * np.abs(exact)
        limits[1, (wide > 0.5) & (wide < 2)] = 2**-22
        limits[2] = np.spacing(exact[2].astype(np.float32))
    return call, exact, limits
