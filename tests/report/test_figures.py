"""Tests of a report's figures: the marks, their positions, and the rows that they link to."""

import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise
from math import log
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from tests.report.report_factory import CHOICES, DEFAULT, attempt, report_data
from tuner import report
from tuner.base.assets import REPORTS
from tuner.base.fields import formatted
from tuner.report.clocks import clocks
from tuner.report.comparison_figure import Value, bars, lines
from tuner.report.convergence_figure import convergence
from tuner.report.data import ReportData
from tuner.report.effects import effects
from tuner.report.notation import reasons
from tuner.report.parallel_figure import FEWEST, LINES, parallel
from tuner.report.section import Profile, Section, profile, sections
from tuner.report.slices import slices
from tuner.report.timelines import CodePath, timelines
from tuner.results.final_race import FinalRace, Lap, Runner

NUMBER = r"-?\d+(?:\.\d+)?"


@dataclass(frozen=True)
class Mark:
    """A shape that links to a row."""

    row: str
    attributes: dict[str, str]

    @property
    def label(self) -> str:
        return self.attributes.get("aria-label", "")

    @property
    def at(self) -> tuple[float, float]:
        """Where a dot lies in its plot."""
        result = re.search(rf"translate\(({NUMBER}),({NUMBER})\)", self.attributes["transform"])
        assert result
        return float(result[1]), float(result[2])

    @property
    def path(self) -> list[tuple[float, float]]:
        """The corners of a line."""
        return [(float(x), float(y)) for x, y in re.findall(rf"({NUMBER}),({NUMBER})", self.attributes["d"])]


class Drawing(HTMLParser):
    """The marks of a drawing in their order, and its text."""

    def __init__(self, svg: str) -> None:
        super().__init__()
        self.marks: list[Mark] = []
        self.texts: list[str] = []
        self._row = ""
        self.feed(svg)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attributes}
        if tag == "a":
            self._row = named["href"]
        elif self._row:
            self.marks.append(Mark(self._row, named))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag: str) -> None:
        self._row = "" if tag == "a" else self._row

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def filled(self, colour: str) -> list[Mark]:
        return [mark for mark in self.marks if mark.attributes.get("fill") == f"var(--{colour})"]

    def stroked(self, colour: str) -> list[Mark]:
        return [mark for mark in self.marks if mark.attributes.get("stroke") == f"var(--{colour})"]


def section(data: ReportData) -> Section:
    return sections([data])[0]


def tries(marks: list[Mark]) -> list[int]:
    return [int(mark.row.removeprefix("#p1-try-")) for mark in marks]


@pytest.mark.parametrize("measured", [False, True])
def test_each_try_is_one_mark_that_links_to_its_row_and_says_its_value(measured: bool) -> None:
    selected = section(report_data(200, measured=measured))
    drawing = Drawing(convergence(selected).svg)
    assert sorted(tries(drawing.filled("dot"))) == sorted(entry.index + 1 for entry in selected.entries)
    assert tries(drawing.filled("bad")) == [n for n, a in enumerate(selected.attempts, 1) if a.failure]
    labels = {mark.row: mark.label for mark in drawing.filled("dot")}
    for entry in selected.entries:
        value = f"{entry.value:.2f} µs" if measured else f"{entry.relative:.3f}×"
        assert labels[f"#p1-try-{entry.index + 1}"] == f"try {entry.index + 1}, rank {entry.rank}: {value}"


def test_the_winner_alone_has_a_ring() -> None:
    selected = section(report_data(200))
    (ring,) = Drawing(convergence(selected).svg).stroked("ink")
    assert tries([ring]) == [selected.entries[0].index + 1]


