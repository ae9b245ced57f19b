"""A small search on a simulated device, and the times of its configs there."""

from dataclasses import replace
from typing import Any

from tests.support.simulated_device import Simulation
from tuner import operators
from tuner.arch import gpu
from tuner.base.canonical_json import encode
from tuner.compiler.nvrtc import Compiler
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.measure.crash_ledger import Ledger
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import Worker
from tuner.evaluate.measurer import Measurer, Setup
from tuner.search import study
from tuner.spec.instance import InstanceFields
from tuner.spec.problem import to_fields

OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=16, batch=1, heads=1, seq_q=64)
GPU = gpu("sm_80")
IMPLEMENTATION = operators.implementation("flash_attention", "mma_sync")
SPACE = IMPLEMENTATION.space(PROBLEM, GPU.arch)
# for complete searches: the emulator finishes its edge cases forty times as fast
PAGED = operators.load("paged_attention")
NAIVE = operators.implementation("paged_attention", "naive")
DECODING = PAGED.problem(head_dim=16, batch=1, heads=1, kv_heads=1, max_pages=4)
POLICY = MeasurementPolicy(warm_up_us=100, limit_s=0.5)
CALM = Simulation("sm_80", noise=0.005, lies=0, throttled=0)


def code(config: Any) -> Code:
    return Code(InstanceFields("flash_attention", "mma_sync", to_fields(PROBLEM), to_fields(config)), b"")


def timed_as(configs: list[Any], times: list[float]) -> tuple[tuple[str, float], ...]:
    return tuple((encode(to_fields(config)), us) for config, us in zip(configs, times, strict=True))


def powered(configs: list[Any]) -> Simulation:
    """Return times: the first config is fastest at a fixed clock but lowers its own clock; the second is next."""
    times = timed_as(configs, [97.0, 100.0, *[150.0] * (len(configs) - 2)])
    return replace(CALM, drift=0.0, times_us=times, clocks=((encode(to_fields(configs[0])), 0.9),))


def request(budget: int = 4) -> study.SearchRequest:
    return study.SearchRequest(PAGED, DECODING, GPU, budget=budget, implementation="naive")


def measurer(machines: tuple[Compiler, Checker], worker: Worker, ledger: Ledger | None = None) -> Measurer:
    return Measurer(PAGED, DECODING, GPU, machines[0], Setup(worker, POLICY, ledger or Ledger()))


def naive_configs() -> list[Any]:
    space = NAIVE.space(DECODING, GPU.arch)
    return [space[index] for index in range(len(space))]
