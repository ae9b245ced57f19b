"""Tests that results do not depend on the processor or the C library."""

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tests.backends.emulator.emulated import snippet
from tuner.backends.emulator import Buffer, Mode
from tuner.backends.emulator.compiler import compiler

NUMBERS = np.array([0.0, -0.0, np.nan, 1.0, -1.0, np.inf], np.float32)


def computed(expression: str, x: np.ndarray, y: np.ndarray, result: str = "float") -> np.ndarray:
    """Of each x with each y, as bits."""
    text = f"""
#include "math.cuh"
extern "C" __global__ void each(float const* x, float const* y, {result}* out, int n) {{
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = {expression};
}}
"""
    x, y = (np.ascontiguousarray(broadcast_array.reshape(-1)) for broadcast_array in np.broadcast_arrays(x[:, None], y))
    with (
        Buffer.of("x", x) as a,
        Buffer.of("y", y) as b,
        Buffer("out", x.nbytes, writable=True, initialized=False) as out,
    ):
        kernel = snippet(text, "each")
        assert kernel.launch("each", (1, 1, 1), 64, 0, [a, b, out, np.int32(x.size)], Mode()).findings == ()
        return out.view(np.uint32, x.shape).copy()


@pytest.mark.parametrize("name", ["min", "max"])
def test_a_minimum_knows_signs_of_zeros_and_drops_a_nan(name: str) -> None:
    x, y = (grid.reshape(-1) for grid in np.meshgrid(NUMBERS, NUMBERS, indexing="ij"))
    below = (x < y) | ((x == y) & np.signbit(x)) if name == "min" else (x > y) | ((x == y) & ~np.signbit(x))
    expected = np.where(np.isnan(y) | below, x, y)
    for spelled in (f"f{name}f(x[i], y[i])", f"{name}(x[i], y[i])", f"f{name}(x[i], y[i])"):
        result = computed(spelled, NUMBERS, NUMBERS).view(np.float32)
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(np.signbit(result[~np.isnan(result)]), np.signbit(expected[~np.isnan(expected)]))


def test_floats_beyond_all_ints_become_the_nearest_one() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, -(2.0**31), 2.5, -2.5, 3.5], np.float32)
    least, most = -(2**31), 2**31 - 1
    for name, rounded in (("rn", [2, -2, 4]), ("rz", [2, -2, 3])):
        result = computed(f"__float2int_{name}(x[i])", x, x[:1], "int").view(np.int32)
        assert list(result) == [0, most, least, most, least, least, *rounded]


def test_the_special_functions_have_the_same_bits_everywhere() -> None:
    """The sum stands for the C libraries and processors that it was taken on: glibc 2.36, x86-64 and aarch64."""
    x = np.float32(2.0) ** np.linspace(-20, 20, 4096, dtype=np.float64)
    both = np.concatenate([x, -x]).astype(np.float32)
    digest = sha256()
    for expression in ("exp2_approx(x[i])", "log2_approx(fabsf(x[i]))", "rcp_approx(x[i])", "tanh_approx(x[i])"):
        digest.update(computed(expression, both, NUMBERS[:1]).tobytes())
    assert digest.hexdigest()[:16] == "41073a2dbbd51e75"


@pytest.mark.parametrize("mode", [Mode(), Mode(True)], ids=str)
@pytest.mark.parametrize("operation", ["/", "%"])
def test_a_division_by_zero_is_found_where_it_happens(operation: str, mode: Mode) -> None:
    text = f"""
extern "C" __global__ void divide(int const* x, int* y) {{
  int const own = x[threadIdx.x];
  y[threadIdx.x] = 7 {operation} own;
}}
"""
    with Buffer.of("x", np.arange(32, dtype=np.int32)) as x, Buffer("y", 128, writable=True) as y:
        run = snippet(text, "divide", checked=mode.checked).launch("divide", (1, 1, 1), 32, 0, [x, y], mode)
    (finding,) = run.findings
    assert finding.kind == "undefined_behaviour" and "division by zero" in finding.message
    assert finding.location == "divide.cu:5"


LARGE_PAGES = """
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
enum { kPage = 65536 };
#define NEXT(name) reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name))
extern "C" long sysconf(int name) noexcept { return name == _SC_PAGESIZE ? long(kPage) : NEXT(sysconf)(name); }
extern "C" int mprotect(void* at, size_t bytes, int how) noexcept {
  if (reinterpret_cast<uintptr_t>(at) % kPage) return errno = EINVAL, -1;
  return NEXT(mprotect)(at, (bytes + kPage - 1) / kPage * kPage, how);
}
extern "C" void* mmap(void* at, size_t bytes, int how, int flags, int file, off_t offset) noexcept {
  if (at || !(flags & MAP_ANONYMOUS)) return NEXT(mmap)(at, bytes, how, flags, file, offset);
  auto const map = reinterpret_cast<uintptr_t>(NEXT(mmap)(at, bytes + kPage, how, flags, file, offset));
  return reinterpret_cast<void*>(map % kPage ? map / kPage * kPage + kPage : map);
}
"""


def test_pages_may_have_64_kilobytes(tmp_path: Path) -> None:
    """The tests of memory with a C library that has such pages, as some kernels of aarch64 do."""
    library = tmp_path / "pages.so"
    build = [compiler().path, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library), "-ldl"]
    subprocess.run(build, input=LARGE_PAGES, text=True, check=True)
    command = [sys.executable, "-m", "pytest", "-n0", str(Path(__file__).with_name("test_memory.py"))]
    done = subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


CROSS = "aarch64-linux-gnu-g++"
BUILD = """
import platform
platform.machine = lambda: "aarch64"
from tuner.backends.emulator.build import runtime_library, shared_object
from tuner.compiler.source import Source
text = 'extern "C" __global__ void add(float* x, int n) { x[0] = x[1] / (7 / n); }'
source = Source(("add",), text, (), "host")
for path in (runtime_library(), *(shared_object(source, checked=checked) for checked in (False, True))):
    print(int.from_bytes(path.read_bytes()[18:20], "little"))
"""


@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"{CROSS} is not installed")
def test_the_runtime_and_kernels_compile_for_aarch64() -> None:
    environment = {**os.environ, "TUNER_CXX": CROSS}
    done = subprocess.run([sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["183"] * 3  # EM_AARCH64