def test_values_are_logarithmic_and_tries_even() -> None:
    selected = section(report_data(120))
    svg = convergence(selected).svg
    placed = {mark.row: mark.at for mark in Drawing(svg).filled("dot")}
    entries = [(entry, *placed[f"#p1-try-{entry.index + 1}"]) for entry in selected.entries]
    (first, _, y1), (last, _, y2) = entries[0], entries[-1]
    for entry, _, y in entries:
        share = log(entry.relative / first.relative) / log(last.relative / first.relative)
        assert y == pytest.approx(y1 + share * (y2 - y1), abs=0.25)
    by_try = sorted((entry.index, x) for entry, x, _ in entries)
    (n1, x1), (n2, x2) = by_try[0], by_try[-1]
    tick = re.search(rf'translate\(({NUMBER}),{NUMBER}\)"[^>]*>100</text>', svg)
    assert tick
    assert float(tick[1]) == pytest.approx(x1 + (99 - n1) / (n2 - n1) * (x2 - x1), abs=0.6)
    assert all(x == pytest.approx(x1 + (n - n1) / (n2 - n1) * (x2 - x1), abs=0.25) for n, x in by_try)


def test_a_value_far_beyond_the_winner_is_a_triangle_at_the_edge_and_counted() -> None:
    selected = section(report_data(30))
    slow = replace(selected.entries[-1], value=50 * selected.entries[0].value)
    drawn = convergence(replace(selected, entries=(*selected.entries[:-1], slow)))
    marks = {mark.row: mark for mark in Drawing(drawn.svg).filled("dot")}
    edge = marks[f"#p1-try-{slow.index + 1}"]
    assert drawn.n_above == 1
    assert edge.at[1] == min(mark.at[1] for mark in marks.values())
    assert Counter(mark.attributes["d"] for mark in marks.values())[edge.attributes["d"]] == 1


def test_failures_stand_by_stage_in_the_order_of_the_stages() -> None:
    selected = section(report_data(200))
    drawing = Drawing(convergence(selected).svg)
    heights = {mark.label.split(": ")[1]: mark.at[1] for mark in drawing.filled("bad")}
    assert heights["compile"] < heights["limit"]
    assert {"✗ compile", "✗ limit"} <= set(drawing.texts)


def test_the_best_so_far_goes_down_to_the_winner_and_to_the_last_try() -> None:
    selected = section(report_data(200))
    svg = convergence(selected).svg
    line = next(tag for tag in re.findall(r"<path[^>]*>", svg) if 'stroke="var(--accent)"' in tag and " d=" in tag)
    steps = [(float(x), float(y)) for x, y in re.findall(rf"({NUMBER}),({NUMBER})", line)]
    assert all(before[1] <= after[1] for before, after in pairwise(steps))
    dots = {mark.row: mark.at for mark in Drawing(svg).filled("dot")}
    assert steps[-1][1] == pytest.approx(dots[f"#p1-try-{selected.entries[0].index + 1}"][1], abs=0.11)


def test_predicted_costs_have_ticks_in_multiples_and_times_in_numbers() -> None:
    for measured, suffix, title in ((False, "×", "relative cost (predicted)"), (True, "", "time, µs (measured)")):
        texts = Drawing(convergence(section(report_data(60, measured=measured))).svg).texts
        assert title in texts
        ticks = texts[: texts.index(title)] if measured else [text for text in texts if text.endswith("×")]
        assert len([text for text in ticks if re.fullmatch(rf"[\d.]+{suffix}", text)]) >= 3


@pytest.mark.parametrize("n", [2, 3, 500])
def test_a_search_of_any_length_is_drawn(n: int) -> None:
    assert len(Drawing(convergence(section(report_data(n))).svg).marks) == n + 1


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_equal_values_and_zeros_are_drawn_apart_from_nothing(value: float) -> None:
    selected = section(report_data(6))
    equal = replace(selected, entries=tuple(replace(entry, value=value, relative=1.0) for entry in selected.entries))
    for svg in (convergence(equal).svg, (parallel(equal) or pytest.fail()).svg):
        assert "NaN" not in svg
        assert len({mark.row for mark in Drawing(svg).marks}) >= len(equal.entries)


