"""Tests of warp-wide instructions: in the machine code they remain where all lanes are active."""

from itertools import product

import pytest

from tests.support.claims import compiled
from tuner.base.assets import TEMPLATES
from tuner.compiler.render import headers
from tuner.compiler.sass.decode import decode
from tuner.compiler.source import Source

KERNEL = """
#include "{header}"

extern "C" __global__ void root(uint32_t* out, uint32_t const* in) {{
  {collective}
  if (in[threadIdx.x + 256] & 1) out[threadIdx.x] = found;
}}
"""
FRAGMENTS = "uint32_t const a[4] = {in[threadIdx.x], in[1], in[2], in[3]}, b[2] = {in[4], in[5]}; float d[4] = {};"
COLLECTIVES = {
    "MOVM": ("movmatrix.cuh", "uint32_t const found = movmatrix_trans(in[threadIdx.x]);"),
    "HMMA": ("mma.cuh", FRAGMENTS + " mma_m16n8k16<bf16>(d, a, b); uint32_t const found = __float_as_uint(d[0]);"),
    "LDSM": ("ldmatrix.cuh", "uint32_t r[1]; ldmatrix<1>(r, 16 * threadIdx.x); uint32_t const found = r[0];"),
}
BLACKWELL = {
    "LDTM": ("tcgen05.cuh", "uint32_t r[1]; tcgen05_ld_32x32b(r, 0); tcgen05_wait_ld(); uint32_t const found = r[0];"),
    "ELECT": ("tcgen05.cuh", "uint32_t const found = elect_one();"),
}


@pytest.mark.parametrize(
    ("mnemonic", "arch"),
    [*product(COLLECTIVES, ("sm_80", "sm_90a", "sm_120a")), *product([*COLLECTIVES, *BLACKWELL], ("sm_100a",))],
)
def test_a_collective_does_not_move_into_the_branch_that_takes_its_result(mnemonic: str, arch: str) -> None:
    header, collective = (COLLECTIVES | BLACKWELL)[mnemonic]
    text = KERNEL.format(header=header, collective=collective)
    cubin = compiled(Source(("root",), text, headers(text, TEMPLATES, "cuda"), "cuda"), arch)
    code = decode(cubin.code("root"), arch)
    leaves = [
        i for i, instruction in enumerate(code) if instruction.mnemonic in ("BRA", "EXIT") and not instruction.always
    ]
    assert [instruction.mnemonic for instruction in code[: leaves[0]]].count(mnemonic) == 1
