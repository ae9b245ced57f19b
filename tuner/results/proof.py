"""A device's verdict on one compiled config, which permits serving it on that device without a record."""

from dataclasses import dataclass

from tuner.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class CheckedCode:
    """Machine code and the machine on which it was checked. A change of any field requires a new check."""

    operator: str
    implementation: str
    gpu: str
    driver: str  # newest CUDA version that the driver supports: "13.0"; "simulated" for a simulated device
    source: str  # Source.digest of the rendered config
    options: str  # compile options
    toolkit: str  # "nvrtc 13.4"


@dataclass(frozen=True, slots=True)
class Proof:
    """A device's verdict on `code`, over the edge cases of `problem`. Failed verdicts are also stored."""

    code: CheckedCode
    problem: str  # canonical JSON of all fields
    verdict: Verdict
