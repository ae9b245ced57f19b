"""Tests of what the driver receives, on a machine without a GPU; tests/gpu makes the same calls on a device."""

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.cupy_double import MODEL, TOLD, Driver, Module, asarray, driver, ndarray
from tuner import arch, operators
from tuner.arch import ARCHES
from tuner.backends import emulator, gpu
from tuner.cli.commands.new import write
from tuner.compiler.render import render
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, MachineError, TemplateError
from tuner.evaluate.check.compare import errors
from tuner.results.attempt import Evidence
from tuner.search.session import evidence_for, why_predicted
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.store.records import Snapshot

__all__ = ["driver"]  # a fixture

WEIGHT = np.linspace(0.5, 2, 32, dtype=np.float32)

pytestmark = pytest.mark.usefixtures("own_folder")


def know(driver: Driver, operator: Operator[Any], problem: Any) -> None:
    """Give the device the kernels of the default config of every implementation that serves the problem."""
    for implementation in operators.implementations(operator.name):
        if implementation.refusal(problem, ARCHES["sm_90a"]) is not None:
            continue
        config = implementation.default(problem, ARCHES["sm_90a"])
        driver.know(emulator.build(render(Instance(operator, implementation, problem, config), "host"), checked=False))


def rows(dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, 64)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["fp32", "bf16"])
def test_launches_get_pointers_strides_scalars_and_workspaces(driver: Driver, at: Dispatcher, dtype: Any) -> None:
    operator = operators.load("row_norm")
    x = rows(dtype)[:, :32]
    problem = operator.problem(dtype=operator.problem().dtype.of(dtype), rows=5)
    know(driver, operator, problem)
    y, rms = at.call("row_norm", asarray(rows(dtype))[:, :32], asarray(WEIGHT), epsilon=0.5)
    assert driver.launches == ["row_norm_sums", "row_norm_scale"]
    results = {"y": y.host, "rms": rms.host}
    assert all(error.ok for error in errors(operator, problem, {"x": x, "weight": WEIGHT, "epsilon": 0.5}, results))


