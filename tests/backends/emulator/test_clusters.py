"""Tests of clusters: launch requirements, the order that cluster barriers establish, and access to other blocks."""

import numpy as np
import pytest

from tests.backends.emulator.emulated import CHECKED, KERNELS, PLAIN, kinds, snippet
from tests.support.claims import compiled
from tuner.backends.emulator import Buffer, Mode, Run
from tuner.compiler.render import headers
from tuner.compiler.source import Source

MODES = (*PLAIN, *CHECKED)
EMPTY = 'extern "C" __global__ __cluster_dims__(2, 1, 1) void empty() {}'
START = """
#include "bulk.cuh"
#include "cluster.cuh"
#include "fence.cuh"
#include "mbarrier.cuh"
extern "C" __global__ __cluster_dims__(2, 1, 1) void body(int const* x, int* y) {
  DYNAMIC_SHARED(smem);
  uint32_t const s_x = shared_address(smem), barrier = s_x + 128;
  int const rank = cluster_rank(), lane = threadIdx.x;
"""
INIT = """
  if (lane == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  cluster_sync();
"""


def run_body(text: str, mode: Mode, threads: int = 32) -> tuple[np.ndarray, Run]:
    """(y [64], what happened) of a kernel on a cluster of two, with x [64] = 0, 1, 2, ..."""
    kernel = snippet(f"{START}{text}}}", "body", checked=mode.checked)
    with (
        Buffer.of("x", np.arange(64, dtype=np.int32)) as x,
        Buffer.of("y", np.zeros(64, np.int32), writable=True) as y,
    ):
        run = kernel.launch("body", (2, 1, 1), threads, 256, [x, y], mode, cluster=2)
        return y.view(np.int32, (64,)).copy(), run


def kinds_of(text: str, mode: Mode, threads: int = 32) -> set[str]:
    return kinds(run_body(text, mode, threads=threads)[1])


@pytest.mark.parametrize(
    ("text", "blocks", "cluster", "reason"),
    [
        (EMPTY, 3, 2, "3 is not a multiple of 2"),
        (EMPTY, 16, 16, "the limits are 1 and 8"),
        (EMPTY.replace("__cluster_dims__(2, 1, 1)", ""), 2, 2, "empty has no __cluster_dims__(2, 1, 1)"),
    ],
)
def test_a_launch_in_clusters_that_no_gpu_accepts_is_a_finding(
    text: str, blocks: int, cluster: int, reason: str
) -> None:
    (finding,) = snippet(text, "empty").launch("empty", (blocks, 1, 1), 32, 0, [], Mode(), cluster=cluster).findings
    assert finding.kind == "launch"
    assert reason in finding.message


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_blocks_wrote_before_the_clusters_barrier_is_seen_behind_it(mode: Mode) -> None:
    publish = "y[blockIdx.x * 32 + lane] = blockIdx.x; cluster_arrive(); cluster_wait();"
    y, run = run_body(f"{publish} y[64 - 32 * (blockIdx.x + 1) + lane] += 10;", mode)
    assert run.findings == ()
    assert y.reshape(2, 32).tolist() == [[10] * 32, [11] * 32]


@pytest.mark.parametrize("mode", CHECKED, ids=str)
def test_an_arrival_alone_orders_nothing(mode: Mode) -> None:
    text = "y[rank] = 1; cluster_arrive(); int const other = y[1 - rank]; cluster_wait(); y[2 + rank] = other;"
    assert kinds_of(text, mode, threads=1) == {"race"}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_threads_that_have_exited_are_not_waited_for(mode: Mode) -> None:
    assert kinds_of("if (threadIdx.x >= 32 && rank == 1) return; cluster_sync();", mode, threads=64) == set()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("cluster_arrive(); cluster_arrive();", "cluster"),
        ("cluster_wait();", "cluster"),
        ("cluster_arrive();", "cluster"),
        ("if (lane < 16) cluster_sync(); __syncwarp();", "warp_divergence"),
        ("if (rank == 0) cluster_sync(); else named_barrier_sync(1, 64);", "deadlock"),
    ],
)
def test_a_misused_barrier_of_the_cluster_is_named(text: str, kind: str) -> None:
    for mode in (*CHECKED, Mode(True, "reverse")):
        assert kind in kinds_of(text, mode), mode


