"""What `GpuDevice` asks of CuPy's runtime, on a machine that has no GPU; tests/gpu makes the same calls on one."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import compiled
from tests.support.cupy_double import Driver, Graph, Stream, driver
from tuner import operators
from tuner.arch import gpu
from tuner.backends import emulator
from tuner.backends.emulator import Buffer
from tuner.backends.gpu import tensor_map
from tuner.compiler.render import render
from tuner.errors import MachineError
from tuner.evaluate.measure import gpu_device, gpu_lock
from tuner.evaluate.measure.device import Code, DeviceFaultError, Fault
from tuner.evaluate.measure.device_arguments import Arena
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.gpu_lock import Presence
from tuner.evaluate.measure.messages import RaceRequest, TimingRequest
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.measure.samples import State
from tuner.evaluate.measure.worker import DeviceServer
from tuner.spec.instance import Instance
from tuner.spec.problem import to_fields

__all__ = ["driver"]  # a fixture

OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=8, batch=1, heads=1, seq_q=40)
NAIVE = operators.implementation("flash_attention", "naive")
CONFIG = NAIVE.default(PROBLEM, gpu("H200").arch)
POLICY = MeasurementPolicy(warm_up_us=1, most_launches=2, screening=((3, 2.0),), rounds=4, limit_s=0.2)


class RuntimeFailedError(RuntimeError):
    """As CUDARuntimeError and CUDADriverError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Runtime:
    """Memory is the emulator's; an event is a moment of a clock that each launch moves on by 10 µs."""

    CUDARuntimeError = RuntimeFailedError

    def __init__(self, driver: Driver) -> None:
        self.driver, self.buffers, self.events = driver, dict[int, Buffer](), list[float]()
        self.status = 0  # of the next query
        self.capture_status = self.captured = self.copied = 0
        self.cleared = 0
        self.pinned = list[np.ndarray]()
        self.late = 0  # of the next launches, those that the device begins before the host has queued them

    def malloc(self, nbytes: int) -> int:
        buffer = Buffer("device", nbytes, writable=True)
        self.buffers[buffer.address] = buffer
        return buffer.address

    def free(self, address: int) -> None:
        assert self.status in (0, 701, 912), "it fails after a sticky error, and waits for a kernel that never ends"
        self.buffers.pop(address).close()

    def memset(self, address: int, value: int, nbytes: int) -> None:
        ctypes.memset(address, value, nbytes)

    def memsetAsync(self, address: int, _value: int, _nbytes: int, stream: int) -> None:  # noqa: N802  # CuPy's name
        assert stream == 0
        assert address in self.buffers
        self.cleared += 1
        self.driver.hold.queue()

    def memcpy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        assert kind in (1, 2)
        ctypes.memmove(target, source, nbytes)

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:  # noqa: N802
        assert (kind, stream) == (3, 0)
        ctypes.memmove(target, source, nbytes)
        self.copied += nbytes
        self.driver.hold.queue()

    def eventCreate(self) -> int:  # noqa: N802
        self.events.append(0.0)
        return len(self.events) - 1

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        assert stream == 0
        self.driver.hold.queue()
        self.events[event] = 0.01 * len(self.driver.launches) + 1e-6 * self.copied

    def hostAlloc(self, nbytes: int, flags: int) -> int:  # noqa: N802
        assert flags == 2
        self.pinned.append(np.zeros(nbytes, np.uint8))
        return self.pinned[-1].ctypes.data

    def eventQuery(self, event: int) -> int:  # noqa: N802
        if event % 2:
            return 600 if self.driver.hold.holds else self.status
        self.late -= 1  # it is a begin
        return 0 if self.late >= 0 else 600

    def eventElapsedTime(self, begin: int, end: int) -> float:  # noqa: N802
        return self.events[end] - self.events[begin]


class CapturingStream(Stream):
    """Counts graphs, and fails to capture where the runtime says so."""

    runtime: Runtime

    def end_capture(self) -> Graph:
        if self.runtime.capture_status:
            raise RuntimeFailedError(self.runtime.capture_status)
        self.runtime.captured += 1
        return super().end_capture()


