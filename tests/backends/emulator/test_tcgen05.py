"""Tests of tensor memory and tcgen05: misuse, ordering, and completion times."""

import numpy as np
import pytest

from tests.backends.emulator.emulated import CHECKED, PLAIN, kinds, snippet
from tuner.backends.emulator import Buffer, Kernel, Mode, Run

MODES = (*PLAIN, *CHECKED)
START = """
#include "fence.cuh"
#include "mbarrier.cuh"
#include "tcgen05.cuh"
extern "C" __global__ void body(float* y) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_a = shared_address(smem), place = s_a + 8192, barrier = place + 8, other = barrier + 8;
  int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float r[4] = {1.0f, 2.0f, 3.0f, 4.0f};
"""
# 64 columns, zeros in shared memory, barriers; `own`: the warp's lanes.
ALLOCATED = """
  for (int i = threadIdx.x; i < 2048; i += blockDim.x) reinterpret_cast<float*>(smem)[i] = 0.0f;
  fence_proxy_async();
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init(other, 1);
    fence_mbarrier_init();
  }
  if (warp == 0) tcgen05_alloc(place, 64);
  __syncthreads();
  uint32_t const tensor = *reinterpret_cast<uint32_t const*>(smem + 8192), own = tensor + (warp % 4 * 32 << 16);
  uint64_t const a = tcgen05_descriptor(s_a, 128, 256, Swizzle::kNone);
  constexpr uint32_t kProduct = tcgen05_instruction<bf16, 16>();
"""
FREED = """
  tcgen05_fence_before_thread_sync();
  __syncthreads();
  if (warp == 0) tcgen05_dealloc(tensor, 64);
"""
WAIT = "mbarrier_wait(barrier, 0); tcgen05_fence_after_thread_sync();"


def body(text: str, mode: Mode) -> Kernel:
    return snippet(f"{START}{text}}}", "body", checked=mode.checked)


def run(text: str, mode: Mode, threads: int = 128) -> tuple[np.ndarray, Run]:
    """(y [128], what happened)."""
    with Buffer.of("y", np.zeros(128, np.float32), writable=True) as y:
        happened = body(text, mode).launch("body", (1, 1, 1), threads, 16384, [y], mode)
        return y.view(np.float32, (128,)).copy(), happened


def kinds_between(text: str, mode: Mode, threads: int = 128) -> set[str]:
    return kinds(run(ALLOCATED + text + FREED, mode, threads)[1])


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("if (warp == 0) tcgen05_alloc(place, 48);", "48 columns: 32, 64, 128, 256 and 512 are possible"),
        ("if (warp == 0) tcgen05_alloc(place, 512), tcgen05_alloc(place, 32);", "that this block itself holds"),
        ("if (warp == 0) tcgen05_alloc(place, 32), tcgen05_alloc(place, 64);", "allocations may not grow"),
        ("if (warp == 0) tcgen05_alloc(place, lane < 9 ? 32 : 64);", "give different arguments"),
        ("tcgen05_ld_32x32b(r, 0); tcgen05_wait_ld();", "columns 0 to 3 of tensor memory are not allocated"),
        ("if (warp == 0) tcgen05_alloc(place, 32);", "exits with 32 columns of tensor memory allocated"),
        (
            "if (warp == 0) tcgen05_relinquish_alloc_permit(), tcgen05_alloc(place, 32);",
            "behind tcgen05_relinquish_alloc_permit",
        ),
    ],
)
def test_columns_that_are_not_there_are_named(text: str, reason: str, mode: Mode) -> None:
    findings = [str(finding) for finding in run(text, mode)[1].findings]
    assert any("tcgen05" in finding and reason in finding for finding in findings), findings


