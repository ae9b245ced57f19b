"""Tests of TMA boxes: positions in shared memory, zeros outside the tensor, and stores."""

import numpy as np
import pytest

from tests.backends.emulator.emulated import CHECKED, PLAIN, kernel
from tuner.backends.emulator import Buffer, Mode, Run, tensor_map
from tuner.errors import InputError

FILE = "primitives_sm90.cu"


def copied(
    array: np.ndarray, box: tuple[int, ...], at: tuple[int, ...], swizzle: int, mode: Mode
) -> tuple[np.ndarray, np.ndarray, Run]:
    """(the box's bytes as they lie in shared memory, the tensor that it was stored to, what happened)."""
    nbytes = int(np.prod(box)) * array.itemsize
    with (
        Buffer.of("from", array) as source,
        Buffer.of("to", np.zeros_like(array), writable=True) as target,
        Buffer("raw", nbytes, writable=True, initialized=False) as raw,
    ):
        maps = [tensor_map(side, side.view(array.dtype, array.shape), box, swizzle) for side in (source, target)]
        inner_first = [np.int32(c) for c in (*at[::-1], 0, 0)[:3]]
        arguments = [*maps, raw, np.int32(nbytes), np.int32(array.ndim), *inner_first]
        run = kernel(FILE, mode.checked).launch("tensor_copy", (1, 1, 1), 64, 32768 + 8, arguments, mode)
        bytes_ = raw.view(np.uint8, (nbytes,)).copy()
        return bytes_, target.view(array.dtype, array.shape).copy(), run


def box_of(array: np.ndarray, box: tuple[int, ...], at: tuple[int, ...]) -> np.ndarray:
    """The box, zero where it is outside."""
    padded = np.pad(array, [(n, n) for n in box])
    return padded[tuple(slice(c + n, c + 2 * n) for c, n in zip(at, box, strict=True))]


