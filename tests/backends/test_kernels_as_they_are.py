"""Tests of unmodified third-party kernels on every backend: two- and three-dimensional blocks, `__constant__` symbols,
8-bit and other types.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.evaluate.measure.test_gpu_device import POLICY, Runtime, runtime
from tests.support.claims import compiled
from tests.support.cupy_double import Driver, asarray, driver
from tests.support.own_operators import own_operator
from tuner import operators
from tuner.arch import gpu
from tuner.backends import emulator, ptx
from tuner.backends.emulator import Mode
from tuner.backends.gpu import constant_places
from tuner.cli.app import build
from tuner.compiler import nvrtc
from tuner.compiler.render import headers, render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.compiler.usage import occupancy
from tuner.dispatcher.calls import Dispatcher
from tuner.errors import InputError, TemplateError
from tuner.evaluate.check.checker import Job, check
from tuner.evaluate.check.declarations import broken
from tuner.evaluate.check.on_ptx import compiled as compiled_ptx
from tuner.evaluate.measure.device import Code
from tuner.evaluate.measure.gpu_device import Physical
from tuner.evaluate.measure.messages import TimingRequest
from tuner.evaluate.measure.worker import DeviceServer
from tuner.evaluate.predict.compiled import predict_launch
from tuner.results.attempt import Failed
from tuner.spec.defaults import work as least_work
from tuner.spec.instance import Instance
from tuner.spec.operator import Cost
from tuner.spec.parameters import signature
from tuner.spec.plan import Launch, Plan
from tuner.store.records import Snapshot

__all__ = ["driver", "runtime"]  # fixtures

FOLDER = Path(__file__).parents[1] / "support" / "kernels_as_they_are"
H200 = gpu("H200")
KERNELS = [("blur", "tiled"), ("blur", "emulated"), ("scale_sum", "generic"), ("scale_sum", "emulated")]


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(operators.VARIABLE, "")
    operators.add_folder(FOLDER)
    yield
    operators.__path__.remove(str(FOLDER))


def instance(operator: str, implementation: str, **problem: int) -> Instance:
    loaded = operators.load(operator)
    return Instance.default(
        loaded, operators.implementation(operator, implementation), loaded.problem(**problem), H200.arch
    )


@pytest.mark.parametrize(("operator", "implementation"), KERNELS)
def test_it_is_right_on_every_edge_and_keeps_its_promises(operator: str, implementation: str) -> None:
    case = instance(operator, implementation)
    verdict = check(Job(case.fields(), arch="sm_90a"))
    assert verdict.ok, verdict.reason
    assert {error.name for error in verdict.errors} == {argument.name for argument in case.operator.outputs}
    assert not broken(case, H200)


@pytest.mark.parametrize(("operator", "implementation"), KERNELS)
@pytest.mark.slow
def test_every_config_is_what_its_block_says(operator: str, implementation: str) -> None:
    case = instance(operator, implementation)
    for config in case.implementation.space(case.problem, H200.arch):
        verdict = check(Job(case.with_config(config).fields(), arch="sm_80"))
        assert verdict.ok, (config, verdict.reason)


def test_a_block_has_three_dimensions() -> None:
    launch = Launch("k", (1, 1, 1), (4, 3, 2), 0)
    assert (launch.block, launch.block_threads) == ((4, 3, 2), 24)
    assert (replace(launch, threads=7).block, replace(launch, threads=(7, 5)).block) == ((7, 1, 1), (7, 5, 1))


def test_a_race_between_rows_of_a_block_is_found_with_its_line() -> None:
    text = (
        '#include "thread.cuh"\nextern "C" __global__ void k(float* x) {\n  DYNAMIC_SHARED(smem);\n'
        "  float* s = reinterpret_cast<float*>(smem);\n  s[threadIdx.x] = threadIdx.y;\n  x[threadIdx.x] = s[0];\n}\n"
    )
    kernel = emulator.build(Source(("k",), text, headers(text, FOLDER, "host"), "host"), checked=True)
    with emulator.Buffer("x", 64, writable=True) as x:
        run = kernel.run(Launch("k", (1, 1, 1), (16, 2), 64), [x], Mode(checked=True, schedule="random"))
    assert "race" in {finding.kind for finding in run.findings}
    assert any("k.cu:5" in finding.location for finding in run.findings)


def test_constants_are_no_parameters_and_too_many_are_refused_on_both_machines() -> None:
    case = instance("blur", "tiled", width=16, height=4)
    operator, plan = case.operator, case.plan()
    assert "c_weights" not in signature(operator, case.problem, plan, plan.launches[0])
    entries = compiled_ptx(Job(case.fields(), arch="sm_90a"), H200.arch)
    assert not isinstance(entries, Failed)
    arrays = operator.inputs(case.problem, np.random.default_rng(0), "normal")
    larger = replace(
        operator,
        arguments=tuple(
            replace(argument, dims=("width", "taps")) if argument.constant else argument
            for argument in operator.arguments
        ),
    )
    arrays["c_weights"] = np.zeros((16, 9), np.float32)
    with pytest.raises(InputError, match="__constant__ c_weights has 64 bytes, the argument 576"):
        ptx.run(replace(case, operator=larger), entries, arrays)
    with pytest.raises(InputError, match="__constant__ c_weights has 36 bytes, the argument 576"):
        emulator.run(replace(instance("blur", "emulated", width=16, height=4), operator=larger), arrays, Mode())


def test_a_symbol_that_the_source_does_not_have_is_named() -> None:
    case = instance("blur", "tiled")
    arguments = tuple(
        replace(argument, name="c_wieghts") if argument.constant else argument for argument in case.operator.arguments
    )
    with pytest.raises(TemplateError, match="no __constant__ symbol c_wieghts"):
        render(replace(case, operator=replace(case.operator, arguments=arguments)))


def test_a_texture_is_refused_by_name(tmp_path: Path) -> None:
    with own_operator(tmp_path, ("block/kernel.cu.jinja", "#include", "cudaTextureObject_t t;\n#include")) as name:
        result = Instance.default(
            operators.load(name), operators.implementation(name, "block"), operators.load(name).problem(), H200.arch
        )
        with pytest.raises(TemplateError, match=r"reads a texture .cudaTextureObject_t.: read the array"):
            render(result)


def test_kernels_are_called_as_cpp_calls_them_whatever_the_machine_code_says() -> None:
    case = instance("scale_sum", "generic")
    cubin = compiled(render(case), "sm_90a")
    (entry,) = cubin.entries
    assert entry == "ours::scale_sum<float, double, 1>" == case.plan().launches[0].entry
    assert cubin.symbol(entry).startswith("_ZN4ours9scale_sum")
    assert cubin.code(entry)
    assert occupancy(cubin.entries[entry], case.plan().launches[0], H200.arch).ctas > 1


def test_a_template_that_is_not_there_is_named() -> None:
    failed = nvrtc.compile(
        Source(("scale<float>",), "template <class T> __global__ void scal(T*) {}", (), "cuda"), Options("sm_80")
    )
    assert isinstance(failed, Failed)
    assert "the source defines no kernel scale" in failed.reason


HUNGRY = """
template <int N> __global__ void hungry(float* x) {
  float a[N];
  for (int i = 0; i < N; i++) a[i] = x[i * threadIdx.x];
  __syncthreads();
  for (int i = 0; i < N; i++) for (int j = 0; j < N; j++) x[i * N + j + threadIdx.x] = a[i] * a[j] + a[(i + j) % N];
}
"""


def test_ptxas_knows_the_block_of_a_kernel_that_says_nothing() -> None:
    def registers(threads: int) -> int:
        source = Source(("hungry<64>",), HUNGRY, (), "cuda", threads)
        return compiled(source, "sm_80").entries["hungry<64>"].registers

    assert registers(1024) <= 64 < registers(0)
    assert registers(128) == registers(0)


def test_what_cannot_be_launched_costs_infinitely_much() -> None:
    cubin = compiled(Source(("hungry<64>",), HUNGRY, (), "cuda"), "sm_90a")
    launch = Launch("hungry<64>", (8, 1, 1), (32, 32), 0)
    assert occupancy(cubin.entries[launch.entry], launch, H200.arch).ctas == 0
    (work,) = least_work(Cost(0.0, 1e6), Plan((launch,), {}))
    assert predict_launch(cubin, launch, work, H200).cost == inf


def test_only_kernels_without_launch_bounds_are_told_their_block() -> None:
    case = instance("blur", "tiled")
    assert render(case).threads == 64
    assert render(instance("blur", "emulated")).threads == 0  # it has __launch_bounds__


@pytest.mark.parametrize("operator", ["blur", "scale_sum"])
def test_the_dispatcher_fills_symbols_and_finds_instances_on_a_gpu(operator: str, driver: Driver) -> None:
    problem = {"width": 37, "height": 5} if operator == "blur" else {"n": 1001}
    case = instance(operator, "emulated", **problem)
    kernel, cubin = emulator.build(render(case, "host"), checked=False), compiled(render(case), "sm_90a")
    driver.know(kernel)
    driver.names = {symbol: entry for entry, symbol in cubin.symbols.items()}
    arrays = case.operator.inputs(case.problem, np.random.default_rng(1), "normal")
    at = Dispatcher(Snapshot.load([]))
    for weight in (1, 2):  # a second call finds its own constants
        given = {**arrays, "c_weights": arrays["c_weights"] * weight} if operator == "blur" else arrays
        expected = case.operator.reference(case.problem, {**given, "alpha": 0.75})
        outputs = at.call(operator, *(asarray(array) for array in given.values()))
        for argument, output in zip(case.operator.outputs, outputs, strict=True):
            np.testing.assert_array_equal(output.host, expected[argument.name])


def test_a_gpu_is_not_asked_for_room_that_a_symbol_does_not_have() -> None:
    image = compiled(render(instance("blur", "tiled")), "sm_90a").image
    with pytest.raises(InputError, match="c_weights has 64 bytes, the argument 68"):
        constant_places(None, image, {"c_weights": 68})
    assert constant_places(None, image, {"elsewhere": 4}) == {}


def test_a_device_that_measures_fills_symbols_and_finds_instances(runtime: Runtime) -> None:
    for operator, problem in (("blur", {"width": 70, "height": 9}), ("scale_sum", {"n": 300})):
        case = instance(operator, "emulated", **problem)
        cubin = compiled(render(case), "sm_90a")
        runtime.driver.know(emulator.build(render(case, "host"), checked=False))
        runtime.driver.names |= {symbol: entry for entry, symbol in cubin.symbols.items()}
        done = DeviceServer(Physical().open()).do(
            TimingRequest(Code(case.fields(), cubin.image, cubin.symbols), POLICY)
        )
        assert done.failure is None, done.failure
        assert done.verdict.ok and "the timed problem" in done.verdict.checks


def test_a_launcher_in_cpp_is_refused_where_symbols_would_stay_empty(tmp_path: Path) -> None:
    done = CliRunner().invoke(build(), ["render", "blur", "--gpu", "sm_80", "--standalone", str(tmp_path)])
    assert done.exit_code == 2
    assert "c_weights is a __constant__ symbol, which a C++ launcher does not fill" in done.stderr