def test_a_deadlock_tells_who_waits_in_every_block_of_the_cluster() -> None:
    _, run = run_body("if (rank == 0) cluster_sync(); else named_barrier_sync(1, 64);", Mode())
    (finding,) = run.findings
    assert "block 0 of the cluster; 32 at cluster_wait" in finding.message
    assert "block 1 of the cluster; 32 at a named barrier" in finding.message


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_blocks_take_turns_by_arriving_on_each_others_barriers(mode: Mode) -> None:
    turns = """
      for (int i = rank; i < 8 && lane == 0; i += 2) {
        if (i > 0) mbarrier_wait(barrier, (i - 1) / 2 % 2);
        y[i] = i;
        mbarrier_arrive_cluster(map_shared_rank(barrier, 1 - rank));
      }
      __syncwarp();
      cluster_sync();
    """
    y, run = run_body(INIT + turns, mode)
    assert (run.findings, y[:8].tolist()) == ((), list(range(8)))


@pytest.mark.parametrize("mode", CHECKED, ids=str)
def test_an_arrival_in_another_block_publishes_no_writes(mode: Mode) -> None:
    text = """
      if (lane == 0 && rank == 0) { y[0] = 1; mbarrier_arrive_cluster(map_shared_rank(barrier, 1)); }
      if (lane == 0 && rank == 1) { mbarrier_wait(barrier, 0); y[1] = y[0]; }
    """
    assert kinds_of(INIT + text + "__syncwarp(); cluster_sync();", mode) == {"race"}


ARRIVE = """
#include "cluster.cuh"
#include "mbarrier.cuh"
extern "C" __global__ __cluster_dims__(2, 1, 1) void arrive(uint32_t barrier) {
  CALL;
}
"""
UNFENCED = "mbarrier_arrive_cluster(map_shared_rank(barrier, 1 - cluster_rank()))"
RELEASED = 'asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory")'


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_an_arrival_in_another_block_costs_no_fence_as_one_that_publishes_does(arch: str) -> None:
    fenced = []
    for call in (UNFENCED, RELEASED):
        text = ARRIVE.replace("CALL", call)
        cubin = compiled(Source(("arrive",), text, headers(text, KERNELS, "cuda"), "cuda"), arch)
        fenced.append("MEMBAR" in cubin.mnemonics("arrive"))
    assert fenced == [False, True]


@pytest.mark.parametrize("mode", CHECKED, ids=str)
def test_an_arrival_in_another_block_hands_over_what_was_read(mode: Mode) -> None:
    text = """
      if (lane == 0 && rank == 0) { y[1] = y[0]; mbarrier_arrive_cluster(map_shared_rank(barrier, 1)); }
      if (lane == 0 && rank == 1) { mbarrier_wait(barrier, 0); y[0] = 1; }
    """
    assert kinds_of(INIT + text + "__syncwarp(); cluster_sync();", mode) == set()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("map_shared_rank(barrier, 2);", "cluster"),
        ("mbarrier_arrive_cluster(barrier);", "cluster"),
        ("mbarrier_arrive(map_shared_rank(barrier, 1));", "out_of_bounds"),
        ("mbarrier_arrive_cluster(map_shared_rank(barrier + 8, 1));", "mbarrier"),
        ("if (rank == 0) { mbarrier_inval(barrier); return; }"
         "mbarrier_arrive_cluster(map_shared_rank(barrier, 0));", "cluster_exit"),
        ("if (rank == 0) mbarrier_arrive_cluster(map_shared_rank(barrier, 1));", "cluster_exit"),
    ],
)  # fmt: skip
def test_a_wrong_arrival_in_another_block_is_named(text: str, kind: str) -> None:
    for mode in CHECKED:
        assert kind in kinds_of(f"{INIT} if (lane == 0) {{ {text} }}", mode), mode


COPIES = "if (lane == 0 && rank == 0) cp_async_bulk_multicast(s_x, x, 64, barrier, {blocks});"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (COPIES.format(blocks=0), "cluster"),
        (COPIES.format(blocks=4), "cluster"),
        ("if (rank == 1) return; __nanosleep(1); cluster_arrive(); cluster_wait();" + COPIES.format(blocks=2),
         "cluster_exit"),
        ("if (lane == 0) mbarrier_arrive_expect_tx(barrier, 64);" + COPIES.format(blocks=3) + "cluster_sync();",
         "outstanding"),
    ],
)  # fmt: skip
def test_a_wrong_copy_to_the_cluster_is_named(text: str, kind: str) -> None:
    for mode in (*CHECKED, Mode(True)):
        assert kind in kinds_of(INIT + text, mode), mode


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_bytes_may_arrive_before_they_are_expected(mode: Mode) -> None:
    late = """
      if (lane == 0 && rank == 1) {
        while (atomicAdd(&y[32], 0) == 0) continue;  // the copy has been issued
        mbarrier_arrive_expect_tx(barrier, 64);
        mbarrier_wait(barrier, 0);
        for (int i = 0; i < 16; i++) y[i] = reinterpret_cast<int*>(smem)[i];
      }
      if (lane == 0 && rank == 0) atomicAdd(&y[32], 1);
      __syncwarp();
      cluster_sync();
    """
    y, run = run_body(INIT + COPIES.format(blocks=2) + late, mode)
    assert (run.findings, y[:16].tolist()) == ((), list(range(16)))


