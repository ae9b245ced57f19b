"""Work that nobody declared, as machine code tells it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.own_operators import own_operator
from tuner import operators
from tuner.arch import gpu
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.evaluate.predict.compiled import predict_launch
from tuner.evaluate.predict.cost import in_turn
from tuner.evaluate.predict.static_work import static_work
from tuner.spec import defaults
from tuner.spec.instance import Instance
from tuner.spec.operator import Work
from tuner.spec.problem import from_fields

TARGET = gpu("sm_80")


def instance_of(operator: str, implementation: str, config: Any = None) -> Instance:
    loaded, kernel = operators.load(operator), operators.implementation(operator, implementation)
    problem = kernel.example or loaded.problem()
    return Instance(loaded, kernel, problem, config or kernel.default(problem, TARGET.arch))


def compiled(instance: Instance) -> Cubin:
    cubin = nvrtc.compile(render(instance), Options(TARGET.arch.name), Cache.of("cubin"))
    assert isinstance(cubin, Cubin)
    return cubin


def work_of_softmax(name: str, threads: int, vector: int) -> Work:
    kernel = operators.implementation(name, "block")
    instance = instance_of(name, "block", from_fields(kernel.config, {"threads": threads, "vector": vector}))
    (work,) = static_work(instance, instance.work(TARGET), compiled(instance))
    return work


def test_without_a_loop_every_instruction_runs_once(tmp_path: Path) -> None:
    with own_operator(tmp_path) as name:
        narrow, wide = work_of_softmax(name, 32, 1), work_of_softmax(name, 32, 8)
    rows, columns = 4096, 256
    assert narrow.chain == wide.chain == 1
    assert narrow.l2_bytes == wide.l2_bytes == 2 * rows * columns * 2  # each element is read once and written once
    assert narrow.mufu == wide.mufu == rows * (columns / 32 + 1)  # an exponential an element, a reciprocal a row
    assert narrow.smem_wavefronts > wide.smem_wavefronts
    assert narrow.alu > wide.alu


def test_a_loop_is_passed_as_often_as_its_stores_leave_the_result(tmp_path: Path) -> None:
    steps = "for (int step = 0; step < kSteps; ++step) {\n    int const i = step * kThreads + threadIdx.x;\n"
    storing = f"#pragma unroll\n  {steps}    Vector result"
    with own_operator(tmp_path, ("block/kernel.cu.jinja", storing, storing.replace("unroll", "unroll 1"))) as name:
        assert work_of_softmax(name, 32, 1).chain == 256 / 32


def test_each_of_several_launches_does_what_the_cost_says_at_least() -> None:
    instance = instance_of("flash_attention", "split_keys")
    least = least_of(instance)
    works = static_work(instance, least, compiled(instance))
    assert [work.ctas for work in works] == [minimum.ctas for minimum in least]
    assert all(work.l2_bytes >= minimum.l2_bytes for work, minimum in zip(works, least, strict=True))


def least_of(instance: Instance) -> tuple[Work, ...]:
    return defaults.work(instance.operator.cost(instance.problem), instance.plan())


def cost(cubin: Cubin, instance: Instance, works: Sequence[Work], *, declared: bool) -> float:
    launches = zip(instance.plan().launches, works, strict=True)
    return in_turn([predict_launch(cubin, launch, work, TARGET, declared=declared) for launch, work in launches]).cost


@pytest.mark.slow
def test_machine_code_ranks_tiles_nearly_as_declared_work_does() -> None:
    example = instance_of("flash_attention", "mma_sync")
    space = example.implementation.space(example.problem, TARGET.arch)
    declared, estimated = [], []
    for index in np.linspace(0, len(space) - 1, 9).astype(int):
        instance = instance_of("flash_attention", "mma_sync", space[int(index)])
        cubin = compiled(instance)
        declared.append(cost(cubin, instance, instance.work(TARGET), declared=True))
        static = static_work(instance, least_of(instance), cubin)
        estimated.append(cost(cubin, instance, static, declared=False))
    ranks = [np.argsort(np.argsort(costs)) for costs in (declared, estimated)]
    assert np.corrcoef(*ranks)[0, 1] > 0.75
    assert declared[int(np.argmin(estimated))] == pytest.approx(min(declared), rel=0.1)
