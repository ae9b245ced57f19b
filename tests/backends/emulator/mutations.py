"""Bugs inserted into correct kernels, and the findings that the emulator must report for them.

This program prints the table of templates/primitives/README.md; with `--write` it goes there.

Numbers alone find some of these, and only in some order of execution; a finding names the bug whatever was computed.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.backends.emulator.emulated import CHECKED, PLAIN
from tests.backends.emulator.scenarios import Scenario, scenarios
from tuner.backends.emulator import Finding, Mode
from tuner.base.assets import PRIMITIVES

BEGIN, END = "<!-- mutations -->", "<!-- end -->"


@dataclass(frozen=True)
class Mutation:
    """`old` becomes `new` in a kernel; `kind` must be among the findings of every checked mode."""

    kernel: str
    bug: str
    old: str
    new: str
    kind: str


@dataclass(frozen=True)
class Observed:
    """The findings of one mode for a mutation."""

    right: bool  # the numbers
    findings: tuple[Finding, ...]


def observe(mutation: Mutation, mode: Mode, scenario: Scenario) -> Observed:
    run, right = scenario.launch(scenario.build(mode.checked, ((mutation.old, mutation.new),)), mode)
    return Observed(right, run.findings)


ATTENTION, SOFTMAX, HOPPER, GEMM = "flash_attention", "softmax", "hopper_attention", "hopper_gemm"
CLUSTER, RING, MLP = "multicast_gemm", "shared_ring", "blackwell_mlp"


def _fence(side: str, of: str) -> str:
    """A line of the kernel on tensor memory."""
    return f"    tcgen05_fence_{side}_thread_sync();  // of the {of}\n"


MUTATIONS = (
    Mutation(
        ATTENTION, "no barrier between copy and use (RAW)", "    __syncthreads();  // the stage is loaded\n", "", "race"
    ),
    Mutation(
        ATTENTION,
        "no barrier before a stage is overwritten (WAR)",
        "    __syncthreads();  // the stage has been read\n",
        "",
        "race",
    ),
    Mutation(ATTENTION, "waits for too few cp.async groups", "cp_async_wait<1>()", "cp_async_wait<2>()", "in_flight"),
    Mutation(
        ATTENTION,
        "stage index beyond shared memory",
        "s_v + (1 - stage) * kTileBytes, v",
        "s_v + (2 - stage) * kTileBytes, v",
        "out_of_bounds",
    ),
    Mutation(
        ATTENTION,
        "tail rows read beyond the tensor",
        "chunk < kChunks && first + row < T",
        "chunk < kChunks",
        "out_of_bounds",
    ),
    Mutation(ATTENTION, "tail rows written beyond the tensor", "    if (row >= T) continue;\n", "", "out_of_bounds"),
    Mutation(
        ATTENTION,
        "padding columns never written",
        "    bool const inside",
        "    if (chunk >= kChunks) continue;\n    bool const inside",
        "uninitialized_read",
    ),
    Mutation(
        ATTENTION,
        "wrong swizzle on the read side",
        "{ return chunk_offset(row, chunk); }",
        "{ return chunk_offset(row, chunk ^ (row & 7)); }",
        "uninitialized_read",
    ),
    Mutation(
        ATTENTION,
        "warps beyond the tail return early",
        "  load_tile<BM>(s_q, q, m0, T);",
        "  if (m0 + warp * 16 >= T) return;\n  load_tile<BM>(s_q, q, m0, T);",
        "barrier_exit",
    ),
    Mutation(
        ATTENTION,
        "barrier in a branch that half the warps take",
        "    __syncthreads();  // the stage has been read",
        "    if (warp < 2) __syncthreads();\n    __syncthreads();",
        "barrier_divergence",
    ),
    Mutation(
        ATTENTION,
        "shuffle with lanes missing",
        "      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));",
        "      if (lane < 16) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));",
        "warp_divergence",
    ),
    Mutation(ATTENTION, "misaligned row pitch", "kPitch = (DP + 8) * 2", "kPitch = (DP + 4) * 2", "misaligned"),
    Mutation(
        ATTENTION,
        "writes to an input",
        "*reinterpret_cast<uint32_t*>(o + ",
        "*reinterpret_cast<uint32_t*>(const_cast<bf16*>(q) + ",
        "read_only",
    ),
    Mutation(
        ATTENTION,
        "array index beyond a register array",
        "row_max[h] = m;",
        "row_max[h + (j >= 0)] = m;",
        "undefined_behaviour",
    ),
    Mutation(ATTENTION, "exits with a copy in flight", "    if (j + 1 < blocks) {", "    if (true) {", "outstanding"),
    Mutation(
        SOFTMAX,
        "no __syncwarp between exchanges of lanes",
        "  __syncwarp();  // the neighbours' edges are there\n",
        "",
        "race",
    ),
    Mutation(
        SOFTMAX,
        "no barrier in a block reduction (RAW)",
        "  __syncthreads();  // every warp's part is there\n",
        "",
        "race",
    ),
    Mutation(
        SOFTMAX,
        "no barrier before a reduction's reuse (WAR)",
        "  __syncthreads();  // and may be overwritten\n",
        "",
        "race",
    ),
    Mutation(SOFTMAX, "blocks add without an atomic", "atomicAdd(column_sum + i, p);", "column_sum[i] += p;", "race"),
    Mutation(
        SOFTMAX,
        "loop runs one element too far",
        "i < N; i += kThreads * 4",
        "i <= N; i += kThreads * 4",
        "out_of_bounds",
    ),
    Mutation(
        SOFTMAX,
        "misaligned vector load",
        "reinterpret_cast<float4 const*>(x + i)",
        "reinterpret_cast<float4 const*>(x + i + (N > 1000 - i))",
        "misaligned",
    ),
    Mutation(
        SOFTMAX,
        "reads its output before writing it",
        "float const p = s_row[i] / sum;",
        "float const p = s_row[i] / sum + 0.0f * y[i];",
        "uninitialized_read",
    ),
    Mutation(
        HOPPER,
        "producer ignores the empty barrier",
        "    mbarrier_wait(b.empty + 8 * stage, phase ^ 1);  // the stage has been read\n",
        "",
        "mbarrier",
    ),
    Mutation(
        HOPPER,
        "consumer ignores the full barrier",
        "    mbarrier_wait(b.full + 8 * stage, phase);  // the stage is loaded\n",
        "",
        "in_flight",
    ),
    Mutation(
        HOPPER, "wrong expect_tx", "b.full + 8 * stage, 2 * kTile)", "b.full + 8 * stage, 2 * kTile + 128)", "deadlock"
    ),
    Mutation(
        HOPPER,
        "wrong parity",
        "mbarrier_wait(b.empty + 8 * stage, phase ^ 1)",
        "mbarrier_wait(b.empty + 8 * stage, phase)",
        "deadlock",
    ),
    Mutation(
        HOPPER,
        "no barrier after mbarrier_init",
        "  __syncthreads();  // the barriers are initialised\n",
        "",
        "mbarrier",
    ),
    Mutation(HOPPER, "no fence after mbarrier_init", "    fence_mbarrier_init();\n", "", "proxy_fence"),
    Mutation(
        HOPPER,
        "empty barrier expects one warpgroup too many",
        "mbarrier_init(b.empty + 8 * i, kConsumers)",
        "mbarrier_init(b.empty + 8 * i, 2 * kConsumers)",
        "deadlock",
    ),
    Mutation(
        HOPPER,
        "stage released before the wgmma wait",
        "    wgmma_wait<0>();  // the values\n    fence_registers(acc);\n    mbarrier_arrive(b.empty + 8 * stage);\n",
        "    mbarrier_arrive(b.empty + 8 * stage);\n    wgmma_wait<0>();\n",
        "race",
    ),
    Mutation(
        HOPPER,
        "waits for too few wgmma groups",
        "    wgmma_wait<0>();  // the scores\n",
        "    wgmma_wait<1>();\n",
        "wgmma",
    ),
    Mutation(HOPPER, "A registers without wgmma_fence", "    fence_registers(acc);\n    wgmma_fence();\n", "", "wgmma"),
    Mutation(
        HOPPER,
        "no barrier before rows are read back",
        "  named_barrier_sync(1, kConsumers);  // all rows are there\n",
        "",
        "race",
    ),
    Mutation(
        HOPPER,
        "named barrier with a wrong count",
        "named_barrier_sync(1, kConsumers)",
        "named_barrier_sync(1, 2 * kConsumers)",
        "deadlock",
    ),
    Mutation(
        HOPPER,
        "registers released by one warp of a warpgroup",
        "    setmaxnreg_dec<40>();\n",
        "    if (threadIdx.x < kConsumers + 32) setmaxnreg_dec<40>();\n",
        "warp_divergence",
    ),
    Mutation(
        HOPPER,
        "named barrier of half of every warp",
        "  named_barrier_sync(1, kConsumers);  // all rows are there\n",
        "  if (threadIdx.x % 32 < 16) named_barrier_sync(1, kConsumers / 2);\n",
        "barrier_divergence",
    ),
    Mutation(
        HOPPER,
        "lanes of a warp arrive at a named barrier in two branches",
        "  named_barrier_sync(1, kConsumers);  // all rows are there\n",
        "  if (threadIdx.x % 2) named_barrier_sync(1, kConsumers);\n  else\n    named_barrier_sync(1, kConsumers);\n",
        "barrier_divergence",
    ),
    Mutation(
        HOPPER,
        "a thread arrives twice before others have arrived",
        "  named_barrier_sync(1, kConsumers);  // all rows are there\n",
        "  for (int i = 0; i < 2 - threadIdx.x / 32 % 2; i++) named_barrier_arrive(1, kConsumers);\n",
        "barrier_count",
    ),
    Mutation(
        HOPPER,
        "more bytes than an mbarrier can count",
        "mbarrier_arrive_expect_tx(b.q, kTile)",
        "mbarrier_arrive_expect_tx(b.q, kTile + (1 << 20))",
        "mbarrier",
    ),
    Mutation(
        HOPPER,
        "mbarrier initialised twice",
        "    mbarrier_init(b.q, 1);\n",
        "    mbarrier_init(b.q, 1);\n" * 2,
        "mbarrier",
    ),
    Mutation(
        HOPPER,
        "a tile is copied over an mbarrier",
        "barriers = s_v + STAGES * kTile;",
        "barriers = s_v + STAGES * kTile - 64;",
        "mbarrier",
    ),
    Mutation(
        HOPPER,
        "box starts in the middle of 16 bytes",
        "tma_load(s_q, q, b.q, 0,",
        "tma_load(s_q, q, b.q, 4,",
        "tma",
    ),
    Mutation(
        HOPPER,
        "descriptor with a base offset",
        "return wgmma_descriptor(tile + k * 2,",
        "return 1ull << 49 | wgmma_descriptor(tile + k * 2,",
        "wgmma",
    ),
    Mutation(
        GEMM,
        "no proxy fence before wgmma",
        "  fence_proxy_async();\n  __syncthreads();  // A is scaled\n",
        "  __syncthreads();\n",
        "proxy_fence",
    ),
    Mutation(
        GEMM,
        "no proxy fence before a TMA store",
        "  fence_proxy_async();\n  __syncthreads();  // C is there\n",
        "  __syncthreads();\n",
        "proxy_fence",
    ),
    Mutation(GEMM, "no barrier before a TMA store", "  __syncthreads();  // C is there\n", "", "race"),
    Mutation(
        GEMM, "exits before the store has read its source", "    cp_async_bulk_wait_read<0>();\n", "", "outstanding"
    ),
    Mutation(GEMM, "swizzled tile at a wrong address", "s_b = s_a + kTile,", "s_b = s_a + kTile + 512,", "misaligned"),
    Mutation(
        CLUSTER,
        "block barrier after mbarrier_init",
        "  cluster_sync();  // the barriers are initialised\n",
        "  __syncthreads();\n",
        "mbarrier",
    ),
    Mutation(CLUSTER, "no fence after mbarrier_init of a cluster", "  fence_mbarrier_init();\n", "", "proxy_fence"),
    Mutation(
        CLUSTER,
        "exits while the other block may reach into it",
        "  cluster_sync();  // no block arrives or copies here any more\n",
        "",
        "cluster_exit",
    ),
    Mutation(
        CLUSTER,
        "stage released to its own producer only",
        "mbarrier_arrive_cluster(map_shared_rank(empty, threadIdx.x))",
        "mbarrier_arrive(empty)",
        "race",
    ),
    Mutation(
        CLUSTER,
        "no arrival on the other block's barrier",
        "if (threadIdx.x < kCluster) mbarrier_arrive_cluster(map_shared_rank(empty, threadIdx.x))",
        "if (threadIdx.x == 0) mbarrier_arrive(empty)",
        "deadlock",
    ),
    Mutation(
        CLUSTER,
        "stage released before all warps have read it",
        "  named_barrier_sync(1, kConsumers);  // all have read the stage\n",
        "",
        "race",
    ),
    Mutation(
        CLUSTER, "arrives on an address that is not mapped", "map_shared_rank(empty, threadIdx.x)", "empty", "cluster"
    ),
    Mutation(CLUSTER, "multicast to its own block only", "full, 3, j", "full, 1 << half, j", "deadlock"),
    Mutation(CLUSTER, "multicast beyond the cluster", "full, 3, j", "full, 7, j", "cluster"),
    Mutation(
        CLUSTER, "expects the bytes of its own half only", "full, 2 * kTile", "full, kTile + kTile / 2", "deadlock"
    ),
    Mutation(
        CLUSTER,
        "both blocks load the same half",
        "int const half = cluster_rank();",
        "int const half = 0;",
        "race",
    ),
    Mutation(RING, "no proxy fence before a copy to another block", "    fence_proxy_async();\n", "", "proxy_fence"),
    Mutation(
        RING,
        "only the lane that copies fences",
        "    fence_proxy_async();\n",
        "    if (lane == 0) fence_proxy_async();\n",
        "proxy_fence",
    ),
    Mutation(RING, "copied before all lanes have written", "    __syncwarp();  // the chunk is made\n", "", "race"),
    Mutation(
        RING, "expects too few bytes of another block", "_cluster(to, kBytes)", "_cluster(to, kBytes / 2)", "deadlock"
    ),
    Mutation(
        RING,
        "copy counts towards a barrier of its own block",
        "place, kBytes, to",
        "place, kBytes, map_shared_rank(full, rank)",
        "cluster",
    ),
    Mutation(
        RING,
        "stage refilled when only its own block has read it",
        "mbarrier_init(b.empty + 8 * i, kCluster)",
        "mbarrier_init(b.empty + 8 * i, 1)",
        "race",
    ),
    Mutation(
        RING,
        "exits while the other block may copy into it",
        "  cluster_sync();  // nobody arrives here, copies to here or from here any more\n",
        "",
        "cluster_exit",
    ),
    Mutation(MLP, "no proxy fence before a product", "  fence_proxy_async();\n", "", "proxy_fence"),
    Mutation(
        MLP,
        "product ignores the full barrier",
        "    mbarrier_wait(s.full + 8 * stage, j / STAGES % 2);  // the stage is loaded\n",
        "",
        "race",
    ),
    Mutation(
        MLP,
        "product before its operand is stored",
        "    mbarrier_wait(s.hidden, j % 2);  // the sums have been read, and what became of them is there\n",
        "",
        "uninitialized_read",
    ),
    Mutation(MLP, "no fence after the barrier in the issuing thread", _fence("after", "hidden rows"), "", "tcgen05"),
    Mutation(MLP, "no fence before the barrier", _fence("before", "hidden rows"), "", "tcgen05"),
    Mutation(
        MLP,
        "accumulators loaded before the products are complete",
        "    mbarrier_wait(s.sums, j % 2);  // the products are done\n",
        "",
        "race",
    ),
    Mutation(MLP, "no fence after the wait for a commit", _fence("after", "sums"), "", "tcgen05"),
    Mutation(
        MLP,
        "accumulators used before the wait for their load",
        "    tcgen05_wait_ld();  // of the sums\n",
        "",
        "in_flight",
    ),
    Mutation(MLP, "operand signalled before its store is complete", "    tcgen05_wait_st();\n", "", "in_flight"),
    Mutation(
        MLP,
        "stage released before products have read it",
        "tcgen05_commit(s.empty + 8 * stage)",
        "mbarrier_arrive(s.empty + 8 * stage)",
        "race",
    ),
    Mutation(
        MLP,
        "commits of all stages arrive at the first stage's barrier",
        "tcgen05_commit(s.empty + 8 * stage)",
        "tcgen05_commit(s.empty)",
        "deadlock",
    ),
    Mutation(MLP, "no commit after the last product", "  tcgen05_commit(s.done);\n", "", "deadlock"),
    Mutation(
        MLP,
        "output loaded before the products are complete",
        "    mbarrier_wait(s.done, 0);  // the output is there\n",
        "",
        "in_flight",
    ),
    Mutation(MLP, "first product accumulates", "kScores, k > 0", "kScores, true", "uninitialized_read"),
    Mutation(
        MLP,
        "instruction with M of a warpgroup",
        "instruction<bf16, BN>()",
        "instruction<bf16, BN>() - (4 << 24)",
        "tcgen05",
    ),
    Mutation(
        MLP,
        "descriptor of sm_90",
        "tcgen05_descriptor(s_a, 16, 1024, Swizzle::k128B)",
        "(1ull << 62 | 64ull << 32 | s_a >> 4)",
        "tcgen05",
    ),
    Mutation(
        MLP,
        "operand starts within its swizzle's pattern",
        "s_b + stage * kTile, 16",
        "s_b + stage * kTile + 256, 16",
        "tcgen05",
    ),
    Mutation(MLP, "every warp reads the first lanes", "(warp % 4 * 32 << 16)", "0", "tcgen05"),
    Mutation(MLP, "too few columns allocated", "kColumns = 256", "kColumns = 128", "tcgen05"),
    Mutation(MLP, "columns are never freed", "  if (warp == 0) tcgen05_dealloc(tensor, kColumns);\n", "", "tcgen05"),
    Mutation(
        MLP, "columns freed before all threads have read them", "  __syncthreads();  // all have read\n", "", "race"
    ),
    Mutation(MLP, "every lane issues the product", "if (elect_one()) multiply", "multiply", "tcgen05"),
)


def table() -> str:
    """One line a mutation: what numbers alone see, and how the checked modes name it."""
    known = scenarios()
    lines = [
        "| kernel | bug | numbers, in order / reversed and late | plain run says | checked run says | where |",
        "|---|---|---|---|---|---|",
    ]
    for mutation in MUTATIONS:
        plain = [observe(mutation, mode, known[mutation.kernel]) for mode in PLAIN]
        checked = [observe(mutation, mode, known[mutation.kernel]) for mode in CHECKED]
        numbers = " / ".join("right" if seen.right else "wrong" for seen in plain)
        named = next((f for seen in checked for f in seen.findings if f.kind == mutation.kind), None)
        kinds = sorted({finding.kind for seen in plain for finding in seen.findings})
        cells = (mutation.kernel, mutation.bug, numbers, ", ".join(kinds) or "nothing")
        lines.append(
            f"| {' | '.join(cells)} | {named.kind if named else '**missed**'} | {named.location if named else ''} |"
        )
    return "\n".join(lines)


def write(readme: Path) -> None:
    """Replace the table between the readme's marks."""
    head, _, rest = readme.read_text().partition(BEGIN)
    readme.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    if "--write" in sys.argv:
        write(PRIMITIVES / "README.md")
    else:
        print(table())
