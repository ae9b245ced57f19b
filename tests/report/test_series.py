"""Geometry of the figures of a comparison."""

from itertools import pairwise

from tuner.report.charts import WIDTH
from tuner.report.series import Series, bars, lines

LENGTHS = (128.0, 1024.0, 8192.0)


def series(count: int) -> list[Series]:
    """Kernels that end nearly alike."""
    return [Series(f"kernel {n}", tuple((T, T / 100 + n / 1e3) for T in LENGTHS)) for n in range(count)]


def test_a_line_goes_through_every_size_and_growth_is_straight_on_logarithmic_axes() -> None:
    drawn = lines([Series("linear", tuple((T, 3 * T) for T in LENGTHS))])
    assert drawn is not None
    points = [tuple(map(float, part.split())) for part in drawn.lines[0].path.removeprefix("M").split("L")]
    slopes = [(below[1] - above[1]) / (below[0] - above[0]) for above, below in pairwise(points)]
    assert len(points) == 3
    assert max(slopes) - min(slopes) < 1e-3
    assert [tick.label for tick in drawn.x_ticks] == ["128", "1024", "8192"]


def test_names_at_the_ends_of_lines_do_not_touch_and_lie_in_the_drawing() -> None:
    drawn = lines(series(9))
    assert drawn is not None
    heights = sorted(line.label_at for line in drawn.lines)
    assert all(lower - upper >= 14.9 for upper, lower in pairwise(heights))
    assert heights[0] > 0 and heights[-1] < drawn.height


def test_one_size_is_no_line() -> None:
    assert lines([Series("alone", ((128.0, 1.0),)), Series("nothing", ())]) is None


def test_bars_are_as_long_as_their_values_and_leave_room_for_their_text() -> None:
    drawn = bars([("a", 10.0, 9.0, 11.0), ("b", 5.0, 4.0, 6.0)], "µs")
    long, short = drawn.bars
    assert (short.end - drawn.left) * 2 == long.end - drawn.left
    assert long.low < long.end < long.high < WIDTH - 60
    assert long.value == "10 µs"


def test_a_line_that_ends_early_is_named_where_it_ends() -> None:
    drawn = lines([*series(1), Series("early", ((128.0, 1.3),))])
    assert drawn is not None
    early = drawn.lines[1]
    assert early.end[0] < drawn.right and early.label_at == early.end[1]


def test_equal_values_are_a_level_line() -> None:
    drawn = lines([Series("flat", ((1.0, 5.0), (2.0, 5.0)))])
    assert drawn is not None
    assert drawn.lines[0].path.split("L")[0].split()[1] == drawn.lines[0].path.split()[-1]


def test_names_stand_in_the_order_of_their_lines() -> None:
    series = [Series(name, ((1.0, 1.0), (2.0, value))) for name, value in (("a", 100.0), ("c", 99.0), ("b", 98.0))]
    drawn = lines(series)
    assert drawn is not None
    assert [each.name for each in sorted(drawn.lines, key=lambda each: each.label_at)] == ["a", "c", "b"]


def test_a_drawing_is_high_enough_for_the_names_of_many_lines() -> None:
    series = [Series(str(i), ((1.0, 1.0), (2.0, 1.0 + i))) for i in range(60)]
    drawn = lines(series)
    assert drawn is not None
    assert all(0 <= each.label_at <= drawn.height for each in drawn.lines)
