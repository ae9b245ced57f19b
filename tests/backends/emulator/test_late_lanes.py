"""Tests with a lane that is late at every mbarrier: no kernel waits for a phase that has passed.

A wait names a round by its parity. Who is not waited for in turn may be late by two rounds, and then waits for ever.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.operators.flash_attention import test_tcgen05 as tcgen05
from tests.operators.flash_attention import test_wgmma as wgmma
from tests.operators.flash_attention_backward import test_tcgen05 as backward_tcgen05
from tests.operators.flash_attention_backward import test_wgmma as backward_wgmma
from tests.operators.flash_attention_backward import test_wgmma_once as backward_once
from tests.operators.kda import test_fused_cluster as kda_cluster
from tests.operators.kda import test_fused_wgmma as kda_wgmma
from tests.operators.paged_attention import test_tcgen05 as paged_tcgen05
from tests.operators.paged_attention import test_wgmma as paged_wgmma
from tests.support.claims import drawn
from tuner.backends import emulator
from tuner.backends.emulator import Mode
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.evaluate.check.compare import errors
from tuner.operators.flash_attention.problem import Problem
from tuner.operators.flash_attention_backward.problem import Problem as Backward
from tuner.operators.paged_attention.problem import Problem as Paged
from tuner.spec.instance import Instance

# In each block another warp's lane. It goes on where nobody else can, or within a cluster where others have had turns.
LATE = """
#include "mbarrier.cuh"

inline void late_wait(uint32_t barrier, int parity) {
  unsigned const block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  for (int i = 0; i < TURNS && threadIdx.x == block % (blockDim.x / 32) * 32 + 5; ++i) __nanosleep(20);
  mbarrier_wait(barrier, parity);
}
"""
WAIT, DEFINED = "mbarrier_wait(", "void mbarrier_wait("

# Two stages, and many rounds of them; as many blocks as warps.
CAUSAL = {"batch": 1, "heads": 6, "kv_heads": 3, "seq_q": 300, "seq_k": 300}
DENSE = Problem(40, causal=True, **CAUSAL)
PAGES = Paged(16, batch=2, heads=12, kv_heads=12, seq_q=150, page_size=8, max_pages=40)
GRADIENTS = Backward(40, causal=True, **CAUSAL)
PACKED = replace(GRADIENTS, use_cu_seqlens=True, boundaries=4)
LONG = {"batch": 2, "heads": 6, "value_heads": 6, "seq_len": 300}
NARROW = replace(wgmma.BASE, ping_pong=False, value_columns=32)
CASES: dict[str, tuple[Any, Any, Any, Any]] = {
    "wgmma_in_pairs": (wgmma.OPERATOR, wgmma.WGMMA, DENSE, replace(NARROW, warpgroups=3, cluster=2)),
    "wgmma_walks": (wgmma.OPERATOR, wgmma.WGMMA, DENSE, replace(NARROW, blocks=12)),
    "tcgen05": (tcgen05.OPERATOR, tcgen05.TCGEN05, DENSE, replace(tcgen05.BASE, BN=32, value_columns=16)),
    "paged_wgmma_walks": (
        paged_wgmma.OPERATOR,
        paged_wgmma.WGMMA,
        PAGES,
        replace(paged_wgmma.BASE, BN=32, blocks=12),
    ),
    "paged_tcgen05": (paged_tcgen05.OPERATOR, paged_tcgen05.TCGEN05, PAGES, replace(paged_tcgen05.TWO, BN=32)),
    "backward_wgmma": (backward_wgmma.OPERATOR, backward_wgmma.WGMMA, PACKED, backward_wgmma.CASES[40]),
    "backward_once": (backward_once.OPERATOR, backward_once.ONCE, GRADIENTS, backward_once.CASES[40]),
    "backward_tcgen05": (
        backward_tcgen05.OPERATOR,
        backward_tcgen05.TCGEN05,
        PACKED,
        replace(backward_tcgen05.BASE, columns=32),
    ),
    "kda_cluster": (
        kda_cluster.OPERATOR,
        kda_cluster.KERNEL,
        replace(kda_cluster.SMALL, **LONG),
        kda_cluster.CASES["chunk32_rows32_two_partials"][1],
    ),
    "kda_wgmma": (kda_wgmma.OPERATOR, kda_wgmma.KERNEL, replace(kda_wgmma.SMALL, **LONG), kda_wgmma.PAIR),
}


def with_late_lanes(instance: Instance, target: Any) -> Source:
    source, clusters = render(instance, target), any(launch.cluster > 1 for launch in instance.plan().launches)
    assert any(WAIT in text for _, text in source.headers)
    headers = ((name, text if DEFINED in text else text.replace(WAIT, "late_wait(")) for name, text in source.headers)
    return replace(source, text=LATE.replace("TURNS", "400" if clusters else "1") + source.text, headers=tuple(headers))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_a_late_lane_misses_no_round(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance(*CASES[case])
    arrays = drawn(instance.operator, instance.problem, instance.operator.input_kinds[0])
    monkeypatch.setattr(emulator, "render", with_late_lanes)
    outputs, happened = emulator.run(instance, arrays, Mode(False, "random", "random", 1))
    assert not happened.findings, happened.findings[0]
    assert all(error.ok for error in errors(instance.operator, instance.problem, arrays, outputs))
