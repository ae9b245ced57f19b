"""One evaluation of a config: its identity, resources, prediction, measurement or failure."""

from dataclasses import dataclass, field
from enum import Enum

from tuner.base.fields import Fields


class Stage(Enum):
    """The stage at which a config failed, in order."""

    RENDER = "render"
    COMPILE = "compile"  # NVRTC or ptxas rejected it
    LIMIT = "limit"  # it compiled, but cannot launch on the arch
    EMULATE = "emulate"  # the emulator found a race, a fault, a deadlock …
    VERIFY = "verify"  # it ran, but its output is wrong
    LAUNCH = "launch"  # the device rejected or killed it
    TIME = "time"  # it could not be timed
    SPARED = "spared"  # it was not run, because other configs of its implementation crashed the device


class Evidence(Enum):
    """The basis of a record's rank. The two are never mixed in one column."""

    PREDICTED = "predicted"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Failed:
    """The stage and reason of a failure. `log` is the complete output of the tool."""

    stage: Stage
    reason: str  # one line
    log: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Lint:
    """The rules that machine code violates, and those that could not be decided, one sentence each; see
    `compiler.lint`.
    """

    failures: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.failures


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a config, read from its cubin; the maximum over its kernels."""

    registers: int  # per thread
    spill_bytes: int
    smem_bytes: int  # per CTA, static and dynamic
    threads: int
    ctas_per_sm: int
    limiter: str  # the resource that limits ctas_per_sm
    sass_digest: str  # equal digests mean equal machine code
    lint: Lint | None = None  # the rules for all its kernels; None in rows older than the rules

    @property
    def flaws(self) -> tuple[str, ...]:
        """Reasons to rank behind configs without flaws: the rules that the machine code violates."""
        if self.lint is not None:
            return self.lint.failures
        return (f"{self.spill_bytes} bytes of registers are spilled",) if self.spill_bytes else ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """A cost that ranks configs of one problem on one GPU.

    It is a time only where devices have judged its class of kernels: `evaluate.predict.times` converts it, with a band.
    """

    cost: float
    terms: Fields  # pipe or effect → its cost alone; the terms overlap, so they do not add up
    bottleneck: str
    model: str  # version of the model; costs of different versions are not comparable
    kernels: str = ""  # the class of kernels that the launches belong to; empty for a class without measurements


@dataclass(frozen=True, slots=True)
class Measurement:
    """Kernel time on a device in microseconds: median and confidence interval over samples.

    The winner of a final race also has a regret bound and a flip probability; otherwise they are None. Device state is
    sampled during the timing and 0 if it could not be read.
    """

    time_us: float
    low_us: float
    high_us: float
    samples: int
    regret_bound: float | None = None  # upper bound on its slowdown relative to the fastest contender
    flip_probability: float | None = None  # probability that a repetition of the race has another winner
    duplicate_of: str = ""  # canonical JSON of the earlier config with the same machine code, which was timed instead
    sm_mhz: int = 0  # median clock
    throttle: int = 0  # bit mask of NVML's clock event reasons, over all samples
    temperature_c: int = 0  # maximum
    late: float = 0.0  # fraction of launches that were discarded because they may have waited for the host
    floor_us: float = 0.0  # time of an empty kernel launched the same way on that machine

    @property
    def cycles(self) -> float:
        """Duration in SM clock cycles; 0 if the clock is unknown."""
        return self.time_us * self.sm_mhz

    def overlaps(self, other: "Measurement") -> bool:
        """Return whether the two intervals overlap."""
        return self.low_us <= other.high_us and other.low_us <= self.high_us


@dataclass(frozen=True, slots=True)
class Identity:
    """The values that decide whether a stored result may be reused. Nothing else does."""

    operator: str
    implementation: str
    problem: str  # canonical JSON of all fields
    gpu: str
    source: str  # Source.digest of the rendered config
    options: str  # compile options
    toolkit: str  # "nvrtc 13.4"
    policy: str  # "predicted/3", or the name of the measurement policy
    plan: str = ""  # Plan.digest, since the grid affects the time; empty in older rows and records


@dataclass(frozen=True, slots=True)
class Attempt:
    """One evaluation of a config. Rows are append-only: later results are new rows."""

    identity: Identity
    config: Fields
    failure: Failed | None = None
    resources: Resources | None = None
    prediction: Prediction | None = None
    measurement: Measurement | None = None
    seconds: float = 0.0  # time to compile and run

    @property
    def kind(self) -> str:
        """`ok`, `duplicate` (an earlier config has the same machine code), or the stage at which it failed."""
        if self.failure is not None:
            return self.failure.stage.value
        return "duplicate" if self.measurement and self.measurement.duplicate_of else "ok"

    @property
    def flawed(self) -> bool:
        """Whether it ranks behind attempts without flaws. Unanalysed machine code counts as flawed."""
        return self.resources is None or bool(self.resources.flaws)

    @property
    def spared(self) -> bool:
        """Whether it was skipped, so that another session evaluates it."""
        return self.failure is not None and self.failure.stage is Stage.SPARED

    @property
    def value(self) -> float | None:
        """The objective of the search: measured time in µs, else predicted cost; None for a failed attempt."""
        if self.failure is not None:
            return None
        if self.measurement is not None:
            return self.measurement.time_us
        return self.prediction.cost if self.prediction else None
