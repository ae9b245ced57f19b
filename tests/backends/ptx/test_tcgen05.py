"""Tests of tensor memory and its products on the PTX interpreter, against layouts and values by hand."""

import numpy as np
import pytest

from tests.backends.ptx.test_ptx import HEAD, TAIL, executed
from tuner.backends.ptx import ORDERS, FaultError, Global, Order, Shape, launch, parse

THREADS = np.arange(128, dtype=np.uint32)
VALUES = [f"v{i}" for i in range(16)]
# %r20: the address of 32 columns; %r21: the same in the lanes of the thread's warp
ALLOCATED = f"""
  .reg .b32 {", ".join(VALUES)};
  setp.lt.u32 %p1, %r1, 32;
  setp.eq.u32 %p2, %r1, 0;
  mov.u32 %r3, smem;
  @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;
  @%p2 mbarrier.init.shared::cta.b64 [%r3+16], 1;
  bar.sync 0;
  ld.shared.u32 %r20, [%r3];
  shr.u32 %r4, %r1, 5;
  shl.b32 %r4, %r4, 21;
  add.u32 %r21, %r20, %r4;
"""
FREED = """
  bar.sync 0;
  @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;
"""


def vector(count: int) -> str:
    return "{" + ", ".join(VALUES[:count]) + "}"


def stored(count: int, first: int = 0) -> str:
    """Thread t writes 100 t + column to the columns of its lane."""
    numbers = "".join(f"mad.lo.u32 v{i}, %r1, 100, {first + i};\n" for i in range(count))
    return f"{numbers} tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r21+{first}], {vector(count)};\n"


STORED = ALLOCATED + stored(8) + "tcgen05.wait::st.sync.aligned;\n"


def run(body: str, order: Order = "together") -> np.ndarray:
    return executed(body, THREADS, order, smem_bytes=8192)


LAYOUTS = {  # shape and how often: of threads, the (lane, column) of each register
    ("32x32b", 2): {0: [(0, 0), (0, 1)], 5: [(5, 0), (5, 1)], 31: [(31, 0), (31, 1)]},
    ("16x64b", 2): {0: [(0, 0), (0, 2)], 1: [(8, 0), (8, 2)], 2: [(0, 1), (0, 3)], 31: [(15, 1), (15, 3)]},
    ("16x128b", 2): {
        0: [(0, 0), (8, 0), (0, 4), (8, 4)],
        5: [(1, 1), (9, 1), (1, 5), (9, 5)],
        31: [(7, 3), (15, 3), (7, 7), (15, 7)],
    },
    ("16x256b", 1): {
        0: [(0, 0), (0, 1), (8, 0), (8, 1)],
        5: [(1, 2), (1, 3), (9, 2), (9, 3)],
        31: [(7, 6), (7, 7), (15, 6), (15, 7)],
    },
    ("16x32bx2", 2): {0: [(0, 0), (0, 1)], 15: [(15, 0), (15, 1)], 16: [(0, 5), (0, 6)], 31: [(15, 5), (15, 6)]},
}


@pytest.mark.parametrize(("shape", "count"), LAYOUTS)
def test_a_load_brings_each_thread_the_cells_of_its_shape(shape: str, count: int) -> None:
    layout, apart = LAYOUTS[shape, count], ", 5" if shape == "16x32bx2" else ""
    registers = len(layout[0])
    load = f"tcgen05.ld.sync.aligned.{shape}.x{count}.b32 {vector(registers)}, [%r21]{apart};\n"
    for i in range(registers):
        result = run(f"{STORED}{load} mov.u32 %r9, v{i}; tcgen05.wait::ld.sync.aligned; {FREED}")
        for warp in range(4):
            for thread, cells in layout.items():
                lane, column = cells[i]
                assert result[32 * warp + thread] == 100 * (32 * warp + lane) + column, (warp, thread)


def test_a_load_may_begin_in_the_upper_lanes_and_a_store_has_the_layout_of_a_load() -> None:
    body = f"""{STORED}
      mov.u32 v0, %r1;
      tcgen05.st.sync.aligned.16x64b.x1.b32 [%r21+0x100004], {{v0}};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r9}}, [%r21+5];
      tcgen05.wait::ld.sync.aligned;
    """
    result = run(body + FREED)
    assert result[[3, 16, 17, 24, 31, 48]].tolist() == [305, 2, 6, 3, 31, 34]  # 16 lanes up: row 0, 1, 8, 15 of a warp


