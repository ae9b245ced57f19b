"""Vega-Lite specs → SVG: text, links and a label for each mark, in the colours of the page around it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

Spec = Mapping[str, Any]
ABOVE = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleY": -14, "titlePadding": 0}  # of a y axis
_FONT = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
# Colours are variables of reports/style.css, so that one drawing serves light, dark and paper.
_CONFIG = {
    "background": None,
    "font": "Arial, Helvetica, Liberation Sans, sans-serif",  # metrics by which the converter places text
    "padding": {"left": 5, "right": 14, "top": 8, "bottom": 5},
    "view": {"stroke": None},
    "axis": {
        **_FONT,
        **dict.fromkeys(("labelColor", "titleColor"), "var(--soft)"),
        **dict.fromkeys(("gridColor", "domainColor", "tickColor"), "var(--rule)"),
    },
    "legend": _FONT | {"labelColor": "var(--ink)", "labelLimit": 0, "symbolType": "stroke", "symbolSize": 900},
    "point": {"size": 26, "opacity": 1},
    "rule": {"color": "var(--soft)"},
    "text": {"color": "var(--soft)", "fontSize": 12, "baseline": "middle"},
}
_PLACES = re.compile(r' (?:d|transform)="[^"]*"')
_UNSEEN = re.compile(r"(\.\d)\d+")  # less than a tenth of a pixel, and a third of a drawing's bytes
_LINK = re.compile(r'<a xlink:href="[^"#]*#')  # the converter puts a base before a link within the page


def draw(spec: Spec) -> Markup:
    """A drawing that needs no script. Only the page's script puts marks in the order of the Tab key, by arrow keys:
    hundreds of stops would bar the way to the rest."""
    import vl_convert  # it brings a JavaScript engine along, which a command that draws nothing need not load

    svg = vl_convert.vegalite_to_svg(dict(spec), vl_version="6.4", config=_CONFIG, allowed_base_urls=[])
    svg = _PLACES.sub(lambda match: _UNSEEN.sub(r"\1", match[0]), svg)
    return Markup(_LINK.sub('<a tabindex="-1" href="#', svg))


def layer(kind: str | Spec, rows: Sequence[Spec], **channels: object) -> dict[str, Any]:
    """Marks of one kind, one a row, by channels such as `x=quantity("try")`."""
    return {"mark": kind, "data": {"values": list(rows)}, "encoding": channels}


def mark(shape: str, colour: str = "", **options: object) -> dict[str, Any]:
    """A mark around which the style sheet lays an edge that a pointer can hit."""
    fill = {"fill": colour, "stroke": None} if colour else {}
    return {"type": "point", "shape": shape, "filled": True, **fill, **options}


def quantity(field: str, **options: object) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", **options}


def category(field: str, **options: object) -> dict[str, Any]:
    """Text or whole numbers, in the order in which they appear."""
    return {"field": field, "type": "ordinal", "sort": None, **options}


def linked() -> dict[str, Any]:
    """Channels of marks whose rows have a `row`, the id of what tells all about them, and a `label`."""
    return {"href": {"field": "row"}, "description": {"field": "label"}}


def scale(low: float, high: float, **options: object) -> dict[str, Any]:
    """Logarithmic, or linear where the values are not positive; equal values get some room."""
    kind, least = ("log", 1.02 * low) if low > 0 else ("linear", low + 1 if high <= low else high)
    return {"type": kind, "domain": [low, max(high, least)], "zero": False, "nice": False, **options}
