"""Tests that two searches of one problem in one database share their attempts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Thread

from tests.support.recorded import OPERATOR, PROBLEM, SM_80, Recorded
from tuner.results.attempt import Attempt
from tuner.search import study
from tuner.spec.instance import Instance
from tuner.store.sql import Store

CONFIGS = 6


def test_two_searches_of_one_problem_evaluate_each_config_once(tmp_path: Path) -> None:
    evaluating, other_began = Event(), Event()

    class First(Recorded):
        def try_all(self, batch: Sequence[Instance]) -> Iterator[tuple[int, Attempt]]:
            evaluating.set()
            assert other_began.wait(60)
            yield from super().try_all(batch)

    class Second(Recorded):
        def prior(self, instance: Instance) -> float:
            other_began.set()
            return super().prior(instance)

    outcomes: list[study.Outcome] = []

    def search(evaluator: Recorded) -> None:
        request = study.SearchRequest(OPERATOR, PROBLEM, SM_80, implementation="mma_sync", budget=CONFIGS)
        with Store.open(tmp_path / "tuner.db") as store:
            outcomes.append(study.search(request, store, evaluator))

    first, second = First(), Second()
    threads = [Thread(target=search, args=(evaluator,)) for evaluator in (first, second)]
    threads[0].start()
    assert evaluating.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    with Store.open(tmp_path / "tuner.db") as store:
        stored = store.attempts(OPERATOR.name)
    assert len(stored) == len(first.tried) + len(second.tried) == CONFIGS
    assert [len(outcome.tried) for outcome in outcomes] == [CONFIGS, CONFIGS]
    assert all(outcome.record is not None for outcome in outcomes)
