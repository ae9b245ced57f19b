"""Every primitive on the emulator, against NumPy, in every mode."""

import numpy as np
import pytest
from emulated import CHECKED, PLAIN, launch
from micro import Micro, micros

from tuner.emulator import Mode

MICROS = micros()


@pytest.mark.parametrize("mode", PLAIN + CHECKED, ids=str)
@pytest.mark.parametrize("micro", MICROS, ids=lambda micro: micro.name)
def test_a_primitive_computes_what_numpy_says_and_is_free_of_findings(micro: Micro, mode: Mode) -> None:
    outputs, run = launch(micro.call, mode)
    assert [str(finding) for finding in run.findings] == []
    for name, expected in micro.expected(micro.call.inputs).items():
        np.testing.assert_array_equal(outputs[name], expected, err_msg=name)
