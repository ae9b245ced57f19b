"""Stored attempts as an Optuna study, for optuna-dashboard and Optuna's own tools."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tuner.errors import UsageError
from tuner.results.attempt import Attempt, Evidence
from tuner.results.verdict import Verdict
from tuner.spec.space import Value
from tuner.store.sql.rows import StoredAttempt

_OURS = {"attempts", "records", "verdicts"}  # tables that no Optuna database has
_OBJECTIVES = {Evidence.MEASURED: "time in µs", Evidence.PREDICTED: "predicted cost"}

Choices = Mapping[str, Mapping[str, Sequence[Value]]]  # implementation → parameter → values


def write(
    url: str, name: str, stored: Sequence[StoredAttempt], verdicts: Mapping[int, Verdict], choices: Choices
) -> int:
    """Add a study named `name` to Optuna's storage at `url`; return the number of its trials.

    The parameters of a trial are the implementation and its config; with several implementations, their parameters are
    named `<implementation>.<parameter>`, as in a conditional space. An attempt that failed, or whose config failed its
    check, is a failed trial with the user attributes `stage` and `reason`. Raises UsageError if the storage is not
    Optuna's, or already has a study of that name.
    """
    import optuna  # imported here because it takes a second

    _refuse_ours(url)
    evidence = Evidence.MEASURED if any(row.attempt.measurement for row in stored) else Evidence.PREDICTED
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(storage=url, study_name=name, direction="minimize")
    except optuna.exceptions.DuplicatedStudyError:
        raise UsageError(f"{url} has a study named {name!r}: name another with --study") from None
    except Exception as error:  # an error of SQLAlchemy, or a missing driver
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        advice = "give a URL such as sqlite:///study.db"
        raise UsageError(f"cannot use {url!r} as a storage of Optuna: {reason}; {advice}") from error
    finally:
        optuna.logging.set_verbosity(verbosity)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([_OBJECTIVES[evidence]])
    for key, value in _about(stored[-1].attempt, evidence).items():
        study.set_user_attr(key, value)
    listed = _with_stored(choices, stored)
    study.add_trials([_trial(optuna, row, verdicts.get(row.id), evidence, listed) for row in stored])
    return len(stored)


def _trial(optuna: Any, row: StoredAttempt, verdict: Verdict | None, evidence: Evidence, choices: Choices) -> Any:
    attempt = row.attempt
    parameters = dict(_parameters(attempt, choices))
    distributions = {
        name: optuna.distributions.CategoricalDistribution(values) for name, (_, values) in parameters.items()
    }
    reason = _reason(attempt, verdict)
    value = (
        attempt.measurement.time_us if attempt.measurement else attempt.prediction.cost if attempt.prediction else None
    )
    failed = bool(reason) or value is None or (evidence is Evidence.MEASURED and attempt.measurement is None)
    states = optuna.trial.TrialState
    trial = optuna.trial.create_trial(
        state=states.FAIL if failed else states.COMPLETE,
        value=None if failed else value,
        params={name: value for name, (value, _) in parameters.items()},
        distributions=distributions,
        user_attrs={"implementation": attempt.identity.implementation, **reason, **_resources(attempt)},
    )
    moment = datetime.fromisoformat(row.created).replace(tzinfo=None)
    trial.datetime_start = trial.datetime_complete = moment
    return trial


def _parameters(attempt: Attempt, choices: Choices) -> Iterator[tuple[str, tuple[Value, Sequence[Value]]]]:
    """Yield (name, (value, choices)) for each parameter of a trial."""
    implementation = attempt.identity.implementation
    several = len(choices) > 1
    if several:
        yield "implementation", (implementation, tuple(choices))
    for name, values in choices[implementation].items():
        if name in attempt.config:
            yield (f"{implementation}.{name}" if several else name), (attempt.config[name], values)


def _with_stored(choices: Choices, stored: Sequence[StoredAttempt]) -> dict[str, dict[str, tuple[Value, ...]]]:
    """Return the current choices followed by values of stored configs, for implementations with attempts."""
    listed: dict[str, dict[str, tuple[Value, ...]]] = {}
    for row in stored:
        name = row.attempt.identity.implementation
        known = listed.setdefault(name, {key: tuple(values) for key, values in choices.get(name, {}).items()})
        for parameter, value in row.attempt.config.items():
            if value not in known.get(parameter, ()):
                known[parameter] = (*known.get(parameter, ()), value)
    return listed


def _reason(attempt: Attempt, verdict: Verdict | None) -> dict[str, str]:
    if attempt.failure is not None:
        return {"stage": attempt.failure.stage.value, "reason": attempt.failure.reason}
    return {"stage": "check", "reason": verdict.reason} if verdict is not None and not verdict.ok else {}


def _resources(attempt: Attempt) -> dict[str, Any]:
    used = attempt.resources
    if used is None:
        return {}
    resources = {"registers": used.registers, "spill_bytes": used.spill_bytes, "smem_bytes": used.smem_bytes}
    return resources | {"ctas_per_sm": used.ctas_per_sm} | ({"flaws": "; ".join(used.flaws)} if used.flaws else {})


def _about(attempt: Attempt, evidence: Evidence) -> dict[str, str]:
    of = attempt.identity
    about = {"operator": of.operator, "problem": of.problem, "gpu": of.gpu}
    return about | {"evidence": evidence.value, "compiler": of.toolkit, "policy": of.policy}


def _refuse_ours(url: str) -> None:
    """Raise UsageError for a database of this program: both have a table `studies`, so Optuna would fail half-way."""
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and path.is_file():
        import sqlite3

        with sqlite3.connect(path) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables >= _OURS:
            raise UsageError(f"{path} is a database of this program: name another file for the study")
