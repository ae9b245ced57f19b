"""Tests of the summary that a search prints of its winner."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.recorded import OPERATOR, PROBLEM, SM_80, Recorded
from tuner import operators
from tuner.operators.kda.problem import Problem as Kda
from tuner.report.summary import usage, work_facts
from tuner.report.winner_rows import winner_rows
from tuner.results.attempt import Attempt, Measurement, Resources
from tuner.results.verdict import OutputError, Verdict
from tuner.search import study
from tuner.spec.instance import Instance
from tuner.store.sql import Store


@pytest.mark.parametrize("name", operators.names())
def test_the_line_for_an_application_runs_as_it_is_printed(name: str) -> None:
    operator = operators.load(name)
    problem = operator.tails(operator.problem())[0]
    arrays = operator.inputs(problem, np.random.default_rng(0), operator.input_kinds[0])
    spelled = {"beta_scalar": "beta", "d_o": "do"}  # where the call has another word than the kernel
    given = {spelled.get(name, name): array for name, array in arrays.items() if np.size(array)}
    exec(usage(operator, problem), given)
    right = operator.reference(problem, arrays)
    for argument in operator.outputs:
        np.testing.assert_allclose(given[argument.name].astype(np.float64), right[argument.name], atol=0.05)


def test_the_line_names_the_options_that_differ_from_their_defaults() -> None:
    problem = replace(Kda(heads=2, seq_len=64), use_initial_state=True, output_final_state=True)
    line = usage(operators.load("kda"), problem).splitlines()[-1]
    assert (
        line
        == "o, final_state = dispatcher.kda(q, k, v, g, beta, initial_state=initial_state, output_final_state=True)"
    )


def test_the_line_has_a_window_where_the_problem_has_one() -> None:
    operator = operators.load("flash_attention")
    plain = operator.problem(seq_q=64, seq_k=64)
    assert usage(operator, plain).splitlines()[-1] == "o, lse = dispatcher.flash_attention(q, k, v)"
    near = replace(plain, use_window=True, window_left=0, window_right=3)
    assert usage(operator, near).splitlines()[-1].endswith("(q, k, v, window_left=0, window_right=3)")


def test_a_default_that_is_wrong_is_not_what_the_winner_is_held_against(tmp_path: Path) -> None:
    default = operators.implementation(OPERATOR.name, "mma_sync").default(PROBLEM, SM_80.arch)
    evaluator = Recorded(lambda c: 1.0 if c == default else 2.0, right=lambda c: c != default)
    with Store.open(tmp_path / "tuner.db") as store:
        outcome = study.search(
            study.SearchRequest(OPERATOR, PROBLEM, SM_80, budget=2, implementation="mma_sync"), store, evaluator
        )
    assert dict(winner_rows(outcome))["margin"] == "nothing else passed its checks; the default is wrong"


class Alike(Recorded):
    """Every config is the same machine code."""

    def attempt(self, instance: Instance) -> Attempt:
        return replace(super().attempt(instance), resources=Resources(128, 0, 1024, 128, 2, "registers", "same"))


@pytest.mark.parametrize(
    ("budget", "margin"),
    [(1, "nothing else was tried"), (4, "all that works is the same machine code")],
    ids=["alone", "alike"],
)
def test_a_winner_without_a_runner_up_says_why(tmp_path: Path, budget: int, margin: str) -> None:
    asked = study.SearchRequest(OPERATOR, PROBLEM, SM_80, budget=budget, implementation="mma_sync")
    with Store.open(tmp_path / "tuner.db") as store:
        outcome = study.search(asked, store, Alike(lambda _: 1.0))
    assert dict(winner_rows(outcome))["margin"] == f"{margin}, and it is the default"


def test_an_error_is_told_with_what_it_was_found_on_and_beside_terms_that_cancel(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        asked = study.SearchRequest(OPERATOR, PROBLEM, SM_80, budget=1, implementation="mma_sync")
        outcome = study.search(asked, store, Recorded(lambda _: 1.0))
    assert outcome.record is not None
    case = f"seq_q=1 seq_k=77 head_dim={PROBLEM.head_dim} one_hot"
    errors = OutputError("o", 0.99, 1e-3, 1.19, 1e-2, 5e-3, case), OutputError("lse", 1e-6, 1e-6, 1e-5, 1e-5)
    rows = dict(winner_rows(replace(outcome, record=replace(outcome.record, verdict=Verdict(errors)))))
    own = "seq_q=1 seq_k=77 one_hot, relative to terms that cancel"
    assert rows["error of o"] == f"4.2e-03 of 5.0e-03 allowed, on {own}"
    assert rows["error of lse"] == "1.0e-06 of 1.0e-05 allowed"


def test_a_time_is_told_as_rates_and_a_prediction_is_not(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuner.db") as store:
        asked = study.SearchRequest(OPERATOR, PROBLEM, SM_80, budget=1, implementation="mma_sync")
        record = study.search(asked, store, Recorded(lambda _: 1.0)).record
    assert record is not None
    mma_sync = operators.implementation(OPERATOR.name, "mma_sync")
    won = Instance.default(OPERATOR, mma_sync, PROBLEM, SM_80.arch)
    predicted = work_facts(won, SM_80, record)
    timed = replace(record, measurement=Measurement(1000.0, 990.0, 1010.0, 40))
    arithmetic, memory = work_facts(won, SM_80, timed)[len(predicted) :]
    least = OPERATOR.cost(PROBLEM)
    assert (arithmetic.label, memory.label) == ("arithmetic (measured)", "memory (measured)")
    assert (
        arithmetic.value == f"{least.flops * 1e3 / 1e12:.3g} TFLOP/s" and "of the 16-bit tensor peak" in arithmetic.note
    )
    assert memory.value == f"{least.bytes * 1e3 / 1e12:.3g} TB/s" and memory.note.endswith("of 2.04 TB/s")
    assert not any("measured" in fact.label for fact in predicted)
