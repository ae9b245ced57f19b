"""Every primitive on the emulator, against NumPy, in every mode."""

import numpy as np
import pytest
from emulated import CHECKED, KERNELS, PLAIN, Call, Uninitialized, entries_of, launch, source
from micro import Micro, micros

from tuner.cubin import Cubin
from tuner.emulator import Mode
from tuner.nvrtc import Options, compile

MICROS = micros()


@pytest.mark.parametrize("mode", PLAIN + CHECKED, ids=str)
@pytest.mark.parametrize("micro", MICROS, ids=lambda micro: micro.name)
def test_a_primitive_computes_what_numpy_says_and_is_free_of_findings(micro: Micro, mode: Mode) -> None:
    outputs, run = launch(micro.call, mode)
    assert [str(finding) for finding in run.findings] == []
    for name, expected in micro.expected(micro.call.inputs).items():
        np.testing.assert_array_equal(outputs[name], expected, err_msg=name)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_the_same_text_compiles_for_the_gpu(arch: str) -> None:
    newer = {"sm_90a": ["primitives_sm90.cu", "primitives_cluster.cu"], "sm_100a": ["primitives_cluster.cu"]}
    for file in ("primitives_sm80.cu", *newer.get(arch, [])):
        cubin = compile(source(file, entries_of(file), (), "cuda"), Options(arch=arch))
        assert isinstance(cubin, Cubin), cubin
        assert set(cubin.entries) == set(entries_of(file))


def test_approximations_are_those_of_numpy() -> None:
    x = np.random.default_rng(0).uniform(0.01, 8, 500).astype(np.float32)
    outputs = {"y": Uninitialized(np.float32, (4, 500))}
    call = Call("primitives_sm80.cu", "approximate", {"x": x}, outputs, (np.int32(500),), (2, 1, 1), 256)
    exact = np.stack([np.exp2(x), np.log2(x), 1 / x, np.tanh(x)])
    np.testing.assert_allclose(launch(call, Mode())[0]["y"], exact, rtol=1e-6, atol=1e-6)


def test_every_kernel_has_a_test() -> None:
    covered = {micro.call.entry for micro in MICROS} | {"layouts", "approximate", "tensor_copy", "tensor_multicast"}
    assert covered == {entry for path in KERNELS.glob("primitives_*.cu") for entry in entries_of(path.name)}
