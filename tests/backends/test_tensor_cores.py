"""Tests of tensor-core sums on both CPU backends, bit for bit.

For mma.sync they are compared with measured vectors (data/README.md). For special values, and for wgmma and tcgen05,
of which there are no public vectors, they are compared with the published model, evaluated here in exact arithmetic.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from math import frexp, isfinite, isnan
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.backends.emulator.emulated import KERNELS, Call, Uninitialized, launch
from tests.backends.emulator.micro import micros
from tests.backends.emulator.on_ptx import executed
from tests.support.claims import compiled_to_ptx
from tuner.backends import ptx
from tuner.backends.emulator import Mode
from tuner.backends.ptx.instructions.matrix import Fragment, a_fragment, b_fragment, c_fragment
from tuner.backends.tensor_cores import SumRule, of_mma_sync, of_tcgen05, of_wgmma
from tuner.compiler.source import Source
from tuner.errors import UsageError

VECTORS = np.load(Path(__file__).parent / "data" / "tensor_core_vectors.npz")
ARCHES = {"A100": "sm_80", "L40S": "sm_89", "H100": "sm_90a"}
TYPES: Mapping[str, Any] = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
SETS = [tuple(key.split("/")) for key in VECTORS.files if "/d_" in key]
MICROS = {micro.name: micro for micro in micros()}
MMA = {"fp16": "mma_k16_fp16", "bf16": "mma_k16_bf16", "tf32": "mma_k8_tf32"}  # by its primitives, in fp32


def tiles(gpu: str, form: str, result: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(A [n, 16, k], B [n, k, 8], C [n, 16, 8], the measured diagonals of D [n, 8]), with eight vectors in a tile.

    k is that of the widest mma.sync; shorter vectors end in zeros.
    """
    a, b, c, d = (VECTORS[f"{gpu}/{form}/{name}"] for name in ("a", "b", "c_fp32", result))
    a, b, c = a.view(TYPES[form]), b.view(TYPES[form]), c.view(np.float32)
    n, k = len(a) // 8, 32 // a.itemsize
    left, right = np.zeros((n, 16, k), a.dtype), np.zeros((n, k, 8), a.dtype)
    left[:, :8, : a.shape[1]] = a.reshape(n, 8, -1)
    right[:, : a.shape[1]] = b.reshape(n, 8, -1).swapaxes(1, 2)
    added = np.zeros((n, 16, 8), np.float32)
    added[:, range(8), range(8)] = c.reshape(n, 8)
    return left, right, added, d.reshape(n, 8)


def diagonal(d: np.ndarray) -> np.ndarray:
    """The bits of eight results a tile."""
    return d[:, range(8), range(8)].view(f"u{d.itemsize}")


def registers(fragment: Fragment, tile: np.ndarray) -> np.ndarray:
    elements = fragment.elements(tile)
    return np.ascontiguousarray(elements).view(np.uint32).reshape(*elements.shape[:2], -1)


@cache
def inner_products(arch: str) -> dict[str, ptx.Entry]:
    text = (KERNELS / "inner_products.cu").read_text()
    bytes_too = ("e4m3_fp32", "e5m2_fp32") if arch != "sm_80" else ()
    entries = ("fp16_fp32", "bf16_fp32", "tf32_fp32", "fp16_fp16", *bytes_too)
    return ptx.parse(compiled_to_ptx(Source(entries, text, (), "cuda"), arch))


@pytest.mark.parametrize(("gpu", "form", "result"), SETS)
def test_mma_sync_as_ptx_gives_the_bits_of_a_device(gpu: str, form: str, result: str) -> None:
    a, b, c, d = tiles(gpu, form, result)
    added, k = c.astype(np.float16) if result == "d_fp16" else c, a.shape[2]
    arrays = {"a": registers(a_fragment(k, a.itemsize), a), "b": registers(b_fragment(k, a.itemsize), b)}
    arrays["c"] = registers(c_fragment(), added)
    memory = ptx.Global(
        {name: array.nbytes for name, array in arrays.items()} | {"d": arrays["c"].nbytes}, frozenset("d")
    )
    for name, array in arrays.items():
        memory.view(name, array.dtype, array.shape)[...] = array
    entry = inner_products(ARCHES[gpu])[f"{form}_{result.removeprefix('d_')}"]
    ptx.launch(entry, ptx.Shape((len(a), 1, 1), 32, 0), memory, [memory.address(name) for name in "abcd"])
    products = c_fragment().tile(memory.view("d", added.dtype, (len(a), 32, 4)))
    np.testing.assert_array_equal(diagonal(products), d)


@pytest.mark.parametrize(
    ("gpu", "form", "result"), [vector_set for vector_set in SETS if vector_set[1] in MMA and vector_set[2] == "d_fp32"]
)
def test_mma_sync_on_the_emulator_gives_the_bits_of_a_device(gpu: str, form: str, result: str) -> None:
    a, b, c, d = tiles(gpu, form, result)
    assert (a.shape[1:], b.shape[1:]) == tuple(MICROS[MMA[form]].call.inputs[name].shape for name in "ab")
    call = replace(MICROS[MMA[form]].call, inputs={"a": a, "b": b, "c": c}, grid=(len(a), 1, 1))
    products, _ = launch(replace(call, outputs={"d": Uninitialized(np.float32, c.shape)}), Mode(), ARCHES[gpu])
    np.testing.assert_array_equal(diagonal(products["d"]), d)


# ---- the published model, in exact arithmetic

SUBNORMAL = {np.dtype(np.float16): -14}  # the exponent of subnormals; of bf16 and fp32 it is -126


