"""Which of many stored problems is nearest in the logarithms of its sizes.

SciPy's KDTree would serve, but importing scipy.spatial takes half a second of an application's first call. These are
its leaves alone: boxes of up to 256 points by recursive halving, which are searched in the order of their distances.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

_LEAF = 256
_DIGITS = 9  # of a distance: 500 and 2,000 are equally far from 1,000, however their logarithms are rounded


class Nearest:
    """An index over points of sizes, shape [points, sizes]; sizes of 0 count as 1."""

    def __init__(self, points: Sequence[Sequence[float]]) -> None:
        logs = _logs(points)
        leaves = list(_halved(logs, np.arange(len(logs))))
        self._order = np.concatenate(leaves)
        self._points = logs[self._order]
        self._ends = np.cumsum([len(leaf) for leaf in leaves])
        self._starts = self._ends - [len(leaf) for leaf in leaves]
        self._low = np.minimum.reduceat(self._points, self._starts)
        self._high = np.maximum.reduceat(self._points, self._starts)

    def search(self, sizes: Sequence[float]) -> Iterator[tuple[float, list[int]]]:
        """Distances in octaves, rising, each with the indices of all points at that distance."""
        wanted = _logs(sizes)
        distance, tied = self._closest(wanted)
        yield distance, sorted(tied)
        distances = _norms(self._points - wanted)
        order = np.argsort(distances, kind="stable")
        rising, starts = np.unique(distances[order], return_index=True)
        for each, indices in zip(rising.tolist(), np.split(self._order[order], starts[1:]), strict=True):
            if each > distance:
                yield each, sorted(indices.tolist())

    def _closest(self, wanted: npt.NDArray[np.float64]) -> tuple[float, list[int]]:
        bounds = _norms(np.maximum(np.maximum(self._low - wanted, wanted - self._high), 0.0))
        best = np.inf
        tied: list[int] = []
        for leaf in np.argsort(bounds).tolist():
            if bounds[leaf] > best:
                break
            part = slice(self._starts[leaf], self._ends[leaf])
            distances = _norms(self._points[part] - wanted)
            least = distances.min()
            if least <= best:
                tied = tied if least == best else []
                tied += self._order[part][distances == least].tolist()
                best = least
        return float(best), tied


def _logs(sizes: Sequence[float] | Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    return np.log2(np.maximum(np.asarray(sizes, np.float64), 1.0))


def _norms(differences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    norms: npt.NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", differences, differences)).round(_DIGITS)
    return norms


def _halved(logs: npt.NDArray[np.float64], indices: npt.NDArray[np.intp]) -> Iterator[npt.NDArray[np.intp]]:
    if len(indices) <= _LEAF:
        yield indices
        return
    within = logs[indices]
    half = len(indices) // 2
    parted = indices[np.argpartition(within[:, np.ptp(within, axis=0).argmax()], half)]
    yield from _halved(logs, parted[:half])
    yield from _halved(logs, parted[half:])