def test_an_input_that_is_not_given_is_a_null_pointer(driver: Driver, at: Dispatcher) -> None:
    operator = operators.load("row_norm")
    problem = operator.problem(unit=True, with_rms=False, rows=5)
    know(driver, operator, problem)
    y, rms = at.call("row_norm", asarray(rows()[:, :32].copy()), with_rms=False)
    assert rms.shape == (0,)
    assert np.allclose(y.host, operator.reference(problem, {"x": rows()[:, :32]})["y"], atol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("head_dim", [64, 192])
def test_flash_attention_gets_the_shared_memory_it_asks_for(driver: Driver, at: Dispatcher, head_dim: int) -> None:
    operator = operators.load("flash_attention")
    problem = operator.problem(head_dim, batch=1, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    know(driver, operator, problem)
    arrays = operator.inputs(problem, np.random.default_rng(0), "normal")
    q, k, v = (asarray(np.ascontiguousarray(arrays[name].swapaxes(1, 2))) for name in "qkv")
    o, lse = at.call("flash_attention", q, k, v, layout="bhtd")
    assert isinstance(o, ndarray)
    results = {"o": o.host.swapaxes(1, 2), "lse": lse.host}
    assert all(error.ok for error in errors(operator, problem, arrays, results))


def test_a_kernel_with_static_shared_memory_asks_for_the_rest(driver: Driver, at: Dispatcher) -> None:
    operator = operators.load("flash_attention")
    problem = operator.problem(64, batch=1, heads=4, kv_heads=2, seq_q=19, seq_k=35)
    know(driver, operator, problem)
    arrays = operator.inputs(problem, np.random.default_rng(0), "normal")
    driver.unasked = 1024  # as for one whose static arrays fill the rest
    at.call("flash_attention", *(asarray(arrays[name]) for name in "qkv"))
    assert len(driver.launches) == 1


@pytest.mark.usefixtures("driver")
def test_a_kernel_that_does_not_compile_is_an_error_with_the_compilers_words(
    at: Dispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("half_written", tmp_path / "half_written")
    for template in (tmp_path / "half_written").glob("*/*.jinja"):
        template.write_text(f"{template.read_text()}\nunfinished;\n")
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    with pytest.raises(TemplateError, match=r"half_written/\w+ for sm_90a does not compile: kernel.cu.* error: "):
        at.call("half_written", asarray(rows(np.float16)))


def test_only_records_and_defaults_of_the_device_serve_it(driver: Driver, at: Dispatcher) -> None:
    result = at.explain("row_norm", asarray(rows()[:, :32]), asarray(WEIGHT))
    assert result.gpu == "H200"
    assert driver.launches == []


def test_arrays_in_two_places_are_an_input_error(driver: Driver, at: Dispatcher) -> None:
    with pytest.raises(InputError, match="weight is a numpy array in CPU memory, but x is a cupy array on cuda:0"):
        at.call("row_norm", asarray(rows()[:, :32]), WEIGHT)
    assert driver.launches == []


@pytest.mark.parametrize(("device", "move"), [("cuda", lambda x: x), ("emulator", asarray)], ids=["cuda", "emulator"])
def test_a_device_that_the_arrays_are_not_on_is_an_input_error(
    driver: Driver, at: Dispatcher, device: str, move: Any
) -> None:
    with pytest.raises(InputError, match=f"x is .* and device='{device}' takes arrays"):
        at.call("row_norm", move(rows()[:, :32]), move(WEIGHT), device=device)
    assert driver.launches == []


def test_the_device_is_described_in_one_line(driver: Driver) -> None:
    assert gpu.describe() == "NVIDIA H200 as H200 (sm_90a), driver for CUDA 13.2"
    assert driver.launches == []


def test_of_several_gpus_it_is_told_which_and_whether_one_process_may_have_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = driver.modules()["cupy"].cuda.runtime
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: 8)
    assert gpu.describe().endswith("CUDA 13.2, number 0 of 8 (CUDA_VISIBLE_DEVICES chooses)")
    monkeypatch.setitem(TOLD, 20, 3)
    assert gpu.describe().endswith(", which one process at a time may open")


@pytest.mark.parametrize(
    ("visible", "advice"), [("GPU-123", "CUDA_VISIBLE_DEVICES='GPU-123' names no device of this machine"), (None, "")]
)
def test_a_gpu_that_is_hidden_is_told_with_what_hides_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str | None, advice: str
) -> None:
    class NoDeviceError(RuntimeError):
        status = 100

    def hidden() -> int:
        raise NoDeviceError

    monkeypatch.setattr(driver.modules()["cupy"].cuda.runtime, "getDeviceCount", hidden)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (advice or "install one, or use NumPy arrays") in gpu.trouble()


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("asked", "known"), [("H200", Evidence.MEASURED), ("A100", Evidence.PREDICTED)])
def test_a_search_is_measured_for_the_gpu_that_is_here_and_predicted_for_others(asked: str, known: Evidence) -> None:
    assert evidence_for(arch.gpu(asked)) is known


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("asked", ["sm_90a", "H100", "H200", "sm_80"])
def test_who_asks_for_the_arch_of_the_gpu_that_is_here_is_told_its_name(asked: str) -> None:
    assert why_predicted(arch.gpu(asked)) == (
        "ask for the GPU of this machine by --gpu H200" if asked == "sm_90a" else ""
    )