@pytest.fixture
def runtime(driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Runtime]:
    import cupy

    monkeypatch.setattr(gpu_lock, "FOLDER", tmp_path / "gpus")

    result, known = Runtime(driver), cupy.cuda.runtime
    answers: dict[str, Callable[..., Any]] = {
        "setDevice": lambda _: None,
        "deviceGetPCIBusId": lambda _: "0000:00:00.0",
        "deviceGetAttribute": lambda attribute, _: {38: 1 << 20}[attribute],
        "runtimeGetVersion": lambda: 13020,
    }
    for name, answer in (*vars(known).items(), *answers.items()):
        if not hasattr(result, name):
            monkeypatch.setattr(result, name, answer, raising=False)
    monkeypatch.setattr(cupy.cuda, "runtime", result)
    monkeypatch.setattr(CapturingStream, "runtime", result, raising=False)
    monkeypatch.setattr(cupy.cuda, "Stream", CapturingStream)
    monkeypatch.setattr(cupy.cuda.driver, "CUDADriverError", RuntimeFailedError)
    monkeypatch.setattr(gpu_device.GpuDevice, "facts", lambda _: {"gpu": "H200", "model": "a double"})
    driver.know(emulator.build(render(Instance(OPERATOR, NAIVE, PROBLEM, CONFIG), "host"), checked=False))
    yield result
    for buffer in result.buffers.values():  # each launch on the emulator would go through them
        buffer.close()


@pytest.fixture(scope="module")
def code() -> Code:
    instance = Instance(OPERATOR, NAIVE, PROBLEM, CONFIG)
    return Code(instance.fields(), compiled(render(instance), "sm_90a").image)


def test_a_config_is_judged_on_every_edge_case_and_timed_by_events(runtime: Runtime, code: Code) -> None:
    result = DeviceServer(Physical().open()).do(TimingRequest(code, POLICY))
    assert result.failure is None, result.failure
    assert result.verdict.ok
    assert "the timed problem" in result.verdict.checks
    assert [sample.time_us for sample in result.samples] == pytest.approx([10.0] * 3)
    assert runtime.cleared >= 3  # a cold L2 before every timed launch


def test_a_plan_in_a_graph_is_captured_once_and_replayed(runtime: Runtime, code: Code) -> None:
    device = Physical().open()
    stand, policy = DeviceServer(device), replace(POLICY, launch="graph")
    timer = stand.timer(code, policy)
    launched = len(runtime.driver.launches)
    assert timer.sample().time_us == pytest.approx(10.0)
    assert len(runtime.driver.launches) == launched + policy.launches(10.0)
    assert runtime.captured == 1


def test_what_a_graph_replays_writes_the_same_outputs(runtime: Runtime, code: Code) -> None:
    device = Physical().open()
    arrays = OPERATOR.inputs(PROBLEM, np.random.default_rng(0), OPERATOR.input_kinds[0])
    plan = NAIVE.plan(PROBLEM, CONFIG)
    with Arena(device, OPERATOR, PROBLEM, arrays) as arena:
        program, call = device.load(code, plan), arena.call(plan)
        device.run(program, call, limit_s=1.0)
        alone = arena.outputs()
        arena.poison()
        replay = device.ready(program, call, replace(POLICY, launch="graph"))
        assert not np.array_equal(arena.outputs()["o"], alone["o"])  # capturing runs nothing
        replay()
        assert all(np.array_equal(arena.outputs()[name], alone[name]) for name in alone)
    assert runtime.captured == 1


def test_what_no_graph_captures_is_refused_with_the_reason_and_timed_eager(runtime: Runtime, code: Code) -> None:
    stand, policy = DeviceServer(Physical().open()), replace(POLICY, launch="graph")
    runtime.capture_status = 900
    fell = stand.do(TimingRequest(code, policy)).failure
    assert fell is not None
    assert (fell.fault, fell.fatal) == (Fault.REFUSED, False)
    assert "no CUDA graph captures it" in fell.message
    assert stand.do(TimingRequest(code, POLICY)).samples


@pytest.mark.usefixtures("runtime")
def test_a_plain_copy_is_timed_like_a_kernel() -> None:
    device = Physical().open()
    assert device.times_us(device.ready_copy(4000), 2, POLICY) == pytest.approx([2.0, 2.0])


def test_what_is_timed_is_queued_while_the_stream_is_held(runtime: Runtime) -> None:
    device, hold = Physical().open(), runtime.driver.hold
    copy, runtime.late = device.ready_copy(4000), 1000  # a host that is never in time
    assert device.times_us(copy, 8, POLICY) == pytest.approx([2.0] * 8)
    assert (hold.held, hold.gave_up) == (2, 0)  # one of them when the instruments were loaded
    assert hold.queued == 8 * 5
    assert device.state().late == 0


