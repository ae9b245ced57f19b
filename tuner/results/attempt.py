"""One config tried once: its identity, resources, prediction, measurement or failure."""

from dataclasses import dataclass, field
from enum import Enum

from tuner.base.fields import Fields


class Stage(Enum):
    """Where a config failed, in the order in which it is tried."""

    RENDER = "render"
    COMPILE = "compile"  # NVRTC or ptxas refused it
    LIMIT = "limit"  # it compiled, but cannot launch on the arch
    EMULATE = "emulate"  # the emulator found a race, a fault, a deadlock …
    VERIFY = "verify"  # it ran, and its output is wrong
    LAUNCH = "launch"  # the device refused or killed it
    TIME = "time"  # it could not be timed
    SPARED = "spared"  # it was not run: others of its implementation took the device down


class Evidence(Enum):
    """How a record's rank is known. The two are never mixed in one column."""

    PREDICTED = "predicted"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Failed:
    """A config that did not come through, and why. `log` is the tool's whole output."""

    stage: Stage
    reason: str  # one line
    log: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Lint:
    """What machine code does wrong, and which rules could not be decided, a sentence each; `compiler.lint` makes it."""

    failures: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.failures


@dataclass(frozen=True, slots=True)
class Resources:
    """What a config uses, read from its cubin; the worst of its kernels where it has several."""

    registers: int  # a thread
    spill_bytes: int
    smem_bytes: int  # a CTA, static and dynamic
    threads: int
    ctas_per_sm: int
    limiter: str  # what keeps ctas_per_sm from being larger
    sass_digest: str  # equal digests are equal machine code
    lint: Lint | None = None  # of all its kernels; None in rows that are older than the rules

    @property
    def flaws(self) -> tuple[str, ...]:
        """Why it ranks behind what has none: what its machine code does wrong."""
        if self.lint is not None:
            return self.lint.failures
        return (f"{self.spill_bytes} bytes of registers are spilled",) if self.spill_bytes else ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """A cost that ranks configs of one problem on one GPU. It has no unit: it is never to be read as time."""

    cost: float
    terms: Fields  # pipe or effect → what it alone would cost; they overlap, so they do not add up
    bottleneck: str
    model: str  # version of the model; costs of different models do not compare


@dataclass(frozen=True, slots=True)
class Measurement:
    """Kernel time on a device, in microseconds: median and confidence interval over samples.

    What won a final race also says how sure that is; None where there was none. What the device was like while it was
    timed is 0 where nobody could read it.
    """

    time_us: float
    low_us: float
    high_us: float
    samples: int
    regret_bound: float | None = None  # it is at most this much slower than the fastest contender, relative
    flip_probability: float | None = None  # that the same race, run again, names another
    duplicate_of: str = ""  # canonical JSON of the earlier config that is the same machine code: the samples are its
    sm_mhz: int = 0  # median clock
    throttle: int = 0  # NVML's reasons for a clock that is not the highest, a bit each; those of all samples
    temperature_c: int = 0  # the highest
    late: float = 0.0  # share of the launches that may have waited for the host, and do not count
    floor_us: float = 0.0  # a kernel that does nothing, launched alike on that machine

    @property
    def cycles(self) -> float:
        """Of an SM's clock; 0 where that is not known."""
        return self.time_us * self.sm_mhz

    def overlaps(self, other: "Measurement") -> bool:
        """Whether the two intervals share a value."""
        return self.low_us <= other.high_us and other.low_us <= self.high_us


@dataclass(frozen=True, slots=True)
class Identity:
    """What decides whether a stored result may be reused. Nothing else does."""

    operator: str
    implementation: str
    problem: str  # canonical JSON of all its fields
    gpu: str
    source: str  # Source.digest of the rendered config
    options: str  # compile options, spelled out
    toolkit: str  # "nvrtc 13.4"
    policy: str  # "predicted/3", or the measurement policy's name
    plan: str = ""  # Plan.digest: another grid is another time; empty in rows and records that are older


@dataclass(frozen=True, slots=True)
class Attempt:
    """One config tried once. An append-only row: what is learnt later is another row."""

    identity: Identity
    config: Fields
    failure: Failed | None = None
    resources: Resources | None = None
    prediction: Prediction | None = None
    measurement: Measurement | None = None
    seconds: float = 0.0  # what the try cost: compile and run

    @property
    def kind(self) -> str:
        """Its class: ok, duplicate of an earlier one's machine code, or the stage where it failed."""
        if self.failure is not None:
            return self.failure.stage.value
        return "duplicate" if self.measurement and self.measurement.duplicate_of else "ok"

    @property
    def flawed(self) -> bool:
        """Whether it ranks behind all that has no flaws; what nobody looked at is not known to have none."""
        return self.resources is None or bool(self.resources.flaws)

    @property
    def spared(self) -> bool:
        """Whether nothing is known of it: another session tries it."""
        return self.failure is not None and self.failure.stage is Stage.SPARED

    @property
    def value(self) -> float | None:
        """What the search minimises: time where it was measured, predicted cost otherwise; None when it failed."""
        if self.failure is not None:
            return None
        if self.measurement is not None:
            return self.measurement.time_us
        return self.prediction.cost if self.prediction else None