STORES = """
  if (lane == 0 && rank == 0)
    for (int i = 0; i < 2; i++) {
      if (i > 0 && %s) mbarrier_wait(barrier, 0);  // the first number has been read
      store_async(map_shared_rank(s_x, 1), 5 + i, map_shared_rank(barrier, 1));
    }
  if (lane == 0 && rank == 1)
    for (int i = 0; i < 2; i++) {
      mbarrier_arrive_expect_tx(barrier, 4);
      mbarrier_wait(barrier, i);
      y[i] = *reinterpret_cast<int*>(smem);
      if (i == 0) mbarrier_arrive_cluster(map_shared_rank(barrier, 0));
    }
  __syncwarp();
  cluster_sync();
"""


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_number_stored_in_another_block_is_read_behind_its_barrier(mode: Mode) -> None:
    y, run = run_body(INIT + STORES % "true", mode)
    assert (run.findings, y[:2].tolist()) == ((), [5, 6])


@pytest.mark.parametrize("mode", CHECKED, ids=str)
def test_a_number_stored_where_the_last_one_may_not_have_been_read_is_found(mode: Mode) -> None:
    assert kinds_of(INIT + STORES % "false", mode) & {"race", "in_flight"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("if (lane == 0) store_async(map_shared_rank(s_x, 1), 5u, map_shared_rank(barrier, 0));", "cluster"),
        ("if (lane == 0) store_async(s_x, 5u, map_shared_rank(barrier, 0));", "cluster"),
        ("if (lane == 0) store_async(map_shared_rank(s_x + 2, 1), 5u, map_shared_rank(barrier, 1));", "misaligned"),
        ("if (lane == 0) store_async(map_shared_rank(s_x, 1), 5u, map_shared_rank(barrier, 1)); cluster_sync();",
         "outstanding"),
    ],
)  # fmt: skip
def test_a_wrong_store_in_another_block_is_named(text: str, kind: str) -> None:
    for mode in CHECKED:
        assert kind in kinds_of(INIT + text, mode), mode


GIVEN = """
  if (lane == 0 && rank == 0) {
    *reinterpret_cast<uint4*>(smem) = make_uint4(1, 2, 3, 4);
    fence_proxy_async();
    cp_async_bulk_to_block(map_shared_rank(s_x, 1), s_x, 16, map_shared_rank(barrier, 1));
    %s
  }
  if (lane == 0 && rank == 1) {
    mbarrier_arrive_expect_tx(barrier, 16);
    mbarrier_wait(barrier, 0);
    y[0] = reinterpret_cast<int*>(smem)[3];
  }
  __syncwarp();
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (GIVEN % "", "cluster_exit"),
        ("if (lane == 0) cp_async_bulk_to_block(map_shared_rank(s_x, 1), s_x + 8, 16, map_shared_rank(barrier, 1));",
         "misaligned"),
    ],
)  # fmt: skip
def test_a_wrong_copy_to_another_block_is_named(text: str, kind: str) -> None:
    for mode in CHECKED:
        assert kind in kinds_of(INIT + text, mode), mode


@pytest.mark.parametrize(("lands", "kind"), [("early", "race"), ("late", "in_flight")])
def test_what_is_copied_may_be_written_again_only_by_who_knows_that_it_has_landed(lands: str, kind: str) -> None:
    text = INIT + GIVEN % "*reinterpret_cast<int*>(smem) = 5;" + "cluster_sync();"
    assert kind in kinds_of(text, Mode(True, "order", lands))


def test_a_copy_to_another_block_counts_none_of_the_bytes_of_the_l2() -> None:
    counters = run_body(INIT + GIVEN % "" + "cluster_sync();", Mode())[1].counters
    assert (counters.bulk_bytes, counters.cluster_bytes) == (0, 16)


def test_a_multicast_counts_the_bytes_that_leave_the_l2_once() -> None:
    waits = "if (lane == 0) { mbarrier_arrive_expect_tx(barrier, 64); mbarrier_wait(barrier, 0); } __syncwarp();"
    run = run_body(f"{INIT}{COPIES.format(blocks=3)}{waits}cluster_sync();", Mode())[1]
    assert (run.findings, run.counters.bulk_bytes) == ((), 64)
