"""Tests of every primitive on the emulator against NumPy, in every mode."""

import numpy as np
import pytest

from tests.backends.emulator.emulated import CHECKED, KERNELS, PLAIN, entries_of, launch, source
from tests.backends.emulator.micro import Micro, approximations, micros
from tests.support.claims import compiled
from tuner.arch import ARCHES
from tuner.backends.emulator import Mode

MICROS = micros()


@pytest.mark.parametrize("mode", PLAIN + CHECKED, ids=str)
@pytest.mark.parametrize("micro", MICROS, ids=lambda micro: micro.name)
def test_a_primitive_computes_what_numpy_says_and_is_free_of_findings(micro: Micro, mode: Mode) -> None:
    outputs, run = launch(micro.call, mode)
    assert [str(finding) for finding in run.findings] == []
    for name, expected in micro.expected(micro.call.inputs).items():
        np.testing.assert_array_equal(outputs[name], expected, err_msg=name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", ARCHES)
def test_the_same_text_compiles_for_the_gpu(arch: str) -> None:
    newer = ["primitives_sm90.cu"] * ARCHES[arch].has_wgmma + ["primitives_sm100.cu"] * ARCHES[arch].has_tcgen05
    for file in ("primitives_sm80.cu", *newer, *["primitives_cluster.cu"] * bool(newer)):
        cubin = compiled(source(file, entries_of(file), (), "cuda"), arch)
        assert set(cubin.entries) == set(entries_of(file))


def test_approximations_are_off_by_what_the_isa_allows_and_no_more() -> None:
    call, exact, limits = approximations(np.random.default_rng(0).uniform(0.01, 8, 500))
    share = np.abs(launch(call, Mode())[0]["y"] - exact) / limits
    assert (share.max(axis=1) <= 1).all()
    assert (share.max(axis=1) > 0.6).all()


def test_approximations_at_the_ends_are_exact() -> None:
    x = np.array([0, np.inf, 1e-40], np.float32)
    result = launch(approximations(x)[0], Mode())[0]["y"]
    np.testing.assert_array_equal(result[:3], [[1, np.inf, 1], [-np.inf, np.inf, -np.inf], [np.inf, 0, np.inf]])


def test_every_kernel_has_a_test() -> None:
    covered = {micro.call.entry for micro in MICROS} | {"layouts", "approximate", "tensor_copy", "tensor_multicast"}
    assert covered == {entry for path in KERNELS.glob("primitives_*.cu") for entry in entries_of(path.name)}
