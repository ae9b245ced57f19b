"""The random draws of `fuzz.py`: static fields in any combination, a config, small difficult sizes, and inputs."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tuner import operators
from tuner.arch import ARCHES, Arch
from tuner.errors import UsageError
from tuner.evaluate.check.compare import Expected, expect
from tuner.spec.argument import Argument, Role
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator
from tuner.spec.parameters import scalars
from tuner.spec.problem import Array, Arrays, to_fields
from tuner.spec.space import Space

_TRIES = 300  # draws of static fields, most of which an implementation refuses
_NEARBY = 256  # configs from which the value of one parameter is selected
_CASES = 2  # sizes per draw
_FLOPS, _ORACLE_FLOPS = 4e7, 4e6  # maximum per case, which the emulator computes in about a second
_PRIMES = (2, 3, 5, 7, 13, 31, 67, 101, 131, 167, 257)
_PACKED = ("use_cu_seqlens", "use_cu_seqlens_q", "varlen")  # fields that pack sequences into a batch of 1
_STATICS: Mapping[str, Sequence[Any]] = {  # values of static fields without declared choices
    "head_dim": (1, 2, 3, 8, 20, 31, 32, 40, 64, 100, 128, 136, 256),
    "key_floor": (60, 20, 1),
    "beta_bound": (1.0, 0.95, 0.7, 0.2, 0.0),
}
_EXTENTS: Mapping[str, Sequence[int]] = {  # sizes of the problem from whose space configs are drawn
    "kv_heads": (0, 4, 1),
    "value_heads": (0, 128),
    "seq_q": (1, 4, 64, 4096),
    "seq_len": (1, 100, 8192),
    "window": (128, 4096),
    "batch": (1, 16),
}


@dataclass(frozen=True)
class Draw:
    """A config for `arch`, and small problems to run it on, each with a kind of inputs."""

    instance: Instance
    arch: Arch
    cases: tuple[tuple[Any, str], ...]


def draw(operator: Operator[Any], implementation: Implementation[Any, Any], rng: random.Random) -> Draw | None:
    """Draw a config and problems; None if no draw was accepted, which is rare."""
    for _ in range(_TRIES):
        arch, problem = rng.choice(list(ARCHES.values())), _static(operator, implementation, rng)
        if problem is None or implementation.refusal(problem, arch):
            continue
        config = _config(implementation.space(problem, arch), rng)
        most = _ORACLE_FLOPS if implementation.oracle else _FLOPS
        small = [sized for _ in range(20 * _CASES) if (sized := _sized(operator, problem, config, rng))]
        served = [
            problem
            for problem in small
            if operator.cost(problem).flops <= most and operators.serves(implementation, problem)
        ]
        if served:
            cases = tuple((case, rng.choice(operator.input_kinds)) for case in served[:_CASES])
            return Draw(Instance(operator, implementation, problem, config), arch, cases)
    return None


def _static(operator: Operator[Any], implementation: Implementation[Any, Any], rng: random.Random) -> Any:
    """Return the implementation's example with some static fields, and some sizes that spaces depend on, changed."""
    base, share = implementation.example or operator.problem(), rng.choice((0.2, 0.5, 0.8))
    choices = {
        field.name: (False, True)
        if isinstance(field.default, bool)
        else field.metadata["choices"] or _STATICS.get(field.name, (field.default,))
        for field in fields(base)
        if field.metadata["kind"] == "static"
    }
    choices |= {field.name: _EXTENTS[field.name] for field in fields(base) if field.name in _EXTENTS}
    changed = {name: rng.choice(values) for name, values in choices.items() if rng.random() < share}
    if any(changed.get(name) for name in _PACKED):
        changed["batch"] = 1
    try:
        return replace(base, **changed)
    except UsageError:
        return None


def _config(space: Space[Any], rng: random.Random) -> Any:
    """Return a config in which all values of one parameter that nearby configs have are equally likely."""
    generator = np.random.default_rng(rng.getrandbits(32))
    nearby = [space[int(index)] for index in space.draw(_NEARBY, generator)]
    name = rng.choice(space.names)
    value = rng.choice(sorted({getattr(config, name) for config in nearby}))
    return rng.choice([config for config in nearby if getattr(config, name) == value])


