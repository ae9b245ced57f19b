"""Compile every implementation's default with this machine's NVRTC, and report errors, spills and flaws.

    python benchmarks/toolkits.py [--json FILE] [--sizes 64,128] [--arch sm_90a …] [--operator kda …]

To use another NVRTC, load it first, e.g. with LD_LIBRARY_PATH=folder LD_PRELOAD=folder/libnvrtc.so.12. Each arch gets
two of the sizes, which differ between arches; --all compiles every size. --options also compiles every problem that
differs in one other static field. --pairs compiles common combinations, and enough further problems that any two
values, sizes included, occur together in one. A size may be 192/128, of keys and of values. --configs also compiles
random configs of each space.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

from tuner import operators
from tuner.arch import ARCHES
from tuner.base.fields import Fields, formatted
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.lint import lint_all
from tuner.compiler.nvrtc import Compiler
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.compiler.usage import occupancy
from tuner.errors import UsageError
from tuner.results.attempt import Failed
from tuner.spec.dtype import DType, Precision
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator
from tuner.spec.problem import canonical

SIZES = (64, 72, 128, 192, 256)
_KEYS, _VALUES = ("head_dim", "key_dim"), ("head_dim_v", "value_dim")  # problem fields that are compile-time sizes
# Sizes on which a default config depends.
_EXTENTS: Fields = {"kv_heads": (4, 0), "seq_q": (1, 4096), "window": (128, 4096)}
_DRAWN = 3000  # random combinations, of which an implementation serves a tenth or more

_CAPPED: Fields = {"causal": True, "use_softcap": True, "use_cu_seqlens": True, "kv_heads": 4}
_GATES = ("use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel", "use_gate_in_kernel", "use_dt_bias")
_LAYER: Fields = dict.fromkeys((*_GATES, "use_cu_seqlens"), True)  # a layer of flash-linear-attention
_POOL: Fields = {"inplace_final_state": True, "use_state_indices": True, "state_v_first": True}
_SETS: tuple[Fields, ...] = (  # common combinations, for any operator with all of these fields
    _CAPPED,
    _CAPPED | {"use_lse_gradient": True},
    _CAPPED | {"use_window": True, "use_s_aux": True},
    {"size": "192/128", "causal": True, "use_cu_seqlens": True},
    {"size": "576/512"},
    *({"use_softcap": True, "use_cu_seqlens_q": True, "seq_q": seq_q} for seq_q in (1, 4096)),
    {"rolling": True, "ragged": True, "kv_heads": 4},
    _LAYER,
    _LAYER | {"use_lower_bound": True, "use_initial_state": True, "output_final_state": True},
    _LAYER | {"use_lower_bound": True, "use_initial_state": True, "use_final_gradient": True},
    _LAYER | _POOL,
    {"varlen": True, "use_initial_state": True, "decay": "channel"},
)


@dataclass(frozen=True)
class Line:
    """One config and its result; `registers` are those of the kernel with the most."""

    operator: str
    implementation: str
    arch: str
    problem: str  # its size, and the fields that differ from the implementation's example
    config: str
    error: str = ""
    registers: int = 0
    spills: int = 0  # bytes per thread, over all kernels
    flaws: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.error and not self.flaws  # spills count as a flaw


def main() -> int:
    options = _options()
    configs = list(_wanted(options))
    lines = []
    with Compiler(options.workers) as compiler:
        jobs = [(render(default.instance), Options(default.arch)) for default in configs]
        for position, outcome in compiler.compile_many(jobs):
            lines.append(_line(configs[position], outcome))
            if not lines[-1].ok:
                print(_text(lines[-1]), flush=True)
    if options.json:
        rows = [asdict(line) | {"toolkit": nvrtc.toolkit().build} for line in lines]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(_table(lines)))
    return 0 if all(line.ok for line in lines) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arches = nvrtc.arches()
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="sizes of heads, or of keys/values")
    parser.add_argument("--arch", nargs="+", default=list(arches), choices=list(arches))
    parser.add_argument("--operator", nargs="+", default=list(operators.names()), choices=operators.names())
    parser.add_argument("--implementation", nargs="+", help="only implementations of these names")
    parser.add_argument("--configs", type=int, default=0, help="random configs in addition to each default")
    parser.add_argument("--all", action="store_true", help="every size on every arch, instead of two out of five")
    parser.add_argument("--options", action="store_true", help="also change every other static field individually")
    parser.add_argument("--pairs", action="store_true", help="common combinations, and any two values together")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="write the lines to this file")
    return parser.parse_args()


@dataclass(frozen=True)
class Wanted:
    """A config to compile, and a description of its problem."""

    instance: Instance
    arch: str
    called: str


def _wanted(options: argparse.Namespace) -> Iterator[Wanted]:
    """Yield each default, and the requested number of random configs of its space."""
    sizes = options.sizes.split(",")
    for operator in map(operators.load, options.operator):
        for implementation in operators.implementations(operator.name):
            if options.implementation and implementation.name not in options.implementation:
                continue
            for at, arch in enumerate(options.arch):
                chosen = sizes if options.all else [sizes[(at + step) % len(sizes)] for step in (0, 2)]
                for problem, called in _asked(operator, implementation, arch, chosen, options).items():
                    default = Instance.default(operator, implementation, problem, ARCHES[arch])
                    yield Wanted(default, arch, called)
                    yield from (Wanted(other, arch, called) for other in _drawn(default, arch, options.configs))


def _drawn(default: Instance, arch: str, count: int) -> Iterator[Instance]:
    """Yield random configs of the default's space, the same in each call."""
    if count:
        space = default.implementation.space(default.problem, ARCHES[arch])
        drawn = Random(canonical(default.problem)).sample(range(len(space)), min(count, len(space)))
        yield from (default.with_config(space[index]) for index in drawn)


