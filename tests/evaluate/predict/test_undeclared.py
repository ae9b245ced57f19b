"""Work that nobody declared, as machine code tells it."""

from pathlib import Path

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
from tuner.evaluate.predict.undeclared import work_of_code
from tuner.spec import defaults
from tuner.spec.instance import Instance
from tuner.spec.operator import Work
from tuner.spec.plan import Plan
from tuner.spec.problem import from_fields

TARGET = gpu("sm_80")


def compiled(operator: str, implementation: str, config: object) -> Cubin:
    loaded, found = operators.load(operator), operators.implementation(operator, implementation)
    source = render(Instance(loaded, found, loaded.problem(), config))
    cubin = nvrtc.compile(source, Options(TARGET.arch.name), Cache.of("cubin"))
    assert isinstance(cubin, Cubin)
    return cubin


def work_of_softmax(name: str, threads: int, vector: int) -> Work:
    found = operators.implementation(name, "block")
    config = from_fields(found.config, {"threads": threads, "vector": vector})
    operator, cubin = operators.load(name), compiled(name, "block", config)
    problem = operator.problem()
    plan, least = found.plan(problem, config), found.work(problem, config, TARGET)
    (work,) = work_of_code(operator, problem, plan, least, cubin)
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
    operator, found = operators.load("flash_attention"), operators.implementation("flash_attention", "split_keys")
    problem = found.example or operator.problem()
    config = found.default(problem, TARGET.arch)
    plan = found.plan(problem, config)
    least = defaults.work(operator.cost(problem), plan)
    works = work_of_code(operator, problem, plan, least, compiled("flash_attention", "split_keys", config))
    assert [each.ctas for each in works] == [each.ctas for each in least]
    assert all(each.l2_bytes >= of_cost.l2_bytes for each, of_cost in zip(works, least, strict=True))


def cost(cubin: Cubin, plan: Plan, works: tuple[Work, ...], *, declared: bool) -> float:
    each = zip(plan.launches, works, strict=True)
    return in_turn([predict_launch(cubin, *of_launch, TARGET, declared=declared) for of_launch in each]).cost


@pytest.mark.slow
def test_machine_code_ranks_tiles_nearly_as_declared_work_does() -> None:
    operator, found = operators.load("flash_attention"), operators.implementation("flash_attention", "mma_sync")
    problem = operator.problem()
    space = found.space(problem, TARGET.arch)
    declared, told = [], []
    for index in np.linspace(0, len(space) - 1, 9).astype(int):
        config = space[int(index)]
        plan, cubin = found.plan(problem, config), compiled("flash_attention", "mma_sync", config)
        of_code = work_of_code(operator, problem, plan, defaults.work(operator.cost(problem), plan), cubin)
        declared.append(cost(cubin, plan, found.work(problem, config, TARGET), declared=True))
        told.append(cost(cubin, plan, of_code, declared=False))
    ranks = [np.argsort(np.argsort(costs)) for costs in (declared, told)]
    assert np.corrcoef(*ranks)[0, 1] > 0.75
    assert declared[int(np.argmin(told))] == pytest.approx(min(declared), rel=0.1)