def _sized(operator: Operator[Any], problem: Any, config: Any, rng: random.Random) -> Any:
    """Return the problem with small sizes, or sizes of an edge case if they have other names; None if they are
    inconsistent.
    """
    marks = [n for n in to_fields(config).values() if isinstance(n, int) and 8 <= n <= 256] + [16, 32, 64]
    names = {field.name for field in fields(problem)}
    sizes = _sizes(problem, names, lambda: _length(marks, rng), rng)
    try:
        tail = rng.choice(operator.tails(problem))
        small = replace(tail, **{name: size for name, size in sizes.items() if name in names})
    except UsageError:
        return None
    if not getattr(problem, "rolling", False):
        return small
    more, seq_k = rng.choice((0, 1, 37)), 0 if problem.ragged else small.seq_k  # more slots than necessary
    return replace(small, slots=small.slots + more, seq_k=seq_k)


def _length(marks: Sequence[int], rng: random.Random) -> int:
    """Return 1, a few, a length next to one or two tiles, a prime, or any length."""
    mark = rng.choice(marks)
    beside, twice = mark + rng.randint(-1, 1), 2 * mark + rng.randint(-1, 1)
    return rng.choice((1, rng.randint(2, 9), beside, beside, twice, rng.choice(_PRIMES), rng.randint(1, 700)))


