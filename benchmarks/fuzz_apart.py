"""Write NaN into one sequence, group of heads, query, channel or page, which must not affect the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.spec.argument import Argument
from tuner.spec.operator import Operator
from tuner.spec.problem import Array, Arrays

Places = Mapping[str, Sequence[int]]  # dim of arguments → indices along it
# Boundaries of packed sequences, by dim.
_BOUNDS = {"seq_q": "cu_seqlens_q", "seq_k": "cu_seqlens_k", "seq_len": "cu_seqlens"}


@dataclass(frozen=True)
class Unit:
    """An independent part of a problem, such as a sequence: indices of its inputs, and of the outputs they affect.

    An argument with none of these dims is not an input of the unit alone; an output with none of them is a sum over
    units.
    """

    name: str
    given: Places
    reached: Places


def spoil(operator: Operator[Any], problem: Any, arrays: Arrays, generator: np.random.Generator) -> Unit | None:
    """Write NaN into some or all inputs of a unit; return None if the problem has no unit."""
    drawn = [unit for unit in _units(operator, problem, arrays, generator) if _inputs(operator, arrays, unit)]
    if not drawn:
        return None
    unit = drawn[generator.integers(len(drawn))]
    inputs = _inputs(operator, arrays, unit)
    share, most = generator.choice((0.01, 1.0)), generator.integers(1, len(inputs) + 1)
    for position in generator.permutation(len(inputs))[:most]:
        array = arrays[inputs[position].name]
        there = _within(inputs[position], array.shape, unit.given)
        array[there & (generator.random(array.shape) < share)] = np.nan
        array[tuple(generator.choice(np.argwhere(there)))] = np.nan
    return unit


def elsewhere(operator: Operator[Any], outputs: Arrays, exact: Arrays, unit: Unit) -> Arrays:
    """Return the outputs with the exact values where the unit may affect them."""
    arrays_elsewhere = dict(outputs)
    for argument in operator.written:
        output = outputs[argument.name]
        there = _within(argument, output.shape, unit.reached)
        arrays_elsewhere[argument.name] = np.where(there, exact[argument.name], output.astype(np.float64))
    return arrays_elsewhere


def _within(argument: Argument, shape: tuple[int, ...], places: Places) -> Array:
    """Return whether each element belongs to the unit, as bool of the given shape."""
    inside = np.ones(shape, bool)
    for axis, dim in enumerate(argument.dims):
        along = np.isin(np.arange(shape[axis]), list(places[dim])) if dim in places else np.ones(shape[axis], bool)
        inside &= along.reshape([-1 if index == axis else 1 for index in range(len(shape))])
    return inside


def _inputs(operator: Operator[Any], arrays: Arrays, unit: Unit) -> list[Argument]:
    """Return the floating-point inputs of the unit that have their own memory."""
    return [
        argument
        for argument in operator.arguments
        if argument.supplied and argument.name in arrays and arrays[argument.name].flags.writeable
        if arrays[argument.name].dtype.kind not in "iu"
        if not unit.given.keys().isdisjoint(argument.dims)
        and _within(argument, arrays[argument.name].shape, unit.given).any()
    ]


def _units(operator: Operator[Any], problem: Any, arrays: Arrays, generator: np.random.Generator) -> Iterator[Unit]:
    """Yield one unit of each kind that the operator's problems have, by the names of their dims."""
    dims = {
        dim: n
        for argument in operator.arguments
        if argument.dims
        for dim, n in zip(argument.dims, argument.shape(problem), strict=True)
    }
    bounds = {dim: arrays[name] for dim, name in _BOUNDS.items() if dim in dims and np.size(arrays.get(name, ()))}
    if "batch" in dims:
        count = len(next(iter(bounds.values()))) - 1 if bounds else dims["batch"]
        places = _sequence(bounds, arrays, int(generator.integers(count)))
        yield Unit("sequence", places, places)
    if "heads" in dims:
        places = _group(problem, int(generator.integers(getattr(problem, "kv_heads", problem.heads))))
        yield Unit("group of heads", places, places)
    if "heads" in dims and "seq_q" in dims and not operator.name.endswith("_backward"):
        places = {dim: [int(generator.integers(dims[dim]))] for dim in ("heads", "seq_q")}
        yield Unit("query", places, places)
    if operator.name.startswith("linear"):
        channel = [int(generator.integers(problem.head_dim))]
        places = {"head_dim": channel} | ({"beta_channels": channel} if problem.decay == "channel" else {})
        yield Unit("channel", places, places)
    if dims.get("pages"):
        page = int(generator.integers(dims["pages"]))
        yield Unit("page", {"pages": [page]}, _readers(problem, arrays, bounds, page))


def _sequence(bounds: Mapping[str, Array], arrays: Arrays, n: int) -> Places:
    tokens = {dim: range(*bound[n : n + 2].tolist()) for dim, bound in bounds.items()} or {
        dim: [n] for dim in ("batch", "lse_gradients")
    }
    entries = arrays.get("ssm_state_indices", ())
    entry = int(entries[n]) if np.size(entries) else n  # negative: none
    states = {dim: [n] for dim in ("initial_states", "final_states", "descales")}
    return {**tokens, **states, "pool_states": [entry]}


def _group(problem: Any, h: int) -> Places:
    """Return the query heads that share keys, or the value heads that share them, with their indices."""
    queries = problem.heads // getattr(problem, "kv_heads", problem.heads)
    values = getattr(problem, "value_heads", problem.heads) // problem.heads
    of_values = range(h * values, (h + 1) * values)
    named = {"kv_heads": [h], "heads": range(h * queries, (h + 1) * queries), "beta_heads": [h]}
    return named | dict.fromkeys(("value_heads", "gate_heads", "bias_heads"), of_values)


def _readers(problem: Any, arrays: Arrays, bounds: Mapping[str, Array], page: int) -> Places:
    """Return the sequences with positions in a page."""
    table, lengths = arrays["block_table"], np.clip(arrays["cache_seqlens"], 0, problem.seq_k)
    pages = [row[: -(-length // problem.page_size)] for row, length in zip(table, lengths.tolist(), strict=True)]
    readers = [n for n, pages_of_sequence in enumerate(pages) if page in pages_of_sequence]
    if not bounds:
        return {"batch": readers}
    return {"seq_q": [t for n in readers for t in range(*bounds["seq_q"][n : n + 2].tolist())]}
