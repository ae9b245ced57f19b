"""The tensor cores of the emulator add as published measurements say: aligned, cut off, block by block."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.backends.emulator.emulated import launch
from tests.backends.emulator.micro import Micro, micros
from tuner.backends.emulator import Mode

MICROS = {micro.name: micro for micro in micros()}
BLOCK = {"mma_k16_bf16": 8, "mma_k8_fp16": 8, "mma_k8_tf32": 4, "wgmma_n8": 8}


def drawn(micro: Micro, spread: float) -> Micro:
    """With operands of many magnitudes instead of small integers; tf32 ones are representable."""
    rng = np.random.default_rng(0)

    def like(array: np.ndarray) -> np.ndarray:
        values = rng.standard_normal(array.shape) * np.exp2(rng.uniform(-spread, spread, array.shape))
        short = values.astype(ml_dtypes.bfloat16) if "tf32" in micro.name else values
        return short.astype(array.dtype)

    inputs = {name: like(array) for name, array in micro.call.inputs.items()}
    return replace(micro, call=replace(micro.call, inputs=inputs))


def cut_off(x: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.trunc(x / unit) * unit


def as_published(inputs: dict[str, np.ndarray], block: int) -> np.ndarray:
    """c + a b in float64, whose sums of 24 bits are exact."""
    a, b = (inputs[name].astype(np.float64) for name in "ab")
    total = inputs["c"].astype(np.float64) if "c" in inputs else np.zeros((a.shape[0], b.shape[1]))
    for k in range(0, a.shape[1], block):
        terms = np.stack([total, *(a[:, j, None] * b[None, j] for j in range(k, k + block))])
        unit = np.exp2(np.floor(np.log2(np.abs(terms).max(0))) - 24)
        total = cut_off(terms, unit).sum(0)
        total = cut_off(total, np.exp2(np.floor(np.log2(np.abs(total))) - 23))
    return total


@pytest.mark.parametrize("name", BLOCK)
def test_products_are_aligned_and_cut_off(name: str) -> None:
    micro = drawn(MICROS[name], 4)
    found, _ = launch(micro.call, Mode())
    np.testing.assert_array_equal(found["d"], as_published(dict(micro.call.inputs), BLOCK[name]))


def test_what_is_small_beside_the_accumulator_is_lost_whatever_its_sign() -> None:
    micro = MICROS["mma_k16_bf16"]
    a, b = (np.full_like(micro.call.inputs[name], 2**-13) for name in "ab")  # products of 2^-26, 16 of them 2^-22
    for sign in (1, -1):
        inputs = {"a": a * a.dtype.type(sign), "b": b, "c": np.full((16, 8), sign, np.float32)}
        found, _ = launch(replace(micro.call, inputs=inputs), Mode())
        np.testing.assert_array_equal(found["d"], inputs["c"])


def test_infinite_and_undefined_operands_stay_so() -> None:
    micro = MICROS["mma_k8_fp16"]
    a = np.zeros_like(micro.call.inputs["a"])
    a[0, 0], a[1, 0], a[2, 0] = np.inf, np.nan, -np.inf
    inputs = {"a": a, "b": np.ones_like(micro.call.inputs["b"]), "c": np.ones((16, 8), np.float32)}
    found = launch(replace(micro.call, inputs=inputs), Mode())[0]["d"]
    np.testing.assert_array_equal(found[:4, 0], [np.inf, np.nan, -np.inf, 1])