def decoded(x: Any) -> tuple[int, int]:
    """x = significand · 2^exponent of a finite number."""
    significand, exponent = frexp(float(x))
    return int(significand * 2**53), exponent - 53


def exponent_read(x: Any) -> int:
    return max(frexp(float(x))[1] - 1, SUBNORMAL.get(np.asarray(x).dtype, -126))


def scaled(significand: int, exponent: int, unit: int) -> int:
    """significand · 2^exponent in units of 2^unit, toward zero."""
    shift = exponent - unit
    size = abs(significand) << shift if shift >= 0 else abs(significand) >> -shift
    return size if significand >= 0 else -size


def rounded(total: int, unit: int) -> float:
    """total · 2^unit as fp32, toward zero; from 2^128 on it is infinite."""
    length = max(abs(total).bit_length() + unit - 1, -126)
    if total and length >= 128:
        return float(np.copysign(np.inf, total))
    return scaled(total, unit, length - 23) * 2.0 ** (length - 23)


def modelled_step(a: np.ndarray, b: np.ndarray, c: Any, rule: SumRule) -> np.float32:
    with np.errstate(all="ignore"):
        naive = (a.astype(np.float64) * b.astype(np.float64)).sum() + np.float64(c)
    if not isfinite(naive):
        return np.uint32(0x7FFFFFFF).view(np.float32) if isnan(naive) else np.float32(naive)
    terms, exponents = [decoded(c)], [exponent_read(c) if c else rule.zero_exponent]
    for x, y in zip(a, b, strict=True):
        (m, p), (n, q) = decoded(x), decoded(y)
        terms.append((m * n, p + q))
        exponents.append(exponent_read(x) + exponent_read(y) if m and n else rule.zero_exponent)
    unit = max(exponents) - rule.fraction_bits
    return np.float32(rounded(sum(scaled(*term, unit) for term in terms), unit))


def modelled(a: np.ndarray, b: np.ndarray, c: np.ndarray, rule: SumRule) -> np.ndarray:
    d, step = c.copy(), rule.depth(a.itemsize)
    for i, j in np.ndindex(d.shape):
        for k in range(0, a.shape[1], step):
            d[i, j] = modelled_step(a[i, k : k + step], b[k : k + step, j], d[i, j], rule)
    return d


def drawn(like: np.ndarray, name: str, rng: np.random.Generator) -> np.ndarray:
    """Numbers of all magnitudes, zeros of both signs, the largest ones; in every fourth row of A infinities and NaN.

    Every fourth row of A and C is zero or tiny. tf32 numbers have bits that the hardware leaves out.
    """
    about, row = ml_dtypes.finfo(like.dtype), np.arange(like.shape[0])[:, None] % 4
    exponent = rng.uniform(-8, 8, like.shape)
    far = rng.choice([about.minexp, about.maxexp / 2], like.shape)
    exponent += np.where((rng.random(like.shape) < 0.15) | ((row == 1) & (name == "a")), far, 0)
    x = (rng.standard_normal(like.shape) * np.exp2(exponent)).astype(like.dtype)
    edge = np.array([0.0, -0.0, about.max, -float(about.max), about.smallest_subnormal]).astype(like.dtype)
    x = np.where(rng.random(x.shape) < 0.15, rng.choice(edge, x.shape), x)
    if name == "a":
        x[3::4, 0] = np.resize(np.array([np.inf, -np.inf, np.nan], like.dtype), len(x) // 4)
    if name != "b":
        x = np.where(row == 2, np.where(rng.random(x.shape) < 0.02, about.smallest_subnormal, 0).astype(like.dtype), x)
    return x


RULES: Mapping[str, tuple[str, Callable[[int], SumRule]]] = {
    **{f"{name} sm_80": ("sm_80", partial(of_mma_sync, "sm_80")) for name in MICROS if name.startswith("mma_")},
    **{f"{name} sm_90a": ("sm_90a", partial(of_mma_sync, "sm_90a")) for name in MICROS if name.startswith("mma_")},
    "wgmma_n8 sm_90a": ("sm_90a", of_wgmma),
    "tcgen05_n16 sm_100a": ("sm_100a", lambda _: of_tcgen05()),
}


@cache
def case(name: str) -> tuple[Call, np.ndarray]:
    """A call with such operands, and D of the model."""
    micro, (_, rule) = MICROS[name.split()[0]], RULES[name]
    with np.errstate(all="ignore"):
        rng = np.random.default_rng(0)
        inputs = {name: drawn(array, name, rng) for name, array in micro.call.inputs.items()}
    a, b = (inputs[name] for name in "ab")
    if a.dtype == np.float32:
        a, b = ((operand.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for operand in (a, b))
    c = inputs.get("c", np.zeros((a.shape[0], b.shape[1]), np.float32))
    return replace(micro.call, inputs=inputs), modelled(a, b, c, rule(a.itemsize))


@pytest.mark.parametrize("name", RULES)
def test_every_kind_of_number_is_summed_as_the_published_model_says(name: str) -> None:
    call, expected = case(name)
    emulated, interpreted = launch(call, Mode(), RULES[name][0])[0]["d"], executed(call, RULES[name][0])["d"]
    kinds = np.isnan(expected), np.isinf(expected), expected == 0, np.isfinite(expected) & (expected != 0)
    assert all(kind.any() for kind in kinds), "the case covers them"
    np.testing.assert_array_equal(emulated.view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(interpreted.view(np.uint32), expected.view(np.uint32))


def test_archs_before_turing_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="tensor-core rounding of sm_70"):
        of_mma_sync("sm_70", 2)
