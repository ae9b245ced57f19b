"""Tests of a report's ranks, finalists, reasons and failure groups."""

import math
import random
from dataclasses import replace

import pytest

from tests.report.report_factory import DEFAULT, attempt, identity, record, report_data, resources
from tuner.base.fields import Fields
from tuner.report import rivals_of
from tuner.report import standing as s
from tuner.report.section import sections
from tuner.results.attempt import Attempt, Evidence, Failed, Lint, Measurement, Prediction, Stage
from tuner.results.verdict import OutputError, Verdict

FASTER = {**DEFAULT, "BT": 128}
SMALLER = {**DEFAULT, "BK": 32}


def predicted(config: Fields, cost: float, **terms: float) -> Attempt:
    return Attempt(identity(), config, resources=resources(config), prediction=Prediction(cost, terms, "tensor", "m/1"))


def measured(config: Fields, low: float, middle: float, high: float) -> Attempt:
    return replace(predicted(config, 1.0), measurement=Measurement(middle, low, high, 40))


def configs(entries: tuple[s.Entry, ...]) -> list[Fields]:
    return [entry.attempt.config for entry in entries]


def test_configs_rank_by_predicted_cost_relative_to_the_best() -> None:
    entries = s.standing([predicted(DEFAULT, 12.0), predicted(FASTER, 10.0)], Evidence.PREDICTED, None)
    assert configs(entries) == [FASTER, DEFAULT]
    assert [entry.relative for entry in entries] == [1.0, 1.2]


def test_a_prediction_never_stands_in_for_a_time() -> None:
    attempts = [measured(DEFAULT, 9.0, 10.0, 11.0), predicted(FASTER, 1.0)]
    assert configs(s.standing(attempts, Evidence.MEASURED, None)) == [DEFAULT]


def test_a_config_that_spills_ranks_behind_one_that_does_not() -> None:
    spilling = replace(predicted(FASTER, 8.0), resources=resources(FASTER, spill_bytes=64))
    assert configs(s.standing([spilling, predicted(DEFAULT, 10.0)], Evidence.PREDICTED, None)) == [DEFAULT, FASTER]


def test_a_config_whose_machine_code_breaks_a_rule_ranks_behind_one_that_keeps_them() -> None:
    serialized = replace(resources(FASTER), lint=Lint(("ptxas warns C7512",)))
    entries = s.standing(
        [replace(predicted(FASTER, 8.0), resources=serialized), predicted(DEFAULT, 10.0)], Evidence.PREDICTED, None
    )
    assert configs(entries) == [DEFAULT, FASTER]
    assert entries[1].flaws == ("ptxas warns C7512",)


def test_a_rival_says_by_how_much_it_lost_what_binds_it_and_where_its_work_is() -> None:
    won, lost = predicted(DEFAULT, 10.0, tensor=8.0), predicted(FASTER, 15.0, tensor=8.0, issue=4.0)
    lost = replace(lost, identity=replace(identity(), implementation="naive"))
    closed = {"mma_sync": "", "naive": "its space is exhausted"}
    (rival,) = rivals_of([won, lost], {}, Evidence.PREDICTED, None, closed)
    assert rival.implementation == "naive" and rival.closed == "its space is exhausted"
    assert rival.reason == (
        "its best takes 1.50 × the predicted cost; tensor binds it; "
        "predicted terms against the winner's whole cost: issue +40%"
    )


def test_a_rival_of_which_nothing_came_through_says_so() -> None:
    failed = Attempt(replace(identity(), implementation="naive"), FASTER, failure=Failed(Stage.COMPILE, "no"))
    attempts = [predicted(DEFAULT, 10.0), failed]
    (rival,) = rivals_of(attempts, {}, Evidence.PREDICTED, None, {"mma_sync": "", "naive": ""})
    assert rival.reason == "none of 1 tries came through"


def test_rivals_stand_in_the_order_of_their_best_and_those_without_one_last() -> None:
    costs = {"mma_sync": 10.0, "naive": 30.0, "wgmma": 20.0}
    attempts = [
        replace(predicted(DEFAULT, cost), identity=replace(identity(), implementation=name))
        for name, cost in costs.items()
    ]
    result = rivals_of(attempts, {}, Evidence.PREDICTED, None, dict.fromkeys(("untried", *costs), ""))
    assert [entry.implementation for entry in result] == ["wgmma", "naive", "untried"]


