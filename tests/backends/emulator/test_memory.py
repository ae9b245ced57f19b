"""Tests of memory checks: invalid accesses are found and named."""

import numpy as np
import pytest

from tests.backends.emulator.emulated import snippet
from tuner.backends.emulator import Buffer, Finding, Mode

CHECKED = Mode(checked=True)
COPY = """
extern "C" __global__ void copy(int const* x, int* y, int n, int shift) {
  int const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i + shift] = x[i];
}
"""


def findings_of_copy(n: int, shift: int = 0, length: int = 64, mode: Mode = CHECKED) -> tuple[Finding, ...]:
    kernel = snippet(COPY, "copy", checked=mode.checked)
    with (
        Buffer.of("x", np.arange(length, dtype=np.int32)) as x,
        Buffer("y", 4 * length, writable=True, initialized=False) as y,
    ):
        return kernel.launch("copy", (2, 1, 1), 64, 0, [x, y, np.int32(n), np.int32(shift)], mode).findings


def test_what_nobody_wrote_is_nan_in_every_floating_type() -> None:
    with Buffer("y", 64, writable=True, initialized=False) as y:
        for dtype in (np.float16, np.float32, np.float64):
            assert np.isnan(y.view(dtype, (8,))).all()


def test_a_copy_within_bounds_has_no_findings() -> None:
    assert findings_of_copy(64) == ()


def test_a_write_behind_a_buffer_is_found_with_its_offset_and_line() -> None:
    (finding,) = findings_of_copy(64, shift=3)
    assert (finding.kind, finding.buffer, finding.offset) == ("out_of_bounds", "y", 256)
    assert finding.location == "copy.cu:5"


def test_a_write_before_a_buffer_is_found() -> None:
    (finding,) = findings_of_copy(64, shift=-2)
    assert (finding.kind, finding.buffer, finding.offset) == ("out_of_bounds", "y", -8)


def test_a_wild_read_ends_a_plain_launch_with_the_buffers_name() -> None:
    (finding,) = findings_of_copy(100, mode=Mode())
    assert (finding.kind, finding.buffer) == ("out_of_bounds", "x")


def test_a_small_overrun_of_a_plain_launch_shows_in_the_canary() -> None:
    (finding,) = findings_of_copy(62, shift=1, length=62, mode=Mode())
    assert (finding.kind, finding.buffer, finding.offset) == ("out_of_bounds", "y", 248)


def test_of_many_buffers_the_one_that_was_overrun_is_named() -> None:
    others = [Buffer(f"other{i}", 64) for i in range(40)]
    for other in others[::3]:
        other.close()
    (finding,) = findings_of_copy(64, shift=3)
    for other in others:
        other.close()
    assert (finding.kind, finding.buffer, finding.offset) == ("out_of_bounds", "y", 256)


@pytest.mark.parametrize("mode", [Mode(), CHECKED], ids=str)
def test_a_write_to_an_input_is_found(mode: Mode) -> None:
    text = 'extern "C" __global__ void poke(int const* x) { const_cast<int*>(x)[threadIdx.x] = 0; }'
    with Buffer.of("x", np.ones(32, np.int32)) as x:
        run = snippet(text, "poke", checked=mode.checked).launch("poke", (1, 1, 1), 32, 0, [x], mode)
    assert {finding.kind for finding in run.findings} == {"read_only"}


def test_reading_an_output_before_it_is_written_is_found() -> None:
    text = 'extern "C" __global__ void add(float* y) { y[threadIdx.x] += 1.0f; }'
    with Buffer("y", 128, writable=True, initialized=False) as y:
        run = snippet(text, "add", checked=True).launch("add", (1, 1, 1), 32, 0, [y], CHECKED)
    assert [finding.kind for finding in run.findings] == ["uninitialized_read"]


def test_what_one_launch_wrote_the_next_may_read() -> None:
    text = """
extern "C" __global__ void set(float* y) { y[threadIdx.x] = 1.0f; }
extern "C" __global__ void add(float* y) { y[31 - threadIdx.x] += 1.0f; }
"""
    kernel = snippet(text, "set", "add", checked=True)
    with Buffer("y", 128, writable=True, initialized=False) as y:
        runs = [kernel.launch(entry, (1, 1, 1), 32, 0, [y], CHECKED) for entry in ("set", "add")]
        assert [run.findings for run in runs] == [(), ()]
        assert (y.view(np.float32, (32,)) == 2).all()


@pytest.mark.parametrize("mode", [Mode(), CHECKED], ids=str)
def test_shared_memory_ends_where_the_launch_says(mode: Mode) -> None:
    text = 'extern "C" __global__ void poke() { DYNAMIC_SHARED(smem); smem[threadIdx.x] = 1; }'
    kernel = snippet(text, "poke", checked=mode.checked)
    assert kernel.launch("poke", (1, 1, 1), 128, 128, [], mode).findings == ()
    (finding,) = kernel.launch("poke", (1, 1, 1), 128, 127, [], mode).findings
    assert (finding.kind, finding.buffer, finding.offset) == ("out_of_bounds", "shared", 127)


def test_bytes_that_different_threads_write_side_by_side_do_not_race() -> None:
    text = """
extern "C" __global__ void bytes(uint8_t* y) {
  DYNAMIC_SHARED(smem);
  smem[threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = smem[63 - threadIdx.x];
}
"""
    with Buffer("y", 64, writable=True, initialized=False) as y:
        run = snippet(text, "bytes", checked=True).launch("bytes", (1, 1, 1), 64, 64, [y], CHECKED)
        assert run.findings == ()
        assert list(y.view(np.uint8, (64,))) == list(range(63, -1, -1))


def test_local_arrays_larger_than_a_stack_are_a_finding() -> None:
    text = """
extern "C" __global__ void deep(int* y) {
  volatile int local[100000];
  local[threadIdx.x] = 1;
  y[threadIdx.x] = local[threadIdx.x];
}
"""
    with Buffer("y", 128, writable=True, initialized=False) as y:
        run = snippet(text, "deep").launch("deep", (1, 1, 1), 32, 0, [y], Mode())
    assert [finding.kind for finding in run.findings] == ["stack_overflow"]


def test_structs_that_functions_take_and_return_by_value_are_seen() -> None:
    text = """
#include "types.cuh"
__device__ float twice(bf16 x) { return 2 * to_float(x); }
__device__ bf16 half_of(float x) { return from_float<bf16>(x / 2); }
extern "C" __global__ void pass(bf16* y) {
  DYNAMIC_SHARED(smem);
  bf16* const row = reinterpret_cast<bf16*>(smem);
  row[threadIdx.x] = half_of(threadIdx.x);
  %s
  y[threadIdx.x] = half_of(twice(row[63 - threadIdx.x]));
}
"""
    results = []
    for barrier in ("", "__syncthreads();"):
        with Buffer("y", 128, writable=True, initialized=False) as y:
            run = snippet(text % barrier, "pass", checked=True).launch("pass", (1, 1, 1), 64, 128, [y], CHECKED)
        counted = (run.counters.shared_read_bytes, run.counters.shared_write_bytes, run.counters.global_write_bytes)
        results.append(({finding.kind for finding in run.findings} - {"uninitialized_read"}, counted))
    assert results == [({"race"}, (128, 128, 128)), (set(), (128, 128, 128))]
