"""The winner of a search, with its evidence."""

from dataclasses import dataclass

from tuner.base.fields import Fields
from tuner.results.attempt import Evidence, Identity, Measurement, Prediction, Resources
from tuner.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """The winner for a problem on a GPU, with its evidence. Never made without a verdict."""

    identity: Identity
    config: Fields
    evidence: Evidence
    verdict: Verdict
    resources: Resources
    prediction: Prediction | None
    measurement: Measurement | None
    margin: float  # the runner-up's value over the winner's, less 1
    tried: int  # configs tried by the search that found it
    tuner: str  # version that made it
    created: str  # ISO 8601, UTC
    signature: str = ""  # of its line without it, by `store.signing`; empty where nobody signed it
