"""Tests of the primitives' PTX on the PTX interpreter: bitwise equal to the emulator, an independent reading of the
ISA.
"""

import numpy as np
import pytest

from tests.backends.emulator.emulated import Call, Uninitialized, launch
from tests.backends.emulator.micro import BF16, Micro, approximations, micros
from tests.backends.emulator.on_ptx import PtxKernel, executed
from tests.backends.emulator.scenarios import Scenario, scenarios
from tests.backends.emulator.test_tma import box_of, unswizzled
from tuner.backends.emulator import Buffer, Mode, tensor_map

MICROS = micros()


@pytest.mark.sampled(20)
@pytest.mark.parametrize("micro", MICROS, ids=lambda micro: micro.name)
def test_a_primitives_ptx_computes_what_its_twin_does_on_the_emulator(micro: Micro) -> None:
    arch = "sm_90a" if "cluster" in micro.call.file else micro.arch
    result, emulated = executed(micro.call, arch), launch(micro.call, Mode())[0]
    for name, bits in emulated.items():
        np.testing.assert_array_equal(result[name].view(np.uint8), bits.view(np.uint8), err_msg=name)


def test_every_fragment_layout_is_what_the_header_says_to_both_compilers() -> None:
    call = Call("primitives_sm80.cu", "layouts", {}, {"out": Uninitialized(np.int32, (9, 32, 8))})
    np.testing.assert_array_equal(executed(call, "sm_80")["out"], launch(call, Mode())[0]["out"])


def test_approximations_are_within_what_the_isa_allows() -> None:
    call, exact, limits = approximations(np.random.default_rng(0).uniform(0.01, 8, 512))
    assert (np.abs(executed(call, "sm_80")["y"] - exact) <= limits).all()


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_box_lands_swizzled_with_zeros_outside_and_returns_clipped(swizzle: int) -> None:
    array, box, at = np.arange(40 * 72, dtype=BF16).reshape(40, 72), (24, (swizzle or 64) // 2), (30, 60)
    raw, stored = copied(array, box, at, swizzle)
    expected = box_of(array, box, at)
    np.testing.assert_array_equal(unswizzled(raw, swizzle).view(BF16).reshape(box), expected)
    np.testing.assert_array_equal(stored[30:, 60:], array[30 : 30 + 24, 60 : 60 + box[1]])
    assert np.count_nonzero(stored) == np.count_nonzero(expected)


@pytest.mark.parametrize(
    ("shape", "box", "at"),
    [
        ((200,), (64,), (160,)),
        ((3, 20, 32), (2, 8, 16), (1, 15, -16)),
        ((2, 2, 3, 4, 16), (1, 1, 3, 4, 16), (0, 0, 0, 0, 0)),
    ],
    ids=lambda value: "x".join(map(str, value)),
)
def test_a_box_has_one_to_five_dims(shape: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...]) -> None:
    array = np.arange(1, np.prod(shape) + 1, dtype=np.int32).reshape(shape)
    raw, _ = copied(array, box, at, 0)
    np.testing.assert_array_equal(raw.view(np.int32).reshape(box), box_of(array, box, at))


def copied(array: np.ndarray, box: tuple[int, ...], at: tuple[int, ...], swizzle: int) -> tuple[np.ndarray, np.ndarray]:
    """(the box's bytes as they lie in shared memory, the tensor that it was stored to)."""
    nbytes = int(np.prod(box)) * array.itemsize
    with (
        Buffer.of("from", array) as source,
        Buffer.of("to", np.zeros_like(array), writable=True) as target,
        Buffer("raw", nbytes, writable=True) as raw,
    ):
        maps = [tensor_map(side, side.view(array.dtype, array.shape), box, swizzle) for side in (source, target)]
        inner_first = [np.int32(c) for c in (*at[::-1], 0, 0)[:3]]
        arguments = [*maps, raw, np.int32(nbytes), np.int32(array.ndim), *inner_first]
        PtxKernel("primitives_sm90.cu", "sm_90a").launch("tensor_copy", (1, 1, 1), 64, 32768 + 8, arguments)
        return raw.view(np.uint8, (nbytes,)).copy(), target.view(array.dtype, array.shape).copy()


@pytest.mark.parametrize("scenario", scenarios().values(), ids=lambda scenario: scenario.name)
def test_whole_kernels_compute_what_they_compute_on_the_emulator(scenario: Scenario) -> None:
    _, right = scenario.launch(PtxKernel(f"{scenario.name}.cu", scenario.arch), Mode())  # type: ignore[arg-type]
    assert right
