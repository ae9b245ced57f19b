"""kda's defaults of blocks that prepare and carry: how wide they are follows from the SMs of the arch."""

from typing import Any

import pytest

from tuner import operators
from tuner.arch import gpu
from tuner.evaluate.predict.cost import uncompiled
from tuner.operators.kda.problem import Problem

NEAR = 1.05  # times the best of the space


@pytest.mark.parametrize(("name", "heads"), [("A100", 32), ("A100", 96), ("H200", 32), ("H200", 96), ("RTX 5090", 64)])
def test_no_config_of_fused_is_predicted_to_cost_much_less_than_the_default(name: str, heads: int) -> None:
    _assert_near_the_best("fused", name, Problem(key_dim=128, value_dim=128, heads=heads, seq_len=8192))


@pytest.mark.parametrize(("name", "heads"), [("H200", 32), ("H200", 128), ("RTX 5090", 32)])
def test_no_config_of_fused_cluster_is_predicted_to_cost_much_less_than_the_default(name: str, heads: int) -> None:
    _assert_near_the_best("fused_cluster", name, Problem(key_dim=128, value_dim=128, heads=heads, seq_len=8192))


@pytest.mark.parametrize("value_dim", [128, 256])
@pytest.mark.parametrize("heads", [32, 64, 128])
def test_no_config_of_fused_wgmma_is_predicted_to_cost_much_less_than_the_default(heads: int, value_dim: int) -> None:
    _assert_near_the_best("fused_wgmma", "H200", Problem(key_dim=128, value_dim=value_dim, heads=heads, seq_len=8192))


def test_short_keys_of_many_heads_have_wide_blocks_too() -> None:
    _assert_near_the_best("fused", "H200", Problem(key_dim=64, value_dim=128, heads=128, seq_len=8192))


def _assert_near_the_best(name: str, device: str, problem: Problem) -> None:
    kernel, on = operators.implementation("kda", name), gpu(device)

    def cost(config: Any) -> float:
        return uncompiled(kernel.plan(problem, config), kernel.work(problem, config, on), on).cost

    assert cost(kernel.default(problem, on.arch)) <= NEAR * min(map(cost, kernel.space(problem, on.arch)))
