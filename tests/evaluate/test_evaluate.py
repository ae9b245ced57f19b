"""What an evaluator says of a config before it tries it."""

from dataclasses import replace
from typing import Any

import pytest

from tuner import operators
from tuner.arch import gpu
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.predictor import Predictor
from tuner.results.attempt import Identity
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance
from tuner.spec.plan import Plan, Workspace
from tuner.spec.tensor_map import TensorMap

OPERATOR = operators.load("flash_attention")
NAIVE = operators.implementation("flash_attention", "naive")
PROBLEM, GPU = OPERATOR.problem(), gpu("sm_90a")
CONFIG = NAIVE.default(PROBLEM, GPU.arch)


def identity(**changes: Any) -> Identity:
    """Of the default, whose plan is changed."""

    def plan(problem: Any, config: Any) -> Plan:
        return replace(NAIVE.plan(problem, config), **changes)

    with Compiler(1) as compiler:
        predictor = Predictor(GPU, compiler, Checker())
        return predictor.identity(Instance(OPERATOR, replace(NAIVE, plan=plan), PROBLEM, CONFIG))


FIRST, *OTHERS = NAIVE.plan(PROBLEM, CONFIG).launches


@pytest.mark.parametrize(
    "changes",
    [
        {"launches": (replace(FIRST, grid=(1, 1, 1)), *OTHERS)},
        {"launches": (replace(FIRST, threads=FIRST.threads + 32), *OTHERS)},
        {"launches": (replace(FIRST, smem_bytes=FIRST.smem_bytes + 16), *OTHERS)},
        {"workspaces": (Workspace("partial", DType.FP32, (1,)),)},
        {"maps": (TensorMap("q_map", "q", (1, 1, 8, 8)),)},
    ],
    ids=["grid", "threads", "shared memory", "workspace", "tensor map"],
)
def test_the_same_text_launched_otherwise_is_another_identity(changes: dict[str, Any]) -> None:
    result = identity(**changes)
    assert result != identity()
    assert replace(result, plan=identity().plan) == identity()