def test_parallel_coordinates_have_an_axis_for_each_parameter_that_varies_and_one_for_the_value() -> None:
    selected = section(report_data(200))
    drawn = parallel(selected)
    assert drawn
    assert drawn.names == tuple(CHOICES)
    texts = Drawing(drawn.svg).texts
    assert [text for text in texts if text in CHOICES] == list(CHOICES)
    assert "relative cost (predicted)" in texts
    assert all(len(mark.path) == len(CHOICES) + 1 for mark in Drawing(drawn.svg).stroked("accent"))


def test_a_line_passes_each_axis_in_the_band_of_its_value_and_ends_at_its_dot() -> None:
    selected = section(report_data(200))
    drawing = Drawing((parallel(selected) or pytest.fail()).svg)
    dots = {mark.row: mark.at for mark in drawing.marks if mark.label}
    rows = {f"#p1-try-{entry.index + 1}": entry for entry in selected.entries}
    lines = {mark.row: mark.path for mark in drawing.marks if not mark.label}
    bands: dict[tuple[str, object], list[float]] = {}
    for mark in drawing.marks:
        if not mark.label:
            assert mark.path[-1] == pytest.approx(dots[mark.row], abs=0.2)
            for name, (_, y) in zip(CHOICES, mark.path, strict=False):
                bands.setdefault((name, rows[mark.row].attempt.config[name]), []).append(y)
    for name, choices in CHOICES.items():
        for value in choices:  # the better ones run higher
            entries = [entry for entry in selected.entries if entry.attempt.config[name] == value]
            assert min(bands[name, value]) == lines[f"#p1-try-{entries[0].index + 1}"][list(CHOICES).index(name)][1]
        spans = [(min(bands[name, choice]), max(bands[name, choice])) for choice in reversed(choices)]
        assert all(upper[1] < lower[0] for upper, lower in pairwise(spans))


def test_a_single_parameter_is_still_a_figure() -> None:
    data = report_data(60)
    attempts = [replace(a, config={"BT": a.config["BT"], "n": 1}) for a in data.attempts if a.failure is None]
    drawn = parallel(section(replace(data, attempts=attempts, record=None, verdicts={})))
    assert drawn
    assert drawn.names == ("BT",)


def test_nothing_varies_in_a_search_of_one() -> None:
    assert parallel(section(report_data(1))) is None


