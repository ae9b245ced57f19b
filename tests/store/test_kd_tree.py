"""Tests of the nearest points, compared with an exhaustive search."""

from math import dist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.store.kd_tree import DIGITS, Nearest

POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=200)


def by_hand(points: list[tuple[int, int]], wanted: tuple[int, int], left: set[int]) -> tuple[float, list[int]] | None:
    distances = {number: round(dist(points[number], wanted), DIGITS) for number in left}
    least = min(distances.values(), default=0.0)
    return (least, [number for number in sorted(left) if distances[number] == least]) if left else None


@given(POINTS, st.lists(st.tuples(st.integers(-2, 11), st.integers(-2, 11)), min_size=1, max_size=5))
def test_the_closest_points_are_those_of_a_comparison_with_all(
    points: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    index, left = Nearest(np.array(points, float)), set(range(len(points)))
    for entry in wanted:
        result = index.closest(entry)
        assert result == by_hand(points, entry, left)
        assert result is None or next(index.rising(entry))[0] <= result[0]
        index.drop(result[1] if result else [])
        left -= set(result[1] if result else [])


@given(POINTS)
def test_every_point_rises_once(points: list[tuple[int, int]]) -> None:
    rising = list(Nearest(points).rising((4, 4)))
    assert sorted(number for _, numbers in rising for number in numbers) == list(range(len(points)))
    assert [distance for distance, _ in rising] == sorted({round(dist(point, (4, 4)), DIGITS) for point in points})


@pytest.mark.parametrize("count", [1, 40])
def test_points_without_coordinates_are_all_nearest(count: int) -> None:
    assert Nearest([()] * count).closest(()) == (0.0, list(range(count)))
