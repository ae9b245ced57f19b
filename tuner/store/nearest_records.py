"""An index of the problems that have records for one kernel and GPU, to find the records with the nearest sizes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import inf, log2
from typing import Any

from tuner.base.canonical_json import encode
from tuner.base.fields import Fields, Scalar
from tuner.errors import StoreError
from tuner.store.kd_tree import Nearest
from tuner.store.packed_problems import numbers_in
from tuner.store.read import DAMAGED, Key

Entry = tuple[int, Key]  # the index of a source, and a record's key
Sizes = tuple[Scalar, ...]
Ring = tuple[float, int, list[Entry]]  # a distance, the number of points at it, and the entries at these points


class Neighbours(ABC):
    """An index over base-2 logarithms of sizes, in which a size of 0 counts as 1. It is built by the first search."""

    def __init__(self) -> None:
        self._nearest: Nearest | None = None

    @property
    def _index(self) -> Nearest:
        if self._nearest is None:
            self._nearest = Nearest(self._octaves())
        return self._nearest

    def closest(self, sizes: Sizes) -> tuple[float, list[int]] | None:
        """Return the smallest distance and the points at it; None if every point was dropped."""
        return self._index.closest(octaves(sizes))

    def nearer(self, sizes: Sizes, distance: float) -> int:
        """Return the number of points at smaller distances, including dropped ones."""
        return self._index.nearer(octaves(sizes), distance)

    def rising(self, sizes: Sizes) -> Iterator[Ring]:
        """Yield the rings around sizes by increasing distance, including dropped points."""
        for distance, points in self._index.rising(octaves(sizes)):
            yield distance, len(points), self.entries(points)

    @property
    def dropped(self) -> int:
        """The number of dropped points."""
        return self._index.dropped

    def drop(self, points: Sequence[int]) -> None:
        """Exclude points from `closest` because none of their records may be served."""
        self._index.drop(points)

    @abstractmethod
    def entries(self, points: Sequence[int]) -> list[Entry]:
        """Return the entries at points, each key of a source once."""

    @abstractmethod
    def _octaves(self) -> Any:
        """Return the logarithms of the sizes, one row per point."""


class Listed(Neighbours):
    """Problems that were read one by one. A size that is not a number is at infinite distance."""

    def __init__(self) -> None:
        super().__init__()
        self._by_sizes: dict[Sizes, list[Entry]] = {}

    def add(self, sizes: Sizes, entry: Entry) -> None:
        """Add a problem, before the first search."""
        self._by_sizes.setdefault(sizes, []).append(entry)

    def entries(self, points: Sequence[int]) -> list[Entry]:
        return [entry for point in points for entry in self._measured[point]]

    def rising(self, sizes: Sizes) -> Iterator[Ring]:
        yield from super().rising(sizes)
        if rest := [entry for size, of_size in self._by_sizes.items() if not _measurable(size) for entry in of_size]:
            yield inf, len(rest), rest

    def _octaves(self) -> list[tuple[float, ...]]:
        measurable = {sizes: entries for sizes, entries in self._by_sizes.items() if _measurable(sizes)}
        self._measured = list(measurable.values())
        return [octaves(sizes) for sizes in measurable]


class Packed(Neighbours):
    """Problems whose sizes a database stores separately, from the lines of `read.DatabaseRecords.families`.

    They have the fields of `problem`, and its values except for `extents`. Raises StoreError for lines without such
    numbers.
    """

    def __init__(self, source: int, key: Key, problem: Fields, extents: Sequence[str], lines: str) -> None:
        super().__init__()
        self._source, self._key, self._problem, self._extents = source, key, dict(problem), extents
        self._entries: dict[tuple[int, ...], list[Entry]] = {}  # of points that a search has returned
        self._sizes = _selected(lines, numbers_in(problem), extents)

    @property
    def gpu(self) -> str:
        return self._key.gpu

    def entries(self, points: Sequence[int]) -> list[Entry]:
        if (named := tuple(points)) not in self._entries:
            sizes = (self._sizes[point].tolist() for point in points)
            problems = [encode(self._problem | dict(zip(self._extents, row, strict=True))) for row in sizes]
            keys = [self._key._replace(problem=problem) for problem in dict.fromkeys(problems)]
            self._entries[named] = [(self._source, key) for key in keys]
        return self._entries[named]

    def _octaves(self) -> Any:
        import numpy as np

        return np.log2(np.maximum(self._sizes, 1))


def _selected(lines: str, numbers: Mapping[str, int], extents: Sequence[str]) -> Any:
    """Return one row of extents per line, for lines whose other numbers are equal."""
    import numpy as np  # imported here, since most applications never need a neighbour

    if lines.encode().translate(None, b"0123456789 \n"):
        raise StoreError(f"{DAMAGED} (the sizes of its records are no numbers)")
    count = lines.count("\n") + 1
    rows = np.fromstring(lines, np.int64, sep=" ") if numbers else np.empty(0, np.int64)
    if len(rows) != count * len(numbers):
        raise StoreError(f"{DAMAGED} (the sizes of its records are not complete)")
    rows = rows.reshape(count, len(numbers))
    equal = [rows[:, at] == value for at, (name, value) in enumerate(numbers.items()) if name not in extents]
    if equal:
        rows = rows[np.logical_and.reduce(equal)]
    names = list(numbers)
    return rows[:, [names.index(name) for name in extents]]


def octaves(sizes: Sizes) -> tuple[float, ...]:
    """Return the base-2 logarithms of sizes."""
    return tuple([log2(size) if size > 1 else 0.0 for size in sizes])  # type: ignore[operator,arg-type]


def _measurable(sizes: Sizes) -> bool:
    return all(not isinstance(size, str) and abs(size) < 2**63 for size in sizes)
