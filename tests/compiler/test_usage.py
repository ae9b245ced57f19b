"""Tests of a kernel's resources from the compiler's log, and of the CTAs that fit an SM."""

from dataclasses import replace

import pytest

from tuner.arch import ARCHES
from tuner.compiler.usage import Occupancy, Usage, occupancy, parse_log
from tuner.spec.plan import Launch

LOG = """ptxas info    : 32 bytes gmem, 64 bytes cmem[3]
ptxas info    : Compiling entry function 'scan' for 'sm_80'
ptxas info    : Function properties for scan
ptxas         .     120 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 26 registers, used 3 barriers, 184 bytes cumulative stack size, 512 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 6.153 ms
ptxas info    : Function properties for _Z6calleei
ptxas         .     64 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'prep' for 'sm_80'
ptxas info    : Function properties for prep
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, 364 bytes cmem[0]
"""


def test_each_kernel_of_a_log_has_its_own_usage() -> None:
    assert list(parse_log(LOG)) == ["scan", "prep"]
    assert parse_log(LOG)["prep"] == Usage(registers=255)


def test_stack_and_spills_of_called_functions_belong_to_the_kernel() -> None:
    expected = Usage(registers=26, spill_stores=12, spill_loads=16, stack=184, static_shared=512, barriers=3)
    assert parse_log(LOG)["scan"] == expected
    assert expected.spills == 28


def test_a_log_without_kernels_tells_of_none() -> None:
    assert parse_log("ptxas info    : 0 bytes gmem\n") == {}


@pytest.mark.parametrize(
    ("registers", "threads", "smem_bytes", "arch", "expected"),
    [
        (64, 256, 0, "sm_80", Occupancy(4, "registers")),
        (168, 128, 0, "sm_90a", Occupancy(3, "registers")),
        (169, 128, 0, "sm_90a", Occupancy(2, "registers")),  # a warp takes registers in units of eight a thread
        (255, 256, 0, "sm_90a", Occupancy(1, "registers")),
        (32, 256, 0, "sm_86", Occupancy(6, "threads")),
        (24, 40, 0, "sm_80", Occupancy(32, "threads")),  # 40 threads are two warps
        (32, 32, 0, "sm_86", Occupancy(16, "CTA slots")),
        (32, 128, 48 * 1024, "sm_86", Occupancy(2, "shared memory")),
        (32, 128, 49 * 1024, "sm_86", Occupancy(2, "shared memory")),  # 2 × (49 + 1) KB is all there is
        (32, 128, 49 * 1024 + 1, "sm_86", Occupancy(1, "shared memory")),
        (32, 128, 227 * 1024, "sm_90a", Occupancy(1, "shared memory")),
    ],
)
def test_the_scarcest_resource_limits_the_ctas(
    registers: int, threads: int, smem_bytes: int, arch: str, expected: Occupancy
) -> None:
    launch = Launch("k", (1, 1, 1), threads, smem_bytes)
    assert occupancy(Usage(registers), launch, ARCHES[arch]) == expected


@pytest.mark.parametrize(
    ("usage", "threads", "smem_bytes", "limiter"),
    [
        (Usage(168), 512, 0, "registers"),
        (Usage(255), 288, 0, "registers"),
        (Usage(32), 128, 227 * 1024 + 1, "shared memory"),
        (Usage(32, static_shared=100 * 1024), 128, 128 * 1024, "shared memory"),
        (Usage(32), 1056, 0, "threads"),
        (Usage(32), 0, 0, "threads"),
        (Usage(32, max_threads=128), 160, 0, "threads"),  # more than __launch_bounds__ says
    ],
)
def test_what_cannot_be_launched_has_no_cta(usage: Usage, threads: int, smem_bytes: int, limiter: str) -> None:
    launch = Launch("k", (1, 1, 1), threads, smem_bytes)
    assert occupancy(usage, launch, ARCHES["sm_90a"]) == Occupancy(0, limiter)


def test_a_kernel_runs_in_the_clusters_that_it_was_compiled_for() -> None:
    in_pairs, alone = Usage(32, cluster=2), Launch("k", (2, 1, 1), 128, 0)
    assert occupancy(in_pairs, replace(alone, cluster=2), ARCHES["sm_90a"]).ctas > 0
    assert occupancy(in_pairs, alone, ARCHES["sm_90a"]) == Occupancy(0, "__cluster_dims__ says 2 CTAs, the launch 1")


@pytest.mark.parametrize(("columns", "ctas"), [(0, 16), (32, 16), (64, 8), (256, 2), (512, 1)])
def test_tensor_memory_limits_the_ctas_that_hold_some_of_it(columns: int, ctas: int) -> None:
    launch = Launch("k", (1, 1, 1), 128, 0, tensor_columns=columns)
    limiter = "tensor memory" if ctas < 16 else "threads"
    assert occupancy(Usage(24), launch, ARCHES["sm_100a"]) == Occupancy(ctas, limiter)


def test_an_arch_without_tensor_memory_launches_nothing_that_holds_some() -> None:
    launch = Launch("k", (1, 1, 1), 128, 0, tensor_columns=32)
    assert occupancy(Usage(32), launch, ARCHES["sm_90a"]) == Occupancy(0, "tensor memory")
