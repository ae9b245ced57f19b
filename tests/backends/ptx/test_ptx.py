"""Tests of the PTX interpreter, one instruction or rule at a time, against values computed by hand or with Python
integers.
"""

from collections.abc import Callable

import numpy as np
import pytest

from tuner.backends.ptx import ORDERS, FaultError, Global, Order, Shape, launch, parse
from tuner.backends.ptx.instructions.floats import e4m3_floats, e5m2_floats

HEAD = """.target sm_90a
.extern .shared .align 16 .b8 smem[];
.visible .entry kernel(.param .u64 .ptr .global .align 4 in, .param .u64 out) {
  .reg .pred %p<9>; .reg .b16 %h<9>; .reg .f32 %f<9>; .reg .f64 %fd<9>; .reg .b32 %r<29>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [in];
  ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd1, %rd1, %rd3;
  add.s64 %rd2, %rd2, %rd3;
  ld.global.u32 %r2, [%rd1];
  mov.u32 %r9, 0;
"""
TAIL = "\n  st.global.u32 [%rd2], %r9;\n  ret;\n}"
WORDS = np.array([0, 1, 2, 7, 31, 32, 40, 255, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 0x12345678], np.uint32)


def executed(
    body: str, words: np.ndarray, order: Order = "together", strict: bool = True, smem_bytes: int = 256
) -> np.ndarray:
    """out[thread] = %r9 of `body`, which finds in[thread] in %r2, the thread in %r1 and &in[thread] in %rd1."""
    memory = Global({"in": words.nbytes, "out": words.nbytes}, frozenset({"out"}))
    memory.view("in", words.dtype, words.shape)[...] = words
    shape = Shape((1, 1, 1), len(words), smem_bytes)
    arguments = [memory.address("in"), memory.address("out")]
    launch(parse(HEAD + body + TAIL)["kernel"], shape, memory, arguments, order=order, strict=strict)
    return memory.view("out", words.dtype, words.shape).copy()


def signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def as_signed(byte: int) -> int:
    return byte - (byte << 1 & 256)


def low(x: int) -> int:
    """The lower half, by its sign."""
    return (x & 0xFFFF) - (x << 1 & 0x10000)


def packed(a: int, b: int) -> int:
    """How far the bytes of two words are apart, in bytes."""
    return sum(abs((a >> i & 255) - (b >> i & 255)) << i for i in range(0, 32, 8))


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def looked_up(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32))


