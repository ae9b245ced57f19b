"""Where a warp's cycles go, as a figure: the winner's paths beside the default's, one bar per path.

The cycles are those of `tuner inspect --timeline`: a replay of the machine code of one warp that is alone on its
scheduler. They are predicted, in cycles, and never a time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup

from tuner.arch import GPU
from tuner.base.cache import Cache, CacheEntry, key_of
from tuner.compiler import nvrtc
from tuner.compiler.nvrtc import Options
from tuner.compiler.render import render
from tuner.errors import TunerError
from tuner.evaluate.predict.cost import MODEL
from tuner.evaluate.predict.timeline import ISSUE, Track, timeline
from tuner.report import vega
from tuner.report.vega import category, layer, quantity
from tuner.results.attempt import Failed, Identity
from tuner.spec.instance import Instance

_PARTS = 160  # of a bar; shorter waits are merged into what the warp does most around them
_CAUSES = 5  # with a colour of their own; the others are "other waits"
OTHER = "other waits"
_COLOURS = ("accent", "soft", "bad", "good", "warn", "key")
_WIDTH, _BAR = 930, 22


@dataclass(frozen=True, slots=True)
class CodePath:
    """One path of a kernel: its length, the fraction of each state (largest first), and its runs of (state, parts)."""

    kernel: str
    role: str
    place: str
    cycles: float
    shares: Mapping[str, float]
    runs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Timelines:
    svg: Markup
    rows: tuple[tuple[str, str, CodePath], ...]  # (path, whose it is, path of the machine code)
    causes: tuple[str, ...]  # with a colour, the longest first


def paths(instance: Instance, of: Identity, gpu: GPU) -> tuple[CodePath, ...]:
    """Return the paths of a config's kernels, from the cache or by a replay; empty where the machine code that `of`
    identifies cannot be compiled here.
    """
    key = key_of("timeline", MODEL, str(_PARTS), gpu.name, of.source, of.options, of.toolkit, of.plan)
    cache = Cache.of("timeline")
    if (stored := cache.get(key)) is not None:
        return tuple(CodePath(**row | {"runs": tuple(map(tuple, row["runs"]))}) for row in json.loads(stored.data))
    result: tuple[CodePath, ...] = ()
    with suppress(TunerError):  # a machine without NVRTC
        source = render(instance)
        cubin = nvrtc.compile(source, Options(gpu.arch.name), Cache.of("cubin"))
        if not isinstance(cubin, Failed) and (source.digest, nvrtc.made_by(source)) == (of.source, of.toolkit):
            result = tuple(map(_path, timeline(cubin, instance.plan().launches, gpu)))
            cache.put(key, CacheEntry(json.dumps([asdict(path) for path in result]).encode()))
    return result


def _path(track: Track) -> CodePath:
    runs = tuple((state, len(list(group))) for state, group in groupby(track.states(_PARTS)))
    shares = {state: round(share, 4) for state, share in track.shares.items()}
    return CodePath(track.kernel, track.role, track.place, round(track.cycles, 1), shares, runs)


def timelines(configs: Mapping[str, Sequence[CodePath]]) -> Timelines | None:
    """Return the figure of the paths of configs by name, such as "winner"; None if there are none."""
    rows = tuple(_rows(configs))
    if not rows:
        return None
    causes = _causes([path for _, _, path in rows])
    spans = [span for number, row in enumerate(rows) for span in _spans(number, row, causes)]
    totals = [{"row": n, "end": path.cycles, "text": f"{path.cycles:,.0f}"} for n, (_, _, path) in enumerate(rows)]
    names = [f"{name}, {owner}" for name, owner, _ in rows]
    legend = {"title": None, "orient": "top", "symbolType": "square", "symbolSize": 120, "columns": 0}
    colour = {
        "field": "state",
        "type": "nominal",
        "legend": legend,
        "scale": {
            "domain": [ISSUE, *causes, OTHER],
            "range": [f"var(--{name})" for name in (*_COLOURS[: len(causes) + 1], "pointed")],
        },
    }
    texts = {"domain": False, "ticks": False, "labelLimit": 0, "labelColor": "var(--ink)"}
    y = category("row", title=None, axis=texts | {"labelExpr": f"{json.dumps(names)}[datum.value]"})
    x = quantity("from", title="cycles (predicted)", axis={"format": "~d", "tickCount": 8})
    bar = {"type": "bar", "height": 14, "aria": False}
    spec = {
        "width": _WIDTH,
        "height": {"step": _BAR},
        "encoding": {"y": y},
        "layer": [
            layer(bar, spans, x=x, x2={"field": "to"}, color=colour),
            layer(
                {"type": "text", "align": "left", "dx": 6, "aria": False}, totals,
                x=x | {"field": "end"}, text={"field": "text"},
            ),
        ],
    }  # fmt: skip
    return Timelines(vega.draw(spec), rows, causes)


def _rows(configs: Mapping[str, Sequence[CodePath]]) -> Iterator[tuple[str, str, CodePath]]:
    """Yield paths with equal names of all configs side by side, in the order of their kernels."""
    named: dict[str, list[tuple[str, CodePath]]] = {}
    for owner, of in configs.items():
        counts: dict[str, int] = {}
        several = len({path.kernel for path in of}) > 1
        for path in of:
            name = f"{path.role}, {'once' if path.place == 'once through' else 'loop'}"
            name = f"{path.kernel}, {name}" if several else name
            counts[name] = counts.get(name, 0) + 1
            number = f" {counts[name]}" if counts[name] > 1 else ""
            named.setdefault(name + number, []).append((owner, path))
    for name, owned in sorted(named.items(), key=lambda item: ", once" not in item[0]):
        for owner, path in owned:
            yield name, owner, path


def _causes(of: Sequence[CodePath]) -> tuple[str, ...]:
    total: dict[str, float] = {}
    for path in of:
        for state, share in path.shares.items():
            total[state] = total.get(state, 0.0) + share * path.cycles
    total.pop(ISSUE, None)
    return tuple(sorted(total, key=lambda state: (-total[state], state))[:_CAUSES])


def _spans(number: int, row: tuple[str, str, CodePath], causes: Sequence[str]) -> Iterator[dict[str, Any]]:
    path, start = row[2], 0
    shown = ((state if state in (ISSUE, *causes) else OTHER, count) for state, count in path.runs)
    for state, group in groupby(shown, key=lambda run: run[0]):
        end = start + sum(count for _, count in group)
        at, to = (round(path.cycles * part / _PARTS, 1) for part in (start, end))
        yield {"row": number, "state": state, "from": at, "to": to}
        start = end
