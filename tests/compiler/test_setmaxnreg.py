"""setmaxnreg waits until registers are free: warps that ask for more than their block was launched with wait for ever,
and neither the emulator nor ptxas says so."""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from tests.support.claims import compiled, example, first_arch
from tuner import operators
from tuner.arch import ARCHES, Arch
from tuner.backends import emulator
from tuner.base.assets import TEMPLATES
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import headers, render
from tuner.compiler.sass.decode import decode
from tuner.compiler.source import Source
from tuner.evaluate.check.edges import served
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator

# Fields by which threads, and their roles, differ.
SHAPES = ("warpgroups", "row_tiles", "columns", "producers", "cluster")


@cache
def moves(operator: Operator[Any], implementation: Implementation[Any, Any]) -> bool:
    """Whether some of its kernels may move registers between warpgroups."""
    problem = example(operator, implementation)
    source = render(Instance.default(operator, implementation, problem, first_arch(implementation, problem)))
    texts = (source.text, *(text for name, text in source.headers if name != "register.cuh"))
    return any("setmaxnreg_inc<" in text for text in texts)


PAIRS = [
    (name, implementation.name) for name in operators.names() for implementation in operators.implementations(name)
]
CASES = [pytest.param(pair, marks=[pytest.mark.slow], id="/".join(pair)) for pair in PAIRS]


def configs(implementation: Implementation[Any, Any], problem: Any, arch: Arch) -> tuple[Any, ...]:
    """The default, and of those that differ from it in fields of the shape one with so many threads and columns."""
    default, space = implementation.default(problem, arch), implementation.space(problem, arch)
    named = {name: space.choices[name] for name in SHAPES if name in space.choices}
    others = (replace(default, **dict(zip(named, values, strict=True))) for values in product(*named.values()))
    fitting = [other for other in others if space.refusal(other) is None]
    return tuple({roles(implementation, problem, pair): pair for pair in (*fitting, default)}.values())


def roles(implementation: Implementation[Any, Any], problem: Any, config: Any) -> tuple[Any, ...]:
    """Columns of the state belong to warps that carry them: of as many threads, fewer then prepare."""
    return *threads(implementation, problem, config), getattr(config, "columns", None)


def threads(implementation: Implementation[Any, Any], problem: Any, config: Any) -> tuple[int, ...]:
    return tuple(launch.threads for launch in implementation.plan(problem, config).launches)


def shapes(pair: tuple[str, str]) -> Iterator[tuple[Instance, str, Arch, Cubin]]:
    """Of one problem, and of one with packed sequences where there are such: see `shapes_of`."""
    operator, implementation = operators.load(pair[0]), operators.implementation(*pair)
    if not moves(operator, implementation):
        return
    problem = example(operator, implementation)
    if "safe_gate" in {field.name for field in fields(problem)}:
        problem = replace(problem, safe_gate=True)  # beside others, few warps have all registers
    yield from shapes_of(operator, implementation, problem)
    names = {field.name for field in fields(problem)}
    if "use_cu_seqlens" in names:
        dims = dict.fromkeys(names & {"head_dim", "head_dim_v"}, 96)
        yield from shapes_of(operator, implementation, replace(problem, use_cu_seqlens=True, batch=1, **dims))


def shapes_of(
    operator: Operator[Any], implementation: Implementation[Any, Any], problem: Any
) -> Iterator[tuple[Instance, str, Arch, Cubin]]:
    """Instance, kind of inputs, arch and cubin of each shape of a kernel that may move registers."""
    arch = first_arch(implementation, problem)
    case = served(Instance.default(operator, implementation, problem, arch))[0]
    for config in configs(implementation, case.problem, arch):
        instance = Instance(operator, implementation, case.problem, config)
        yield instance, case.kind, arch, compiled(render(instance), arch.name)


@pytest.mark.parametrize("pair", CASES)
def test_warps_ask_for_no_more_registers_than_their_blocks_have(pair: tuple[str, str]) -> None:
    for instance, kind, _, cubin in shapes(pair):
        moving = [launch for launch in instance.plan().launches if "USETMAXREG" in cubin.mnemonics(launch.entry)]
        launched = sum(
            cubin.entries[instruction.entry].registers * instruction.threads * prod(instruction.grid)
            for instruction in moving
        )
        arrays = instance.operator.inputs(instance.problem, np.random.default_rng(0), kind)
        happened = emulator.run(instance, arrays, emulator.Mode())[1]
        assert happened.counters.claimed_registers <= launched, instance.config


def moved(cubin: Cubin, entry: str, arch: Arch) -> list[tuple[str, int]]:
    """What each setmaxnreg of a kernel does, dec or inc, and how many registers a thread then has."""
    words = [
        instruction.word for instruction in decode(cubin.code(entry), arch.name) if instruction.mnemonic == "USETMAXREG"
    ]
    return [({5: "dec", 6: "inc"}[word >> 72 & 0xFF], word >> 32 & 0xFFFF_FFFF) for word in words]


@pytest.mark.parametrize("pair", CASES)
def test_registers_are_given_back_from_more_and_asked_for_by_who_has_fewer(pair: tuple[str, str]) -> None:
    """Anything else the ISA leaves undefined."""
    compiled_shapes = list(shapes(pair))
    results = [
        (instance.config, cubin.entries[name].registers, *instruction)
        for instance, _, arch, cubin in compiled_shapes
        for name in cubin.entries
        for instruction in moved(cubin, name, arch)
    ]
    assert bool(results) == bool(compiled_shapes)
    for config, launched, how, asked in results:
        assert asked <= launched if how == "dec" else asked >= launched, (config, how, asked, launched)


def test_what_moves_is_read_from_machine_code_as_the_text_says_it() -> None:
    text = (
        '#include "register.cuh"\nextern "C" __global__ __launch_bounds__(384, 1) void root(int n) {\n'
        "  if (threadIdx.x < 128) setmaxnreg_dec<24>();\n  else setmaxnreg_inc<240>();\n}\n"
    )
    source = Source(("root",), text, headers(text, TEMPLATES, "cuda"), "cuda")
    for name in ("sm_90a", "sm_100a", "sm_120a"):
        result = moved(compiled(source, name), "root", ARCHES[name])
        assert sorted(result) == [("dec", 24), ("inc", 240)], name
