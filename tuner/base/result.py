"""What became of a config: verdict, prediction, measurement or failure, and the record of a winner. Plain values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from math import inf, isinf, isnan
from reprlib import repr as shortened
from typing import Any, TypeVar

from tuner.base.canonical import encode

Scalar = int | float | str | bool
Fields = Mapping[str, Scalar]  # a Problem or a Config as data
V = TypeVar("V")
_CANCELS = 2.0**-6, 4.0  # of the result, and × the usual limit: a limit above both only terms that cancel explain
_LATER = ("usual_limit", "case", "sm_mhz", "throttle", "temperature_c", "late", "floor_us")  # of errors and times
_ACCEPTED = {str: str, int: int, float: float | int, float | None: float | int | None}  # by the annotation of a field


def scalar(value: Scalar) -> str:
    """One Problem or Config value as CUDA and JSON spell it: `true`, `64`, `bf16`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def spelled(fields: Fields) -> str:
    """`BT=64 BK=128 swizzle=true`"""
    return " ".join(f"{name}={scalar(value)}" for name, value in fields.items())


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
class OutputError:
    """How far one output is from its float64 reference, in one case.

    Where the terms of a result cancel, rounding them costs a large share of what is left, and so do both the RMSE ratio
    and its limit. People are told `error` of `allowed` then: the same two over the size of the terms.
    """

    name: str
    rmse_ratio: float  # ‖x − ref‖ / ‖ref‖
    max_abs: float  # max |x − ref|
    limit: float  # what rmse_ratio had to stay under
    max_limit: float  # what max_abs had to stay under
    usual_limit: float = 0.0  # about what `limit` is where no terms cancel; 0 where it is not known
    case: str = ""  # sizes and kind of inputs: "seq_q=1 seq_k=77 peaked"; empty where it is not known

    @property
    def cancels(self) -> bool:
        """Whether the result is small beside its terms, as what rounding costs tells."""
        least, usual = _CANCELS
        return self.usual_limit > 0 and max(least, usual * self.usual_limit) < self.limit < inf

    @property
    def error(self) -> float:
        """‖x − ref‖ / ‖ref‖; where terms cancel, over their size, at which rounding costs what it usually does."""
        return self.rmse_ratio * self.usual_limit / self.limit if self.cancels else self.rmse_ratio

    @property
    def allowed(self) -> float:
        """What `error` had to stay under: `error / allowed` is `rmse_ratio / limit`."""
        return self.usual_limit if self.cancels else self.limit

    def case_on(self, problem: Fields) -> str:
        """The case without the sizes that `problem` has, too."""
        return " ".join(word for word in self.case.split() if word not in spelled(problem).split())

    @property
    def ok(self) -> bool:
        return self.rmse_ratio <= self.limit and self.max_abs <= self.max_limit  # False for NaN

    @property
    def reason(self) -> str:
        where = f", on {self.case}" if self.case else ""
        if isinf(self.rmse_ratio):
            return (
                f"{self.name}: NaN or infinite where the reference is not; "
                f"it is full of NaN until a kernel writes it{where}"
            )
        of = " of terms that cancel" if self.cancels else ""
        ratio = f"RMSE ratio {self.error:.3g}{of} (limit {self.allowed:.3g})"
        return f"{self.name}: {ratio}, largest error {self.max_abs:.3g} (limit {self.max_limit:.3g}){where}"

    def badness(self) -> tuple[bool, float]:
        """Greater is worse: what is not ok, then how much of its limit the RMSE ratio takes."""
        if isnan(self.rmse_ratio) or not self.limit:  # integers have no room for an error
            return not self.ok, inf if self.rmse_ratio else 0.0
        return not self.ok, self.rmse_ratio / self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a kernel computes what its operator says. `findings` are the emulator's or the device's complaints."""

    errors: tuple[OutputError, ...]
    findings: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()  # what was run: "T=63 S=200 heads=4/2 checked random/late seed=1"
    where: str = "emulator"

    @property
    def ok(self) -> bool:
        return bool(self.errors) and not self.findings and all(error.ok for error in self.errors)

    @property
    def lost(self) -> bool:
        """Whether who checked died or was too slow, as on a busy machine: another try may end otherwise."""
        return any(finding.startswith("lost: ") for finding in self.findings)

    @property
    def unseen(self) -> str:
        """What a check there cannot see, in words; empty on the emulator and on a device."""
        seen = (
            "of races only those that __syncthreads in shared memory prevents are looked for, and none in global memory"
        )
        return seen if self.where.startswith("PTX") else ""

    @property
    def reason(self) -> str:
        """One line that says why it is not ok; empty when it is."""
        if self.findings:
            return self.findings[0]
        return "; ".join(e.reason for e in self.errors if not e.ok) if self.errors else "nothing was compared"


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
class Lap:
    """One contender in one round of a final race, and the device just after it; 0 is what nobody could read."""

    time_us: float
    sm_mhz: int = 0
    throttle: int = 0
    temperature_c: int = 0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Runner:
    """Who runs in a final race."""

    implementation: str
    config: Fields
    source: str  # Source.digest of the rendered config


@dataclass(frozen=True, slots=True)
class FinalRace:
    """The race that settled a measured search: `rounds[n][i]` is contender i in round n, in the order they were run."""

    operator: str
    problem: str  # canonical JSON of all its fields
    gpu: str
    policy: str
    contenders: tuple[Runner, ...]
    winner: int
    rounds: tuple[tuple[Lap, ...], ...]
    own_clock: bool = False  # each ran until the clock was its own; else all shared one
    floor_us: float = 0.0  # what a kernel takes that does nothing; 0 where it is not known
    voided: int = 0  # how often, in the search before it, samples were drawn again since the device had changed

    def laps(self, contender: int) -> tuple[Lap, ...]:
        return tuple(each[contender] for each in self.rounds)

    def settled(self, record: "TuningRecord") -> bool:
        """Whether it is of that record."""
        key, winner = record.identity, self.contenders[self.winner]
        where = (self.operator, self.problem, self.gpu, self.policy) == (key.operator, key.problem, key.gpu, key.policy)
        return where and winner == Runner(key.implementation, record.config, key.source)


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


def order(attempt: Attempt, value: float) -> tuple[bool, float, int, str]:
    """The sort key of attempts that work, best first: what has flaws, such as spills, stands behind; ties go to the
    least shared memory.
    """
    smem_bytes = attempt.resources.smem_bytes if attempt.resources else 0
    return attempt.flawed, value, smem_bytes, attempt.identity.implementation + encode(attempt.config)


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


def to_data(value: Any) -> Any:
    """A frozen value of this module as JSON-able data, which the functions below read.

    What came later is left out where it is not known, so that an older record keeps its text and its digest.
    """
    return _plain(asdict(value, dict_factory=_told))


def _told(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if value or name not in _LATER}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def verdict_from(data: Mapping[str, Any]) -> Verdict:
    errors = tuple(_typed(OutputError, error) for error in data["errors"])
    return _typed(Verdict, {"errors": errors, "where": data["where"]} | _texts(data, "findings", "checks"))


def attempt_from(data: Mapping[str, Any]) -> Attempt:
    """Raises KeyError, TypeError or ValueError for data that is no attempt."""
    failure = data["failure"]
    return Attempt(
        identity=_typed(Identity, data["identity"]),
        config=fields_from(data["config"]),
        failure=_typed(Failed, {**failure, "stage": Stage(failure["stage"])}) if failure else None,
        resources=_resources_from(data["resources"]),
        prediction=_prediction_from(data["prediction"]),
        measurement=_maybe(Measurement, data["measurement"]),
        seconds=data["seconds"],
    )


def record_from(data: Mapping[str, Any]) -> TuningRecord:
    """Raises KeyError, TypeError or ValueError for data that is no record."""
    made = {
        "identity": _typed(Identity, data["identity"]),
        "config": fields_from(data["config"]),
        "evidence": Evidence(data["evidence"]),
        "verdict": verdict_from(data["verdict"]),
        "resources": _resources_from(data["resources"]),
        "prediction": _prediction_from(data["prediction"]),
        "measurement": _maybe(Measurement, data["measurement"]),
    }
    return _typed(TuningRecord, made | {name: data[name] for name in ("margin", "tried", "tuner", "created")})


def race_from(data: Mapping[str, Any]) -> FinalRace:
    """Raises KeyError, TypeError or ValueError for data that is no final race."""
    runners = tuple(_typed(Runner, {**each, "config": fields_from(each["config"])}) for each in data["contenders"])
    rounds = tuple(tuple(_typed(Lap, lap) for lap in each) for each in data["rounds"])
    if not runners or any(len(each) != len(runners) for each in rounds) or data["winner"] not in range(len(runners)):
        raise ValueError("its rounds, its contenders and its winner do not agree")
    return _typed(FinalRace, {**data, "contenders": runners, "rounds": rounds})


def fields_from(data: Any) -> Fields:
    """A Problem or a Config as data. Raises TypeError for what is none."""
    if not isinstance(data, dict) or not all(isinstance(value, Scalar) for value in data.values()):
        raise TypeError(f"{shortened(data)} is no object of numbers, texts and booleans")
    if unprintable := [text for text in (*data, *data.values()) if isinstance(text, str) and not text.isprintable()]:
        raise ValueError(f"{shortened(unprintable[0])} has characters that are not printable")
    return dict(data)


def _resources_from(data: Any) -> Any:
    if data is None:
        return None
    lint = data.get("lint")
    found = Lint(**_texts(lint, "failures", "unchecked")) if lint else None
    return _typed(Resources, {**data, "lint": found})


def _prediction_from(data: Any) -> Any:
    return None if data is None else _typed(Prediction, {**data, "terms": fields_from(data["terms"])})


def _texts(data: Mapping[str, Any], *names: str) -> dict[str, tuple[str, ...]]:
    for name in names:
        if not isinstance(data[name], list) or not all(isinstance(each, str) for each in data[name]):
            raise TypeError(f"{name} is {data[name]!r}, no list of texts")
    return {name: tuple(data[name]) for name in names}


def _maybe(cls: Any, data: Mapping[str, Any] | None) -> Any:
    return None if data is None else _typed(cls, data)


def _typed(cls: type[V], data: Mapping[str, Any]) -> V:
    """A value of `cls`, whose plain fields hold what they say. Raises TypeError where one does not."""
    value = cls(**data)
    for each in fields(cls):  # type: ignore[arg-type]  # V is a dataclass
        found = getattr(value, each.name)
        if each.type in _ACCEPTED and not isinstance(found, _ACCEPTED[each.type]):  # type: ignore[index]
            raise TypeError(f"{each.name} is {shortened(found)}, of another type than {each.type}")
        if cls is Identity and not str(found).isprintable():  # it reaches terminals: no escape sequence may
            raise ValueError(f"{each.name} is {shortened(found)}, which has characters that are not printable")
    return value