def test_more_launches_than_a_driver_queues_are_held_in_parts(runtime: Runtime) -> None:
    device, hold = Physical().open(), runtime.driver.hold
    copy = device.ready_copy(4000)
    assert len(device.times_us(copy, 1000, POLICY)) == 1000
    assert 100 < hold.most <= 512 < hold.MOST
    assert hold.gave_up == 0

    def deep() -> None:
        for _ in range(30):  # more than it is taken for
            copy()

    assert len(device.times_us(deep, 32, POLICY)) == 32
    assert hold.gave_up == 0


def test_what_waits_for_the_device_is_timed_without_a_hold_and_its_late_launches_do_not_count(runtime: Runtime) -> None:
    device, hold = Physical().open(), runtime.driver.hold
    copy = device.ready_copy(4000)

    def waits() -> None:
        copy()
        hold.wait()

    runtime.late = 2
    assert len(device.times_us(waits, 8, POLICY)) == 6
    assert hold.gave_up == 2  # of several at once, then of one
    assert device.state().late == 2 / 8
    held, runtime.late = hold.held, 1000
    assert len(device.times_us(waits, 8, POLICY)) == 8
    assert (hold.held, device.state().late) == (held, 1.0)
    assert len(device.times_us(copy, 8, POLICY)) == 8
    assert (hold.held, device.state().late) == (held + 1, 0.0)


def test_where_each_launch_waits_for_the_device_no_stream_is_held_twice(runtime: Runtime) -> None:
    device, hold = Physical().open(), runtime.driver.hold
    hold.blocking = True
    for _ in range(3):
        assert device.times_us(device.ready_copy(4000), 8, POLICY) == pytest.approx([2.0] * 8)
    assert (hold.held, hold.gave_up) == (1, 1)


def test_a_stream_is_let_go_where_a_launch_fails(runtime: Runtime) -> None:
    device, hold = Physical().open(), runtime.driver.hold
    calls = iter(range(10))

    def refused() -> None:
        if next(calls):
            raise RuntimeFailedError(701)

    with pytest.raises(DeviceFaultError, match="701"):
        device.times_us(refused, 4, POLICY)
    assert hold.held == 2 and not hold.holds
    assert device.times_us(device.ready_copy(4000), 2, POLICY) == pytest.approx([2.0, 2.0])


def test_a_cold_cache_is_cleared_and_then_read_so_that_nothing_in_it_is_still_to_be_written(runtime: Runtime) -> None:
    device = Physical().open()
    device.times_us(device.ready_copy(4000), 8, POLICY)
    flushes = [nbytes for _, nbytes in runtime.driver.reads if nbytes]
    assert flushes == [2 * (60 << 20)] * 8  # twice the cache
    assert {address for address, nbytes in runtime.driver.reads if nbytes} <= set(runtime.buffers)


def test_the_floor_is_what_a_kernel_that_does_nothing_takes(runtime: Runtime) -> None:
    device = Physical().open()
    assert device.floor_us(POLICY) == pytest.approx(10.0)
    assert device.floor_us(replace(POLICY, launch="graph")) == pytest.approx(10.0)
    assert runtime.captured == 1


def test_copies_are_timed_when_the_device_has_copied_for_a_while(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_device, "_COPY_BYTES", 1 << 20)
    device = Physical().open()
    assert device.copy_gb_s() == pytest.approx(2.0)
    assert runtime.copied >= 2 * 10 << 20


