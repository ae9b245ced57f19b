"""The choice of implementation and config for a problem: the best valid record, or else a default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tuner import operators
from tuner.arch import ARCHES, GPU, gpu
from tuner.base.canonical_json import decode
from tuner.base.fields import Fields, formatted
from tuner.compiler.render import render
from tuner.dispatcher import device_proofs
from tuner.errors import TunerError, UsageError
from tuner.evaluate.predict.cost import uncompiled
from tuner.results.record import TuningRecord
from tuner.spec.command_line import prove_command, search_command
from tuner.spec.default_sizes import Sizes, round_sizes
from tuner.spec.instance import Instance, InstanceFields
from tuner.spec.operator import Operator
from tuner.spec.problem import extents, statics, to_fields
from tuner.store.read import arch_of
from tuner.store.records import Candidate, Match, Query, Snapshot

_PROVEN = ", which the GPU here was found to run right ({verdicts})"
_LISTED = 8  # maximum number of passed-over records in an explanation


@dataclass(frozen=True)
class Choice:
    """The config for a problem on a GPU, and the reason."""

    instance: Instance
    gpu: GPU
    record: TuningRecord | None  # None: the config is the implementation's default
    why: str
    foreign: bool = True  # from a record of another problem or arch, or the default of a round size

    def at(self, problem: Any) -> "Choice":
        """Return the same choice for another problem."""
        return replace(self, instance=self.instance.at(problem))

    def fits(self, problem: Any) -> bool:
        """Return whether it serves a problem; a foreign config must be in the problem's space."""
        implementation, arch = self.instance.implementation, self.gpu.arch
        if implementation.refusal(problem, arch) is not None:
            return False
        return not self.foreign or implementation.space(problem, arch).refusal(self.instance.config) is None

    @property
    def command(self) -> str:
        """Return the command that tunes the problem."""
        return search_command(self.instance.operator, self.instance.problem, self.gpu)


@dataclass(frozen=True)
class Explanation:
    """The kernel that a call runs, and the reason."""

    operator: str
    problem: Fields
    gpu: str
    implementation: str  # empty if there is nothing to compute
    config: Fields
    record: TuningRecord | None  # None: the config is the implementation's default
    why: str
    passed_over: tuple[str, ...]  # one line per record of the operator that was not used
    command: str  # the command that tunes this problem
    compiler: str = ""  # compiler of the machine code for a GPU
    unproven: tuple[str, ...] = ()  # implementations with a faster prediction that are not verified on the GPU
    prove: str = ""  # the command that verifies them

    def __str__(self) -> str:
        if not self.implementation:
            return f"{self.operator} {formatted(self.problem)}\n  runs no kernel: {self.why}"
        lines = [
            f"{self.operator} {formatted(self.problem)}",
            f"  runs {self.implementation} {formatted(self.config)}",
            f"  for {self.gpu}: {self.why}",
            *([f"  machine code: {self.compiler}"] if self.compiler else []),
            *self._checked(),
            *(f"  passed over: {line}" for line in self.passed_over[:_LISTED]),
            *([f"  passed over: {len(self.passed_over) - _LISTED} more"] if len(self.passed_over) > _LISTED else []),
            *([f"  predicted faster, but unproven: {', '.join(self.unproven)}; {self.prove}"] if self.unproven else []),
            f"  to tune it{' further' if self._tuned else ''}: {self.command}",
        ]
        return "\n".join(lines)

    def _checked(self) -> tuple[str, ...]:
        """Return where the record was checked, if that check has limitations."""
        verdict = self.record.verdict if self.record else None
        return (f"  checked on the {verdict.where}: {verdict.unseen}",) if verdict and verdict.unseen else ()

    @property
    def _tuned(self) -> bool:
        """Return whether the record is for exactly this problem and GPU."""
        of = self.record.identity if self.record else None
        return of is not None and of.gpu == self.gpu and decode(of.problem) == self.problem


def any_gpu() -> tuple[GPU, ...]:
    """Return one GPU per arch, which the emulator may represent if no GPU is named."""
    return tuple(gpu(name) for name in ARCHES)


def choose(operator: Operator[Any], problem: Any, gpus: Sequence[GPU], snapshot: Snapshot) -> Choice:
    """Return the record with the nearest problem over `gpus`, or else a default config for the first GPU that has one.

    A neighbour's record is used only if its config is in the problem's own space; otherwise the next nearest one is
    tried. Raises UsageError if no implementation serves the problem.
    """
    plain = to_fields(problem)
    queries = [(_query(operator, plain, gpu, snapshot), gpu) for gpu in gpus]
    matches = [(match, gpu) for query, gpu in queries if (match := snapshot.find(query, refusal))]
    nearest_first = sorted(
        matches, key=lambda pair: _nearest(pair[0].record, pair[0].distance, pair[0].shipped, pair[1])
    )
    served = (_served(operator, problem, gpu, match, snapshot) for match, gpu in nearest_first)
    return next(filter(None, served), None) or default(operator, problem, gpus, snapshot)


