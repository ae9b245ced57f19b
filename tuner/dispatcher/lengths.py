"""Calls that differ only in sizes: a computation traced for one length gives the launch for another.

A generation has a new length at every step. The problem, whether a config fits it, and the arguments of its launches
depend on sizes alone, so the functions that `following` compiled for other lengths compute them. If their guards fail,
a call is computed from scratch, and traced for later ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tuner.arch import GPU
from tuner.compiler.standalone.sizes import remembers
from tuner.dispatcher import config_choice
from tuner.dispatcher.arrays import Facts
from tuner.dispatcher.binding import Binding, bind
from tuner.dispatcher.config_choice import Choice
from tuner.dispatcher.kernels import Kernel, PreparedCall
from tuner.dispatcher.size_tracing import Followed, follow
from tuner.dispatcher.untuned_warnings import Tally, Untuned
from tuner.spec.default_sizes import Sizes, round_sizes
from tuner.spec.operator import Operator, Request
from tuner.spec.problem import extents, statics
from tuner.store.records import Snapshot

T = TypeVar("T")
Ready = tuple[PreparedCall, Tally | None]
_KINDS = 1024  # number of kinds of calls
_TRACES = 16  # traces per computation
_FAILURES = 4  # failed traces after which calls of a kind are always computed from scratch
_UNFIT = "does not fit"


class Kinds:
    """The `Lengths` of every kind of call; calls of one kind differ only in sizes."""

    def __init__(self) -> None:
        # By names: a token for them, (argument, axis) of the sizes that select code, the names of the extents.
        self._named: dict[object, tuple[object, tuple[tuple[str, int], ...], tuple[str, ...]]] = {}
        self._lengths: dict[object, Lengths] = {}

    def find(self, kind: object) -> "Lengths | None":
        return self._lengths.get(kind)

    def add(self, kind: object, lengths: "Lengths") -> None:
        if len(self._lengths) >= _KINDS:
            self._lengths.clear()
        self._lengths[kind] = lengths

    def kind(self, operator: Operator[Any], request: Request, facts: Mapping[str, Facts], device: str | None) -> object:
        """Return all facts except extents of the Problem; hashable if the request's values are."""
        statics = request.statics
        named = operator.name, tuple(facts), tuple(request.axes.items()), tuple(statics)
        entry = self._named.get(named)
        if entry is None:
            entry = object(), tuple(_fixed(operator, request, facts)), extents(operator.problem)
            entry = self._named.setdefault(named, entry)
        token, axes, sizes = entry
        common = tuple(  # without shape and strides
            [(kind, on, dtype, off, may, len(shape)) for kind, on, dtype, shape, _, off, may in facts.values()]
        )
        fixed = tuple([facts[name].shape[axis : axis + 1] for name, axis in axes])
        selecting = tuple([int if _is_size_argument(value, name, sizes) else value for name, value in statics.items()])
        return device, token, common, fixed, selecting


@dataclass
class _Config:
    """A config with the traced functions for its launches."""

    chosen: Choice
    kernel: Kernel | None = None  # None before its first call
    traces: list[Followed[Any]] = field(default_factory=list)


