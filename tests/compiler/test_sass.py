"""Tests of the machine-code decoder on known kernels and, if installed, against nvdisasm."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tuner.arch import ARCHES
from tuner.base.cache import Cache
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.sass import decode as sass
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.errors import MachineError

KERNELS = Path(__file__).parent / "kernels"
PACKED = """extern "C" __global__ void packed(unsigned long long* x) {
  unsigned long long d;
  asm volatile("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(d) : "l"(x[0]), "l"(x[1]), "l"(x[2]));
  asm volatile("mul.rn.f32x2 %0, %0, %1;" : "+l"(d) : "l"(x[3]));
  x[threadIdx.x] = d;
}"""


def compiled(text: str, arch: str) -> Cubin:
    cubin = nvrtc.compile(Source((), text, (), "cuda"), Options(arch), Cache.of("cubin"))
    assert isinstance(cubin, Cubin), cubin
    return cubin


@cache
def every_class(arch: str) -> Cubin:
    return compiled((KERNELS / "sass.cu").read_text(), arch)


@cache
def hopper() -> Cubin:
    return compiled((KERNELS / "hopper.cu").read_text(), "sm_90a")


@cache
def blackwell() -> Cubin:
    return compiled((KERNELS / "blackwell.cu").read_text(), "sm_100a")


def disassembled(cubin: Cubin, entry: str) -> str:
    try:
        return cubin.disassemble(entry)
    except MachineError as error:
        if "kerntune[sass]" not in str(error):
            raise
        pytest.skip(str(error))


def as_in_a_mix(mnemonic: str) -> str:
    """nvdisasm's `LDG.E.128.CONSTANT` as this package counts it: `LDG.128`."""
    base, *rest = mnemonic.split(".")
    base = {"REDG": "RED"}.get(base, base)
    widths = [part.lstrip("US") for part in rest if re.fullmatch(r"[US]?(8|16|32|64|128)", part)]
    if base == "HMMA":
        return f"HMMA.{next(part for part in rest if re.fullmatch(r'16[0-9]+', part))}"
    if base in ("HGMMA", "MUFU"):
        return f"{base}.{rest[0]}"
    if base in ("LDSM", "STSM"):
        return f"{base}.x{rest[-1] if rest[-1] in '24' else 1}"
    if base in ("LDS", "STS", "LDG", "STG", "LDL", "STL", "LD", "ST", "LDGSTS"):
        return f"{base}.{widths[0] if widths else 32}"
    return base if base in sass._CLASSES else "OTHER"


def mix_of(text: str) -> Counter[str]:
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ )?([\w.]+)", text)
    return Counter(name for name in map(as_in_a_mix, lines) if name != "NOP")


def loops_of(text: str) -> list[tuple[int, int]]:
    """(first instruction, branch) of each backward branch, by nvdisasm's labels."""
    labels: dict[str, int] = {}
    results, open_labels = [], []
    for line in text.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            open_labels.append(label[1])
        elif instruction := re.match(r" +/\*([0-9a-f]{4,})\*/ +(.*?) ;", line):
            at = int(instruction[1], 16)
            labels |= dict.fromkeys(open_labels, at)
            open_labels = []
            target = re.search(r"BRA\S* .*?\(?(\.L_x_\d+)", instruction[2])
            if target and labels.get(target[1], at) < at:
                results.append((labels[target[1]], at))
    return results


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ARCHES)
def test_the_decoder_agrees_with_nvdisasm_on_every_instruction(arch: str) -> None:
    cubin = every_class(arch)
    for entry in cubin.entries:
        assert cubin.instruction_mix(entry) == mix_of(disassembled(cubin, entry)), entry


def test_the_decoder_agrees_with_nvdisasm_on_what_only_hopper_has() -> None:
    cubin = hopper()
    for entry in cubin.entries:
        assert cubin.instruction_mix(entry) == mix_of(disassembled(cubin, entry)), entry


@pytest.mark.parametrize("arch", [name for name, arch in ARCHES.items() if arch.has_tcgen05])
def test_the_decoder_agrees_with_nvdisasm_on_what_only_tcgen05_has(arch: str) -> None:
    cubin = compiled((KERNELS / "blackwell.cu").read_text(), arch)
    for entry in cubin.entries:
        assert cubin.instruction_mix(entry) == mix_of(disassembled(cubin, entry)), entry


