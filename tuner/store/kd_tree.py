"""Which of many points is nearest: a k-d tree whose nodes are split when a search first comes to them.

SciPy's KDTree would serve, but importing scipy.spatial takes half a second of an application's first call, and sorting
100,000 points a quarter. Nodes are split by NumPy; a few points, which one leaf holds, need none of it.

J. L. Bentley, Multidimensional binary search trees used for associative searching, CACM 18(9), 1975.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import dist, inf
from typing import Any

DIGITS = 9  # of a distance: 500 and 2,000 are equally far from 1,000, however their logarithms are rounded
_SAME = 10.0**-DIGITS
_LEAF = 16  # points
Point = Sequence[float]


class _Node:
    """A leaf of some points, or two halves: at most, and at least, `cut` along `axis`; or points still to split."""

    __slots__ = ("axis", "cut", "high", "leaf", "low", "numbers")

    def __init__(self, numbers: Any) -> None:
        self.numbers, self.leaf = numbers, None  # type: Any, list[tuple[Point, int]] | None
        self.axis, self.cut, self.low, self.high = 0, 0.0, self, self


class Nearest:
    """An index over points, as rows of an array or of a list. Any number of threads may search."""

    def __init__(self, points: Any) -> None:
        self._points, self._dropped = points, set[int]()
        self._root = _Node(range(len(points)))

    def closest(self, wanted: Point) -> tuple[float, list[int]] | None:
        """The least Euclidean distance and the numbers of all points at it; None when every point was dropped."""
        best, limit = inf, inf
        near: list[tuple[float, int]] = []
        pending = [(0.0, self._root)]
        while pending:
            bound, node = pending.pop()
            if bound > limit:
                continue
            while node.leaf is None:
                if node.numbers is not None:
                    self._split(node)
                    continue
                if node.low is node:  # another thread has just made it a leaf
                    continue
                gap = wanted[node.axis] - node.cut
                closer, other = (node.low, node.high) if gap < 0 else (node.high, node.low)
                pending.append((max(bound, abs(gap)), other))
                node = closer
            for point, number in node.leaf:
                if (distance := dist(wanted, point)) <= limit and number not in self._dropped:
                    near.append((distance, number))
                    if distance < best:
                        best, limit = distance, distance + _SAME
        if not near:
            return None
        least = round(best, DIGITS)
        return (
            (least, sorted(number for distance, number in near if round(distance, DIGITS) == least)) if near else None
        )

    def rising(self, wanted: Point) -> Iterator[tuple[float, list[int]]]:
        """Rising distances, each with the numbers of all points at it, those that were dropped too."""
        distances = [round(dist(wanted, point), DIGITS) for point in _rows(self._points)]
        order = sorted(range(len(distances)), key=distances.__getitem__)
        for distance, numbers in groupby(order, key=distances.__getitem__):
            yield distance, list(numbers)

    def drop(self, numbers: Iterable[int]) -> None:
        """Leave points out of what `closest` returns."""
        self._dropped.update(numbers)

    def _split(self, node: _Node) -> None:
        """Two threads may split a node at once: they compute equal halves."""
        numbers = node.numbers
        if numbers is None:
            return
        if len(numbers) > _LEAF and (halves := self._halves(numbers)):
            node.axis, node.cut, low, high = halves
            node.low, node.high = _Node(low), _Node(high)
        else:
            kept = [int(number) for number in numbers if int(number) not in self._dropped]
            node.leaf = [(tuple(map(float, self._points[number])), number) for number in kept]
        node.numbers = None

    def _halves(self, numbers: Any) -> tuple[int, float, Any, Any] | None:
        """The longest side of a box around points, its median, and the points on both sides; None for equal points."""
        import numpy as np

        if isinstance(numbers, range):  # all of them
            points = self._points = np.asarray(self._points)
            numbers = np.arange(len(numbers), dtype=np.int32)
        else:
            points = self._points[numbers]
        if not points.shape[1]:
            return None
        sides = np.ptp(points, axis=0)
        axis, half = int(sides.argmax()), len(points) // 2
        if not sides[axis]:
            return None
        order = np.argpartition(points[:, axis], half)
        return axis, float(points[order[half], axis]), numbers[order[:half]], numbers[order[half:]]


def _rows(points: Any) -> Any:
    return points if isinstance(points, list) else points.tolist()
