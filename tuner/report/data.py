"""What a report is made of: plain values that a search hands over, one ReportData a problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.base.fields import Fields
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
    """The search space of one implementation: combinations, what each constraint removed, what is left."""

    implementation: str
    raw: int
    valid: int
    removed: tuple[tuple[str, int], ...] = ()  # (reason, combinations), as Space.counts() gives them
    closed: str = ""  # why the search gave up on this implementation before its end
    estimated: bool = False  # the space is too large to list: `valid` and `removed` are estimates


@dataclass(frozen=True, slots=True)
class BeliefFacts:
    """An order of an implementation's configs from before the search, and whether the results bore it out."""

    implementation: str
    source: str  # "prediction", "history of H100", "history of seq_q=2048 for 4096"
    correlation: float | None  # Spearman's, with random tries; None: too few to judge
    kept: bool


@dataclass(frozen=True, slots=True)
class SearchFacts:
    """How the search went."""

    method: str
    seed: int
    budget: int  # tries
    effort: str
    stopped: str  # why: "the budget of 128 tries is spent"
    seconds: float
    resumed: int = 0  # attempts that earlier sessions had made
    prior_correlation: float | None = None  # Spearman's, of the ranks before compiling with the results
    beliefs: tuple[BeliefFacts, ...] = ()  # where there are several


@dataclass(frozen=True, slots=True)
class ReportData:
    """One problem's search on one GPU. Empty fields leave their part of the report out."""

    operator: str
    implementations: tuple[str, ...]  # that took part
    problem: Fields
    gpu: str
    arch: str
    device: str  # the model whose rates predictions assume
    evidence: Evidence
    attempts: Sequence[Attempt]  # in the order tried
    search: SearchFacts
    command: str  # that repeats the search
    record: TuningRecord | None = None
    race: FinalRace | None = None  # that settled it
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)  # by index of the attempt
    default: Attempt | None = None
    spaces: tuple[SpaceFacts, ...] = ()
    importance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # implementation → parameter → share
    work: tuple[Fact, ...] = ()  # what the winner does against the least any kernel must do
    source: str = ""  # of the winner, rendered
    default_source: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    usage: str = ""  # Python that runs the winner
    export: str = ""  # the command that writes it for C++
    gain: str = ""  # a sentence: over an untuned call, then over the winner's own default
    warning: str = ""  # a sentence: what is cheaper but flawed