def _asked(
    operator: Operator[Any], implementation: Implementation[Any, Any], arch: str, sizes: list[str], options: Any
) -> dict[Any, str]:
    """Return the problems that the implementation serves, with their descriptions."""
    example = operator.problem() if implementation.example is None else implementation.example

    def problem(combined: Fields) -> Any:
        candidate = _problem(example, **combined)
        return None if candidate is None or implementation.refusal(candidate, ARCHES[arch]) else candidate

    if options.pairs:
        asked = _paired(example, sizes, lambda combined: problem(combined) is not None, arch)
    else:
        changes = ({}, *(_changes(example) if options.options else ()))
        asked = [{"size": size} | changed for size, changed in product(sizes, changes)]
    return {candidate: _called(example, combined) for combined in asked if (candidate := problem(combined)) is not None}


def _problem(example: Any, *, size: str, **changed: Any) -> Any:
    """Return the example with this size and these options; None if the problem is invalid."""
    of_keys, _, of_values = size.partition("/")
    names = {field.name for field in fields(example)}
    if of_values and not names.intersection(_VALUES):
        return None
    dims = dict.fromkeys(_KEYS, int(of_keys)) | dict.fromkeys(_VALUES, int(of_values or of_keys))
    dims = {name: dims[name] for name in names.intersection(dims)}
    for batch in (example.batch, 1):  # packed sequences are a batch of 1
        try:
            return replace(example, **dims, **{"batch": batch} | changed)
        except UsageError:
            continue
    return None


def _called(example: Any, combined: Fields) -> str:
    changed = {name: value for name, value in combined.items() if name != "size" and value != getattr(example, name)}
    return f"{combined['size']} {formatted(changed)}".rstrip()


