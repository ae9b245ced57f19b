"""Read access for applications: which stored record serves a problem, from an immutable snapshot of all sources."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import hypot, inf, log2
from pathlib import Path
from typing import TypeVar

from tuner.arch import ARCHES
from tuner.base.canonical_json import encode
from tuner.base.fields import Fields, Scalar, scalar
from tuner.errors import StoreError
from tuner.results.codec import fields_in
from tuner.results.proof import CheckedCode
from tuner.results.record import TuningRecord
from tuner.store import locations, signing
from tuner.store.nearest_records import Entry, Listed, Neighbours, Packed, Ring, Sizes
from tuner.store.packed_problems import numbers_in, packed
from tuner.store.read import Key, RecordSource, StoredRecord, arch_of, label, open_source

T = TypeVar("T")
_Origin = tuple[str, bool]  # GPU, and whether the record ships with the package
Check = Callable[[TuningRecord], str | None]  # returns the reason why a record must not be served; None: it may be
_REMEMBERED = 65536  # maximum number of problems whose match is cached
_CONSIDERED = 256  # maximum number of records near a problem that are checked
_TIERS = ("on {gpu}", "for {arch}", "on {other}, which is {arch} too", "on {other}, of the family of {arch}")
_SHIPPED = len(_TIERS)  # added to a tier
_FAR = 3.0  # maximum distance, in octaves, at which a shipped record replaces a problem's predicted default


class UnreadableRecordsWarning(UserWarning):
    """Records cannot be read, and an application continues without them."""


@dataclass(frozen=True, slots=True)
class Query:
    """An application's request for a record. `statics` names the problem's fields that must be equal; the others are
    extents.
    """

    operator: str
    problem: Fields
    gpu: str  # H200; or the arch again if no model is known
    arch: str  # sm_90a
    statics: tuple[str, ...]
    shipped: bool = True  # whether records that ship with the package may serve


@dataclass(frozen=True, slots=True)
class Match:
    """A record that serves a problem. `distance` is 0 for the problem's own record, else Euclidean in log2 of the
    extents.
    """

    record: TuningRecord
    distance: float
    describe: Callable[[], str]
    shipped: bool = False  # ships with the package

    @property
    def why(self) -> str:
        """Return the reason in words, which are formatted on demand."""
        return self.describe()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record of the operator, whether it serves, and the reason."""

    record: TuningRecord
    place: str
    served: bool
    why: str
    considered: bool = True  # for this kernel, and for this GPU, its arch or its family


@dataclass(frozen=True, slots=True)
class _Usable:
    """A record that could serve a query."""

    tier: int  # plus `_SHIPPED` if it ships with the package
    distance: float
    stored: StoredRecord
    behind_limit: bool = False  # `_CONSIDERED` records of its tier are nearer

    @property
    def shipped(self) -> bool:
        return self.tier >= _SHIPPED

    @property
    def excluded(self) -> str:
        """Why it is not considered, whatever it contains; empty if it is."""
        if self.shipped and self.distance > _FAR:
            return "its sizes are too far away"
        return f"{_CONSIDERED} records are nearer, and no others are considered" if self.behind_limit else ""


@dataclass(frozen=True, eq=False, slots=True)
class Nearby:
    """Records that could serve problems with equal static fields on one GPU, by tier. False if there are none."""

    snapshot: "Snapshot"
    extents: tuple[str, ...]
    tiers: Sequence[tuple[int, Sequence[Neighbours]]]  # best first
    check: Check

    def __bool__(self) -> bool:
        return bool(self.tiers)

    def nearest(self, sizes: Sequence[int]) -> tuple[TuningRecord, float] | None:
        """Return the record that `find` returns for a problem with these extents, in order, and its distance."""
        closest = self.closest(sizes)
        return closest[:2] if closest else None

    def closest(self, sizes: Sequence[int]) -> tuple[TuningRecord, float, bool] | None:
        """Return the same, and whether the record ships with the package."""
        usable = self.snapshot.first(self, tuple(sizes))
        return (usable.stored.record, usable.distance, usable.shipped) if usable else None


