"""Rules for torch's transforms of an operator: batches of vmap, FLOP counts, and DTensor shards."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from tuner.spec.operator import Operator
from tuner.torch import meta


def batches(operator: Operator[Any], op: Any) -> Callable[..., Any]:
    """Return the rule of vmap: a batch of calls is one call with a larger batch or, for arguments without a batch, a
    loop.
    """
    names = tuple(signature(operator.call).parameters)

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any, **named: Any) -> tuple[Any, Any]:
        rows = [_rows(arg, at, info.batch_size) for arg, at in zip(args, in_dims, strict=True)]
        given = {name: arg for name, arg in zip(names, args, strict=False) if isinstance(arg, torch.Tensor)}
        dims = [operator.argument(name).dims for name in given] + [output.dims for output in operator.outputs]
        if any(isinstance(array, torch.Tensor) for array in named.values()) or any(
            dim[:1] != ("batch",) for dim in dims
        ):
            calls = [op(*(row[i] if _is(row) else row for row in rows), **named) for i in range(info.batch_size)]
            single = isinstance(calls[0], torch.Tensor)
            result = torch.stack(calls) if single else tuple(map(torch.stack, zip(*calls, strict=True)))
        else:
            whole = op(*(row.flatten(0, 1) if _is(row) else row for row in rows), **named)
            single = isinstance(whole, torch.Tensor)
            parts = [
                output.unflatten(0, (info.batch_size, output.shape[0] // info.batch_size))
                for output in ((whole,) if single else whole)
            ]
            result = parts[0] if single else tuple(parts)
        return result, 0 if single else (0,) * len(result)

    return rule


def _rows(arg: Any, at: int | None, size: int) -> Any:
    """Return a tensor with the batch of calls first, in memory of its own if all calls share it."""
    if not _is(arg):
        return arg
    return arg.expand(size, *arg.shape) if at is None else arg.movedim(at, 0)


def _is(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor)


def count_flops(operator: Operator[Any], packet: Any) -> None:
    """Register the operator's `cost` with torch's FlopCounterMode; under a causal mask only attended scores count."""

    def formula(*args: Any, out_val: Any = None, **named: Any) -> int:
        del out_val
        made = meta.outlined(operator, operator.call(*args, **named))
        return 0 if made.empty_dims else int(operator.cost(made.problem).flops)

    register_flop_formula(packet, get_raw=True)(formula)


def shards(operator: Operator[Any], op: Any) -> None:
    """Allow DTensors to be sharded over sequences of a batch, and over heads if the devices divide every kind of head.

    Other shardings are gathered first. The names of dims identify heads.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    names = tuple(signature(operator.call).parameters)

    def strategies(*specs: Any, **named: Any) -> list[Any]:
        request = operator.call(*specs, **named)
        given = {name: spec for name, spec in zip(names, specs, strict=False) if name in request.arrays}
        inputs = [_axes(operator, request, name) if name in given else None for name in names[: len(specs)]]
        outputs = [_axes(operator, request, output.name) for output in operator.outputs]
        empty = _empty(operator, specs, named)
        devices = next(iter(given.values())).mesh.size()
        strategies = [([Replicate()] * len(outputs), [None if operand is None else Replicate() for operand in inputs])]
        for wanted, evenly in ((_is_batch, 1), (_is_heads, devices)):
            at = [
                None if operand is None else next((i for i, dim in enumerate(operand) if wanted(dim)), -1)
                for operand in inputs
            ]
            out: list[Any] = [next((i for i, dim in enumerate(output) if wanted(dim)), -1) for output in outputs]
            out = [None if output.name in empty else i for i, output in zip(out, operator.outputs, strict=True)]
            sizes = [spec.shape[i] for spec, i in zip(specs, at, strict=True) if i is not None and i >= 0]
            whole = wanted is _is_batch and -1 in at  # an argument that concerns the batch as a whole
            if -1 in out or whole or not sizes or any(size % evenly for size in sizes):
                continue
            placed = [None if i is None else Shard(i) if i >= 0 else Replicate() for i in at]
            strategies.append(([Replicate() if i is None else Shard(i) for i in out], placed))
        return strategies

    register_sharding(op)(strategies)
    # a cached strategy serves calls of equal shapes only if their options, such as the layout, are equal
    options = [argument.name for argument in op._schema.arguments if argument.kwarg_only]
    remembered = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    remembered[op] = RuntimeSchemaInfo(0, options or None, needs_pytree=True)


def _empty(operator: Operator[Any], specs: tuple[Any, ...], named: dict[str, Any]) -> frozenset[str]:
    """Outputs that were not requested: they have no elements and do not affect sharding."""
    metas = [
        torch.empty(spec.shape, dtype=spec.tensor_meta.dtype, device="meta") if hasattr(spec, "tensor_meta") else spec
        for spec in specs
    ]
    made = meta.outlined(operator, operator.call(*metas, **named))
    return frozenset(output.name for output in operator.outputs if not made.empty_dims and 0 in made.shape(output))


def _axes(operator: Operator[Any], request: Any, name: str) -> tuple[str, ...]:
    """Return the dims of a tensor in the order of this call."""
    dims = operator.argument(name).dims
    order = request.axes.get(name, tuple(range(len(dims))))
    placed: dict[int, str] = dict(zip(order, dims, strict=True))
    return tuple(placed[i] for i in range(len(dims)))


def _is_batch(dim: str) -> bool:
    return dim == "batch"


def _is_heads(dim: str) -> bool:
    return dim.endswith("heads")