def _paired(example: Any, sizes: list[str], serves: Callable[[Fields], bool], seed: str) -> list[Fields]:
    """Return common combinations, and a few more in which any two values that occur together in the draws occur
    together.
    """
    draw = Random(seed)
    names = {field.name for field in fields(example)}
    factors = {"size": tuple(sizes)} | _values(example) | {n: values for n, values in _EXTENTS.items() if n in names}
    drawn = dict.fromkeys(tuple((name, draw.choice(values)) for name, values in factors.items()) for _ in range(_DRAWN))
    pairs = [
        (dict(draw_values), frozenset(combinations(draw_values, 2)))
        for draw_values in drawn
        if serves(dict(draw_values))
    ]
    chosen = [combined for combined in _sets(example, factors) if serves(combined)]
    missing = frozenset().union(*(pairs_met for _, pairs_met in pairs))
    missing -= {pair for combined in chosen for pair in combinations(combined.items(), 2)}
    while missing:
        best, met = max(pairs, key=lambda pair: len(missing & pair[1]))
        chosen.append(best)
        missing -= met
    return chosen


def _sets(example: Any, factors: Fields) -> Iterator[Fields]:
    """Yield common combinations for each size and precision."""
    usual = {name: getattr(example, name, None) for name in factors}
    types = {"dtype": (DType.BF16, DType.FP32), "precision": tuple(Precision)}
    choices = {"size": factors["size"]} | {name: values for name, values in types.items() if name in factors}
    for caller_set in _SETS:
        if caller_set.keys() <= factors.keys():
            yield from (
                usual | dict(zip(choices, chosen, strict=True)) | caller_set for chosen in product(*choices.values())
            )


def _changes(example: Any) -> Iterator[Fields]:
    """Yield each static field that is not a size with each of its other values."""
    for name, values in _values(example).items():
        yield from ({name: value} for value in values if value != getattr(example, name))


def _values(example: Any) -> Fields:
    """Return the values of each static field that is not a size and has only a few values."""
    return {
        field.name: (False, True) if isinstance(field.default, bool) else field.metadata["choices"]
        for field in fields(example)
        if field.metadata["kind"] == "static"
        and field.name not in (*_KEYS, *_VALUES)
        and (isinstance(field.default, bool) or field.metadata["choices"])
    }


def _line(config: Wanted, outcome: Cubin | Failed) -> Line:
    instance, arch = config.instance, config.arch
    names = (instance.operator.name, instance.implementation.name, arch, config.called, canonical(instance.config))
    if isinstance(outcome, Failed):
        return Line(*names, error=outcome.reason)
    used = outcome.entries.values()
    stuck = [launch.entry for launch in instance.plan().launches if not _fits(outcome, launch, arch)]
    return Line(
        *names,
        error=f"{', '.join(stuck)} cannot be launched" if stuck else "",
        registers=max(usage.registers for usage in used),
        spills=sum(usage.spills for usage in used),
        flaws=lint_all(outcome).failures,
        seconds=outcome.compile_seconds,
    )


def _fits(cubin: Cubin, launch: Any, arch: str) -> bool:
    usage = cubin.entries[launch.entry]
    return occupancy(usage, launch, ARCHES[arch]).ctas > 0


def _text(line: Line) -> str:
    what = line.error or "; ".join(line.flaws)
    return f"{line.operator}/{line.implementation} {line.arch} {line.problem} {line.config}: {what}"


def _table(lines: list[Line]) -> Iterator[str]:
    """Yield a Markdown table with one implementation per line."""
    compiler = nvrtc.toolkit()
    yield f"| {compiler} ({compiler.build}) | configs | compile | spill | flawed | seconds each |"
    yield "|---|---|---|---|---|---|"
    for name in sorted({(line.operator, line.implementation) for line in lines}):
        lines_of_name = [line for line in lines if (line.operator, line.implementation) == name]
        compiled = [line for line in lines_of_name if not line.error]
        spills, flawed = (
            sum(map(bool, counts)) for counts in ([x.spills for x in lines_of_name], [x.flaws for x in lines_of_name])
        )
        seconds = sum(line.seconds for line in lines_of_name) / len(lines_of_name)
        yield f"| {'/'.join(name)} | {len(lines_of_name)} | {len(compiled)} | {spills} | {flawed} | {seconds:.1f} |"


if __name__ == "__main__":
    raise SystemExit(main())
