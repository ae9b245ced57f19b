"""Tests of cubins: usage by kernel, digest, and the ELF file."""

import struct
from functools import cache

import pytest

from tests.support.claims import compiled as compiled_once
from tuner.compiler import cubin
from tuner.compiler.cubin import Cubin, read
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options, Toolkit

TWO_KERNELS = """
__device__ __noinline__ float poly(float x, int n) { for (int i = 0; i < n; ++i) x = x * x + 1; return x; }
extern "C" __global__ void __launch_bounds__(96) first(float* x, int n) {
  __shared__ float s[128];
  s[threadIdx.x] = poly(x[threadIdx.x], n);
  __syncthreads();
  x[threadIdx.x] = s[127 - threadIdx.x];
}
extern "C" __global__ void second(float* x) { x[threadIdx.x] = 1; }
"""
SPILLING = """extern "C" __global__ void __launch_bounds__(1024) spilling(float* x) {
  float a[128], r = 0;
  for (int i = 0; i < 128; ++i) a[i] = x[1024 * i + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 128; ++i) r += a[i] * a[(7 * i + 3) % 128];
  x[threadIdx.x] = r;
}"""


@cache
def compiled(text: str, arch: str = "sm_90a") -> Cubin:
    return compiled_once(Source((), text, (), "cuda"), arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_each_kernel_has_its_usage_and_called_functions_are_no_kernels(arch: str) -> None:
    entries = compiled(TWO_KERNELS, arch).entries
    assert set(entries) == {"first", "second"}
    assert (entries["first"].static_shared, entries["second"].static_shared) == (512, 0)
    assert (entries["first"].max_threads, entries["second"].max_threads) == (96, 0)
    assert entries["first"].barriers == 1 and all(usage.registers > 0 for usage in entries.values())


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_a_kernel_tells_how_many_blocks_are_a_cluster(arch: str) -> None:
    text = 'extern "C" __global__ %s void first(float* x) { x[threadIdx.x] = 1; }'
    attributes = ("", "__cluster_dims__(4, 1, 1)")
    assert [compiled(text % attribute, arch).entries["first"].cluster for attribute in attributes] == [1, 4]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_parameters_count_as_constant_memory(arch: str) -> None:
    entries = compiled(TWO_KERNELS, arch).entries
    assert entries["first"].constant - entries["second"].constant == 4  # the int


def test_spills_are_told() -> None:
    usage = compiled(SPILLING).entries["spilling"]
    assert usage.registers == 64 and usage.spill_stores > 0 and usage.spill_loads > 0 and usage.stack > 0


def test_the_image_is_a_whole_elf_file() -> None:
    image = compiled(TWO_KERNELS).image
    program_headers, count = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    assert len(image) == program_headers + 56 * count  # they are the last thing in it


def test_the_digest_is_of_machine_code_and_not_of_its_spelling() -> None:
    respelt = TWO_KERNELS.replace("1;", "(2 - 1);").replace("int i", "int step").replace("++i", "++step")
    respelt = respelt.replace("i < n", "step < n")
    assert compiled(respelt).sass_digest == compiled(TWO_KERNELS).sass_digest


@pytest.mark.parametrize(
    ("old", "new"),
    [("127 -", "126 -"), ("x * x + 1", "x * x + 2"), ("second", "zweite")],
    ids=["kernel", "called function", "name"],
)
def test_the_digest_changes_with(old: str, new: str) -> None:
    assert compiled(TWO_KERNELS.replace(old, new)).sass_digest != compiled(TWO_KERNELS).sass_digest


def test_the_digest_changes_with_a_constant_table() -> None:
    table = '__constant__ float t[2] = {1, 2}; extern "C" __global__ void k(float* x, int n) { x[0] = t[n]; }'
    assert compiled(table).sass_digest != compiled(table.replace("1, 2", "1, 3")).sass_digest


def test_an_unknown_kernel_is_named_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"no kernel 'third'.*first.*second|no kernel 'third'.*second.*first"):
        compiled(TWO_KERNELS).instruction_mix("third")


def test_cubins_are_equal_however_long_they_took() -> None:
    one, other = compiled(TWO_KERNELS), compiled.__wrapped__(TWO_KERNELS)
    assert one == other and hash(one) == hash(other) and one.compile_seconds > 0


def test_a_log_that_is_not_the_images_is_refused() -> None:
    with pytest.raises(ValueError, match="no usage of"):
        read(compiled(TWO_KERNELS).image, "", Options("sm_90a"), Toolkit("nvrtc", "13.4"))


@pytest.mark.parametrize("kept", [0, 5, 63, 64, 1000, -3000])
def test_a_file_cut_short_is_refused(kept: int) -> None:
    with pytest.raises(ValueError, match="ELF"):
        cubin.sections(compiled(TWO_KERNELS).image[:kept])