def test_halves_of_registers_are_packed_and_unpacked() -> None:
    body = f"""{STORED}
      mov.u32 v0, 0x00070009;
      tcgen05.st.sync.aligned.32x32b.x1.unpack::16b.b32 [%r21+2], {{v0}};
      tcgen05.wait::st.sync.aligned;
      tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {{v1, v2}}, [%r21+1];
      and.b32 v1, v1, 0xffff0000;
      and.b32 v2, v2, 0x0000ffff;
      or.b32 %r9, v1, v2;
      tcgen05.wait::ld.sync.aligned;
    """
    assert (run(body + FREED) == 0x00090007).all()


def test_columns_come_from_either_end() -> None:
    body = ALLOCATED + "mov.u32 %r9, %r20;" + FREED
    assert [int(run(body, order)[0]) for order in ORDERS] == [0, 0, 480]


# A [128, 16] is the thread's number in column 0 and 1 in column 9, B [16, 8] is n in row 0 and 5 in row 9, so that
# D [128, 8] is row · n + 5; chunks of 16 bytes, A's at smem + 128 and, of columns 8 to 15, 2048 further, B's behind.
OPERANDS = """
  mov.u32 %r5, 0;
  cvt.rn.f32.u32 %f1, %r1;
  mov.b32 %r6, %f1;
  shr.u32 %r6, %r6, 16;
  shl.b32 %r7, %r1, 4;
  add.u32 %r7, %r7, %r3;
  st.shared.v4.b32 [%r7+128], {%r6, %r5, %r5, %r5};
  mov.u32 %r8, 0x3f800000;
  st.shared.v4.b32 [%r7+2176], {%r8, %r5, %r5, %r5};
  setp.gt.u32 %p3, %r1, 7;
  @%p3 bra WRITTEN;
  st.shared.v4.b32 [%r7+4224], {%r6, %r5, %r5, %r5};
  mov.u32 %r8, 0x40a00000;
  st.shared.v4.b32 [%r7+4352], {%r8, %r5, %r5, %r5};
WRITTEN:
  shr.u32 %r7, %r3, 4;
  cvt.u64.u32 %rd4, %r7;
  add.u64 %rd5, %rd4, 0x0000400800080108;
  add.u64 %rd4, %rd4, 0x0000400800800008;
"""
FENCED = "fence.proxy.async.shared::cta;\n bar.sync 0;\n"
M128, M64 = 0x08020490, 0x04020490  # D in fp32, A and B in bf16, N = 8
COMMIT = "@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3+16];\n"
WAITED = """
AGAIN:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r3+16], 0;
  @!%p4 bra AGAIN;
"""
LOADED = """
  tcgen05.ld.sync.aligned.32x32b.x8.b32 {v0, v1, v2, %r9, v4, v5, v6, v7}, [%r21];
  tcgen05.wait::ld.sync.aligned;
"""


def product(form: int, a: str = "%rd4", to: str = "%r20", rest: str = "0") -> str:
    return f"@%p2 tcgen05.mma.cta_group::1.kind::f16 [{to}], {a}, %rd5, {form:#x}, {rest};\n"


def multiplied(*issued: str, order: Order = "together", fence: str = FENCED) -> np.ndarray:
    """[128] column 3 of D, as each thread loads it."""
    body = ALLOCATED + OPERANDS + fence + "".join(issued) + COMMIT + WAITED + LOADED + FREED
    return run(body, order).view(np.float32)


RIGHT = 3 * THREADS.astype(np.float32) + 5


@pytest.mark.parametrize("order", ORDERS)
def test_a_product_is_there_when_its_commit_has_arrived(order: Order) -> None:
    np.testing.assert_array_equal(multiplied(product(M128), order=order), RIGHT)


def test_products_of_one_thread_add_up_in_order() -> None:
    np.testing.assert_array_equal(multiplied(product(M128), product(M128, rest="1")), 2 * RIGHT)


def test_a_product_may_scale_what_it_adds_to() -> None:
    np.testing.assert_array_equal(multiplied(product(M128), product(M128, rest="1, 2")), 1.25 * RIGHT)


def test_operands_may_be_negated() -> None:
    np.testing.assert_array_equal(multiplied(product(M128 | 1 << 13)), -RIGHT)
    np.testing.assert_array_equal(multiplied(product(M128 | 3 << 13)), RIGHT)


