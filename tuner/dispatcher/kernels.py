"""Compiled choices, once per process and machine code, loaded for the arrays of a call."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.backends import emulator
from tuner.base.cache import Cache, cache_dir
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.dispatcher import bundled, on_emulator, on_gpu
from tuner.dispatcher.arrays import CPU, FRAMEWORKS
from tuner.dispatcher.binding import Binding
from tuner.dispatcher.config_choice import Choice
from tuner.errors import MachineError, TemplateError
from tuner.results.attempt import Failed
from tuner.spec.command_line import minimal_fields
from tuner.spec.instance import Instance
from tuner.spec.operator import Operator
from tuner.spec.problem import canonical, statics
from tuner.store.bundle import Bundle

if TYPE_CHECKING:
    from tuner.backends import ptx

PreparedCall = Callable[[Mapping[str, Any], Mapping[str, float]], tuple[Any, ...]]
"""(arrays by argument, scalars that the caller gives) → the outputs in the operator's order."""


class Kernel(NamedTuple):
    """A config's kernel on a device for arrays of any size."""

    numbers: Callable[[Instance, Binding], Any]  # depends on sizes alone
    ready: Callable[[Any], PreparedCall]


class Kernels:
    """The kernels compiled so far. They do not depend on extents, so a new length needs no compiler. Not
    thread-safe.
    """

    def __init__(self, bundle: Bundle | None = None) -> None:
        self._bundle = bundle
        self._compiled_kernels: dict[object, tuple[Source, Cubin]] = {}
        self._emulated: dict[object, emulator.Kernel] = {}
        self._parsed: dict[object, dict[str, ptx.Entry]] = {}

    def copy(self) -> "Kernels":
        """Return the same kernels for another dispatcher."""
        copied = Kernels(self._bundle)
        copied._compiled_kernels = dict(self._compiled_kernels)
        copied._emulated, copied._parsed = dict(self._emulated), dict(self._parsed)
        return copied

    def compile(self, choice: Choice, ordinal: int) -> None:
        """Do the part of `load` that needs neither arrays nor a GPU."""
        if ordinal == CPU and choice.instance.implementation.checked_on == "ptx":
            self._entries(choice)
        elif ordinal == CPU:
            self._emulator_kernel(choice.instance)
        else:
            nvrtc.keep(*self._make(choice), Cache.of("cubin"))

    def load(self, choice: Choice, framework: str, ordinal: int) -> Kernel:
        """Return a choice's kernel for arrays of a framework on a device, of any size.

        Raises MachineError if the machine lacks a tool, and TemplateError for code that does not compile.
        """
        arrays, operator = FRAMEWORKS[framework], choice.instance.operator
        if ordinal == CPU and choice.instance.implementation.checked_on == "ptx":
            from tuner.dispatcher import on_ptx  # imported here because few programs need it

            entries = self._entries(choice)
            return Kernel(lambda *of: of, lambda of: on_ptx.PtxKernel(of[0], of[1], entries, arrays))
        if ordinal == CPU:
            kernel = self._emulator_kernel(choice.instance)
            return Kernel(
                lambda instance, binding: (binding, instance.plan()),
                lambda of: on_emulator.EmulatedKernel(operator, of[0], of[1], kernel, arrays, choice.gpu.arch.name),
            )
        functions = on_gpu.Functions(self._make(choice)[1], ordinal)
        return Kernel(
            lambda instance, binding: on_gpu.Numbers.of(operator, binding, instance.plan()),
            lambda numbers: on_gpu.GpuKernel(numbers, functions, arrays),
        )

    def compiler(self, choice: Choice, ordinal: int) -> str:
        """Return the compiler that made, or would make, the machine code of a call on a GPU."""
        if ordinal == CPU:
            return ""
        compiled = self._compiled_kernels.get((_key(choice.instance), choice.gpu.arch.name))
        if self._bundle and (
            packed := bundled.cubin(self._bundle, render(choice.instance), Options(choice.gpu.arch.name))
        ):
            return f"{packed.toolkit}, in {self._bundle.path}"
        try:
            return str(compiled[1].toolkit if compiled else nvrtc.toolkit())
        except MachineError as error:
            cubin = nvrtc.kept(render(choice.instance), Options(choice.gpu.arch.name), Cache.of("cubin"))
            return f"{cubin.toolkit}, by a warm-up elsewhere" if cubin else f"none: {error}"

    def _make(self, choice: Choice) -> tuple[Source, Cubin]:
        key = _key(choice.instance), choice.gpu.arch.name
        if key not in self._compiled_kernels:
            source = render(choice.instance)
            outcome = _packed(self._bundle, choice, source) or _compiled(choice, source)
            if isinstance(outcome, Failed):
                raise _refused(choice, outcome)
            self._compiled_kernels[key] = source, outcome
        return self._compiled_kernels[key]

    def _entries(self, choice: Choice) -> "dict[str, ptx.Entry]":
        from tuner.backends import ptx

        key = _key(choice.instance), choice.gpu.arch.name
        if key not in self._parsed:
            text = nvrtc.ptx(render(choice.instance), Options(choice.gpu.arch.name), Cache.of("ptx"))
            if isinstance(text, Failed):
                raise _refused(choice, text)
            self._parsed[key] = ptx.parse(text)
        return self._parsed[key]

    def _emulator_kernel(self, instance: Instance) -> emulator.Kernel:
        key = _key(instance)
        if key not in self._emulated:
            self._emulated[key] = emulator.build(render(instance, "host"), checked=False)
        return self._emulated[key]


