"""Vega-Lite specs → SVG: text, and a link and label for each mark, in the colours of the page."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from markupsafe import Markup

from tuner.base.cache import Cache, CacheEntry, key_of
from tuner.base.canonical_json import encode

Spec = Mapping[str, Any]
LOG = 10.0  # an axis is logarithmic if its largest value is more than this many times its smallest
ABOVE = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleY": -14, "titlePadding": 0}  # for a y axis
_FONT = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
# Colours are variables of reports/style.css, so that one drawing works for light, dark and print.
_CONFIG = {
    "background": None,
    "font": "Arial, Helvetica, Liberation Sans, sans-serif",  # font metrics with which the converter places text
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
_VEGA_LITE = "6.4"
_PLACES = re.compile(r' (?:d|transform)="[^"]*"')
_UNSEEN = re.compile(r"(\.\d)\d+")  # less than a tenth of a pixel, and a third of a drawing's bytes
_LINK = re.compile(r'<a xlink:href="[^"#]*#')  # the converter adds a base to links within the page
# A figure is one image, so its parts have no roles; the others are what SVG or style.css says anyway.
_IMPLIED = re.compile(
    r' (?:role="graphics-[a-z]+"|aria-roledescription="[^"]*"|aria-hidden="true"|opacity="1"|stroke-width="1"|[xy]2="0"'
    r'|font-family="[^"]*")(?=[ />])|<path class="(?:background|foreground)"[^>]*fill="none"[^>]*/>'
    r'|<path class="foreground"[^>]*display="none"/>|<path class="background"(?:(?! fill=)[^>])*/>'
)


def draw(spec: Spec) -> Markup:
    """Return a drawing that needs no script.

    Marks are focusable only through the page's script, by arrow keys, so that a figure is one tab stop. Drawings are
    cached, because starting the converter takes longer than the rest of a page.
    """
    key = key_of("figure", _converter(), _VEGA_LITE, _IMPLIED.pattern, encode([spec, _CONFIG]))
    drawings = Cache.of("figure")
    if (stored := drawings.get(key)) is not None:
        return Markup(stored.data.decode())
    svg = _drawn(spec)
    drawings.put(key, CacheEntry(svg.encode()))
    return Markup(svg)


def labelled(svg: Markup, label: str) -> Markup:
    """Return a drawing that screen readers announce as one image with this label."""
    return Markup('<svg role="img" aria-label="{}"{}').format(label, Markup(svg.removeprefix("<svg")))


@cache
def _converter() -> str:
    return version("vl-convert-python")


def _drawn(spec: Spec) -> str:
    import vl_convert  # imported here because it includes a JavaScript engine, which most commands do not need

    svg = vl_convert.vegalite_to_svg(dict(spec), vl_version=_VEGA_LITE, config=_CONFIG, allowed_base_urls=[])
    svg = _PLACES.sub(lambda match: _UNSEEN.sub(r"\1", match[0]), _IMPLIED.sub("", svg))
    return _LINK.sub('<a tabindex="-1" href="#', svg)


def layer(kind: str | Spec, rows: Sequence[Spec], **channels: object) -> dict[str, Any]:
    """Return marks of one kind, one per row, by channels such as `x=quantity("try")`."""
    return {"mark": kind, "data": {"values": list(rows)}, "encoding": channels}


def mark(shape: str, colour: str = "", **options: object) -> dict[str, Any]:
    """Return a mark, which the style sheet surrounds with an area for the pointer."""
    fill = {"fill": colour, "stroke": None} if colour else {}
    return {"type": "point", "shape": shape, "filled": True, **fill, **options}


def quantity(field: str, **options: object) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", **options}


def category(field: str, **options: object) -> dict[str, Any]:
    """Return a channel of text or whole numbers, in order of appearance."""
    return {"field": field, "type": "ordinal", "sort": None, **options}


def linked() -> dict[str, Any]:
    """Return channels of marks whose rows have a `row` (the id of the details) and a `label`."""
    return {"href": {"field": "row"}, "description": {"field": "label"}}


def scale(low: float, high: float, **options: object) -> dict[str, Any]:
    """Return a logarithmic scale, or a linear one if the values are not positive; equal values get a margin."""
    kind, least = ("log", 1.02 * low) if low > 0 else ("linear", low + 1 if high <= low else high)
    return {"type": kind, "domain": [low, max(high, least)], "zero": False, "nice": False, **options}
