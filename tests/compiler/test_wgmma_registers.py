"""Tests of the search for instructions that overwrite registers of a wgmma in flight."""

import re
from dataclasses import replace

import pytest

from tests.compiler.test_lint import ENTRY, attention
from tuner.compiler.lint import lint
from tuner.compiler.sass.decode import Instruction, decode
from tuner.compiler.sass.fields import groups_left
from tuner.compiler.sass.wgmma_registers import overwrites_in_flight, waits_for_wgmma, written_registers
from tuner.errors import MachineError

WIDTHS = (("LDSM", ".4", 4), ("LDSM", ".2", 2), ("HMMA", "", 4), ("CS2R", "", 2), ("D", "", 2), ("IMAD", ".WIDE", 2))
LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([\w.]+)(?: !?U?P\w,)*(?: R(\d+),)?", re.MULTILINE)


def code_of(overlap: int) -> tuple[Instruction, ...]:
    return decode(attention(BN=96, overlap=overlap, ping_pong=False).code(ENTRY), "sm_90a")


def with_one_more_in_flight(code: tuple[Instruction, ...], place: int) -> tuple[Instruction, ...]:
    """The same code, but a wait that leaves none in flight leaves one."""
    assert groups_left(code[place].word) == 0
    return tuple(
        replace(instruction, word=instruction.word | 1 << 72) if i == place else instruction
        for i, instruction in enumerate(code)
    )


@pytest.mark.parametrize("overlap", [0, 1, 2])
def test_what_writes_a_register_of_a_product_in_flight_is_found(overlap: int) -> None:
    code = code_of(overlap)
    assert overwrites_in_flight(code) == ()
    last = max(i for i, instruction in enumerate(code) if waits_for_wgmma(instruction))  # before O is scaled and stored
    result = overwrites_in_flight(with_one_more_in_flight(code, last))
    assert result
    assert min(result) > last


def test_a_lint_says_so() -> None:
    cubin = attention(BN=96, overlap=1, ping_pong=False)
    assert lint(cubin, ENTRY).ok
    code, at = cubin.code(ENTRY), 0
    for index, instruction in enumerate(decode(code, "sm_90a")):
        if waits_for_wgmma(instruction) and groups_left(instruction.word) == 0:
            at = 16 * index
    word = int.from_bytes(code[at : at + 16], "little") | 1 << 72
    image = cubin.image.replace(code, code[:at] + word.to_bytes(16, "little") + code[at + 16 :])
    (reason,) = lint(replace(cubin, image=image), ENTRY).failures
    assert "write registers of a wgmma that may still use them" in reason


def test_registers_are_those_that_nvdisasm_prints() -> None:
    cubin = attention(BN=96, overlap=1, ping_pong=False)
    try:
        text = cubin.disassemble(ENTRY)
    except MachineError as error:
        pytest.skip(str(error))
    lines = LINE.findall(text)
    code = decode(cubin.code(ENTRY), "sm_90a")
    compared = 0
    for (name, first), instruction in zip(lines, code, strict=True):
        if not written_registers(instruction):
            continue
        width = next((n for base, part, n in WIDTHS if name.startswith(base) and part in name), 0)
        width = width or {".64": 2, ".128": 4}.get("".join(re.findall(r"\.(?:64|128)\b", name)), 1)
        assert written_registers(instruction) == (1 << width) - 1 << int(first), name
        compared += 1
    assert compared > 500
