"""The winner of a search, with its evidence."""

from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.results.attempt import Evidence, Identity, Measurement, Prediction, Resources
from tuner.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """The winner for a problem on a GPU, with its evidence. It always has a verdict."""

    identity: Identity
    config: Fields
    evidence: Evidence
    verdict: Verdict
    resources: Resources
    prediction: Prediction | None
    measurement: Measurement | None
    margin: float  # runner-up's value / winner's value - 1
    tried: int  # number of configs that the search tried
    tuner: str  # version of the tuner
    created: str  # ISO 8601, UTC
    signature: str = ""  # signature of the line without this field, by `store.signing`; empty if unsigned
