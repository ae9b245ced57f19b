"""Ranking without a device."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tuner.arch import GPU, gpu
from tuner.evaluate.predict.cost import TERMS, combine, formula, from_cubin, guess_residency, in_turn, uncompiled
from tuner.results.attempt import Prediction
from tuner.spec.operator import Work
from tuner.spec.plan import Launch, Plan

H100 = gpu("H100")
WORK = Work(
    ctas=4096,
    warps=4,
    mma=1e7,
    fma=2e6,
    mufu=1e6,
    alu=2e6,
    smem_wavefronts=1e7,
    l2_bytes=1e9,
    dram_bytes=1e8,
    barriers=1e5,
    longest_cta=1.0,
    chain=32,
    stages=2,
)


@pytest.mark.parametrize("field", ["mma", "fma", "mufu", "alu", "smem_wavefronts", "l2_bytes", "dram_bytes", "chain"])
def test_more_work_of_any_kind_costs_more(field: str) -> None:
    more = replace(WORK, **{field: getattr(WORK, field) * 4})
    assert formula(more, H100, 2).cost > formula(WORK, H100, 2).cost


def test_the_bottleneck_is_the_pipe_with_the_most_cycles() -> None:
    assert formula(replace(WORK, mma=1e9), H100, 2).bottleneck == "tensor"
    assert formula(replace(WORK, dram_bytes=1e12), H100, 2).bottleneck == "DRAM"


def test_an_uneven_grid_costs_more_than_an_even_one() -> None:
    even = replace(WORK, ctas=132 * 2)
    assert formula(replace(WORK, ctas=132 * 2 + 1), H100, 2).terms["tail"] > formula(even, H100, 2).terms["tail"]
    assert formula(replace(even, longest_cta=2.0), H100, 2).terms["tail"] > 0


def test_the_last_wave_of_a_grid_leaves_memory_busy() -> None:
    streams = replace(WORK, mma=0.0, dram_bytes=1e10, ctas=132 * 2 + 1)
    assert formula(streams, H100, 2).terms["tail"] < 0.01 * formula(streams, H100, 2).terms["DRAM"]


def test_products_through_wgmma_cost_what_its_own_rate_says() -> None:
    by_mma, by_wgmma = formula(WORK, H100, 2), formula(replace(WORK, mma=0.0, wgmma=WORK.mma), H100, 2)
    rates = H100.device.wgmma_flops / H100.device.mma_flops
    assert by_mma.terms["tensor"] == pytest.approx(rates * by_wgmma.terms["tensor"], rel=1e-4)


def test_products_through_tcgen05_cost_what_its_own_rate_says() -> None:
    b200 = gpu("B200")
    by_mma, by_tcgen05 = formula(WORK, b200, 2), formula(replace(WORK, mma=0.0, tcgen05=WORK.mma), b200, 2)
    assert by_mma.terms["tensor"] == pytest.approx(4 * float(by_tcgen05.terms["tensor"]), rel=1e-4)


@pytest.mark.parametrize("look", [formula, lambda *at: from_cubin(*at, 0, {"mma": 64, "alu": 64}, {})])
def test_products_of_tf32_operands_run_at_half_the_rate(look: Callable[[Work, GPU, float], Prediction]) -> None:
    bound = replace(WORK, mma=1e9)
    bf16, tf32 = look(bound, H100, 2), look(replace(bound, tf32=bound.mma), H100, 2)
    assert tf32.terms["tensor"] == pytest.approx(2 * float(bf16.terms["tensor"]), rel=1e-4)
    assert tf32.terms["integer"] == bf16.terms["integer"]
    assert tf32.cost > 1.5 * bf16.cost


def test_four_warps_run_what_surrounds_a_wgmma_that_they_share() -> None:
    mix = {"mma": 64, "alu": 64, "fma": 64, "mufu": 16}
    by_mma = from_cubin(WORK, H100, 2, 0, mix, {})
    by_wgmma = from_cubin(replace(WORK, mma=0.0, wgmma=WORK.mma), H100, 2, 0, mix, {})
    assert by_wgmma.terms["integer"] == pytest.approx(4 * by_mma.terms["integer"], rel=1e-4)


def test_exponentials_tell_how_often_warps_pass_that_issue_no_products() -> None:
    by_one_thread = replace(WORK, mma=0.0, tcgen05=WORK.mma)
    mix = {"alu": 64, "fma": 64, "mufu": 16}
    result = from_cubin(by_one_thread, gpu("B200"), 2, 0, mix, {})
    assert result.terms["integer"] == pytest.approx(WORK.mufu / 16 * 64 * 32 / 64 / 148, rel=1e-4)


def test_two_sums_in_an_instruction_are_issued_once_and_take_as_long_as_two() -> None:
    b200 = gpu("B200")
    one_by_one, in_pairs = (formula(replace(WORK, paired=paired), b200, 2).terms for paired in (0.0, WORK.fma))
    assert in_pairs["fp32"] == one_by_one["fp32"]
    spared = (float(one_by_one["issue"]) - float(in_pairs["issue"])) * 148 * 4
    assert spared == pytest.approx(WORK.fma / 2, rel=1e-3)
    result = from_cubin(WORK, b200, 2, 0, {"mma": 64, "fma": 64, "paired": 64}, {})
    assert result.terms["issue"] < from_cubin(WORK, b200, 2, 0, {"mma": 64, "fma": 64}, {}).terms["issue"]


def test_spills_cost() -> None:
    assert from_cubin(WORK, H100, 2, 256, {}, {}).cost > from_cubin(WORK, H100, 2, 0, {}, {}).cost


def test_what_lies_around_the_main_loop_counts_as_often_as_it_is_passed() -> None:
    mix, around = {"mma": 64, "fma": 64}, {"mma": 32, "fma": 100, "lanes": 50}
    work = replace(WORK, around=1e5)
    trips = (WORK.mma - 32 * work.around) / 64
    result = from_cubin(work, H100, 2, 0, mix, around).terms
    assert result["fp32"] == pytest.approx((64 * trips + 100 * work.around) * 32 / 128 / 132, rel=1e-4)
    assert result["shared memory"] == pytest.approx((WORK.smem_wavefronts + 50 * work.around) / 132, rel=1e-4)


def test_what_the_compiler_put_around_each_mma_replaces_the_declared_counts() -> None:
    lean = from_cubin(WORK, H100, 2, 0, {"mma": 64, "alu": 64, "fma": 64, "mufu": 16}, {})
    bloated = from_cubin(WORK, H100, 2, 0, {"mma": 64, "alu": 6400, "fma": 64, "mufu": 16}, {})
    assert bloated.cost > lean.cost
    assert bloated.terms["integer"] == pytest.approx(100 * lean.terms["integer"], rel=1e-4)


def test_a_combination_lies_between_its_looks() -> None:
    a, b = formula(WORK, H100, 2), formula(replace(WORK, mma=5e7), H100, 2)
    assert a.cost < combine(a, b).cost < b.cost


def test_residency_before_compiling_follows_the_scarcest_resource() -> None:
    small = Launch("k", (1, 1, 1), 128, 1024)
    large = Launch("k", (1, 1, 1), 128, 100 * 1024)
    assert guess_residency(small, H100) == 65536 // (168 * 128)
    assert guess_residency(large, H100) == 2
    assert guess_residency(replace(small, threads=32, tensor_columns=256), gpu("B200")) == 2


def test_launches_in_turn_cost_their_sum_and_the_time_between_them() -> None:
    one, two = formula(WORK, H100, 2), formula(replace(WORK, mma=5e7), H100, 2)
    assert in_turn([one]).cost == one.cost
    assert in_turn([one, two]).cost == pytest.approx(one.cost + two.cost + 2000)
    assert in_turn([one, two]).terms["launches"] == 2000


def test_what_binds_the_costliest_launch_binds_the_plan() -> None:
    streams, multiplies = replace(WORK, dram_bytes=1e9), replace(WORK, mma=1e9)
    results = [formula(kernel, H100, 2) for kernel in (streams, multiplies)]
    assert in_turn(results).bottleneck == max(results, key=lambda candidate: candidate.cost).bottleneck == "tensor"
    assert in_turn(results[::-1]).bottleneck == "tensor"


def test_the_tail_of_one_launch_does_not_scale_the_traffic_of_another() -> None:
    few = replace(WORK, mma=0.0, l2_bytes=0.0, dram_bytes=0.0, ctas=1)
    streams = replace(WORK, dram_bytes=1e10)
    plan = Plan((Launch("few", (1, 1, 1), 128, 0), Launch("streams", (4096, 1, 1), 128, 0)), {})
    apart = uncompiled(plan, (few, streams), H100)
    together = formula(replace(streams, ctas=1), H100, 1)
    assert apart.cost < together.cost / 5


def test_what_surrounds_the_mma_of_a_single_step_is_not_taken_for_all_of_it() -> None:
    once = replace(WORK, chain=1)
    mix = {"mma": 64, "alu": 0, "fma": 0, "mufu": 0}
    assert from_cubin(once, H100, 2, 0, mix, {}).terms["fp32"] == formula(once, H100, 2).terms["fp32"]


def test_a_grid_of_one_block_an_sm_does_not_wait_for_room_that_it_leaves() -> None:
    one_each = replace(WORK, ctas=132)
    assert formula(one_each, H100, 4).cost == formula(one_each, H100, 1).cost


COMPUTES = replace(WORK, fma=0.0, mufu=0.0, alu=0.0, smem_wavefronts=0.0, l2_bytes=0.0, dram_bytes=0.0, mma=1e8)


def products(work: Work, gpu: GPU, ctas_per_sm: int) -> float:
    """Cycles of the tensor cores and of their tail: all but a few percent of such work."""
    terms = formula(work, gpu, ctas_per_sm).terms
    return float(terms["tensor"]) + float(terms["tail"])


def test_the_sm_with_the_longest_block_works_for_that_and_its_neighbours() -> None:
    even, uneven = replace(COMPUTES, ctas=132 * 3), replace(COMPUTES, ctas=132 * 3, longest_cta=1.6)
    assert products(uneven, H100, 3) / products(even, H100, 3) == pytest.approx((1.6 + 1 + 1) / 3, rel=0.05)


def test_idle_sms_cost_what_they_would_have_done() -> None:
    half, all_sms = (products(replace(COMPUTES, ctas=ctas), H100, 1) for ctas in (66, 132))
    assert half / all_sms == pytest.approx(2, rel=0.05)


def test_a_warp_alone_on_its_sm_computes_with_a_quarter_of_it() -> None:
    one, four = (products(replace(COMPUTES, ctas=132, warps=warps), H100, 8) for warps in (1, 4))
    assert one / four == pytest.approx(4, rel=0.05)


def test_idle_sms_slow_memory_only_when_the_others_cannot_take_all_that_it_gives() -> None:
    reads = replace(COMPUTES, mma=0.0, dram_bytes=1e9)
    cycles = {ctas: float(formula(replace(reads, ctas=ctas), H100, 1).terms["DRAM"]) for ctas in (4096, 66, 8)}
    assert cycles[66] == cycles[4096] == pytest.approx(1e9 / H100.device.dram_bytes_per_clock, rel=1e-4)
    assert cycles[8] == pytest.approx(1e9 / (8 * 64), rel=1e-4)


def test_a_small_gpu_takes_less_from_l2_than_a_large_one() -> None:
    reads = replace(COMPUTES, mma=0.0, l2_bytes=1e9)
    small = gpu("RTX 4070")
    assert formula(reads, small, 1).terms["L2"] == pytest.approx(1e9 / small.device.l2_bytes_per_clock, rel=1e-4)
    few = replace(reads, ctas=8)
    assert formula(few, small, 1).terms["L2"] == pytest.approx(1e9 / (8 * 64), rel=1e-4)


STEPS = replace(COMPUTES, mma=0.0, ctas=132, chain=1024, step_other=1.0, l2_bytes=1e9)  # of which each waits for a load


def waiting(work: Work) -> float:
    return float(formula(work, H100, 1).terms["in flight"])


def test_a_load_is_waited_for_less_the_more_steps_ahead_it_leaves() -> None:
    two, three, five = (waiting(replace(STEPS, stages=stages)) for stages in (2, 3, 5))
    assert two / three == pytest.approx(2, rel=0.01)
    assert two / five == pytest.approx(4, rel=0.01)


def test_a_load_that_misses_in_l2_is_waited_for_longer() -> None:
    misses = [waiting(replace(STEPS, dram_bytes=share * STEPS.l2_bytes)) for share in (0.0, 0.5, 1.0)]
    assert misses[0] < misses[1] < misses[2]


def test_with_one_stage_a_step_waits_for_its_load_and_then_computes() -> None:
    alone, ahead = (formula(replace(STEPS, stages=stages, step_other=8.0), H100, 1) for stages in (1, 2))
    assert alone.terms == ahead.terms
    assert alone.cost > 1.3 * ahead.cost


def test_what_was_counted_of_a_step_takes_the_place_of_what_is_assumed() -> None:
    assumed, short, long = (replace(STEPS, step_mma=mma, step_other=0.0) for mma in (0.0, 5.0, 50.0))
    latencies = [float(formula(work, H100, 1).terms["latency"]) for work in (short, assumed, long)]
    assert latencies == sorted(latencies)
    assert latencies[2] == pytest.approx(10 * latencies[0], rel=1e-4)


# Bytes that an SM keeps on their way, as CUB's transform was tuned to fill the memory of each.
IN_FLIGHT = [("A100", 16), ("H100", 32), ("H200", 48), ("B200", 64)]


def bandwidth(target: GPU, in_flight: float) -> float:
    """Of a copy whose blocks, 8 an SM, each read one tile at once."""
    copied = 2.0**31
    blocks = int(copied / (in_flight / 8))
    copy = replace(STEPS, ctas=blocks, chain=1, stages=1, step_other=0.0, l2_bytes=2 * copied, dram_bytes=2 * copied)
    return 1 / formula(copy, target, 8).cost


@pytest.mark.parametrize(("name", "kilobytes"), IN_FLIGHT)
def test_as_many_bytes_in_flight_as_were_found_to_fill_a_memory_fill_it(name: str, kilobytes: int) -> None:
    target = gpu(name)
    most, result, few = (bandwidth(target, 1024 * kilobytes * times) for times in (16, 1, 1 / 8))
    assert result > 0.85 * most
    assert few < 0.6 * most


def test_every_term_is_told_in_words() -> None:
    spilled = from_cubin(replace(WORK, cluster_bytes=1e9), H100, 2, 256, {}, {})
    of_counts = {"double"}  # of work that is declared, fp64 has no count
    assert set(in_turn([spilled, spilled]).terms) == set(TERMS) - of_counts