@pytest.mark.parametrize("arch", ["sm_100a", "sm_120a"])
def test_the_decoder_agrees_with_nvdisasm_on_packed_arithmetic(arch: str) -> None:
    cubin = compiled(PACKED, arch)
    assert cubin.instruction_mix("packed") == mix_of(disassembled(cubin, "packed"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ARCHES)
def test_loops_are_where_nvdisasm_has_backward_branches(arch: str) -> None:
    cubin = every_class(arch)
    results = [(16 * loop.indices[0], 16 * loop.indices[-1]) for loop in cubin.innermost_loops("products")]
    assert results == loops_of(disassembled(cubin, "products"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ARCHES)
def test_matrix_products_are_counted_by_shape(arch: str) -> None:
    mix = every_class(arch).instruction_mix("products")
    assert {name: mix[name] for name in mix if name.startswith("HMMA")} == {
        "HMMA.16816": 4,
        "HMMA.1688": 4,
        "HMMA.1684": 1,
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ARCHES)
def test_copies_are_counted_by_width_and_ldmatrix_by_matrices(arch: str) -> None:
    mix = every_class(arch).instruction_mix("copies")
    expected = {"LDGSTS.128": 3, "LDGSTS.64": 1, "LDGSTS.32": 1, "LDSM.x1": 1, "LDSM.x2": 1, "LDSM.x4": 1}
    assert {name: count for name, count in mix.items() if name.startswith(("LDGSTS", "LDSM"))} == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ARCHES)
def test_the_loop_that_runs_is_found_with_its_own_mix(arch: str) -> None:
    (loop,) = every_class(arch).innermost_loops("products")
    assert sass.work_mix(loop.mix)["mma"] == 2.5  # two m16n8k16 and half of one


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ARCHES)
def test_almost_nothing_is_unknown(arch: str) -> None:
    cubin = every_class(arch)
    total = sum((Counter(cubin.instruction_mix(entry)) for entry in cubin.entries), Counter[str]())
    assert total["OTHER"] < 0.01 * total.total()


def test_warpgroup_products_count_by_their_size() -> None:
    mix = hopper().instruction_mix("warpgroup")
    assert {name for name in mix if name.startswith("HGMMA")} == {"HGMMA.64x8x16", "HGMMA.64x8x8", "HGMMA.64x72x16"}
    assert sass.work_mix(mix)["mma"] == 4 + 2 + 36


def test_products_that_one_thread_issues_are_a_class_of_their_own() -> None:
    """Their size is in a register."""
    classes = sass.work_mix(blackwell().instruction_mix("elected"))
    assert (classes["tcgen05"], classes.get("mma")) == (4 + 1, None)
    assert blackwell().instruction_mix("softmax")["LDTM"] == 1


def test_packed_arithmetic_counts_for_both_its_numbers() -> None:
    mix = compiled(PACKED, "sm_100a").instruction_mix("packed")
    classes = sass.work_mix(mix)
    assert classes["fma"] == classes["paired"] == 2 * (mix["FFMA2"] + mix["FMUL2"]) == 4


def test_spilled_registers_show_as_local_memory() -> None:
    mix = every_class("sm_90a").instruction_mix("spills")
    assert sass.work_mix(mix)["local"] > 50


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arch", ARCHES)
def test_accesses_of_a_memory_that_the_compiler_does_not_know_are_a_class_of_their_own(arch: str) -> None:
    mix = every_class(arch).instruction_mix("generic")
    widths = {"LD.128": 1, "LD.64": 1, "LD.16": 1, "ST.128": 1, "ST.64": 1, "ST.8": 1}
    assert {name: mix[name] for name in widths} == widths
    accesses = sum(count for name, count in mix.items() if name.partition(".")[0] in ("LD", "ST", "ATOM", "QSPC"))
    assert sass.work_mix(mix)["generic"] == accesses >= 6 + 3 and mix["ATOM"] >= 3


def test_a_loop_inside_a_loop_is_the_one_that_is_told() -> None:
    nested = """extern "C" __global__ void nested(float* x, int n) {
#pragma unroll 1
      for (int i = 0; i < n; ++i) {
        __syncthreads();
#pragma unroll 1
        for (int j = 0; j < n; ++j) x[j] = __sinf(x[j + i]);
      }
    }"""
    (loop,) = compiled(nested, "sm_80").innermost_loops("nested")
    assert loop.mix["MUFU.SIN"] == 1 and "BAR" not in loop.mix


def test_disassembly_is_of_the_kernel_asked_for_alone() -> None:
    text = disassembled(every_class("sm_90a"), "copies")
    assert "LDGSTS" in text and "EXIT" in text and "HMMA" not in text


def test_an_nvdisasm_that_fails_says_why() -> None:
    disassembled(every_class("sm_90a"), "copies")
    with pytest.raises(MachineError, match=r"nvdisasm failed .*truncated"):
        sass.disassemble(b"no cubin")


def test_a_missing_nvdisasm_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.path", [str(tmp_path)])  # where installed distributions are looked for
    with pytest.raises(MachineError, match=r"kerntune\[sass\]"):
        sass.disassemble(every_class("sm_80").image)