class Snapshot:
    """All records at the time of loading. Look-ups only read; parsed records are cached and never modified.

    A snapshot serves one version of the code: `check` is called once per record, and its result is cached. A source
    that cannot be read is listed in `refused`; it also causes one warning with `strict=False`, a StoreError with
    `strict=True`.
    """

    def __init__(
        self,
        sources: Iterable[RecordSource] = (),
        refused: Iterable[str] = (),
        *,
        strict: bool | None = None,
        trusted: signing.TrustedKeys | None = None,
    ) -> None:
        self._sources, self._strict, self._trusted = tuple(sources), strict, trusted
        self._unreadable: dict[str, None] = {}
        self._matches: dict[object, Match | None] = {}
        self._families: dict[object, Mapping[_Origin, Sequence[Neighbours]]] = {}
        self._stored: dict[Entry, list[StoredRecord]] = {}
        self._refusals: dict[int, str | None] = {}
        self._proofs: dict[tuple[str, str], Mapping[CheckedCode, bool]] = {}
        for sentence in refused:
            self._fail(sentence)

    @classmethod
    def load(cls, sources: Sequence[str | Path] | None = None, *, strict: bool | None = None) -> "Snapshot":
        """Open `sources` (databases, `.jsonl` files, folders of them), by default `locations.layers()`; earlier ones
        have priority.

        A source that cannot be read is listed in `refused` and handled according to `strict`. With `TUNER_TRUST` only
        signed records are served. Raises UsageError if its keys cannot be read.
        """
        opened: list[RecordSource] = []
        refused: list[str] = []
        for source in locations.layers() if sources is None else sources:
            try:
                opened.append(open_source(source))
            except StoreError as error:
                refused.append(f"{label(source)}: {error}")
        return cls(opened, refused, strict=strict, trusted=signing.trusted_keys())

    @property
    def refused(self) -> tuple[str, ...]:
        """Return a message for each source, and for each record read so far, that cannot be served."""
        rows = (f"{place}: {why}" for source in self._sources for place, why in source.refused.items())
        return (*self._unreadable, *rows)

    def complain(self, strict: bool) -> None:
        """From now on, report a source that cannot be read by a warning or, with `strict`, by a StoreError."""
        self._strict = strict

    def records(self, operator: str) -> list[StoredRecord]:
        """Return all records of an operator, in order of their sources, and by preference within a source."""
        stored_records: list[StoredRecord] = []
        for number, source in enumerate(self._sources):
            entries: dict[Entry, list[StoredRecord]] = {}
            for stored in self._read(source, partial(source.records, operator)):
                entries.setdefault((number, stored.key), []).append(stored)
            for entry, of_key in entries.items():
                stored_records += self._stored.setdefault(entry, of_key)
        return stored_records

    def find(self, query: Query, check: Check) -> Match | None:
        """Return the record that serves a problem best, or None. Repeated look-ups are one dict access.

        The order is: records of the device, of its arch, of another device of the arch; then, in the same order, those
        that ship with the package; then those of the arch's family. Within these, the nearest extents, then the earlier
        source, then measured before predicted, then the newest.
        """
        key = query.operator, query.gpu, query.arch, tuple(query.problem.items())
        try:
            return self._matches[key]
        except KeyError:
            if len(self._matches) >= _REMEMBERED:
                self._matches.clear()
            match = self._matches[key] = self._exact(query, check) or self._near(query, check)
            return match

    def matches(self, query: Query, check: Check) -> Iterator[Match]:
        """Return all records that could serve a problem, in the order of preference of `find`."""
        for usable in self._usable(query):
            if not usable.excluded and self.refusal(usable.stored, check) is None:
                yield _match(query, usable)

    def nearby(self, query: Query, check: Check) -> Nearby:
        """Return the records that could serve the query, or a query with other sizes."""
        extents = tuple(name for name in query.problem if name not in query.statics)
        tiers: dict[int, list[Neighbours]] = {}
        for (gpu, shipped), neighbours in self._family(query, extents).items():
            if (tier := _tier(query, gpu)) is not None and (query.shipped or not shipped):
                tiers.setdefault(tier + _SHIPPED * shipped, []).extend(neighbours)
        return Nearby(self, extents, sorted(tiers.items(), key=lambda item: _order(item[0])), check)

    def proofs(self, operator: str, gpu: str) -> Mapping[CheckedCode, bool]:
        """Return whether a device found compiled code of an operator correct; earlier sources have priority. Repeated
        look-ups are one dict access.

        Proofs are not signed, so there are none if only signed records are served.
        """
        key = operator, gpu
        if key not in self._proofs:
            sources = () if self._trusted else reversed(self._sources)
            self._proofs[key] = {code: ok for source in sources for code, ok in source.proofs(operator, gpu).items()}
        return self._proofs[key]

    def explain(self, query: Query, check: Check) -> list[Candidate]:
        """Return all records of the operator, in the order of `find`, each with the reason why it serves or not."""
        every = self.records(query.operator)
        usable = list(self._usable(query))
        listed = list(self._judged(query, usable, check))
        considered = {id(usable_record.stored) for usable_record in usable}
        others = [stored for stored in every if id(stored) not in considered]
        return listed + [
            Candidate(stored.record, stored.place, False, _mismatch(query, stored), False) for stored in others
        ]

    def refusal(self, stored: StoredRecord, check: Check) -> str | None:
        """Return why a record must not be served; None if it may be. A record is checked once."""
        if id(stored) not in self._refusals:  # the snapshot keeps `stored` alive, so its id is not reused
            untrusted = self._trusted.refusal(stored.record) if self._trusted else None
            self._refusals[id(stored)] = untrusted or check(stored.record)
        return self._refusals[id(stored)]

    def first(self, nearby: Nearby, sizes: Sizes) -> _Usable | None:
        """Return the record that serves a problem of these sizes: of each tier one of the `_CONSIDERED` nearest, and of
        those as near as the last of these. The result does not depend on earlier calls.
        """
        for tier, groups in nearby.tiers:
            while near := _closest(groups, sizes):
                distance, tied = near
                if tier >= _SHIPPED and distance > _FAR:
                    break
                # All nearer points were dropped, so that they need not be counted while few were.
                dropped = sum(neighbours.dropped for neighbours in groups)
                if dropped >= _CONSIDERED and _nearer(groups, sizes, distance) >= _CONSIDERED:
                    operator = tied[0][0].entries(tied[0][1])[0][1].operator
                    self._note(f"{operator}: of the {_CONSIDERED} nearest records of a problem none serves")
                    break
                entries = [entry for neighbours, points in tied for entry in neighbours.entries(points)]
                for stored in self._ordered(entries, nearby.extents, sizes):
                    if self.refusal(stored, nearby.check) is None:
                        return _Usable(tier, distance, stored)
                for neighbours, points in tied:
                    neighbours.drop(points)
        return None

    def rising(self, nearby: Nearby, sizes: Sizes) -> Iterator[_Usable]:
        """Yield the records that could serve a problem of these sizes, best first."""
        for tier, groups in nearby.tiers:
            nearer = 0
            for distance, points, entries in _merged([neighbours.rising(sizes) for neighbours in groups]):
                for stored in self._ordered(entries, nearby.extents, sizes):
                    yield _Usable(tier, distance, stored, nearer >= _CONSIDERED)
                nearer += points

    def _ordered(self, entries: list[Entry], extents: tuple[str, ...], sizes: Sizes) -> Sequence[StoredRecord]:
        """Return the records of entries at one distance, in order of preference."""
        if len(entries) == 1:
            return self._records(entries[0])
        numbered = [(entry[0], stored) for entry in entries for stored in self._records(entry)]
        return [stored for _, stored in sorted(numbered, key=partial(_preference, extents, sizes))]

    def _judged(self, query: Query, usable: list[_Usable], check: Check) -> Iterator[Candidate]:
        served = False
        for usable_record in usable:
            stored, why = usable_record.stored, _describe(query, usable_record)
            refusal = usable_record.excluded or self.refusal(usable_record.stored, check)
            reason = refusal or "stands behind the one that serves"
            serves = refusal is None and not served
            served = served or serves
            yield Candidate(stored.record, stored.place, serves, why if serves else f"{why}: {reason}")

    def _usable(self, query: Query) -> Iterator[_Usable]:
        """Return the records that could serve, best first."""
        nearby = self.nearby(query, lambda _: None)
        return self.rising(nearby, tuple(query.problem[name] for name in nearby.extents))

    def _exact(self, query: Query, check: Check) -> Match | None:
        """Return a record of this problem on this GPU. It precedes all others, which are then not parsed."""
        key = Key(query.operator, encode(dict(query.problem)), query.gpu)
        for number in (number for number, source in enumerate(self._sources) if not source.shipped):
            for stored in self._records((number, key)):
                if self.refusal(stored, check) is None:
                    return _match(query, _Usable(0, 0.0, stored))
        return None

    def _near(self, query: Query, check: Check) -> Match | None:
        nearby = self.nearby(query, check)
        usable = self.first(nearby, tuple(query.problem[name] for name in nearby.extents))
        return _match(query, usable) if usable else None

    def _family(self, query: Query, extents: tuple[str, ...]) -> Mapping[_Origin, Sequence[Neighbours]]:
        """Return the operator's problems with the same fields and equal static values, by origin."""
        statics = {name: query.problem[name] for name in query.statics if name in query.problem}
        family = query.operator, query.statics, extents, tuple(statics.values())
        if family not in self._families:
            by_origin: dict[_Origin, list[Neighbours]] = {}
            listed: dict[_Origin, Listed] = {}
            for number, source in enumerate(self._sources):
                for of_gpu in self._read(source, partial(_packed, source, number, query, extents)):
                    by_origin.setdefault((of_gpu.gpu, source.shipped), []).append(of_gpu)
                for key in self._read(source, partial(source.keys, query.operator, statics)):
                    if (problem := _fields(key)).keys() == query.problem.keys() and statics.items() <= problem.items():
                        sizes = tuple(problem[name] for name in extents)
                        listed.setdefault((key.gpu, source.shipped), Listed()).add(sizes, (number, key))
            for origin, neighbours in listed.items():
                by_origin.setdefault(origin, []).append(neighbours)
            self._families[family] = by_origin
        return self._families[family]

    def _records(self, entry: Entry) -> list[StoredRecord]:
        if entry not in self._stored:
            source, key = self._sources[entry[0]], entry[1]
            self._stored.setdefault(entry, list(self._read(source, partial(source.records, key=key))))
        return self._stored[entry]

    def _read(self, source: RecordSource, read: Callable[[], Iterable[T]]) -> Iterable[T]:
        try:
            return read()
        except StoreError as error:
            self._fail(f"{source.name}: {error}")
            return ()

    def _note(self, sentence: str) -> None:
        self._unreadable[sentence] = None

    def _fail(self, sentence: str) -> None:
        if sentence in self._unreadable:
            return
        self._unreadable[sentence] = None
        if self._strict:
            raise StoreError(f"records cannot be read, and TUNER_STRICT is set: {sentence}")
        if self._strict is not None:
            text = f"records cannot be read, and calls go on without them: {sentence}"
            warnings.warn(text, UnreadableRecordsWarning, stacklevel=4)


