"""Tests of the simulation of machine code against published measurements, and of its rules."""

import json
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.claims import compiled
from tuner.arch import gpu
from tuner.cli.app import build
from tuner.compiler.cubin import Cubin
from tuner.compiler.sass.decode import Instruction
from tuner.compiler.sass.instruction_timing import timing_of
from tuner.compiler.sass.paths import Path as Way
from tuner.compiler.sass.paths import common_path, paths
from tuner.compiler.sass.simulate import PathCycles, simulate_kernel, simulate_path
from tuner.compiler.source import Source

CHAINS = Path(__file__).parent / "kernels" / "chains.cu"
A100 = gpu("A100")
MISSING = 7  # of a counter's field

ALWAYS = 7 << 12
OPCODES = {  # with the form of their operands
    "FFMA": 0x223,
    "FFMA2": 0x249,
    "LDS": 0x984,
    "LD": 0x980,
    "BAR": 0xB1D,
    "LDGSTS": 0xFAE,
    "LDGDEPBAR": 0x9AF,
    "DEPBAR": 0x91A,
    "BRA": 0x947,
    "EXIT": 0x94D,
    "HMMA": 0x23C,
}
DOUBLES = {0x22A: "DSETP", 0x22B: "DFMA", 0x310: "F2F", 0x311: "F2I", 0x305: "F2I"}
WORD, QUAD = 4 << 73, 6 << 73  # bytes that a lane accesses: 4, or 16


@cache
def chains() -> Cubin:
    return compiled(Source((), CHAINS.read_text(), (), "cuda"), "sm_80")


def step_of_loop(entry: str, steps: int) -> float:
    """Clocks of one warp's step in the only loop of a kernel."""
    _, loop = simulate_kernel(chains().instructions(entry), A100, warps=1, blocks=1)
    return loop.alone / steps


def instruction(
    name: str,
    more: int = 0,
    *,
    stall: int = 1,
    waits: int = 0,
    result: int = MISSING,
    read: int = MISSING,
    target: int | None = None,
    guard: int = ALWAYS,
) -> Instruction:
    """With its control bits; `waits` is a mask of counters, `more` holds the bits of its own."""
    condition = 7 << 87 if target is not None else 0
    control = stall << 105 | result << 110 | read << 113 | waits << 116
    return Instruction(OPCODES[name] | guard | condition | control | more, name, name, target)


def replay(*code: Instruction, warps: int = 1, blocks: int = 1, loop: bool = True) -> PathCycles:
    return simulate_path(code, Way(tuple(range(len(code))), loop), A100, warps, blocks)


def test_dependent_products_take_what_was_measured_on_an_a100() -> None:
    assert step_of_loop("products", 16) == pytest.approx(24.7, rel=0.1)  # Sun et al., arXiv 2206.02874, table 3


def test_dependent_sums_take_four_clocks() -> None:
    assert step_of_loop("sums", 32) == pytest.approx(4, rel=0.1)


def test_dependent_loads_take_what_was_measured_of_shared_memory() -> None:
    assert step_of_loop("loads", 32) == pytest.approx(23, rel=0.15)  # Sun et al., table 9


def test_a_stall_count_holds_its_own_warp_alone() -> None:
    code = (instruction("FFMA", stall=4),) * 8
    assert replay(*code).alone == 4 * 8
    assert replay(*code, warps=2).together == pytest.approx(2 * 8, abs=1)


def test_who_waits_for_a_counter_waits_for_the_result_behind_it() -> None:
    (wait,) = replay(instruction("LDS", WORD, result=3), instruction("FFMA", waits=1 << 3), loop=False).stalls
    assert (wait.index, wait.cause, wait.cycles) == (1, "shared loads", 23)


def test_a_generic_load_takes_as_long_as_one_of_global_memory() -> None:
    (wait,) = replay(instruction("LD", WORD, result=3), instruction("FFMA", waits=1 << 3), loop=False).stalls
    assert (wait.cause, wait.cycles) == ("generic loads", 249)


def test_what_nobody_waits_for_costs_its_issue() -> None:
    assert replay(instruction("LDS", WORD, result=3), instruction("FFMA"), loop=False).alone == 2


def test_the_seventh_access_waits_for_room_in_the_queue() -> None:
    assert replay(*[instruction("LDS", QUAD)] * 6, loop=False).stalls == ()
    (wait,) = replay(*[instruction("LDS", QUAD)] * 7, loop=False).stalls
    assert (wait.index, wait.cause) == (6, "memory queue")