INTEGERS: dict[str, Callable[[int], int]] = {
    "add.s32 %r9, %r2, -3;": lambda x: x - 3,
    "mul.hi.s32 %r9, %r2, 780903145;": lambda x: signed(x) * 780903145 >> 32,
    "mul.hi.u32 %r9, %r2, -2;": lambda x: x * 0xFFFFFFFE >> 32,
    "mad.lo.s32 %r9, %r2, -4, %r1;": lambda x: x * -4,  # plus the thread
    "div.s32 %r9, %r2, -7;": lambda x: truncated(signed(x), -7),
    "rem.s32 %r9, %r2, 7;": lambda x: signed(x) - 7 * truncated(signed(x), 7),
    "div.u32 %r9, %r2, 7;": lambda x: x // 7,
    "shl.b32 %r9, 3, %r2;": lambda x: 3 << x if x < 32 else 0,
    "shr.s32 %r9, %r2, 40;": lambda x: -(x >> 31),
    "shr.u32 %r9, -1, %r2;": lambda x: 0xFFFFFFFF >> x if x < 32 else 0,
    "shf.l.wrap.b32 %r9, %r2, 5, 36;": lambda x: 5 << 4 | x >> 28,
    "shf.r.clamp.b32 %r9, 9, %r2, 32;": lambda x: x,
    "bfi.b32 %r9, %r2, -1, 3, 5;": lambda x: (0xFFFFFFFF & ~0xF8) | (x & 31) << 3,
    "bfe.u32 %r9, %r2, 4, 8;": lambda x: x >> 4 & 255,
    "bfe.s32 %r9, %r2, 28, 9;": lambda x: signed(x) >> 28,
    "brev.b32 %r9, %r2;": lambda x: int(f"{x:032b}"[::-1], 2),
    "popc.b32 %r9, %r2;": lambda x: x.bit_count(),
    "clz.b32 %r9, %r2;": lambda x: 32 - x.bit_length(),
    "bfind.shiftamt.u32 %r9, %r2;": lambda x: 32 - x.bit_length() if x else -1,
    "bfind.s32 %r9, %r2;": lambda x: (~x & 0xFFFFFFFF if x >> 31 else x).bit_length() - 1,
    "prmt.b32 %r9, %r2, 0x0a0b0c0d, 0x7b51;": lambda x: (
        0x0A << 24 | (-(x >> 31) & 255) << 16 | 0x0C << 8 | x >> 8 & 255
    ),
    "lop3.b32 %r9, %r2, 0x0ff0, 0x3333, 0xe2;": lambda x: looked_up(x, 0x0FF0, 0x3333, 0xE2),
    "min.s32 %r9, %r2, 5;": lambda x: min(signed(x), 5),
    "min.relu.s32 %r9, %r2, 5;": lambda x: max(min(signed(x), 5), 0),
    "max.u32 %r9, %r2, 5;": lambda x: max(x, 5),
    "setp.lt.s32 %p1, %r2, 0; selp.b32 %r9, 7, 8, %p1;": lambda x: 7 if x >> 31 else 8,
    "setp.hi.and.u32 %p1|%p2, %r2, 31, 1; @%p2 mov.u32 %r9, 5;": lambda x: 0 if x > 31 else 5,
    "cvt.u16.u32 %h1, %r2; cvt.s32.s16 %r9, %h1;": lambda x: (x & 0xFFFF) - (x << 1 & 0x10000),
    "cvt.s64.s32 %rd4, %r2; shr.u64 %rd4, %rd4, 20; cvt.u32.u64 %r9, %rd4;": lambda x: signed(x) >> 20,
    "cvt.sat.u8.u32 %r9, %r2;": lambda x: min(x, 255),
    "mov.b64 %rd4, {%r1, %r2}; mov.b64 {%r3, %r9}, %rd4;": lambda x: x,
    "dp4a.s32.s32 %r9, %r2, 0x01010101, -5;": lambda x: sum(as_signed(b) for b in x.to_bytes(4)) - 5,
    "dp4a.u32.s32 %r9, %r2, 0xff000002, 3;": lambda x: 2 * (x & 255) - (x >> 24) + 3,
    "dp2a.lo.u32.u32 %r9, %r2, 0x09080705, 1;": lambda x: 5 * (x & 0xFFFF) + 7 * (x >> 16) + 1,
    "dp2a.hi.u32.u32 %r9, %r2, 0x09080705, 1;": lambda x: 8 * (x & 0xFFFF) + 9 * (x >> 16) + 1,
    "sad.s32 %r9, %r2, -7, 2;": lambda x: abs(signed(x) + 7) + 2,
    "sad.u32 %r9, %r2, 7, 2;": lambda x: abs(x - 7) + 2,
    "mul24.lo.s32 %r9, %r2, 3;": lambda x: ((x & 0xFFFFFF) - (x << 1 & 0x1000000)) * 3,
    "mad24.hi.u32 %r9, %r2, 0xffffff, 1;": lambda x: ((x & 0xFFFFFF) * 0xFFFFFF >> 16) + 1,
    "add.cc.u32 %r3, %r2, %r2; addc.u32 %r9, 0, 0;": lambda x: x >> 31,
    "sub.cc.u32 %r3, 7, %r2; subc.u32 %r9, 0, 0;": lambda x: -(x > 7),
    "mad.lo.cc.u32 %r3, %r2, 3, -1; madc.hi.u32 %r9, %r2, 3, 0;": lambda x: 3 * x + 0xFFFFFFFF >> 32,
    "vabsdiff4.u32.u32.u32 %r9, %r2, 0x80017f03, 9;": lambda x: packed(x, 0x80017F03),
    "vabsdiff4.u32.u32.u32.add %r9, %r2, 0x80017f03, 9;": lambda x: sum(packed(x, 0x80017F03).to_bytes(4)) + 9,
    "mov.u32 %r9, WARP_SZ;": lambda _: 32,
    "slct.u32.s32 %r9, 7, 8, %r2;": lambda x: 8 if x >> 31 else 7,
    "set.lt.u32.s32 %r9, %r2, 7;": lambda x: -(signed(x) < 7),
    "fns.b32 %r9, %r2, 1, 2;": lambda x: ([i for i in range(1, 32) if x >> i & 1] + [-1, -1])[1],
    "add.sat.s32 %r9, %r2, -9;": lambda x: max(signed(x) - 9, -(1 << 31)),
    "max.s16x2 %r9, %r2, 0x0005fffe;": lambda x: max(signed(x) >> 16, 5) << 16 | max(low(x), -2) & 0xFFFF,
    "add.u16x2 %r9, %r2, 0xffff0002;": lambda x: (x >> 16) - 1 << 16 | (x + 2) & 0xFFFF,
}


@pytest.mark.parametrize("body", INTEGERS)
def test_an_instruction_on_integers_is_what_python_computes(body: str) -> None:
    added = np.arange(len(WORDS)) if body.startswith("mad.lo.s32") else 0
    exact = [INTEGERS[body](int(x)) & 0xFFFFFFFF for x in WORDS]
    np.testing.assert_array_equal(executed(body, WORDS), np.array(exact, np.uint32) + np.uint32(1) * added)


