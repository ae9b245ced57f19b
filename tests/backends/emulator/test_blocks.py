"""Tests of blocks that wait for each other, and of the order that atomics and fences establish."""

import time

import numpy as np
import pytest

from tests.backends.emulator.emulated import CHECKED, PLAIN, snippet
from tests.support.patience import GENEROUS_S
from tuner.backends.emulator import Buffer, Mode, Run

CHAIN = """
#include "atomic.cuh"
extern "C" __global__ void chain(int* y, uint32_t* ready, uint32_t* ticket) {
  if (threadIdx.x == 0) {
    int const b = %(number)s;
    if (b > 0) while (%(load)s(ready + b - 1) == 0) backoff();
    y[b] = b > 0 ? y[b - 1] + b : 0;
    %(store)s(ready + b, 1u);
  }
}
"""


NAMES = {"number": "atomic_add_relaxed(ticket, 1)", "load": "load_acquire", "store": "store_release"}


def chain(mode: Mode, old: str = "", new: str = "", blocks: int = 20, **names: str) -> tuple[list[int], Run]:
    kernel = snippet((CHAIN % {**NAMES, **names}).replace(old, new), "chain", checked=mode.checked)
    with (
        Buffer("y", 4 * blocks, writable=True, initialized=False) as y,
        Buffer.of("ready", np.zeros(blocks, np.uint32), writable=True) as ready,
        Buffer.of("ticket", np.zeros(1, np.uint32), writable=True) as ticket,
    ):
        run = kernel.launch("chain", (blocks, 1, 1), 64, 0, [y, ready, ticket], mode)
        return y.view(np.int32, (blocks,)).tolist(), run


@pytest.mark.parametrize("mode", [*PLAIN, *CHECKED], ids=str)
def test_blocks_wait_for_each_other_in_any_order(mode: Mode) -> None:
    sums, run = chain(mode)
    assert run.findings == ()
    assert sums == np.cumsum(range(20)).tolist()


@pytest.mark.parametrize(("load", "store"), [("load_relaxed", "store_release"), ("load_acquire", "store_relaxed")])
def test_a_flag_without_acquire_and_release_orders_nothing(load: str, store: str) -> None:
    _, run = chain(CHECKED[0], load=load, store=store)
    assert {finding.kind for finding in run.findings} == {"race"}


def test_blocks_that_count_on_an_order_in_which_blocks_start_are_a_livelock() -> None:
    """A GPU may have room for one block, and promises no order."""
    sums, run = chain(Mode(), number="blockIdx.x")
    assert (run.findings, sums[19]) == ((), 190)
    _, run = chain(Mode(schedule="reverse"), number="blockIdx.x")
    (finding,) = run.findings
    assert (finding.kind, "cannot start" in finding.message) == ("livelock", True)


def test_a_loop_that_polls_without_backoff_lets_others_run() -> None:
    for seed in range(4):
        sums, run = chain(Mode(schedule="random", seed=seed), "backoff();", "continue;", number="blockIdx.x")
        assert (run.findings, sums[19]) == ((), 190)


def test_what_one_thread_released_reaches_another_of_its_block_through_another_block() -> None:
    text = """
#include "atomic.cuh"
extern "C" __global__ void around(int* y, uint32_t* step) {
  if (blockIdx.x == 0 && threadIdx.x == 0) { y[0] = 1; store_release(step, 1u); }
  if (blockIdx.x == 1 && threadIdx.x == 0) { while (load_acquire(step) == 0) backoff(); store_release(step + 1, 1u); }
  if (blockIdx.x == 0 && threadIdx.x == 32) { while (load_acquire(step + 1) == 0) backoff(); y[1] = y[0]; }
}
"""
    with (
        Buffer("y", 8, writable=True, initialized=False) as y,
        Buffer.of("step", np.zeros(2, np.uint32), writable=True) as step,
    ):
        run = snippet(text, "around", checked=True).launch("around", (2, 1, 1), 64, 0, [y, step], CHECKED[0])
        assert (run.findings, y.view(np.int32, (2,)).tolist()) == ((), [1, 1])


def test_polling_for_what_nobody_stores_is_a_livelock() -> None:
    text = """
#include "atomic.cuh"
extern "C" __global__ void forever(uint32_t* flag) { while (load_acquire(flag) == 0) backoff(); }
"""
    with Buffer.of("flag", np.zeros(1, np.uint32), writable=True) as flag:
        run = snippet(text, "forever").launch("forever", (2, 1, 1), 32, 0, [flag], Mode())
    assert [finding.kind for finding in run.findings] == ["livelock"]


def test_more_blocks_than_can_be_resident_waiting_for_a_later_one_are_a_livelock() -> None:
    text = """
#include "atomic.cuh"
extern "C" __global__ void backwards(uint32_t* ready) {
  if (blockIdx.x + 1 < gridDim.x) while (load_acquire(ready + blockIdx.x + 1) == 0) backoff();
  if (threadIdx.x == 0) store_release(ready + blockIdx.x, 1u);
}
"""
    with Buffer.of("ready", np.zeros(40, np.uint32), writable=True) as ready:
        run = snippet(text, "backwards").launch("backwards", (40, 1, 1), 1024, 0, [ready], Mode())
    (finding,) = run.findings
    assert (finding.kind, "cannot start" in finding.message) == ("livelock", True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    "loop", ["while (true) {}", "while (*(volatile int*)x == 0) {}", "for (;;) __syncwarp();", "for (;;) x[1]++;"]
)
def test_a_loop_that_never_ends_is_ended_at_its_line_and_the_next_launch_runs(loop: str, *, checked: bool) -> None:
    text = f"""
extern "C" __global__ void endless(int* x) {{
  if (x[2]) {loop}
  x[0] = 1;
}}
"""
    mode, kernel = Mode(checked), snippet(text, "endless", checked=checked)
    for spins, most_seconds in ((1, 0.2), (0, GENEROUS_S)):
        with Buffer.of("x", np.array([0, 0, spins], np.int32), writable=True) as x:
            run = kernel.launch("endless", (1, 1, 1), 1, 0, [x], mode, most_seconds=most_seconds)
            if spins:
                (finding,) = run.findings
                assert (finding.kind, finding.location, finding.thread) == ("endless", "endless.cu:4", 0)
            else:
                assert (run.findings, x.view(np.int32, (3,))[0]) == ((), 1)


