"""Measuring on a real device: times, faults and the process around them."""

import numpy as np
import pytest

from tuner import bench, operators
from tuner.backends import gpu
from tuner.compiler.nvrtc import Options, compile
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.evaluate.measure.device import Code, Fault
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.messages import RaceRequest, TimingRequest
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.worker import Worker
from tuner.spec.instance import Instance

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu.available(), reason="needs a CUDA device")]

OPERATOR = operators.load("flash_attention")
NAIVE = operators.implementation("flash_attention", "naive")
PROBLEM = OPERATOR.problem(head_dim=64, batch=1, heads=4, seq_q=300)
POLICY = MeasurementPolicy(limit_s=2.0)
SPIN = "while (*(volatile const short*)q != 12345) {}"
STRAY = "*(volatile int*)8 = 1;"


def code(body: str | None = None) -> Code:
    """The naive kernel, or one with its signature and another body."""
    instance = Instance.default(OPERATOR, NAIVE, PROBLEM, gpu.current_gpu().arch)
    source = render(instance)
    if body is not None:
        opening = source.text.index("{", source.text.index("flash_attention_naive("))
        source = Source(source.entries, source.text[: opening + 1] + body + "}\n", source.headers, "cuda")
    cubin = compile(source, Options(gpu.current_gpu().arch.name))
    return Code(instance.fields(), cubin.image)


def test_a_right_kernel_is_timed(worker: Worker) -> None:
    timing = worker.time(TimingRequest(code(), POLICY))
    assert timing.failure is None, timing.failure
    assert timing.verdict is not None
    assert timing.verdict.ok
    assert all(0 < sample.time_us < 1e6 for sample in timing.samples)


def test_a_warm_cache_is_no_slower_than_a_cold_one(worker: Worker) -> None:
    times = {}
    for l2 in ("cold", "warm"):
        raced = worker.race(RaceRequest((code(), code()), MeasurementPolicy(l2=l2), rounds=10, seed=0))
        times[l2] = min(min(row) for row in raced.times_us)
    assert times["warm"] <= 1.1 * times["cold"]


def test_a_kernel_ties_with_itself_at_its_own_clock(worker: Worker) -> None:
    policy = MeasurementPolicy(own_clock_us=20_000)
    raced = worker.race(RaceRequest((code(), code()), policy, rounds=5, seed=0, own_clock=True))
    assert raced.failure is None, raced.failure
    one, other = np.median(raced.times_us, axis=0)
    assert other == pytest.approx(one, rel=0.05)


def test_a_kernel_in_a_graph_takes_about_as_long_as_alone(worker: Worker) -> None:
    times = {}
    for launch in ("eager", "graph"):
        policy = MeasurementPolicy(launch=launch)
        assert policy.on(worker.describe().facts) == policy
        raced = worker.race(RaceRequest((code(),), policy, rounds=10, seed=0))
        assert raced.failure is None, raced.failure
        times[launch] = float(np.median(raced.times_us))
    assert times["graph"] == pytest.approx(times["eager"], abs=20)  # microseconds


def test_ours_is_compared_with_a_copy_and_the_peers_that_are_installed() -> None:
    compared = bench.compare(code(), Physical(), POLICY)
    states = {row.name: row.state for row in compared.rows}
    assert (states["tuner"], states["plain copy"]) == ("ok", "roof")
    assert "wrong" not in states.values(), compared.table()


def test_a_plan_of_several_launches_is_right_and_timed_in_a_graph(worker: Worker) -> None:
    kda, prep_scan = operators.load("kda"), operators.implementation("kda", "prep_scan")
    instance = Instance.default(kda, prep_scan, kda.problem(seq_len=256, heads=2), gpu.current_gpu().arch)
    cubin = compile(render(instance), Options(gpu.current_gpu().arch.name))
    several = Code(instance.fields(), cubin.image)
    timing = worker.time(TimingRequest(several, MeasurementPolicy(launch="graph")))
    assert timing.failure is None, timing.failure
    assert timing.samples


def test_a_copy_that_is_timed_is_no_faster_than_the_ceiling(worker: Worker) -> None:
    device = Physical().open()
    nbytes = 1 << 30
    time_us = float(np.median(device.times_us(device.ready_copy(nbytes), 5, MeasurementPolicy())))
    assert 1e-3 * nbytes / time_us < 1.3 * float(worker.describe(ceilings=True).facts["copy_gb_s"])


def test_what_waits_for_the_device_is_let_go_and_timed_without_a_hold() -> None:
    device = Physical().open()
    copy, runtime = device.ready_copy(1 << 20), gpu.opened().cuda.runtime

    def waits() -> None:
        copy()
        runtime.deviceSynchronize()

    assert device.times_us(copy, 64, MeasurementPolicy())
    assert device.state().late == 0
    assert device.times_us(waits, 4, MeasurementPolicy())
    assert device.times_us(copy, 64, MeasurementPolicy())
    assert device.state().late == 0


def test_a_launch_of_nothing_takes_microseconds_and_is_told_with_each_race(worker: Worker) -> None:
    facts = worker.describe(ceilings=True).facts
    assert 0.1 < float(facts["floor_eager_us"]) < 50
    raced = worker.race(RaceRequest((code(),), MeasurementPolicy(), rounds=3, seed=0))
    assert raced.floor_us == pytest.approx(float(facts["floor_eager_us"]), rel=0.5)
    assert all(lap.state.sm_mhz > 0 for laps in raced.rounds for lap in laps) == facts["nvml"]


@pytest.mark.parametrize(
    ("body", "fault"), [("", Fault.WRONG), (STRAY, Fault.ILLEGAL), (SPIN, Fault.TIMEOUT)], ids=["idle", "stray", "spin"]
)
def test_a_faulty_kernel_has_its_class_and_the_next_one_is_timed(worker: Worker, body: str, fault: Fault) -> None:
    fell = worker.time(TimingRequest(code(body), POLICY)).failure
    assert fell is not None
    assert fell.fault is fault
    assert worker.time(TimingRequest(code(), POLICY)).samples


def test_another_process_that_takes_turns_is_no_stranger(worker: Worker) -> None:
    worker.describe()
    device = Physical().open()
    before = device.state().processes
    with Worker(Physical()) as other:
        other.describe()
        assert device.state().processes == before


def test_the_device_tells_what_it_is(worker: Worker) -> None:
    facts = worker.describe(ceilings=True).facts
    assert facts["gpu"] == gpu.current_gpu().name
    assert float(facts["copy_gb_s"]) > 10
