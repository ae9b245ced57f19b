"""Tests of arrays of several frameworks in the dispatcher."""

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tuner.dispatcher.arrays import CPU, FRAMEWORKS, foreign_ordinal, framework_of
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, MachineError
from tuner.spec.dtype import DType


def qkv(dtype: Any = np.float16) -> list[np.ndarray]:
    return [np.random.default_rng(i).standard_normal((1, 7, 2, 16)).astype(dtype) for i in range(3)]


class Foreign:
    """An array library that speaks DLPack only."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **wishes: Any) -> Any:
        return self.array.__dlpack__(**wishes)


class WithArray(Foreign):
    """One that NumPy can convert as well, as bf16 needs."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


@pytest.mark.parametrize("numpy", [np.float16, ml_dtypes.bfloat16, np.float32, np.int32, np.int64])
def test_numpy_dtypes_have_our_names(numpy: Any) -> None:
    facts = FRAMEWORKS["numpy"].facts("x", np.zeros(4, numpy))
    dtype_of = FRAMEWORKS["numpy"].dtype(facts)
    assert dtype_of is not None
    assert dtype_of.numpy == numpy


def test_a_subclass_of_ndarray_is_numpys(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.float16, "w+", shape=(4,))
    assert framework_of(mapped) is FRAMEWORKS["numpy"]


def test_facts_differ_with_the_address_modulo_16() -> None:
    memory = np.zeros(16, np.float16)
    first, second = (FRAMEWORKS["numpy"].facts("x", memory[start : start + 8]) for start in (0, 1))
    assert (second.misalignment - first.misalignment) % 16 == 2


@pytest.mark.parametrize(
    ("wrap", "dtype"), [(Foreign, np.float16), (WithArray, ml_dtypes.bfloat16)], ids=["dlpack", "array"]
)
def test_foreign_arrays_in_cpu_memory_run_and_give_numpy_outputs(at: Dispatcher, wrap: Any, dtype: Any) -> None:
    arrays = qkv(dtype)
    o, lse = at.call("flash_attention", *map(wrap, arrays))
    expected = at.call("flash_attention", *arrays)
    assert type(o) is np.ndarray
    assert np.array_equal(o, expected[0])
    assert np.array_equal(lse, expected[1])


def test_an_array_that_numpy_cannot_read_is_an_input_error(at: Dispatcher) -> None:
    class Broken(Foreign):
        def __dlpack__(self, **wishes: Any) -> Any:
            raise BufferError("no view of this")

    with pytest.raises(InputError, match=r"k: NumPy cannot read this .*Broken \(no view of this\)"):
        at.call("flash_attention", qkv()[0], Broken(qkv()[1]), qkv()[2])


def test_a_foreign_array_on_a_gpu_needs_one(at: Dispatcher) -> None:
    from tuner.backends.gpu import available

    if available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(MachineError, match="no GPU"):
        at.call("flash_attention", *(Foreign(array, (2, 0)) for array in qkv()))


@pytest.mark.parametrize(("device", "ordinal"), [((1, 0), CPU), ((3, 0), CPU), ((2, 3), 3), ((13, 1), 1)])
def test_dlpack_devices_are_ordinals(device: tuple[int, int], ordinal: int) -> None:
    assert foreign_ordinal("x", Foreign(np.zeros(1), device)) == ordinal


def test_an_array_that_only_speaks_numpys_interface_is_in_cpu_memory() -> None:
    assert foreign_ordinal("x", SimpleNamespace(__array_interface__=np.zeros(1).__array_interface__)) == CPU


def test_a_device_that_is_neither_cpu_nor_cuda_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"x is on a device that is neither CPU nor CUDA \(DLPack type 10\)"):
        foreign_ordinal("x", Foreign(np.zeros(1), (10, 0)))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["fp16", "bf16"])
def test_cupy_arrays_show_their_facts_without_a_device(dtype: Any) -> None:
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(4096, 1 << 12, None, 2), 8)
    array = cupy.ndarray((4, 8), dtype, memory)
    framework = framework_of(array)
    assert framework is FRAMEWORKS["cupy"]
    facts = framework.facts("x", array)
    assert (framework.ordinal(facts), framework.dtype(facts), facts.misalignment) == (2, DType.of(dtype), 8)
    assert framework.byte_strides(facts) == (16, 2)
    assert framework.address(array) == 4104


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["bthd", "bhtd"])
def test_torch_tensors_on_the_cpu_run_and_give_tensors(at: Dispatcher, dtype: str, layout: str) -> None:
    torch = pytest.importorskip("torch")
    inputs = [torch.from_numpy(array).to(getattr(torch, dtype)) for array in qkv()]
    inputs = [array.transpose(1, 2).contiguous() for array in inputs] if layout == "bhtd" else inputs
    o, lse = at.call("flash_attention", *inputs, layout=layout)
    in_order = inputs if layout == "bhtd" else [array.transpose(1, 2) for array in inputs]
    expected = torch.nn.functional.scaled_dot_product_attention(*(array.double() for array in in_order))
    assert (o.dtype, lse.dtype, o.is_contiguous()) == (getattr(torch, dtype), torch.float32, True)
    shown = o if layout == "bhtd" else o.transpose(1, 2)
    assert torch.allclose(shown.double(), expected, atol=2e-2 if dtype == "bfloat16" else 2e-3)


def test_a_strided_view_of_a_tensor_is_taken_as_it_is(at: Dispatcher) -> None:
    torch = pytest.importorskip("torch")
    packed = torch.randn(1, 7, 3, 2, 16).half()
    o, _ = at.call("flash_attention", *packed.unbind(2))
    expected, _ = at.call("flash_attention", *(array.clone() for array in packed.unbind(2)))
    assert torch.equal(o, expected)


def test_tensors_that_require_grad_are_refused_where_grad_is_recorded(at: Dispatcher) -> None:
    torch = pytest.importorskip("torch")
    inputs = [torch.from_numpy(array) for array in qkv()]
    inputs[1].requires_grad_()
    with pytest.raises(InputError, match=r"k requires grad, and there is no backward here: call under torch.no_grad"):
        at.call("flash_attention", *inputs)
    with torch.no_grad():
        at.call("flash_attention", *inputs)


def test_a_tensor_on_another_device_is_an_input_error(at: Dispatcher) -> None:
    torch = pytest.importorskip("torch")
    inputs = [torch.empty(1, 7, 2, 16, dtype=torch.float16, device="meta")] * 3
    with pytest.raises(InputError, match="q is on meta: pass arrays in CPU memory or on a CUDA device"):
        at.call("flash_attention", *inputs)


def test_a_mix_of_frameworks_is_an_input_error(at: Dispatcher) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = qkv()
    with pytest.raises(InputError, match="k is a torch array in CPU memory, but q is a numpy array in CPU memory"):
        at.call("flash_attention", q, torch.from_numpy(k), v)
