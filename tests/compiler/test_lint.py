"""Tests of lint rules on machine code: kernels that satisfy them, and kernels that violate each."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tuner import operators
from tuner.arch import ARCHES, gpu
from tuner.base.cache import Cache
from tuner.compiler import lint as rules
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.lint import Lint, lint
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options, Toolkit
from tuner.evaluate.predict.compiled import resources_of
from tuner.operators.flash_attention.operator import Problem
from tuner.spec.instance import Instance

OPERATOR = operators.load("flash_attention")
WGMMA = operators.implementation("flash_attention", "wgmma")
BLACKWELL = Path(__file__).parent / "kernels" / "blackwell.cu"
ENTRY = "flash_attention_wgmma"
DEFAULT = replace(WGMMA.default(Problem(head_dim=64), ARCHES["sm_90a"]), warpgroups=2)


def compiled(source: Source, arch: str = "sm_90a") -> Cubin:
    cubin = nvrtc.compile(source, Options(arch=arch), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    return cubin


@cache
def attention(head_dim: int = 64, **changes: int) -> Cubin:
    problem = Problem(head_dim=head_dim)
    config = replace(WGMMA.default(problem, ARCHES["sm_90a"]), **{"warpgroups": 2} | changes)
    return compiled(render(Instance(OPERATOR, WGMMA, problem, config)))


def with_replaced(old: str, new: str) -> Cubin:
    """Two warpgroups at head_dim 64, with a piece of a header replaced."""
    source = render(Instance(OPERATOR, WGMMA, Problem(head_dim=64), DEFAULT))
    assert any(old in text for _, text in source.headers)
    headers = tuple((name, text.replace(old, new)) for name, text in source.headers)
    return compiled(replace(source, headers=headers))


@pytest.mark.parametrize(("overlap", "blocks"), [(1, 0), (2, 0), (1, 132)])
def test_softmax_that_runs_over_products_keeps_every_rule(overlap: int, blocks: int) -> None:
    """The first exponentials of each row tile, which persistent blocks loop over, need no product."""
    cubin = attention(BN=96, overlap=overlap, ping_pong=False, blocks=blocks)
    assert lint(cubin, ENTRY) == Lint()


def test_softmax_between_products_is_told_how_many_exponentials_run_alone() -> None:
    cubin = attention(BN=96, overlap=0, ping_pong=False)
    (reason,) = lint(cubin, ENTRY).failures
    assert reason == "50 of the loop's 50 exponentials run with no wgmma in flight"


def test_an_attempt_carries_what_its_machine_code_does_wrong() -> None:
    plan = WGMMA.plan(Problem(head_dim=64), DEFAULT)
    clean = resources_of(attention(), plan, gpu("H200"))
    alone = resources_of(attention(BN=96, overlap=0, ping_pong=False), plan, gpu("H200"))
    assert clean.lint == Lint() and clean.flaws == ()
    assert "run with no wgmma in flight" in alone.flaws[0]


def test_of_several_kernels_each_sentence_names_its_own() -> None:
    text = """extern "C" __global__ void __launch_bounds__(1024) {name}(float* x) {{
      float r[96];
      for (int i = 0; i < 96; ++i) r[i] = x[i * 1024 + threadIdx.x];
      __syncthreads();
      for (int i = 0; i < 96; ++i) x[i * 1024 + threadIdx.x] = r[95 - i] * r[i] + r[(i * 7) % 96];
    }}
    """
    source = Source(("first", "second"), text.format(name="first") + text.format(name="second"), (), "cuda")
    result = rules.lint_all(compiled(source))
    assert sorted(failure.partition(":")[0] for failure in result.failures) == ["first", "second"]


def test_a_wait_that_ptxas_moves_before_the_exponentials_is_found() -> None:
    failures = lint(with_replaced("    end_basic_block(rows.exponentiated(tile));\n", ""), ENTRY).failures
    assert any("exponentials run with no wgmma in flight" in failure for failure in failures)


@pytest.mark.slow
def test_scores_beyond_the_register_rule_spill_and_serialize() -> None:
    findings = lint(attention(head_dim=128, BN=224), ENTRY)
    assert any("bytes of registers are spilled" in failure for failure in findings.failures)
    assert any("C7512" in failure for failure in findings.failures)
    assert not findings.ok


@pytest.mark.parametrize(("version", "told"), [("12.3", True), ("12.4", False), ("13.4", False)])
def test_who_has_an_old_compiler_that_serializes_is_told_which_does_not(version: str, told: bool) -> None:
    log = f"ptxas info : (C7516) Potential Performance Loss: wgmma.mma_async instructions are serialized in '{ENTRY}'"
    (reason,) = lint(replace(attention(), log=log, toolkit=Toolkit("nvrtc", version)), ENTRY).failures
    assert ("CUDA 12.4 and later compile clean: install one of them" in reason) == told


def test_a_branch_between_the_wgmmas_of_a_group_is_found() -> None:
    old = "for (int k = 0; k < BN; k += 16) multiply_values(k);"
    new = "for (int k = 0; k < BN; k += 16) if (k % 32 || mask.seq_k > k) multiply_values(k);"
    failures = lint(with_replaced(old, new), ENTRY).failures
    assert any("splits the group of wgmmas" in failure for failure in failures)


def test_exponentials_are_not_judged_where_the_code_has_calls() -> None:
    findings = lint(with_replaced("rcp_approx(sum[h])", "1 / sum[h]"), ENTRY)  # the slow path of a division
    assert findings == Lint(unchecked=("exponentials under wgmma: not checked (calls, indirect branches)",))


def test_products_of_tcgen05_are_issued_without_a_loop_over_lanes_by_who_was_elected() -> None:
    cubin = compiled(Source((), BLACKWELL.read_text(), (), "cuda"), "sm_100a")
    assert lint(cubin, "elected") == lint(cubin, "softmax") == Lint()
    (reason,) = lint(cubin, "by_lane").failures
    assert reason == "5 tcgen05 instructions are in loops over lanes: choose the issuing lane with elect.sync"


def test_a_kernel_without_wgmma_has_nothing_to_overlap() -> None:
    text = 'extern "C" __global__ void root(float* x) { for (int i = 0; i < 9; ++i) x[i] = exp2f(x[i]); }'
    assert lint(compiled(Source(("root",), text, (), "cuda"), "sm_80"), "root") == Lint()
