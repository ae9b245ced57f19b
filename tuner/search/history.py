"""Stored results that may guide a search: other GPUs, other sizes, and earlier code for the same problem."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.arch import GPU
from tuner.base.canonical_json import decode, encode
from tuner.base.fields import Fields, Scalar
from tuner.results.codec import fields_in
from tuner.search.request import SearchRequest
from tuner.spec.operator import Operator
from tuner.spec.problem import canonical, extents, from_fields, statics, to_fields
from tuner.spec.space import Space
from tuner.store.read import arch_of
from tuner.store.records import distance
from tuner.store.sql import Store, StoredAttempt

_OTHER_ARCH = 1.0  # distance to another arch, in doublings of one size
_AT_MOST = 3  # maximum number of sources of each kind


@dataclass(frozen=True)
class TransferResults:
    """Results of one implementation from one source; values of different sources are not comparable."""

    source: str  # "history of H100", "history of seq_q=2048 for 4096", "history of earlier code"
    results: Mapping[str, float | None]  # canonical config → value, lower is better; None if it failed

    def within(self, space: Space[Any], config: type[Any]) -> dict[int, float | None]:
        """Return the results by index in `space`, without configs outside it.

        A size that is not a choice (shared memory budgets depend on the device) is replaced by the nearest one. If
        several results map to one config, the first exact one counts, or else the first.
        """
        exact: dict[int, float | None] = {}
        moved: dict[int, float | None] = {}
        for text, value in self.results.items():
            fields = decode(text)
            near = _fitted(fields, space)
            moved_config = from_fields(config, near) if near else None
            if moved_config is not None and space.refusal(moved_config) is None:
                (exact if near == fields else moved).setdefault(space.index(moved_config), value)
        return {**moved, **exact}


def _fitted(fields: Fields, space: Space[Any]) -> Fields | None:
    """Return a config's fields mapped to choices of `space`; None if impossible."""
    if fields.keys() != set(space.names):
        return None
    fitted = {name: _nearest_choice(fields[name], choices) for name, choices in space.choices.items()}
    return None if None in fitted.values() else {name: value for name, value in fitted.items() if value is not None}


def _nearest_choice(value: Scalar, choices: Sequence[Scalar]) -> Scalar | None:
    if value in choices:
        return choices[choices.index(value)]  # excludes True if the choice is 1
    sizes = [choice for choice in choices if isinstance(choice, int) and not isinstance(choice, bool) and choice > 0]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return None
    return min(sizes, key=lambda choice: abs(math.log(choice / value)), default=None)


@dataclass(frozen=True)
class _Source:
    """A searched problem on a GPU, and its distance from the requested one."""

    kind: int  # 0: same problem and GPU, 1: other sizes on the GPU, 2: another GPU
    distance: float
    problem: str
    gpu: str
    name: str


def transfer_results(
    request: SearchRequest, store: Store, policy: str, resumed: Collection[int]
) -> dict[str, list[TransferResults]]:
    """Return, by implementation, the results of the nearest sources of each kind with the same policy.

    Sources have the problem's static fields. Of each kind (earlier code for the same problem, other sizes on the GPU,
    other GPUs) the nearest one with results counts. `resumed` are rows of attempts that the search itself takes over.
    Sources with the same problem and GPU are ignored if the search does not resume.
    """
    operator, problem = request.operator, request.problem
    transferred: dict[str, list[TransferResults]] = {}
    every = list(_sources(store, operator, problem, request.gpu, request.history_until))
    for kind in range(0 if request.resume else 1, 3):
        sources = sorted((searched for searched in every if searched.kind == kind), key=_nearest)
        taken: set[str] = set()
        for source in sources[:_AT_MOST]:
            for name, results in _results(store, request, source, policy, resumed).items():
                if name not in taken:
                    taken.add(name)
                    transferred.setdefault(name, []).append(TransferResults(source.name, results))
    return transferred


def _sources(store: Store, operator: Operator[Any], problem: Any, target: GPU, until: int | None) -> Iterable[_Source]:
    wanted, kinds, names = to_fields(problem), statics(operator.problem), extents(operator.problem)
    own = canonical(problem)
    for text, name in store.searched(operator.name, until):
        stored = fields_in(text)
        if stored.keys() == wanted.keys() and all(stored[field] == wanted[field] for field in kinds):
            differing = [field for field in names if stored[field] != wanted[field]]
            sizes = " ".join(f"{field}={stored[field]} for {wanted[field]}" for field in differing)
            yield _source(target, text, name, sizes, distance(wanted, stored, differing), is_own=text == own)


def _source(target: GPU, text: str, name: str, sizes: str, octaves: float, *, is_own: bool) -> _Source:
    if name != target.name:
        foreign = arch_of(name) != target.arch.name
        return _Source(2, octaves + _OTHER_ARCH * foreign, text, name, f"history of {name} {sizes}".rstrip())
    if is_own:
        return _Source(0, 0.0, text, name, "history of earlier code")
    return _Source(1, octaves, text, name, f"history of {sizes}")


def _nearest(source: _Source) -> tuple[float, str, str]:
    return source.distance, source.gpu, source.problem


def _results(
    store: Store, request: SearchRequest, source: _Source, policy: str, resumed: Collection[int]
) -> dict[str, dict[str, float | None]]:
    """Return implementation → canonical config → value. Configs that current checks reject, or with flaws, count as
    failed.
    """
    stored = store.attempts(operator=request.operator.name, problem=source.problem, gpu=source.gpu, policy=policy)
    stored = _of_one_device([row for row in stored if _counts(row, request.history_until)], store)
    verdicts = store.verdicts([entry.id for entry in stored], request.code)
    wrong = {row for row, verdict in verdicts.items() if not verdict.ok}
    results: dict[str, dict[str, float | None]] = {}
    for entry in stored:
        if entry.id not in resumed and not entry.attempt.spared:
            value = None if entry.id in wrong or entry.attempt.flawed else entry.attempt.value
            results.setdefault(entry.attempt.identity.implementation, {})[encode(entry.attempt.config)] = value
    return results


def _counts(row: StoredAttempt, until: int | None) -> bool:
    return until is None or row.study is None or row.study <= until


def _of_one_device(stored: Sequence[StoredAttempt], store: Store) -> list[StoredAttempt]:
    """Return the results of the GPU that measured last, since times of several GPUs of a model are not comparable."""
    measured = [row.study for row in stored if row.attempt.measurement is not None]
    devices = devices_of(store, measured)
    last = devices.get(measured[-1]) if measured else None
    return [row for row in stored if row.attempt.measurement is None or devices.get(row.study) == last]


def devices_of(store: Store, studies: Iterable[int | None]) -> dict[int | None, str]:
    """Return study → UUID of its GPU, if recorded."""
    stored = store.studies_of({study for study in studies if study is not None})
    return {study.id: str(study.versions["device"]) for study in stored if study.versions.get("device")}
