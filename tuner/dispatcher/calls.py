"""The path of a call from its arrays to a prepared kernel, executed in an application's thread."""

import os
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from tuner import arch, operators
from tuner.arch import GPU
from tuner.backends import gpu
from tuner.base.fork import ForkGuard, renew_in_child
from tuner.dispatcher import arrays, bundled, config_choice, miss_log, on_gpu, record_watcher
from tuner.dispatcher.arrays import CPU, FRAMEWORKS, Facts, framework_of
from tuner.dispatcher.binding import Binding, bind
from tuner.dispatcher.config_choice import Choice, Explanation
from tuner.dispatcher.kernels import Kernels, idle
from tuner.dispatcher.lengths import Kinds, Lengths, Ready
from tuner.dispatcher.miss_log import MissLog
from tuner.dispatcher.untuned_warnings import Miss, Untuned
from tuner.errors import InputError, StoreError, TemplateError, TunerError, UsageError
from tuner.spec.operator import Operator, Request
from tuner.spec.problem import from_fields
from tuner.store.bundle import Bundle
from tuner.store.records import Snapshot

DEVICES = ("emulator", "cuda")
_REMEMBERED = 16384  # maximum number of cached keys with prepared kernels
_RENEWED = 1024  # number of recent calls that are prepared for new records
_Call = tuple[str, str | None, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
"""Operator, device, names and facts of the arrays, statics, axes."""


class Dispatcher:
    """Kernels for calls, over one immutable snapshot of records; safe for concurrent calls.

    `assumed` are the GPUs whose records and defaults the emulator may use, by default one of every arch. `strict` makes
    a miss a UsageError, and `log` records misses. A `renewable` dispatcher remembers its calls.
    Machine code in `bundle` is not compiled.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        assumed: tuple[GPU, ...] = (),
        *,
        strict: bool = False,
        log: MissLog | None = None,
        renewable: bool = False,
        bundle: Bundle | None = None,
    ) -> None:
        self._snapshot, self._assumed = snapshot, assumed or config_choice.any_gpu()
        self._untuned, self._kernels = Untuned(strict=strict, log=log), Kernels(bundle)
        self._prepared: dict[object, Ready] = {}
        self._requests: dict[_Call, Request] | None = {} if renewable else None  # without their arrays
        self._kinds = Kinds()
        self._preparing = ForkGuard("compiled a kernel")
        _dispatchers.add(self)

    @classmethod
    def from_environment(cls) -> "Dispatcher":
        """Create a dispatcher over all stored records, configured by TUNER_GPU, TUNER_STRICT and TUNER_MISSES. Raises
        UsageError.
        """
        log, renewable, bundle = miss_log.of_environment(), record_watcher.watched(), bundled.of_environment()
        records = Snapshot.load(strict=_strict())
        return cls(records, _assumed(), strict=_strict(), log=log, renewable=renewable, bundle=bundle)

    def renewed(self) -> "Dispatcher":
        """Return a dispatcher over the current records, with the kernels of this one's calls compiled and loaded.

        Calls may continue on this one meanwhile. Requires `renewable`. A call whose new kernel cannot be compiled or
        loaded keeps its old one, with a warning. Raises StoreError if a source can no longer be read.
        """
        assert self._requests is not None, "made with renewable=True"
        snapshot = Snapshot.load()
        if lost := set(snapshot.refused) - set(self._snapshot.refused):
            raise StoreError(min(lost))
        snapshot.complain(_strict())
        renewed = Dispatcher(snapshot, self._assumed, renewable=True)
        renewed._untuned, renewed._kernels = self._untuned, self._kernels.copy()
        seen: set[_Call] = set()
        while new := [call for call in list(self._requests) if call not in seen]:
            seen.update(new)
            for call in new[-_RENEWED:]:
                renewed._adopt(call, self)
        return renewed

    def _adopt(self, call: "_Call", before: "Dispatcher") -> None:
        """Prepare a call of another dispatcher."""
        assert before._requests is not None
        if (request := before._requests.get(call)) is None:
            return  # evicted meanwhile
        operator, device, called, *_ = call
        facts = dict(zip(called[: len(called) // 2], called[len(called) // 2 :], strict=True))
        try:
            self._prepare(call, operators.load(operator), request, facts, device)
        except TunerError as error:
            text = f"the new records are not taken up for a call of {operator}, which keeps its kernel: {error}"
            warnings.warn(text, record_watcher.RenewalWarning, stacklevel=2)
            if ready := before._prepared.get(call):
                self._prepared[call] = ready

    def call(self, operator: str, *args: Any, device: str | None = None, **kwargs: Any) -> Any:
        """Return the outputs of an operator: one array, or a tuple of several. Raises InputError."""
        loaded = operators.load(operator)
        return self.run(loaded, request_of(loaded, args, kwargs), device)

    def run(self, operator: Operator[Any], request: Request, device: str | None = None) -> Any:
        """Run a prepared request. A repeated kind of call costs one look-up and the launch."""
        adopted, facts = _facts(request.arrays)
        key = operator.name, device, (*adopted, *facts), tuple(request.statics.items()), tuple(request.axes.items())
        try:
            ready = self._prepared.get(key)
        except TypeError as error:
            raise InputError(f"{operator.name}: {error}: pass plain values beside the arrays") from error
        run, tally = ready or self._prepare(key, operator, request, dict(zip(adopted, facts, strict=True)), device)
        if tally is not None:
            tally.add()
        outputs = run(adopted, request.scalars)
        if adopted is not request.arrays:
            outputs = arrays.handed_back(outputs, request.arrays)
        return outputs if len(outputs) > 1 else outputs[0]

    def explain(self, operator: str, *args: Any, device: str | None = None, **kwargs: Any) -> Explanation:
        """Return what `call` would run, and why."""
        loaded = operators.load(operator)
        request = request_of(loaded, args, kwargs)
        adopted, facts = _facts(request.arrays)
        named = dict(zip(adopted, facts, strict=True))
        ordinal = _ordinal(named, device)
        binding = bind(loaded, request, named)
        if binding.empty_dims:
            return config_choice.nothing(loaded, binding.problem, binding.empty_dims)
        chosen = self._choose(loaded, binding.problem, ordinal)
        with self._preparing:
            compiler = self._kernels.compiler(chosen, ordinal)
        return config_choice.explain(chosen, self._gpus(ordinal), self._snapshot, compiler)

    def close(self) -> None:
        """Log the remaining misses before another dispatcher takes over."""
        self._untuned.flush()

    def misses(self) -> tuple[Miss, ...]:
        """Return the problems that ran with a default config, the most frequent first."""
        return self._untuned.misses()

    def warmup(self, operator: str, *problems: Any, device: str | None = None, target: GPU | None = None) -> None:
        """Compile the kernels for calls on `problems`, for `target` or for the device where they would run."""
        loaded = operators.load(operator)
        if device not in (None, *DEVICES):
            raise UsageError(f"device {device!r}: give {' or '.join(map(repr, DEVICES))}")
        if target and device == "emulator":
            raise UsageError(f"device 'emulator' and gpu {target.name!r}: leave one out")
        ordinal = 0 if target or device == "cuda" or (device is None and gpu.available()) else CPU
        gpus = (target,) if target else self._gpus(ordinal)
        for problem in problems:
            if isinstance(problem, Mapping):
                problem = _problem(loaded, problem)
            chosen = config_choice.choose(loaded, problem, gpus, self._snapshot)
            with self._preparing:
                self._kernels.compile(chosen, ordinal)

    def _prepare(
        self, key: "_Call", operator: Operator[Any], request: Request, facts: Mapping[str, Facts], device: str | None
    ) -> Ready:
        if self._requests is not None:
            self._requests[key] = replace(request, arrays={})
        kind = self._kinds.kind(operator, request, facts, device)
        lengths = self._kinds.find(kind)
        if lengths and (ready := lengths.ready(request, facts, self._untuned)):
            return self._remembered(key, ready)
        ordinal, binding = _ordinal(facts, device), bind(operator, request, facts)
        with self._preparing:
            if ready := self._prepared.get(key):
                return ready
            return self._remembered(key, self._loaded(operator, request, facts, binding, ordinal, kind))

    def _remembered(self, key: object, ready: Ready) -> Ready:
        if len(self._prepared) >= _REMEMBERED:
            self._prepared.clear()
            if self._requests is not None:
                self._requests.clear()
        return self._prepared.setdefault(key, ready)

    def _loaded(
        self,
        operator: Operator[Any],
        request: Request,
        facts: Mapping[str, Facts],
        binding: Binding,
        ordinal: int,
        kind: object,
    ) -> Ready:
        framework, problem = next(iter(facts.values())).framework, binding.problem
        if binding.empty_dims:
            return idle(operator, binding, framework, ordinal), None
        chosen = self._choose(operator, problem, ordinal)
        tally = self._untuned.tally(chosen) if self._untuned.counted(chosen) else None
        kernel = self._kernels.load(chosen, framework, ordinal)
        numbers = kernel.numbers(chosen.instance, binding)
        if lengths := self._kinds.find(kind):  # from the second call on, because many programs use only one length
            lengths.learn(request, facts, problem, chosen, kernel, numbers)
        else:
            self._kinds.add(kind, Lengths(operator, request, facts, self._gpus(ordinal), self._snapshot, problem))
        return kernel.ready(numbers), tally

    def _choose(self, operator: Operator[Any], problem: Any, ordinal: int) -> Choice:
        return config_choice.choose(operator, problem, self._gpus(ordinal), self._snapshot)

    def _gpus(self, ordinal: int) -> tuple[GPU, ...]:
        return self._assumed if ordinal == CPU else (gpu.current_gpu(ordinal),)


_dispatchers: "weakref.WeakSet[Dispatcher]" = weakref.WeakSet()


def _forget_prepared() -> None:
    """In a forked child, query the parent's GPU again, which is refused."""
    for dispatcher in list(_dispatchers):
        dispatcher._prepared.clear()
        dispatcher._kinds = Kinds()
        if dispatcher._requests is not None:
            dispatcher._requests.clear()


renew_in_child(_forget_prepared)


def request_of(operator: Operator[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Request:
    try:
        request = operator.call(*args, **kwargs)
    except InputError:
        raise
    except UsageError as error:
        raise InputError(str(error)) from error
    if not isinstance(request, Request):
        raise TemplateError(f"{operator.name}: call() returned a {type(request).__name__}: return a Request")
    return request


def _problem(operator: Operator[Any], data: Mapping[str, Any]) -> Any:
    names = [field.name for field in fields(operator.problem)]
    if unknown := [name for name in data if name not in names]:
        raise InputError(f"{operator.name} has no field {unknown[0]!r} (known: {', '.join(names)})")
    try:
        return from_fields(operator.problem, data)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{operator.name}: no problem has the fields {dict(data)}: {error}") from error


def _facts(arrays_by_name: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[Facts, ...]]:
    """Return the arrays, with foreign ones adopted by NumPy or CuPy, and the facts of each."""
    facts = []
    for name, array in arrays_by_name.items():
        framework = framework_of(array)
        if framework is None:
            return _facts({**arrays_by_name, name: _adopted(name, array)})
        facts.append(framework.facts(name, array))
    return arrays_by_name, tuple(facts)


def _adopted(name: str, array: Any) -> Any:
    return arrays.adopt(name, array) if arrays.foreign_ordinal(name, array) == CPU else gpu.adopt(name, array)


def _ordinal(facts: Mapping[str, Facts], device: str | None) -> int:
    """Return the device of a call: CPU, or a CUDA ordinal. Raises InputError for several devices, and if it is not
    `device`.
    """
    first, *others = ((name, of.framework, _ordinal_of(name, of)) for name, of in facts.items())
    for name, framework, ordinal in others:
        if (framework, ordinal) != first[1:]:
            raise InputError(f"{_where(name, framework, ordinal)}, but {_where(*first)}: pass arrays of one kind")
    _check_device(device, first[2], _where(*first))
    if first[2] != CPU:
        on_gpu.refuse_after_fork()
    return first[2]


def _ordinal_of(name: str, facts: Facts) -> int:
    ordinal = FRAMEWORKS[facts.framework].ordinal(facts)
    if ordinal is None:
        raise InputError(f"{name} is on {facts.device}: pass arrays in CPU memory or on a CUDA device")
    return ordinal


def _where(name: str, framework: str, ordinal: int) -> str:
    return f"{name} is a {framework} array {'in CPU memory' if ordinal == CPU else f'on cuda:{ordinal}'}"


def _check_device(device: str | None, ordinal: int, where: str) -> None:
    if device not in (None, *DEVICES):
        raise InputError(f"device {device!r}: give {' or '.join(map(repr, DEVICES))}, or None for where the arrays are")
    if device == "cuda" and ordinal == CPU:
        gpu.current_gpu()  # raises an error if there is no GPU, which is then the cause
        raise InputError(f"{where}, and device='cuda' takes arrays on a GPU: copy with cupy.asarray(…) or .cuda()")
    if device == "emulator" and ordinal != CPU:
        raise InputError(f"{where}, and device='emulator' takes arrays in CPU memory: copy with .get() or .cpu()")


def _assumed() -> tuple[GPU, ...]:
    name = os.environ.get("TUNER_GPU")
    try:
        return (arch.gpu(name),) if name else ()
    except UsageError as error:
        raise UsageError(f"TUNER_GPU: {error}") from error


def _strict() -> bool:
    value = os.environ.get("TUNER_STRICT") or "0"
    if value not in ("0", "1"):
        raise UsageError(f"TUNER_STRICT={value!r}: give 1 (a problem that no record serves is an error) or 0")
    return value == "1"
