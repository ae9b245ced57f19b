"""The first sentence of a result: the gain over an untuned call, then configs that are cheaper but flawed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.dispatcher import config_choice
from tuner.errors import UsageError
from tuner.report.notation import percent
from tuner.results.attempt import Attempt, Evidence
from tuner.results.record import TuningRecord
from tuner.search.study import Outcome, SearchRequest, Tried
from tuner.store.locations import SHIPPED
from tuner.store.records import Snapshot


@dataclass(frozen=True, slots=True)
class Baseline:
    """A config for comparison: an implementation's default, or that of a record that ships with the package.

    `gain` is its value / the winner's - 1; None if it has no value of the same evidence.
    """

    implementation: str
    gain: float | None
    is_winner: bool
    shipped: bool = False

    def __str__(self) -> str:
        return f"a record of {self.implementation} that ships" if self.shipped else f"{self.implementation}'s default"


@dataclass(frozen=True, slots=True)
class Flawed:
    """Configs with a lower value than the winner's that rank behind it because of their machine code."""

    count: int
    share: float  # the fraction by which the lowest value is lower
    flaws: tuple[str, ...]  # flaws of that config


@dataclass(frozen=True, slots=True)
class Headline:
    """`untuned` is the config of a call before any search, `default` that of the winner's implementation."""

    evidence: Evidence
    untuned: Baseline | None
    default: Baseline | None
    flawed: Flawed | None

    @property
    def gain(self) -> str:
        """`Predicted gain: 54 % over an untuned call, which runs mma_sync's default, 15 % over wgmma's own default.`"""
        untuned, default = self.untuned, self.default
        if untuned is not None and untuned.is_winner:
            return "An untuned call already runs this config."
        parts = []
        if untuned is not None:
            runs = f"an untuned call, which runs {untuned}"
            parts.append(f"{percent(untuned.gain)} over {runs}" if untuned.gain is not None else f"unknown over {runs}")
        if default is not None and default.is_winner:
            parts.append("none over its own default, which it is")
        elif default is not None and default.gain is not None and default != untuned:
            parts.append(f"{percent(default.gain)} over {default.implementation}'s own default")
        return f"{self.evidence.value.capitalize()} gain: {', '.join(parts)}." if parts else ""

    @property
    def warning(self) -> str:
        """`One config is predicted 5 % cheaper but spills 52 bytes: time it first.`"""
        if self.flawed is None:
            return ""
        count, share, flaws = self.flawed.count, percent(self.flawed.share), "; ".join(self.flawed.flaws)
        who = "One config is" if count == 1 else f"{count} configs are"
        most = "" if count == 1 else "up to "
        if self.evidence is Evidence.MEASURED:
            return f"{who} measured {most}{share} faster but flawed ({flaws})."
        return (
            f"{who} predicted {most}{share} cheaper but flawed ({flaws}): time {'it' if count == 1 else 'them'} first."
        )


def headline(outcome: Outcome) -> Headline | None:
    """Return the headline; None without a record."""
    record = outcome.record
    value = None if record is None else _value_of(outcome)
    if record is None or not value:
        return None
    untuned = untuned_call(outcome.request)
    own = next((tried for tried in outcome.tried if tried.attempt.identity == record.identity), None)
    default = None
    if own is not None:
        key = outcome.request.default(own.instance.implementation).key
        default = _baseline(outcome, own.instance.implementation.name, key, value)
    first = None
    if untuned is not None:
        first = _baseline(outcome, untuned.instance.implementation.name, untuned.instance.key, value)
        gain = _shipped_gain(untuned.record, record, value) if first.gain is None else first.gain
        first = replace(first, gain=gain, shipped=untuned.record is not None)
    return Headline(outcome.evidence, first, default, _flawed(outcome, value))


def _shipped_gain(shipped: TuningRecord | None, winner: TuningRecord, value: float) -> float | None:
    """The gain over a record of the same problem that ships, by the prediction stored in it; None if not comparable."""
    if shipped is None or shipped.prediction is None or winner.measurement is not None:
        return None
    ours, theirs = winner.identity, shipped.identity
    same = (ours.problem, ours.gpu, ours.policy) == (theirs.problem, theirs.gpu, theirs.policy)
    return shipped.prediction.cost / value - 1 if same else None


def _value_of(outcome: Outcome) -> float | None:
    record = outcome.record
    assert record is not None
    return record.measurement.time_us if record.measurement else record.prediction.cost if record.prediction else None


def untuned_call(request: SearchRequest) -> config_choice.Choice | None:
    """What the dispatcher runs before any search, a record that ships or a default; None where it refuses."""
    try:
        return config_choice.choose(request.operator, request.problem, [request.gpu], Snapshot.load([str(SHIPPED)]))
    except UsageError:
        return None


def _baseline(outcome: Outcome, implementation: str, key: object, value: float) -> Baseline:
    """Compare the default config of `implementation`, whose instance has this key, with the winner's value."""
    record = outcome.record
    tried = next((tried for tried in outcome.tried if tried.instance.key == key), None)
    usable = tried is not None and tried.attempt.value is not None and not tried.wrong
    gain = tried.attempt.value / value - 1 if tried is not None and usable and tried.attempt.value else None
    is_winner = tried is not None and record is not None and tried.attempt.identity == record.identity
    return Baseline(implementation, gain, is_winner)


def _flawed(outcome: Outcome, value: float) -> Flawed | None:
    lower = sorted(
        filter(lambda tried: _is_lower(tried, value), outcome.tried), key=lambda tried: _value(tried.attempt)
    )
    if not lower:
        return None
    lowest = lower[0].attempt
    flaws: Sequence[str] = lowest.resources.flaws if lowest.resources else ()
    return Flawed(len(lower), 1 - _value(lowest) / value, tuple(flaws))


def _is_lower(tried: Tried, value: float) -> bool:
    resources = tried.attempt.resources
    return not tried.wrong and _value(tried.attempt) < value and resources is not None and bool(resources.flaws)


def _value(attempt: Attempt) -> float:
    return float("inf") if attempt.value is None else attempt.value