def idle(operator: Operator[Any], binding: Binding, framework: str, ordinal: int) -> PreparedCall:
    """Return a call that has nothing to compute: no kernel runs, and arrays updated in place stay unchanged."""
    arrays = FRAMEWORKS[framework]

    def run(inputs: Mapping[str, Any], _: Mapping[str, float]) -> tuple[Any, ...]:
        results = []
        for output in operator.outputs:
            shape, dtype = binding.tensors[output.name].caller_shape, output.dtype_of(binding.problem)
            results.append(arrays.empty(shape, dtype, ordinal))
            if output.name in binding.fill:
                value = binding.fill[output.name]
                arrays.put(results[-1], inputs.get(value, 0.0) if isinstance(value, str) else value)
        return tuple(results)

    return run


def _refused(choice: Choice, failed: Failed) -> TemplateError:
    what = f"{choice.instance.name} for {choice.gpu.arch.name}"
    return TemplateError(f"{what} does not compile: {failed.reason}\n{failed.log}")


def _packed(bundle: Bundle | None, choice: Choice, source: Source) -> Cubin | None:
    return bundled.cubin(bundle, source, Options(choice.gpu.arch.name)) if bundle else None


def _compiled(choice: Choice, source: Source) -> Cubin | Failed:
    """Compile with this machine's NVRTC, or, without a usable one, return what a warm-up elsewhere left in the
    cache.
    """
    options, cache = Options(choice.gpu.arch.name), Cache.of("cubin")
    try:
        outcome = nvrtc.compile(source, options, cache)
    except MachineError as error:
        if cubin := nvrtc.kept(source, options, cache):
            return cubin
        name, problem = choice.instance.operator.name, choice.instance.problem
        warmup = f"dispatcher.warmup({name!r}, {minimal_fields(problem)}, gpu={choice.gpu.name!r})"
        raise MachineError(f"{error}; or fill the cache at {cache_dir()} where NVRTC is, by {warmup}") from error
    if isinstance(outcome, Failed) and source.foreign:  # its headers may exist only on the machine of the warm-up
        return nvrtc.kept(source, options, cache) or outcome
    return outcome


def _key(instance: Instance) -> object:
    selected = tuple(getattr(instance.problem, name) for name in statics(instance.problem))
    return instance.name, selected, canonical(instance.config)
