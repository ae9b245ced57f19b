"""Costs of work that nobody declared, by blocks that are executed; and declared work beside the same counts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.own_operators import own_operator
from tuner import operators
from tuner.arch import gpu
from tuner.backends.ptx.counting import Counts
from tuner.backends.ptx.counting.memory_traffic import SECTOR
from tuner.backends.ptx.text.parse import Instruction
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.toolkit import Options
from tuner.evaluate.check.checker import Checker
from tuner.evaluate.predict.block_counts import NotCounted, block_counts
from tuner.evaluate.predict.compiled import predict_launches, predict_undeclared
from tuner.evaluate.predict.counted import CountedLaunch
from tuner.evaluate.predictor import Predictor
from tuner.spec.instance import Instance
from tuner.spec.operator import Work
from tuner.spec.problem import from_fields

TARGET = gpu("A100")


def compiled(instance: Instance) -> Cubin:
    cubin = nvrtc.compile(render(instance), Options(TARGET.arch.name), Cache.of("cubin"))
    assert isinstance(cubin, Cubin)
    return cubin


def products(instruction: Instruction) -> float:
    """Of an mma.sync, in units of m16n8k16."""
    shape = next((part for part in instruction.opcode if part.startswith("m16n8k")), "")
    return int(shape.removeprefix("m16n8k")) / 16 if instruction.opcode[0] == "mma" and shape else 0.0


def done(counts: Counts, work: Work) -> Mapping[str, float]:
    """What a launch does, of its counts."""
    kinds = {products(instruction) for instruction in counts.entry.code} - {0.0}
    mma = sum(kind * counts.executed(lambda instruction, kind=kind: products(instruction) == kind) for kind in kinds)
    loaded = sum(access.misses for access in counts.accesses if access.space == "global")
    return {"mma": work.ctas * mma, "l2": work.ctas * SECTOR * loaded}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        "flash_attention/mma_sync",
        "flash_attention/mma_tf32",
        "flash_attention/split_keys",
        "flash_attention_backward/mma_sync",
        "linear_attention/chunked",
    ],
)
def test_what_is_declared_is_what_blocks_do(name: str) -> None:
    operator, implementation = name.split("/")
    result = operators.implementation(operator, implementation)
    loaded = operators.load(operator)
    instance = Instance.default(loaded, result, result.example or loaded.problem(), TARGET.arch)
    for work, counts in zip(instance.work(TARGET), block_counts(instance, compiled(instance), TARGET), strict=True):
        assert isinstance(counts, Counts) and not counts.unsure, counts
        counted = done(counts, work)
        assert counted["mma"] == pytest.approx(work.products, rel=1e-6)
        assert counted["l2"] == pytest.approx(work.l2_bytes, rel=0.05)


def of_softmax(name: str, threads: int, vector: int) -> CountedLaunch:
    result, operator = operators.implementation(name, "block"), operators.load(name)
    config = from_fields(result.config, {"threads": threads, "vector": vector})
    instance = Instance(operator, result, operator.problem(), config)
    (launch,) = predict_undeclared(instance, TARGET, compiled(instance))
    assert launch.counted is not None, launch.reason
    return launch.counted


def test_a_kernel_of_ones_own_is_counted_and_costs_what_its_bytes_take(tmp_path: Path) -> None:
    with own_operator(tmp_path) as name:
        narrow, wide = of_softmax(name, 32, 1), of_softmax(name, 32, 8)
    moved = 2 * 4096 * 256 * 2  # each element is read once and written once
    assert narrow.work.l2_bytes == wide.work.l2_bytes == moved
    assert narrow.busy["shared memory"] > wide.busy["shared memory"]  # half a line an access, or four lines
    assert narrow.prediction(TARGET, 32).cost > wide.prediction(TARGET, 32).cost


def test_counts_are_kept_by_what_was_compiled_and_the_problem(tmp_path: Path) -> None:
    with own_operator(tmp_path) as name:
        operator, result = operators.load(name), operators.implementation(name, "block")
        instance = Instance.default(operator, result, operator.problem(), TARGET.arch)
        first, again = (block_counts(instance, compiled(instance), TARGET)[0] for _ in range(2))
        other = block_counts(instance.at(operator.problem(rows=8)), compiled(instance), TARGET)[0]
    assert isinstance(first, Counts) and isinstance(again, Counts) and isinstance(other, Counts)
    assert np.array_equal(first.tally, again.tally) and first.loops == again.loops
    assert first.accesses == other.accesses  # of a block, whose rows are as long


def test_what_the_machine_does_not_know_is_told_by_machine_code_with_the_reason() -> None:
    operator, result = operators.load("flash_attention"), operators.implementation("flash_attention", "wgmma")
    instance, target = Instance.default(operator, result, operator.problem(), gpu("sm_90a").arch), gpu("sm_90a")
    bare = replace(instance, implementation=replace(result, declares_work=False))
    cubin = nvrtc.compile(render(instance), Options("sm_90a"), Cache.of("cubin"))
    assert isinstance(cubin, Cubin)
    (counts,) = block_counts(bare, cubin, target)
    (launch,) = predict_undeclared(bare, target, cubin)
    assert isinstance(counts, NotCounted) and launch.reason == counts.reason
    assert np.isfinite(launch.prediction.cost)


def test_nothing_orders_configs_of_a_kernel_before_it_is_compiled_if_it_declares_no_work(tmp_path: Path) -> None:
    with own_operator(tmp_path) as name, nvrtc.Compiler(1) as compiler:
        operator, result = operators.load(name), operators.implementation(name, "block")
        space = result.space(operator.problem(), TARGET.arch)
        some = [Instance(operator, result, operator.problem(), space[index]) for index in range(2)]
        predictor = Predictor(TARGET, compiler, Checker())
        assert all(np.isnan(predictor.prior(access)) for access in some)
        costs = [sum(cost.cost for _, cost in predict_launches(access, TARGET, compiled(access))) for access in some]
        assert predictor.compiled_costs(some) == costs
