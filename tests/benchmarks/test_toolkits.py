"""Tests of the problems for which benchmarks/toolkits.py compiles defaults."""

import sys
from argparse import Namespace
from importlib import import_module
from itertools import combinations
from typing import Any

import pytest

from tuner import operators
from tuner.base.assets import ROOT

Asked = dict[Any, str]


@pytest.fixture
def toolkits(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])
    return import_module("toolkits")


def asked(toolkits: Any, operator: str, implementation: str, **options: bool) -> Asked:
    """Problems of two sizes on sm_90a."""
    given = Namespace(**{"pairs": False, "options": False} | options)
    kernel = operators.implementation(operator, implementation)
    result: Asked = toolkits._asked(operators.load(operator), kernel, "sm_90a", ["64", "128"], given)
    return result


def test_each_option_by_itself_packed_sequences_too(toolkits: Any) -> None:
    result = asked(toolkits, "flash_attention", "mma_sync", options=True)
    packed = [problem for problem in result if problem.use_cu_seqlens]
    assert [(entry.head_dim, entry.batch) for entry in packed] == [(64, 1), (128, 1)]
    assert not any(entry.use_softcap or entry.causal for entry in packed)


@pytest.mark.parametrize(("operator", "implementation"), [("flash_attention", "mma_sync"), ("kda", "recurrent")])
def test_any_two_options_meet_in_few_problems(toolkits: Any, operator: str, implementation: str) -> None:
    result = asked(toolkits, operator, implementation, pairs=True)
    names = [name for name, values in toolkits._values(next(iter(result))).items() if values == (False, True)]
    met = {pair for entry in result for pair in combinations([name for name in names if getattr(entry, name)], 2)}
    pool, states = "inplace_final_state", {"use_initial_state", "output_final_state"}
    refused = {pair for pair in combinations(names, 2) if {pool, "use_state_indices"} & {*pair} and states & {*pair}}
    assert met == set(combinations(names, 2)) - refused
    assert len(result) < 50


def test_what_callers_combine_is_among_them(toolkits: Any) -> None:
    latent = [pair for pair in asked(toolkits, "flash_attention", "wgmma", pairs=True) if pair.head_dim == 192]
    assert all((entry.head_dim_v, entry.use_cu_seqlens, entry.causal) == (128, True, True) for entry in latent)
    assert latent
    layers = asked(toolkits, "kda_backward", "chunked", pairs=True)
    assert any(layer.use_cu_seqlens and layer.use_dt_bias and layer.use_qk_l2norm_in_kernel for layer in layers)


def test_random_configs_come_beside_each_default_and_are_the_same_in_each_call(toolkits: Any) -> None:
    options = Namespace(
        sizes="64,128", arch=["sm_90a"], operator=["flash_attention"], implementation=["wgmma"], configs=3
    )
    vars(options).update(all=False, pairs=False, options=False)
    wanted = list(toolkits._wanted(options))
    assert {entry.instance.implementation.name for entry in wanted} == {"wgmma"}
    by_problem = [entry.instance for entry in wanted if entry.called == wanted[0].called]
    assert len({instance.key for instance in by_problem}) == 4
    assert [pair.instance.key for pair in toolkits._wanted(options)] == [entry.instance.key for entry in wanted]
