"""The read side for applications: which stored record serves a problem, from an immutable snapshot of all places."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from tuner.arch import ARCHES
from tuner.base.fields import Fields, Scalar, scalar
from tuner.results.record import TuningRecord
from tuner.store import places
from tuner.store.read import StoredRecord, read

Check = Callable[[TuningRecord], str | None]  # why a record must not be served; None: it may
_REMEMBERED = 65536  # problems whose match is kept


@dataclass(frozen=True, slots=True)
class Query:
    """What an application asks for. `statics` names the problem's fields that must be equal; the others are extents."""

    operator: str
    problem: Fields
    gpu: str  # H200; or the arch again, where no model is known
    arch: str  # sm_90a
    statics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """A record that serves a problem. `distance` is 0 for its own problem, else Euclidean over log2 of the extents."""

    record: TuningRecord
    distance: float
    tell: Callable[[], str]

    @property
    def why(self) -> str:
        """In words, which most calls do not ask for."""
        return self.tell()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record of the operator, whether it serves, and why or why not."""

    record: TuningRecord
    place: str
    served: bool
    why: str
    considered: bool = True  # as one that could serve: of this kernel, for this GPU or its arch


@dataclass(frozen=True, slots=True)
class _Usable:
    """A record that could serve a query. Smaller is better, in the order of the fields."""

    tier: int
    distance: float
    found: StoredRecord


@dataclass(frozen=True, eq=False, slots=True)
class Nearby:
    """Records that could serve problems with equal static fields on one GPU, each with its tier; false without any."""

    snapshot: "Snapshot"
    tiers: tuple[tuple[int, StoredRecord, tuple[Scalar, ...]], ...]  # with the extents of its problem
    check: Check

    def __bool__(self) -> bool:
        return bool(self.tiers)

    def nearest(self, sizes: Sequence[int]) -> tuple[TuningRecord, float] | None:
        """The record that `find` gives for a problem of these extents, in order, and its distance."""
        order = [(tier, _apart(sizes, stored), place) for place, (tier, _, stored) in enumerate(self.tiers)]
        for _, apart, place in sorted(order) if len(order) > 1 else order:
            found = self.tiers[place][1]
            if self.snapshot.refusal(found, self.check) is None:
                return found.record, apart
        return None


_TIERS = ("on {gpu}", "for {arch}", "on {other}, which is {arch} too", "on {other}, of the family of {arch}")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Records as they were when it was loaded. Look-ups only read; what they learn is remembered, never changed.

    A snapshot serves one version of the code: `check` is called once a record, and its answer kept.
    """

    records: Mapping[str, tuple[StoredRecord, ...]]  # by operator; what stands first is preferred
    refused: tuple[str, ...]  # a sentence for each place or record that could not be read
    _matches: dict[object, Match | None] = field(default_factory=dict, repr=False)
    _families: dict[object, Mapping[object, tuple[StoredRecord, ...]]] = field(default_factory=dict, repr=False)
    _refusals: dict[int, str | None] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, sources: Sequence[str | Path] | None = None) -> "Snapshot":
        """Read `sources` (databases, `.jsonl` files, folders of them), by default `places.layers()`; earlier ones win.

        What cannot be read is named in `refused`, and an application goes on without it.
        """
        by_operator: dict[str, list[StoredRecord]] = {}
        refused: list[str] = []
        for source in places.layers() if sources is None else sources:
            found, wrong = read(source)
            refused += wrong
            for each in found:
                by_operator.setdefault(each.record.identity.operator, []).append(each)
        return cls({operator: tuple(found) for operator, found in by_operator.items()}, tuple(refused))

    def find(self, query: Query, check: Check) -> Match | None:
        """The record that serves a problem best, or None. Asked again, this is one dict look-up.

        The device's own records come first, then the arch's, then those of another device of the arch, then of its
        family; among them the nearest extents, then the earlier place, then measured before predicted, then the newest.
        """
        key = query.operator, query.gpu, query.arch, tuple(query.problem.items())
        try:
            return self._matches[key]
        except KeyError:
            if len(self._matches) >= _REMEMBERED:
                self._matches.clear()
            match = self._matches[key] = next(self.matches(query, check), None)
            return match

    def matches(self, query: Query, check: Check) -> Iterator[Match]:
        """Every record that could serve a problem, in the order in which `find` prefers them."""
        for each in self._usable(query):
            if self.refusal(each.found, check) is None:
                yield Match(each.found.record, each.distance, partial(_describe, query, each))

    def nearby(self, query: Query, check: Check) -> "Nearby":
        """The records that could serve the query, or the same with other sizes."""
        extents = [name for name in query.problem if name not in query.statics]
        usable = (
            (tier, each, tuple(each.problem[name] for name in extents))
            for each in self._family(query)
            if (tier := _tier(query, each)) is not None
        )
        return Nearby(self, tuple(usable), check)

    def explain(self, query: Query, check: Check) -> list[Candidate]:
        """Every record of the operator, in the order in which `find` considers them, and why it serves or not."""
        usable = self._usable(query)
        listed = list(self._judged(query, usable, check))
        considered = {id(each.found) for each in usable}
        others = [each for each in self.records.get(query.operator, ()) if id(each) not in considered]
        return listed + [Candidate(each.record, each.place, False, _mismatch(query, each), False) for each in others]

    def _judged(self, query: Query, usable: list[_Usable], check: Check) -> Iterator[Candidate]:
        served = False
        for each in usable:
            why = _describe(query, each)
            refusal = self.refusal(each.found, check)
            reason = refusal or "stands behind the one that serves"
            serves = refusal is None and not served
            served = served or serves
            yield Candidate(each.found.record, each.found.place, serves, why if serves else f"{why}: {reason}")

    def _usable(self, query: Query) -> list[_Usable]:
        """What could serve, best first; records of equal standing in the order of `records`."""
        extents = [name for name in query.problem if name not in query.statics]
        usable = [
            _Usable(tier, distance(query.problem, each.problem, extents), each)
            for each in self._family(query)
            if (tier := _tier(query, each)) is not None
        ]
        return sorted(usable, key=lambda each: (each.tier, each.distance))

    def _family(self, query: Query) -> Sequence[StoredRecord]:
        """The operator's records whose problem has the same fields, the static ones with equal values."""
        key = query.operator, query.statics
        if key not in self._families:
            grouped: dict[object, list[StoredRecord]] = {}
            for each in self.records.get(query.operator, ()):
                grouped.setdefault(_kernel(each.problem, query.statics), []).append(each)
            self._families[key] = {kernel: tuple(found) for kernel, found in grouped.items()}
        return self._families[key].get(_kernel(query.problem, query.statics), ())

    def refusal(self, found: StoredRecord, check: Check) -> str | None:
        """Why a record must not be served; None where it may. Checked once a record."""
        if id(found) not in self._refusals:  # the snapshot keeps `found` alive, so its id stays its own
            self._refusals[id(found)] = check(found.record)
        return self._refusals[id(found)]