def _packed(source: RecordSource, number: int, query: Query, extents: tuple[str, ...]) -> list[Packed]:
    """Return, by GPU, the problems of a query's family whose sizes a source stores separately."""
    if not numbers_in(query.problem).keys() >= set(extents):
        return []
    families = source.families(query.operator, packed(query.problem)[0])
    return [
        Packed(number, Key(query.operator, "", gpu), query.problem, extents, lines) for gpu, lines in families.items()
    ]


def _closest(groups: Sequence[Neighbours], sizes: Sizes) -> tuple[float, list[tuple[Neighbours, list[int]]]] | None:
    """Return the smallest distance over groups, and the points at it."""
    near = [(neighbours, *closest) for neighbours in groups if (closest := neighbours.closest(sizes))]
    if not near:
        return None
    least = min(distance for _, distance, _ in near)
    return least, [(neighbours, points) for neighbours, distance, points in near if distance == least]


def _nearer(groups: Sequence[Neighbours], sizes: Sizes, distance: float) -> int:
    """Return the number of points of all groups at smaller distances."""
    return sum(neighbours.nearer(sizes, distance) for neighbours in groups)


def _merged(searches: list[Iterator[Ring]]) -> Iterator[Ring]:
    """Merge increasing distances of several searches, each advanced only when needed, because a second step requires a
    sort.
    """
    heads = [(head, search) for search in searches if (head := next(search, None))]
    while heads:
        least = min(distance for (distance, _, _), _ in heads)
        nearest = [head for head, _ in heads if head[0] == least]
        yield least, sum(points for _, points, _ in nearest), [entry for _, _, entries in nearest for entry in entries]
        moved = [(next(search, None) if head[0] == least else head, search) for head, search in heads]
        heads = [(head, search) for head, search in moved if head]