def test_where_the_driver_cannot_be_used_who_gets_a_prediction_is_told_why(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def insufficient() -> int:
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setattr(driver.modules()["cupy"].cuda.runtime, "getDeviceCount", insufficient)
    assert why_predicted(arch.gpu("H200")).startswith("no GPU (cudaErrorInsufficientDriver)")


def test_a_driver_older_than_cupy_is_told_with_the_build_that_fits_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InsufficientDriverError(RuntimeError):
        status = 35

    def insufficient() -> int:
        raise InsufficientDriverError

    runtime = driver.modules()["cupy"].cuda.runtime
    monkeypatch.setattr(runtime, "getDeviceCount", insufficient)
    monkeypatch.setattr(runtime, "driverGetVersion", lambda: 12080)
    assert "install a newer driver, or 'kerntune[cuda12]'" in why_predicted(arch.gpu("H200"))


def test_without_a_driver_nothing_is_said_of_a_prediction() -> None:
    if gpu.available():
        pytest.skip("this machine has a GPU")
    assert why_predicted(arch.gpu("H200")) == ""


def test_a_search_on_a_device_that_is_too_old_is_predicted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODEL, "name", b"Tesla T4")
    monkeypatch.setitem(MODEL, "major", 7)
    assert evidence_for(arch.gpu("H200")) is Evidence.PREDICTED
    assert driver.launches == []


def test_without_a_driver_there_is_no_gpu_and_the_error_says_what_to_do() -> None:
    if gpu.available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(MachineError, match=r"^no GPU, because there is no CUDA driver: install one"):
        gpu.current_gpu()


@pytest.fixture
def laptop(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> arch.GPU:
    """A GPU whose model is not listed."""
    model = {"name": b"NVIDIA GeForce RTX 4090 Laptop GPU", "major": 8, "minor": 9, "multiProcessorCount": 76}
    for of, values in ((MODEL, model), (TOLD, {13: 2040000, 36: 9001000, 37: 256, 38: 64 << 20})):
        for key, value in values.items():
            monkeypatch.setitem(of, key, value)
    assert not driver.launches
    return gpu.current_gpu()


def test_a_gpu_that_is_not_listed_is_searched_as_itself(laptop: arch.GPU) -> None:
    device = laptop.device
    assert laptop.name == device.name == "RTX 4090 Laptop GPU (sm_89, 76 SMs)"
    assert (device.sm_count, device.clock_mhz, device.dram_gb_s, device.l2_bytes) == (76, 2040, 576, 64 << 20)
    for name in ("RTX 4090 Laptop GPU", "nvidia geforce rtx 4090 laptop gpu", laptop.name):
        assert gpu.named(name) == laptop
        assert evidence_for(gpu.named(name)) is Evidence.MEASURED
    assert gpu.describe().startswith(
        "NVIDIA GeForce RTX 4090 Laptop GPU as RTX 4090 Laptop GPU (sm_89, 76 SMs), driver"
    )


@pytest.mark.parametrize("name", ["sm_89", "RTX 4090"])
def test_a_search_for_another_gpu_tells_the_name_of_the_one_that_is_here(laptop: arch.GPU, name: str) -> None:
    assert evidence_for(gpu.named(name)) is Evidence.PREDICTED
    assert why_predicted(gpu.named(name)) == f"ask for the GPU of this machine by --gpu '{laptop.name}'"


def test_a_fact_that_the_driver_does_not_know_is_as_on_the_nearest_model(
    laptop: arch.GPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(attribute: int, _: int) -> int:
        if attribute in TOLD:
            raise RuntimeError("cudaErrorInvalidValue")
        return 0

    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "deviceGetAttribute", unknown)
    gpu._gpu.cache_clear()
    assert gpu.current_gpu().device.clock_mhz == arch.gpu("RTX 4090").device.clock_mhz
    assert gpu.current_gpu().name == laptop.name


def test_a_driver_that_is_older_than_the_compiler_is_told_before_an_image_is_loaded(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bytes] = []
    monkeypatch.setattr(Module, "load", lambda _, image: loaded.append(image))
    monkeypatch.setattr(driver.modules()["cupy"].cuda.runtime, "driverGetVersion", lambda: 12080)
    arrays = [asarray(np.ones((1, 4, 2, 16), np.float16)) for _ in range(3)]
    needed = (
        r"for CUDA 12\.8, and cannot load the output of nvrtc 13\.\d+: install R580 or later, or 'kerntune\[cuda12\]'"
    )
    with pytest.raises(MachineError, match=needed):
        Dispatcher(Snapshot({}, ())).call("flash_attention", *arrays)
    assert loaded == []