class Lengths:
    """Calls of one kind. `ready` is thread-safe; `learn` must be called by one thread at a time."""

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
        self._size_arguments = tuple(
            name for name, value in request.statics.items() if _is_size_argument(value, name, sizes)
        )
        self._gpus, self._problem, self._snapshot = gpus, problem, snapshot
        self._statics, self._extents = _values(problem)[0], extents(problem)
        self._records = config_choice.Records(operator, problem, gpus, snapshot)
        self._problems: list[Followed[Sizes]] = []
        self._recorded: dict[object, _Config] = {}  # by id of the record, which the snapshot keeps alive, and GPU
        self._typical: dict[Sizes, _Config | None] = {}  # by round sizes; None if no problem has them
        self._configs: dict[object, _Config] = {}
        self._failures = 0  # computations that could not be traced

    def ready(self, request: Request, facts: Mapping[str, Facts], untuned: Untuned) -> Ready | None:
        """Return the kernel for a call with these facts; None if it must be computed."""
        sizes = self._sizes(request, facts)
        problem_sizes = _first(self._problems, sizes)
        if problem_sizes is None:
            return None
        for config in self._candidates(problem_sizes):
            numbers = None if config is None else _first(config.traces, sizes)
            if config is None or numbers is None:
                return None
            if numbers is not _UNFIT:
                assert config.kernel is not None, "a config that fits was traced in a call that ran it"
                return config.kernel.ready(numbers), self._tally(config.chosen, problem_sizes, untuned)
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
        """Trace the computation of a call: the choice for its problem, and the launch arguments `numbers`."""
        sizes, (fixed, problem_sizes) = self._sizes(request, facts), _values(problem)
        if self._failures >= _FAILURES or fixed != self._statics:
            return
        if not self._traced(self._problems, self._problem_sizes, sizes, problem_sizes):
            return
        for config in self._learned(problem_sizes, chosen):
            fits = config.chosen.fits(problem)
            if fits and (config.chosen.instance.key, config.chosen.gpu) != (chosen.instance.key, chosen.gpu):
                return
            if fits and config.kernel is None:  # otherwise the kernel belongs to another config
                config.kernel = kernel
            compute = partial(self._numbers, config.chosen, kernel)
            if not self._traced(config.traces, compute, sizes, numbers if fits else _UNFIT) or fits:
                return

    def _candidates(self, problem_sizes: Sizes) -> Iterator[_Config | None]:
        """Yield the configs in the order of `choice.choose`; None stands for one that no call has traced."""
        if nearest := self._records.nearest(problem_sizes):
            record, gpu, foreign = nearest
            yield self._recorded.get((id(record), gpu.name, foreign))
            yield None  # the second nearest record is not traced
        for sizes in round_sizes(problem_sizes):
            if sizes not in self._typical:
                yield None
            elif (config := self._typical[sizes]) is not None:
                yield config

    def _learned(self, problem_sizes: Sizes, chosen: Choice) -> Iterator[_Config]:
        """Yield the same configs, created if missing, up to the one that the problem runs."""
        if nearest := self._records.nearest(problem_sizes):
            record, gpu, foreign = nearest
            if (record, gpu, foreign) == (chosen.record, chosen.gpu, chosen.foreign):
                yield self._recorded.setdefault((id(record), gpu.name, foreign), _Config(chosen))
            return
        for sizes in round_sizes(problem_sizes):
            if sizes not in self._typical:
                self._typical[sizes] = self._config(
                    config_choice.typical(self._operator, self._problem, sizes, self._gpus, self._snapshot)
                )
            if (config := self._typical[sizes]) is not None:
                yield config

    def _config(self, chosen: Choice | None) -> _Config | None:
        """Return the same object for equal choices."""
        if chosen is None:
            return None
        return self._configs.setdefault((chosen.instance.key, chosen.gpu.name), _Config(chosen))

    def _traced(
        self, traces: list[Followed[T]], compute: Callable[[Sequence[int]], T], sizes: Sequence[int], result: T
    ) -> bool:
        """Return whether a trace gives this result, after adding one if none does."""
        traced = _first(traces, sizes)
        if traced is None and len(traces) < _TRACES:
            trace = follow(compute, sizes)
            traced = trace(sizes) if trace else None
            if trace and traced == result:
                traces.append(trace)
            else:
                self._failures += 1
        return traced is not None and bool(traced == result)

    def _named(self, problem_sizes: Sizes) -> dict[str, int]:
        return dict(zip(self._extents, problem_sizes, strict=True))

    def _tally(self, chosen: Choice, problem_sizes: Sizes, untuned: Untuned) -> Tally | None:
        if not untuned.counted(chosen):
            return None
        problem = self._problem
        key = self._statics, problem_sizes
        return untuned.warned(chosen, key, lambda: chosen.at(replace(problem, **self._named(problem_sizes))))

    def _sizes(self, request: Request, facts: Mapping[str, Facts]) -> tuple[int, ...]:
        """Return shapes, strides and size arguments, in which calls of this kind differ."""
        sizes: list[int] = []
        for array in facts.values():
            sizes += array.shape
            sizes += array.strides
        if self._size_arguments:
            sizes += [int(request.statics[name]) for name in self._size_arguments]
        return tuple(sizes)

    def _bound(self, sizes: Sequence[int]) -> Binding:
        arguments = dict(zip(self._size_arguments, sizes[len(sizes) - len(self._size_arguments) :], strict=True))
        request = replace(self._request, statics={**self._request.statics, **arguments})
        binding = bind(self._operator, request, self._with(sizes))
        if binding.empty_dims:
            raise ValueError("nothing to compute")
        return binding

    def _problem_sizes(self, sizes: Sequence[int]) -> Sizes:
        fixed, problem_sizes = _values(self._bound(sizes).problem)
        if any(map(remembers, fixed)):
            raise TypeError("sizes select code")
        return problem_sizes

    def _numbers(self, chosen: Choice, kernel: Kernel, sizes: Sequence[int]) -> Any:
        binding = self._bound(sizes)
        if not chosen.fits(binding.problem):
            return _UNFIT
        return kernel.numbers(chosen.instance.at(binding.problem), binding)

    def _with(self, sizes: Sequence[int]) -> dict[str, Facts]:
        """Return the facts for these sizes and strides."""
        replaced, rest = {}, iter(sizes)
        for name, facts in self._facts.items():
            called = tuple(next(rest) for _ in facts.shape)
            shape = (
                static_size if (name, axis) in self._fixed else size
                for axis, (static_size, size) in enumerate(zip(facts.shape, called, strict=True))
            )
            replaced[name] = facts._replace(shape=tuple(shape), strides=tuple(next(rest) for _ in facts.strides))
        return replaced


def _fixed(operator: Operator[Any], request: Request, facts: Mapping[str, Facts]) -> Iterator[tuple[str, int]]:
    """Yield (argument, axis of the caller's array) of sizes that select code."""
    selecting = statics(operator.problem)
    for argument in operator.arguments:
        if argument.name in facts:
            axes = request.axes.get(argument.name) or range(len(argument.dims))
            yield from (
                (argument.name, axis) for axis, dim in zip(axes, argument.dims, strict=True) if dim in selecting
            )


def _is_size_argument(value: Any, name: str, sizes: tuple[str, ...]) -> bool:
    """Return whether a non-array value is a size in which calls of one kind may differ: an int of at most 64 bits."""
    return type(value) is int and name in sizes and value.bit_length() < 64


def _values(problem: Any) -> tuple[tuple[Any, ...], Sizes]:
    """Return the values of the fields that select code, and of the extents."""
    fixed, sizes = statics(problem), extents(problem)
    return tuple(getattr(problem, name) for name in fixed), tuple(getattr(problem, name) for name in sizes)


def _first(traces: Sequence[Followed[T]], sizes: Sequence[int]) -> T | None:
    for trace in reversed(traces):  # in a generation, the last one usually serves the next step
        if (result := trace(sizes)) is not None:
            return result
    return None
