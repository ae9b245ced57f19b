"""Tests of functions, tables and assertions of a PTX module on the PTX interpreter."""

import numpy as np
import pytest

from tuner.backends.ptx import FaultError, Global, Shape, launch, parse
from tuner.errors import UsageError

MODULE = """
.extern .func __assertfail (.param .b64 message);
.extern .func (.param .b32 printed) vprintf (.param .b64 text, .param .b64 values);
.const .align 4 .b8 weights[12] = {1, 0, 0, 0, 10, 0, 0, 0, 100};
.global .align 4 .u32 count = 5;
.func (.param .b32 result) twice(.param .b32 value) {
  .reg .b32 %r<3>; .reg .pred %p<2>;
  ld.param.u32 %r1, [value];
  setp.gt.u32 %p1, %r1, 100;
  @%p1 bra LARGE;
  add.u32 %r1, %r1, %r1;
  st.param.b32 [result+0], %r1;
  ret;
LARGE:
  st.param.b32 [result+0], 7;
  ret;
}
.func (.param .b32 result) weighted(.param .b32 value, .param .b32 which) {
  .reg .b32 %r<9>; .reg .b64 %rd<4>;
  ld.param.u32 %r1, [value];
  ld.param.u32 %r2, [which];
  mul.wide.u32 %rd1, %r2, 4;
  mov.u64 %rd2, weights;
  add.s64 %rd2, %rd2, %rd1;
  ld.const.u32 %r3, [%rd2];
  mul.lo.u32 %r1, %r1, %r3;
  {
    .param .b32 param0;
    st.param.b32 [param0+0], %r1;
    .param .b32 retval0;
    call.uni (retval0), twice, (param0);
    ld.param.b32 %r4, [retval0+0];
  }
  st.param.b32 [result+0], %r4;
  ret;
}
.visible .entry kernel(.param .u64 out) {
  .reg .b32 %r<9>; .reg .b64 %rd<6>; .reg .pred %p<3>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  rem.u32 %r2, %r1, 3;
  {
    .param .b32 param0;
    st.param.b32 [param0+0], %r1;
    .param .b32 param1;
    st.param.b32 [param1+0], %r2;
    .param .b32 retval0;
    call.uni (retval0), weighted, (param0, param1);
    ld.param.b32 %r3, [retval0+0];
  }
  {
    .param .b32 param0;
    st.param.b32 [param0+0], %r3;
    .param .b32 retval0;
    call.uni (retval0), twice, (param0);
    ld.param.b32 %r3, [retval0+0];
  }
  mov.u64 %rd4, count;
  atom.global.add.u32 %r4, [%rd4], 1;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd1, %rd1, %rd2;
  st.global.u32 [%rd1], %r3;
  {
    .param .b64 param0;
    st.param.b64 [param0+0], %rd1;
    .param .b64 param1;
    st.param.b64 [param1+0], %rd1;
    .param .b32 retval0;
    call.uni (retval0), vprintf, (param0, param1);
  }
  setp.gt.u32 %p1, %r1, LIMIT;
  @!%p1 bra DONE;
  {
    .param .b64 param0;
    st.param.b64 [param0+0], %rd1;
    call.uni __assertfail, (param0);
  }
DONE:
  ret;
}
"""


def twice(value: int) -> int:
    return 7 if value > 100 else 2 * value


def run(limit: int) -> tuple[list[int], int]:
    """(what each of 32 threads wrote, what they counted)"""
    entry = parse(MODULE.replace("LIMIT", str(limit)))["kernel"]
    memory = Global(
        {"out": 128, **{table.key: len(table.data) for table in entry.tables}}, frozenset({"out", "the module's count"})
    )
    for table in entry.tables:
        memory.view(table.key, np.uint8, (len(table.data),))[...] = np.frombuffer(table.data, np.uint8)
    launch(entry, Shape((1, 1, 1), 32, 0), memory, [memory.address("out")])
    return memory.view("out", np.uint32, (32,)).tolist(), int(memory.view("the module's count", np.uint32, (1,))[0])


def test_functions_that_call_functions_return_to_their_callers() -> None:
    result, count = run(limit=99)
    assert result == [twice(twice(i * (1, 10, 100)[i % 3])) for i in range(32)]
    assert count == 5 + 32


def test_an_assertion_that_does_not_hold_is_a_fault_with_its_line() -> None:
    with pytest.raises(
        FaultError, match=r"an assertion of the kernel failed \(line \d+ of kernel: call.uni __assertfail"
    ):
        run(limit=30)


def test_recursion_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="call themselves"):
        parse(
            MODULE.replace(
                "call.uni (retval0), twice, (param0);\n    ld.param.b32 %r4",
                "call.uni (retval0), weighted, (param0, param0);\n    ld.param.b32 %r4",
            )
        )


def test_a_table_of_addresses_is_refused_only_where_a_kernel_names_it() -> None:
    text = MODULE.replace(".global .align 4 .u32 count = 5;", ".global .align 8 .u64 count[1] = {weights};")
    with pytest.raises(UsageError, match="table of addresses"):
        parse(text)
    parse(text.replace("mov.u64 %rd4, count;", "mov.u64 %rd4, 0;"))
