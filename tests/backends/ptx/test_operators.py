"""Tests of the operators' PTX, executed and checked as on the emulator, also with inserted errors."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.operators.flash_attention.wgmma_questions import (
    QUESTIONS,
    Question,
    equal_weights,
    one_column,
    wrong_columns,
    wrong_lse,
)
from tests.support.claims import compiled_to_ptx
from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import ptx
from tuner.base.cache import Cache
from tuner.cli.app import build
from tuner.compiler import nvrtc
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.evaluate.check.checker import Job, drawn
from tuner.evaluate.check.edges import edges
from tuner.evaluate.check.on_ptx import check_ptx
from tuner.results.attempt import Failed
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import canonical, to_fields

# One of each family: plain loops, mma with cp.async, a look-back over blocks, chunks in tf32 and bf16, TMA with wgmma
# and with tcgen05.
FAMILIES = {
    "flash_attention/naive": ("sm_80", 1),
    "flash_attention/mma_sync": ("sm_80", 4),
    "flash_attention/split_keys": ("sm_90a", 2),
    "flash_attention/tcgen05": ("sm_100a", 2),
    "flash_attention_backward/wgmma": ("sm_90a", 2),
    "kda/fused": ("sm_80", 2),
    "kda/recurrent": ("sm_80", 1),
    "linear_attention/lookback": ("sm_80", 2),
    "mla_decode/wgmma": ("sm_90a", 1),
    "streaming_attention/split_keys": ("sm_80", 2),
}


def job_of(name: str, arch: str) -> Job:
    operator, implementation = name.split("/")
    result = operators.implementation(operator, implementation)
    problem = result.example or operators.load(operator).problem()
    return Job(
        InstanceFields(operator, implementation, to_fields(problem), to_fields(result.default(problem, ARCHES[arch])))
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_ptx_of_a_default_computes_what_its_operator_says(name: str) -> None:
    arch, most = FAMILIES[name]
    verdict = check_ptx(job_of(name, arch), ARCHES[arch], most, ["together"])
    assert verdict.ok, verdict.reason
    assert len(verdict.checks) == most


@pytest.mark.parametrize("name", ["flash_attention/mma_sync", "linear_attention/lookback"])
def test_the_order_in_which_warps_run_changes_nothing(name: str) -> None:
    verdict = check_ptx(job_of(name, "sm_80"), ARCHES["sm_80"], 1)
    assert verdict.ok, verdict.reason
    assert [check.partition(":")[0].split()[-1] for check in verdict.checks] == list(ptx.ORDERS)


# Of the assembly in templates/primitives/cuda, which the emulator never sees: (pattern, replacement) in the PTX.
ERRORS = {
    "halves of B swapped": ("mma_sync", r"\{(%r\d+),(%r\d+)\}(?=, \{%f)", r"{\2,\1}"),
    "quarters of A swapped": ("mma_sync", r"\{(%r\d+),(%r\d+),(%r\d+,%r\d+)\}(?=, \{%r)", r"{\2,\1,\3}"),
    "matrices in another order": ("mma_sync", r"(trans\.shared\.b16 \{)(%r\d+), (%r\d+)", r"\1\3, \2"),
    "rows for columns": ("mma_sync", r"x4\.shared", "x4.trans.shared"),
    "halves of a pair swapped": ("mma_sync", r"(bf16x2\.f32 %r\d+), (%f\d+), (%f\d+)", r"\1, \3, \2"),
    "bytes beyond a tail copied": ("mma_sync", r"16, %r\d+;", "16, 16;"),
    "no wait for copies": ("mma_sync", r"cp\.async\.wait_group \d+;", ""),
    "coordinates in another order": ("wgmma", r"\{(%r\d+, )(%r\d+, )(%r\d+, )(%r\d+)\}\]", r"{\1\3\2\4}]"),
    "no fence before a product": ("wgmma", r"wgmma\.fence\S*;", ""),
    "no wait for products": ("wgmma", r"wgmma\.wait_group\S* \d+;", ""),
    "no fence before a store by TMA": ("wgmma", r"fence\.proxy\.async\S*;", ""),
    "no fence after a barrier's begin": ("wgmma", r"fence\.mbarrier_init\S*;", ""),
    "the other parity": ("wgmma", r"(try_wait\S* p, \[%r\d+\]), %r\d+", r"\1, 0"),
    "A and B swapped": ("tcgen05", r"(kind::f16 \[%r\d+\]), (%rd\d+), (%rd\d+)", r"\1, \3, \2"),
    "every product adds": ("tcgen05", r"(kind::f16 .*), p;", r"\1, 1;"),
    "columns of a store swapped": ("tcgen05", r"(\.st\S*x8\.b32 \[%r\d+\], \{)(%r\d+), (%r\d+)", r"\1\3, \2"),
    "another shape of loads": ("tcgen05", r"(tcgen05\.ld\S*)32x32b\.x16", r"\g<1>16x256b.x4"),
    "no wait for stores": ("tcgen05", r"tcgen05\.wait::st\S*;", ""),
    "no wait for loads": ("tcgen05", r"tcgen05\.wait::ld\S*;", ""),
    "columns are kept": ("tcgen05", r"tcgen05\.dealloc\S* %r\d+, %r\d+;", ""),
    "numbers of a pair swapped": ("tcgen05", r"mov\.b64 \{(%r\d+), (%r\d+)\}, a;", r"mov.b64 {\2, \1}, a;"),
    "fewer bytes expected": ("wgmma", r"(expect_tx\S* state, \[%r\d+\]), %r\d+", r"\1, 16"),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_in_the_assembly_is_seen(error: str) -> None:
    implementation, pattern, replacement = ERRORS[error]
    changed, places = re.subn(pattern, replacement, attention(implementation))
    assert places, f"the PTX has no {pattern}"
    assert not is_right(implementation, changed), "nothing was seen"


@pytest.mark.parametrize("implementation", ["mma_sync", "wgmma", "tcgen05"])
def test_without_an_error_none_is_seen(implementation: str) -> None:
    assert is_right(implementation, attention(implementation))


ATTENTION = operators.load("flash_attention")
PROBLEM = ATTENTION.problem()


@cache
def attention(name: str) -> str:
    """The PTX of a default of flash_attention."""
    implementation = operators.implementation("flash_attention", name)
    config = implementation.default(PROBLEM, ARCHES[arch_of(name)])
    return compiled_to_ptx(render(Instance(ATTENTION, implementation, PROBLEM, config)), arch_of(name))


def arch_of(name: str) -> str:
    return "sm_100a" if name == "tcgen05" else "sm_90a"


def is_right(name: str, text: str) -> bool:
    """Whether PTX of flash_attention is, on 77 keys."""
    implementation = operators.implementation("flash_attention", name)
    config = implementation.default(PROBLEM, ARCHES[arch_of(name)])
    case = edges(ATTENTION, PROBLEM)[1]
    arrays, expected = drawn("flash_attention", canonical(case.problem), case.kind)
    outputs, run = ptx.run(Instance(ATTENTION, implementation, case.problem, config), ptx.parse(text), arrays)
    return not run.fault and all(error.ok for error in expected.errors(outputs))


@pytest.mark.parametrize("question", QUESTIONS[5::12], ids=lambda question: question.name)
def test_columns_of_a_tile_are_found_where_the_descriptors_say(question: Question) -> None:
    operator, wgmma = operators.load("flash_attention"), operators.implementation("flash_attention", "wgmma")
    problem, column = question.problem, question.head_dim - 1
    text = compiled_to_ptx(render(Instance(operator, wgmma, problem, question.config)), "sm_90a")
    for arrays in (equal_weights(problem), one_column(problem, column)):
        outputs, run = ptx.run(Instance(operator, wgmma, problem, question.config), ptx.parse(text), arrays)
        assert run.fault == ""
        if arrays["q"].any():
            assert not wrong_lse(arrays, column, outputs["lse"])
        else:
            assert wrong_columns(arrays, outputs["o"]) == []


def test_ptx_is_kept_by_its_source_and_an_error_is_told(tmp_path: Path) -> None:
    cache, source = Cache(tmp_path), Source(("k",), 'extern "C" __global__ void k() {}', (), "cuda")
    text = nvrtc.ptx(source, Options("sm_90a"), cache)
    assert isinstance(text, str)
    assert ".target sm_90a" in text
    assert nvrtc.ptx(source, Options("sm_90a"), cache) == text
    assert cache.size().entries == 1
    assert isinstance(nvrtc.ptx(replace(source, text="void k("), Options("sm_90a"), cache), Failed)


def test_verify_tells_both_verdicts() -> None:
    words = ["verify", "linear_attention", "--implementation", "naive", "--plain", "--ptx"]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    assert "errors against float64 (emulator)" in result.output
    assert "errors against float64 (PTX for sm_80)" in result.output
