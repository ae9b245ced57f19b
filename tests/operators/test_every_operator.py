"""Tests of the promises of every operator and implementation, for each one that is discovered."""

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from math import isfinite, prod
from typing import Any

import pytest

from tests.support.claims import (
    DISTINCT_ARCHES,
    assert_memory_is_known,
    assert_right_at_edges,
    dealt_arches,
    example,
    first_arch,
)
from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.base.cache import Cache
from tuner.compiler.nvrtc import compile as compile_source
from tuner.compiler.render import render, template_variables
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.compiler.usage import occupancy
from tuner.errors import TemplateError, UsageError
from tuner.evaluate.predict.cost import uncompiled
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance
from tuner.spec.operator import Implementation, Operator
from tuner.spec.problem import canonical, extents, from_fields, statics, to_fields

PAIRS = [
    (name, implementation.name) for name in operators.names() for implementation in operators.implementations(name)
]


@pytest.fixture(params=PAIRS, ids=["/".join(pair) for pair in PAIRS])
def pair(request: pytest.FixtureRequest) -> tuple[Operator[Any], Implementation[Any, Any]]:
    operator, implementation = request.param
    return operators.load(operator), operators.implementation(operator, implementation)


@pytest.mark.parametrize("name", operators.names())
def test_every_problem_field_says_what_it_is(name: str) -> None:
    problem = operators.load(name).problem
    assert set(statics(problem)) | set(extents(problem)) == {field.name for field in fields(problem)}
    assert all(field.metadata["help"] for field in fields(problem))


@pytest.mark.parametrize("name", operators.names())
def test_problems_survive_their_canonical_form(name: str) -> None:
    problem = operators.load(name).problem()
    assert from_fields(type(problem), to_fields(problem)) == problem
    assert canonical(problem) == canonical(replace(problem))


def test_rendering_is_deterministic_and_independent_of_extents(
    pair: tuple[Operator[Any], Implementation[Any, Any]],
) -> None:
    operator, implementation = pair
    problem = example(operator, implementation)
    instance = Instance.default(operator, implementation, problem, first_arch(implementation, problem))
    digests = {render(instance.at(shape)).digest for shape in (problem, problem, *operator.tails(problem))}
    assert len(digests) == 1


def test_every_config_field_is_read_by_its_template(pair: tuple[Operator[Any], Implementation[Any, Any]]) -> None:
    operator, implementation = pair
    assert {field.name for field in fields(implementation.config)} <= template_variables(operator, implementation)


def defaults(operator: Operator[Any], implementation: Implementation[Any, Any]) -> dict[str, Instance]:
    """By the arches that serve the example."""
    problem = example(operator, implementation)
    serving = [name for name, arch in ARCHES.items() if implementation.refusal(problem, arch) is None]
    return {name: Instance.default(operator, implementation, problem, ARCHES[name]) for name in serving}


def asked_arches(sources: Mapping[str, Source], dealt: Collection[str]) -> set[str]:
    """Where a default is compiled: each of its texts, those that arches share for sm_90a and what is dealt out."""
    texts: dict[Source, list[str]] = {}
    for name in DISTINCT_ARCHES:
        if name in sources:
            texts.setdefault(sources[name], []).append(name)
    asked = {name for names in texts.values() for name in ({*names} & {"sm_90a", *dealt} or {names[0]})}
    others = {name for name in sources if name not in DISTINCT_ARCHES and sources[name] != sources.get("sm_86")}
    return asked | others  # whose machine code is another where the text is


def test_the_default_is_in_the_space(pair: tuple[Operator[Any], Implementation[Any, Any]]) -> None:
    operator, implementation = pair
    default_configs = defaults(operator, implementation)
    assert default_configs.keys() == ARCHES.keys() if implementation.oracle else default_configs
    for name, array in default_configs.items():
        assert implementation.space(array.problem, ARCHES[name]).refusal(array.config) is None, name


