"""How XLA partitions an operator over devices: over the sequences of a batch and over heads, without a gather.

If the arrays of a call are sharded over other dims, XLA gathers these dims, and every device computes the call.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from tuner.spec.operator import Operator, Request

_BATCH = "batch"
# dims with one entry per sequence of a batch, or one for all
_OF_SEQUENCES = (_BATCH, "sequences", "initial_states", "final_states", "lse_gradients", "descales")
_Dims = tuple[str | None, ...]  # of an array: the factor by which each of its dims may be sharded


class Layout(NamedTuple):
    """The factors of each array's dims, `batch` and `heads`, and their sizes."""

    arguments: tuple[_Dims, ...]
    outputs: tuple[_Dims, ...]
    batch: int
    heads: int


def layout(operator: Operator[Any], arrays: Sequence[Any], request: Request, shapes: Sequence[Any]) -> Layout:
    """Return the factors of a call with these arrays; shapes: of the arrays, followed by those of the outputs."""
    names = {id(array): name for name, array in request.arrays.items()}
    everything = [*(names[id(array)] for array in arrays), *(output.name for output in operator.outputs)]
    dims = [_dims(operator, request, name) for name in everything]
    sizes = [
        (dim, size)
        for named, shape in zip(dims, shapes, strict=True)
        for dim, size in zip(named, shape, strict=True)
        if size
    ]
    batch = max((size for dim, size in sizes if dim == _BATCH), default=1)
    heads = min((size for dim, size in sizes if _is_heads(dim) and size > 1), default=1)

    def factor(dim: str, size: int) -> str | None:
        if dim in _OF_SEQUENCES and size == batch > 1:
            return "batch"
        return "heads" if _is_heads(dim) and heads > 1 and size and size % heads == 0 else None

    factors = [
        tuple(factor(dim, size) for dim, size in zip(named, shape, strict=True))
        for named, shape in zip(dims, shapes, strict=True)
    ]
    return Layout(tuple(factors[: len(arrays)]), tuple(factors[len(arrays) :]), batch, heads)


def by_types(call: Callable[..., Any], laid_out: Layout, arrays: Sequence[Any]) -> Callable[..., Any]:
    """Return `call` with shardings in the types of its outputs if the arrays' types have them (explicit mesh axes)."""
    shardings = [jax.typeof(array).sharding for array in arrays]
    mesh = next((sharding.mesh for sharding in shardings if sharding.mesh.explicit_axes), None)
    if mesh is None:
        return call
    axes = _axes(laid_out, mesh, shardings)
    returned = tuple(_sharding(mesh, dims, axes) for dims in laid_out.outputs)
    return jax.sharding.auto_axes(call, out_sharding=returned)  # type: ignore[no-any-return, unused-ignore]


def partitioned(call: Callable[..., Any], laid_out: Layout, shapes: Sequence[Any]) -> Callable[..., Any]:
    """Return `call` as a function that XLA runs on each device with the device's part of the arrays.

    An output without a dim of a sharded factor is a sum over it, such as the gradient of a bias that all sequences
    share: the sums of the devices are added.
    """

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        axes = _axes(laid_out, mesh, [array.sharding for array in arguments])
        placed = [_sharding(mesh, dims, axes) for dims in laid_out.arguments]
        returned = tuple(_sharding(mesh, dims, axes) for dims in laid_out.outputs)

        def local(*arrays: Any) -> Any:
            outputs = zip(call(*arrays), laid_out.outputs, results, strict=True)
            return tuple(_summed(output, dims, axes) if whole.size else output for output, dims, whole in outputs)

        return mesh, local, returned, tuple(placed)

    def infer(mesh: Any, arguments: Any, results: Any) -> Any:
        del results
        axes = _axes(laid_out, mesh, [array.sharding for array in arguments])
        return tuple(_sharding(mesh, dims, axes) for dims in laid_out.outputs)

    wrapped = custom_partitioning(call)
    rule, options = _rule(laid_out, shapes)
    wrapped.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule, **options)
    return wrapped  # type: ignore[no-any-return, unused-ignore]  # jax may be absent


def _dims(operator: Operator[Any], request: Request, name: str) -> tuple[str, ...]:
    """Return the names of an array's dims in the order of this call."""
    dims = operator.argument(name).dims
    order = request.axes.get(name, tuple(range(len(dims))))
    by_axis: dict[int, str] = dict(zip(order, dims, strict=True))
    return tuple(by_axis[axis] for axis in range(len(dims)))


def _is_heads(dim: str) -> bool:
    return dim.endswith("heads")


def _axes(laid_out: Layout, mesh: Any, shardings: Sequence[Any]) -> Mapping[str, Any]:
    """Return the mesh axes of each factor from the first array sharded over it; no axes that divide it unevenly."""
    axes: dict[str, Any] = {}
    sizes = {"batch": laid_out.batch, "heads": laid_out.heads}
    for dims, sharding in zip(laid_out.arguments, shardings, strict=True):
        for factor, axis in zip(dims, sharding.spec, strict=False):
            taken = {name for other in axes.values() for name in _flat(other)}
            if factor is None or factor in axes or not axis or taken & {*_flat(axis)}:
                continue
            if sizes[factor] % math.prod(mesh.shape[name] for name in _flat(axis)) == 0:
                axes[factor] = axis
    return axes


def _flat(axis: Any) -> tuple[str, ...]:
    return axis if isinstance(axis, tuple) else (axis,)


def _sharding(mesh: Any, dims: _Dims, axes: Mapping[str, Any]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(axes.get(factor) if factor else None for factor in dims)))


def _summed(output: Any, dims: _Dims, axes: Mapping[str, Any]) -> Any:
    missing = [axis for factor, axis in axes.items() if factor not in dims]
    for axis in missing:
        output = jax.lax.psum(output, axis)
    return output


def _rule(laid_out: Layout, shapes: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Return the sharding rule in the notation of Shardy, which names the dims of every array. A dim that is not
    sharded has a unique name.
    """
    own: list[str] = []
    sizes: dict[str, int] = {}

    def dim(factor: str | None, size: int) -> str:
        if factor == "batch":
            return "batch"
        if factor == "heads" and size == laid_out.heads:
            return "heads"
        name = f"own{len(own)}"
        own.append(name)
        if factor is None:
            return name
        sizes[name] = size // laid_out.heads
        return f"(heads {name})"

    every = [
        " ".join(dim(factor, size) for factor, size in zip(dims, shape, strict=True))
        for dims, shape in zip((*laid_out.arguments, *laid_out.outputs), shapes, strict=True)
    ]
    if sizes and not any(
        "heads" in dims.split() for dims in every
    ):  # a factor that is only a part of a dim needs a size
        sizes["heads"] = laid_out.heads
    count = len(laid_out.arguments)
    return f"{', '.join(every[:count])} -> {', '.join(every[count:])}", {
        "need_replication_factors": tuple(own),
        **sizes,
    }
