"""Nearest-neighbour search by a k-d tree, whose nodes are split when a search first visits them.

SciPy's KDTree would serve, but importing scipy.spatial adds half a second to an application's first call, and sorting
100,000 points a quarter of a second. NumPy splits the nodes; few points fit one leaf and need no split.

J. L. Bentley, Multidimensional binary search trees used for associative searching, CACM 18(9), 1975.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import dist, hypot, inf
from typing import Any

DIGITS = (
    9  # tolerance of distances: 500 and 2,000 are equally far from 1,000, whatever the rounding of their logarithms
)
_SAME = 10.0**-DIGITS
_LEAF = 16  # points
Point = Sequence[float]


class _Node:
    """A leaf of points, an inner node (left: at most `cut` along `axis`; right: at least `cut`), or points not yet
    split.
    """

    __slots__ = ("axis", "cut", "high", "leaf", "low", "numbers")

    def __init__(self, numbers: Any) -> None:
        self.numbers, self.leaf = numbers, None  # type: Any, list[tuple[Point, int]] | None
        self.axis, self.cut, self.low, self.high = 0, 0.0, self, self


class Nearest:
    """An index over points, the rows of an array or list. Searches are thread-safe."""

    def __init__(self, points: Any) -> None:
        self._points, self._dropped = points, set[int]()
        self._box: tuple[Point, Point] | None = None  # the smallest and largest coordinates; None for a single leaf
        self._root = _Node(range(len(points)))

    def closest(self, wanted: Point) -> tuple[float, list[int]] | None:
        """Return the smallest Euclidean distance and all points at it; None if every point was dropped."""
        best, limit = inf, inf
        near: list[tuple[float, int]] = []
        # A node, the distances between `wanted` and the node's box along each axis, and their Euclidean norm.
        gaps = self._gaps(wanted)
        pending = [(hypot(*gaps), gaps, self._root)]
        while pending:
            bound, gaps, node = pending.pop()
            if bound > limit:
                continue
            while node.leaf is None:
                if node.numbers is not None:
                    self._split(node)
                    continue
                if node.low is node:  # another thread has just made it a leaf
                    continue
                axis = node.axis
                gap = wanted[axis] - node.cut
                closer, other = (node.low, node.high) if gap < 0 else (node.high, node.low)
                beyond = (*gaps[:axis], abs(gap), *gaps[axis + 1 :])
                if (bound := hypot(*beyond)) <= limit:
                    pending.append((bound, beyond, other))
                node = closer
            for point, number in node.leaf:
                if (distance := dist(wanted, point)) <= limit and number not in self._dropped:
                    near.append((distance, number))
                    if distance < best:
                        best, limit = distance, distance + _SAME
        if not near:
            return None
        least = round(best, DIGITS)
        return least, sorted(number for distance, number in near if round(distance, DIGITS) == least)

    def _gaps(self, wanted: Point) -> tuple[float, ...]:
        """Return the distances between `wanted` and the box of all points along each axis; 0 for a single leaf."""
        if self._root.numbers is not None:
            self._split(self._root)
        if self._box is None:
            return (0.0,) * len(wanted)
        return tuple([max(low - x, x - high, 0.0) for x, low, high in zip(wanted, *self._box, strict=True)])

    def rising(self, wanted: Point) -> Iterator[tuple[float, list[int]]]:
        """Yield increasing distances, each with the indices of all points at it, including dropped ones."""
        distances = [round(dist(wanted, point), DIGITS) for point in _rows(self._points)]
        order = sorted(range(len(distances)), key=distances.__getitem__)
        for distance, numbers in groupby(order, key=distances.__getitem__):
            yield distance, list(numbers)

    def nearer(self, wanted: Point, distance: float) -> int:
        """Return the number of points whose distance, rounded to DIGITS, is smaller than `distance`."""
        import numpy as np

        distances = np.linalg.norm(np.asarray(self._points) - np.array(wanted), axis=1)
        return int(np.count_nonzero(distances < distance - _SAME / 2))

    @property
    def dropped(self) -> int:
        """The number of dropped points."""
        return len(self._dropped)

    def drop(self, numbers: Iterable[int]) -> None:
        """Exclude points from the results of `closest`."""
        self._dropped.update(numbers)

    def _split(self, node: _Node) -> None:
        """Split a node. Two threads may do so at once; they compute equal halves."""
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
        """Return the longest side of the points' bounding box, its median, and the points on both sides; None for equal
        points.
        """
        import numpy as np

        if isinstance(numbers, range):  # all points
            points = self._points = np.asarray(self._points)
            numbers = np.arange(len(numbers), dtype=np.int32)
            if points.shape[1]:
                self._box = points.min(axis=0).tolist(), points.max(axis=0).tolist()
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
