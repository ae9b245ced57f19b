"""Tests of the replay of whole CTAs: trip counts from execution, warp roles, barriers, copies, and their costs."""

from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from tests.support.claims import compiled
from tuner import operators
from tuner.arch import gpu
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.sass.cta.evaluate import evaluator
from tuner.compiler.sass.cta.grid import block_numbers, replay
from tuner.compiler.sass.cta.launch import PARAMETERS, KernelLaunch, constant_bank
from tuner.compiler.sass.cta.machine import run as run_sm
from tuner.compiler.sass.cta.operands import Register, lines
from tuner.compiler.sass.cta.program import Program, program
from tuner.compiler.sass.cta.rates import Rates, rates_of
from tuner.compiler.sass.cta.registers import Registers
from tuner.compiler.sass.cta.roles import destinations, sources
from tuner.compiler.sass.cta.sm import SM
from tuner.compiler.sass.cta.state import Trace
from tuner.compiler.sass.cta.units import LINE, Instructions
from tuner.compiler.sass.decode import Instruction, nvdisasm
from tuner.compiler.source import Source
from tuner.errors import MachineError, UsageError
from tuner.evaluate.predict.replayed import kernel_launch, replay_launch
from tuner.operators.flash_attention.operator import Problem
from tuner.spec.instance import Instance

try:
    nvdisasm()
except MachineError as error:
    pytest.skip(str(error), allow_module_level=True)
KERNELS = Path(__file__).parent / "kernels" / "cta.cu"
H100 = gpu("H100")
RATES = rates_of(H100, H100.device.clock_mhz)
CYCLES = 4.0  # of the tensor cores for m64n8k16: 4096 operations a cycle


@cache
def kernels() -> Cubin:
    return compiled(Source((), KERNELS.read_text(), (), "cuda"), "sm_90a")


@cache
def kernel(name: str) -> Program:
    return program(name, kernels().disassemble(name), kernels().instructions(name), H100)


def run(name: str, threads: int, *parameters: np.generic, block: int = 0, rates: Rates = RATES) -> Trace:
    """One block of a kernel of cta.cu."""
    data = bytearray()
    for value in parameters:
        data += bytes(-(PARAMETERS + len(data)) % value.itemsize) + value.tobytes()
    launch = KernelLaunch((8, 1, 1), threads, 0, 1, bytes(data), {})
    return run_sm(SM(kernel(name), launch, rates, [block]))


def attention(**fields: int | bool) -> tuple[Instance, Cubin]:
    """The wgmma default for a short sequence."""
    problem = Problem(head_dim=64, batch=1, heads=1, seq_q=int(fields.pop("seq", 512)), **fields)
    implementation = operators.implementation("flash_attention", "wgmma")
    instance = Instance.default(operators.load("flash_attention"), implementation, problem, H100.arch)
    return instance, compiled(render(instance), "sm_90a")


def attention_trace(instance: Instance, cubin: Cubin, block: int, rates: Rates = RATES) -> Trace:
    launch = instance.plan().launches[-1]
    code = program(launch.entry, cubin.disassemble(launch.entry), cubin.instructions(launch.entry), H100)
    return run_sm(SM(code, kernel_launch(instance, launch, 1), rates, [block]))


def evaluated(text: str, **words: int) -> Registers:
    """The registers after one instruction, from registers that are named with their values."""
    (line,) = lines(f"        /*0000*/ {text} ;", [Instruction(0, "", "", None)])
    registers = Registers(bytes(PARAMETERS), {})
    for name, value in words.items():
        registers.write(Register("R", int(name[1:])), np.full(128, value, np.uint32), None)
    evaluator(line)(line, registers, None)
    return registers


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("IMAD R9, R1, -0x3, R2", {"R1": 5, "R2": 20}, 5),
        ("IMAD.HI.U32 R9, R3, R1, R2", {"R1": 0xFFFFFFFF, "R2": 2, "R3": 2}, 4),  # R3:R2 is added, with a carry
        ("IMAD.WIDE R8, R1, 0x4, R2", {"R1": 0xFFFFFFFF, "R2": 0, "R3": 0}, 0xFFFFFFFF),
        ("IADD3 R9, -R1, R2, RZ", {"R1": 7, "R2": 3}, 0xFFFFFFFC),
        ("LEA.HI R9, R1, R2, RZ, 0x7", {"R1": 0xFE000000, "R2": 1}, 128),
        ("LEA.HI.SX32 R9, R1, R2, 0x1b", {"R1": 0xFFFFFFE0, "R2": 3}, 2),
        ("SHF.R.S32.HI R9, RZ, 0x1f, R1", {"R1": 0x80000000}, 0xFFFFFFFF),
        ("SHF.R.U64 R9, R1, 0x4, R2", {"R1": 0x10, "R2": 0xA}, 0xA0000001),
        ("LOP3.LUT R9, R1, 0xfffffffe, RZ, 0xc0, !PT", {"R1": 7}, 6),
        ("PRMT R9, R1, 0x654, R2", {"R1": 0x3, "R2": 0x1234}, 0x03001234),
        ("VIADDMNMX R9, R1, 0x1, R2, PT", {"R1": 4, "R2": 9}, 5),
        ("FLO.U32 R9, R1", {"R1": 0x300}, 9),
    ],
)
def test_integer_instructions_compute_as_they_are_documented(text: str, words: dict[str, int], expected: int) -> None:
    result = evaluated(text, **words).word(Register("R", 9))
    assert result is not None
    assert (result == expected).all()


