"""Tests of number formatting in reports."""

import math

import pytest

from tuner.report import notation


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        (notation.scalar(True), "true"),
        (notation.scalar(0.5), "0.5"),
        (notation.times(1.0432), "1.043×"),
        (notation.times(12.64), "12.6×"),
        (notation.percent(0.0314), "3.1\u00a0%"),
        (notation.percent(0.24), "24\u00a0%"),
        (notation.percent(0.0001), "<0.1\u00a0%"),
        (notation.percent(0.0), "0.0\u00a0%"),
        (notation.change(0.031), "+3.1\u00a0%"),
        (notation.change(-0.031), "−3.1\u00a0%"),
        (notation.change(0.0001), "+<0.1\u00a0%"),
        (notation.duration(0.31), "0.31\u00a0s"),
        (notation.duration(38.4), "38\u00a0s"),
        (notation.duration(250), "4\u00a0min 10\u00a0s"),
        (notation.duration(7500), "2\u00a0h 05\u00a0min"),
        (notation.significant(math.nan), "not finite"),
        (notation.kib(98816), "96.5"),
    ],
)
def test_values_are_spelled_for_people(spelled: str, expected: str) -> None:
    assert spelled == expected
