"""Tests of bulk reductions by several blocks in turn: findings for blocks that do not wait for their own copies."""

import numpy as np
import pytest

from tests.backends.emulator.emulated import CHECKED, snippet
from tuner.backends.emulator import Buffer, Mode

IN_TURN = """
#include "atomic.cuh"
#include "bulk_reduce.cuh"
#include "fence.cuh"
extern "C" __global__ void add_in_turn(float* sum, int* turn) {
  DYNAMIC_SHARED(smem);
  int const own = blockIdx.x;
  reinterpret_cast<float*>(smem)[threadIdx.x] = own + 1;
  fence_proxy_async();
  __syncwarp();
  if (threadIdx.x != 0) return;
  while (load_acquire(turn) != own) backoff();
  fence_proxy_async_global();
  cp_async_bulk_add(sum, shared_address(smem), 128);
  cp_async_bulk_commit();
  cp_async_bulk_wait<0>();
  store_release(turn, own + 1);
}
"""
DONE, TURN = "  cp_async_bulk_wait<0>();\n", "  store_release(turn, own + 1);\n"
BUGS = {
    "nobody_waits_for_the_block_before": ("while (load_acquire(turn) != own) backoff();", "", "race"),
    "the_turn_is_taken_without_acquire": ("load_acquire(turn)", "load_relaxed(turn)", "race"),
    "the_turn_is_given_before_the_sums_are_there": (DONE + TURN, TURN + DONE, "race"),
    "the_turn_is_given_when_the_part_is_read": ("cp_async_bulk_wait<0>", "cp_async_bulk_wait_read<0>", "race"),
    "what_threads_wrote_is_not_fenced": ("  fence_proxy_async();\n", "", "proxy_fence"),
    "a_sum_of_no_bytes": ("shared_address(smem), 128)", "shared_address(smem), 0)", "misaligned"),
    "the_acquire_is_not_fenced": ("  fence_proxy_async_global();\n", "", "proxy_fence"),
}


def sums(old: str, new: str, mode: Mode) -> tuple[list[float], set[str]]:
    """Return the sum of 5 blocks that add 1 to 5, and the kinds of findings."""
    assert old in IN_TURN
    kernel = snippet(IN_TURN.replace(old, new), "add_in_turn", checked=True)
    with (
        Buffer.of("sum", np.zeros(32, np.float32), writable=True) as sum,
        Buffer.of("turn", np.zeros(1, np.int32), writable=True) as turn,
    ):
        run = kernel.launch("add_in_turn", (5, 1, 1), 32, 128, [sum, turn], mode)
        return sum.view(np.float32, (32,)).tolist(), {finding.kind for finding in run.findings}


@pytest.mark.parametrize("mode", CHECKED, ids=str)
def test_blocks_that_take_turns_have_no_finding(mode: Mode) -> None:
    assert sums("", "", mode) == ([15.0] * 32, set())


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_taking_turns_is_named(bug: str) -> None:
    old, new, kind = BUGS[bug]
    assert kind in sums(old, new, CHECKED[0])[1]


READ_BACK = """
#include "bulk.cuh"
#include "bulk_reduce.cuh"
#include "fence.cuh"
#include "mbarrier.cuh"
extern "C" __global__ void read_back(int* x, int* y) {
  DYNAMIC_SHARED(smem);
  int* const s = reinterpret_cast<int*>(smem);
  uint32_t const there = shared_address(smem) + 128, barrier = there + 128;
  s[threadIdx.x] = threadIdx.x;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  fence_proxy_async();
  __syncwarp();
  // write
  __syncwarp();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 128);
    cp_async_bulk(there, x, 128, barrier);
  }
  mbarrier_wait(barrier, 0);
  y[threadIdx.x] = s[32 + threadIdx.x];
}
"""
BY_THREADS = "x[threadIdx.x] = threadIdx.x; fence_proxy_async();"
BY_ENGINE = """if (threadIdx.x == 0) {
    cp_async_bulk_store(x, there - 128, 128);
    cp_async_bulk_commit();
    cp_async_bulk_wait<0>();
  }"""


@pytest.mark.parametrize(("write", "found"), [(BY_THREADS, {"proxy_fence"}), (BY_ENGINE, set())])
def test_the_engine_reads_what_it_wrote_itself_and_not_what_threads_wrote(write: str, found: set[str]) -> None:
    """No primitive orders stores of threads to global memory before reads of the copy engine in the same launch."""
    kernel = snippet(READ_BACK.replace("// write", write), "read_back", checked=True)
    with (
        Buffer("x", 128, writable=True, initialized=False) as x,
        Buffer("y", 128, writable=True, initialized=False) as y,
    ):
        run = kernel.launch("read_back", (1, 1, 1), 32, 264, [x, y], CHECKED[0])
        assert {finding.kind for finding in run.findings} == found
        assert y.view(np.int32, (32,)).tolist() == list(range(32))
