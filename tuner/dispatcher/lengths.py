"""Calls that differ in sizes alone: what was computed for some lengths, compiled, says what others need.

A generation has a new length at every step. Its problem, whether a config fits that, and all that its launches pass
follow from sizes; so they are computed by what `following` made of the computation for another length. What that does
not cover is computed as for the first call, and followed for the next.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tuner.arch import GPU
from tuner.compiler.standalone.sizes import remembers
from tuner.dispatcher import choice
from tuner.dispatcher.arrays import Facts
from tuner.dispatcher.binding import Binding, bind
from tuner.dispatcher.choice import Choice, Sizes
from tuner.dispatcher.following import Followed, follow
from tuner.dispatcher.kernels import Kernel, PreparedCall
from tuner.dispatcher.untuned import Tally, Untuned
from tuner.spec.operator import Operator, Request
from tuner.spec.problem import extents, statics
from tuner.store.records import Snapshot

T = TypeVar("T")
Ready = tuple[PreparedCall, Tally | None]
_KINDS, _WAYS = 1024, 16  # of calls; in which one computation goes
_VAIN = 4  # attempts to follow, after which calls of a kind are computed each time
_UNFIT = "does not fit"


class Kinds:
    """Calls by what they have in common when sizes differ."""

    def __init__(self) -> None:
        # What stands for the names in a kind, arguments and axes of sizes that select code, names of extents.
        self._named: dict[object, tuple[object, tuple[tuple[str, int], ...], tuple[str, ...]]] = {}
        self._lengths: dict[object, Lengths] = {}

    def find(self, kind: object) -> "Lengths | None":
        return self._lengths.get(kind)

    def add(self, kind: object, lengths: "Lengths") -> None:
        if len(self._lengths) >= _KINDS:
            self._lengths.clear()
        self._lengths[kind] = lengths

    def kind(self, operator: Operator[Any], request: Request, facts: Mapping[str, Facts], device: str | None) -> object:
        """All facts but those of sizes that a Problem has as extents; hashable where the request's values are."""
        statics = request.statics
        named = operator.name, tuple(facts), tuple(request.axes.items()), tuple(statics)
        known = self._named.get(named)
        if known is None:
            known = object(), tuple(_fixed(operator, request, facts)), extents(operator.problem)
            known = self._named.setdefault(named, known)
        stands, axes, sizes = known
        alike = tuple(  # all but shape and strides
            [(kind, on, dtype, off, may, len(shape)) for kind, on, dtype, shape, _, off, may in facts.values()]
        )
        fixed = tuple([facts[name].shape[axis : axis + 1] for name, axis in axes])
        selecting = tuple([int if _is_told(value, name, sizes) else value for name, value in statics.items()])
        return device, stands, alike, fixed, selecting


@dataclass
class _Config:
    """A config, with what its calls need as far as that was followed."""

    chosen: Choice
    kernel: Kernel | None = None  # None until a call has run it
    ways: list[Followed[Any]] = field(default_factory=list)