FLOATS = {
    # half-way between two floats but for 2^-70, which double precision cannot hold beside 1
    "fma.rn.f32 %f2, 0f33800001, 0f3F7FFFFE, 0f3F800001;": 1 + 2.0**-23,
    "fma.rn.f32 %f2, 0f33800000, 0f3F800000, 0f3F800001;": 1 + 2.0**-22,
    # 1 + 2^-25 lies between 1 and 1 + 2^-23
    "fma.rm.f32 %f2, 0f33000000, 0f3F800000, 0f3F800000;": 1.0,
    "fma.rp.f32 %f2, 0f33000000, 0f3F800000, 0f3F800000;": 1 + 2.0**-23,
    "fma.rz.f32 %f2, 0f33000000, 0fBF800000, 0f3F800000;": 1 - 2.0**-24,
    "fma.rm.f32 %f2, 0f33000000, 0fBF800000, 0fBF800000;": -1 - 2.0**-23,
    # half-way between two doubles but for 2^-93, which 64 bits beside 1 cannot hold
    "fma.rn.f64 %fd1, 0d3CA0000000000000, 0d3FF0000000001000, 0d3FF0000000000000; "
    "sub.f64 %fd2, %fd1, 0d3FF0000000000000; cvt.rn.f32.f64 %f2, %fd2;": 2.0**-52,
    "fma.rn.f64 %fd1, 0d7E70000000000000, 0d4000000000000000, 0dFFF0000000000000; cvt.rn.f32.f64 %f2, %fd1;": -np.inf,
    "add.rz.f32 %f2, 0f3F800000, 0fB3000000;": 1 - 2.0**-24,
    "sub.rp.f32 %f2, 0f3F800000, 0fB3000000;": 1 + 2.0**-23,
    "mul.rm.f32 %f2, 0f3F800001, 0f3F800001;": 1 + 2.0**-22,  # and 2^-46
    "mul.rp.f32 %f2, 0f3F800001, 0f3F800001;": 1 + 2.0**-22 + 2.0**-23,
    # 1/3 lies between 0x3EAAAAAA and 0x3EAAAAAB, nearer to the second; √2 between 0x3FB504F3 and the next
    "div.rz.f32 %f2, 0f3F800000, 0f40400000;": 0xAAAAAA * 2.0**-25,
    "rcp.rm.f32 %f2, 0f40400000;": 0xAAAAAA * 2.0**-25,
    "sqrt.rp.f32 %f2, 0f40000000;": 0xB504F4 * 2.0**-23,
    "cvt.rz.f32.s32 %f2, 0x7fffffff;": 2.0**31 - 128,
    "cvt.rp.f32.u64 %f2, 0xffffffffffffffff;": 2.0**64,
    "cvt.rm.f32.u64 %f2, 0xffffffffffffffff;": 2.0**64 - 2.0**40,
    "cvt.rz.f16.f32 %h1, 0f7F000000; cvt.f32.f16 %f2, %h1;": 65504.0,
    "cvt.rp.f16.f32 %h1, 0f3F800001; cvt.f32.f16 %f2, %h1;": 1 + 2.0**-10,
    "cvt.rz.bf16.f32 %h1, 0f3FFFFFFF; cvt.f32.bf16 %f2, %h1;": 2 - 2.0**-7,
    "mov.b16 %h2, 0xBE00; cvt.rmi.f16.f16 %h1, %h2; cvt.f32.f16 %f2, %h1;": -2.0,  # of -1.5
    "add.sat.f32 %f2, 0f3F800000, 0f3F800000;": 1.0,
    "fma.rn.sat.f32 %f2, 0fBF800000, 0f3F800000, 0f00000000;": 0.0,
    "set.gt.f32.f32 %f2, 0f40000000, 0f3F800000;": 1.0,
    "mul.f32 %f2, 0f00800000, 0f3F000000;": 2.0**-127,
    "mul.ftz.f32 %f2, 0f00800000, 0f3F000000;": 0.0,
    "max.f32 %f2, 0f7FC00000, 0fBF800000;": -1.0,
    "max.f32 %f3, 0f00000000, 0f80000000; copysign.f32 %f2, %f3, 0f3F800000;": 1.0,
    "max.f32 %f3, 0f80000000, 0f00000000; copysign.f32 %f2, %f3, 0f3F800000;": 1.0,
    "min.f32 %f3, 0f00000000, 0f80000000; copysign.f32 %f2, %f3, 0f3F800000;": -1.0,
    "min.NaN.f32 %f3, 0f80000000, 0f00000000; copysign.f32 %f2, %f3, 0f3F800000;": -1.0,
    "div.rn.f32 %f2, 0f3F800000, 0f40400000;": float(np.float32(1) / np.float32(3)),
    "cvt.rpi.f32.f32 %f2, 0f3FA00000;": 2.0,
    "cvt.rn.f32.s32 %f2, -16777217;": -16777216.0,
    "cvt.rzi.s32.f32 %r3, 0fC0200000; cvt.rn.f32.s32 %f2, %r3;": -2.0,
    "cvt.rni.s32.f32 %r3, 0f40200000; cvt.rn.f32.s32 %f2, %r3;": 2.0,
    "cvt.rzi.s32.f32 %r3, 0f7F800000; cvt.rn.f32.s32 %f2, %r3;": 2.0**31,
    "mov.f32 %f2, 0f3F800000; setp.ltu.f32 %p1, 0f7FC00000, %f2; @!%p1 mov.f32 %f2, 0f00000000;": 1.0,
    "cvt.rn.bf16x2.f32 %r3, 0f40000000, 0f3F808000; shl.b32 %r3, %r3, 16; mov.b32 %f2, %r3;": 1.0,
    "cvt.rn.bf16x2.f32 %r3, 0f40000000, 0f3F808000; and.b32 %r3, %r3, -65536; mov.b32 %f2, %r3;": 2.0,
    "cvt.rna.tf32.f32 %r3, 0f3F801000; mov.b32 %f2, %r3;": 1 + 2.0**-10,
    "ex2.approx.ftz.f32 %f2, 0fC0000000;": 0.25,
    "mov.f64 %fd1, 0d3FF0000000000001; cvt.rn.f32.f64 %f2, %fd1;": 1.0,
    # 1.5 and 0.5 of fp16, and bf16 that are half-way between two but for what is added or was multiplied by
    "mov.b16 %h1, 0x3E00; mov.b16 %h2, 0x3800; sub.f16 %h3, %h1, %h2; cvt.f32.f16 %f2, %h3;": 1.0,
    "mov.b32 %r3, 0x3F833F80; mov.b32 %r4, 0x3F803B80; add.rn.bf16x2 %r5, %r3, %r4; shl.b32 %r5, %r5, 16; "
    "mov.b32 %f2, %r5;": 1.0,
    "mov.b32 %r3, 0x3F833F80; mov.b32 %r4, 0x3F803B80; add.rn.bf16x2 %r5, %r3, %r4; and.b32 %r5, %r5, -65536; "
    "mov.b32 %f2, %r5;": 2 + 2.0**-5,
    # 1.5 (1 + 2^-7) - 2^-100: half-way between two bf16 but for a bit that double precision cannot hold
    "mov.b16 %h1, 0x3FC0; mov.b16 %h2, 0x3F81; mov.b16 %h3, 0x8D80; fma.rn.bf16 %h4, %h1, %h2, %h3; "
    "cvt.f32.bf16 %f2, %h4;": 1 + 65 / 128,
    "mov.b16 %h1, 0x3F80; mov.b16 %h2, 0xC000; fma.rn.relu.bf16 %h3, %h1, %h2, %h1; cvt.f32.bf16 %f2, %h3;": 0.0,
    "mov.b32 %r3, 0x7FC03F80; mov.b32 %r4, 0xC000C000; max.bf16x2 %r5, %r3, %r4; and.b32 %r5, %r5, -65536; "
    "mov.b32 %f2, %r5;": -2.0,
    # 1.0 and 0.5 of fp16: where they are above 0.5, 1.0
    "mov.b32 %r3, 0x38003C00; set.gt.f16x2.f16x2 %r4, %r3, 0x38003800; mov.b32 {%h1, %h2}, %r4; "
    "cvt.f32.f16 %f2, %h1;": 1.0,
    "mov.b32 %r3, 0x38003C00; set.gt.f16x2.f16x2 %r4, %r3, 0x38003800; mov.b32 {%h1, %h2}, %r4; "
    "cvt.f32.f16 %f2, %h2;": 0.0,
    "ex2.approx.ftz.bf16 %h1, 0xC300; cvt.f32.bf16 %f2, %h1;": 0.0,  # 2^-128 is subnormal
    "cvt.rn.relu.f16x2.f32 %r3, 0f40000000, 0fBF800000; mov.b32 {%h1, %h2}, %r3; cvt.f32.f16 %f2, %h1;": 0.0,
    "mov.b16 %h1, 0x3C00; mov.b16 %h2, 0x3800; setp.gt.f16 %p1, %h1, %h2; mov.f32 %f2, 0f00000000; "
    "@%p1 mov.f32 %f2, 0f40000000;": 2.0,
}