@pytest.mark.sampled(24)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tcgen05_ld_32x32b(r, tensor + 61);", "not allocated"),
        ("tcgen05_st_32x32b(tensor, r);", "tcgen05_st at lane 0 of tensor memory"),
        ("tcgen05_st_32x32b(own + lane, r);", "give different addresses"),
        ("if (warp == 0) tcgen05_dealloc(tensor + 32, 32);", "were not allocated so"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor + 56, a, a, kProduct, false);", "not allocated"),
        ("if (threadIdx.x == 0) tcgen05_mma(own + (32 << 16), a, a, kProduct, false);", "D does not begin in lane 0"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, tensor + 12, a, kProduct, false);", "A lies within its D"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, tensor + 60, a, kProduct, false);", "not allocated"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, a, a, kProduct ^ 1 << 4, false);", "accumulators are not fp32"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, a, a, kProduct ^ 1 << 7, false);", "not both fp16 or bf16"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, a, a, kProduct ^ 1 << 13, false);", "negation"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, a, a, kProduct ^ 1 << 17, false);", "N is not 16"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, a, a, kProduct ^ 12 << 24, false);", "M is not 128"),
        (
            "if (threadIdx.x == 0) tcgen05_mma(tensor, tensor + 32, a, kProduct | 1 << 15, false);",
            "A in tensor memory and not K-major",
        ),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, a ^ uint64_t(1) << 46, a, kProduct, false);", "bits 46 to 48"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, a, a | 1ull << 49, kProduct, false);", "base offset"),
        ("if (threadIdx.x == 0) tcgen05_mma(tensor, a, a | 1ull << 61, kProduct, false);", "not emulated"),
        (
            "if (threadIdx.x == 0) tcgen05_mma(tensor, a, tcgen05_advance(a, 64) | 6ull << 61, kProduct, false);",
            "starts within a pattern",
        ),
    ],
)
def test_misuse_is_named(text: str, reason: str, mode: Mode) -> None:
    findings = [str(finding) for finding in run(ALLOCATED + text + FREED, mode)[1].findings]
    assert any("tcgen05" in finding and reason in finding for finding in findings), findings


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_an_operand_beyond_shared_memory_is_out_of_bounds(mode: Mode) -> None:
    text = "if (threadIdx.x == 0) tcgen05_mma(tensor, tcgen05_advance(a, 16000), a, kProduct, false);"
    assert "out_of_bounds" in kinds_between(text, mode)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_commit_needs_a_barrier_that_is_initialised_and_fenced(mode: Mode) -> None:
    assert "mbarrier" in kinds_between("if (threadIdx.x == 0) tcgen05_commit(other + 8);", mode)
    unfenced = "if (threadIdx.x == 0) { mbarrier_init(other + 8, 1); tcgen05_commit(other + 8); }"
    assert "proxy_fence" in kinds_between(unfenced, mode)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_commit_without_products_arrives(mode: Mode) -> None:
    assert kinds_between("if (threadIdx.x == 0) tcgen05_commit(barrier); mbarrier_wait(barrier, 0);", mode) == set()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_product_that_nobody_waits_for_is_outstanding(mode: Mode) -> None:
    text = "if (threadIdx.x == 0) { tcgen05_mma(tensor, a, a, kProduct, false); tcgen05_commit(barrier); }"
    result = kinds_between(text, mode)
    if mode.checked:
        assert {"in_flight", "outstanding"} <= result  # freed while in flight
    else:
        assert result == ({"outstanding"} if mode.asynchronous == "late" else set())


STORE = "if (warp == 0) { tcgen05_st_32x32b(own, r); tcgen05_wait_st(); tcgen05_fence_before_thread_sync(); }"
LOAD = "tcgen05_ld_32x32b(r, own); tcgen05_wait_ld(); y[threadIdx.x % 128] = r[3];"
OTHER = f"tcgen05_fence_after_thread_sync(); if (warp == 4) {{ {LOAD} }}"
NO_WAIT, NO_FENCE = STORE.replace("tcgen05_wait_st();", ""), STORE.replace("tcgen05_fence_before_thread_sync();", "")


