"""The tensor maps of kernels on panels: for each tensor, one map per width of its panels."""

from collections.abc import Iterable, Mapping

from tuner.spec import TensorMap

from .config import WIDTHS, round_up

Box = tuple[int, ...]  # elements along the dims of a tensor except the last, which panels divide
Copied = tuple[str, Box, tuple[int, ...]]  # tensor name, box, and panel widths


def panel_widths(columns: int, uniform: int = 0) -> tuple[int, ...]:
    """Panel widths of a tensor of `columns` columns, as in Panels of panels.cuh: all `uniform`, or for 0 the widest
    first, with zeros in the last one of 16."""
    remaining, widths = 0 if uniform else round_up(columns, 16), [uniform] * (uniform > 0)
    for width in WIDTHS:
        widths += [width] * (remaining >= width)
        remaining %= width
    return tuple(widths)


def attention_maps(
    D: int, DV: int, value_columns: int, rows: Box, keys: Box, cached: str = "", piece: int = 0
) -> tuple[TensorMap, ...]:
    """Maps of q and o, whose boxes are `rows`, and of `k` and `v`, or the tensors with those names and suffix `cached`,
    with boxes of `keys`. If `piece` is not 0, k and v get additional maps with boxes of `piece` keys."""
    q, o = ("q", rows, panel_widths(D)), ("o", rows, panel_widths(DV))
    widths = {f"k{cached}": panel_widths(D), f"v{cached}": panel_widths(DV, value_columns)}
    k, v = ((name, keys, count) for name, count in widths.items())
    pieces = [(name, (1, piece, 1), count) for name, count in widths.items() if piece]
    return (*_maps((q, k, v, o)), *_maps(pieces, f"_rows{piece}"))


def _maps(tensors: Iterable[Copied], suffix: str = "") -> tuple[TensorMap, ...]:
    return tuple(
        TensorMap(f"{name}_{width}{suffix}", name, (*box, width), swizzle=2 * width)
        for name, box, widths in tensors
        for width in widths
    )


def spelled(maps: Iterable[TensorMap]) -> Mapping[str, str | int]:
    """Constants of a template for the maps: `<tensor><suffix>_maps`, the addresses with null for widths that no panel
    has, and `<tensor>_widths`, the sum of the widths in use."""
    names: dict[str, dict[int, str]] = {}
    widths: dict[str, int] = {}
    for tensor_map in maps:
        width = tensor_map.box[-1]
        suffix = tensor_map.name.removeprefix(f"{tensor_map.argument}_{width}")
        names.setdefault(f"{tensor_map.argument}{suffix}_maps", {})[width] = f"&{tensor_map.name}"
        widths[f"{tensor_map.argument}_widths"] = widths.get(f"{tensor_map.argument}_widths", 0) | width
    addresses = {
        name: ", ".join(maps_by_width.get(width, "nullptr") for width in WIDTHS)
        for name, maps_by_width in names.items()
    }
    return {**addresses, **widths}
