"""Tests of stored attempts as an Optuna study, read by Optuna: states, distributions, values and reasons."""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.support.recorded import OPERATOR, PROBLEM, SM_80, Recorded
from tuner.errors import UsageError
from tuner.report import optuna_study
from tuner.search import study as searching
from tuner.spec.problem import canonical
from tuner.store.sql import Store

CHOICES = {"mma_sync": {"BM": (16, 32, 64, 128)}}


def exported(tmp_path: Path, url: str) -> tuple[optuna.Study, int]:
    """The study of a search in which one config is wrong and one fails to compile, and how many attempts it has."""
    evaluator = Recorded(lambda c: None if c.BM == 128 else float(c.BM + c.BN), right=lambda c: c.BM != 16)
    with Store.open(tmp_path / "tuner.db") as store:
        request = searching.SearchRequest(OPERATOR, PROBLEM, SM_80, budget=24, implementation="mma_sync", seed=1)
        searching.search(request, store, evaluator)
        stored = store.attempts(OPERATOR.name, canonical(PROBLEM), SM_80.name)
        verdicts = store.verdicts([row.id for row in stored])
    assert optuna_study.write(url, "a search", stored, verdicts, CHOICES) == len(stored)
    return optuna.load_study(study_name="a search", storage=url), len(stored)


def test_a_study_has_every_attempt_with_its_value_or_its_reason(tmp_path: Path) -> None:
    study, count = exported(tmp_path, f"sqlite:///{tmp_path / 'study.db'}")
    trials = study.get_trials()
    assert len(trials) == count
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    failed = [trial for trial in trials if trial.state is TrialState.FAIL]
    assert complete and all(trial.value == trial.params["BM"] + trial.params["BN"] for trial in complete)
    assert failed and all(trial.user_attrs["stage"] and trial.user_attrs["reason"] for trial in failed)
    assert study.best_value == min(trial.value for trial in complete if trial.value is not None)
    assert study.user_attrs["evidence"] == "predicted" and study.metric_names == ["predicted cost"]
    distributions = trials[0].distributions["BM"]
    assert isinstance(distributions, optuna.distributions.CategoricalDistribution)
    assert set(CHOICES["mma_sync"]["BM"]) <= set(distributions.choices)
    assert optuna.importance.get_param_importances(study)


def test_a_study_that_is_there_and_a_database_of_our_own_are_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    exported(tmp_path, url)
    with pytest.raises(UsageError, match="has a study named 'a search': name another with --study"):
        exported(tmp_path, url)
    before = (tmp_path / "tuner.db").read_bytes()
    with pytest.raises(UsageError, match="is a database of this program"):
        exported(tmp_path, f"sqlite:///{tmp_path / 'tuner.db'}")
    assert before[:100] == (tmp_path / "tuner.db").read_bytes()[:100]
    with pytest.raises(UsageError, match="cannot use 'nonsense' as a storage of Optuna"):
        exported(tmp_path, "nonsense")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("optuna_dashboard") is None, reason="needs optuna-dashboard")
def test_the_dashboard_serves_the_study(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    _, count = exported(tmp_path, url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = shutil.which("optuna-dashboard", path=str(Path(sys.executable).parent)) or "optuna-dashboard"
    server = subprocess.Popen([program, url, "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies") as answer:
                    (summary,) = json.load(answer)["study_summaries"]
                break
            except OSError:
                time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies/{summary['study_id']}") as answer:
            assert len(json.load(answer)["trials"]) == count
    finally:
        server.terminate()
        server.wait()
