"""What a device said of one compiled config, so that it may be served there without a record."""

from dataclasses import dataclass

from tuner.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class CheckedCode:
    """Machine code and the machine that it was checked on. A change of any field needs a new check."""

    operator: str
    implementation: str
    gpu: str
    driver: str  # the newest CUDA that the driver supports: "13.0"; "simulated" for a simulated device
    source: str  # Source.digest of the rendered config
    options: str  # compile options
    toolkit: str  # "nvrtc 13.4"


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict of a device on `code`, over the edge cases of `problem`. A verdict that is not ok is kept too."""

    code: CheckedCode
    problem: str  # canonical JSON of all its fields
    verdict: Verdict