@pytest.mark.parametrize("body", FLOATS)
def test_an_instruction_on_floats_rounds_as_it_says(body: str) -> None:
    result = executed(f"{body} mov.b32 %r9, %f2;", WORDS)
    np.testing.assert_array_equal(result.view(np.float32), np.float32(FLOATS[body]))


PAIRS = {  # of 1 and 2^-126 with 3 and 0.5; the lower half is the first
    "add.rn.f32x2 %rd6, %rd4, %rd5;": (4.0, 0.5),
    "sub.f32x2 %rd6, %rd4, %rd5;": (-2.0, -0.5),
    "mul.rn.f32x2 %rd6, %rd4, %rd5;": (3.0, 2.0**-127),
    "mul.rn.ftz.f32x2 %rd6, %rd4, %rd5;": (3.0, 0.0),
    "fma.rn.f32x2 %rd6, %rd4, %rd5, %rd5;": (6.0, 0.5),
}


@pytest.mark.parametrize("body", PAIRS)
@pytest.mark.parametrize("half", [0, 1])
def test_both_floats_of_64_bits_are_computed(body: str, half: int) -> None:
    given = """
      mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f00800000; mov.b64 %rd4, {%f1, %f2};
      mov.f32 %f1, 0f40400000; mov.f32 %f2, 0f3F000000; mov.b64 %rd5, {%f1, %f2};
    """
    taken = "mov.b64 {%r9, %r3}, %rd6;" if half == 0 else "mov.b64 {%r3, %r9}, %rd6;"
    np.testing.assert_array_equal(executed(given + body + taken, WORDS).view(np.float32), np.float32(PAIRS[body][half]))


TABLE = """
  rem.u32 %r3, %r1, 3;
  LIST: .branchtargets ONE, TWO, THREE;
  brx.idx %r3, LIST;
ONE: mov.u32 %r9, 10; bra DONE;
TWO: mov.u32 %r9, 20; bra DONE;
THREE: mov.u32 %r9, 30;
DONE: add.u32 %r9, %r9, %r1;
"""


def test_each_lane_goes_where_its_index_says() -> None:
    thread = np.arange(len(WORDS))
    np.testing.assert_array_equal(executed(TABLE, WORDS), 10 * (thread % 3 + 1) + thread)
    with pytest.raises(FaultError, match=r"brx\.idx to number 3 of 3 labels"):
        executed(TABLE.replace("rem.u32 %r3, %r1, 3", "rem.u32 %r3, %r1, 4"), WORDS)


def test_lanes_that_took_two_ways_meet_again_before_a_shuffle() -> None:
    body = """
      and.b32 %r3, %r1, 1;
      setp.eq.s32 %p1, %r3, 0;
      @%p1 bra EVEN;
      mul.lo.s32 %r2, %r2, 10;
      bra JOINED;
    EVEN:
      add.s32 %r2, %r2, 100;
    JOINED:
      shfl.sync.bfly.b32 %r9|%p2, %r2, 1, 31, -1;
    """
    x = np.arange(32, dtype=np.uint32)
    mine = np.where(x % 2, 10 * x, x + 100)
    np.testing.assert_array_equal(executed(body, x), mine[x ^ 1])