def test_a_rival_that_was_not_tried_says_so() -> None:
    (rival,) = rivals_of([predicted(DEFAULT, 10.0)], {}, Evidence.PREDICTED, None, {"mma_sync": "", "naive": ""})
    assert rival.reason == "it was not tried"


def test_the_record_leads_even_where_another_config_ties() -> None:
    attempts = [predicted(DEFAULT, 10.0), predicted(FASTER, 10.0)]
    made = record(attempts, Evidence.PREDICTED, {})
    assert made
    entries = s.standing(attempts, Evidence.PREDICTED, replace(made, config=FASTER))
    assert configs(entries) == [FASTER, DEFAULT]


def test_the_last_attempt_at_a_config_decides() -> None:
    attempts = [predicted(FASTER, 8.0), predicted(DEFAULT, 10.0)]
    later = Attempt(identity(), FASTER, failure=Failed(Stage.VERIFY, "wrong"))
    assert configs(s.standing([*attempts, later], Evidence.PREDICTED, None)) == [DEFAULT]


def test_an_infinite_cost_has_no_rank() -> None:
    assert not s.standing([predicted(DEFAULT, math.inf)], Evidence.PREDICTED, None)


def test_a_bad_verdict_is_a_failure_with_its_findings_in_the_log() -> None:
    verdict = Verdict((OutputError("o", 0.001, 0.01, 0.005, 0.1),), findings=("race on smem[12]", "late read"))
    (judged,) = s.judged([predicted(DEFAULT, 10.0)], {0: verdict})
    assert judged.failure
    assert judged.failure.stage is Stage.EMULATE
    assert judged.failure.log == "race on smem[12]\nlate read"


def test_a_wrong_output_fails_at_verification() -> None:
    verdict = Verdict((OutputError("o", math.nan, 0.01, 0.005, 0.1),))
    (judged,) = s.judged([predicted(DEFAULT, 10.0)], {0: verdict})
    assert judged.failure
    assert judged.failure.stage is Stage.VERIFY


def test_losses_name_the_terms_that_moved_most_as_shares_of_the_winners_cost() -> None:
    attempts = [predicted(FASTER, 100.0, exp=30, L2=10, tail=5), predicted(DEFAULT, 110.0, exp=42, L2=9, tail=5.1)]
    winner, loser = s.standing(attempts, Evidence.PREDICTED, None)
    deltas = s.losses(loser, winner)
    assert [delta.term for delta in deltas] == ["exp", "L2"]
    assert [delta.share for delta in deltas] == pytest.approx([0.12, -0.01])


def test_costs_of_different_models_are_not_compared() -> None:
    attempts = [predicted(FASTER, 100.0, exp=30), predicted(DEFAULT, 110.0, exp=60)]
    winner, loser = s.standing(attempts, Evidence.PREDICTED, None)
    assert loser.attempt.prediction
    older = replace(loser, attempt=replace(loser.attempt, prediction=replace(loser.attempt.prediction, model="m/0")))
    assert s.losses(older, winner) == ()


def test_failures_that_differ_in_numbers_only_form_one_group() -> None:
    reasons = ["needs 4096 bytes", "needs 8192 bytes", "needs 8192 threads"]
    attempts = [Attempt(identity(), DEFAULT, failure=Failed(Stage.LIMIT, reason)) for reason in reasons]
    results = [(group.reason, group.tries) for group in s.failures(attempts)]
    assert results == [("needs 4096 bytes", (0, 1)), ("needs 8192 threads", (2,))]


def test_failures_stand_in_the_order_of_the_stages() -> None:
    stages = [Stage.VERIFY, Stage.COMPILE, Stage.RENDER]
    attempts = [Attempt(identity(), DEFAULT, failure=Failed(stage, "no")) for stage in stages]
    assert [group.stage for group in s.failures(attempts)] == [Stage.RENDER, Stage.COMPILE, Stage.VERIFY]


def test_the_best_so_far_leaves_out_what_failed_its_check_later() -> None:
    attempts = [predicted(DEFAULT, 10.0), predicted(FASTER, 5.0), predicted(SMALLER, 8.0)]
    attempts.append(Attempt(identity(), FASTER, failure=Failed(Stage.VERIFY, "wrong")))
    entries = s.standing(attempts, Evidence.PREDICTED, None)
    assert s.best_so_far(attempts, entries) == (10.0, 10.0, 8.0, 8.0)