def test_many_lines_are_sampled_but_the_best_tenth_never() -> None:
    data = report_data(1100)
    for data_of_page, most in (([data], LINES), ([data] * 40, FEWEST)):
        result = sections(data_of_page)[0]
        drawn = parallel(result)
        assert drawn
        drawing = Drawing(drawn.svg)
        best = drawing.stroked("accent") + [mark for mark in drawing.stroked("ink") if not mark.label]
        assert sorted(tries(best)) == sorted(e.index + 1 for e in result.entries[: -(-len(result.entries) // 10)])
        assert 0 < len(drawing.stroked("thin")) == drawn.n_drawn - drawn.n_best <= most


def test_a_parameter_that_some_configs_lack_has_a_place_for_none() -> None:
    data = report_data(20)
    other = replace(data.attempts[0], config={"BT": 128})
    selected = section(replace(data, attempts=[*data.attempts, other], record=None, verdicts={}))
    drawn = parallel(selected)
    assert drawn
    assert Drawing(drawn.svg).texts.count("none") == len(CHOICES) - 1


def test_parameters_of_other_implementations_are_not_drawn_with_the_winners() -> None:
    data = report_data(30)
    other = attempt({**DEFAULT, "columns": 24}, random.Random(0), implementation="naive")
    drawn = parallel(section(replace(data, attempts=[*data.attempts, other])))
    assert drawn
    assert "columns" not in drawn.names
    assert 31 not in tries(Drawing(drawn.svg).marks)


def test_profiles_are_shares_of_the_winners_cost() -> None:
    entries = section(report_data(40)).entries
    result = profile(entries[:3])
    winner = entries[0].attempt.prediction
    assert result
    assert winner
    assert result.rows[0][result.terms.index("tensor")] == pytest.approx(float(winner.terms["tensor"]) / winner.cost)


def test_terms_of_a_model_that_is_no_more_have_no_meaning_to_tell() -> None:
    result = Profile(terms=("L2", "what nobody knows"), rows=((0.5, 0.5),), largest=0.5)
    assert result.meanings == {"L2": "bytes between L2 and the SMs"}


LENGTHS = (128.0, 1024.0, 8192.0)


def over_sizes(name: str, factor: float = 1.0, sizes: tuple[float, ...] = LENGTHS) -> Iterator[tuple[float, Value]]:
    for size in sizes:
        mid = factor * size
        yield size, Value(name, mid, 0.9 * mid, 1.1 * mid, f"row-{name}-{size:g}")


def test_growth_is_a_straight_line_on_logarithmic_axes_with_a_linked_dot_a_size() -> None:
    drawing = Drawing(lines(list(over_sizes("a", 3)), "seq_q", "time, µs") or pytest.fail())
    assert [mark.row for mark in drawing.marks] == [f"#row-a-{size:g}" for size in LENGTHS]
    assert [mark.label for mark in drawing.marks] == [f"a: {3 * size:.4g}" for size in LENGTHS]
    (x1, y1), (x2, y2), (x3, y3) = (mark.at for mark in drawing.marks)
    assert (y2 - y1) / (x2 - x1) == pytest.approx((y3 - y2) / (x3 - x2), abs=0.01)
    assert {"128", "1024", "8192", "seq_q", "time, µs"} <= set(drawing.texts)


def test_names_stand_in_the_order_in_which_their_lines_end_and_ended_ones_last() -> None:
    values = [*over_sizes("early", 9, LENGTHS[:1]), *over_sizes("b", 1), *over_sizes("c", 3), *over_sizes("d", 2)]
    texts = Drawing(lines(values, "n", "t") or pytest.fail()).texts
    assert [text for text in texts if text in {"early", "b", "c", "d"}] == ["c", "d", "b", "early"]


def test_thirty_lines_differ_in_colour_or_dashes() -> None:
    svg = lines([pair for n in range(30) for pair in over_sizes(f"k{n}", 1 + n)], "n", "t") or pytest.fail()
    drawn = [tag for tag in re.findall(r"<path[^>]*>", svg) if 'd="M0,' in tag and "L" in tag]
    looks = {(*re.findall(r'stroke="([^"]*)"', tag), *re.findall(r'stroke-dasharray="([^"]*)"', tag)) for tag in drawn}
    assert len(drawn) == len(looks) == 30


def test_one_size_is_no_line() -> None:
    assert lines(list(over_sizes("alone", sizes=(128.0,))), "n", "t") is None


def test_bars_are_as_long_as_their_values_and_say_them() -> None:
    measured = (("a", 10.0), ("b", 5.0), ("a", 2.0))
    values = [Value(name, mid, 0.9 * mid, 1.1 * mid, f"row-{n}") for n, (name, mid) in enumerate(measured, 1)]
    drawing = Drawing(bars(values, "time, µs", "µs") or pytest.fail())
    assert [mark.row for mark in drawing.marks] == ["#row-1", "#row-2", "#row-3"]
    long, short, _ = (float(re.findall(rf"h({NUMBER})", mark.attributes["d"])[0]) for mark in drawing.marks)
    assert short * 2 == pytest.approx(long, abs=0.3)
    assert {"10 µs", "5 µs", "2 µs", "b"} <= set(drawing.texts)
    assert drawing.texts.count("a") == 2


def test_values_that_differ_by_more_than_ten_times_are_dots_on_a_logarithmic_axis() -> None:
    values = [Value(name, mid, mid, mid, f"row-{mid:g}") for name, mid in (("a", 1.0), ("b", 10.0), ("c", 100.0))]
    drawing = Drawing(bars(values, "cost", "×") or pytest.fail())
    (x1, _), (x2, _), (x3, _) = (mark.at for mark in drawing.marks)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert {"1 ×", "10 ×", "100 ×"} <= set(drawing.texts)


def test_a_parameter_has_a_direction_and_the_best_of_its_other_values() -> None:
    selected = section(report_data(200))
    by_name = {effect.parameter: effect for effect in effects(selected)}
    swizzle = by_name["swizzle"]
    assert swizzle.direction == "on is better"  # the factory's shared memory costs twice as much without
    assert swizzle.trend == pytest.approx(
        spearmanr(
            [entry.attempt.config["swizzle"] for entry in selected.entries], [e.value for e in selected.entries]
        ).statistic
    )
    others = [entry for entry in selected.entries if not entry.attempt.config["swizzle"]]
    assert swizzle.alternative is not None
    assert swizzle.alternative.best == others[0]
    assert by_name["warps"].direction == "no clear direction"


def test_a_parameter_of_words_has_no_direction() -> None:
    data = report_data(30)
    attempts = [replace(a, config={**a.config, "mode": "ab"[n % 2]}) for n, a in enumerate(data.attempts)]
    (mode,) = (e for e in effects(section(replace(data, attempts=attempts, record=None))) if e.parameter == "mode")
    assert (mode.trend, mode.direction) == (None, "no clear direction")
    assert [of.value for of in mode.values] == ["a", "b"]


def test_slices_have_a_panel_a_parameter_with_a_dot_a_value_at_its_best() -> None:
    selected = section(report_data(200))
    drawn = slices(selected)
    assert drawn
    assert {effect.parameter for effect in drawn.effects} == set(CHOICES)
    drawing = Drawing(drawn.svg)
    dots = drawing.filled("dot")
    assert len(dots) == sum(map(len, CHOICES.values()))
    best = [of.best.index + 1 for effect in drawn.effects for of in effect.values]
    assert tries(dots) == best
    assert set(CHOICES) <= set(drawing.texts)
    assert tries(drawing.stroked("ink")) == [selected.entries[0].index + 1] * len(CHOICES)


def test_contours_have_the_best_of_each_pair_of_values_that_was_tried() -> None:
    selected = section(report_data(60))
    drawn = slices(selected)
    assert drawn and drawn.contours
    first, second = drawn.pairs[0]
    best: dict[object, float] = {}
    for entry in selected.entries:
        best.setdefault((entry.attempt.config[first], entry.attempt.config[second]), entry.relative)
    texts = Drawing(drawn.contours).texts
    assert {f"{cost:.2f}" for cost in best.values()} <= set(texts)
    assert {first, second} <= set(texts)


def test_a_search_of_one_config_has_no_slices() -> None:
    assert slices(section(report_data(1))) is None


def test_a_timeline_has_a_bar_a_path_of_the_winner_and_of_the_default() -> None:
    fast = CodePath(
        "k", "products", "loop 0x10 to 0x80", 100.0, {"issue": 0.6, "wgmma": 0.4}, (("issue", 96), ("wgmma", 64))
    )
    slow = replace(fast, cycles=200.0, shares={"wgmma": 0.8, "issue": 0.2}, runs=(("issue", 32), ("wgmma", 128)))
    once = CodePath("k", "copies", "once through", 50.0, {"issue": 1.0}, (("issue", 160),))
    drawn = timelines({"winner": (once, fast), "default": (slow,)})
    assert drawn
    assert [(name, owner) for name, owner, _ in drawn.rows] == [
        ("copies, once", "winner"), ("products, loop", "winner"), ("products, loop", "default"),
    ]  # fmt: skip
    assert drawn.causes == ("wgmma",)
    issue, waits = (
        [float(width) for width in re.findall(rf'h({NUMBER})v[^"]*" fill="var\(--{colour}\)"', drawn.svg)]
        for colour in ("accent", "soft")
    )
    issue, waits = ([width for width in widths if width > 20] for widths in (issue, waits))  # without the legend
    assert sorted(issue) == pytest.approx([930 / 200 * cycles for cycles in (40, 50, 60)], abs=0.5)
    assert sorted(waits) == pytest.approx([930 / 200 * cycles for cycles in (40, 160)], abs=0.5)
    assert {"copies, once, winner", "products, loop, default", "200"} <= set(Drawing(drawn.svg).texts)
    assert timelines({}) is None


def test_figures_are_images_with_a_label_and_one_tab_stop() -> None:
    html = report.render([report_data(40), report_data(40, measured=True)])
    figures = re.findall(
        r'<div class="plot scroll" tabindex="0" role="group" aria-label="[^"]+">(<svg.*?</svg>)', html, re.DOTALL
    )
    assert len(figures) == html.count('<div class="plot') == 8
    for svg in figures:
        assert re.match(r'<svg role="img" aria-label="[^"]{30,}"', svg)
        assert 'tabindex="0"' not in svg


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1, 2])  # light, dark, print
def test_texts_and_marks_have_a_contrast_of_four_and_a_half(scheme: int) -> None:
    style = re.sub(r"#([0-9a-f])([0-9a-f])([0-9a-f])\b", r"#\1\1\2\2\3\3", (REPORTS / "style.css").read_text())
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[0] + blocks[scheme]))
    names = ("ink", "soft", "accent", "good", "bad", "warn", "dot", "thin", "key", "num", "str", "pointed")
    for name in names:
        for background in ("page", "panel"):
            light, dark = sorted((luminance(colours[name]), luminance(colours[background])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, background)


def test_nothing_that_was_timed_is_no_bar() -> None:
    assert bars([], "time, µs", "µs") is None


def test_hostile_names_stay_text() -> None:
    name = "</text><script>alert(1)</script>\"' & ${x} \\"
    values = [Value(name, 10.0, 9.0, 11.0, "row-1"), Value("b", 5.0, 4.0, 6.0, "row-2")]
    for svg in (bars(values, name, name), lines([(1, values[0]), (2, values[0])], name, name)):
        assert svg
        assert "<script" not in svg
        assert name in Drawing(svg).texts


class Rows(HTMLParser):
    """The rows of a page that have an id: what their table's headings and their cells say."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: dict[str, list[str]] = {}
        self.headings: dict[str, list[str]] = {}
        self.implementations: dict[str, str] = {}
        self._implementation = ""
        self._heads: list[str] = []
        self._cells: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        if tag == "table":
            self._implementation = named.get("data-implementation") or ""
        if tag in ("table", "tr"):
            self._cells = self._heads = [] if tag == "table" else self._heads
        if tag == "tr" and named.get("id"):
            self._cells = self.rows[str(named["id"])] = []
            self.headings[str(named["id"])] = self._heads
            self.implementations[str(named["id"])] = self._implementation
        if tag in ("td", "th") and self._cells is not None:
            self._cells.append("")

    def handle_data(self, data: str) -> None:
        if self._cells:
            self._cells[-1] += data.strip()

    def said(self, id: str) -> dict[str, str]:
        return dict(zip(self.headings[id], self.rows[id], strict=True))


@pytest.mark.parametrize("measured", [False, True])
def test_the_row_behind_a_mark_says_all_about_its_config(measured: bool) -> None:
    selected = section(report_data(60, measured=measured))
    rows = Rows(report.render([selected.data]))
    for entry in selected.entries:
        shown = rows.said(f"p1-try-{entry.index + 1}")
        own = entry.attempt
        assert own.resources
        assert rows.implementations[f"p1-try-{entry.index + 1}"] == own.identity.implementation
        assert formatted({name: shown[name] for name in own.config}) == formatted(own.config)
        assert shown[f"rank ({selected.data.evidence.value})"] == str(entry.rank)
        value = shown["time, µs (measured)" if measured else "relative cost (predicted)"]
        assert value == (f"{entry.value:.2f}" if measured else f"{entry.relative:.3f}×")
        assert shown["registers"] == str(own.resources.registers)


def test_every_mark_of_a_page_leads_to_a_row_of_it() -> None:
    html = report.render([report_data(40), report_data(40, measured=True)])
    leads = {mark.row[1:] for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL) for mark in Drawing(svg).marks}
    assert len(leads) == 80
    assert leads <= Rows(html).rows.keys()


def test_a_page_names_no_address_outside_itself() -> None:
    html = report.render([report_data(60)])
    assert set(re.findall(r"https?://[^\s\"'<>)]*", html)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_a_page_without_figures_loads_nothing_that_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path))  # no figure was drawn before
    code = """
report.markdown([report_data(20)]), report.data_json([report_data(20)])
print("vl_convert" in sys.modules)
report.render([report_data(20)])
print("vl_convert" in sys.modules)
"""
    assert printed(code).split() == ["False", "True"]


STARTS = ("import tuner", "from tuner import dispatcher; dispatcher.flash_attention", "import tuner.cli")


@pytest.mark.parametrize("start", STARTS)
def test_applications_and_commands_load_nothing_that_draws_or_colours(start: str) -> None:
    code = f"import sys; {start}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"vl_convert", "pygments"} & set(loaded)


def test_other_processes_draw_the_same_bytes() -> None:
    assert printed("print(report.render([report_data(40)]), end='')") == report.render([report_data(40)])


def printed(code: str) -> str:
    """What a process of its own prints."""
    path = f"sys.path.insert(0, {str(Path(__file__).parent)!r})"
    start = f"import sys; {path}; from report_factory import report_data; from tuner import report\n"
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=True).stdout


def raced(throttle: int = 4) -> ReportData:
    """A measured search with a race in four rounds: the winner's clock falls, the last one's is held down."""
    data = report_data(24, measured=True)
    assert data.record is not None
    won = data.record
    others = [stored for stored in data.attempts if stored.measurement and stored.config != won.config][:2]
    runners = tuple(
        Runner(stored.identity.implementation, stored.config, stored.identity.source) for stored in (*others, won)
    )
    rounds = tuple(
        (Lap(90.0, 1980, 0, 60), Lap(91.0, 1965, throttle, 62, 0.25), Lap(80.0, 1980 - 60 * n, 0, 61)) for n in range(4)
    )
    key = won.identity
    race = FinalRace(key.operator, key.problem, key.gpu, key.policy, runners, 2, rounds, floor_us=2.25, voided=3)
    return replace(data, race=race)


def test_the_clock_of_each_contender_is_drawn_over_the_rounds_and_told_in_cycles() -> None:
    data = raced()
    samples = clocks(sections([data])[0])
    assert samples is not None and samples.svg is not None
    assert [lap.time_us for lap in samples.ran] == [80.0, 90.0, 91.0]
    assert samples.ran[0].cycles == pytest.approx(80.0 * (1980 + 1800) / 2, rel=0.02)
    assert (samples.ran[0].low_mhz, samples.ran[0].high_mhz) == (1800, 1980)
    assert data.record is not None and samples.ran[0].own.items() <= data.record.config.items()
    assert samples.svg.count('stroke-width="2.5"') == 1
    assert samples.svg.count('fill="var(--bad)"') == 4  # triangles, a round each
    page = report.render([data])
    assert "power cap" in page and "takes 2.25 µs there" in page and "drawn again 3 times" in page
    assert json.loads(report.data_json([data]))["problems"][0]["race"]["rounds"][3][2]["sm_mhz"] == 1800


def test_where_nobody_could_read_a_clock_the_race_is_a_table_alone() -> None:
    data = raced()
    assert data.race is not None
    blind = tuple(tuple(Lap(lap.time_us) for lap in laps) for laps in data.race.rounds)
    samples = clocks(sections([replace(data, race=replace(data.race, rounds=blind))])[0])
    assert samples is not None and samples.svg is None
    assert "Final race" in report.render([replace(data, race=replace(data.race, rounds=blind))])
    assert clocks(sections([report_data(24, measured=True)])[0]) is None


def test_reasons_for_a_lower_clock_are_told_in_words_and_unknown_ones_by_their_bits() -> None:
    assert reasons(0) == ""
    assert reasons(0x44) == "power cap, heat, by hardware"
    assert reasons(0x1004) == "power cap, 0x1000"