def _kernel(problem: Fields, statics: tuple[str, ...]) -> tuple[frozenset[str], tuple[Scalar | None, ...]]:
    """What two problems share that one kernel serves: the names of all fields and the values of the static ones."""
    return frozenset(problem), tuple(map(problem.get, statics))


def _tier(query: Query, found: StoredRecord) -> int | None:
    """0 for the query's own device, 1 for its arch, 2 for another device of it, 3 for its family, None for others."""
    if found.record.identity.gpu == query.gpu:
        return 0
    if found.record.identity.gpu == query.arch:
        return 1
    if found.arch == query.arch:
        return 2
    return 3 if found.arch and ARCHES[found.arch].family == ARCHES[query.arch].family else None


def distance(wanted: Fields, stored: Fields, extents: Iterable[str]) -> float:
    """How far two problems are apart: Euclidean over log2 of the sizes `extents`, so that 1 is one doubling."""
    names = tuple(extents)
    return _apart([wanted[name] for name in names], [stored[name] for name in names])


def _apart(wanted: Sequence[Scalar], stored: Sequence[Scalar]) -> float:
    octaves = [_octaves(size, other) for size, other in zip(wanted, stored, strict=True) if size != other]
    return math.hypot(*octaves) if octaves else 0.0


@lru_cache(maxsize=1 << 16)  # a call at a new length asks again for all the sizes that stay
def _octaves(wanted: Scalar, stored: Scalar) -> float:
    if isinstance(wanted, str) or isinstance(stored, str):  # no size at all
        return math.inf
    return math.log2(max(1.0, float(stored)) / max(1.0, float(wanted)))


def _describe(query: Query, usable: _Usable) -> str:
    other = usable.found.record.identity.gpu
    where = _TIERS[usable.tier].format(gpu=query.gpu, arch=query.arch, other=other)
    if not usable.distance:
        return f"this problem {where}"
    stored = usable.found.problem
    sizes = [f"{n}={stored[n]} for {query.problem[n]}" for n in query.problem if stored[n] != query.problem[n]]
    return f"near problem {where}: {', '.join(sizes)}"


def _mismatch(query: Query, found: StoredRecord) -> str:
    if wrong := _other_fields(query, found):
        return f"another kernel: {', '.join(wrong)}"
    return f"made for {found.record.identity.gpu}, not for {query.arch}"


def _other_fields(query: Query, found: StoredRecord) -> list[str]:
    """The static fields that differ, and those that only one of the two problems has."""
    wanted, stored = query.problem, found.problem
    lacking = [f"{name} is missing" for name in wanted if name not in stored]
    unknown = [f"{name} is unknown" for name in stored if name not in wanted]
    shared = [name for name in query.statics if name in stored and name in wanted]
    return (
        lacking
        + unknown
        + [f"{n}={scalar(stored[n])}, not {scalar(wanted[n])}" for n in shared if stored[n] != wanted[n]]
    )
