"""The predicted time of kernels in a class that devices have measured, with a band from that class's residuals."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.arch import GPU
from tuner.arch import gpu as gpu_of
from tuner.errors import UsageError
from tuner.evaluate.predict.kernel_classes import LOOPS, SHARING, STREAMING
from tuner.results.attempt import Prediction
from tuner.results.record import TuningRecord

UNJUDGED = "no device has judged such kernels: the cost is a rank, not a time"
_LARGE_US = 1000.0  # from here on in milliseconds


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measurements of a class of kernels, compared with the predictions of one model."""

    kernels: str
    low: float  # 5th percentile of measured over predicted time, minus 1; with several tables the lowest
    high: float  # 95th percentile; with several tables the highest
    measurements: int
    devices: str
    arches: tuple[str, ...]
    model: str
    source: str


# by class; each source names the command that prints the percentiles
EVIDENCE: Mapping[str, Evidence] = {
    STREAMING: Evidence(
        kernels="streaming kernels",
        low=-0.114,
        high=0.270,
        measurements=384,
        devices="A100 and H100 PCIe",
        arches=("sm_80", "sm_90a"),
        model="predicted/9",
        source="python benchmarks/public_measurements.py streams, without the device on which constants were chosen",
    ),
    SHARING: Evidence(
        kernels="reductions and tiled convolutions",
        low=-0.272,
        high=2.298,
        measurements=172,
        devices="RTX 3060, 3060 Ti, 3070 Ti and 3080",
        arches=("sm_86",),
        model="predicted/9",
        source="python benchmarks/public_measurements.py reductions, convolutions: the wider bound of the two",
    ),
    LOOPS: Evidence(
        kernels="convolutions, gemm, point in polygon and dedispersion",
        low=-0.492,
        high=0.431,
        measurements=1060,
        devices="RTX 3060, 3060 Ti, 3070 Ti, 3080, 3090 and A4000",
        arches=("sm_86",),
        model="predicted/9",
        source="python benchmarks/public_measurements.py convolutions, python benchmarks/skill.py: the widest bounds",
    ),
}


@dataclass(frozen=True, slots=True)
class PredictedTime:
    """Microseconds at the boost clock of a GPU model. The band contains at least 90 % of the class's measurements."""

    time_us: float
    low_us: float
    high_us: float
    evidence: Evidence

    @property
    def band(self) -> str:
        """Format as `12.3 µs, -11% … +27%`."""
        low, high = (f"{bound / self.time_us - 1:+.0%}" for bound in (self.low_us, self.high_us))
        return f"{self.time} {low} … {high}"

    @property
    def short(self) -> str:
        """Format in a shorter form."""
        low, high = (round(100 * (bound / self.time_us - 1)) for bound in (self.low_us, self.high_us))
        return f"{self.time} {low:+d}…{high:+d}%"

    @property
    def time(self) -> str:
        large = self.time_us >= _LARGE_US
        return f"{self.time_us / _LARGE_US:.4g} ms" if large else f"{self.time_us:.4g} µs"

    @property
    def judged(self) -> str:
        """Return the measurements behind the band."""
        evidence = self.evidence
        return f"at least 90 % of {evidence.measurements} measurements of {evidence.kernels} on {evidence.devices}"

    def __str__(self) -> str:
        return f"{self.band}: {self.judged}"


def predicted_time(prediction: Prediction, gpu: GPU) -> PredictedTime | None:
    """Return the time of a config of a class in EVIDENCE; None if no device of this arch has measured that class.

    None also for a prediction of another model, whose residuals are unknown.
    """
    evidence = EVIDENCE.get(prediction.kernels)
    if evidence is None or gpu.arch.name not in evidence.arches or evidence.model != prediction.model:
        return None
    time_us = prediction.cost / gpu.device.clock_mhz
    return PredictedTime(time_us, time_us * (1 + evidence.low), time_us * (1 + evidence.high), evidence)


def recorded_time(record: TuningRecord) -> PredictedTime | None:
    """Return the predicted time of a record's config on its GPU; None if the GPU is unknown on this machine."""
    try:
        return predicted_time(record.prediction, gpu_of(record.identity.gpu)) if record.prediction else None
    except UsageError:
        return None


def time_or_rank(prediction: Prediction, gpu: GPU) -> str:
    """Format as `12.3 µs -11% … +27%: 90 % of …` at the GPU's boost clock, or say that the cost is a rank."""
    return str(predicted_time(prediction, gpu) or UNJUDGED)