@pytest.mark.parametrize(("allowed", "waits"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_wait_for_copies_lets_as_many_groups_go_on_as_it_says(allowed: int, waits: bool) -> None:
    group = (instruction("LDGSTS"), instruction("LDGDEPBAR", result=0))
    wait = instruction("DEPBAR", allowed << 38)
    assert ("copies" in replay(*group, *group, wait, loop=False).causes) is waits


def test_the_newest_group_of_copies_takes_longest() -> None:
    group = (instruction("LDGSTS"), instruction("LDGDEPBAR", result=0))
    all_of_them, but_one = (
        replay(*group, *group, instruction("DEPBAR", allowed << 38), loop=False) for allowed in (0, 1)
    )
    assert all_of_them.alone > but_one.alone


def test_warps_of_a_block_wait_for_each_other_at_a_barrier() -> None:
    code = (instruction("BAR"), *[instruction("FFMA")] * 40)
    one_block, two_blocks = (replay(*code, warps=2, blocks=blocks) for blocks in (1, 2))
    assert two_blocks.together < one_block.together


def test_a_full_pipe_holds_every_warp() -> None:
    k16 = 1 << 75
    result = replay(*[instruction("HMMA", k16)] * 8, warps=4)
    assert result.together == pytest.approx(8 * 8, rel=0.01)  # an A100's 2048 operations a clock and SM
    assert next(iter(result.pipes)) == "tensor"


def test_a_product_in_tf32_takes_as_long_as_one_of_twice_its_depth() -> None:
    k16, tf32 = 1 << 75, 1 << 83
    assert replay(instruction("HMMA", k16)).pipes["tensor"] == replay(instruction("HMMA", tf32)).pipes["tensor"]


def test_packed_sums_keep_the_pipe_as_long_as_two() -> None:
    assert replay(instruction("FFMA2")).pipes["fp32"] == 2 * replay(instruction("FFMA")).pipes["fp32"]


@pytest.mark.parametrize(
    ("model", "arithmetic", "conversion"), [("A100", 4, 8), ("RTX 3080", 64, 64), ("H100", 2, 8), ("RTX 5090", 64, 64)]
)
def test_fp64_runs_at_the_rate_of_its_arch(model: str, arithmetic: int, conversion: int) -> None:
    def interval(opcode: int) -> float:
        return timing_of(Instruction(opcode, "", DOUBLES[opcode], None), gpu(model)).interval

    assert interval(0x22A) == interval(0x22B) == arithmetic
    assert interval(0x310) == interval(0x311) == conversion
    assert interval(0x305) == 8  # from fp32


@pytest.mark.parametrize("access", ["LDS", "LD"])
def test_a_path_takes_accesses_and_leaves_out_detours_without(access: str) -> None:
    code = (
        instruction("BRA", target=2, guard=0),
        instruction("FFMA"),
        instruction("BRA", target=4, guard=0),
        instruction(access),
        instruction("BRA", target=0),
    )
    assert paths(code) == (Way((0, 2, 3, 4), repeats=True),)


def test_a_loop_that_every_way_leaves_in_between_has_no_path() -> None:
    code = (
        instruction("FFMA"),
        instruction("BRA", target=4),
        instruction("FFMA"),
        instruction("BRA", target=0, guard=0),
        instruction("HMMA"),
        instruction("BRA", target=2),
    )
    assert common_path(code, 0, 3) == ()


def test_a_branch_for_lanes_that_diverged_is_not_taken() -> None:
    diverged = instruction("BRA", 1 << 91, target=3)
    code = (diverged, instruction("LDS"), instruction("EXIT"), instruction("FFMA"))
    assert paths(code) == (Way((0, 1, 2), repeats=False),)


def test_inspect_prints_where_a_warp_waits_when_asked() -> None:
    asked = ["inspect", "flash_attention", "--gpu", "sm_80", "--head-dim", "40", "--waits"]
    assert "no times" in " ".join(CliRunner().invoke(build(), asked).stdout.split())
    (kernel, *loops) = json.loads(CliRunner().invoke(build(), [*asked, "--json"]).stdout)["waits"]
    assert kernel["path"] == "once through"
    longest = max(loops, key=lambda loop: loop["alone"])
    assert sum(longest["causes"].values()) + longest["instructions"] == pytest.approx(longest["alone"])
