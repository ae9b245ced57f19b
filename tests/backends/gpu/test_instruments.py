"""Tests of the auxiliary kernels for measuring, executed as PTX, and of CuPy calls against the installed version."""

import subprocess
import sys

import numpy as np
import pytest

from tuner.backends import gpu
from tuner.backends.gpu.instruments import HOLD, IDLE, READ, SOURCE
from tuner.backends.ptx import Global, Shape, launch, parse
from tuner.compiler import nvrtc
from tuner.compiler.toolkit import Options

CALLS = """
from cupy.cuda import driver, runtime
calls = [
    (runtime.hostAlloc, 384, 2),
    (runtime.memsetAsync, 4096, 0, 64, 0),
    (runtime.memcpyAsync, 4096, 8192, 64, 3, 0),
    (runtime.eventCreate,),
    (runtime.eventRecord, 8, 0),
    (runtime.eventElapsedTime, 8, 8),
    (runtime.malloc, 64),
    (runtime.setDevice, 0),
    (runtime.deviceGetAttribute, 38, 0),
    (driver.moduleLoadData, b"\\x7fELF"),
]
for call, *arguments in calls:
    try:
        call(*arguments)
    except RuntimeError:  # of the runtime, or for want of a driver
        pass
print("taken")
"""


def ptx(arch: str = "sm_90a") -> str:
    text = nvrtc.ptx(SOURCE, Options(arch))
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("arch", nvrtc.arches())
def test_they_compile_for_every_arch_and_the_read_is_not_left_out(arch: str) -> None:
    cubin = nvrtc.compile(SOURCE, Options(arch))
    assert set(cubin.entries) == {HOLD, READ, IDLE}
    assert any(name.startswith("LDG") for name in cubin.instruction_mix(READ))


@pytest.mark.parametrize("count", [1, 37, 64])
def test_a_read_visits_every_word_and_writes_where_one_is_not_0(count: int) -> None:
    kernel = parse(ptx())[READ]
    for changed in (None, 0, count - 1):
        memory = Global({"words": 16 * count, "never": 4}, frozenset({"never"}))
        words = memory.view("words", np.uint32, (count, 4))
        words[...] = 0
        memory.view("never", np.uint32, (1,))[...] = 0
        if changed is not None:
            words[changed, 3] = 5
        launch(kernel, Shape((1, 1, 1), 32, 0), memory, [memory.address("words"), count, memory.address("never")])
        assert memory.view("never", np.uint32, (1,))[0] == (0 if changed is None else 5)


def held(text: str, released: int) -> int:
    """What a hold with ticket 7 says of having given up."""
    memory = Global({"released": 4, "expired": 4}, frozenset({"expired"}))
    memory.view("released", np.uint32, (1,))[...] = released
    memory.view("expired", np.uint32, (1,))[...] = 0
    arguments = [memory.address("released"), memory.address("expired"), np.uint32(7), np.uint64(999)]
    launch(parse(text)[HOLD], Shape((1, 1, 1), 1, 0), memory, arguments)
    return int(memory.view("expired", np.uint32, (1,))[0])


def test_a_hold_ends_when_it_is_released_or_when_its_time_is_up() -> None:
    assert held(ptx(), released=7) == 0
    begin, *later = ptx().split("%globaltimer")
    assert len(later) == 2  # once before the loop, once in it
    in_time, too_late = (begin + "0" + later[0] + str(now) + later[1] for now in (999, 1000))
    assert held(too_late, released=6) == 7
    assert held(in_time, released=7) == 0


@pytest.mark.skipif(gpu.available(), reason="where a device is, tests/gpu makes these calls")
def test_the_cupy_that_is_installed_takes_the_calls_that_measuring_makes() -> None:
    """A wrong number or type of arguments is a TypeError before CuPy asks the driver, which is not there."""
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=False)
    assert done.stdout == "taken\n", done.stderr
