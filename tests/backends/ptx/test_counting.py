"""Tests of counting by execution, against counts by hand and against complete executions."""

import numpy as np
import pytest

from tuner.backends.ptx import Global, Shape, launch, parse
from tuner.backends.ptx.counting import Access, Budget, Counts, Sketch, count
from tuner.backends.ptx.counting.memory_traffic import Metric
from tuner.compiler import nvrtc
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options

SIZES = {"x": 1 << 26, "y": 1 << 26}
L1 = 64 << 10


def counted(body: str, shape: Shape, before: str = "", budget: Budget | None = None) -> Counts:
    """Of `__global__ void kernel(float* x, float* y, int n)` with n = 1000."""
    memory = Sketch(SIZES)
    values = [memory.address("x"), memory.address("y"), np.int32(1000)]
    return count(entry(body, before), shape, memory, values, L1, budget)


def entry(body: str, before: str = "") -> object:
    text = f'{before}\nextern "C" __global__ void kernel(float* x, float* y, int n) {{ {body} }}'
    ptx_text = nvrtc.ptx(Source(("kernel",), text, (), "cuda"), Options("sm_80"))
    assert isinstance(ptx_text, str), ptx_text
    return parse(ptx_text)["kernel"]


def access(counts: Counts, space: str, kind: str = "load") -> Access:
    (result,) = (
        counted_access
        for counted_access in counts.accesses
        if (counted_access.space, counted_access.kind) == (space, kind)
    )
    return result


ONE = Shape((1, 1, 1), 64, 0)
SUM = 'float s = 0; _Pragma("unroll 1") for (int i = 0; i < n; ++i) s += x[i * {stride} + threadIdx.x]; y[0] = s;'


def test_a_long_loop_is_cut_short_and_its_passes_are_all_counted() -> None:
    counts = counted(SUM.format(stride=4096), ONE)
    (loop,) = counts.loops
    assert (loop.trips, loop.entries, loop.extrapolated) == (1000, 1, True)
    assert access(counts, "global").requests == 1000 * 2  # by each of two warps


def test_a_loop_in_a_loop_is_passed_in_each_pass_of_that() -> None:
    inner = '_Pragma("unroll 1") for (int j = 0; j < 37; ++j) s += x[i * 37 + j];'
    counts = counted(f'float s = 0; _Pragma("unroll 1") for (int i = 0; i < n; ++i) {{ {inner} }} y[0] = s;', ONE)
    outer, within = counts.loops
    assert (outer.trips, within.trips, within.entries) == (1000, 37, 1000)


def test_warps_that_loop_less_often_than_others_are_counted_each() -> None:
    counts = counted(
        '_Pragma("unroll 1") for (int i = threadIdx.x; i < 1000; i += 96) y[i] = 0;', Shape((1, 1, 1), 96, 0)
    )
    assert (
        access(counts, "global", "store").requests == 11 + 10 + 11 - 0 + 0
    )  # 1000 = 10 * 96 + 40: one warp whole, one in part


@pytest.mark.parametrize(
    ("index", "sectors", "distinct"),
    [("threadIdx.x", 4, 32), ("2 * threadIdx.x", 8, 32), ("8 * threadIdx.x", 32, 32), ("0", 1, 1)],
)
def test_sectors_are_those_that_the_lanes_of_a_warp_touch(index: str, sectors: int, distinct: int) -> None:
    result = access(counted(f"y[threadIdx.x] = x[{index}];", Shape((1, 1, 1), 32, 0)), "global")
    assert (result.sectors, result.misses, result.distinct) == (sectors, sectors, distinct)


def test_what_was_loaded_before_hits_l1_as_far_as_it_holds_it() -> None:
    twice = '_Pragma("unroll 1") for (int r = 0; r < 2; ++r) _Pragma("unroll 1") for (int i = 0; i < {rows}; ++i)'
    body = "float s = 0; " + twice + " s += x[32 * i + threadIdx.x]; y[0] = s;"
    small, large = (access(counted(body.format(rows=rows), Shape((1, 1, 1), 32, 0)), "global") for rows in (64, 4096))
    assert small.sectors == 2 * 64 * 4
    assert small.misses == pytest.approx(64 * 4, rel=0.05)
    assert large.misses > 0.95 * large.sectors