def _fields(key: Key) -> Fields:
    try:
        return fields_in(key.problem)
    except (TypeError, ValueError, RecursionError):
        return {}  # of no kernel; the record is rejected when it is parsed


def _match(query: Query, usable: _Usable) -> Match:
    return Match(usable.stored.record, usable.distance, partial(_describe, query, usable), usable.shipped)


def _preference(extents: tuple[str, ...], sizes: Sizes, of: tuple[int, StoredRecord]) -> tuple[object, ...]:
    """Return the sort key at one distance: the problem itself first, then by source, then by rank within the source."""
    number, stored = of
    return tuple(stored.problem[name] for name in extents) != sizes, number, stored.rank


def _order(tier: int) -> tuple[bool, int]:
    """Return the sort key of tiers: records of the arch's family follow those that ship for the arch itself."""
    return tier % _SHIPPED == _SHIPPED - 1, tier


def _tier(query: Query, gpu: str) -> int | None:
    """Return 0 for the query's own device, 1 for its arch, 2 for another device of it, 3 for its family, None for
    others.
    """
    if gpu == query.gpu:
        return 0
    if gpu == query.arch:
        return 1
    arch = arch_of(gpu)
    if arch == query.arch:
        return 2
    return 3 if arch and ARCHES[arch].family == ARCHES[query.arch].family else None