def test_a_and_b_have_types_of_their_own() -> None:
    """Bytes 0x3f of A and 0x40 of B, as e4m3 1.875 and 2, as e5m2 1.75 and 2; all others are zeros in row 0."""
    issue = "@%p2 tcgen05.mma.cta_group::1.kind::f8f6f4 [%r20], %rd4, %rd5, {form:#x}, 0;\n"
    results = [multiplied(issue.format(form=0x08020010 | types))[0] for types in (1 << 10, 1 << 7)]
    assert results == [1.875 * 2, 1.75 * 2]


def test_lanes_may_stay_as_they_are() -> None:
    result = multiplied(product(M128), product(M128, rest="{%r5, 0x80000001, %r5, %r5}, 1"))
    kept = np.isin(THREADS, (32, 63))
    np.testing.assert_array_equal(result, np.where(kept, RIGHT, 2 * RIGHT))


def test_sixty_four_rows_lie_in_half_of_each_warps_lanes() -> None:
    row = (THREADS // 32 * 16 + THREADS % 16).astype(np.float32)
    lower = multiplied(product(M64))
    np.testing.assert_array_equal(lower, np.where(THREADS % 32 < 16, 3 * row + 5, np.nan))
    upper = multiplied("add.u32 %r22, %r20, 0x100000;", product(M64, to="%r22"))
    np.testing.assert_array_equal(upper, np.where(THREADS % 32 < 16, np.nan, 3 * row + 5))


A_STORED = """
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%r21+8], {%r6, %r5, %r5, %r5, %r8, %r5, %r5, %r5};
"""
A_WAITED = "mov.u32 %r8, 0x3f800000;" + A_STORED + "tcgen05.wait::st.sync.aligned;\n" + FENCED


@pytest.mark.parametrize("order", ORDERS)
def test_a_may_lie_in_tensor_memory_two_elements_a_cell(order: Order) -> None:
    np.testing.assert_array_equal(multiplied(A_WAITED, product(M128, "[%r20+8]"), order=order), RIGHT)


def test_a_product_that_nobody_waited_for_is_not_there() -> None:
    """It is in the order that lets everything happen at once."""
    early = ALLOCATED + OPERANDS + FENCED + product(M128) + COMMIT + LOADED + "mov.u32 %r5, %r9;" + WAITED
    results = {order: run(early + "mov.u32 %r9, %r5;" + FREED, order).view(np.float32) for order in ORDERS}
    assert np.isnan(results["together"]).all()
    assert np.isnan(results["last"][:96]).all()
    np.testing.assert_array_equal(results["first"][1:], RIGHT[1:])


ALLOC, DEALLOC = (
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32",
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32",
)
READ = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r9},"
FAULTS = {  # after ALLOCATED
    f"@%p1 {ALLOC} [%r3], 48;": "48 columns of tensor memory: an allocation must be 32, 64",
    f"@%p1 {ALLOC} [%r3], 64;": "tcgen05.alloc of 64 columns after one of 32",
    f"@%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; @%p1 {ALLOC} [%r3], 32;": "after tcgen05.relinq",
    f"@%p1 {DEALLOC} %r20, 64;": "64 columns at 0x0, which no tcgen05.alloc returned",
    "bar.sync 0;": "a block exits without tcgen05.dealloc of its columns .*ret",
    f"{READ} [%r21+32];": "columns that the block has not allocated .*line 25 of kernel: tcgen05.ld",
    f"{READ} [%r20];": "warp 1 of a warpgroup at lanes 0 to 31 .* of which 32 from 32 on are its own",
    f"{READ} [%r1];": "addresses must not differ between the lanes of a warp",
    stored(8) + f"{READ} [%r21+1];": "tcgen05.ld of cells that a tcgen05.st writes, without tcgen05.wait::st",
    STORED.replace(ALLOCATED, "") + f"{READ} [%r21]; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {{%r5}};": (
        "tcgen05.st of cells that a tcgen05.ld reads, without tcgen05.wait::ld"
    ),
    f"{READ} [%r21]; bar.sync 0; @%p1 {DEALLOC} %r20, 32;": "tcgen05.dealloc of cells that a tcgen05.ld reads",
    "tcgen05.shift.cta_group::1.down [%r20];": "unsupported: tcgen05.shift",
    "tcgen05.mma.cta_group::2.kind::f16 [%r20], %rd4, %rd5, %r5, 0;": "unsupported: tcgen05.mma.cta_group::2",
    "tcgen05.mma.ws.cta_group::1.kind::f16 [%r20], %rd4, %rd5, %r5, 0;": "unsupported: tcgen05.mma.ws",
}