def test_arithmetic_on_unknown_values_is_unknown() -> None:
    registers = evaluated("FADD R1, R2, R3")
    assert registers.word(Register("R", 1)) is None


def test_a_guard_and_an_address_are_sources() -> None:
    (line,) = lines("        /*0000*/ @!P2 LDS.64 R4, [R7+UR3+0x10] ;", [Instruction(0, "", "", None)])
    assert destinations(line) == (Register("R", 4), Register("R", 5))
    assert {Register("P", 2), Register("R", 7), Register("UR", 3)} <= set(sources(line))


@pytest.mark.parametrize(("n", "d", "block"), [(40 << 33 | 10, 3, 0), (7 << 33, 9, 5)])
def test_trip_counts_come_from_execution(n: int, d: int, block: int) -> None:
    trips = (n >> 33) // d + (n & 0xFFFFFFFF) % 7 + block
    pointers = (np.uint64(0), np.uint64(n), np.uint32(d), np.uint64(0), np.uint64(0))
    assert run("trips", 128, *pointers, block=block).products == trips * CYCLES


def handshake(arrivals: int, waits: int, rates: Rates = RATES) -> Trace:
    arguments = (np.uint64(1 << 40), np.uint32(arrivals), np.uint32(waits), np.uint64(0), np.uint64(0))
    return run("handshake", 256, *arguments, rates=rates)


def test_a_warpgroup_waits_for_the_arrivals_of_another() -> None:
    assert handshake(1, 1).products == CYCLES
    slow = replace(RATES, arrive=RATES.arrive + 1000)
    assert handshake(1, 1, slow).end >= handshake(1, 1).end + 900


def test_a_wait_without_an_arrival_is_a_deadlock() -> None:
    with pytest.raises(UsageError, match="deadlocks"):
        handshake(0, 1)


def test_a_barrier_that_depends_on_data_is_refused() -> None:
    with pytest.raises(UsageError, match="depends on data"):
        run("by_data", 128, np.uint64(1 << 40))


def test_products_wait_for_the_tail_of_those_before() -> None:
    arguments = (np.uint64(0), np.uint64(60 << 33), np.uint32(1), np.uint64(0), np.uint64(0))
    with_tail = run("trips", 128, *arguments)
    without = run("trips", 128, *arguments, rates=replace(RATES, product_tail=0.0))
    assert (with_tail.end - without.end) / 60 == pytest.approx(RATES.product_tail, rel=0.05)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_multiplies_and_loads_what_its_tiles_need(causal: bool) -> None:
    instance, cubin = attention(causal=causal)
    config, rows = instance.config, 64 * instance.config.warpgroups
    for block in (0, instance.plan().launches[-1].grid[0] - 1):
        trace = attention_trace(instance, cubin, block)
        tiles = trace.loaded["k"] / (config.BN * 64 * 2)
        assert trace.loaded["v"] == trace.loaded["k"]
        assert trace.loaded["q"] == rows * 64 * 2
        assert tiles == int(tiles)
        if not causal:
            assert tiles == ceil(512 / config.BN)
        # Scores have N = BN and K = 64; O has N = 64 and K = BN.
        assert trace.products == tiles * config.warpgroups * 2 * config.BN * 64 * 64 * 2 / 4096


def test_a_heavier_block_takes_longer() -> None:
    instance, cubin = attention(causal=True, seq=1024)
    blocks = instance.plan().launches[-1].grid[0]
    traces = [attention_trace(instance, cubin, block) for block in (0, blocks - 1)]
    heavier, lighter = sorted(traces, key=lambda trace: -trace.products)
    assert heavier.products > lighter.products
    assert heavier.end > lighter.end


def test_blocks_that_walk_take_tickets_in_turns() -> None:
    instance, _ = attention(causal=True)
    walking = instance.with_config(replace(instance.config, blocks=H100.device.sm_count))
    cubin = compiled(render(walking), "sm_90a")
    alone, walked = (attention_trace(*pair, 0) for pair in (attention(causal=True), (walking, cubin)))
    assert walked.tickets
    assert walked.products >= alone.products


