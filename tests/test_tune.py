"""A search session: what is stored, what is resumed, what is promoted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tuner import operators, tune
from tuner.arch import gpu
from tuner.errors import UsageError
from tuner.evaluate import Candidate
from tuner.operator import canonical, to_fields
from tuner.result import Attempt, Evidence, Failed, Identity, OutputError, Prediction, Resources, Stage, Verdict
from tuner.store import Store

OPERATOR = operators.load("flash_attention")
PROBLEM = OPERATOR.problem(head_dim=64)
GPU = gpu("sm_80")
MMA_SYNC = operators.implementation("flash_attention", "mma_sync")
RIGHT = Verdict((OutputError("o", 0.0, 0.0, 1e-3, 1e-3),), (), ("recorded",))
WRONG = Verdict((OutputError("o", 1.0, 1.0, 1e-3, 1e-3),), (), ("recorded",))


class Recorded:
    """An Evaluator over a known cost of every config: the seam that replays use too."""

    evidence = Evidence.PREDICTED
    policy = "recorded/1"

    def __init__(
        self,
        cost: Callable[[Any], float | None] = lambda c: c.BM + c.BN,
        right: Callable[[Any], bool] = lambda _: True,
        version: str = "1",
    ) -> None:
        self.cost, self.right, self.version = cost, right, version
        self.tried: list[str] = []

    def identity(self, candidate: Candidate) -> Identity:
        name, text = candidate.implementation.name, canonical(candidate.config)
        return Identity(OPERATOR.name, name, canonical(PROBLEM), GPU.name, self.version + text, "", "none", self.policy)

    def prior(self, candidate: Candidate) -> float:
        return float(hash(canonical(candidate.config)) % 997)

    def attempts(self, batch: Sequence[Candidate]) -> Iterator[tuple[int, Attempt]]:
        for position, candidate in enumerate(batch):
            self.tried.append(canonical(candidate.config))
            yield position, self._attempt(candidate)

    def verdicts(self, batch: Sequence[Candidate]) -> Iterator[tuple[int, Verdict]]:
        for position, candidate in enumerate(batch):
            yield position, RIGHT if self.right(candidate.config) else WRONG

    def _attempt(self, candidate: Candidate) -> Attempt:
        identity, config = self.identity(candidate), to_fields(candidate.config)
        cost = self.cost(candidate.config)
        if cost is None:
            return Attempt(identity, config, failure=Failed(Stage.COMPILE, "recorded failure"))
        resources = Resources(128, 0, 1024, 128, 2, "registers", canonical(candidate.config))
        return Attempt(identity, config, None, resources, Prediction(cost, {}, "tensor", self.policy))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuner.db") as opened:
        yield opened


def request(**options: Any) -> tune.Request:
    return tune.Request(OPERATOR, PROBLEM, GPU, **{"implementation": "mma_sync", "budget": 24, **options})


def test_every_attempt_is_stored_and_the_best_right_one_becomes_the_record(store: Store) -> None:
    outcome = tune.search(request(), store, Recorded())
    assert len(store.attempts(operator=OPERATOR.name)) == len(outcome.tried) == 24
    best = min(each.attempt.value or 0 for each in outcome.tried)
    record = store.record(OPERATOR.name, canonical(PROBLEM), GPU.name)
    assert record == outcome.record
    assert record is not None
    assert record.prediction is not None
    assert record.prediction.cost == best


def test_the_same_search_again_tries_nothing(store: Store) -> None:
    tune.search(request(), store, Recorded())
    again = Recorded()
    outcome = tune.search(request(), store, again)
    assert again.tried == []
    assert outcome.reused == 24
    assert outcome.record is not None


def test_a_larger_budget_goes_on_where_the_smaller_one_ended(store: Store) -> None:
    first, second = Recorded(), Recorded()
    tune.search(request(budget=10), store, first)
    tune.search(request(budget=24), store, second)
    assert len(second.tried) == 14
    assert not set(first.tried) & set(second.tried)


def test_attempts_of_other_code_are_not_reused(store: Store) -> None:
    tune.search(request(), store, Recorded())
    changed = Recorded(version="2")
    tune.search(request(), store, changed)
    assert len(changed.tried) == 24


def test_a_wrong_kernel_is_never_promoted_however_good_its_cost(store: Store) -> None:
    outcome = tune.search(request(budget=40), store, Recorded(right=lambda c: c.BM >= 64))
    assert outcome.record is not None
    assert int(outcome.record.config["BM"]) >= 64
    assert outcome.record.verdict.ok


def test_nothing_is_promoted_when_nothing_is_right(store: Store) -> None:
    outcome = tune.search(request(), store, Recorded(right=lambda _: False))
    assert outcome.record is None
    assert store.records() == []


def test_failures_are_rows_and_do_not_end_the_search(store: Store) -> None:
    outcome = tune.search(request(), store, Recorded(cost=lambda c: None if c.BM > 32 else c.BM))
    failed = [each for each in outcome.tried if each.attempt.failure]
    assert failed
    assert outcome.record is not None
    assert int(outcome.record.config["BM"]) <= 32


def test_of_configs_that_tie_the_one_nearest_to_the_default_is_the_record(store: Store) -> None:
    default = MMA_SYNC.default(PROBLEM, GPU.arch)
    outcome = tune.search(request(budget=60), store, Recorded(cost=lambda c: 100 + 1e-6 * (c.BM + c.stages)))
    assert outcome.record is not None
    assert dict(outcome.record.config) == to_fields(default)


def test_a_config_that_spills_stands_behind_all_that_do_not(store: Store) -> None:
    class Spilling(Recorded):
        def _attempt(self, candidate: Candidate) -> Attempt:
            attempt = super()._attempt(candidate)
            assert attempt.resources is not None
            spills = 64 if candidate.config.BM == 16 else 0
            resources = Resources(255, spills, 1024, 128, 2, "registers", attempt.resources.sass_digest)
            return Attempt(attempt.identity, attempt.config, None, resources, attempt.prediction)

    outcome = tune.search(request(budget=60), store, Spilling())
    assert outcome.record is not None
    assert outcome.record.resources.spill_bytes == 0


def test_stopping_ends_with_what_is_known(store: Store) -> None:
    evaluator = Recorded()
    outcome = tune.search(request(), store, evaluator, stopped=lambda: len(evaluator.tried) >= 5)
    assert outcome.why_stopped == "interrupted"
    assert len(outcome.tried) == 5
    assert outcome.record is not None


def test_progress_tells_of_every_attempt_and_every_check(store: Store) -> None:
    steps: list[tune.Progress] = []
    tune.search(request(), store, Recorded(), steps.append)
    assert [step.done for step in steps if step.phase == "explore"] == list(range(1, 25))
    assert [step.done for step in steps if step.phase == "check"] == list(range(1, tune.FINALISTS + 1))


def test_equal_machine_code_counts_once_among_the_finalists(store: Store) -> None:
    class Alike(Recorded):
        def _attempt(self, candidate: Candidate) -> Attempt:
            attempt = super()._attempt(candidate)
            same = Resources(128, 0, 1024, 128, 2, "registers", "same")
            return Attempt(attempt.identity, attempt.config, None, same, attempt.prediction)

    outcome = tune.search(request(), store, Alike())
    assert sum(each.verdict is not None for each in outcome.tried) == 1


@pytest.mark.parametrize(("options", "message"), [({"effort": "huge"}, "unknown effort 'huge'"), ({"budget": 0}, "0")])
def test_a_senseless_request_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        request(**options)


# ---- the real thing, killed


def _start(db: Path, budget: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tuner", "search", "flash_attention", "--gpu", "sm_80", "--head-dim", "40"]
    command += ["--budget", str(budget), "--seed", "3", "--db", str(db), "--report", str(db.with_suffix(".html"))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=db.parent)


def _rows(db: Path) -> list[tuple[str, str]]:
    with Store.open(db) as store:
        return [
            (each.attempt.identity.implementation, str(each.attempt.config))
            for each in store.attempts("flash_attention")
        ]


def _wait_for_rows(db: Path, count: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        if db.exists() and len(_rows(db)) >= count:
            return
        time.sleep(0.1)


@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_was_and_repeats_nothing(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    first = _start(db, 20)
    _wait_for_rows(db, 3, first)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    kept = _rows(db)
    assert len(kept) >= 3
    second = _start(db, 20)
    out, err = second.communicate(timeout=200)
    assert second.returncode == 0, err
    rows = _rows(db)
    assert rows[: len(kept)] == kept
    assert len(rows) == len(set(rows)) == 20
    assert "winner (predicted, not validated on sm_80)" in out


@pytest.mark.slow
def test_ctrl_c_ends_a_search_cleanly_with_what_is_known(tmp_path: Path) -> None:
    db = tmp_path / "tuner.db"
    process = _start(db, 400)
    _wait_for_rows(db, 4, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "stopped" in out
    assert "interrupted" in out
    assert 4 <= len(_rows(db)) < 400
