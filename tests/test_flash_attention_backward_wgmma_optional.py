"""flash_attention_backward/wgmma with capped scores: gradients, and what the caps cost."""

from dataclasses import replace

import pytest
from test_flash_attention_backward_wgmma import BASE, CASES, HOPPER, OPERATOR, PASSES, SPLIT, WGMMA, run

from tuner.arch import gpu
from tuner.check import CHECKED
from tuner.dtype import DType
from tuner.lint import lint
from tuner.nvrtc import Compiler
from tuner.operators.flash_attention_backward.problem import Problem
from tuner.operators.flash_attention_backward.wgmma_config import Config
from tuner.render import render
from tuner.toolkit import Options
from tuner.verify import errors

CAPPED = Problem(64, causal=True, use_softcap=True)


@pytest.mark.parametrize(("D", "config"), [(40, CASES[40]), (104, SPLIT)], ids=["sums_of_both", "split"])
def test_gradients_of_capped_scores_are_right(D: int, config: Config) -> None:
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 70, "seq_k": 90}
    problem = Problem(D, DType.FP16, True, use_softcap=True, **sizes)
    arrays, outputs, happened = run(problem, config, CHECKED[0])
    assert not happened.findings
    assert all(error.ok for error in errors(OPERATOR, problem, arrays, outputs))
    assert happened.counters.bank_conflicts == 0


def test_capped_scores_leave_room_for_smaller_tiles() -> None:
    largest = replace(BASE, BM_kv=96)
    assert WGMMA.space(replace(CAPPED, use_softcap=False), HOPPER).refusal(largest) is None
    assert WGMMA.space(CAPPED, HOPPER).refusal(largest) == "sums, scores and products of dK and dV fit the registers"


def test_the_default_for_capped_scores_compiles_clean() -> None:
    with Compiler(workers=1) as compiler:
        source = render(OPERATOR, WGMMA, CAPPED, WGMMA.default(CAPPED, HOPPER))
        ((_, cubin),) = compiler.compile_many([(source, Options("sm_90a"))])
    assert [lint(cubin, entry).failures for entry in PASSES] == [(), ()]


def test_a_cap_costs_special_functions_and_no_product() -> None:
    config, plain = WGMMA.default(CAPPED, HOPPER), replace(CAPPED, use_softcap=False)
    pairs = zip(WGMMA.work(CAPPED, config, gpu("H200")), WGMMA.work(plain, config, gpu("H200")), strict=True)
    _, *passes = pairs
    assert all(capped.mufu == 2.5 * free.mufu and capped.wgmma == free.wgmma for capped, free in passes)
