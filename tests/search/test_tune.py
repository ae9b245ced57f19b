"""Tests of a search session: what is stored, resumed and promoted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import recorded
from tests.support.patience import GENEROUS_S
from tests.support.recorded import OPERATOR, PROBLEM, Recorded
from tuner import operators
from tuner.arch import gpu
from tuner.backends.emulator import Finding
from tuner.compiler.render import header
from tuner.errors import TemplateError, UsageError
from tuner.results.attempt import Attempt, Failed, Identity, Measurement, Resources, Stage
from tuner.results.ranking import rank, rank_candidates
from tuner.results.verdict import Verdict
from tuner.search import study
from tuner.search.explore import Patience
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, from_fields, to_fields
from tuner.store.sql import Store

GPU = gpu("sm_80")
MMA_SYNC = operators.implementation("flash_attention", "mma_sync")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuner.db") as opened:
        yield opened


def request(**options: Any) -> study.SearchRequest:
    return study.SearchRequest(OPERATOR, PROBLEM, GPU, **{"implementation": "mma_sync", "budget": 24, **options})


def test_every_attempt_is_stored_and_the_best_right_one_becomes_the_record(store: Store) -> None:
    outcome = study.search(request(), store, Recorded())
    assert len(store.attempts(operator=OPERATOR.name)) == len(outcome.tried) == 24
    best = min(candidate.attempt.value or 0 for candidate in outcome.tried)
    record = store.record(OPERATOR.name, canonical(PROBLEM), GPU.name)
    assert record == outcome.record
    assert record is not None
    assert record.prediction is not None
    assert record.prediction.cost == best


def test_the_same_search_again_tries_nothing(store: Store) -> None:
    study.search(request(), store, Recorded())
    again = Recorded()
    outcome = study.search(request(), store, again)
    assert again.tried == []
    assert outcome.reused == 24
    assert outcome.record is not None


def test_what_is_taken_over_keeps_the_order_of_its_fields(store: Store) -> None:
    study.search(request(budget=1), store, Recorded())
    again = study.search(request(budget=1), store, Recorded())
    assert [*again.tried[0].attempt.config] == [*to_fields(MMA_SYNC.default(PROBLEM, GPU.arch))]
    assert again.why_stopped == "the budget of 1 try is used up"


def test_a_search_that_ends_where_an_earlier_one_did_adds_no_record(store: Store) -> None:
    first = study.search(request(), store, Recorded())
    assert first.record is not None
    store.promote(replace(first.record, created="2026-11-21T10:00:00+00:00"))  # as if it were of another second
    again = study.search(request(), store, Recorded())
    assert len(store.all_records(OPERATOR.name)) == 2
    assert again.record in store.all_records(OPERATOR.name)


def test_a_source_that_changes_before_its_verdict_ends_the_search_without_a_record(store: Store) -> None:
    edited = Recorded()

    def edit(progress: study.Progress) -> None:
        edited.version = "2" if progress.done == 24 else edited.version

    with pytest.raises(TemplateError, match="flash_attention/mma_sync changed during the search"):
        study.search(request(), store, edited, edit)
    assert len(store.attempts(operator=OPERATOR.name)) == 24
    assert store.records() == []


def test_headers_are_read_again_before_verdicts_are_given(store: Store, tmp_path: Path) -> None:
    own = tmp_path / "own.cuh"
    own.write_text("// as it was\n")
    header("own.cuh", tmp_path, "cuda")
    own.write_text("// edited\n")
    assert header("own.cuh", tmp_path, "cuda") == "// as it was\n"
    study.search(request(budget=2), store, Recorded())
    assert header("own.cuh", tmp_path, "cuda") == "// edited\n"


def test_what_is_stored_is_told_without_predicting_whole_spaces(store: Store) -> None:
    class Unasked(Recorded):
        def prior(self, instance: Instance) -> float:
            raise AssertionError(f"nothing will be asked for, and {instance.config} was predicted")

    searched = study.search(request(), store, Recorded())
    recalled = study.recall(request(), store, Unasked())
    assert [candidate.row for candidate in recalled.tried] == [candidate.row for candidate in searched.tried]
    assert recalled.record is not None and searched.record is not None
    assert recalled.record.config == searched.record.config


def test_a_larger_budget_goes_on_where_the_smaller_one_ended(store: Store) -> None:
    first, second = Recorded(), Recorded()
    study.search(request(budget=10), store, first)
    study.search(request(budget=24), store, second)
    assert len(second.tried) == 14
    assert not set(first.tried) & set(second.tried)


def test_attempts_of_other_code_are_not_reused(store: Store) -> None:
    study.search(request(), store, Recorded())
    changed = Recorded(version="2")
    study.search(request(), store, changed)
    assert len(changed.tried) == 24


class Launched(Recorded):
    """Configs of the same text and machine code, launched as `plan` says."""

    def __init__(self, plan: Callable[[Any], str], **told: Any) -> None:
        super().__init__(**told)
        self.plan = plan

    def identity(self, instance: Instance) -> Identity:
        return replace(super().identity(instance), plan=self.plan(instance.config))

    def attempt(self, instance: Instance) -> Attempt:
        result = super().attempt(instance)
        return replace(result, resources=Resources(128, 0, 1024, 128, 2, "registers", "one code"))


def test_attempts_at_another_launch_are_not_reused(store: Store) -> None:
    study.search(request(), store, Launched(lambda _: "one block a tile"))
    again, wider = Launched(lambda _: "one block a tile"), Launched(lambda _: "one block an SM")
    study.search(request(), store, again)
    study.search(request(), store, wider)
    assert (len(again.tried), len(wider.tried)) == (0, 24)


def test_one_machine_code_in_several_launches_counts_as_often(store: Store) -> None:
    outcome = study.search(request(), store, Launched(lambda config: str(config.BM)))
    launched = {candidate.instance.config.BM for candidate in outcome.tried}
    assert len(launched) > 1
    assert sorted(candidate.instance.config.BM for candidate in rank(outcome.tried)) == sorted(launched)


def test_a_wrong_kernel_is_never_promoted_however_good_its_cost(store: Store) -> None:
    outcome = study.search(request(budget=40), store, Recorded(right=lambda c: c.BM >= 64))
    assert outcome.record is not None
    assert int(outcome.record.config["BM"]) >= 64
    assert outcome.record.verdict.ok


def test_a_search_goes_on_from_what_was_not_found_wrong(store: Store) -> None:
    first = study.search(request(), store, Recorded(right=lambda c: c.BM >= 64))
    again = study.search(request(budget=25), store, Recorded(right=lambda c: c.BM >= 64))
    arm = again.bandit.arms["mma_sync"]
    results = [arm.results[arm.space.index(candidate.instance.config)] for candidate in first.tried if candidate.wrong]
    assert results and set(results) == {None}


def test_verdicts_are_given_again_when_the_reference_was_mended(store: Store, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "operator.py").write_text("a reference with a mistake\n")
    asked = replace(request(), operator=replace(OPERATOR, folder=own))
    assert study.search(asked, store, Recorded(right=lambda _: False)).record is None
    assert study.search(asked, store, Recorded()).record is None
    (own / "operator.py").write_text("a reference without\n")
    assert study.search(asked, store, Recorded()).record is not None


def test_a_verdict_that_was_lost_is_given_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "WRONG", Verdict((), (str(Finding("lost", "no answer within 600 s")),)))
    assert study.search(request(), store, Recorded(right=lambda _: False)).record is None
    again = Recorded()
    assert study.search(request(), store, again).record is not None
    assert again.judged and not again.tried


def test_costs_are_predicted_again_when_what_a_plan_declares_changed(store: Store, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "work.py").write_text("work of eight bytes an element\n")
    asked = replace(request(), operator=replace(OPERATOR, folder=own))
    before = study.search(asked, store, Recorded())
    (own / "work.py").write_text("work of four\n")
    again, unchanged = Recorded(cost=lambda config: 1e6 / config.BM), Recorded()
    search_result = study.search(asked, store, again)
    assert search_result.reused == 0
    assert {candidate.instance.config for candidate in search_result.tried} == {
        candidate.instance.config for candidate in before.tried
    }
    assert search_result.record is not None and search_result.record.prediction is not None
    assert search_result.record.prediction.cost == min(1e6 / candidate.instance.config.BM for candidate in before.tried)
    assert study.search(asked, store, unchanged).reused == 24
    assert unchanged.tried == []


def test_of_costs_by_other_python_the_best_are_predicted_again_within_the_budget(store: Store, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    asked = replace(request(), operator=replace(OPERATOR, folder=own))
    before = study.search(asked, store, Recorded())
    (own / "work.py").write_text("another plan\n")
    search_result = study.search(replace(asked, budget=5), store, Recorded())
    best = sorted(candidate.attempt.value for candidate in before.tried if candidate.attempt.value is not None)[:5]
    assert sorted(candidate.attempt.value or 0 for candidate in search_result.tried) == best


def test_what_is_stored_is_told_although_other_python_predicted_it(store: Store, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    asked = replace(request(), operator=replace(OPERATOR, folder=own))
    study.search(asked, store, Recorded())
    (own / "work.py").write_text("another plan\n")
    assert len(study.recall(asked, store, Recorded()).tried) == 24


@pytest.mark.parametrize(("stage", "again"), [(Stage.COMPILE, 0), (Stage.VERIFY, 24), (Stage.LIMIT, 24)])
def test_failures_that_other_python_may_mend_are_tried_again_when_it_changed(
    store: Store, tmp_path: Path, stage: Stage, again: int
) -> None:
    class Failing(Recorded):
        def attempt(self, instance: Instance) -> Attempt:
            return replace(super().attempt(instance), failure=Failed(stage, "recorded failure"))

    own = tmp_path / "own"
    own.mkdir()
    (own / "work.py").write_text("a grid that is too small\n")
    asked = replace(request(), operator=replace(OPERATOR, folder=own))
    study.search(asked, store, Failing())
    unchanged, changed = Recorded(), Recorded()
    study.search(asked, store, unchanged)
    assert unchanged.tried == []
    (own / "work.py").write_text("a grid that covers all\n")
    study.search(asked, store, changed)
    assert len(changed.tried) == again


def test_what_was_not_run_for_the_sake_of_the_device_is_tried_by_the_next_search(store: Store) -> None:
    class Sparing(Recorded):
        def attempt(self, instance: Instance) -> Attempt:
            return replace(super().attempt(instance), failure=Failed(Stage.SPARED, "not run"))

    before, again = study.search(request(), store, Sparing()), Recorded()
    assert before.record is None
    search_result = study.search(request(), store, again)
    assert search_result.reused == 0
    assert len(again.tried) == len(before.tried)


def test_of_attempts_at_one_config_the_newest_counts(store: Store) -> None:
    study.search(request(), store, Recorded(cost=lambda _: None))
    again = study.search(request(resume=False), store, Recorded())
    recalled = study.recall(request(), store, Recorded())
    assert {candidate.row for candidate in again.tried} < {candidate.row for candidate in recalled.tried}
    assert recalled.record is not None


def test_nothing_is_promoted_when_nothing_is_right(store: Store) -> None:
    outcome = study.search(request(), store, Recorded(right=lambda _: False))
    assert outcome.record is None
    assert store.records() == []


def test_failures_are_rows_and_do_not_end_the_search(store: Store) -> None:
    outcome = study.search(request(), store, Recorded(cost=lambda c: None if c.BM > 32 else c.BM))
    failed = [candidate for candidate in outcome.tried if candidate.attempt.failure]
    assert failed
    assert outcome.record is not None
    assert int(outcome.record.config["BM"]) <= 32


def test_of_configs_that_tie_the_one_nearest_to_the_default_is_the_record(store: Store) -> None:
    default = MMA_SYNC.default(PROBLEM, GPU.arch)
    outcome = study.search(request(budget=60), store, Recorded(cost=lambda c: 100 + 1e-6 * (c.BM + c.stages)))
    assert outcome.record is not None
    assert dict(outcome.record.config) == to_fields(default)


def test_a_config_that_spills_stands_behind_all_that_do_not(store: Store) -> None:
    class Spilling(Recorded):
        def attempt(self, instance: Instance) -> Attempt:
            attempt = super().attempt(instance)
            assert attempt.resources is not None
            spills = 64 if instance.config.BM == 16 else 0
            resources = Resources(255, spills, 1024, 128, 2, "registers", attempt.resources.sass_digest)
            return Attempt(attempt.identity, attempt.config, None, resources, attempt.prediction)

    outcome = study.search(request(budget=60), store, Spilling())
    assert outcome.record is not None
    assert outcome.record.resources.spill_bytes == 0


def test_a_clean_config_of_another_problem_beats_faster_ones_that_spill(store: Store) -> None:
    shared = MMA_SYNC.space(PROBLEM, GPU.arch)[-1]

    class Spilling(Recorded):
        def attempt(self, instance: Instance) -> Attempt:
            attempt = super().attempt(instance)
            spills = 0 if instance.config == shared else 64
            resources = Resources(255, spills, 1024, 128, 2, "registers", str(instance.config))
            return replace(attempt, resources=resources)

    evaluator = Spilling(lambda c: 1000.0 if c == shared else 10.0)
    outcome = study.search(request(budget=2), store, evaluator)
    extended = study.extend(outcome, store, evaluator, [Instance(OPERATOR, MMA_SYNC, PROBLEM, shared)])
    assert extended.record is not None
    assert extended.record.resources.spill_bytes == 0


def test_stopping_ends_with_what_is_known(store: Store) -> None:
    evaluator = Recorded()
    outcome = study.search(request(), store, evaluator, stopped=lambda: len(evaluator.tried) >= 5)
    assert outcome.why_stopped == "interrupted"
    assert len(outcome.tried) == 5
    assert outcome.record is not None


def test_progress_tells_of_every_attempt_and_every_check(store: Store) -> None:
    steps: list[study.Progress] = []
    study.search(request(), store, Recorded(), steps.append)
    assert [step.done for step in steps if step.phase in ("explore", "sweep")] == list(range(1, 25))
    assert [step.done for step in steps if step.phase == "check"] == [1, 2]  # costs have no noise


def test_progress_counts_to_the_end_of_a_space_that_is_smaller_than_the_budget(store: Store) -> None:
    seen: list[study.Progress] = []
    naive = Recorded(lambda c: float(c.threads))
    study.search(request(implementation="naive", budget=5000), store, naive, seen.append)
    assert {value.total for value in seen if value.phase == "explore"} == {len(naive.tried)}


def test_equal_machine_code_counts_once_among_the_finalists(store: Store) -> None:
    class Alike(Recorded):
        def attempt(self, instance: Instance) -> Attempt:
            attempt = super().attempt(instance)
            same = Resources(128, 0, 1024, 128, 2, "registers", "same")
            return Attempt(attempt.identity, attempt.config, None, same, attempt.prediction)

    outcome = study.search(request(), store, Alike())
    assert sum(candidate.verdict is not None for candidate in outcome.tried) == 1


def test_no_parameter_of_the_record_can_be_reset_to_its_default_at_no_cost(store: Store) -> None:
    def cost(config: Any) -> float:
        return 1000.0 - config.BM + 0.1 * config.BN

    outcome = study.search(request(budget=160, method="random"), store, Recorded(cost))
    assert outcome.record is not None
    default = MMA_SYNC.default(PROBLEM, GPU.arch)
    winner = from_fields(MMA_SYNC.config, outcome.record.config)
    space = MMA_SYNC.space(PROBLEM, GPU.arch)
    simpler = [replace(winner, **{name: value}) for name, value in to_fields(default).items()]
    valid = [config for config in simpler if config != winner and space.refusal(config) is None]
    assert all(cost(config) > cost(winner) for config in valid)
    assert any(getattr(winner, name) == value for name, value in to_fields(default).items())


def test_of_twins_with_equal_machine_code_the_nearest_to_the_default_is_the_record(store: Store) -> None:
    class Alike(Recorded):
        def attempt(self, instance: Instance) -> Attempt:
            attempt = super().attempt(instance)
            same = Resources(128, 0, 1024, 128, 2, "registers", "same")
            return Attempt(attempt.identity, attempt.config, None, same, attempt.prediction)

    outcome = study.search(request(method="random"), store, Alike(lambda _: 7.0))
    assert outcome.record is not None
    assert dict(outcome.record.config) == to_fields(MMA_SYNC.default(PROBLEM, GPU.arch))


def test_the_sweep_finds_a_better_neighbour_of_the_best_that_random_search_left_out(store: Store) -> None:
    def cost(config: Any) -> float:
        return 100.0 + abs(config.BM - 64) + abs(config.BN - 64) + 10 * (config.stages != 2) + 5 * config.warps

    steps: list[study.Progress] = []
    outcome = study.search(request(budget=120, method="random"), store, Recorded(cost), steps.append)
    swept = [step for step in steps if step.phase == "sweep"]
    assert len(outcome.tried) == 120
    assert 0 < len(swept) <= 120 // 4
    assert "tries at neighbours of the best 3" in outcome.why_stopped
    assert outcome.why_stopped.startswith("the budget of 120 tries is used up")
    assert "better by" in outcome.why_stopped


def timed(index: int, time: float, differs: int) -> study.Tried:
    """A config that took `time`, give or take a hundredth."""
    instance = Instance(OPERATOR, MMA_SYNC, PROBLEM, MMA_SYNC.space(PROBLEM, GPU.arch)[index])
    measurement = Measurement(time, 0.99 * time, 1.01 * time, 20)
    return study.Tried(index, instance, replace(Recorded().attempt(instance), measurement=measurement), differs)


def test_of_times_whose_intervals_overlap_the_simplest_stands_right_behind_the_best() -> None:
    tried = [timed(0, 100.0, 6), timed(1, 100.5, 5), timed(2, 101.0, 2), timed(3, 101.5, 4), timed(4, 150.0, 0)]
    assert [candidate.row for candidate in rank_candidates(tried)] == [0, 2, 1, 3, 4]


def test_a_wrong_best_decides_no_tie_between_those_behind_it() -> None:
    wrong = replace(timed(0, 100.0, 0), verdict=Verdict((), ("a race",)))
    assert [candidate.row for candidate in rank_candidates([wrong, timed(1, 200.0, 5), timed(2, 200.1, 1)])] == [2, 1]


def test_a_search_stopped_in_its_sweep_ends_with_what_is_known(store: Store) -> None:
    phases: list[str] = []
    outcome = study.search(
        request(budget=64), store, Recorded(), lambda step: phases.append(step.phase), lambda: "sweep" in phases
    )
    assert outcome.why_stopped.startswith("interrupted")
    assert outcome.record is not None
    assert len(outcome.tried) < 64


def test_only_configs_of_its_spaces_that_were_not_told_of_are_new_to_a_bandit(store: Store) -> None:
    bandit = study.search(request(budget=3), store, Recorded()).bandit
    (arm,) = bandit.arms.values()
    first_config, *_ = (arm.space[index] for index in arm.results)
    new = next(config for config in arm.space if arm.space.index(config) not in arm.results)
    naive = operators.implementation(OPERATOR.name, "naive")
    foreign = Instance(OPERATOR, naive, PROBLEM, naive.default(PROBLEM, gpu("sm_80").arch))
    configs = (first_config, replace(new, BM=17), new)
    assert bandit.untried([foreign, *(arm.default.with_config(config) for config in configs)]) == [
        arm.default.with_config(new)
    ]


def test_a_space_in_which_nothing_can_be_gained_is_left_before_the_budget_is_spent(store: Store) -> None:
    outcome = study.search(request(budget=400), store, Recorded(cost=lambda c: 100 + 1e-7 * c.BM))
    assert len(outcome.tried) < 400
    assert outcome.why_stopped.startswith("the expected improvement was under 1%")
    assert "batches in a row" in outcome.why_stopped


def test_a_search_ends_with_its_space(store: Store) -> None:
    asked = request(implementation="naive", budget=50)
    outcome = study.search(asked, store, Recorded(lambda c: float(c.threads)))
    assert outcome.why_stopped == "every config of the space was tried"
    assert outcome.record is not None


def test_a_search_without_time_tries_nothing(store: Store) -> None:
    outcome = study.search(request(seconds=0.0), store, Recorded())
    assert (outcome.why_stopped, outcome.tried, outcome.record) == ("the budget of 0 s is used up", (), None)


class Unranked(Recorded):
    """Predicts nothing, which takes no time for all implementations."""

    def prior(self, instance: Instance) -> float:  # noqa: ARG002
        return 1.0


def test_each_implementation_is_tried_from_its_default_on_however_small_its_space(store: Store) -> None:
    outcome = study.search(request(implementation=None, budget=6), store, Unranked(lambda _: 1.0))
    first = {candidate.instance.implementation.name: candidate for candidate in reversed(outcome.tried)}
    assert {name: value.differs for name, value in first.items()} == {"mma_sync": 0, "naive": 0, "split_keys": 0}


def test_an_implementation_that_is_new_is_tried_although_the_others_spent_the_budget(store: Store) -> None:
    study.search(request(budget=6), store, Unranked(lambda _: 1.0))
    later = study.search(request(implementation=None, budget=6), store, Unranked(lambda _: 1.0))
    names = [candidate.instance.implementation.name for candidate in later.tried]
    assert names == 6 * ["mma_sync"] + ["naive", "split_keys"]
    assert all(candidate.differs == 0 for candidate in later.tried[6:])
    assert len(study.search(request(implementation=None, budget=6), store, Unranked(lambda _: 1.0)).tried) == 8


def test_configs_of_an_implementation_that_was_given_up_are_not_said_to_be_tried(store: Store) -> None:
    naive = operators.implementation(OPERATOR.name, "naive").config
    outcome = study.search(
        request(implementation=None, budget=100), store, Unranked(lambda c: 1.0 if isinstance(c, naive) else 1000.0)
    )
    assert len(outcome.tried) < 100
    assert outcome.why_stopped == "every config of the implementations that were not dropped was tried"


@pytest.mark.parametrize(
    ("looks", "over"),
    [
        ([(0.001, 0.0)] * 3, True),
        ([(0.001, 0.0)] * 2, False),
        ([(0.001, 0.0), (0.001, 0.05), (0.001, 0.0)], False),
        ([(0.001, 0.0), (0.2, 0.0), (0.001, 0.0), (0.001, 0.0)], False),
        ([(None, 0.0)] * 5, False),
    ],
    ids=["three in a row", "two", "more was found than expected", "more was expected between", "no model says"],
)
def test_patience_ends_only_when_little_is_expected_and_found_three_times_in_a_row(
    looks: list[tuple[float | None, float]], over: bool
) -> None:
    patience = Patience()
    for gain, result in looks:
        patience = patience.after(gain, result)
    assert patience.over is over


@pytest.mark.parametrize(("options", "message"), [({"effort": "huge"}, "unknown effort 'huge'"), ({"budget": 0}, "0")])
def test_a_senseless_request_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        request(**options)


def test_an_eighth_of_the_time_is_kept_for_the_sweep() -> None:
    assert request(seconds=80.0).exploring_s == 70.0
    assert request().exploring_s is None


def _start(db: Path, budget: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tuner", "search", "flash_attention", "--gpu", "sm_80", "--head-dim", "8"]
    command += ["--implementation", "mma_sync", "--budget", str(budget), "--seed", "3"]
    command += ["--db", str(db), "--report", str(db.with_suffix(".html"))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=db.parent)


def _rows(db: Path) -> list[tuple[str, str]]:
    with Store.open(db) as store:
        return [
            (stored.attempt.identity.implementation, str(stored.attempt.config))
            for stored in store.attempts("flash_attention")
        ]


def _wait_for_rows(db: Path, count: int, process: "subprocess.Popen[str]") -> None:
    while process.poll() is None and not (db.exists() and len(_rows(db)) >= count):
        time.sleep(0.1)


@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_was_and_repeats_nothing(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    first = _start(db, 6)
    _wait_for_rows(db, 3, first)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    kept = _rows(db)
    assert len(kept) >= 3
    second = _start(db, 6)
    out, err = second.communicate(timeout=GENEROUS_S)
    assert second.returncode == 0, err
    rows = _rows(db)
    assert rows[: len(kept)] == kept
    assert len(rows) == len(set(rows)) == 6
    assert "winner (predicted, not validated on sm_80)" in out


@pytest.mark.slow
def test_ctrl_c_ends_a_search_cleanly_with_what_is_known(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    process = _start(db, 400)
    _wait_for_rows(db, 4, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=GENEROUS_S)
    assert process.returncode == 0, err
    assert "stopped" in out
    assert "interrupted" in out
    assert 4 <= len(_rows(db)) < 400