REDUCED = {  # of -3 in lane 0, NaN in lane 1, 2 in lane 2, 5 in lane 3; by the lanes that take part
    ("redux.sync.max.f32", 0x7): 2.0,
    ("redux.sync.min.f32", 0x7): -3.0,
    ("redux.sync.max.abs.f32", 0x7): 3.0,
    ("redux.sync.max.NaN.f32", 0x7): np.nan,
    ("redux.sync.max.NaN.f32", 0xD): 5.0,
    ("redux.sync.min.f32", 0x2): np.nan,
}


@pytest.mark.parametrize(("name", "members"), REDUCED)
def test_floats_of_a_warp_are_reduced(name: str, members: int) -> None:
    body = f"""
      shr.u32 %r3, {members}, %r1;
      and.b32 %r3, %r3, 1;
      setp.eq.u32 %p1, %r3, 0;
      @%p1 bra OVER;
      mov.b32 %f1, %r2;
      {name} %f2, %f1, {members};
      mov.b32 %r9, %f2;
    OVER:
    """
    x = np.array([-3, np.nan, 2, 5], np.float32)
    result = executed(body, x.view(np.uint32)).view(np.float32)
    taking = np.array([members >> i & 1 for i in range(4)], bool)
    np.testing.assert_array_equal(result[taking], np.float32(REDUCED[name, members]))


@pytest.mark.parametrize(("name", "sign"), [("min", True), ("max", False), ("min.NaN", True), ("max.NaN", False)])
def test_of_zeros_the_negative_one_is_the_smaller(name: str, sign: bool) -> None:
    body = f"mov.b32 %f1, %r2; redux.sync.{name}.f32 %f2, %f1, -1; mov.b32 %r9, %f2;"
    for x in (np.array([0.0, -0.0] * 16, np.float32), np.array([-0.0, 0.0] * 16, np.float32)):
        result = executed(body, x.view(np.uint32)).view(np.float32)
        assert (result == 0).all() and (np.signbit(result) == sign).all()


def test_lanes_wait_at_a_shuffle_for_those_that_come_later() -> None:
    """The second half stands at a higher instruction of the same text when the first arrives: it waits in a loop."""
    body = """
      mov.u32 %r3, %r1;
    AGAIN:
      setp.lt.u32 %p1, %r3, 16;
      @%p1 bra MEET;
      sub.u32 %r3, %r3, 16;
      bra AGAIN;
    MEET:
      shfl.sync.idx.b32 %r9, %r2, 31, 31, -1;
    """
    x = np.arange(32, dtype=np.uint32) + 5
    np.testing.assert_array_equal(executed(body, x), np.full(32, 36))


def test_names_of_an_inner_scope_hide_those_outside() -> None:
    body = """
      mov.u32 %r9, 1;
      { .reg .b32 %r9; mov.u32 %r9, 7; bra DONE; DONE: }
      { .reg .b32 t; mov.u32 t, %r9; bra DONE; add.u32 t, t, 50; DONE: add.u32 %r9, t, 1; }
    """
    assert (executed(body, WORDS) == 2).all()


def test_directives_of_debuggers_hide_no_instruction() -> None:
    assert (executed("\n  .loc 1 9 0\n  mov.u32 %r9, 7;\n", WORDS) == 7).all()


def test_an_atomic_of_a_vector_adds_to_each_element() -> None:
    body = """
      setp.ne.u32 %p1, %r1, 0;
      @%p1 bra OVER;
      st.global.v2.f32 [%rd2], {0f3F800000, 0f40000000};
      mov.f32 %f1, 0f40A00000;
      atom.global.gpu.acq_rel.add.v2.f32 {%f2, %f3}, [%rd2], {%f1, %f1};
      ld.global.v2.f32 {%f4, %f5}, [%rd2];
      fma.rn.f32 %f2, %f2, 0f41200000, %f3;
      fma.rn.f32 %f4, %f4, 0f41200000, %f5;
      fma.rn.f32 %f2, %f2, 0f42C80000, %f4;
      cvt.rni.u32.f32 %r9, %f2;
    OVER:
    """
    assert executed(body, WORDS)[0] == 1267  # it held 1 and 2, and holds 6 and 7


def test_floats_of_8_bits_are_what_their_definition_says() -> None:
    def found(function: Callable[[np.ndarray], np.ndarray], *bits: int) -> list[float]:
        return function(np.array(bits, np.uint8)).tolist()

    assert found(e4m3_floats, 0x01, 0x08, 0x38, 0xC4, 0x7E) == [2**-9, 2**-6, 1, -3, 448]
    assert found(e5m2_floats, 0x01, 0x04, 0x3C, 0xC6, 0x7C) == [2**-16, 2**-14, 1, -6, np.inf]
    assert np.isnan(found(e4m3_floats, 0x7F, 0xFF)).all()


BYTES = {  # 448 is the largest of e4m3; 1.0625 lies half-way between 1 and 1.125
    "cvt.rn.satfinite.e4m3x2.f32 %h1, 0f44000000, 0f3F880000;": 0x7E38,
    "cvt.rn.satfinite.e4m3x2.f32 %h1, 0fBF980000, 0f7FC00000;": 0xBA7F,  # -1.1875, nearer to -1.25 by ties to even
    "cvt.rn.satfinite.e5m2x2.f32 %h1, 0f47800000, 0fC0000000;": 0x7BC0,
    "cvt.rn.satfinite.e4m3x2.f16x2 %h1, 0x3C00C000;": 0x38C0,
    "mov.b16 %h2, 0x38C4; cvt.rn.f16x2.e4m3x2 %r9, %h2;": 0x3C00C200,  # 1 and -3
}