class Records:
    """Return the records that may serve problems with the same static fields over `gpus`."""

    def __init__(self, operator: Operator[Any], problem: Any, gpus: Sequence[GPU], snapshot: Snapshot) -> None:
        queries = ((_query(operator, to_fields(problem), gpu, snapshot), gpu) for gpu in gpus)
        nearby = ((snapshot.nearby(query, refusal), gpu) for query, gpu in queries)
        self._nearby = [(records, gpu) for records, gpu in nearby if records]

    def nearest(self, sizes: Sizes) -> tuple[TuningRecord, GPU, bool] | None:
        """Return the preferred record of `choose` for these extents: (record, GPU, foreign); None if there is none."""
        if not self._nearby:
            return None
        near = [(*match, gpu) for records, gpu in self._nearby if (match := records.closest(sizes))]
        if not near:
            return None
        record, distance, _, target = near[0] if len(near) == 1 else min(near, key=lambda match: _nearest(*match))
        return record, target, _foreign(record, distance, target)


def refusal(record: TuningRecord) -> str | None:
    """Return why a record must not be served; None if it may.

    Records are untrusted data: nothing is rendered before the problem and config have the declared types and the config
    is in the space. The current templates must then render the source that the record was made with.
    """
    try:
        instance = _recorded(record)
        arch = gpu(record.identity.gpu).arch
        reason = instance.implementation.refusal(instance.problem, arch)
        reason = reason or instance.implementation.space(instance.problem, arch).refusal(instance.config)
    except (TunerError, LookupError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
        return f"it is not valid here: {error}"
    if reason is not None:
        return f"it is not valid here: {reason}"
    fixed = tuple(getattr(instance.problem, name) for name in statics(instance.problem))
    if _digest(_Rendering((instance.operator.folder, instance.key, fixed), instance)) != record.identity.source:
        return "its source has changed since it was made"
    return None


@dataclass(frozen=True)
class _Rendering:
    """An instance that compares equal to those with the same source, so sizes are excluded."""

    selects: tuple[object, ...]
    instance: Instance = field(compare=False)


@lru_cache(maxsize=4096)
def _digest(rendering: _Rendering) -> str:
    return render(rendering.instance).digest


def _recorded(record: TuningRecord) -> Instance:
    of = record.identity
    return operators.instance(InstanceFields(of.operator, of.implementation, decode(of.problem), record.config))


def explain(choice: Choice, gpus: Sequence[GPU], snapshot: Snapshot, compiler: str = "") -> Explanation:
    """Return a choice over `gpus` as text and plain data, with the records that were passed over."""
    runs = choice.instance.fields()
    unproven = () if choice.record else _unproven(choice, snapshot)
    problem = choice.instance.problem
    return Explanation(
        operator=runs.operator,
        problem=runs.problem,
        gpu=choice.gpu.name,
        implementation=runs.implementation,
        config=runs.config,
        record=choice.record,
        why=choice.why,
        passed_over=_passed_over(choice, gpus, snapshot),
        command=choice.command,
        compiler=compiler,
        unproven=unproven,
        prove=f"on its machine: {prove_command(choice.instance.operator, problem)}" if unproven else "",
    )


def _unproven(choice: Choice, snapshot: Snapshot) -> tuple[str, ...]:
    """Return unverified implementations whose defaults are predicted to be faster than the default in use."""
    operator, problem, target = choice.instance.operator, choice.instance.problem, choice.gpu
    verdicts, least = device_proofs.Verdicts(operator.name, target, snapshot), _cost(choice.instance, target)
    defaults = (
        Instance.default(operator, one, problem, target.arch)
        for one in operators.implementations(operator.name)
        if one.unproven and one.refusal(problem, target.arch) is None
    )
    faster = (one for one in defaults if verdicts.right(one) is None and _cost(one, target) < least)
    return tuple(one.implementation.name for one in sorted(faster, key=lambda one: _cost(one, target)))


def _cost(instance: Instance, target: GPU) -> float:
    return uncompiled(instance.plan(), instance.work(target), target).cost


def nothing(operator: Operator[Any], problem: Any, empty_dims: Mapping[str, int]) -> Explanation:
    """Explain a call that has nothing to compute."""
    why = f"{', '.join(f'{name} is {size}' for name, size in empty_dims.items())}, which leaves nothing to compute"
    return Explanation(operator.name, {**to_fields(problem), **empty_dims}, "", "", {}, None, why, (), "")


def default(operator: Operator[Any], problem: Any, gpus: Sequence[GPU], snapshot: Snapshot) -> Choice:
    """Return the config without a record: the default of the first round sizes whose config fits, or else the problem's
    own.
    """
    sizes = tuple(getattr(problem, name) for name in extents(operator.problem))
    near = (typical(operator, problem, rounded, gpus, snapshot) for rounded in round_sizes(sizes))
    fitting = next((choice.at(problem) for choice in near if choice and choice.fits(problem)), None)
    return fitting or _best_default(operator, problem, gpus, snapshot)


def typical(
    operator: Operator[Any], problem: Any, sizes: Sizes, gpus: Sequence[GPU], snapshot: Snapshot
) -> Choice | None:
    """Return the default of the same problem with other sizes; None if that is invalid or not served."""
    try:
        alike = replace(problem, **dict(zip(extents(operator.problem), sizes, strict=True)))
        return replace(_best_default(operator, alike, gpus, snapshot), foreign=True)
    except (TunerError, ArithmeticError, TypeError, ValueError):
        return None


def _best_default(operator: Operator[Any], problem: Any, gpus: Sequence[GPU], snapshot: Snapshot) -> Choice:
    """Return the default config with the best prediction, on the first GPU that has one."""
    reasons: dict[str, str] = {}
    for target in gpus:
        verdicts = device_proofs.Verdicts(operator.name, target, snapshot)
        usable: list[tuple[Instance, str]] = []
        for one in operators.implementations(operator.name):
            if (reason := one.refusal(problem, target.arch)) is not None:
                reasons.update({} if one.unproven else {one.name: reason})
                continue
            default = Instance.default(operator, one, problem, target.arch)
            right = verdicts.right(default)
            if right or (right is None and not one.unproven):
                usable.append((default, _PROVEN.format(verdicts=verdicts) if right else ""))
            elif right is False:
                reasons[one.name] = device_proofs.WRONG
        if usable:
            best, why = min(usable, key=lambda one: _cost(one[0], target))
            return Choice(best, target, None, f"no record serves it: the default config{why}", foreign=False)
    why_not = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise UsageError(f"no implementation of {operator.name} serves this problem on {gpus[-1].name}: {why_not}")


def _nearest(record: TuningRecord, distance: float, shipped: bool, target: GPU) -> tuple[bool, float, bool]:
    """Return the sort key of records: the user's own before shipped ones, then nearer problems, then the record's own
    arch before another of its family.
    """
    return shipped, distance, arch_of(record.identity.gpu) != target.arch.name


def _served(operator: Operator[Any], problem: Any, target: GPU, best: Match, snapshot: Snapshot) -> Choice | None:
    """Return the choice of the first record that can serve a problem: the best match, or one behind it."""
    if choice := _choice(problem, target, best):
        return choice
    every = snapshot.matches(_query(operator, to_fields(problem), target, snapshot), refusal)
    return next(filter(None, (_choice(problem, target, match) for match in every)), None)


def _choice(problem: Any, target: GPU, match: Match) -> Choice | None:
    """Return a record as a choice; None if its implementation refuses the problem, or if a foreign config does
    not fit.
    """
    foreign = _foreign(match.record, match.distance, target)
    choice = Choice(_recorded(match.record), target, match.record, f"record of {match.why}", foreign)
    return choice.at(problem) if choice.fits(problem) else None


def _foreign(record: TuningRecord, distance: float, target: GPU) -> bool:
    """Return whether it is for another problem or arch."""
    return distance > 0 or arch_of(record.identity.gpu) != target.arch.name


def _query(operator: Operator[Any], problem: Fields, target: GPU, snapshot: Snapshot) -> Query:
    """Return the query for a problem. Shipped records use proven implementations only, so they are excluded if this GPU
    was found to run a faster, otherwise unproven one correctly.
    """
    shipped = not device_proofs.Verdicts(operator.name, target, snapshot).found_unproven_right
    return Query(operator.name, problem, target.name, target.arch.name, statics(operator.problem), shipped)


def _passed_over(choice: Choice, gpus: Sequence[GPU], snapshot: Snapshot) -> tuple[str, ...]:
    """Return every record of the operator that is not used, and every database or file that could not be read."""
    operator, plain = choice.instance.operator, to_fields(choice.instance.problem)
    candidates: dict[int, Candidate] = {}
    for target in gpus:  # with a GPU that the record was not made for, the reason would not concern the record
        for candidate in snapshot.explain(_query(operator, plain, target, snapshot), refusal):
            if candidate.considered or id(candidate.record) not in candidates:
                candidates[id(candidate.record)] = candidate
    others = [candidate for candidate in candidates.values() if candidate.record is not choice.record]
    nearest_first = sorted(others, key=lambda candidate: not candidate.considered)
    return (*map(_line, nearest_first), *snapshot.refused)


def _line(passed_over: Candidate) -> str:
    why = ": another is nearer, or its config does not fit" if passed_over.served else ""
    return f"{passed_over.record.identity.implementation} ({passed_over.place}): {passed_over.why}{why}"