def test_where_memory_ends_in_a_measurement_of_copies_what_it_has_is_given_back(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, malloc = Physical().open(), runtime.malloc

    def room_for_one(nbytes: int) -> int:
        if len(runtime.buffers) > held:
            raise RuntimeFailedError(2)
        return malloc(nbytes)

    held = len(runtime.buffers)
    monkeypatch.setattr(gpu_device, "_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(runtime, "malloc", room_for_one)
    with pytest.raises(MachineError, match="the GPU has no 1048576 bytes left"):
        device.copy_gb_s()
    assert len(runtime.buffers) == held


@pytest.mark.usefixtures("runtime")
def test_processes_that_take_turns_with_this_one_are_none_that_disturb_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Physical().open()
    monkeypatch.setattr(device, "_monitor", SimpleNamespace(state=lambda: State(1980, 0, 60, processes=3)))
    assert device.state().processes == 3
    other = Presence(Physical().bus_id)
    assert device.state() == State(1980, 0, 60, processes=2)
    del other
    assert device.state().processes == 3


def test_contenders_race_in_one_process(runtime: Runtime, code: Code) -> None:
    result = DeviceServer(Physical().open()).do(RaceRequest((code, code), POLICY, POLICY.rounds, seed=0))
    assert np.shape(result.times_us) == (4, 2)
    assert runtime.cleared


@pytest.mark.parametrize(
    ("status", "fault", "fatal"),
    [
        (700, Fault.ILLEGAL, True),
        (719, Fault.ILLEGAL, True),
        (600, Fault.TIMEOUT, True),
        (999, Fault.CRASH, True),
        (701, Fault.REFUSED, False),
        (912, Fault.REFUSED, False),
    ],
    ids=["illegal address", "launch failure", "never ready", "unknown", "too many resources", "too large a cluster"],
)
def test_a_status_of_the_driver_is_a_class_of_fault(
    runtime: Runtime, code: Code, status: int, fault: Fault, fatal: bool
) -> None:
    stand = DeviceServer(Physical().open())
    runtime.status = status
    fell = stand.do(TimingRequest(code, POLICY)).failure
    assert fell is not None
    assert (fell.fault, fell.fatal) == (fault, fatal)


def test_a_device_that_another_process_holds_alone_is_an_error_that_says_so(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_ordinal: int) -> None:
        raise RuntimeFailedError(46)

    monkeypatch.setattr(runtime, "setDevice", unavailable)
    with pytest.raises(MachineError, match=r"the H200 cannot be opened \(status 46\): .* has exclusive access"):
        Physical().open()


@pytest.mark.usefixtures("runtime")
def test_a_config_whose_tensor_map_the_driver_refuses_costs_only_itself(
    code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_map, "_driver", lambda: SimpleNamespace(cuTensorMapEncodeTiled=lambda *_: 1))
    stand, wgmma = DeviceServer(Physical().open()), operators.implementation("flash_attention", "wgmma")
    config = to_fields(wgmma.default(PROBLEM, gpu("H200").arch))
    fell = stand.do(
        TimingRequest(replace(code, instance=replace(code.instance, implementation="wgmma", config=config)), POLICY)
    ).failure
    assert fell is not None
    assert (fell.fault, fell.fatal) == (Fault.REFUSED, False)
    assert stand.do(TimingRequest(code, POLICY)).samples


def test_after_a_hang_nothing_is_unloaded_since_that_would_wait_for_the_kernel(runtime: Runtime, code: Code) -> None:
    stand = DeviceServer(Physical().open())
    runtime.status = 600
    fell = stand.do(TimingRequest(code, POLICY)).failure
    assert fell is not None
    assert fell.fault is Fault.TIMEOUT
    assert runtime.driver.unloaded == 0


def test_a_config_that_was_timed_is_unloaded(runtime: Runtime, code: Code) -> None:
    stand = DeviceServer(Physical().open())
    assert stand.do(TimingRequest(code, POLICY)).samples
    assert runtime.driver.unloaded == 2  # one for the verdict, one for the times


def test_workspaces_are_given_back_after_every_config(runtime: Runtime, code: Code) -> None:
    split_keys = operators.implementation("flash_attention", "split_keys")
    config = split_keys.default(PROBLEM, gpu("H200").arch)
    runtime.driver.know(emulator.build(render(Instance(OPERATOR, split_keys, PROBLEM, config), "host"), checked=False))
    stand = DeviceServer(Physical().open())
    assert stand.do(TimingRequest(code, POLICY)).samples
    held = len(runtime.buffers)
    other = replace(code, instance=replace(code.instance, implementation="split_keys", config=to_fields(config)))
    assert stand.do(TimingRequest(other, POLICY)).samples
    assert stand.do(RaceRequest((other, code), POLICY, 2, seed=0)).times_us
    assert len(runtime.buffers) == held


def test_memory_is_given_back_when_another_problem_is_timed(runtime: Runtime, code: Code) -> None:
    stand = DeviceServer(Physical().open())
    stand.do(TimingRequest(code, POLICY))
    held = len(runtime.buffers)
    longer = replace(code, instance=replace(code.instance, problem={**code.instance.problem, "seq_q": 50}))
    assert stand.do(TimingRequest(longer, POLICY)).failure is None
    assert len(runtime.buffers) == held