@pytest.mark.parametrize(("index", "turns"), [("t", 1), ("2 * t", 2), ("32 * t", 32), ("33 * t", 1), ("0", 1)])
def test_lanes_that_want_other_words_of_a_bank_take_turns(index: str, turns: int) -> None:
    body = f"int t = threadIdx.x; y[t] = s[{index} + n - 1000];"
    assert access(counted(body, Shape((1, 1, 1), 32, 0), "__shared__ float s[2048];"), "shared").wavefronts == turns


def test_sixteen_bytes_a_lane_take_four_turns() -> None:
    body = "reinterpret_cast<float4*>(y)[threadIdx.x] = s[threadIdx.x + n - 1000];"
    assert access(counted(body, Shape((1, 1, 1), 32, 0), "__shared__ float4 s[64];"), "shared").wavefronts == 4


def test_blocks_at_the_end_of_a_short_grid_count_for_what_they_do() -> None:
    body = "int i = blockIdx.x * 64 + threadIdx.x; if (i < 64 + 32) y[i] = 1;"
    counts = counted(body, Shape((2, 1, 1), 64, 0))
    assert access(counts, "global", "store").requests == 1.5
    assert 1 < counts.longest < 1.5


def test_lanes_that_stand_aside_show_as_divergence() -> None:
    work = '_Pragma("unroll 1") for (int i = 0; i < n; ++i) s = s * 1.5f + 1;'
    whole = counted(f"float s = n; {work} y[threadIdx.x] = s;", ONE)
    few = counted(f"float s = n; if (threadIdx.x % 4 == 0) {{ {work} }} y[threadIdx.x] = s;", ONE)
    assert whole.active == 1
    assert few.active == pytest.approx(0.25, abs=0.02)


def test_a_loop_whose_end_only_data_tells_is_left_to_the_budget() -> None:
    counts = counted("float s = 0; while (x[(int)s] < 1) s += 1; y[0] = s;", ONE, budget=Budget(seconds=0.05))
    assert "a loop with an unknown number of iterations" in counts.unsure


MATMUL = """
  __shared__ float a[16][17], b[16][16];
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16, size = n - 1000 + 96;
  float s = 0;
  for (int k = 0; k < size; k += 16) {
    a[ty][tx] = x[(blockIdx.y * 16 + ty) * size + k + tx];
    b[ty][tx] = x[(k + ty) * size + blockIdx.x * 16 + tx];
    __syncthreads();
    _Pragma("unroll 4") for (int i = 0; i < 16; ++i) s += a[ty][i] * b[i][tx];
    __syncthreads();
  }
  if (blockIdx.x * 16 + tx < size) y[(blockIdx.y * 16 + ty) * size + blockIdx.x * 16 + tx] = s;
"""


def test_a_block_counts_for_as_many_instructions_as_it_has_where_all_of_them_are_executed() -> None:
    shape = Shape((6, 6, 1), 256, 0)
    memory = Global({"x": 4 * 96 * 96, "y": 4 * 96 * 96}, frozenset({"y"}))
    memory.view("x", np.float32, (96 * 96,))[...] = 1
    executed = launch(entry(MATMUL), shape, memory, [memory.address("x"), memory.address("y"), np.int32(1000)])
    assert counted(MATMUL, shape).tally[Metric.WARPS].sum() * 36 == pytest.approx(executed, rel=1e-9)


@pytest.mark.parametrize(("dtype", "sectors", "wavefronts"), [("float", 4, 1), ("double", 8, 2)])
def test_local_memory_is_interleaved_by_lane(dtype: str, sectors: int, wavefronts: int) -> None:
    body = f"{dtype} a[16]; for (int i = 0; i < 16; ++i) a[i] = x[i]; y[threadIdx.x] = a[n & 15];"
    result = access(counted(body, Shape((1, 1, 1), 32, 0)), "local")
    assert (result.sectors, result.wavefronts) == (sectors, wavefronts)


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 1), (2, 2), (3, 1.5), (9, 3), (17, 5), (32, 32), (33, 8.75)])
def test_l1_reads_banks_and_four_lines_per_cycle(stride: int, wavefronts: float) -> None:
    result = access(counted(f"y[threadIdx.x] = x[{stride} * threadIdx.x];", Shape((1, 1, 1), 32, 0)), "global")
    assert result.wavefronts == wavefronts
