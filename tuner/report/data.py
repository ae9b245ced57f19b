"""The input of a report: plain values from a search, one ReportData per problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.base.fields import Fields
from tuner.report.timelines import CodePath
from tuner.results.attempt import Attempt, Evidence
from tuner.results.final_race import FinalRace
from tuner.results.record import TuningRecord
from tuner.results.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a list: `Fact("mma work", "1.00×", "of the mathematics: D=72 costs 72")`."""

    label: str
    value: str
    note: str = ""


UNDECLARED = Fact("work", "not declared", "so that configs rank by what their machine code tells")


@dataclass(frozen=True, slots=True)
class SpaceFacts:
    """The search space of one implementation: its size, and the combinations that each constraint removed."""

    implementation: str
    raw: int
    valid: int
    removed: tuple[tuple[str, int], ...] = ()  # (reason, combinations), from Space.counts()
    closed: str = ""  # why the search dropped this implementation early
    estimated: bool = False  # the space is too large to enumerate, so `valid` and `removed` are estimates


@dataclass(frozen=True, slots=True)
class BeliefFacts:
    """A prior order of an implementation's configs, and whether the results confirmed it."""

    implementation: str
    source: str  # "prediction", "history of H100", "history of seq_q=2048 for 4096"
    correlation: float | None  # Spearman's correlation with random tries; None if there are too few
    kept: bool


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """The course of the search."""

    method: str
    seed: int
    budget: int  # number of tries
    effort: str
    stopped: str  # why: "the budget of 128 tries is used up"
    seconds: float
    resumed: int = 0  # number of attempts from earlier sessions
    prior_correlation: float | None = None  # Spearman's correlation of the ranks before compiling with the results
    beliefs: tuple[BeliefFacts, ...] = ()  # if there are several


@dataclass(frozen=True, slots=True)
class ReportData:
    """One problem's search on one GPU. Parts of the report with empty fields are omitted."""

    operator: str
    implementations: tuple[str, ...]  # the implementations that took part
    problem: Fields
    gpu: str
    arch: str
    device: str  # the model whose rates predictions assume
    evidence: Evidence
    attempts: Sequence[Attempt]  # in order
    search: SearchFacts
    command: str  # repeats the search
    record: TuningRecord | None = None
    race: FinalRace | None = None  # the race that decided it
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)  # by index of the attempt
    default: Attempt | None = None
    spaces: tuple[SpaceFacts, ...] = ()
    importance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # implementation → parameter → fraction
    work: tuple[Fact, ...] = ()  # the winner's work relative to the minimum
    source: str = ""  # rendered source of the winner
    default_source: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    usage: str = ""  # Python that runs the winner
    export: str = ""  # the command that writes it for C++
    gain: str = ""  # a sentence: the gain over an untuned call, then over the winner's own default
    warning: str = ""  # a sentence about configs that are cheaper but flawed
    over_untuned: float | None = None  # the gain over an untuned call as a fraction, where it is known
    defaults: tuple[str, ...] = ()  # the problem's fields that have their default value
    timelines: Mapping[str, tuple[CodePath, ...]] = field(default_factory=dict)  # "winner", "default"