@pytest.mark.parametrize("body", BYTES)
def test_floats_of_8_bits_come_in_pairs(body: str) -> None:
    result = executed(body + ("cvt.u32.u16 %r9, %h1;" if "%r9" not in body else ""), WORDS)
    assert (result == BYTES[body]).all(), hex(result[0])


@pytest.mark.parametrize(
    ("name", "kind", "held", "added", "found"),
    [
        ("add.noftz", "f16x2", 0x3C004000, 0x3C003C00, 0x40004200),
        ("add.noftz", "bf16x2", 0x3F804000, 0x3F803F80, 0x40004040),
    ],
)
def test_an_atomic_adds_to_both_halves(name: str, kind: str, held: int, added: int, found: int) -> None:
    body = f"""
      setp.ne.u32 %p1, %r1, 0;
      @%p1 bra OVER;
      st.global.u32 [%rd2], {held};
      mov.b32 %r4, {added};
      atom.global.{name}.{kind} %r3, [%rd2], %r4;
      ld.global.u32 %r9, [%rd2];
    OVER:
    """
    assert executed(body, WORDS)[0] == found


@pytest.mark.parametrize(("name", "found"), [("popc.u32 %r9", 40), ("and.pred %p2", 0), ("or.pred %p2", 1)])
def test_a_block_counts_those_that_say_yes(name: str, found: int) -> None:
    """40 of 64 threads, some of each warp."""
    body = f"setp.gt.u32 %p1, %r2, 23; bar.red.{name}, 0, %p1;"
    taken = "" if "popc" in name else "selp.u32 %r9, 1, 0, %p2;"
    words = np.arange(64, dtype=np.uint32)[::-1].copy()
    for order in ORDERS:
        assert (executed(body + taken, words, order) == found).all()