@pytest.mark.sampled(6)
@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one_arch", "others"])
def test_the_default_compiles_launches_and_never_spills(
    pair: tuple[Operator[Any], Implementation[Any, Any]], *, others: bool
) -> None:
    operator, implementation = pair
    default_configs = defaults(operator, implementation)
    sources = {name: render(array) for name, array in default_configs.items()}
    dealt = dealt_arches(PAIRS.index((operator.name, implementation.name)))
    first, *rest = sorted(asked_arches(sources, dealt), key=lambda name: (name != "sm_90a", name))
    for name in rest if others else [first]:
        cubin = compile_source(sources[name], Options(arch=name), Cache.of("cubin"))
        assert not isinstance(cubin, Failed), cubin.log
        assert_memory_is_known(cubin)
        for launch in default_configs[name].plan().launches:
            usage = cubin.entries[launch.entry]
            assert usage.spills == 0, name
            assert occupancy(usage, launch, ARCHES[name]).ctas >= 1, name


def test_the_default_is_in_the_space_whatever_sms_a_gpu_has(
    pair: tuple[Operator[Any], Implementation[Any, Any]],
) -> None:
    operator, implementation = pair
    problem = example(operator, implementation)
    for name in ("RTX 4060", "H20", "GB300", "A100 MIG 1g.10gb (sm_80, 14 SMs)", "H100 MIG 1g.10gb (sm_90a, 16 SMs)"):
        arch = gpu(name).arch
        if implementation.refusal(problem, arch) is None:
            config = implementation.default(problem, arch)
            assert implementation.space(problem, arch).refusal(config) is None


def test_the_default_is_right_on_the_emulator_in_every_mode(
    pair: tuple[Operator[Any], Implementation[Any, Any]],
) -> None:
    operator, implementation = pair
    problem = example(operator, implementation)
    arch = first_arch(implementation, problem)
    assert_right_at_edges(Instance.default(operator, implementation, problem, arch))


def test_declared_work_is_positive_and_no_less_than_the_floor(
    pair: tuple[Operator[Any], Implementation[Any, Any]],
) -> None:
    operator, implementation = pair
    problem = example(operator, implementation)
    target = gpu(first_arch(implementation, problem).name)
    works = implementation.work(problem, implementation.default(problem, target.arch), target)
    assert sum(work.dram_bytes for work in works) >= operator.cost(problem).bytes * 0.999
    assert all(work.longest_cta >= 1.0 for work in works)


def test_every_tail_has_a_predicted_cost(pair: tuple[Operator[Any], Implementation[Any, Any]]) -> None:
    """Also where a launch has no work: no kept keys, or none that a query attends."""
    operator, implementation = pair
    problem = example(operator, implementation)
    arch = first_arch(implementation, problem)
    for tail in operator.tails(problem):
        if operators.serves(implementation, tail):
            instance = Instance.default(operator, implementation, tail, arch)
            works = implementation.work(tail, instance.config, gpu(arch.name))
            assert all(work.longest_cta >= 1.0 for work in works), tail
            assert isfinite(uncompiled(instance.plan(), works, gpu(arch.name)).cost), tail


def test_work_is_declared_for_each_launch_with_its_blocks_and_warps(
    pair: tuple[Operator[Any], Implementation[Any, Any]],
) -> None:
    operator, implementation = pair
    problem = example(operator, implementation)
    target = gpu(first_arch(implementation, problem).name)
    config = implementation.default(problem, target.arch)
    plan, works = implementation.plan(problem, config), implementation.work(problem, config, target)
    launched = [(prod(launch.grid), launch.threads // 32) for launch in plan.launches]
    assert [(work.ctas, work.warps) for work in works] == launched


def test_an_unknown_operator_or_implementation_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"unknown operator 'flash': did you mean flash_attention"):
        operators.load("flash")
    with pytest.raises(UsageError, match="has no implementation 'wmma': did you mean wgmma"):
        operators.implementation("flash_attention", "wmma")


def test_a_broken_folder_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "operator.py").write_text("OPERATOR = 7\n")
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    with pytest.raises(TemplateError, match=r"broken/operator\.py must define OPERATOR"):
        operators.load("broken")