@pytest.mark.parametrize("body", FAULTS)
def test_misuse_of_tensor_memory_is_named(body: str) -> None:
    with pytest.raises(FaultError, match=FAULTS[body]):
        run(ALLOCATED + body)


def test_waits_for_loads_and_stores_may_be_left_out_where_a_launch_is_not_strict() -> None:
    body = STORED.replace("tcgen05.wait::st.sync.aligned;", "") + f"{READ} [%r21+1];\n" + stored(8, 8) + FREED
    with pytest.raises(FaultError, match=r"without tcgen05\.wait::st"):
        executed(body, THREADS)
    np.testing.assert_array_equal(executed(body, THREADS, strict=False), 100 * THREADS + 1)


PRODUCT_FAULTS = {  # what is issued between the operands and the commit
    product(0x06020490): "a product of 96 x 8",
    product(0x08000490): "a product of 128 x 0",
    product(M128 | 1 << 29): "instruction descriptor 0x28020490 with reserved bits",
    product(M128 | 1 << 2): "unsupported: kind::f16 with instruction descriptor 0x8020494",
    product(M128 & ~0x10): "unsupported: kind::f16 with instruction descriptor 0x8020480",  # fp16 of bf16
    product(M128, to="%r21")
    + "add.u32 %r22, %r20, 0x100000;"
    + product(M128, to="%r22"): "128 rows that starts at lane 16",
    "add.u32 %r22, %r20, 0x80000;" + product(M64, to="%r22"): "64 rows that starts at lane 8",
    "add.u32 %r22, %r20, 28;" + product(M128, to="%r22"): "columns that the block has not allocated",
    "add.u32 %r22, %r20, 0x100000;" + product(M64, "[%r20+8]", "%r22"): "A in tensor memory must .* use the lanes of D",
    product(M128 | 1 << 15, "[%r20+8]"): "A in tensor memory must not be transposed",
    "and.b64 %rd4, %rd4, 0xffff3fffffffffff;" + product(M128): "whose bits 46 to 48 are not 1",
    "or.b64 %rd4, %rd4, 0x0002000000000000;" + product(M128): "unsupported: a matrix descriptor with a base offset",
    "or.b64 %rd4, %rd4, 0x6000000000000000;" + product(M128): "a matrix descriptor with swizzle 3",
    "mov.u32 %r8, 0;" + A_STORED + FENCED + product(M128, "[%r20+8]"): "a product of cells that a tcgen05.st writes",
    f"{READ} [%r21]; bar.sync 0;" + product(M128): "a product of cells that a tcgen05.ld reads",
    product(M128) + "bar.warp.sync -1;" + FREED: "tcgen05.dealloc of columns with a pending product",
}


@pytest.mark.parametrize("issued", PRODUCT_FAULTS)
def test_what_a_product_may_not_do_is_named_with_its_line(issued: str) -> None:
    with pytest.raises(FaultError, match=rf"{PRODUCT_FAULTS[issued]}.*\(line \d+ of kernel: (@%p2 )?(@%p1 )?tcgen05"):
        multiplied(issued)


COMMITTED = """
  mov.u32 %r3, smem;
  setp.ne.u32 %p1, %r1, 0;
  @!%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  mov.u32 %r4, %cluster_ctarank;
  or.b32 %r5, %r4, %r1;
  setp.ne.u32 %p2, %r5, 0;
  mov.b16 %h1, {blocks};
  @!%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r3], %h1;
AGAIN:
  mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r3], 0;
  @!%p4 bra AGAIN;
  mov.u32 %r9, 7;
"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_commit_may_arrive_in_several_blocks_of_a_cluster(order: Order) -> None:
    def launched(blocks: int) -> np.ndarray:
        memory = Global({"in": 4, "out": 4}, frozenset({"out"}))
        entry = parse(HEAD + COMMITTED.replace("{blocks}", str(blocks)) + TAIL)["kernel"]
        arguments = [memory.address("in"), memory.address("out")]
        launch(entry, Shape((2, 1, 1), 1, 256, cluster=2), memory, arguments, order=order)
        return memory.view("out", np.uint32, (1,))

    assert launched(3) == 7
    with pytest.raises(FaultError, match="deadlock: 1 lanes wait, thread 0 of block 0 for an mbarrier"):
        launched(2)
    with pytest.raises(FaultError, match="a multicast to blocks 0x4: the cluster has 2"):
        launched(4)


def test_operands_are_fenced() -> None:
    with pytest.raises(FaultError, match=r"without a fence\.proxy\.async, in the product of line \d+"):
        multiplied(product(M128), fence="bar.sync 0;\n")
