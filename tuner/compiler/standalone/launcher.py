"""A config as C++ for other programs: a header, and a .cu file with kernels and a launcher, to be compiled by nvcc."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tuner.compiler.source import Source
from tuner.compiler.standalone.general import General
from tuner.compiler.standalone.sizes import Named, Operand, Size, Term, names, spell, term_of
from tuner.compiler.standalone.text import ENCODE, HELPERS, OWN_NAMES, QUIET, filled, flat, foreign
from tuner.errors import UsageError
from tuner.spec.argument import KEYWORDS, Argument, Parameter, Role
from tuner.spec.operator import Operator
from tuner.spec.parameters import parameters
from tuner.spec.plan import Launch

FLAGS = "-std=c++17 --expt-relaxed-constexpr"
_ROLES = {Role.INPUT: "", Role.OUTPUT: ", output", Role.UPDATED: ", updated in place"}
_UNGRANTED = 48 << 10  # bytes of dynamic shared memory that need no opt-in


@dataclass(frozen=True)
class Standalone:
    """The contents of the two files NAME.h and NAME.cu; NAME is also their namespace."""

    name: str
    operator: Operator[Any]
    general: General
    source: Source
    arch: str
    about: tuple[str, ...]  # comment lines: what the kernel computes, and the origin of the config

    def __post_init__(self) -> None:
        """Raise UsageError for conflicting names in C++, and for arguments that a launcher does not support."""
        for constant in self.operator.constants:
            raise UsageError(
                f"{self.operator.name}: {constant.name} is a __constant__ symbol, which a C++ launcher does not fill: "
                "pass it as an argument of the kernel, or call it through tuner.dispatcher"
            )
        sizes, strides = self._sizes, [name for tensor in self._tensors for name in _strides(tensor)]
        members = [*sizes, *strides, *(argument.name for argument in (*self._tensors, *self._given))]
        inside = [*sizes, *(space.name for space in (*self._spaces, *self._maps)), *OWN_NAMES]
        for name in members + inside:
            if name in KEYWORDS or members.count(name) > 1 or inside.count(name) > 1:
                raise UsageError(f"{self.operator.name}: {name!r} is something else in a C++ launcher: rename it")

    @property
    def command(self) -> str:
        """Return the compile command."""
        target = (
            # -arch=sm_90a would also embed PTX for sm_90.
            f"-gencode arch={self.arch.replace('sm', 'compute')},code={self.arch}"
        )
        return f"nvcc {FLAGS} {target} -c {self.name}.cu"

    def header(self) -> str:
        """Return the text of NAME.h."""
        return _joined(
            self._comment(),
            [
                "#pragma once",
                "#include <cuda_runtime_api.h>",
                "#include <cstddef>",
                "",
                f"namespace {self.name} {{",
                "",
            ],
            ["struct Parameters {", *self._fields(), "};", ""],
            self._declarations(),
            ["", f"}}  // namespace {self.name}"],
        )

    def code(self) -> str:
        """Return the text of NAME.cu."""
        return _joined(
            [f"// Compile: {self.command}{'; link with -lcuda' if self._maps else ''}"],
            [f'#include "{self.name}.h"', *(["#include <cuda.h>"] if self._maps else []), *foreign(self.source), ""],
            [f"namespace {self.name} {{", "", HELPERS, *([ENCODE] if self._maps else [])],
            ["namespace kernels {", QUIET, "", flat(self.source), "}  // namespace kernels", ""],
            self._served(),
            self._dense_strides() if self._strided else [],
            self._workspace_bytes() if self._spaces else [],
            self._launch(),
            [f"}}  // namespace {self.name}"],
        )

    def _comment(self) -> Iterator[str]:
        yield from (f"// {_line(text)}" for text in self.about)
        yield "//"
        yield "// Parameters holds what a launch takes: tensors in device memory, their strides in elements, and sizes."
        if any(tensor.strided is True for tensor in self._tensors):
            yield "// A tensor's last dim is contiguous, and rows start at multiples of 16 bytes, or of their own size."
        if any(not tensor.strided for tensor in self._tensors):
            yield "// Tensors without strides are dense, and start at multiples of 16 bytes."
        yield "// Sizes that it serves:"
        yield from (f"//   {line}" for line in _sentences(self.general))
        yield "// SPDX-License-Identifier: Apache-2.0"

    def _declarations(self) -> Iterator[str]:
        if self._strided:
            yield "// The strides of dense tensors of the sizes in `p`."
            yield "void set_dense_strides(Parameters& p);"
        if self._spaces:
            yield "// Bytes of device memory that a launch works in, aligned to 256; their contents do not matter."
            yield "size_t workspace_bytes(Parameters const& p);"
        yield "// Queues the kernels on `stream`; cudaErrorInvalidValue for sizes that it does not serve."
        yield f"cudaError_t launch(Parameters const& p, {self._takes}cudaStream_t stream);"

    def _fields(self) -> Iterator[str]:
        for tensor in self._tensors:
            dtype, const = tensor.dtype_of(self.general.problem), "" if tensor.written else " const"
            dims = ", ".join(_dim(name, size) for name, size in zip(tensor.dims, self._shape(tensor), strict=True))
            about = f"{dtype.value} [{dims}]{_ROLES[tensor.role]}"
            yield f"  void{const}* {tensor.name} = nullptr;  // {about}{f'; {_line(tensor.doc)}' if tensor.doc else ''}"
            if strides := _strides(tensor):
                yield f"  long long {', '.join(f'{name} = 0' for name in strides)};"
        for scalar in self._given:
            dtype, default = scalar.dtype_of(self.general.problem), self.general.scalars.get(scalar.name)
            comment = _line(scalar.doc) or ("to be given" if default is None else "")
            start = "0" if default is None else _number(default)
            yield f"  {dtype.cuda} {scalar.name} = {start};{f'  // {comment}' if comment else ''}"
        for name in self._sizes:
            yield f"  int {name} = {self._fixed.get(name, 0)};"

    def _served(self) -> Iterator[str]:
        yield "static bool served(Parameters const& p) {"
        yield from self._locals()
        common, ways = _common(self.general)
        conditions = [spell(condition) for condition in common]
        if all(ways):
            conditions.append(f"({' || '.join('(' + ' && '.join(map(spell, way)) + ')' for way in ways)})")
        yield from (f"  if (!({condition})) return false;" for condition in conditions)
        yield "  return true;"
        yield "}"
        yield ""

    def _dense_strides(self) -> Iterator[str]:
        yield "void set_dense_strides(Parameters& p) {"
        yield from self._locals()
        for tensor in self._tensors:
            steps = _dense(self._shape(tensor))
            for axis, name in zip(tensor.strided_axes, _strides(tensor), strict=True):
                yield f"  p.{name} = {spell(term_of(steps[axis]))};"
        yield "}"
        yield ""

    def _workspace_bytes(self) -> Iterator[str]:
        yield "size_t workspace_bytes(Parameters const& p) {"
        yield from self._locals()
        yield "  return " + " + ".join(f"aligned({size})" for size in self._space_sizes.values()) + ";"
        yield "}"
        yield ""

    def _launch(self) -> Iterator[str]:
        yield f"cudaError_t launch(Parameters const& p, {self._takes}cudaStream_t stream) {{"
        yield "  if (!served(p)) return cudaErrorInvalidValue;"
        yield from self._locals()
        if self._spaces:
            yield "  char* space = static_cast<char*>(workspace);"
        for workspace in self._spaces:
            yield f"  char* const {workspace.name} = space;"
            yield f"  space += aligned({self._space_sizes[workspace.name]});"
        yield "  cudaError_t error;"
        for launch, _ in self._launches:
            # This call also creates the thread's context, without which tensor maps cannot be encoded.
            if self._maps or isinstance(launch.smem_bytes, Size) or launch.smem_bytes > _UNGRANTED:
                granted = f"cudaFuncAttributeMaxDynamicSharedMemorySize, {spell(term_of(launch.smem_bytes))}"
                yield f"  error = cudaFuncSetAttribute(kernels::{launch.entry}, {granted});"
                yield "  if (error != cudaSuccess) return error;"
        for tensor_map in self._maps:
            yield from self._encoded(tensor_map)
        for launch, arguments in self._launches:
            grid = ", ".join(spell(term_of(size)) for size in launch.grid)
            block = ", ".join(spell(term_of(size)) for size in launch.block)
            block = f"dim3({block})" if isinstance(launch.threads, tuple) else spell(term_of(launch.threads))
            shape = f"dim3({grid}), {block}, {spell(term_of(launch.smem_bytes))}, stream"
            yield f"  kernels::{launch.entry}<<<{shape}>>>("
            yield from filled([self._passed(parameter) for parameter in arguments])
            yield "  if ((error = cudaGetLastError()) != cudaSuccess) return error;"
        yield "  return cudaSuccess;"
        yield "}"
        yield ""

    def _encoded(self, map: Any) -> Iterator[str]:
        """Yield the code that encodes a tensor map."""
        argument = self.operator.argument(map.argument)
        shape, steps = self._shape(argument), dict(enumerate(_dense(self._shape(argument))))
        named = dict(zip(argument.strided_axes, _strides(argument), strict=True))
        strides = ", ".join(f"p.{named[i]}" if i in named else spell(term_of(steps[i])) for i in range(len(shape)))
        dims, box = (", ".join(spell(term_of(size)) for size in sizes) for sizes in (shape, map.box))
        dtype = argument.dtype_of(self.general.problem)
        kind = f"CU_TENSOR_MAP_DATA_TYPE_{dtype.tensor_map}, {dtype.itemsize}"
        swizzle = f"CU_TENSOR_MAP_SWIZZLE_{f'{map.swizzle}B' if map.swizzle else 'NONE'}"
        yield f"  kernels::TensorMap {map.name};"
        yield f"  error = encode<{len(shape)}>(&{map.name}, {kind}, p.{map.argument}, {{{dims}}}, {{{strides}}},"
        yield f"                    {{{box}}}, {swizzle});"
        yield "  if (error != cudaSuccess) return error;"

    def _passed(self, parameter: Parameter) -> str:
        """Return the expression that a launch passes for a kernel parameter."""
        name = parameter.argument
        if parameter.tensor_map is not None:
            return parameter.tensor_map.name
        if name in self._space_sizes:
            return f"Pointer{{{name}}}"
        argument = self.operator.argument(name)
        if parameter.axis is not None:
            return f"p.{dict(zip(argument.strided_axes, _strides(argument), strict=True))[parameter.axis]}"
        if parameter.pointer:
            return f"Pointer{{p.{name}}}"
        return f"p.{name}" if argument in self._given else spell(term_of(self.general.scalars[name]))

    def _locals(self) -> Iterator[str]:
        sizes = ", ".join(f"{name} = p.{name}" for name in self._sizes)
        yield f"  [[maybe_unused]] long long const {sizes};"

    def _shape(self, argument: Argument) -> tuple[int, ...]:
        return argument.shape(self.general.problem)

    @property
    def _takes(self) -> str:
        return "void* workspace, " if self._spaces else ""

    @property
    def _launches(self) -> list[tuple[Launch, tuple[Parameter, ...]]]:
        plan, problem = self.general.plan, self.general.problem
        return [(launch, parameters(self.operator, problem, plan, launch)) for launch in plan.launches]

    @property
    def _taken(self) -> list[Argument]:
        names_taken = {parameter.argument for _, launch_parameters in self._launches for parameter in launch_parameters}
        return [argument for argument in self.operator.arguments if argument.name in names_taken]

    @property
    def _tensors(self) -> list[Argument]:
        return [argument for argument in self._taken if argument.role is not Role.SCALAR]

    @property
    def _strided(self) -> bool:
        return any(map(_strides, self._tensors))

    @property
    def _given(self) -> list[Argument]:
        """The scalars that a caller may set: those that do not follow from the problem."""
        scalars = [argument for argument in self._taken if argument.role is Role.SCALAR]
        return [
            argument for argument in scalars if argument.default is not None or argument.required(self.general.problem)
        ]

    @property
    def _maps(self) -> tuple[Any, ...]:
        return self.general.plan.maps

    @property
    def _spaces(self) -> tuple[Any, ...]:
        return self.general.plan.workspaces

    @property
    def _space_sizes(self) -> dict[str, str]:
        """The size in bytes of each workspace as a C++ expression."""
        return {space.name: spell(term_of(_product((space.dtype.itemsize, *space.shape)))) for space in self._spaces}

    @property
    def _fixed(self) -> dict[str, int]:
        pairs = [condition.operands for condition in _common(self.general)[0] if condition.operation == "=="]
        return {a.name: b for a, b in pairs if isinstance(a, Named) and isinstance(b, int)}

    @property
    def _sizes(self) -> list[str]:
        """All sizes that affect the code."""
        used = {name for term in _walk((self.general.facts, self.general.ways)) for name in names(term)}
        return [name for name in self.general.problem.__dataclass_fields__ if name in used]


def _joined(*parts: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for part in parts for line in part) + "\n"


def _common(general: General) -> tuple[list[Term], list[list[Term]]]:
    """Return the conditions common to all ways, and the additional ones of each."""
    common = [condition for condition in general.ways[0] if all(condition in way for way in general.ways)]
    return common, [[condition for condition in way if condition not in common] for way in general.ways]


def _sentences(general: General) -> Iterator[str]:
    common, ways = _common(general)
    yield from (spell(condition) for condition in common)
    if all(ways):
        yield "and all of one of these lines:"
        yield from ("  " + ", ".join(map(spell, way)) for way in ways)


def _walk(facts: Any) -> Iterator[Operand]:
    """Yield all terms of nested values."""
    if isinstance(facts, Term | Named):
        yield facts
    elif isinstance(facts, tuple):
        for fact in facts:
            yield from _walk(fact)


def _strides(argument: Argument) -> list[str]:
    return [f"{argument.name}_{argument.dims[axis]}_stride" for axis in argument.strided_axes]


def _dense(shape: tuple[int, ...]) -> list[int]:
    return [_product(shape[axis + 1 :]) for axis in range(len(shape))]


def _product(sizes: Iterable[int]) -> int:
    product = 1
    for size in sizes:
        product = product * size  # math.prod would return plain numbers
    return product


def _line(text: str) -> str:
    """Return text for a comment, without line ends and trailing backslashes."""
    return " ".join(text.split()).rstrip("\\")


def _dim(name: str, size: int) -> str:
    return name if isinstance(size, Size) else str(size)


def _number(value: float) -> str:
    return f"{float(value)!r}f" if isinstance(value, float) else str(int(value))
