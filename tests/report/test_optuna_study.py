"""Tests of stored attempts as an Optuna study, read by Optuna: states, distributions, values and reasons."""

import json
import re
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

from tests.support.patience import GENEROUS_S
from tests.support.recorded import OPERATOR, PROBLEM, SM_80, Recorded
from tuner import operators
from tuner.cli.commands.import_kernel import import_kernel
from tuner.errors import UsageError
from tuner.evaluate.predict.cost import MODEL
from tuner.report import optuna_study
from tuner.search import study as searching
from tuner.search.history import transfer_results
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, to_fields
from tuner.store.sql import Store

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
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


def tuner(*words: str, db: Path) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "tuner", *words, "--db", str(db)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_an_exported_study_comes_back_as_history_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study, count = exported(tmp_path, url)
    first = tuner("import", url, db=tmp_path / "other.db")
    assert first.returncode == 0, first.stderr
    assert f"{count} attempts of the study 'a search' imported as history" in first.stdout
    again = tuner("import", url, db=tmp_path / "other.db")
    assert f"0 attempts of the study 'a search' imported as history ({count} were imported before)" in again.stdout
    with Store.open(tmp_path / "other.db") as store:
        stored = store.attempts(OPERATOR.name, canonical(PROBLEM), SM_80.name)
        assert not store.all_records()
        request = searching.SearchRequest(OPERATOR, PROBLEM, SM_80, budget=4, implementation="mma_sync", seed=1)
        (past,) = transfer_results(request, store, MODEL, ())["mma_sync"]
        outcome = searching.search(request, store, Recorded())
    values = {trial.value for trial in study.get_trials() if trial.state is TrialState.COMPLETE}
    assert {row.attempt.value for row in stored} - {None} == values
    assert past.source == "history of earlier code" and len(past.results) == count
    assert outcome.reused == 0  # nothing of a study stands for a result of this search
    failed = [row.attempt.failure for row in stored if row.attempt.failure]
    assert {trial.user_attrs["reason"] for trial in study.get_trials(states=(TrialState.FAIL,))} == {
        failure.reason for failure in failed if failure
    }


def test_a_study_of_someone_else_needs_to_be_told_what_it_is_of_and_bad_trials_are_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=url, study_name="theirs", direction="minimize")
    naive = operators.implementation(OPERATOR.name, "naive")
    right = to_fields(Instance.default(OPERATOR, naive, PROBLEM, SM_80.arch).config)
    distributions = {name: optuna.distributions.CategoricalDistribution([value]) for name, value in right.items()}
    study.add_trial(optuna.create_trial(value=12.5, params=dict(right), distributions=distributions))
    other = {"BOGUS": optuna.distributions.CategoricalDistribution(["$(reboot)"])}
    study.add_trial(optuna.create_trial(value=1.0, params={"BOGUS": "$(reboot)"}, distributions=other))
    bare = tuner("import", url, db=tmp_path / "t.db")
    assert (bare.returncode, bare.stderr) == (2, "error: the study 'theirs' does not name it: give --operator\n")
    about = [
        "--operator",
        OPERATOR.name,
        "--gpu",
        "sm_80",
        "--implementation",
        "naive",
        "--problem",
        '{"head_dim": 64}',
    ]
    taken = tuner("import", url, *about, db=tmp_path / "t.db")
    assert taken.returncode == 0 and "1 attempt of the study" in taken.stdout
    assert "1 trial left out: naive: Config has no field 'BOGUS'" in " ".join(taken.stderr.split())
    with Store.open(tmp_path / "t.db") as store:
        (row,) = store.attempts(OPERATOR.name)
    assert row.attempt.measurement is not None and row.attempt.measurement.time_us == 12.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sqlite:///NONE.db"], "no file NONE.db"),
        (["nonsense://x"], "cannot read 'nonsense://x' as a storage of Optuna"),
        (["sqlite:///study.db", "--study", "b"], "has the studies 'a search': name one with --study"),
        (["sqlite:///study.db", "--fix", "a=1"], "--fix: for a script or a T1 file, not for a study"),
        (["sqlite:///study.db", "--problem", "[1]"], "give the fields as JSON"),
        (["sqlite:///study.db", "--evidence", "guessed"], "evidence 'guessed': give measured"),
        (["sqlite:///study.db", "--gpu", "sm_91"], "sm_91"),
        (["script.py", "--gpu", "sm_80"], "--gpu, --db: for an Optuna study"),
    ],
)
def test_what_cannot_be_imported_is_refused_by_name(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exported(tmp_path, "sqlite:///study.db")
    with pytest.raises(UsageError, match=re.escape(message)):
        run_import(*words, db=str(tmp_path / "t.db"))
    assert not Path("NONE.db").exists()


def run_import(source: str, *words: str, db: str) -> None:
    """The command in this process, without its guard."""
    options = dict(zip([word.removeprefix("--") for word in words[::2]], words[1::2], strict=True))
    fix = {"fix": [options.pop("fix")]} if "fix" in options else {}
    import_kernel(source, **fix, **options, db=db)  # type: ignore[arg-type]


def in_browser(address: str, folder: Path) -> str:
    """The document of a page after its scripts have drawn it."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,2400", "--virtual-time-budget=20000"]
    line = [str(CHROMIUM), *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", address]
    return subprocess.run(line, capture_output=True, text=True, timeout=GENEROUS_S, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.skipif(find_spec("optuna_dashboard") is None, reason="needs optuna-dashboard")
def test_the_dashboard_shows_the_study_in_a_browser(tmp_path: Path) -> None:
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
        page = f"http://127.0.0.1:{port}/dashboard/studies/{summary['study_id']}"
        first, analytics, trials = (in_browser(page + part, tmp_path) for part in ("", "/analytics", "/trials"))
        assert ">History<" in first and ">predicted cost<" in first
        assert 'id="graph-hyperparameter-importances"' in first and ">q_in_registers<" in first
        assert 'id="plot-slice"' in analytics and 'id="graph-contour"' in analytics
        assert ">Fail<" in trials and ">stage compile<" in trials and ">reason recorded failure<" in trials
    finally:
        server.terminate()
        server.wait()
