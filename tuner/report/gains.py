"""The figure of a portfolio: the gain over a common baseline for each problem, by what serves it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tuner.base.canonical_json import encode
from tuner.base.fields import formatted
from tuner.report import vega
from tuner.report.notation import times
from tuner.report.section import Section
from tuner.report.vega import category, layer, linked, quantity
from tuner.search.portfolio import Family, ServedProblem

_WIDTH, _HEIGHT = 1100, 260
_MOST = 60  # problems, so that their labels have room
SERIES = ("a record of its own", "the portfolio", "the nearest other record")
_COLOURS = ("var(--accent)", "var(--good)", "var(--bad)")
_SHAPES = ("circle", "square", "triangle-up")


@dataclass(frozen=True, slots=True)
class Gains:
    svg: Markup
    baseline: str  # "an untuned call", or "the winner's own default"


def gains(family: Family, number: int, sections: Sequence[Section]) -> Gains | None:
    """Return the figure of the `number`-th family; None unless at least two of its problems have a baseline."""
    by_problem = {encode(section.data.problem): section for section in sections}
    matches = [(served, by_problem.get(encode(served.problem))) for served in family.places]
    pairs = [(served, section) for served, section in matches if section is not None]
    baseline, ratios = _ratios([section for _, section in pairs])
    points = [
        point
        for (served, section), ratio in zip(pairs, ratios, strict=True)
        if ratio
        for point in _points(served, section, ratio, family, number)
    ]
    labels = list(dict.fromkeys(str(point["problem"]) for point in points))
    if not 2 <= len(labels) <= _MOST:
        return None
    return Gains(_draw(points, labels, f"gain over {baseline} ({family.evidence.value})"), baseline)


def _ratios(sections: Sequence[Section]) -> tuple[str, list[float | None]]:
    """Return the baseline, and its value relative to that of each problem's winner."""
    untuned = [section.data.over_untuned for section in sections]
    if any(gain is not None for gain in untuned):
        return "an untuned call", [None if gain is None else 1 + gain for gain in untuned]
    return "the winner's own default", [section.over_default for section in sections]


def _points(
    served: ServedProblem, section: Section, ratio: float, family: Family, number: int
) -> Iterator[dict[str, object]]:
    name = formatted(family.own(served.problem))
    lost = zip(SERIES, (0.0, served.regret, served.unlisted_regret), strict=True)
    for series, regret in lost:
        if regret is not None:
            gain = ratio / (1 + regret)
            label = f"{name}, {series}: {times(gain)}"
            row = f"#portfolio-{number}-{section.id}"
            yield {"problem": name, "series": series, "gain": gain, "row": row, "label": label}


def _draw(points: Sequence[Mapping[str, object]], labels: Sequence[str], title: str) -> Markup:
    values = [float(str(point["gain"])) for point in points]
    low, high = min(1.0, *values), max(1.0, *values)
    scale = {"zero": False, "domain": [low * 0.97, high * 1.03]} | ({"type": "log"} if high / low > vega.LOG else {})
    texts = {"labelAngle": -30 if max(map(len, labels)) > 8 else 0, "labelLimit": 260, "labelColor": "var(--ink)"}
    x = category("problem", title=None, scale={"domain": list(labels)}, axis=texts | {"grid": False})
    y = quantity("gain", title=title, scale=scale, axis=vega.ABOVE | {"labelExpr": "format(datum.value, '.4~g') + '×'"})
    own = {"field": "series", "type": "nominal"}
    colour = own | {
        "scale": {"domain": list(SERIES), "range": list(_COLOURS)},
        "legend": {"title": None, "orient": "top"},
    }
    shape = own | {"scale": {"domain": list(SERIES), "range": list(_SHAPES)}, "legend": None}
    spec = {
        "width": _WIDTH,
        "height": _HEIGHT,
        "encoding": {"x": x},
        "layer": [
            layer({"type": "line", "strokeWidth": 1.5, "aria": False}, points, y=y, color=colour),
            layer({"type": "point", "filled": True, "size": 60}, points, y=y, color=colour, shape=shape, **linked()),
        ],
    }
    return vega.draw(spec)
