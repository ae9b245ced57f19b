"""Tests of history: results for other GPUs, other sizes and earlier code, as starts and as priors."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.recorded import OPERATOR, PROBLEM, Recorded
from tuner import operators
from tuner.arch import gpu
from tuner.base.canonical_json import encode
from tuner.results.attempt import Attempt, Evidence, Failed, Measurement, Stage
from tuner.results.verdict import Verdict
from tuner.search import study
from tuner.search.bandit import Method, prepared
from tuner.search.history import TransferResults, transfer_results
from tuner.search.request import SearchRequest, code_of
from tuner.search.sampler.observations import Observations, Prior, combine_priors
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields
from tuner.store.sql import Store

MMA_SYNC = operators.implementation("flash_attention", "mma_sync")
SM_80, SM_86 = gpu("sm_80"), gpu("sm_86")


def cost(config: Any) -> float:
    return 1000.0 - config.BM - config.BN / 2 + 3 * config.warps + 10 * config.swizzle


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as opened:
        yield opened


def searched(store: Store, how: Callable[[Any], float | None] = cost, **options: Any) -> tuple[study.Outcome, Recorded]:
    problem, target = options.pop("problem", PROBLEM), options.pop("target", SM_80)
    evaluator = options.pop("kind", Recorded)(how, version=options.pop("version", "1"), problem=problem, target=target)
    known = {"implementation": "mma_sync", "budget": 40, **options}
    return study.search(study.SearchRequest(OPERATOR, problem, target, **known), store, evaluator), evaluator


def beliefs(outcome: study.Outcome) -> dict[str, float | None]:
    arm = outcome.bandit.arms["mma_sync"]
    return {prior.source: prior.correlation(arm.observations, arm.sampler.random) for prior in arm.priors}


def kept(outcome: study.Outcome) -> list[str]:
    return [prior.source for prior in outcome.bandit.arms["mma_sync"].kept_priors]


def test_the_best_of_another_gpu_are_tried_right_after_the_default(store: Store) -> None:
    first, _ = searched(store, target=SM_86)
    least = min(candidate.attempt.value or 0.0 for candidate in first.tried)
    outcome, evaluator = searched(store)
    assert evaluator.tried[0] == canonical(MMA_SYNC.default(PROBLEM, SM_80.arch))
    assert any(candidate.attempt.value == least for candidate in outcome.tried[1:4])


def test_history_that_agrees_with_the_results_is_kept_and_its_correlation_known(store: Store) -> None:
    searched(store, target=SM_86)
    outcome, _ = searched(store)
    correlation = beliefs(outcome)["history of sm_86"]
    assert correlation is not None
    assert correlation > 0.5
    assert "history of sm_86" in kept(outcome)


def test_history_that_the_results_contradict_is_dropped(store: Store) -> None:
    searched(store, lambda config: 3000 - cost(config), target=SM_86)
    outcome, _ = searched(store)
    correlation = beliefs(outcome)["history of sm_86"]
    assert correlation is not None
    assert correlation < 0.2
    assert "history of sm_86" not in kept(outcome)


class Mistaken(Recorded):
    """Predicts the opposite."""

    def prior(self, instance: Instance) -> float:
        return -cost(instance.config)


def test_a_prediction_that_the_results_contradict_is_dropped_beside_history_that_holds(store: Store) -> None:
    searched(store, target=SM_86, budget=80)
    outcome, _ = searched(store, kind=Mistaken)
    assert kept(outcome) == ["history of sm_86"]


def test_other_sizes_on_the_same_gpu_are_history_the_nearest_first(store: Store) -> None:
    for length in (512, 8192):
        searched(store, problem=OPERATOR.problem(head_dim=64, seq_q=length, seq_k=length))
    near = OPERATOR.problem(head_dim=64, seq_q=1024, seq_k=1024)
    outcome, _ = searched(store, problem=near)
    assert "history of seq_q=512 for 1024 seq_k=512 for 1024" in beliefs(outcome)
    assert len(beliefs(outcome)) == 2


def test_earlier_code_for_the_same_problem_is_history(store: Store) -> None:
    searched(store)
    outcome, evaluator = searched(store, version="2")
    assert "history of earlier code" in beliefs(outcome)
    assert len(evaluator.tried) == 40


def test_what_was_not_run_is_no_history(store: Store) -> None:
    class Sparing(Recorded):
        def attempt(self, instance: Instance) -> Attempt:
            return replace(super().attempt(instance), failure=Failed(Stage.SPARED, "not run"))

    spared = Sparing(cost)
    study.search(study.SearchRequest(OPERATOR, PROBLEM, SM_80, implementation="mma_sync", budget=4), store, spared)
    assert len(store.attempts(OPERATOR.name)) == 4
    assert transfer_results(SearchRequest(OPERATOR, PROBLEM, SM_80), store, spared.policy, ()) == {}


def test_what_a_search_takes_over_is_not_its_history_as_well(store: Store) -> None:
    searched(store, budget=20)
    outcome, _ = searched(store)
    assert outcome.reused == 20
    assert list(beliefs(outcome)) == ["prediction"]


@pytest.mark.parametrize("other", [{"head_dim": 72}, {"head_dim": 64, "causal": True}])
def test_another_kernel_is_no_history(store: Store, other: dict[str, Any]) -> None:
    searched(store, problem=OPERATOR.problem(**other))
    outcome, _ = searched(store)
    assert list(beliefs(outcome)) == ["prediction"]


def test_without_history_a_search_knows_the_prediction_only(store: Store) -> None:
    searched(store, target=SM_86)
    outcome, _ = searched(store, history=False)
    assert list(beliefs(outcome)) == ["prediction"]


def test_results_of_another_policy_are_no_history(store: Store) -> None:
    evaluator = Recorded(cost, target=SM_86)
    evaluator.policy = "measured/1"
    study.search(study.SearchRequest(OPERATOR, PROBLEM, SM_86, implementation="mma_sync", budget=40), store, evaluator)
    outcome, _ = searched(store)
    assert list(beliefs(outcome)) == ["prediction"]


def transferred(store: Store) -> list[TransferResults]:
    return transfer_results(SearchRequest(OPERATOR, PROBLEM, SM_80), store, Recorded(cost).policy, ())["mma_sync"]


def test_another_gpu_of_the_same_arch_is_nearer_than_another_arch(store: Store) -> None:
    longer = OPERATOR.problem(head_dim=64, seq_q=PROBLEM.seq_q * 5 // 4, seq_k=PROBLEM.seq_k)
    searched(store, target=SM_86, budget=2)
    searched(store, target=gpu("A100"), problem=longer, budget=2)
    assert [each.source.split(" seq_q")[0] for each in transferred(store)] == ["history of A100"]


def test_an_operators_code_is_also_that_of_operators_beside_it_which_it_may_call(tmp_path: Path) -> None:
    (own := replace(OPERATOR, folder=tmp_path / "own")).folder.mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "operator.py").write_text("a reference with a mistake\n")
    before = code_of(own)
    (tmp_path / "other" / "operator.py").write_text("a reference without\n")
    assert code_of(own) != before


def test_an_operators_code_is_also_that_of_the_folders_of_its_implementations(tmp_path: Path) -> None:
    own = replace(OPERATOR, folder=tmp_path / "own")
    (work := own.folder / "fast" / "work.py").parent.mkdir(parents=True)
    work.write_text("counts\n")
    before = code_of(own)
    work.write_text("counts otherwise\n")
    assert code_of(own) != before


def test_whom_an_operator_is_raced_against_is_not_its_code(tmp_path: Path) -> None:
    (own := replace(OPERATOR, folder=tmp_path / "own")).folder.mkdir()
    (own.folder / "operator.py").write_text("a reference\n")
    before = code_of(own)
    (own.folder / "peers.py").write_text("a peer\n")
    assert code_of(own) == before
    (own.folder / "operator.py").write_text("another reference\n")
    assert code_of(own) != before


def test_what_was_wrong_or_has_flaws_did_not_work(store: Store) -> None:
    searched(store, target=SM_86, budget=3)
    wrong, flawed, right = store.attempts(OPERATOR.name)
    assert flawed.attempt.resources is not None
    store.append_verdict(wrong.id, Verdict((), ("o: other bits",)), code_of(OPERATOR))
    store.append_verdict(right.id, Verdict((), ("o: a reference that was mended since",)), "other code")
    store.append([replace(flawed.attempt, resources=replace(flawed.attempt.resources, spill_bytes=8))])
    (past,) = transferred(store)
    assert [*past.results.values()] == [None, None, right.attempt.value]


def test_history_needs_fewer_tries_to_the_best(store: Store) -> None:
    def tries(outcome: study.Outcome) -> int:
        return [candidate.attempt.value for candidate in outcome.tried].index(704.0)

    alone, _ = searched(store, history=False)
    searched(store, target=SM_86, budget=60)
    taught, _ = searched(store, resume=False)
    assert tries(taught) < tries(alone) / 2


def test_a_size_that_another_gpu_does_not_have_becomes_the_nearest_that_it_has() -> None:
    space = MMA_SYNC.space(PROBLEM, SM_80.arch)
    known = to_fields(space[0])
    past = TransferResults("history of x", {encode({**known, "smem_budget": int(known["smem_budget"]) + 512}): 7.0})
    assert past.within(space, MMA_SYNC.config) == {0: 7.0}
    strange = TransferResults("history of x", {encode({**known, "unknown": 1}): 7.0})
    assert strange.within(space, MMA_SYNC.config) == {}


def test_combined_priors_rank_first_what_all_rank_high() -> None:
    one, other = Prior(np.array([1.0, 2.0, 3.0, 4.0])), Prior(np.array([3.0, 1.0, 2.0, 9.0]))
    cost = combine_priors([one, other])
    assert cost is not None
    assert np.argsort(cost).tolist() == [1, 0, 2, 3]
    assert combine_priors([]) is None


def test_a_correlation_is_of_ranks_with_ties_and_waits_for_five_results() -> None:
    prior = Prior(np.array([0.0, 0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 100.0]))
    results: dict[int, float | None] = {**{index: float(index**3) for index in range(7)}, 7: 1e9}
    assert prior.correlation(Observations.of(results), range(4)) is None
    result = prior.correlation(Observations.of(results), range(8))
    assert result == pytest.approx(0.994, abs=1e-3)  # scipy.stats.spearmanr gives 0.99402


def test_of_a_large_space_a_part_is_ranked_and_the_neighbours_of_its_best() -> None:
    operator, arch = operators.load("flash_attention_backward"), gpu("sm_90a").arch
    implementation = operators.implementation(operator.name, "mma_sync")
    default = Instance.default(operator, implementation, operator.problem(), arch)
    space = implementation.space(default.problem, arch)
    asked: list[Any] = []

    def prior(instance: Instance) -> float:
        asked.append(instance.config)
        return sum(values.index(getattr(instance.config, name)) for name, values in space.choices.items())

    (ranked_prior,) = prepared(default, space, prior, Method("gp", 0, 32)).priors
    first, *ranked = asked
    assert first == default.config
    assert len(ranked) == len(set(ranked)) == np.count_nonzero(~np.isnan(ranked_prior.cost))
    assert 4096 < len(ranked) < 5000 < len(space)
    assert np.nanmin(ranked_prior.cost) == min(prior(default.with_config(config)) for config in space)


def test_configs_without_a_cost_do_not_count_in_a_prior_s_correlation() -> None:
    cost = np.where(np.arange(40) % 2, np.nan, np.arange(40.0))
    results = {i: float(i if i % 2 == 0 else -i) for i in range(40)}
    assert Prior(cost).correlation(Observations.of(results), range(40)) == 1


def test_times_of_another_gpu_of_the_model_are_timed_again_before_they_are_compared(store: Store) -> None:
    class OnDevice(Recorded):
        evidence, policy = Evidence.MEASURED, "measured/1"

        def __init__(self, device: str, shift: int) -> None:
            super().__init__(lambda config: cost(config) + shift)
            self.device = device

        def attempt(self, instance: Instance) -> Attempt:
            made = super().attempt(instance)
            assert made.prediction is not None
            return replace(made, measurement=Measurement(*[made.prediction.cost] * 3, samples=3))

    request = study.SearchRequest(OPERATOR, PROBLEM, SM_80, implementation="mma_sync", budget=20)
    here, other = OnDevice("GPU-a", 0), OnDevice("GPU-b", 1000)
    best = study.search(request, store, here).tried
    outcome = study.search(request, store, other)
    assert outcome.reused == 0
    assert all(tried.attempt.measurement.time_us >= 1000 for tried in outcome.tried if tried.attempt.measurement)
    fastest = min(best, key=lambda tried: tried.attempt.value or 1e9)
    assert fastest.instance.key in {tried.instance.key for tried in outcome.tried[:8]}
    assert study.search(request, store, OnDevice("GPU-a", 0)).reused == 20
    assert {stored.versions["device"] for stored in store.studies()} == {"GPU-a", "GPU-b"}
    known = study.recall(request, store, OnDevice("GPU-b", 1000))
    assert {tried.row for tried in known.tried} == {tried.row for tried in outcome.tried}