def distance(wanted: Fields, stored: Fields, extents: Iterable[str]) -> float:
    """Return the distance of two problems, Euclidean in log2 of the sizes `extents`: doubling one size is a distance of
    1.
    """
    names = tuple(extents)
    return _apart([wanted[name] for name in names], [stored[name] for name in names])


def _apart(wanted: Sequence[Scalar], stored: Sequence[Scalar]) -> float:
    octaves = [_octaves(size, other) for size, other in zip(wanted, stored, strict=True) if size != other]
    return hypot(*octaves) if octaves else 0.0


@lru_cache(maxsize=1 << 16)  # calls at a new length repeat all other sizes
def _octaves(wanted: Scalar, stored: Scalar) -> float:
    if isinstance(wanted, str) or isinstance(stored, str):  # not a size
        return inf
    return log2(max(1.0, float(stored)) / max(1.0, float(wanted)))


def _describe(query: Query, usable: _Usable) -> str:
    other = usable.stored.record.identity.gpu
    where = _TIERS[usable.tier % _SHIPPED].format(gpu=query.gpu, arch=query.arch, other=other)
    where += f", which ships with this program ({usable.stored.record.evidence.value})" if usable.shipped else ""
    if not usable.distance:
        return f"this problem {where}"
    stored = usable.stored.problem
    sizes = [f"{n}={stored[n]} for {query.problem[n]}" for n in query.problem if stored[n] != query.problem[n]]
    return f"near problem {where}: {', '.join(sizes)}"


def _mismatch(query: Query, stored: StoredRecord) -> str:
    if wrong := _other_fields(query, stored):
        return f"another kernel: {', '.join(wrong)}"
    if _tier(query, stored.record.identity.gpu) is not None:
        return "its sizes are no whole numbers"
    return f"made for {stored.record.identity.gpu}, not for {query.arch}"


def _other_fields(query: Query, stored: StoredRecord) -> list[str]:
    """Return the static fields that differ, and those that only one of the two problems has."""
    wanted, other = query.problem, stored.problem
    lacking = [f"{name} is missing" for name in wanted if name not in other]
    unknown = [f"{name} is unknown" for name in other if name not in wanted]
    shared = [name for name in query.statics if name in other and name in wanted]
    return (
        lacking
        + unknown
        + [f"{n}={scalar(other[n])}, not {scalar(wanted[n])}" for n in shared if other[n] != wanted[n]]
    )
