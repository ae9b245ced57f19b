"""Predictions beside measurements as a picture and as text: a scatter plot and a table of every row."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

_SIZE = 360  # pixels of a side
_LONG = re.compile(r"(\.\d\d)\d+")  # less than a hundredth of a pixel


def write(name: str, unit: str, rows: Sequence[Any], folder: Path) -> None:
    """`name.svg`, measured over predicted with the line on which they are equal, and `name.tsv` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ("\t".join((row.group, row.case, f"{row.predicted:.5g}", f"{row.measured:.5g}")) for row in rows)
    head = f"group\tcase\tpredicted {unit}\tmeasured {unit}"
    (folder / f"{name}.tsv").write_text("\n".join((head, *lines)) + "\n", encoding="utf-8")
    svg = vl_convert.vegalite_to_svg(_spec(unit, rows), vl_version="6.4", allowed_base_urls=[])
    (folder / f"{name}.svg").write_text(_LONG.sub(r"\1", svg) + "\n", encoding="utf-8")


def _spec(unit: str, rows: Sequence[Any]) -> dict[str, Any]:
    points = [{"group": row.group, "predicted": row.predicted, "measured": row.measured} for row in rows]
    values = [value for row in rows for value in (row.predicted, row.measured)]
    domain = {"type": "log", "domain": [min(values) / 1.1, max(values) * 1.1], "nice": False}
    equal = [{"predicted": edge, "measured": edge} for edge in domain["domain"]]  # type: ignore[union-attr]

    def axis(field: str) -> dict[str, Any]:
        return {"field": field, "type": "quantitative", "scale": domain, "title": f"{field}, {unit}"}

    channels = {"x": axis("measured"), "y": axis("predicted")}
    dots = {"type": "point", "filled": True, "size": 18, "opacity": 0.6}
    colour = {"field": "group", "type": "nominal", "title": None, "sort": None}
    return {
        "width": _SIZE,
        "height": _SIZE,
        "background": "white",
        "layer": [
            {"mark": {"type": "line", "color": "#888"}, "data": {"values": equal}, "encoding": channels},
            {"mark": dots, "data": {"values": points}, "encoding": channels | {"color": colour}},
        ],
    }
