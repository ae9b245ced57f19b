"""The attempts of a search, in memory and in the store, and reused attempts of earlier sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tuner.evaluate.evaluator import Evaluator
from tuner.results.attempt import Attempt, Identity, Stage
from tuner.results.ranking import rank
from tuner.results.verdict import Verdict
from tuner.search.bandit import Bandit
from tuner.search.history import devices_of
from tuner.search.request import SearchRequest
from tuner.spec.instance import Instance
from tuner.spec.problem import canonical, from_fields, to_fields
from tuner.spec.space import Space
from tuner.store.sql import Holder, Store, StoredAttempt, claims

_BY_SOURCE = {
    Stage.RENDER,
    Stage.COMPILE,
}  # failures that depend only on the rendered text; others also depend on the Python code
_ON_DEVICE = {Stage.VERIFY, Stage.LAUNCH, Stage.TIME}


@dataclass(frozen=True)
class Tried:
    """An attempt with its row in the store, and its verdict if it was checked."""

    row: int
    instance: Instance
    attempt: Attempt
    differs: int  # number of fields that differ from the implementation's default
    verdict: Verdict | None = None

    @property
    def right(self) -> bool:
        """Whether it passed its checks."""
        return self.verdict is not None and self.verdict.ok

    @property
    def wrong(self) -> bool:
        """Whether it failed its checks."""
        return self.verdict is not None and not self.verdict.ok


@dataclass(frozen=True)
class ReusedAttempt:
    """A stored attempt of an earlier session that is still valid."""

    row: int
    instance: Instance
    attempt: Attempt
    verdict: Verdict | None
    outdated: bool = False  # a cost predicted by other Python code, whose plan or declarations may have changed
    elsewhere: bool = False  # measured on another GPU of the model, so its time is not comparable


class Log:
    """The attempts of one search, in order; each is also reported to the bandit."""

    def __init__(
        self,
        request: SearchRequest,
        store: Store,
        study: int | None,
        bandit: Bandit,
        tried: Sequence[Tried] = (),
        since: int = 0,
    ) -> None:
        """Create a log; `tried` is known to the bandit already, and rows after `since` belong to concurrent
        searches.
        """
        self._store, self._study, self._bandit = store, study, bandit
        self._positions = {candidate.row: position for position, candidate in enumerate(tried)}
        self._default = cache(
            lambda one: to_fields(request.default(one).config)
        )  # the default config's fields by implementation
        self._code = request.code
        self._request, self._since = request, since
        self._holder, self._shared = Holder.current(), True
        self.tried = list(tried)
        self.failed = sum(candidate.attempt.failure is not None for candidate in tried)
        self.best = next(iter(rank(tried)), None)

    def add(self, instance: Instance, attempt: Attempt) -> None:
        (row,) = self._store.append([attempt], self._study)
        self._remember(row, instance, attempt)

    def add_verdict(self, tried: Tried, verdict: Verdict) -> None:
        self._store.append_verdict(tried.row, verdict, self._code)
        self.tried[self._positions[tried.row]] = replace(tried, verdict=verdict)

    def claim(self, instances: Sequence[Instance], evaluator: Evaluator) -> list[Instance]:
        """Claim the configs that no other running search evaluates on this GPU, until `release`; return them."""
        held = self._store.claim(self._scope(evaluator), [_name(instance) for instance in instances], self._holder)
        return [instance for instance in instances if _name(instance) in held]

    def release(self, instances: Sequence[Instance], evaluator: Evaluator) -> None:
        """Allow other searches to evaluate these configs."""
        self._store.release(self._scope(evaluator), [_name(instance) for instance in instances], self._holder)

    def take_from_others(self, instances: Sequence[Instance], evaluator: Evaluator) -> int:
        """Adopt the attempts that other searches have stored for these configs; return how many were adopted.

        The store is read at the first call, and while others hold claims or did at the last call.
        """
        holders = self._store.claimed(self._scope(evaluator)).values()
        others = any(holder != self._holder for holder in holders)
        if not (others or self._shared):
            return 0
        self._shared = others
        wanted = {evaluator.identity(instance): instance for instance in instances}
        request = self._request
        rows = self._store.attempts(
            request.operator.name,
            canonical(request.problem),
            request.gpu.name,
            policy=evaluator.policy,
            after=self._since,
        )
        devices = devices_of(self._store, [row.study for row in rows])
        rows = [row for row in rows if not _by_device(row.attempt) or devices.get(row.study, "") == evaluator.device]
        newest = {
            row.attempt.identity: row for row in rows if row.attempt.identity in wanted and not row.attempt.spared
        }
        return self.take(
            [
                ReusedAttempt(row.id, wanted[identity], row.attempt, None)
                for identity, row in newest.items()
                if row.id not in self._positions
            ]
        )

    def _scope(self, evaluator: Evaluator) -> str:
        request, policy = self._request, " ".join(filter(None, (evaluator.policy, evaluator.device)))
        return claims.scope(request.operator.name, canonical(request.problem), request.gpu.name, policy)

    def find(self, instance: Instance) -> Tried | None:
        """Return the attempt at a config, if it was tried."""
        return next((candidate for candidate in self.tried if candidate.instance.key == instance.key), None)

    def take(self, earlier: Sequence[ReusedAttempt]) -> int:
        """Take over the stored attempts of earlier sessions; return their number."""
        for stored in earlier:
            attempt = replace(stored.attempt, config=to_fields(stored.instance.config))  # stored text has sorted fields
            self._remember(stored.row, stored.instance, attempt, stored.verdict)
        return len(earlier)

    def _remember(self, row: int, instance: Instance, attempt: Attempt, verdict: Verdict | None = None) -> None:
        default = self._default(instance.implementation)
        differs = sum(default[name] != value for name, value in attempt.config.items())
        tried = Tried(row, instance, attempt, differs, verdict)
        self._positions[row] = len(self.tried)
        self.tried.append(tried)
        self.failed += attempt.failure is not None
        self.best = next(iter(rank([candidate for candidate in (self.best, tried) if candidate])), None)
        self._bandit.observe(instance, None if tried.wrong else attempt.value, flawed=attempt.flawed)


def earlier(
    request: SearchRequest,
    store: Store,
    evaluator: Evaluator,
    spaces: Sequence[Space[Any]],
    after: int = 0,
) -> list[ReusedAttempt]:
    """Return the stored attempts of a request, in rows after `after`, that are still valid, the newest per config.

    A verdict, and a failure that depends on Python code, is valid while the operator's code is unchanged. Lost verdicts
    are repeated and, if requested, also failures before the comparison or timing.
    """
    about = request.operator.name, canonical(request.problem), request.gpu.name
    stored = store.attempts(*about, after=after)
    given = store.verdicts([entry.id for entry in stored], request.code)
    verdicts = {
        row: verdict for row, verdict in given.items() if not verdict.lost and (verdict.errors or not request.retry)
    }
    sessions = store.studies_of(entry.study for entry in stored if entry.study is not None)
    devices = {study.id: str(study.versions.get("device", "")) for study in sessions}
    device = evaluator.device if evaluator.device is not None else _last_device(stored, devices, evaluator.policy)
    today = {study.id for study in sessions if study.versions.get("code") == request.code}
    known = {
        implementation.name: (request.default(implementation), space)
        for implementation, space in zip(request.implementations, spaces, strict=True)
    }
    newest: dict[Identity, ReusedAttempt] = {}
    for entry in stored:
        identity, name = entry.attempt.identity, entry.attempt.identity.implementation
        lasts = _lasts(entry.attempt) or entry.study in today
        lost = request.retry and entry.attempt.failure is not None and entry.attempt.failure.stage is Stage.LAUNCH
        tried = name in known and lasts and not lost and not entry.attempt.spared
        instance = _stored(*known[name], entry.attempt) if tried else None
        # The code, compiler or policy may have changed since.
        if instance is not None and evaluator.identity(instance) == identity:
            verdict = verdicts.get(entry.id) or (newest[identity].verdict if identity in newest else None)
            outdated = entry.study not in today and _predicted(entry.attempt)
            elsewhere = _by_device(entry.attempt) and devices.get(entry.study or 0, "") != device
            if not elsewhere or identity not in newest or newest[identity].elsewhere:
                newest[identity] = ReusedAttempt(entry.id, instance, entry.attempt, verdict, outdated, elsewhere)
    return list(newest.values())


def _name(instance: Instance) -> str:
    return f"{instance.implementation.name} {canonical(instance.config)}"


def _predicted(attempt: Attempt) -> bool:
    return attempt.failure is None and attempt.measurement is None


def _last_device(stored: Sequence[StoredAttempt], devices: Mapping[int, str], policy: str) -> str:
    """Return the GPU that measured last under a policy; empty if none did, or if it is unknown."""
    measured = (row for row in stored if row.attempt.measurement is not None and row.attempt.identity.policy == policy)
    last = max(measured, key=lambda row: row.id, default=None)
    return devices.get(last.study or 0, "") if last else ""


def _by_device(attempt: Attempt) -> bool:
    """Return whether the outcome depends on a device."""
    failed = attempt.failure is not None and attempt.failure.stage in _ON_DEVICE
    return attempt.measurement is not None or failed


def _lasts(attempt: Attempt) -> bool:
    return attempt.failure is None or attempt.failure.stage in _BY_SOURCE


def _stored(default: Instance, space: Space[Any], attempt: Attempt) -> Instance | None:
    """Return the stored config with the implementation of `default`; None if the current space does not contain it."""
    if attempt.config.keys() != set(space.names):
        return None
    try:
        config = from_fields(default.implementation.config, attempt.config)
    except (TypeError, ValueError):
        return None
    return default.with_config(config) if space.refusal(config) is None else None
