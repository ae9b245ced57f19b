"""streaming_attention/wgmma and tcgen05 alike: what they serve, what they pick, and that work grows with the length."""

from dataclasses import replace

import pytest

from tests.support.claims import compiled
from tuner import operators
from tuner.arch import ARCHES, GPU, gpu
from tuner.compiler.lint import Lint, lint
from tuner.compiler.render import render
from tuner.operators.streaming_attention.problem import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance

OPERATOR = operators.load("streaming_attention")
GPUS = {"wgmma": gpu("H200"), "tcgen05": gpu("B200")}


@pytest.fixture(params=GPUS)
def kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def device(kernel: str) -> GPU:
    return GPUS[kernel]


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem(rolling=True), "rolling: TMA boxes need keys in the order of positions"),
        (Problem(dtype=DType.FP32), "dtype fp32: wgmma operands have 16 bits"),
        (Problem(head_dim=8), "head_dim 8: the narrowest tile has 16 columns"),
        (Problem(ragged=True), None),
    ],
    ids=["rolling", "fp32", "narrow", "ragged"],
)
def test_what_is_not_served_is_refused_with_the_reason(
    kernel: str, device: GPU, problem: Problem, reason: str | None
) -> None:
    assert operators.implementation("streaming_attention", kernel).refusal(problem, device.arch) == reason


@pytest.mark.parametrize(
    ("kernel", "arch", "owners"),
    [("wgmma", "sm_100a", "sm_90a has"), ("tcgen05", "sm_90a", "sm_100a, sm_103a and sm_110a have")],
)
def test_another_architecture_is_refused_with_the_one_that_has_the_instruction(
    kernel: str, arch: str, owners: str
) -> None:
    refusal = operators.implementation("streaming_attention", kernel).refusal(Problem(), ARCHES[arch])
    assert refusal == f"{arch} has no {kernel} instructions: {owners} them"


@pytest.mark.parametrize("D", range(16, 257, 40))
@pytest.mark.parametrize("window", [1, 128, 4096])
def test_a_default_is_a_config_that_a_search_may_pick(kernel: str, device: GPU, D: int, window: int) -> None:
    implementation = operators.implementation("streaming_attention", kernel)
    problem = Problem(D, heads=8, kv_heads=2, window=window, ragged=window == 1)
    result = implementation.default(problem, device.arch)
    assert implementation.space(problem, device.arch).refusal(result) is None


@pytest.mark.parametrize("window", [1, 64, 1000])
def test_twice_the_length_is_twice_the_work(kernel: str, device: GPU, window: int) -> None:
    implementation = operators.implementation("streaming_attention", kernel)
    shortest = Problem(64, seq_q=2048, window=window, sinks=4)
    size = {"warpgroups": 2} if kernel == "wgmma" else {"row_tiles": 2}  # whole row tiles in every length
    config = replace(implementation.default(shortest, device.arch), BN=48, packed_heads=1, **size)

    def products(seq_q: int) -> float:
        return float(getattr(implementation.work(replace(shortest, seq_q=seq_q), config, device)[0], kernel))

    first = products(2048)  # at the start, windows are cut short
    assert products(4096) - first == products(6144) - products(4096) == (products(131072) - first) / 63


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.slow
def test_the_default_spills_nothing_and_passes_the_lint(kernel: str, device: GPU, ragged: bool) -> None:
    implementation, problem = operators.implementation("streaming_attention", kernel), Problem(ragged=ragged)
    source = render(Instance.default(OPERATOR, implementation, problem, device.arch))
    cubin = compiled(source, device.arch.name)
    assert not cubin.entries[f"streaming_attention_{kernel}"].spills
    assert lint(cubin, f"streaming_attention_{kernel}") == Lint()