@pytest.mark.parametrize("mode", CHECKED, ids=str)
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{STORE} __syncthreads(); {OTHER}", set()),
        (f"{STORE} {OTHER}", {"race"}),
        (f"{NO_WAIT} __syncthreads(); {OTHER}", {"in_flight"}),
        (f"{NO_WAIT} __syncthreads(); if (warp == 0) tcgen05_wait_st(); {OTHER}", {"in_flight"}),
        (f"{NO_FENCE} __syncthreads(); {OTHER}", {"tcgen05"}),
        (f"{NO_FENCE} __syncthreads(); if (warp == 0) tcgen05_fence_before_thread_sync(); {OTHER}", {"tcgen05"}),
        (f"{STORE} __syncthreads(); if (warp == 4) {{ {LOAD} }}", {"tcgen05"}),
        (f"{STORE} tcgen05_fence_after_thread_sync(); __syncthreads(); if (warp == 4) {{ {LOAD} }}", {"tcgen05"}),
    ],
)
def test_what_orders_two_warps_on_the_same_lanes(text: str, found: set[str], mode: Mode) -> None:
    assert kinds_between(text, mode, 160) & {"race", "in_flight", "tcgen05"} == found


@pytest.mark.parametrize("mode", CHECKED, ids=str)
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"tcgen05_st_32x32b(own, r); tcgen05_wait_st(); {LOAD}", set()),
        (f"tcgen05_st_32x32b(own, r); {LOAD} tcgen05_wait_st();", {"in_flight"}),
        (f"tcgen05_st_32x32b(own, r); tcgen05_wait_st(); {LOAD} tcgen05_st_32x32b(own, r); tcgen05_wait_st();", set()),
        (
            "tcgen05_st_32x32b(own, r); tcgen05_wait_st(); tcgen05_ld_32x32b(r, own); tcgen05_st_32x32b(own, r);"
            "tcgen05_wait_ld(); tcgen05_wait_st();",
            {"in_flight"},
        ),
        (LOAD, {"uninitialized_read"}),
        ("tcgen05_st_32x32b(own + 1, r); tcgen05_wait_st();" + LOAD, {"uninitialized_read"}),
    ],
)
def test_a_warps_wait_alone_orders_what_it_does_to_its_lanes(text: str, found: set[str], mode: Mode) -> None:
    assert kinds_between(text, mode) == found


PRODUCT = "tcgen05_mma(tensor, a, a, kProduct, false);"
COMMITTED = f"{PRODUCT} tcgen05_commit(barrier);"


def by(thread: int, text: str) -> str:
    return f"if (threadIdx.x == {thread}) {{ tcgen05_fence_after_thread_sync(); {text} }}"


@pytest.mark.parametrize("mode", CHECKED, ids=str)
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{by(0, COMMITTED)} {WAIT} {LOAD}", set()),
        (f"{by(0, COMMITTED)} mbarrier_wait(barrier, 0); {LOAD}", {"tcgen05"}),
        (f"{by(0, COMMITTED)} __syncthreads(); tcgen05_fence_after_thread_sync(); {LOAD} {WAIT}", {"in_flight"}),
        (f"{by(0, COMMITTED + PRODUCT)} {WAIT} {LOAD}", {"in_flight", "outstanding"}),
        # one commit covers all products of its thread, which are ordered; those of two threads are not
        (f"{by(0, PRODUCT + COMMITTED)} {WAIT} {LOAD}", set()),
        (f"{by(32, PRODUCT)} __syncthreads(); {by(0, COMMITTED)} {WAIT} {LOAD}", {"in_flight", "outstanding"}),
        (f"{by(32, COMMITTED)} {WAIT} {by(0, COMMITTED.replace('barrier', 'other'))} mbarrier_wait(other, 0);", set()),
        # Shared memory is the product's until its commit has arrived.
        (f"{by(0, COMMITTED)} {WAIT} smem[threadIdx.x] = 0; {LOAD}", set()),
        (
            f"{by(0, PRODUCT)} __syncthreads(); smem[threadIdx.x] = 0; {by(0, 'tcgen05_commit(barrier);')} {WAIT}",
            {"race"},
        ),
        # a commit publishes what its thread had observed, not what it wrote
        (f"{by(0, 'y[5] = 1.0f;' + COMMITTED)} {WAIT} y[threadIdx.x] = 2.0f;", {"race"}),
    ],
)
def test_what_a_commit_orders(text: str, found: set[str], mode: Mode) -> None:
    happened = kinds_between(text, mode)
    assert found <= happened
    assert happened - found <= ({"in_flight"} if found else set())  # a product may be in flight when the error occurs