def unswizzled(raw: np.ndarray, swizzle: int) -> np.ndarray:
    """Undoes the exclusive or of each 16-byte chunk's index with its 128-byte row's number."""
    chunk = np.arange(len(raw) // 16)
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    return raw.reshape(-1, 16)[chunk ^ (chunk // 8 & mask)].reshape(-1)


@pytest.mark.parametrize("mode", PLAIN + CHECKED, ids=str)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_box_lands_swizzled_with_zeros_outside_and_returns_clipped(swizzle: int, mode: Mode) -> None:
    array = np.arange(40 * 72, dtype=np.float16).reshape(40, 72)
    box = (24, (swizzle or 64) // 2)
    for at in ((0, 0), (8, 16), (-5, -8), (30, 56)):
        raw, stored, run = copied(array, box, at, swizzle, mode)
        expected = box_of(array, box, at)
        assert run.findings == ()
        np.testing.assert_array_equal(unswizzled(raw, swizzle).view(np.float16).reshape(box), expected)
        rows, cols = (slice(max(c, 0), c + n) for c, n in zip(at, box, strict=True))
        np.testing.assert_array_equal(stored[rows, cols], array[rows, cols])
        assert np.count_nonzero(stored) == np.count_nonzero(array[rows, cols])


@pytest.mark.parametrize(
    ("shape", "box", "at"),
    [
        ((200,), (64,), (160,)),
        ((3, 20, 32), (2, 8, 16), (1, 15, 16)),
        ((2, 3, 8, 16), (1, 2, 8, 16), (0, 1, 0, 0)),
        ((2, 2, 3, 4, 16), (1, 1, 3, 4, 16), (0, 0, 0, 0, 0)),
    ],
    ids=lambda value: "x".join(map(str, value)),
)
def test_a_box_has_one_to_five_dims(shape: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...]) -> None:
    array = np.arange(1, np.prod(shape) + 1, dtype=np.int32).reshape(shape)
    raw, _, run = copied(array, box, at, 0, CHECKED[0])
    assert run.findings == ()
    np.testing.assert_array_equal(raw.view(np.int32).reshape(box), box_of(array, box, at))


def multicast(array: np.ndarray, box: tuple[int, ...], at: tuple[int, ...], mode: Mode) -> tuple[np.ndarray, Run]:
    """(the box's bytes as they lie in the shared memory of each block of a cluster of two, what happened)."""
    nbytes = int(np.prod(box)) * array.itemsize
    with Buffer.of("from", array) as source, Buffer("raw", 2 * nbytes, writable=True, initialized=False) as raw:
        inner_first = [np.int32(c) for c in (*at[::-1], 0, 0)[:3]]
        mapped = tensor_map(source, source.view(array.dtype, array.shape), box)
        arguments = [mapped, raw, np.int32(nbytes), np.int32(array.ndim), *inner_first]
        runner = kernel("primitives_cluster.cu", mode.checked)
        run = runner.launch("tensor_multicast", (2, 1, 1), 64, 32768 + 8, arguments, mode, cluster=2)
        return raw.view(np.uint8, (2, nbytes)).copy(), run


@pytest.mark.parametrize("mode", PLAIN + CHECKED, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3, 4, 5])
def test_a_box_lands_in_every_block_that_a_multicast_names(dims: int, mode: Mode) -> None:
    shape, box, at = (extents[5 - dims :] for extents in ((1, 2, 3, 2, 64), (1, 1, 2, 2, 32), (0, 0, 2, 0, 48)))
    array = np.arange(1, np.prod(shape) + 1, dtype=np.int32).reshape(shape)
    raw, run = multicast(array, box, at, mode)
    assert run.findings == ()
    expected = box_of(array, box, at)
    for rank in range(2):
        np.testing.assert_array_equal(raw[rank].view(np.int32).reshape(box), expected)


def test_strides_between_rows_are_the_views_own() -> None:
    storage = np.arange(16 * 64, dtype=np.float16).reshape(16, 64)
    with Buffer.of("from", storage) as source:
        view = source.view(np.float16, (16, 32), (128, 2))
        assert list(tensor_map(source, view, (8, 16)).stride)[:2] == [2, 128]


@pytest.mark.parametrize(
    ("shape", "box", "swizzle", "reason"),
    [
        ((16, 64), (8, 128), 128, "256 bytes, the swizzle spans 128"),
        ((16, 64), (8, 12), 0, "multiple of 16 bytes"),
        ((16, 60), (8, 16), 0, "address and strides"),
        ((16, 64), (300, 16), 0, "1 to 256"),
        ((0, 64), (8, 16), 0, "1 or more"),
    ],
)
def test_a_map_that_the_driver_would_refuse_is_refused(
    shape: tuple[int, ...], box: tuple[int, ...], swizzle: int, reason: str
) -> None:
    with Buffer.of("x", np.zeros(shape, np.float16)) as buffer, pytest.raises(InputError, match=reason):
        tensor_map(buffer, buffer.view(np.float16, shape), box, swizzle)


def test_an_unaligned_swizzled_destination_is_a_finding() -> None:
    replaced = (("s_box = shared_address(smem)", "s_box = shared_address(smem) + 128"),)
    array = np.zeros((8, 64), np.float16)
    with (
        Buffer.of("from", array) as source,
        Buffer.of("to", array, writable=True) as target,
        Buffer("raw", 1024, writable=True, initialized=False) as raw,
    ):
        maps = [tensor_map(side, side.view(array.dtype, array.shape), (8, 64), 128) for side in (source, target)]
        arguments = [*maps, raw, np.int32(1024), np.int32(2), np.int32(0), np.int32(0), np.int32(0)]
        run = kernel(FILE, False, replaced).launch("tensor_copy", (1, 1, 1), 64, 34000, arguments, Mode())
    assert [finding.kind for finding in run.findings] == ["misaligned"]
