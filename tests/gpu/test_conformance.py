"""Emulator and GPU agree: every micro kernel, on the same arguments, bit for bit on integer-valued inputs."""

from contextlib import ExitStack

import numpy as np
import pytest

from tests.backends.emulator.emulated import Call, Uninitialized, entries_of, launch, source
from tests.backends.emulator.micro import Micro, approximations, micros
from tests.backends.emulator.scenarios import gemm, mlp
from tests.backends.emulator.test_tma import copied, multicast
from tests.gpu import driver
from tuner.arch import ARCHES
from tuner.backends import gpu
from tuner.backends.emulator import Mode
from tuner.compiler.cubin import Cubin
from tuner.compiler.nvrtc import Options, compile

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu.available(), reason="needs a CUDA device")]

MICROS = micros()


def image_of(file: str) -> bytes:
    """The cubin of a kernel file for this device; skips where the device lacks the file's instructions."""
    arch = gpu.current_gpu().arch.name
    if ("sm90" in file or "gemm" in file) and arch != "sm_90a":
        pytest.skip(f"{arch} has no wgmma")
    if ("sm100" in file or "blackwell" in file) and not ARCHES[arch].has_tcgen05:
        pytest.skip(f"{arch} has no tcgen05")
    if "cluster" in file and arch.startswith("sm_8"):
        pytest.skip(f"{arch} has no clusters")
    cubin = compile(source(file, entries_of(file), (), "cuda"), Options(arch=arch))
    assert isinstance(cubin, Cubin), cubin
    return cubin.image


def run_on_device(call: Call) -> dict[str, np.ndarray]:
    with ExitStack() as stack:
        inputs = [stack.enter_context(driver.memory(array)) for array in call.inputs.values()]
        outputs = {name: stack.enter_context(driver.memory(_initial(value))) for name, value in call.outputs.items()}
        arguments = [*inputs, *outputs.values(), *call.scalars]
        driver.launch(image_of(call.file), call.entry, call.grid, call.threads, call.smem_bytes, arguments)
        return {name: memory.read() for name, memory in outputs.items()}


def _initial(value: np.ndarray | Uninitialized) -> np.ndarray:
    if isinstance(value, Uninitialized):
        return np.full(value.shape, -1, f"i{np.dtype(value.dtype).itemsize}").view(value.dtype)
    return value


@pytest.mark.parametrize("micro", MICROS, ids=lambda micro: micro.name)
def test_the_device_computes_the_emulators_bits(micro: Micro) -> None:
    emulated, run = launch(micro.call, Mode())
    measured = run_on_device(micro.call)
    assert run.findings == ()
    for name, bits in emulated.items():
        np.testing.assert_array_equal(measured[name].view(np.uint8), bits.view(np.uint8), err_msg=name)


def test_every_fragment_layout_is_the_devices() -> None:
    call = Call("primitives_sm80.cu", "layouts", {}, {"out": Uninitialized(np.int32, (9, 32, 8))})
    np.testing.assert_array_equal(run_on_device(call)["out"], launch(call, Mode())[0]["out"])


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_a_box_lands_where_the_emulator_says(swizzle: int) -> None:
    array = np.arange(40 * 72, dtype=np.float16).reshape(40, 72)
    box, at = (24, (swizzle or 64) // 2), (30, -8)
    raw, stored, _ = copied(array, box, at, swizzle, Mode())
    with (
        driver.memory(array) as source_,
        driver.memory(np.zeros_like(array)) as target,
        driver.memory(np.zeros_like(raw)) as bytes_,
    ):
        maps = [driver.tensor_map(side, box, swizzle) for side in (source_, target)]
        scalars = [np.int32(n) for n in (raw.nbytes, 2, at[1], at[0], 0)]
        driver.launch(image_of("primitives_sm90.cu"), "tensor_copy", (1, 1, 1), 64, 32776, [*maps, bytes_, *scalars])
        np.testing.assert_array_equal(bytes_.read(), raw)
        np.testing.assert_array_equal(target.read(), stored)


def test_a_multicast_box_lands_in_both_blocks_as_the_emulator_says() -> None:
    array = np.arange(3 * 20 * 32, dtype=np.int32).reshape(3, 20, 32)
    box, at = (2, 8, 16), (1, 15, 24)
    raw, _ = multicast(array, box, at, Mode())
    with driver.memory(array) as source_, driver.memory(np.zeros_like(raw)) as bytes_:
        arguments = [driver.tensor_map(source_, box, 0), bytes_, *map(np.int32, (raw[0].nbytes, 3, *at[::-1]))]
        driver.launch(image_of("primitives_cluster.cu"), "tensor_multicast", (2, 1, 1), 64, 32776, arguments)
        np.testing.assert_array_equal(bytes_.read(), raw)


def test_blocks_of_a_cluster_share_the_tiles_that_they_load() -> None:
    a, b, c = gemm(200, 256)
    with driver.memory(a) as m_a, driver.memory(b) as m_b, driver.memory(np.zeros((200, 64), np.float32)) as m_c:
        maps = [driver.tensor_map(matrix, box, 128) for matrix, box in ((m_a, (64, 64)), (m_b, (32, 64)))]
        arguments = [*maps, m_c, np.int32(200), np.int32(256)]
        driver.launch(image_of("multicast_gemm.cu"), "multicast_gemm", (4, 1, 1), 160, 4 * 8192 + 32, arguments)
        np.testing.assert_array_equal(m_c.read(), c)


def test_sums_become_an_operand_in_tensor_memory() -> None:
    *operands, y = mlp(200, 256)
    with ExitStack() as stack:
        m_a, m_b, m_c = (stack.enter_context(driver.memory(operand)) for operand in operands)
        m_y = stack.enter_context(driver.memory(np.zeros(y.shape, np.float32)))
        maps = [driver.tensor_map(tensor_map, (64, 64), 128) for tensor_map in (m_b, m_c)]
        arguments = [m_a, *maps, m_y, np.int32(200), np.int32(256)]
        driver.launch(image_of("blackwell_mlp.cu"), "blackwell_mlp", (2, 1, 1), 192, 6 * 8192 + 80, arguments)
        np.testing.assert_array_equal(m_y.read(), y)


def test_approximations_are_within_their_documented_error() -> None:
    call, exact, limits = approximations(np.random.default_rng(0).uniform(0.01, 8, 4096))
    assert (np.abs(run_on_device(call)["y"] - exact) <= limits).all(axis=1).all()