FILL = "tcgen05_st_32x32b(own + {0}, r); tcgen05_st_32x32b(own + {0} + 4, r);"
OPERAND = FILL.format(16) + "tcgen05_wait_st();"
SUMS = FILL.format(0) + FILL.format(8) + "tcgen05_wait_st();"
FENCE = "tcgen05_fence_before_thread_sync();"
FROM_TENSOR_MEMORY = "tcgen05_mma(tensor + 32, tensor + 16, a, kProduct, false); tcgen05_commit(barrier);"
ACCUMULATE = "tcgen05_mma(tensor, a, a, kProduct, true); tcgen05_commit(barrier);"


@pytest.mark.parametrize("mode", CHECKED, ids=str)
@pytest.mark.parametrize(("filled", "product"), [(OPERAND, FROM_TENSOR_MEMORY), (SUMS, ACCUMULATE)])
def test_what_threads_store_is_a_products_behind_wait_fence_barrier_and_fence(
    filled: str, product: str, mode: Mode
) -> None:
    def between(first: str, second: str = by(0, product)) -> set[str]:
        return kinds_between(f"{first} {second} {WAIT}", mode)

    assert between(f"{filled} {FENCE} __syncthreads();") == set()
    assert between(f"{filled} __syncthreads();") == {"tcgen05"}
    assert between(f"{filled} {FENCE} __syncthreads();", f"if (threadIdx.x == 0) {{ {product} }}") == {"tcgen05"}
    assert between(f"{filled.replace('tcgen05_wait_st();', '')} {FENCE} __syncthreads();") == {"in_flight"}
    assert "race" in between(f"{filled} {FENCE}")
    assert "uninitialized_read" in between("")


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_product_may_overwrite_the_operand_of_one_before_it(mode: Mode) -> None:
    both = FROM_TENSOR_MEMORY.replace(
        "tcgen05_commit", "tcgen05_mma(tensor + 16, a, a, kProduct, false); tcgen05_commit"
    )
    assert kinds_between(f"{OPERAND} {FENCE} __syncthreads(); {by(0, both)} {WAIT}", mode) == set()


@pytest.mark.parametrize(
    ("timing", "seen"), [("early", [1.0, 4.0]), ("late", [np.nan, 4.0])], ids=lambda value: str(value)
)
def test_registers_are_loaded_at_issue_or_at_the_wait(timing: str, seen: list[float]) -> None:
    text = """
      tcgen05_st_32x32b(own, r); tcgen05_wait_st();
      float back[4];
      tcgen05_ld_32x32b(back, own);
      float const before = back[0];
      tcgen05_wait_ld();
      if (threadIdx.x == 0) { y[0] = before; y[1] = back[3]; }"""
    y, _ = run(ALLOCATED + text + FREED, Mode(asynchronous=timing))  # type: ignore[arg-type]
    np.testing.assert_array_equal(y[:2], seen)


def test_what_is_counted() -> None:
    text = f"{by(0, PRODUCT + COMMITTED)} {WAIT} {LOAD}"
    counters = run(ALLOCATED + text + FREED, Mode())[1].counters
    assert (counters.tcgen05_m16n8k16, counters.mma, counters.tensor_columns) == (32, 32, 64)
    assert counters.tensor_bytes == 128 * 4 * 4


@pytest.mark.parametrize(("schedule", "lane", "first"), [("order", 0, 0), ("reverse", 31, 448)])
def test_no_kernel_may_know_which_lane_is_elected_or_which_column_comes_first(
    schedule: str, lane: int, first: int
) -> None:
    text = "if (warp == 0 && elect_one()) { y[0] = lane; y[1] = tensor; }"
    y, _ = run(ALLOCATED + text + FREED, Mode(schedule=schedule))  # type: ignore[arg-type]
    assert (y[0], y[1]) == (lane, first)
