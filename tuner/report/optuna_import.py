"""An Optuna study as attempts: the history of a later search.

A study is data from elsewhere. Names and values are compared with the operator's declarations, nothing of it is run,
and its attempts never become records: a search tries what they recommend, and drops them if they mislead.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import operators
from tuner.arch import GPU
from tuner.base.fields import Fields
from tuner.errors import UsageError
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.evaluate.predict.cost import MODEL
from tuner.results.attempt import Attempt, Evidence, Failed, Identity, Measurement, Prediction, Resources, Stage
from tuner.spec.operator import Implementation, Operator
from tuner.spec.problem import canonical, from_fields, to_fields

SOURCE = "imported"  # in place of a source digest, so that no search takes such an attempt for its own
_LONGEST = 500  # characters of a reason


@dataclass(frozen=True, slots=True)
class Study:
    """A stored study: its attributes, and its finished trials."""

    name: str
    attributes: Mapping[str, Any]
    trials: Sequence[Any]  # optuna.trial.FrozenTrial


@dataclass(frozen=True, slots=True)
class Imported:
    """The attempts of a study, and why other trials are not among them, by reason."""

    attempts: tuple[Attempt, ...]
    refused: Mapping[str, int]


def load(url: str, name: str | None) -> Study:
    """Return the study `name` of Optuna's storage at `url`, or its only one. Raises UsageError."""
    import optuna  # imported here because it takes a second

    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.is_file():  # Optuna would create it
        raise UsageError(f"no file {path}: give the URL of a storage that has a study, such as sqlite:///study.db")
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return _study(optuna, url, name)
    except UsageError:
        raise
    except Exception as error:  # an error of SQLAlchemy, of another version of Optuna, or a missing driver
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"cannot read {url!r} as a storage of Optuna: {reason}") from error
    finally:
        optuna.logging.set_verbosity(verbosity)


def _study(optuna: Any, url: str, name: str | None) -> Study:
    names = optuna.get_all_study_names(url)
    chosen = name or (names[0] if len(names) == 1 else None)
    if chosen is None or chosen not in names:
        listed = ", ".join(map(repr, names)) or "none"
        raise UsageError(f"{url} has the studies {listed}: name one with --study")
    study = optuna.load_study(study_name=chosen, storage=url)
    if len(study.directions) != 1 or study.direction is not optuna.study.StudyDirection.MINIMIZE:
        raise UsageError(f"the study {chosen!r} does not minimise one value: only times and costs can be imported")
    states = optuna.trial.TrialState
    trials = study.get_trials(deepcopy=False, states=(states.COMPLETE, states.FAIL))
    return Study(chosen, study.user_attrs, trials)


def attempts_of(
    study: Study, operator: Operator[Any], problem: Any, gpu: GPU, implementation: str | None, evidence: Evidence
) -> Imported:
    """Return the trials as attempts at `problem`. A trial is refused if its parameters are not a config.

    A trial's implementation is `implementation`, or its parameter or user attribute of that name.
    """
    imported, refused = [], Counter[str]()
    serving = {of.name: of for of in operators.implementations(operator.name)}
    policy = MODEL if evidence is Evidence.PREDICTED else MeasurementPolicy().name
    stored_policy = study.attributes.get("policy")
    if isinstance(stored_policy, str) and stored_policy.startswith(f"{evidence.value}/"):
        policy = stored_policy
    for trial in study.trials:
        try:
            of = _implementation(trial, serving, implementation)
            config = _config(trial.params, of)
            identity = Identity(
                operator.name, of.name, canonical(problem), gpu.name, SOURCE, "", _text(study, "compiler"), policy
            )
            imported.append(_attempt(trial, identity, config, evidence))
        except (TypeError, ValueError) as error:
            refused[str(error)] += 1
    return Imported(tuple(imported), dict(refused))


def _implementation(
    trial: Any, serving: Mapping[str, Implementation[Any, Any]], wanted: str | None
) -> Implementation[Any, Any]:
    name = wanted or trial.params.get("implementation") or trial.user_attrs.get("implementation")
    if not isinstance(name, str) or name not in serving:
        raise ValueError(f"no implementation {str(name)[:60]!r}: --implementation names one of {', '.join(serving)}")
    return serving[name]


def _config(parameters: Mapping[str, Any], implementation: Implementation[Any, Any]) -> Fields:
    """Return the config of a trial. `<implementation>.<parameter>` is a parameter of a conditional space."""
    prefix = f"{implementation.name}."
    own = {name.removeprefix(prefix): value for name, value in _own(parameters, prefix)}
    try:
        return to_fields(from_fields(implementation.config, own))
    except TypeError as error:
        raise TypeError(f"{implementation.name}: {error}") from error


def _own(parameters: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    conditional = any(name.startswith(prefix) for name in parameters)
    for name, value in parameters.items():
        if name != "implementation" and (name.startswith(prefix) or not conditional):
            yield name, value


def _attempt(trial: Any, identity: Identity, config: Fields, evidence: Evidence) -> Attempt:
    value = trial.value
    if trial.state.name == "FAIL" or value is None:
        return Attempt(identity, config, failure=_failed(trial.user_attrs))
    if not (math.isfinite(value) and value > 0):
        raise ValueError("its value is not a positive number")
    resources = _resources(trial.user_attrs)
    if evidence is Evidence.MEASURED:
        return Attempt(identity, config, None, resources, measurement=Measurement(value, value, value, 1))
    return Attempt(identity, config, None, resources, Prediction(value, {}, "", identity.policy))


def _failed(attributes: Mapping[str, Any]) -> Failed:
    stages = {stage.value: stage for stage in Stage}
    stage = stages.get(str(attributes.get("stage")), Stage.VERIFY)
    return Failed(stage, str(attributes.get("reason", "failed in the imported study"))[:_LONGEST])


def _resources(attributes: Mapping[str, Any]) -> Resources | None:
    """Return the resources that the trial has; zeros where it has none. A flawed config has none, and ranks behind."""
    if attributes.get("flaws"):
        return None
    numbers = (attributes.get(name, 0) for name in ("registers", "spill_bytes", "smem_bytes", "ctas_per_sm"))
    registers, spills, smem, ctas = (value if isinstance(value, int) and value >= 0 else 0 for value in numbers)
    return Resources(registers, spills, smem, 0, ctas, "", "")


def _text(study: Study, name: str) -> str:
    value = study.attributes.get(name, "")
    return value[:_LONGEST] if isinstance(value, str) else ""
