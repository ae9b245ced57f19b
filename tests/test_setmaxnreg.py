"""setmaxnreg waits until registers are free: warps that ask for more than their block was launched with wait for ever,
and neither the emulator nor ptxas says so."""

from dataclasses import fields, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from claims import example, first_arch

from tuner import emulator, operators, ptx
from tuner.arch import Arch
from tuner.cache import Cache
from tuner.cubin import Cubin
from tuner.edges import served
from tuner.nvrtc import compile as compile_source
from tuner.nvrtc import ptx as ptx_of
from tuner.operator import Implementation, Operator
from tuner.render import render
from tuner.sass import holds
from tuner.toolkit import Options

SHAPES = ("warpgroups", "row_tiles", "producers", "cluster")  # fields by which threads, and their roles, differ


@cache
def moves(operator: Operator[Any], implementation: Implementation[Any, Any]) -> bool:
    """Whether some of its kernels may move registers between warpgroups."""
    problem = example(operator, implementation)
    source = render(
        operator, implementation, problem, implementation.default(problem, first_arch(implementation, problem))
    )
    texts = (source.text, *(text for name, text in source.headers if name != "register.cuh"))
    return any("setmaxnreg_inc<" in text for text in texts)


PAIRS = [(name, each.name) for name in operators.names() for each in operators.implementations(name)]


def configs(implementation: Implementation[Any, Any], problem: Any, arch: Arch) -> tuple[Any, ...]:
    """The default, and of those that differ from it in fields of the shape the first with so many threads."""
    default, space = implementation.default(problem, arch), implementation.space(problem, arch)
    named = {name: space.choices[name] for name in SHAPES if name in space.choices}
    others = (replace(default, **dict(zip(named, values, strict=True))) for values in product(*named.values()))
    found = {threads(implementation, problem, each): each for each in others if space.refusal(each) is None}
    return tuple({**found, threads(implementation, problem, default): default}.values())


def threads(implementation: Implementation[Any, Any], problem: Any, config: Any) -> tuple[int, ...]:
    return tuple(launch.threads for launch in implementation.plan(problem, config).launches)


def registers(operator: Operator[Any], implementation: Any, problem: Any, config: Any, arch: Arch) -> int:
    """That blocks of kernels which move some are launched with."""
    cubin = compile_source(render(operator, implementation, problem, config), Options(arch.name), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    launches = [
        each for each in implementation.plan(problem, config).launches if holds(cubin.code(each.entry), "USETMAXREG")
    ]
    return sum(cubin.entries[each.entry].registers * each.threads * prod(each.grid) for each in launches)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_warps_ask_for_no_more_registers_than_their_blocks_have(pair: tuple[str, str], packed: bool) -> None:
    operator, implementation = operators.load(pair[0]), operators.implementation(*pair)
    if not moves(operator, implementation):
        return
    problem = example(operator, implementation)
    arch = first_arch(implementation, problem)
    names = {each.name for each in fields(problem)}
    if packed:
        if "use_cu_seqlens" not in names:
            return
        dims = dict.fromkeys(names & {"head_dim", "head_dim_v"}, 96)
        problem = replace(problem, use_cu_seqlens=True, batch=1, **dims)
    case = served(operator, implementation, problem)[0]
    arrays = operator.inputs(case.problem, np.random.default_rng(0), case.kind)
    for config in configs(implementation, case.problem, arch):
        launched = registers(operator, implementation, case.problem, config, arch)
        happened = emulator.run(operator, implementation, case.problem, config, arrays, emulator.Mode())[1]
        assert happened.counters.claimed_registers <= launched, config


@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_registers_are_given_back_from_more_and_asked_for_by_who_has_fewer(pair: tuple[str, str]) -> None:
    """Anything else the ISA leaves undefined."""
    operator, implementation = operators.load(pair[0]), operators.implementation(*pair)
    if not moves(operator, implementation):
        return
    problem = example(operator, implementation)
    arch, found = first_arch(implementation, problem), 0
    for config in configs(implementation, problem, arch):
        source, options = render(operator, implementation, problem, config), Options(arch.name)
        cubin = compile_source(source, options, Cache.of("cubin"))
        assert isinstance(cubin, Cubin), cubin
        for name, entry in ptx.parse(ptx_of(source, options, Cache.of("ptx"))).items():
            launched = cubin.entries[name].registers
            for each in entry.code:
                if each.opcode[0] == "setmaxnreg":
                    found += 1
                    asked = int(each.operands[0])
                    assert asked <= launched if each.has("dec") else asked >= launched, (config, each, launched)
    assert found