def test_a_lane_knows_its_neighbours() -> None:
    lanes = np.arange(32, dtype=np.uint32)
    for name, holds in {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ge": np.greater_equal}.items():
        mask = [sum(1 << i for i in range(32) if holds(i, lane)) for lane in range(32)]
        np.testing.assert_array_equal(executed(f"mov.u32 %r9, %lanemask_{name};", lanes), np.array(mask, np.uint32))


def test_lanes_find_those_that_hold_the_same() -> None:
    x = np.array([5, 7, 5, 9] * 8, np.uint32)
    equal = [sum(1 << j for j in range(32) if x[j] == value) for value in x]
    np.testing.assert_array_equal(executed("match.any.sync.b32 %r9, %r2, -1;", x), np.array(equal, np.uint32))
    body = "match.all.sync.b32 %r9|%p1, %r2, -1; @%p1 add.u32 %r9, %r9, 3;"
    assert (executed(body, x) == 0).all()
    assert (executed(body, np.full(32, 5, np.uint32)) == 2).all()


def test_tensor_cores_multiply_integers_exactly() -> None:
    """32 times -128 · 255 added to 1, or to the least integer, which `satfinite` keeps."""
    body = """
      mov.b32 %r3, 0x80808080;
      mov.b32 %r4, -1;
      mov.b32 %r5, 1;
      mov.b32 %r6, 0x80000000;
      mma.sync.aligned.m16n8k32.row.col{.sat}.s32.s8.u8.s32 {%r7, %r8, %r9, %r10}, {%r3, %r3, %r3, %r3}, {%r4, %r4},
        {%r5, %r6, %r5, %r6};
    """
    lanes, exact = np.zeros(32, np.uint32), -32 * 128 * 255
    assert (executed(body.replace("{.sat}", ""), lanes).view(np.int32) == exact + 1).all()
    second = body.replace("%r8, %r9", "%r9, %r8")
    assert (executed(second.replace("{.sat}", ""), lanes) == 0x80000000 + exact).all()
    assert (executed(second.replace("{.sat}", ".satfinite"), lanes) == 0x80000000).all()


def test_sums_of_tensor_cores_in_fp16_are_rounded_and_packed_by_two() -> None:
    body = """
      mov.b32 %r3, 0x3C003C00;
      mov.b32 %r4, 0x40004000;
      mov.b32 %r5, 0x38006801;
      mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r6, %r9}, {%r3, %r3, %r3, %r3}, {%r4, %r4}, {%r5, %r5};
    """
    # 16 times 1 · 2 added to 2050 and to 0.5: from 2048 on fp16 has every second integer
    assert (executed(body, np.zeros(32, np.uint32)) == 0x50106811).all()


STRUCT = """
.visible .entry kernel(.param .align 8 .b8 given[24], .param .u64 out) {
  .reg .b32 %r<4>; .reg .b64 %rd<4>;
  mov.b64 %rd1, given;
  add.s64 %rd1, %rd1, 8;
  ld.param.u32 %r1, [%rd1+4];
  mov.u32 %r2, %cluster_ctaid.x;
  mad.lo.u32 %r1, %r2, 100, %r1;
  ld.param.u64 %rd2, [out];
  mov.u32 %r3, %ctaid.x;
  mul.wide.u32 %rd3, %r3, 4;
  add.s64 %rd2, %rd2, %rd3;
  st.global.u32 [%rd2], %r1;
  ret;
}
"""


def test_a_struct_is_read_by_an_address_and_a_block_knows_its_place_in_the_clusters_of_the_launch() -> None:
    memory = Global({"out": 16}, frozenset({"out"}))
    arguments = [np.arange(6, dtype=np.uint32).tobytes(), memory.address("out")]
    launch(parse(STRUCT)["kernel"], Shape((4, 1, 1), 1, 0, cluster=2), memory, arguments)
    assert memory.view("out", np.uint32, (4,)).tolist() == [3, 103, 3, 103]


MAPPED = """
  cvta.to.global.u64 %rd4, %rd2;
  mul.wide.u32 %rd5, %r1, 4;
  sub.s64 %rd4, %rd4, %rd5;
  sub.s64 %rd5, %rd1, %rd5;
  shl.b32 %r3, %r1, 2;
  mov.u32 %r4, smem;
  add.u32 %r3, %r4, %r3;
  setp.gt.u32 %p1, %r1, 31;
  @%p1 bra WAITING;
  st.shared.u32 [%r3], 0;
  bar.warp.sync -1;
  setp.ne.u32 %p2, %r1, 0;
  @%p2 bra WRITTEN;
  cvt.u64.u32 %rd6, %r4;
  tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%rd6], %rd5;
  tensormap.replace.tile.rank.shared::cta.b1024.b32 [%rd6], 0;
  tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%rd6], 0, 16;
  tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%rd6], 0, 10;
  tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%rd6], 0, 1;
  tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%rd6], 3;
  mbarrier.init.shared::cta.b64 [%r4+128], 1;
WRITTEN:
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd4], [%r4], 128;
  fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;
  @%p2 bra WAITING;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4+128], 64;
  cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint
    [%r4], [%rd4, {4}], [%r4+128], %rd4;
WAITING:
  bar.sync 0;
AGAIN:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4+128], 0;
  @!%p3 bra AGAIN;
  setp.lt.u32 %p4, %r1, 16;
  @%p4 ld.shared.u32 %r9, [%r3];
"""


def test_tma_follows_a_map_that_the_kernel_wrote_in_shared_memory_and_published() -> None:
    x = np.arange(64, dtype=np.uint32) + 100
    np.testing.assert_array_equal(executed(MAPPED, x, strict=False)[:16], [*range(104, 110), *[0] * 10])


def test_an_mbarrier_without_a_fence_counts_no_copy_unless_it_may() -> None:
    with pytest.raises(FaultError, match=r"without a fence\.mbarrier_init"):
        executed(MAPPED, np.arange(64, dtype=np.uint32))


EXCHANGE = """
  mov.u32 %r4, smem;
  shl.b32 %r3, %r1, 2;
  add.u32 %r5, %r4, %r3;
  st.shared.u32 [%r5], %r2;
  {barrier}
  xor.b32 %r3, %r3, 252;
  add.u32 %r5, %r4, %r3;
  ld.shared.u32 %r9, [%r5];
"""


@pytest.mark.parametrize("order", ORDERS)
def test_warps_exchange_through_shared_memory_at_a_barrier(order: Order) -> None:
    x = np.arange(64, dtype=np.uint32)
    result = executed(EXCHANGE.replace("{barrier}", "bar.sync 0;"), x, order)
    np.testing.assert_array_equal(result, x[::-1])


def test_a_missing_barrier_shows_where_warps_run_one_by_one() -> None:
    x = np.arange(64, dtype=np.uint32)
    result = executed(EXCHANGE.replace("{barrier}", ""), x, "last")
    np.testing.assert_array_equal(result[32:], np.full(32, 0xFFFFFFFF))


def test_a_lanes_local_memory_is_its_own() -> None:
    body = """
      .local .align 8 .b8 depot[16];
      mov.u64 %rd4, depot;
      cvta.local.u64 %rd5, %rd4;
      st.local.u32 [%rd4+8], %r2;
      ld.u32 %r9, [%rd5+8];
    """
    np.testing.assert_array_equal(executed(body, WORDS), WORDS)


COPY = """
  mov.u32 %r4, smem;
  shl.b32 %r3, %r1, 2;
  add.u32 %r5, %r4, %r3;
  cp.async.ca.shared.global [%r5], [%rd1], 4, 4;
  cp.async.commit_group;
  {wait}
  ld.shared.u32 %r9, [%r5];
"""


def test_a_copy_lands_when_its_group_is_waited_for() -> None:
    np.testing.assert_array_equal(executed(COPY.replace("{wait}", "cp.async.wait_group 0;"), WORDS), WORDS)


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;"])
def test_a_copy_that_nobody_waits_for_is_not_there(wait: str) -> None:
    assert (executed(COPY.replace("{wait}", wait), WORDS) == 0xFFFFFFFF).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("count", "arrive"), [(12, ".noinc"), (1, "")])
def test_copies_of_a_thread_land_before_it_arrives_at_a_barrier(count: int, arrive: str, order: Order) -> None:
    body = f"""
      mov.u32 %r4, smem;
      setp.eq.u32 %p1, %r1, 0;
      @%p1 mbarrier.init.shared::cta.b64 [%r4], {count};
      bar.sync 0;
      shl.b32 %r3, %r1, 2;
      add.u32 %r5, %r4, %r3;
      cp.async.ca.shared.global [%r5+16], [%rd1], 4, 4;
      cp.async.mbarrier.arrive{arrive}.shared::cta.b64 [%r4];
      ld.shared.u32 %r6, [%r5+16];
      bar.sync 0;
      {"@%p1 mbarrier.arrive.shared::cta.b64 _, [%r4];" if not arrive else ""}
    AGAIN:
      mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
      @!%p2 bra AGAIN;
      ld.shared.u32 %r9, [%r5+16];
      setp.ne.u32 %p3, %r6, {"%r9" if order == "first" else "-1"};
      @%p3 mov.u32 %r9, 77;
    """
    np.testing.assert_array_equal(executed(body, WORDS, order), WORDS)