def _sizes(problem: Any, names: set[str], length: Callable[[], int], rng: random.Random) -> dict[str, int]:
    """Return extents for any operator, by name."""
    has = {name: bool(getattr(problem, name, False)) for name in (*_PACKED, "ragged", "rolling", "use_state_indices")}
    packed = any(has[name] for name in _PACKED)
    N = rng.choice((1, 2, 3, 4, 7, 12, 40) if packed else (1, 1, 2, 3))
    shared, group = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 3, 4, 8))
    sizes = {"batch": 1 if packed else N, "boundaries": (N + 1) * packed, "sequences": N * packed}
    sizes |= {"heads": shared * group, "kv_heads": shared}
    if "kv_heads" not in names:  # all heads of mla_decode share one; those of kda share values
        sizes |= {"heads": shared, "value_heads": shared * group} if "value_heads" in names else {"heads": 5 * group}
    T = rng.choice((length(), rng.randint(1, 9)))
    sizes |= {"seq_len": length(), "seq_q": T, "seq_k": rng.choice((length(), T)), "slots": 0}
    sizes |= {"max_seqlen_q": packed * rng.choice((0, rng.randint(-(-T // N), T)))}
    sizes |= {"descales": rng.choice((0, 1)) if getattr(problem, "eight_bits", False) else 0}
    sizes |= {"window": length(), "sinks": rng.choice((0, 1, 4, length()))}
    sizes |= {name: rng.choice((-1, 0, 1, length())) for name in ("window_left", "window_right") if name in names}
    sizes |= {
        "pool_states": getattr(problem, "inplace_final_state", 0) * (N + rng.randint(0, 3) * has["use_state_indices"])
    }
    if has["ragged"]:
        sizes |= {"slots": 0 if has["rolling"] else sizes["seq_k"], "seq_k": 0}
    if "page_size" in names:
        page_size = 1 << rng.randint(0, 8)
        max_pages = -(-sizes["seq_k"] // page_size)
        sizes |= {
            "page_size": page_size,
            "max_pages": max_pages,
            "pages": rng.choice((0, rng.randint(1, N * max_pages))),
        }
        sizes["window"] = rng.choice((0, sizes["window"]))
    return sizes


def given(instance: Instance, kind: str, seed: int) -> tuple[Arrays, Expected]:
    """Return inputs of a kind, occasionally with unusual values, as views; and the expected outputs."""
    operator, problem, generator = instance.operator, instance.problem, np.random.default_rng(seed)
    inputs = operator.inputs(problem, generator, kind)
    if generator.random() < 0.5:
        inputs |= _unusual(operator.name, problem, inputs, generator)
    arrays = {**inputs, **scalars(operator, problem, inputs)}
    tensors = [argument for argument in operator.arguments if argument.supplied and argument.name in arrays]
    repeated = _repeated(tensors, arrays, generator)
    expected = expect(operator, problem, arrays)
    by_tma = {tensor_map.argument for tensor_map in instance.plan().maps}
    for argument in tensors:
        array, axis = arrays[argument.name], repeated.get(argument.name)
        once = array if axis is None else array.take([0], axis)
        view = _viewed(argument, once, generator, backwards=argument.name not in by_tma)
        arrays[argument.name] = view if axis is None else np.broadcast_to(view, array.shape)
    return arrays, expected


def _repeated(tensors: Sequence[Argument], arrays: Arrays, generator: np.random.Generator) -> dict[str, int]:
    """Make a few tensors repeat along an axis, and return the axes.

    Tensors with a result beside them, indices and tensors with holes are excluded.
    """
    counts: dict[str, int] = {}
    for argument in tensors:
        array = arrays[argument.name]
        axes = [axis for axis in argument.strided_axes if array.shape[axis] > 1]
        plain = argument.role is Role.INPUT and array.dtype.kind not in "iu" and not np.isnan(array).any()
        if axes and plain and "lse" not in arrays and generator.random() < 0.1:
            axis = counts[argument.name] = int(generator.choice(axes))
            arrays[argument.name] = array.take([0], axis).repeat(array.shape[axis], axis)
    return counts


def _unusual(name: str, problem: Any, inputs: Arrays, generator: np.random.Generator) -> Arrays:
    """Return inputs with unusual values.

    These are other scales; for kda, gates that forget everything or zero tokens as in padding; for linear_attention,
    any β, tokens after the last sequence, and channels with state 0.
    """
    arrays: Arrays = {}
    if name in (
        "flash_attention",
        "paged_attention",
        "mla_decode",
        "streaming_attention",
    ):  # other operators receive o and lse
        arrays["softmax_scale"] = inputs["softmax_scale"] * generator.choice((0.1, 3.0))
        if "softcap" in inputs:
            arrays["softcap"] = generator.choice((0.1, 1.0, 50.0))
    elif name.startswith("kda"):
        arrays["scale"] = generator.choice((1e-3, 1.0, 2.0))
        padding = generator.random(problem.seq_len) < 0.2 * problem.use_qk_l2norm_in_kernel
        arrays |= {
            tensor: np.where(padding[:, None, None], 0, inputs[tensor]).astype(inputs[tensor].dtype) for tensor in "qkv"
        }
        if not (problem.safe_gate or problem.use_gate_in_kernel):
            gone = generator.random(inputs["g"].shape) < generator.choice((0, 0.02, 0.5))
            gate = generator.choice((-100, -6e4, -np.inf))
            arrays["g"] = np.where(gone, gate, inputs["g"].astype(np.float32)).astype(inputs["g"].dtype)
    elif name.startswith("linear"):
        arrays["beta"] = (generator.random(inputs["beta"].shape) ** 0.2).astype(np.float32)
        arrays["initial_state"] = inputs["initial_state"] * (generator.random(problem.head_dim) < 0.7).astype(
            np.float32
        )
        if problem.varlen:
            arrays["cu_seqlens"] = np.sort(generator.integers(0, problem.seq_len + 1, problem.boundaries)).astype(
                np.int32
            )
            arrays["cu_seqlens"][0] = 0
    return {value_name: value for value_name, value in arrays.items() if value_name in inputs}


def _viewed(argument: Argument, array: Array, generator: np.random.Generator, *, backwards: bool) -> Array:
    """Return a view of the array in a larger one, with permuted and possibly reversed dims.

    Gaps contain NaN or invalid indices.
    """
    if not argument.strided or not array.size or generator.random() < 0.3:
        return array
    outer = len(argument.strided_axes)  # number of dims that may be permuted
    aligned = math.gcd(16, array.shape[-1] * array.itemsize) // array.itemsize if outer < array.ndim else 1
    order = [*generator.permutation(outer).tolist(), *range(outer, array.ndim)]
    gaps = [aligned * int(generator.integers(3)) if axis == order[-1] else int(generator.integers(3)) for axis in order]
    steps = [-1 if axis < outer and backwards and generator.random() < 0.1 else 1 for axis in range(array.ndim)]
    hole = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.nan
    buffer = np.full([array.shape[axis] + gap for axis, gap in zip(order, gaps, strict=True)], hole, array.dtype)
    view = buffer.transpose(np.argsort(order))[tuple(map(slice, array.shape))]
    view = view[tuple(slice(None, None, step) for step in steps)]
    view[...] = array
    return view