class Lengths:
    """Calls of one kind. Any number of threads may ask for what is `ready`; one at a time may `learn`."""

    def __init__(
        self,
        operator: Operator[Any],
        request: Request,
        facts: Mapping[str, Facts],
        gpus: Sequence[GPU],
        snapshot: Snapshot,
        problem: Any,
    ) -> None:
        self._operator, self._request, self._facts = operator, replace(request, arrays={}), dict(facts)
        self._fixed, sizes = frozenset(_fixed(operator, request, facts)), extents(operator.problem)
        self._told = tuple(name for name, value in request.statics.items() if _is_told(value, name, sizes))
        self._gpus, self._problem = gpus, problem
        self._statics, self._extents = _values(problem)[0], extents(problem)
        self._records = choice.Records(operator, problem, gpus, snapshot)
        self._problems: list[Followed[Sizes]] = []
        self._recorded: dict[object, _Config] = {}  # by id of the record, which the snapshot keeps, and GPU
        self._typical: dict[Sizes, _Config | None] = {}  # by round sizes; None where these make no problem
        self._configs: dict[object, _Config] = {}
        self._vain = 0  # attempts to follow what cannot be followed

    def ready(self, request: Request, facts: Mapping[str, Facts], untuned: Untuned) -> Ready | None:
        """What a call with these facts runs; None where that has to be computed."""
        sizes = self._sizes(request, facts)
        own = _first(self._problems, sizes)
        if own is None:
            return None
        for config in self._candidates(own):
            found = None if config is None else _first(config.ways, sizes)
            if config is None or found is None:
                return None
            if found is not _UNFIT:
                assert config.kernel is not None, "a way that fits was learned of a call that ran it"
                return config.kernel.ready(found), self._tally(config.chosen, own, untuned)
        return None

    def learn(
        self,
        request: Request,
        facts: Mapping[str, Facts],
        problem: Any,
        chosen: Choice,
        kernel: Kernel,
        numbers: Any,
    ) -> None:
        """Follow what was computed for a call: for its problem `chosen`, whose launches pass `numbers`."""
        sizes, (fixed, own) = self._sizes(request, facts), _values(problem)
        if self._vain >= _VAIN or fixed != self._statics:
            return
        if not self._known(self._problems, self._problem_sizes, sizes, own):
            return
        for config in self._learned(own, chosen):
            fits = config.chosen.fits(problem)
            if fits and (config.chosen.instance.key, config.chosen.gpu) != (chosen.instance.key, chosen.gpu):
                return
            if fits and config.kernel is None:  # else the kernel is another config's
                config.kernel = kernel
            compute = partial(self._numbers, config.chosen, kernel)
            if not self._known(config.ways, compute, sizes, numbers if fits else _UNFIT) or fits:
                return

    def _candidates(self, own: Sizes) -> Iterator[_Config | None]:
        """The configs to be tried, in the order of `choice.choose`; None is one that is not known."""
        if found := self._records.nearest(own):
            record, gpu, foreign = found
            yield self._recorded.get((id(record), gpu.name, foreign))
            yield None  # behind the nearest record stand others
        for each in choice.round_sizes(own):
            if each not in self._typical:
                yield None
            elif (config := self._typical[each]) is not None:
                yield config

    def _learned(self, own: Sizes, chosen: Choice) -> Iterator[_Config]:
        """The same, known from now on, up to the one that a problem runs."""
        if found := self._records.nearest(own):
            record, gpu, foreign = found
            if (record, gpu, foreign) == (chosen.record, chosen.gpu, chosen.foreign):
                yield self._recorded.setdefault((id(record), gpu.name, foreign), _Config(chosen))
            return
        for each in choice.round_sizes(own):
            if each not in self._typical:
                self._typical[each] = self._config(choice.typical(self._operator, self._problem, each, self._gpus))
            if (config := self._typical[each]) is not None:
                yield config

    def _config(self, chosen: Choice | None) -> _Config | None:
        """One for equal choices."""
        if chosen is None:
            return None
        return self._configs.setdefault((chosen.instance.key, chosen.gpu.name), _Config(chosen))

    def _known(
        self, ways: list[Followed[T]], compute: Callable[[Sequence[int]], T], sizes: Sequence[int], found: T
    ) -> bool:
        """Whether one of the ways gives what was found, now if not before."""
        known = _first(ways, sizes)
        if known is None and len(ways) < _WAYS:
            way = follow(compute, sizes)
            known = way(sizes) if way else None
            if way and known == found:
                ways.append(way)
            else:
                self._vain += 1
        return known is not None and bool(known == found)

    def _named(self, own: Sizes) -> dict[str, int]:
        return dict(zip(self._extents, own, strict=True))

    def _tally(self, chosen: Choice, own: Sizes, untuned: Untuned) -> Tally | None:
        if chosen.record is not None:
            return None
        problem = self._problem
        return untuned.known(chosen, (self._statics, own), lambda: chosen.at(replace(problem, **self._named(own))))

    def _sizes(self, request: Request, facts: Mapping[str, Facts]) -> tuple[int, ...]:
        """All that calls of this kind differ in."""
        found: list[int] = []
        for each in facts.values():
            found += each.shape
            found += each.strides
        if self._told:
            found += [int(request.statics[name]) for name in self._told]
        return tuple(found)

    def _bound(self, sizes: Sequence[int]) -> Binding:
        told = dict(zip(self._told, sizes[len(sizes) - len(self._told) :], strict=True))
        request = replace(self._request, statics={**self._request.statics, **told})
        binding = bind(self._operator, request, self._with(sizes))
        if binding.hollow:
            raise ValueError("nothing to compute")
        return binding

    def _problem_sizes(self, sizes: Sequence[int]) -> Sizes:
        fixed, own = _values(self._bound(sizes).problem)
        if any(map(remembers, fixed)):
            raise TypeError("sizes select code")
        return own

    def _numbers(self, chosen: Choice, kernel: Kernel, sizes: Sequence[int]) -> Any:
        binding = self._bound(sizes)
        if not chosen.fits(binding.problem):
            return _UNFIT
        return kernel.numbers(chosen.instance.at(binding.problem), binding)

    def _with(self, sizes: Sequence[int]) -> dict[str, Facts]:
        """The facts of such sizes and strides."""
        found, rest = {}, iter(sizes)
        for name, facts in self._facts.items():
            given = tuple(next(rest) for _ in facts.shape)
            shape = (
                own if (name, axis) in self._fixed else size
                for axis, (own, size) in enumerate(zip(facts.shape, given, strict=True))
            )
            found[name] = facts._replace(shape=tuple(shape), strides=tuple(next(rest) for _ in facts.strides))
        return found


def _fixed(operator: Operator[Any], request: Request, facts: Mapping[str, Facts]) -> Iterator[tuple[str, int]]:
    """(argument, axis of the caller's array) of sizes that select code."""
    selecting = statics(operator.problem)
    for argument in operator.arguments:
        if argument.name in facts:
            axes = request.axes.get(argument.name) or range(len(argument.dims))
            yield from (
                (argument.name, axis) for axis, dim in zip(axes, argument.dims, strict=True) if dim in selecting
            )


def _is_told(value: Any, name: str, sizes: tuple[str, ...]) -> bool:
    """Whether a value beside the arrays is a size that calls of one kind may differ in: an int that 64 bits hold."""
    return type(value) is int and name in sizes and value.bit_length() < 64


def _values(problem: Any) -> tuple[tuple[Any, ...], Sizes]:
    """Of the fields that select code, and of the others."""
    fixed, sizes = statics(problem), extents(problem)
    return tuple(getattr(problem, name) for name in fixed), tuple(getattr(problem, name) for name in sizes)


def _first(ways: Sequence[Followed[T]], sizes: Sequence[int]) -> T | None:
    for each in reversed(ways):  # a generation goes on as it did last
        if (found := each(sizes)) is not None:
            return found
    return None