@pytest.mark.parametrize(
    ("wait", "found"), [("wait_group", "doubled with the sum"), ("wait_group.read", "doubled before")]
)
def test_sums_of_the_engine_are_there_when_they_are_waited_for_and_not_when_they_are_read(
    wait: str, found: str
) -> None:
    body = f"""
      shl.b32 %r3, %r1, 2;
      mov.u32 %r4, smem;
      add.u32 %r4, %r4, %r3;
      st.shared.u32 [%r4], %r2;
      st.global.f32 [%rd2], 0f3f800000;
      fence.proxy.async.shared::cta;
      bar.sync 0;
      setp.ne.u32 %p1, %r1, 0;
      @%p1 bra ADDED;
      cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd2], [smem], 48;
      cp.async.bulk.commit_group;
      cp.async.bulk.{wait} 0;
    ADDED:
      bar.sync 0;
      ld.global.f32 %f1, [%rd2];
      add.f32 %f1, %f1, %f1;
      mov.b32 %r9, %f1;
    """
    x = np.arange(12, dtype=np.float32)
    sums = {"doubled with the sum": 2 * (1 + x), "doubled before": 2 + x}  # the latter arrive when the thread has left
    np.testing.assert_array_equal(executed(body, x.view(np.uint32)).view(np.float32), sums[found])


def test_a_phase_ends_when_all_have_arrived_and_all_bytes_have_landed() -> None:
    body = """
      mov.u32 %r4, smem;
      setp.ne.u32 %p1, %r1, 0;
      @%p1 bra WAITING;
      mbarrier.init.shared::cta.b64 [%r4], 1;
      fence.mbarrier_init.release.cluster;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 48;
      add.u32 %r5, %r4, 16;
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd1], 48, [%r4];
    WAITING:
      bar.sync 0;
      shl.b32 %r3, %r1, 2;
      add.u32 %r5, %r4, %r3;
      ld.shared.u32 %r6, [%r5+16];
    AGAIN:
      mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
      @!%p2 bra AGAIN;
      ld.shared.u32 %r9, [%r5+16];
      setp.ne.u32 %p3, %r6, -1;
      @%p3 mov.u32 %r9, 0;
    """
    np.testing.assert_array_equal(executed(body, WORDS), WORDS)


FAULTS = {
    "ld.global.u32 %r9, [%rd1+4096];": "reads 4 bytes at offset",
    "st.global.u32 [%rd1], %r9;": "writes 4 bytes at offset 0 of in .* which kernels may not write",
    "ld.global.v2.u32 {%r9, %r3}, [%rd1];": "reads 8 bytes at offset 44 of in .48., beyond its end",
    "sub.s64 %rd1, %rd1, %rd3; ld.global.v2.u32 {%r9, %r3}, [%rd1+4];": "not a multiple of 8",
    "ld.shared.u32 %r9, [smem+256];": "4 bytes at offset 256 of shared memory",
    "setp.eq.u32 %p1, %r1, 0; @%p1 bra L; bar.sync 0; L: bar.warp.sync 1;": "deadlock: 11 lanes wait",
    "bar.sync 1, 64;": "deadlock: 12 lanes wait, thread 0 of block 0 at a block's barrier .line 13 of kernel: bar.sync",
    "L: nanosleep.u32 1; bra L;": "livelock",
    "ld.global.nc.u32 %r9, [%rd2];": "ld.global.nc reads data that the same launch writes",
    "st.global.u32 [%rd2], %r9; ld.global.nc.u32 %r9, [%rd2];": "ld.global.nc reads data that the same launch writes",
    "mbarrier.arrive.shared::cta.b64 _, [smem];": "no mbarrier at offset 0",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [%rd2], [smem], 16;": "unsupported: cp.reduce.async",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%r3}, {%r3}, {%r3}, {%r3};": "unsupported: mma.sync",
}


@pytest.mark.parametrize("body", FAULTS)
def test_what_ptx_forbids_is_named_with_its_line(body: str) -> None:
    with pytest.raises(FaultError, match=rf"{FAULTS[body]}.*"):
        executed(body, WORDS)


@pytest.mark.parametrize(
    "body",
    [
        "add.sat.u32 %r9, %r2, 1;",
        "add.rz.f64 %fd1, %fd2, %fd3;",
        "div.rz.f64 %fd1, %fd2, %fd3;",
        "add.rz.f16x2 %r9, %r2, %r2;",
        "cvt.rm.bf16.f32 %h1, %f1;",
    ],
)
def test_a_qualifier_that_would_change_the_result_is_refused(body: str) -> None:
    with pytest.raises(FaultError, match="unsupported"):
        executed(body, WORDS)


def test_a_loop_that_never_ends_is_ended_at_its_line() -> None:
    entry = parse(HEAD + "AGAIN:\n  add.u32 %r9, %r9, 1;\n  bra AGAIN;" + TAIL)["kernel"]
    memory = Global({"in": 48, "out": 48}, frozenset({"out"}))
    values = [memory.address("in"), memory.address("out")]
    with pytest.raises(FaultError, match=r"still running after 0\.1 s of CPU time.*line 1\d of kernel: add"):
        launch(entry, Shape((1, 1, 1), 12, 0), memory, values, most_seconds=0.1)


def test_a_fault_names_the_line_of_the_text() -> None:
    with pytest.raises(FaultError, match=r"\(line 14 of kernel: ld\.global\.u32"):
        executed("\n  ld.global.u32 %r9, [%rd1+4096];", WORDS)


def test_an_unknown_instruction_that_nobody_reaches_does_no_harm() -> None:
    assert (executed("bra OVER; txq.width.b32 %r9, [%rd1]; OVER:", WORDS) == 0).all()
