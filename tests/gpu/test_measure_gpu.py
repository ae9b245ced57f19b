"""Measuring on a real device: times, faults and the process around them."""

from collections.abc import Iterator

import pytest

from tuner import gpu, operators
from tuner.device import Code, Fault
from tuner.gpu_device import Physical
from tuner.nvrtc import Options, compile
from tuner.operator import to_fields
from tuner.policy import MeasurementPolicy
from tuner.render import render
from tuner.source import Source
from tuner.trial import Heat, Task
from tuner.worker import Worker

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu.available(), reason="needs a CUDA device")]

OPERATOR = operators.load("flash_attention")
NAIVE = operators.implementation("flash_attention", "naive")
PROBLEM = OPERATOR.problem(head_dim=64, batch=1, heads=4, seq_q=300)
POLICY = MeasurementPolicy(limit_s=2.0)
SPIN = "while (*(volatile const short*)q != 12345) {}"
STRAY = "*(volatile int*)8 = 1;"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(Physical()) as started:
        yield started


def code(body: str | None = None) -> Code:
    """The naive kernel, or one with its signature and another body."""
    config = NAIVE.default(PROBLEM, gpu.current_gpu().arch)
    source = render(OPERATOR, NAIVE, PROBLEM, config)
    if body is not None:
        opening = source.text.index("{", source.text.index("flash_attention_naive("))
        source = Source(source.entries, source.text[: opening + 1] + body + "}\n", source.headers, "cuda")
    cubin = compile(source, Options(gpu.current_gpu().arch.name))
    return Code("flash_attention", "naive", to_fields(PROBLEM), to_fields(config), cubin.image)


def test_a_right_kernel_is_timed(worker: Worker) -> None:
    found = worker.time(Task(code(), POLICY))
    assert found.fell is None, found.fell
    assert found.verdict is not None
    assert found.verdict.ok
    assert all(0 < each.time_us < 1e6 for each in found.samples)


def test_a_warm_cache_is_no_slower_than_a_cold_one(worker: Worker) -> None:
    times = {}
    for l2 in ("cold", "warm"):
        raced = worker.race(Heat((code(), code()), MeasurementPolicy(l2=l2), rounds=10, seed=0))
        times[l2] = min(min(row) for row in raced.times_us)
    assert times["warm"] <= 1.1 * times["cold"]


@pytest.mark.parametrize(
    ("body", "fault"), [("", Fault.WRONG), (STRAY, Fault.ILLEGAL), (SPIN, Fault.TIMEOUT)], ids=["idle", "stray", "spin"]
)
def test_a_faulty_kernel_has_its_class_and_the_next_one_is_timed(worker: Worker, body: str, fault: Fault) -> None:
    fell = worker.time(Task(code(body), POLICY)).fell
    assert fell is not None
    assert fell.fault is fault
    assert worker.time(Task(code(), POLICY)).samples


def test_the_device_tells_what_it_is(worker: Worker) -> None:
    facts = worker.look(ceilings=True).facts
    assert facts["gpu"] == gpu.current_gpu().name
    assert float(facts["copy_gb_s"]) > 10
