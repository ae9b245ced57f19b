"""Sizes for which default configs are chosen: lengths that are nearly equal then have one default."""

from collections.abc import Iterator
from functools import lru_cache

Sizes = tuple[int, ...]  # the extents of a problem, in order

_DIGITS, _EXACT = 3, 64


def round_sizes(sizes: Sizes) -> Iterator[Sizes]:
    """The sizes rounded up to three binary digits; then the same with sizes up to 64, mostly numbers of heads, as they
    are.
    """
    coarse = tuple(map(_rounded, sizes))
    yield coarse
    yield tuple(size if size <= _EXACT else up for size, up in zip(sizes, coarse, strict=True))


@lru_cache(maxsize=1 << 16)
def _rounded(size: int) -> int:
    step: int = 1 << max(size.bit_length() - _DIGITS, 0)
    return -(-size // step) * step