def test_a_launch_takes_longer_where_dram_is_slow() -> None:
    instance, cubin = attention()
    launch = instance.plan().launches[-1]
    code = program(launch.entry, cubin.disassemble(launch.entry), cubin.instructions(launch.entry), H100)
    described = kernel_launch(instance, launch, 1)
    slow = replace(RATES, dram_share=RATES.dram_share / 1000)
    assert replay(code, described, H100, slow).cycles > 2 * replay(code, described, H100, RATES).cycles
    assert replay(code, described, H100, RATES, dram=False).cycles <= replay(code, described, H100, RATES).cycles


@pytest.mark.parametrize("sms", [1, 3])
def test_tiles_come_from_dram_in_the_first_turn_that_loads_them_and_from_l2_later(sms: int) -> None:
    instance, cubin = attention()
    launch = instance.plan().launches[-1]
    code = program(launch.entry, cubin.disassemble(launch.entry), cubin.instructions(launch.entry), H100)
    described = kernel_launch(instance, launch, 1)
    assert described.blocks == 3
    small = replace(H100, device=replace(H100.device, sm_count=sms))
    missing = replay(code, described, small, RATES).missing
    for turn in range(3 // sms):
        for tensor in ("k", "v"):  # each block loads all of both
            assert missing[turn, tensor] == (pytest.approx(1 / sms) if turn == 0 else 0)
        assert missing[turn, "q"] == 1


def test_a_fence_waits_until_the_stores_before_it_are_performed() -> None:
    arguments = (np.uint32(50), np.uint64(0))
    base = run("fenced", 128, *arguments)
    slow = run("fenced", 128, *arguments, rates=replace(RATES, shared_latency=RATES.shared_latency + 100))
    assert slow.end - base.end == pytest.approx(50 * 100, rel=0.05)


def test_cold_instructions_are_requested_a_line_at_a_time_and_some_ahead() -> None:
    rates = replace(RATES, fetch_ahead=2, fetch_latency=100.0)
    cache = Instructions(rates, 10 * LINE)
    assert cache.fetch(0, 0.0) == 100
    assert cache.fetch(1, 100.0) == 100  # requested ahead, and with it line 3
    assert cache.fetch(3, 150.0) == 200
    assert cache.fetch(8, 150.0) == 250  # a jump
    assert cache.present[:2] == [False, True]


def test_a_replay_without_cold_instructions_is_faster() -> None:
    instance, cubin = attention()
    cold, warm = (attention_trace(instance, cubin, 0, replace(RATES, fetch_latency=x)) for x in (1000.0, 0.0))
    assert warm.end < cold.end
    assert any(cause == "instructions" for _, cause in cold.stalls)
    assert not any(cause == "instructions" for _, cause in warm.stalls)


def test_other_arches_are_refused_by_name() -> None:
    instance, cubin = attention()
    with pytest.raises(UsageError, match="sm_80"):
        replay_launch(instance, instance.plan().launches[-1], cubin, gpu("A100"), 1410)


def test_blocks_are_dealt_in_turns_and_clusters_stay_together() -> None:
    launch = KernelLaunch((12, 1, 1), 128, 0, 2, b"", {})
    assert [block_numbers(launch, 4, sm) for sm in range(4)] == [[0, 8], [2, 10], [4], [6]]


def test_the_constant_bank_holds_sizes_and_parameters() -> None:
    bank = constant_bank(KernelLaunch((5, 6, 7), 96, 0, 1, b"\x2a", {}))
    assert np.frombuffer(bank[:24], np.uint32).tolist() == [96, 1, 1, 5, 6, 7]
    assert bank[PARAMETERS:] == b"\x2a"


def test_rates_are_those_of_the_data_files() -> None:
    data = Path(__file__).parents[1] / "evaluate" / "predict" / "data"
    rows = [line.split("\t") for line in (data / "hopper_constants.tsv").read_text().splitlines() if line[0] != "#"]
    constants = {row[0]: row[1] for row in rows}
    for field, name in {
        "product_tail": "wgmma_tail",
        "product_tail_from_registers": "wgmma_tail_registers",
        "product_queue": "wgmma_queue",
        "product_queue_from_registers": "wgmma_queue_registers",
        "product_issue": "wgmma_issue",
        "shared_latency": "shared_latency",
        "arrive": "mbarrier_arrive",
        "try_wait": "mbarrier_try_wait",
        "barrier": "barrier_release",
        "copy_gap": "tma_issue_gap",
        "remote": "cluster_latency",
    }.items():
        assert getattr(RATES, field) == float(constants[name])


def test_dram_takes_the_same_time_at_another_clock() -> None:
    fast, slow = (rates_of(H100, clock) for clock in (1800.0, 900.0))
    assert slow.dram_share == pytest.approx(2 * fast.dram_share)
    extra = [(rates.dram_latency - rates.l2_latency) / clock for rates, clock in ((fast, 1800.0), (slow, 900.0))]
    assert extra[0] == pytest.approx(extra[1])