@pytest.mark.parametrize(("low", "expected"), [(10.9, True), (11.1, False)])
def test_intervals_overlap_when_they_share_a_value(low: float, expected: bool) -> None:
    one, other = Measurement(10.0, 9.0, 11.0, samples=5), Measurement(12.0, low, 13.0, samples=5)
    assert one.overlaps(other) is other.overlaps(one) is expected


def test_configs_with_equal_machine_code_and_launch_are_the_same_kernel() -> None:
    same = replace(predicted(FASTER, 10.0), resources=resources(DEFAULT))
    one, other = s.standing([predicted(DEFAULT, 10.0), same], Evidence.PREDICTED, None)
    assert s.machine_code(one) == s.machine_code(other)


def test_every_finished_attempt_of_a_search_has_a_rank() -> None:
    data = report_data(100)
    entries = s.standing(data.attempts, data.evidence, data.record)
    assert len(entries) == sum(stored.failure is None for stored in data.attempts)
    assert [entry.rank for entry in entries] == list(range(1, len(entries) + 1))


def test_the_same_config_of_another_implementation_is_another_config() -> None:
    rng = random.Random(0)
    attempts = [attempt(DEFAULT, rng), attempt(DEFAULT, rng, implementation="naive")]
    assert len(s.standing(attempts, Evidence.PREDICTED, None)) == 2


def test_the_best_eight_of_distinct_machine_code_and_the_default_stand_side_by_side() -> None:
    (section,) = sections([report_data(128)])
    *best, last = section.finalists
    assert len(best) == 8 and last.is_default
    codes = [s.machine_code(candidate.entry) for candidate in best]
    assert len(set(codes)) == 8
    assert [candidate.entry.value for candidate in best] == sorted(candidate.entry.value for candidate in best)


def test_what_finalists_share_is_told_once_and_the_rest_of_each() -> None:
    (section,) = sections([report_data(128)])
    fields = [finalist.fields for finalist in section.finalists]
    assert section.shared == {n: v for n, v in fields[0].items() if all(field[n] == v for field in fields)} != {}
    assert set(section.shared) | set(section.varying) == set(fields[0])


def test_the_default_is_told_by_its_value_over_the_winners() -> None:
    (section,) = sections([report_data(40)])
    assert section.default is not None and section.default.prediction is not None and section.winner is not None
    assert section.over_default == pytest.approx(section.default.prediction.cost / section.winner.value)
    assert section.over_default > 1


def test_the_pace_is_of_the_attempts_of_this_session() -> None:
    data = report_data(40)
    (section,) = sections([replace(data, search=replace(data.search, seconds=30.0, resumed=4))])
    assert section.per_minute == 72
    (section,) = sections([replace(data, search=replace(data.search, resumed=40))])
    assert section.per_minute is None


def test_a_title_tells_the_fields_in_which_problems_differ() -> None:
    data = report_data(3)
    assert [section.title for section in sections([data])] == ["flash_attention on sm_90a"]
    pair = sections([data, replace(data, problem={**data.problem, "head_dim": 64})])
    assert [candidate.title for candidate in pair] == [f"flash_attention on sm_90a: head_dim={n}" for n in (72, 64)]


def test_only_what_has_flaws_is_passed_over() -> None:
    cheaper = replace(predicted(SMALLER, 9.0), resources=resources(SMALLER, spill_bytes=64))
    attempts = [predicted(DEFAULT, 10.0), predicted(FASTER, 9.999), cheaper]
    won = replace(record(attempts[:1], Evidence.PREDICTED, {}), config=DEFAULT)
    (section,) = sections([replace(report_data(1), attempts=attempts, record=won, verdicts={})])
    assert section.n_passed_over == 1


def test_a_config_that_only_the_final_race_put_behind_says_so() -> None:
    attempts = [measured(DEFAULT, 9.9, 10.0, 10.1), measured(FASTER, 9.4, 9.5, 9.6)]
    won = record(attempts[:1], Evidence.MEASURED, {})
    (section,) = sections([replace(report_data(1, measured=True), attempts=attempts, record=won, verdicts={})])
    assert [finalist.remarks for finalist in section.finalists] == [
        (),
        ("faster when it was tried: the final race decided",),
    ]
