"""The compiler's PTX of the operators' kernels, executed and judged as on the emulator; and errors put into it."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner
from wgmma_questions import QUESTIONS, Question, equal_weights, one_column, wrong_columns, wrong_lse

from tuner import nvrtc, operators, ptx
from tuner.arch import ARCHES
from tuner.check import Job, cases, drawn
from tuner.check_ptx import check_ptx
from tuner.cli.app import build
from tuner.operator import canonical, to_fields
from tuner.render import render
from tuner.result import Failed
from tuner.toolkit import Options

# One of each family: plain loops, mma with cp.async, a look-back over blocks, chunks in tf32 and bf16, TMA and wgmma.
FAMILIES = {
    "flash_attention/naive": ("sm_80", 1),
    "flash_attention/mma_sync": ("sm_80", 4),
    "flash_attention/split_keys": ("sm_90a", 2),
    "flash_attention_backward/wgmma": ("sm_90a", 2),
    "kda/fused": ("sm_80", 2),
    "kda/recurrent": ("sm_80", 1),
    "linear_attention/lookback": ("sm_80", 2),
    "streaming_attention/split_keys": ("sm_80", 2),
}


def job_of(name: str, arch: str) -> Job:
    operator, implementation = name.split("/")
    found = operators.implementation(operator, implementation)
    problem = found.example or operators.load(operator).problem()
    return Job(operator, implementation, to_fields(problem), to_fields(found.default(problem, ARCHES[arch])))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_ptx_of_a_default_computes_what_its_operator_says(name: str) -> None:
    arch, most = FAMILIES[name]
    verdict = check_ptx(job_of(name, arch), ARCHES[arch], most, ["together"])
    assert verdict.ok, verdict.reason
    assert len(verdict.checks) == most


@pytest.mark.parametrize("name", ["flash_attention/mma_sync", "linear_attention/lookback"])
def test_the_order_in_which_warps_run_changes_nothing(name: str) -> None:
    verdict = check_ptx(job_of(name, "sm_80"), ARCHES["sm_80"], 1)
    assert verdict.ok, verdict.reason
    assert [each.partition(":")[0].split()[-1] for each in verdict.checks] == list(ptx.ORDERS)


# Wrong in the assembly that only a GPU runs: the emulator, which compiles its twins, calls each of them right.
ERRORS = {
    "halves of B swapped": ("mma_sync", "mma.cuh", "{%8,%9}", "{%9,%8}"),
    "quarters of A swapped": ("mma_sync", "mma.cuh", "{%4,%5,%6,%7}", "{%4,%6,%5,%7}"),
    "matrices in another order": ("mma_sync", "ldmatrix.cuh", "trans.shared.b16 {%0, %1", "trans.shared.b16 {%1, %0"),
    "rows for columns": ("mma_sync", "ldmatrix.cuh", "x4.shared", "x4.trans.shared"),
    "halves of a pair swapped": ("mma_sync", "types.cuh", '"f"(hi), "f"(lo)', '"f"(lo), "f"(hi)'),
    "bytes beyond a tail copied": ("mma_sync", "cp_async.cuh", "16, %2;", "16, 16;"),
    "no wait for copies": ("mma_sync", "cp_async.cuh", "cp.async.wait_group %0;", ""),
    "coordinates in another order": ("wgmma", "tma.cuh", "{%3, %4, %5, %6}", "{%3, %5, %4, %6}"),
    "a group of rows nearer": ("wgmma", "wgmma.cuh", "uint64_t(stride >> 4)", "uint64_t(stride >> 5)"),
    "no wait for products": ("wgmma", "wgmma.cuh", "wgmma.wait_group.sync.aligned %0;", ""),
    "the other parity": ("wgmma", "mbarrier.cuh", "b64 p, [%0], %1;", "b64 p, [%0], 0;"),
    "fewer bytes expected": ("wgmma", "mbarrier.cuh", '"r"(bytes)', '"r"(bytes - 16)'),
}  # fmt: skip


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_in_the_assembly_is_seen(error: str) -> None:
    implementation, header, old, new = ERRORS[error]
    assert not is_right(implementation, header, old, new), "nothing was seen"


@pytest.mark.parametrize("implementation", ["mma_sync", "wgmma"])
def test_without_an_error_none_is_seen(implementation: str) -> None:
    assert is_right(implementation, "types.cuh", "#pragma once", "#pragma once")


def is_right(name: str, header: str, old: str, new: str) -> bool:
    """Whether flash_attention on 77 keys is, with `old` replaced by `new` in a header."""
    operator, implementation = operators.load("flash_attention"), operators.implementation("flash_attention", name)
    problem = operator.problem()
    config = implementation.default(problem, ARCHES["sm_90a"])
    source = render(operator, implementation, problem, config)
    changed = tuple((file, text.replace(old, new) if file == header else text) for file, text in source.headers)
    assert changed != source.headers or old == new, f"{header} has no {old}"
    text = nvrtc.ptx(replace(source, headers=changed), Options("sm_90a"))
    assert not isinstance(text, Failed), text
    case = cases(operator, problem)[1]
    arrays, expected = drawn(operator.name, canonical(case.problem), case.kind)
    outputs, run = ptx.run(operator, implementation, ptx.parse(text), case.problem, config, arrays)
    return not run.fault and all(error.ok for error in expected.errors(outputs))


@pytest.mark.parametrize("question", QUESTIONS[5::12], ids=lambda question: question.name)
def test_columns_of_a_tile_are_found_where_the_descriptors_say(question: Question) -> None:
    operator, wgmma = operators.load("flash_attention"), operators.implementation("flash_attention", "wgmma")
    problem, column = question.problem, question.head_dim - 1
    text = nvrtc.ptx(render(operator, wgmma, problem, question.config), Options("sm_90a"))
    assert not isinstance(text, Failed), text
    for arrays in (equal_weights(problem), one_column(problem, column)):
        outputs, run = ptx.run(operator, wgmma, ptx.parse(text), problem, question.config, arrays)
        assert run.fault == ""
        if arrays["q"].any():
            assert not wrong_lse(arrays, column, outputs["lse"])
        else:
            assert wrong_columns(arrays, outputs["o"]) == []


def test_verify_tells_both_verdicts() -> None:
    words = ["verify", "linear_attention", "--implementation", "naive", "--plain", "--ptx"]
    told = CliRunner().invoke(build(), words)
    assert told.exit_code == 0, told.output
    assert "errors against float64 (emulator)" in told.output
    assert "errors against float64 (PTX for sm_80)" in told.output
