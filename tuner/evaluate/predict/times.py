"""Predicted time, for kernels of a class that devices have judged, with a band from the residuals of that class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.arch import GPU
from tuner.evaluate.predict.compiled import UndeclaredLaunch
from tuner.evaluate.predict.cost import MODEL
from tuner.results.attempt import Prediction

UNJUDGED = "no device has judged such kernels: the cost is a rank, not a time"
_FROM_DRAM = 0.5  # of the bytes that a streaming kernel moves between L2 and the SMs, at least


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measurements of a class of kernels, beside their predictions by one model."""

    kernels: str
    low: float  # 5th percentile of measured over predicted time, minus 1
    high: float  # 95th percentile
    measurements: int
    devices: str
    arches: tuple[str, ...]
    model: str
    source: str


# By class. The percentiles are printed by `python benchmarks/public_measurements.py streams`.
EVIDENCE: Mapping[str, Evidence] = {
    "streaming": Evidence(
        kernels="streaming kernels",
        low=-0.114,
        high=0.270,
        measurements=384,
        devices="A100 and H100 PCIe",
        arches=("sm_80", "sm_90a"),
        model="predicted/9",
        source="tests/evaluate/predict/data/stream_occupancy.tsv, without the device on which constants were chosen",
    ),
}


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """At the boost clock of a GPU model, in microseconds; 90 % of the class's measurements lie within the band."""

    time_us: float
    low_us: float
    high_us: float
    evidence: Evidence

    def __str__(self) -> str:
        low, high = (f"{bound / self.time_us - 1:+.0%}" for bound in (self.low_us, self.high_us))
        judged = f"{self.evidence.measurements} measurements of {self.evidence.kernels} on {self.evidence.devices}"
        return f"{self.time_us:.4g} µs, {low} … {high}: 90 % of {judged}"


def predicted_time(prediction: Prediction, gpu: GPU, kernels: str) -> PredictedTime | None:
    """The time of a class of kernels (a key of EVIDENCE); None if no device of this arch has judged it."""
    evidence = EVIDENCE.get(kernels)
    if evidence is None or gpu.arch.name not in evidence.arches or evidence.model != MODEL:
        return None
    time_us = prediction.cost / gpu.device.clock_mhz
    return PredictedTime(time_us, time_us * (1 + evidence.low), time_us * (1 + evidence.high), evidence)


def class_of(launches: Sequence[UndeclaredLaunch]) -> str:
    """The class of a config with undeclared work: "streaming", or empty.

    A streaming kernel is one launch whose threads pass no loop, share nothing and move most of their bytes from or to
    DRAM, as those do that have been measured.
    """
    counted = [launch.counted for launch in launches]
    if len(counted) != 1 or counted[0] is None or counted[0].counts.unsure:
        return ""
    work, counts = counted[0].work, counted[0].counts
    shares = work.barriers or counts.loops or any(access.space != "global" for access in counts.accesses)
    return "" if shares or work.dram_bytes < _FROM_DRAM * work.l2_bytes else "streaming"
