"""The first screen of a problem: the winner, its margin, the certainty, the reasons, and the next step."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.base.fields import formatted
from tuner.report.data import UNDECLARED
from tuner.report.notation import change, counted, microseconds, percent
from tuner.report.section import Finalist, Section
from tuner.results.attempt import Measurement
from tuner.results.record import TuningRecord

_TOLD = 5  # maximum number of the winner's parameters in a sentence
_NEAR = 0.01  # difference in predicted cost that is not meaningful


@dataclass(frozen=True, slots=True)
class Answer:
    """A reader's question, with an answer of one or two sentences."""

    question: str
    text: str


def brief(section: Section) -> tuple[Answer, ...]:
    """Return the answers; empty without a record, in which case the page gives the reason."""
    record = section.data.record
    if record is None:
        return ()
    answers = (
        Answer("What won", _won(section, record)),
        Answer("By how much", _by_how_much(section, record)),
        Answer("How sure", _how_sure(section, record)),
        Answer("Why", _why(section, record)),
        Answer("What next", _next(section)),
    )
    return tuple(answer for answer in answers if answer.text)


def _won(section: Section, record: TuningRecord) -> str:
    name, changed = record.identity.implementation, section.changed
    if section.measured and section.time:
        name = f"{name} in {microseconds(section.time.time_us)} µs"
    if section.default_won:
        return f"{name}, its default config."
    if not section.default_config:
        return f"{name}."
    changes = formatted(dict(list(changed.items())[:_TOLD])) + (" …" if len(changed) > _TOLD else "")
    of = counted(len(record.config), "parameter", "parameters")
    return f"{name}, {len(changed)} of {of} not the default: {changes}."


def _by_how_much(section: Section, record: TuningRecord) -> str:
    parts, first = [], f"{section.data.gain} {section.data.warning}".strip()
    if section.over_default and not section.default_won and not first:
        parts.append(f"the default config {_dearer(section, section.over_default - 1)}")
    if len(section.finalists) > 1:
        parts.append(f"the runner-up {_dearer(section, record.margin)}")
    rest = f"{_capital(', '.join(parts))} ({section.data.evidence.value}).{_near(section)}" if parts else ""
    return f"{first} {rest}".strip()


def _near(section: Section) -> str:
    """Return how many predictions are close to the winner's; a race reports that itself."""
    near = sum(1 <= entry.relative <= 1 + _NEAR for entry in section.entries[1:] if not entry.flaws)
    if section.measured or not near:
        return ""
    of = len(section.entries) - 1
    return (
        f" {near} of {of} other{'s' * (of > 1)} {'is' if near == 1 else 'are'} within {percent(_NEAR)} of the winner."
    )


def _dearer(section: Section, share: float) -> str:
    if not share:
        return "ties"
    much = f"{percent(abs(share))} {'less' if share < 0 else 'more'}"
    return f"takes {much} time" if section.measured else f"costs {much}"


def _how_sure(section: Section, record: TuningRecord) -> str:
    checks = counted(len(record.verdict.checks), "check", "checks")
    unseen = f"; {record.verdict.unseen}" if record.verdict.unseen else ""
    right = f"It computes what it should: {checks} on the {record.verdict.where} against float64{unseen}."
    if not section.measured:
        by = ", by machine code alone since work is not declared" if UNDECLARED in section.data.work else ""
        return f"{right} That it is the best is a prediction{by}: no device has timed it."
    return f"{right} {_certainty(record.measurement)}".rstrip()


def _certainty(measurement: Measurement | None) -> str:
    """Return the final race's statement about its winner; empty without a race."""
    if measurement is None or measurement.regret_bound is None or measurement.flip_probability is None:
        return ""
    behind, flip = percent(measurement.regret_bound), percent(measurement.flip_probability)
    slower = f"It is at most {behind} slower than the fastest contender"
    return f"{slower}; run again, the race would name another in {flip} of cases."


def _why(section: Section, record: TuningRecord) -> str:
    bound = f"It is bound by {record.prediction.bottleneck} (predicted)" if record.prediction else ""
    other = _compared(section.finalists)
    if other is None:
        return f"{bound}." if bound else ""
    who = "the default config" if other.is_default else "the runner-up"
    terms = ", ".join(f"{delta.term} {change(delta.share)}" for delta in other.deltas)
    lost = f"{who} differs by {terms} of the winner's predicted cost"
    return f"{_capital('; '.join(filter(None, (bound, lost))))}."


def terms_of_winner(section: Section) -> str:
    """Return what the winner's bottleneck and the next terms would cost if each were alone."""
    profile = section.profile
    if profile is None or not section.entries or section.entries[0].attempt.prediction is None:
        return ""
    shares = dict(zip(profile.terms, profile.rows[0], strict=True))
    bound = section.entries[0].attempt.prediction.bottleneck
    first = f"{percent(shares.pop(bound))} of the predicted cost if it were alone" if bound in shares else ""
    following = [f"{term} {percent(shares[term])}" for term in sorted(shares, key=lambda term: -shares[term])[:3]]
    return "; ".join(filter(None, (first, f"next {', '.join(following)}" if following else "")))


def _compared(finalists: Sequence[Finalist]) -> Finalist | None:
    """Return the default, or else the runner-up, if predicted terms distinguish it from the winner."""
    others = sorted(finalists[1:], key=lambda finalist: not finalist.is_default)
    return next((finalist for finalist in others if finalist.deltas), None)


def _next(section: Section) -> str:
    data = section.data
    served = f"dispatcher.{data.operator} serves it from the database of this search."
    if not section.measured:
        named = f", naming its model (such as --gpu '{data.device}')" if data.gpu == data.arch else ""
        return f"{served} To time it, search on a machine with the GPU{named}."
    tried, budget = len(section.attempts), data.search.budget
    left = not data.spaces or tried < sum(space.valid for space in data.spaces)
    return f"{served} No tries are left: --budget {2 * budget} looks further." if tried >= budget and left else served


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
