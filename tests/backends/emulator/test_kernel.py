"""Tests of building and launching kernels: refusals, and cleanup."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.backends.emulator.emulated import CHECKED, KERNELS, snippet, source
from tuner.backends.emulator import Buffer, Counters, Mode, build, kernel
from tuner.compiler.render import headers
from tuner.compiler.source import Source
from tuner.errors import InputError, TemplateError

EMPTY = 'extern "C" __global__ void empty(int n) {}'


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(InputError, match="empty takes 1 arguments, not 2"):
        snippet(EMPTY, "empty").launch("empty", (1, 1, 1), 32, 0, [np.int32(1), np.int32(2)], Mode())


def test_an_unknown_kernel_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="'full': the source has empty"):
        snippet(EMPTY, "empty").launch("full", (1, 1, 1), 32, 0, [], Mode())


def test_a_plain_kernel_does_not_run_checked() -> None:
    with pytest.raises(InputError, match="built without checks"):
        snippet(EMPTY, "empty").launch("empty", (1, 1, 1), 32, 0, [np.int32(1)], CHECKED[0])


def test_a_plain_run_of_a_kernel_built_with_checks_looks_for_no_races() -> None:
    text = 'extern "C" __global__ void k(int* y) { y[0] = threadIdx.x; }'
    kernel = snippet('#include "builtin.cuh"\n' + text, "k", checked=True)
    with Buffer("y", 4, writable=True, initialized=False) as y:
        plain, checked = (kernel.launch("k", (1, 1, 1), 32, 0, [y], mode).findings for mode in (Mode(), CHECKED[0]))
    assert plain == ()
    assert [finding.kind for finding in checked] == ["race"]


def test_functions_of_any_type_compute_in_the_type_that_cuda_takes() -> None:
    text = "y[0] = abs(-0.5f); y[1] = abs(-7); y[2] = abs(-0.25); y[3] = min(-1, 0.5f); y[4] = max(2u, 3);"
    kernel = snippet(f'#include "builtin.cuh"\nextern "C" __global__ void k(float* y) {{ {text} }}', "k")
    with Buffer("y", 20, writable=True, initialized=False) as y:
        assert kernel.launch("k", (1, 1, 1), 1, 0, [y], Mode()).findings == ()
        assert y.view(np.float32, (5,)).tolist() == [0.5, 7, 0.25, -1, 3]


@pytest.mark.parametrize(
    ("grid", "threads", "smem_bytes", "reason"),
    [
        ((1, 1, 1), 1056, 0, "1 to 1024"),
        ((1, 1, 1), (1, 1, 65), 0, "64 along z"),
        ((0, 1, 1), 32, 0, "a grid of"),
        ((1, 65536, 1), 32, 0, "65535"),
        ((1, 1, 1), 32, 233000, "at most 232448"),
    ],
)
def test_a_launch_that_no_gpu_accepts_is_a_finding(
    grid: tuple[int, int, int], threads: int | tuple[int, int, int], smem_bytes: int, reason: str
) -> None:
    run = snippet(EMPTY, "empty").launch("empty", grid, threads, smem_bytes, [np.int32(1)], Mode())
    assert [finding.kind for finding in run.findings] == ["launch"]
    assert reason in run.findings[0].message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.b32 [%0], 32;" ::"r"(n));', "tcgen05.alloc"),
        ("__shared__ float tile[32];", "allocate it from DYNAMIC_SHARED"),
        ("cooperative_groups::this_cluster().sync();", "use cluster.cuh for clusters"),
        ("n = undeclared;", "empty.cu:2"),
    ],
)
def test_what_cannot_be_emulated_is_refused_by_name(line: str, reason: str) -> None:
    with pytest.raises(TemplateError, match=reason.replace("[", r"\[")):
        snippet(f'extern "C" __global__ void empty(int n) {{ {line} }}', "empty")


def test_what_cannot_be_emulated_is_refused_with_its_line() -> None:
    text = 'extern "C" __global__ void empty(int n) {\n  /* two\n     lines */ __shared__ float tile[32];\n}'
    with pytest.raises(TemplateError, match=r"empty\.cu:\d+: not emulated: '__shared__ float tile") as refused:
        snippet(text, "empty")
    with pytest.raises(TemplateError) as undeclared:  # g++ counts the same lines
        snippet(text.replace("__shared__ float tile[32]", "n = undeclared"), "empty")
    (line,) = re.findall(r"empty\.cu:(\d+): not", str(refused.value))
    assert f"empty.cu:{line}:" in str(undeclared.value)


def test_a_source_for_the_gpu_is_refused() -> None:
    with pytest.raises(TemplateError, match="rendered for 'host', not for 'cuda'"):
        build(Source(("empty",), EMPTY, (), "cuda"), checked=False)


def test_an_operators_own_header_is_named_in_findings() -> None:
    text = '#include "own.cuh"\nextern "C" __global__ void k(int* y) { poke(y); }'
    own = ("own.cuh", "__device__ __forceinline__ void poke(int* y) {\n  y[threadIdx.x + 1] = 1;\n}\n")
    result = (*headers('#include "thread.cuh"', KERNELS, "host"), own)
    with Buffer("y", 128, writable=True, initialized=False) as y:
        kernel = build(Source(("k",), '#include "thread.cuh"\n' + text, result, "host"), checked=True)
        (finding,) = kernel.launch("k", (1, 1, 1), 32, 0, [y], Mode(checked=True)).findings
    assert (finding.kind, finding.location) == ("out_of_bounds", "own.cuh:2")


def test_an_access_in_a_primitive_is_named_by_the_line_that_calls_it() -> None:
    text = '#include "builtin.cuh"\nextern "C" __global__ void k(float* y) {\n  y[0] = __ldg(y + 32);\n}'
    result = headers(text, KERNELS, "host")
    with Buffer("y", 128, writable=True) as y:
        kernel = build(Source(("k",), text, result, "host"), checked=True)
        finding = kernel.launch("k", (1, 1, 1), 1, 0, [y], Mode(checked=True)).findings[0]
    assert (finding.kind, finding.location) == ("out_of_bounds", "k.cu:3")


def test_kernels_are_unloaded_and_leave_no_mappings() -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    def once() -> None:
        kernel = snippet(EMPTY, "empty", checked=True)
        assert kernel.launch("empty", (2, 1, 1), 256, 4096, [np.int32(1)], Mode(checked=True)).findings == ()

    once()
    before = mappings()
    for _ in range(50):
        once()
    assert mappings() <= before + 2  # the allocator's own


def test_counters_count_what_the_kernel_did() -> None:
    kernel = build(source("primitives_sm80.cu", ("load_matrices", "mma_k16_bf16")), checked=False)
    with (
        Buffer.of("in", np.zeros(256, np.uint16)) as x,
        Buffer("out", 6 * 32 * 4 * 4, writable=True, initialized=False) as out,
    ):
        run = kernel.launch("load_matrices", (3, 1, 1), 32, 512, [x, out], Mode())
    assert isinstance(run.counters, Counters)
    assert (run.counters.ldmatrix, run.counters.syncwarps, run.counters.cp_async_bytes) == (3 * 14, 3, 3 * 512)
    assert run.counters.bank_conflicts == 0
    assert run.block_counters.shape[0] == 3
    assert (run.block_counters[0] == run.block_counters[2]).all()


def test_the_same_seed_gives_the_same_run() -> None:
    kernel = build(
        source("softmax.cu", ("softmax",), (("  __syncwarp();  // the neighbours' edges are there\n", ""),)),
        checked=True,
    )
    results = []
    for _ in range(2):
        with (
            Buffer.of("x", np.ones(1024, np.float32)) as x,
            Buffer("y", 4096, writable=True, initialized=False) as y,
            Buffer.of("column_sum", np.zeros(1024, np.float32), writable=True) as sums,
        ):
            mode = Mode(True, "random", "random", 7)
            results.append(kernel.launch("softmax", (1, 1, 1), 128, 4672, [x, y, sums, np.int32(1024)], mode).findings)
    assert results[0] == results[1] != ()


@pytest.mark.parametrize(
    ("index", "type_", "conflicts"),
    [
        ("lane", "float", 0),
        ("lane * 2", "float", 1),
        ("lane * 32", "float", 31),
        ("lane * 33", "float", 0),
        ("0", "float", 0),  # one word, to all lanes
        ("lane", "float2", 0),  # two wavefronts, which is the least
        ("lane * 16", "float2", 30),
    ],
)
def test_bank_conflicts_of_plain_loads_are_counted(index: str, type_: str, conflicts: int) -> None:
    text = f"""
extern "C" __global__ void load({type_}* y) {{
  DYNAMIC_SHARED(smem);
  int const lane = threadIdx.x;
  y[lane] = reinterpret_cast<{type_} const*>(smem)[{index}];
}}
"""
    with Buffer("y", 256, writable=True, initialized=False) as y:
        run = snippet(text, "load", checked=True).launch("load", (1, 1, 1), 32, 8192, [y], Mode(checked=True))
    assert run.counters.bank_conflicts == conflicts


def test_a_collected_kernel_is_unloaded_by_the_next_load() -> None:
    collected = snippet(EMPTY, "empty")
    library = collected._library
    del collected  # its finalizer may run in any thread, where unloading would be in the way of a fork
    assert library in kernel._unused
    loaded = snippet(EMPTY, "empty")
    assert loaded.symbol("emulated_empty")
    assert not kernel._unused
