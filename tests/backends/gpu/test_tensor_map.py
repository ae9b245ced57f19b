"""Tests of tensor maps: on the emulator, on a simulated device, and encoded by the driver."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.claims import compiled
from tests.support.cupy_double import Driver, asarray, driver
from tests.support.simulated_device import Simulation
from tuner import operators
from tuner.arch import ARCHES
from tuner.backends import emulator
from tuner.backends.gpu import tensor_map
from tuner.compiler.render import render
from tuner.dispatcher import on_emulator, on_gpu
from tuner.dispatcher.arrays import FRAMEWORKS
from tuner.dispatcher.binding import bind
from tuner.errors import InputError, MachineError
from tuner.evaluate.check.compare import errors
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.device_arguments import Arena
from tuner.operators.flash_attention.operator import Problem
from tuner.spec.dtype import DType
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.problem import to_fields
from tuner.spec.tensor_map import MappedTensor
from tuner.spec.tensor_map import TensorMap as Declared

__all__ = ["driver"]  # a fixture

OPERATOR = operators.load("flash_attention")
WGMMA = operators.implementation("flash_attention", "wgmma")
PROBLEM = Problem(head_dim=32, batch=2, heads=2, kv_heads=1, seq_q=70, seq_k=90)
CONFIG = WGMMA.default(PROBLEM, ARCHES["sm_90a"])
PLAN = WGMMA.plan(PROBLEM, CONFIG)
ROWS = Declared("x_32", "x", (1, 64, 1, 32), swizzle=64)


def drawn() -> dict[str, Any]:
    return OPERATOR.inputs(PROBLEM, np.random.default_rng(0), "normal")


def bound(arrays: dict[str, Any], framework: str) -> Any:
    request = OPERATOR.call(*(arrays[name] for name in "qkv"))
    return bind(OPERATOR, request, {name: FRAMEWORKS[framework].facts(name, arrays[name]) for name in "qkv"})


def assert_right(arrays: dict[str, Any], o: np.ndarray, lse: np.ndarray) -> None:
    assert all(error.ok for error in errors(OPERATOR, PROBLEM, arrays, {"o": o, "lse": lse}))


def of(strides: tuple[int, ...], shape: tuple[int, ...] = (2, 70, 2, 32)) -> MappedTensor:
    return MappedTensor.of(ROWS, DType.BF16, 4096, shape, strides)


def test_a_dim_that_nobody_walks_gets_a_stride_that_tma_accepts() -> None:
    mapped = of((7, 64, 7, 32), shape=(1, 70, 1, 32))
    assert mapped.strides[1] == 128
    assert all(stride % 16 == 0 and stride >= 64 for stride in mapped.strides[:3])


@pytest.mark.parametrize(
    ("name", "head_dim", "count"),
    [
        ("flash_attention", 128, 4),
        ("flash_attention", 72, 7),
        ("paged_attention", 64, 4),
        ("streaming_attention", 128, 6),
    ],
)
@pytest.mark.parametrize(("kind", "arch"), [("wgmma", "sm_90a"), ("tcgen05", "sm_100a")])
def test_a_launch_takes_the_maps_of_the_widths_that_its_panels_have(
    name: str, head_dim: int, count: int, kind: str, arch: str
) -> None:
    operator, implementation = operators.load(name), operators.implementation(name, kind)
    problem = operator.problem(head_dim=head_dim)
    plan = Instance.default(operator, implementation, problem, ARCHES[arch]).plan()
    assert len(plan.maps) == count  # the kernel asserts which
    assert {descriptor.name for descriptor in plan.maps} <= {
        name for launch in plan.launches for name in launch.arguments or ()
    }


def test_what_tma_cannot_read_is_refused_by_the_arguments_name() -> None:
    assert emulator.EncodedTensorMap.from_buffer_copy(emulator.encode(of((4480, 64, 32, 1))).tobytes()).base == 4096
    with pytest.raises(InputError, match=r"x \[2, 70, 2, 32\].*no stride negative.*copy it first"):
        emulator.encode(of((-4480, 64, 32, 1)))


def test_a_call_on_the_emulator_maps_the_callers_arrays() -> None:
    arrays = drawn()
    kernel = emulator.build(render(Instance(OPERATOR, WGMMA, PROBLEM, CONFIG), "host"), checked=False)
    call = on_emulator.EmulatedKernel(OPERATOR, bound(arrays, "numpy"), PLAN, kernel, FRAMEWORKS["numpy"], "sm_90a")
    assert_right(arrays, *call({name: arrays[name] for name in "qkv"}, {}))


@pytest.mark.parametrize("executed", [True, False], ids=["emulated", "reference"])
def test_a_simulated_device_maps_the_arenas_tensors(executed: bool) -> None:
    device, arrays = Simulation(emulated=executed).open(), drawn()
    code = Code(InstanceFields("flash_attention", "wgmma", to_fields(PROBLEM), to_fields(CONFIG)), b"")
    with Arena(device, OPERATOR, PROBLEM, arrays) as arena:
        device.run(device.load(code, PLAN), arena.call(PLAN), 60.0)
        assert not arena.damage(inputs=True)
        assert_right(arrays, **arena.outputs())


def test_a_call_on_a_gpu_encodes_maps_through_the_driver_in_a_thread_that_never_used_it(driver: Driver) -> None:
    driver.know(emulator.build(render(Instance(OPERATOR, WGMMA, PROBLEM, CONFIG), "host"), checked=False))
    cubin = compiled(render(Instance(OPERATOR, WGMMA, PROBLEM, CONFIG)), "sm_90a")
    arrays = drawn()
    device = arrays | {name: asarray(arrays[name]) for name in "qkv"}
    numbers = on_gpu.Numbers.of(OPERATOR, bound(device, "cupy"), PLAN)
    call = on_gpu.GpuKernel(numbers, on_gpu.Functions(cubin, 0), FRAMEWORKS["cupy"])
    with ThreadPoolExecutor(1) as thread:
        o, lse = thread.submit(call, {name: device[name] for name in "qkv"}, {}).result()
    assert_right(arrays, o.host, lse.host)


@pytest.mark.parametrize(
    ("dtype", "swizzle", "numbers"),
    [(DType.INT32, 0, (3, 0)), (DType.INT64, 0, (5, 0)), (DType.FP16, 32, (6, 1)), (DType.FP32, 64, (7, 2))],
    ids=str,
)
def test_dtype_and_swizzle_travel_by_their_numbers_in_cuda_h(
    monkeypatch: pytest.MonkeyPatch, dtype: DType, swizzle: int, numbers: tuple[int, int]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        tensor_map, "_driver", lambda: SimpleNamespace(cuTensorMapEncodeTiled=lambda *a: given.extend(a) or 0)
    )
    tensor_map.encode(of((4480, 64, 32, 1))._replace(dtype=dtype, swizzle=swizzle))
    assert (given[1], given[9]) == numbers
    assert given[8] == given[11] == 0  # not interleaved; zeros beyond the edges


def test_the_drivers_refusal_is_an_input_error_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_map, "_driver", lambda: SimpleNamespace(cuTensorMapEncodeTiled=lambda *_: 1))
    with pytest.raises(InputError, match=r"x: the driver refuses a tensor map \(error 1\) of shape \[2, 70, 2, 32\]"):
        tensor_map.encode(of((4488, 64, 32, 1)))


def test_an_error_that_is_not_the_tensors_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_map, "_driver", lambda: SimpleNamespace(cuTensorMapEncodeTiled=lambda *_: 700))
    with pytest.raises(
        MachineError, match=r"no tensor map of x: the driver returned error 700, as it does after a fault"
    ):
        tensor_map.encode(of((4488, 64, 32, 1)))


def test_without_a_driver_there_is_no_map(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    tensor_map._driver.cache_clear()
    with pytest.raises(MachineError, match=r"no tensor map without a CUDA driver .*libcuda"):
        tensor_map.encode(of((4496, 64, 32, 1)))