def test_what_a_process_computed_before_a_launch_is_not_charged_to_it() -> None:
    kernel = snippet('extern "C" __global__ void once(int* y) { y[0] = 1; }', "once")
    started = time.thread_time()
    while time.thread_time() < started + 0.4:
        pass
    with Buffer("y", 4, writable=True, initialized=False) as y:
        assert not kernel.launch("once", (1, 1, 1), 1, 0, [y], Mode(), most_seconds=0.3).findings


def test_a_deadlock_says_who_waits_where() -> None:
    text = """
extern "C" __global__ void apart() {
  if (threadIdx.x < 32) named_barrier_sync(1, 64);
  else named_barrier_sync(2, 64);
}
"""
    (finding,) = snippet(text, "apart").launch("apart", (1, 1, 1), 64, 0, [], Mode()).findings
    assert finding.kind == "deadlock"
    assert "32 at a named barrier (line 4); 32 at a named barrier (line 5)" in finding.message


def test_blocks_that_write_the_same_place_race_even_when_they_run_one_after_another() -> None:
    text = 'extern "C" __global__ void same(int* y) { if (threadIdx.x == 0) y[0] = 1; }'
    with Buffer("y", 4, writable=True, initialized=False) as y:
        run = snippet(text, "same", checked=True).launch("same", (2, 1, 1), 32, 0, [y], Mode(checked=True))
    assert [finding.kind for finding in run.findings] == ["race"]


def test_threads_of_a_block_race_in_global_memory_without_a_barrier() -> None:
    text = """
extern "C" __global__ void turn(int* y, int* z) {
  y[threadIdx.x] = threadIdx.x;
  %s
  z[threadIdx.x] = y[63 - threadIdx.x];
}
"""
    results = []
    for barrier in ("", "__syncthreads();"):
        kernel = snippet(text % barrier, "turn", checked=True)
        with (
            Buffer("y", 256, writable=True, initialized=False) as y,
            Buffer("z", 256, writable=True, initialized=False) as z,
        ):
            run = kernel.launch("turn", (1, 1, 1), 64, 0, [y, z], CHECKED[0])
            results.append("race" in {finding.kind for finding in run.findings})
    assert results == [True, False]


def histogram(init: str) -> set[str]:
    text = f"""
extern "C" __global__ void count(int* y) {{
  DYNAMIC_SHARED(smem);
  int* const bins = reinterpret_cast<int*>(smem);
  {init}
  atomicAdd(bins + threadIdx.x % 4, 1);
  __syncthreads();
  if (threadIdx.x < 4) y[threadIdx.x] = bins[threadIdx.x];
}}
"""
    with Buffer("y", 16, writable=True, initialized=False) as y:
        run = snippet(text, "count", checked=True).launch("count", (1, 1, 1), 64, 16, [y], CHECKED[0])
    return {finding.kind for finding in run.findings}


def test_atomics_on_shared_memory_need_no_order_among_each_other() -> None:
    assert histogram("if (threadIdx.x < 4) bins[threadIdx.x] = 0; __syncthreads();") == set()


def test_an_atomic_on_shared_memory_that_nobody_set_is_found() -> None:
    assert histogram("") == {"uninitialized_read"}


def test_an_atomic_races_with_a_plain_store() -> None:
    assert histogram("if (threadIdx.x < 4) bins[threadIdx.x] = 0;") == {"race", "uninitialized_read"}


def test_a_counter_in_a_workspace_that_nobody_zeroed_is_found() -> None:
    text = 'extern "C" __global__ void draw(uint32_t* ticket) { if (threadIdx.x == 0) atomicAdd(ticket, 1u); }'
    with Buffer("ticket", 4, writable=True, initialized=False) as ticket:
        run = snippet(text, "draw", checked=True).launch("draw", (1, 1, 1), 32, 0, [ticket], CHECKED[0])
    assert {finding.kind for finding in run.findings} == {"uninitialized_read"}


def test_under_a_random_schedule_a_block_pauses_between_two_things_that_others_see() -> None:
    text = """
#include "atomic.cuh"
extern "C" __global__ void between(uint32_t* tickets, int* y) {
  if (threadIdx.x) return;
  uint32_t const first = atomic_add_relaxed(tickets, 1);
  y[blockIdx.x] = int(atomic_add_relaxed(tickets + 1, 1)) - int(first);
}
"""
    overtaken = []
    for mode in (Mode(), *(Mode(schedule="random", seed=seed) for seed in range(3))):
        with (
            Buffer.of("tickets", np.zeros(2, np.uint32), writable=True) as tickets,
            Buffer("y", 80, writable=True, initialized=False) as y,
        ):
            run = snippet(text, "between").launch("between", (20, 1, 1), 32, 0, [tickets, y], mode)
            assert (run.findings, tickets.view(np.uint32, (2,)).tolist()) == ((), [20, 20])
            overtaken.append(bool(y.view(np.int32, (20,)).any()))
    assert overtaken == [False, True, True, True]
