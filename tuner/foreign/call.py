"""A call of Kernel Tuner's `tune_kernel` as a value: the options that describe a kernel; unsupported ones raise an
error.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tuner.compiler.source import COMMENT, TEXTURE
from tuner.errors import UsageError
from tuner.spec.argument import KEYWORDS
from tuner.spec.dtype import DType
from tuner.spec.problem import Array
from tuner.spec.space import Value

Size = int | str  # a number, or an arithmetic expression of parameters
BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
_PARAMETERS = """
kernel_name kernel_source problem_size arguments tune_params grid_div_x grid_div_y grid_div_z restrictions answer atol
verify verbose lang device platform smem_args cmem_args texmem_args compiler compiler_options defines log iterations
block_size_names quiet strategy strategy_options cache metrics simulation_mode parallel observers objective
objective_higher_is_better objectives seed
"""
PARAMETERS = tuple(_PARAMETERS.split())  # parameters of tune_kernel, in order
_MOST_ASKED = 1 << 18  # limit of combinations for which a function is evaluated
_LANGUAGES = ("CUDA", "CUPY", "NVCUDA")
# Options for the search and its output, which do not affect the folder.
_SEARCHING = """
verbose device platform log iterations quiet strategy strategy_options cache metrics simulation_mode parallel observers
objective objective_higher_is_better objectives seed compiler
"""
SEARCHING = frozenset(_SEARCHING.split())
_REFUSED = {
    "texmem_args": "textures are not supported: read the array itself, through __ldg or const __restrict__",
    "verify": "outputs are compared by their RMSE ratio: pass answer, with atol for an absolute tolerance",
}
_HARMLESS = re.compile(r"-{1,2}(?:std=.*|arch=.*|gpu-architecture=.*|O\d|lineinfo|w|gencode.*)")


@dataclass(frozen=True)
class Argument:
    """A kernel argument: a one-dimensional array, or a scalar."""

    name: str
    value: Array
    constant: bool = False  # a `__constant__` symbol

    @property
    def scalar(self) -> bool:
        return self.value.ndim == 0

    @property
    def dtype(self) -> DType:
        dtype = DType.of(self.value.dtype)
        assert dtype is not None, "it was validated when the call was parsed"
        return dtype


@dataclass(frozen=True)
class Call:
    """A kernel, its arguments and its tunable parameters.

    `divisors` has the factors that divide the problem size along each axis, as arithmetic expressions of the
    parameters.
    """

    kernel: str
    source: str
    size: tuple[Size, Size, Size]
    arguments: tuple[Argument, ...]
    choices: Mapping[str, tuple[Value, ...]]
    divisors: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    block: tuple[str, str, str] = BLOCK_NAMES  # parameters for the block size; others are 1
    restrictions: tuple[str, ...] = ()
    allowed: Array | None = None  # results of function restrictions, indexed by the position of each parameter's value
    answers: Mapping[str, Array] = field(default_factory=dict)  # by argument
    atol: float = 1e-6
    smem: Size = 0  # bytes of dynamic shared memory
    defines: Mapping[str, Value] = field(default_factory=dict)  # macros in addition to the parameters
    macros: bool = True  # whether parameters are macros
    usual: Mapping[str, Value] = field(default_factory=dict)  # default values without tuning, as far as known
    include: tuple[Path, ...] = ()  # folders of local headers
    origin: str = ""

    @property
    def base(self) -> str:
        """The kernel's name without namespace and template arguments."""
        return self.kernel.partition("<")[0].rpartition("::")[2].strip()


def of_keywords(options: Mapping[str, Any], folder: Path, origin: str) -> Call:
    """Parse the arguments of tune_kernel; files are searched in `folder`. Raises UsageError."""
    _refuse(options)
    texts, source_folder = _source(options["kernel_source"], folder)
    if texture := TEXTURE.search(texts):
        raise UsageError(f"the kernel reads a texture ({texture[0]}): {_REFUSED['texmem_args']}")
    kernel = str(options["kernel_name"])
    choices = {str(name): _values(str(name), values) for name, values in options["tune_params"].items()}
    block_names = tuple(options.get("block_size_names") or ())
    block = (*block_names, *BLOCK_NAMES[len(block_names) :])[:3]
    flags, restrictions = _flags(options.get("compiler_options"), folder), _restrictions(options.get("restrictions"))
    symbols = options.get("cmem_args") or {}
    names = [_other(parameter, symbols) for parameter in _parameter_names(texts, kernel, len(options["arguments"]))]
    arguments = [_argument(name, value) for name, value in zip(names, options["arguments"], strict=True)]
    constants = [_constant(str(name), value) for name, value in symbols.items()]
    size = _size(options["problem_size"])
    return Call(
        kernel=kernel,
        source=texts,
        size=size,
        arguments=(*arguments, *constants),
        choices=choices,
        divisors=tuple(  # type: ignore[arg-type]  # three divisors
            _divisors(options.get(f"grid_div_{axis}"), name, axis, choices)
            for axis, name in zip("xyz", block, strict=False)
        ),
        block=block,
        restrictions=tuple(restriction for restriction in restrictions if isinstance(restriction, str)),
        allowed=_allowed([restriction for restriction in restrictions if not isinstance(restriction, str)], choices),
        answers=_answers(options.get("answer"), arguments),
        atol=float(options.get("atol", 1e-6) or 1e-6),
        smem=_smem(options.get("smem_args")),
        defines=flags.defines | _defines(options.get("defines")),
        macros=options.get("defines") is None,
        usual=_usual(texts, choices),
        include=tuple(dict.fromkeys((source_folder, *flags.include, folder))),
        origin=origin,
    )


def _refuse(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in PARAMETERS:
            raise UsageError(f"tune_kernel has no option {name!r} here (known: {', '.join(PARAMETERS)})")
    for name, why in _REFUSED.items():
        if options.get(name):
            raise UsageError(f"{name}: {why}")
    language = options.get("lang")
    if language is not None and str(language).upper() not in _LANGUAGES:
        raise UsageError(
            f"lang={language!r}: only CUDA kernels are supported. For host code, name the kernel, its "
            "arguments and its __constant__ symbols (--kernel, --source, --arguments, --constant)"
        )


def _source(source: Any, folder: Path) -> tuple[str, Path]:
    if callable(source):
        raise UsageError("kernel_source is a function: write the text that it returns to a file, with #if for choices")
    if isinstance(source, list | tuple):
        if len(source) > 1:
            raise UsageError(
                "kernel_source is a list of files: name the one with the kernel, which includes the others"
            )
        source = source[0]
    text = str(source)
    if "\n" in text or "{" in text:
        return text, folder
    path = folder / text
    if not path.is_file():
        raise UsageError(f"kernel_source {text!r}: no such file in {folder}")
    return path.read_text(encoding="utf-8", errors="replace"), path.parent


def _values(name: str, values: Iterable[Any]) -> tuple[Value, ...]:
    if not name.isidentifier():
        raise UsageError(f"tune_params has {name!r}, which cannot be a macro: give a name of letters, digits and _")
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not plain or not all(isinstance(value, bool | int | float | str) for value in plain):
        raise UsageError(f"tune_params[{name!r}]: give at least one number or text")
    if len({type(value) for value in plain}) > 1:  # such as 1 and 0.5
        plain = [float(value) for value in plain]
    return tuple(dict.fromkeys(plain))


def _size(sizes_as_written: Any) -> tuple[Size, Size, Size]:
    if callable(sizes_as_written):
        raise UsageError("problem_size is a function: write it as text, with the parameters by name")
    items = list(sizes_as_written) if isinstance(sizes_as_written, list | tuple | np.ndarray) else [sizes_as_written]
    if not 1 <= len(items) <= 3:
        raise UsageError(f"problem_size {sizes_as_written!r}: give one to three sizes")
    sizes = [size if isinstance(size, str) else int(size) for size in items]
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _divisors(divisor: Any, name: str, axis: str, choices: Mapping[str, Any]) -> tuple[str, ...]:
    if callable(divisor):
        raise UsageError(f"grid_div_{axis} is a function: write it as a list of texts, with the parameters by name")
    if divisor is None:
        return (name,) if name in choices else ()
    return tuple(str(part) for part in ([divisor] if isinstance(divisor, str) else divisor))


def _restrictions(restrictions: Any) -> tuple[Any, ...]:
    items = (
        tuple(restrictions)
        if isinstance(restrictions, list | tuple)
        else ()
        if restrictions is None
        else (restrictions,)
    )
    for restriction in items:
        if not isinstance(restriction, str) and not callable(restriction):
            raise UsageError(f"restrictions has {restriction!r}: give texts, or functions of a dict of the parameters")
    return items


def _allowed(functions: Sequence[Callable[[dict[str, Value]], Any]], choices: Mapping[str, Sequence[Value]]) -> Any:
    """Evaluate function restrictions on every combination, as an array of one axis per parameter; None without
    functions.
    """
    if not functions:
        return None
    sizes = tuple(len(values) for values in choices.values())
    if prod(sizes) > _MOST_ASKED:
        raise UsageError(
            f"restrictions has a function, but {prod(sizes):,} combinations are too many to evaluate: write text"
        )
    try:
        combinations = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
        allowed = [all(function(dict(combination)) for function in functions) for combination in combinations]
    except Exception as error:
        raise UsageError(f"a function of restrictions failed on a dict of the parameters: {error!r}") from error
    return np.array(allowed, np.bool_).reshape(sizes)


def _smem(smem: Any) -> Size:
    size = (smem or {}).get("size", 0)
    if callable(size):
        raise UsageError("smem_args['size'] is a function: write it as text, with the parameters by name")
    return size if isinstance(size, str) else int(size)


def _defines(defines: Any) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, value in (defines or {}).items():
        if callable(value):
            raise UsageError(f"defines[{name!r}] is a function: write it as text, with the parameters by name")
        values[str(name)] = value.item() if isinstance(value, np.generic) else value
    return values


@dataclass(frozen=True)
class _Flags:
    include: tuple[Path, ...]
    defines: dict[str, Value]


def _flags(flags: Sequence[str] | None, folder: Path) -> _Flags:
    include, defines = list[Path](), dict[str, Value]()
    for flag in (str(flag).strip() for flag in flags or ()):
        if flag.startswith("-I"):
            include.append(folder / flag[2:].strip())
        elif flag.startswith("-D"):
            name, _, value = flag[2:].partition("=")
            defines[name] = value or 1
        elif not _HARMLESS.fullmatch(flag):
            raise UsageError(f"compiler_options has {flag!r}: only -I, -D, -std, -arch and -O are understood")
    return _Flags(tuple(include), defines)


def _argument(name: str, value: Any) -> Argument:
    if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
        value = value.get()  # a CuPy array
    if not isinstance(value, np.ndarray | np.generic):
        raise UsageError(f"argument {name} is a {type(value).__name__}: give NumPy arrays, and scalars as np.int32(n)")
    if DType.of(value.dtype) is None:
        names = ", ".join(dtype.value for dtype in DType)
        raise UsageError(f"argument {name} holds {value.dtype}, which is not supported (known: {names})")
    flat = value.ravel(order="K") if isinstance(value, np.ndarray) else np.array(value)
    return Argument(name, np.ascontiguousarray(flat) if flat.ndim else flat)


def _constant(name: str, value: Any) -> Argument:
    argument = _argument(name, value)
    return Argument(name, argument.value.reshape(-1), constant=True)


def _answers(answers: Any, arguments: Sequence[Argument]) -> dict[str, Array]:
    items = list(answers) if answers is not None else []
    if items and len(items) != len(arguments):
        raise UsageError(
            f"answer has {len(items)} entries for {len(arguments)} arguments: use None for arguments without one"
        )
    flat_answers = {}
    for argument, value in zip(arguments, items, strict=False):
        if value is not None:
            flat = np.asarray(value).ravel(order="K")
            if flat.shape != argument.value.shape:
                raise UsageError(
                    f"answer for {argument.name} has {flat.size} elements, but the argument has {argument.value.size}"
                )
            flat_answers[argument.name] = flat
    return flat_answers


def _parameter_names(source: str, kernel: str, count: int) -> list[str]:
    """Return the kernel's parameter names; arg0 and so on if they are unknown."""
    code = COMMENT.sub("", source)
    base = kernel.partition("<")[0].rpartition("::")[2].strip()
    for match in re.finditer(rf"\b{re.escape(base)}\s*\(([^()]*)\)\s*\{{", code):
        names = [re.findall(r"[A-Za-z_]\w*", part.partition("[")[0])[-1:] for part in match[1].split(",")]
        plain = [name[0] for name in names if name]
        if len(plain) == count == len(set(plain)):
            return [_safe(name) for name in plain]
    return [f"arg{i}" for i in range(count)]


def _safe(name: str) -> str:
    taken = KEYWORDS | {"in", "is", "lambda", "problem_size", "kind", "from", "pass", "None", "def", "with"}
    plain = name.strip("_") or "arg"
    return f"{plain}_" if plain in taken else plain


def _other(name: str, symbols: Mapping[str, Any]) -> str:
    """Return another parameter name if a symbol has the same name."""
    return f"{name}_given" if name in symbols else name


def _usual(source: str, choices: Mapping[str, tuple[Value, ...]]) -> dict[str, Value]:
    """Return the macros that the source itself defines if they are undefined."""
    values_by_name: dict[str, Value] = {}
    for name, values in choices.items():
        if match := re.search(rf"#\s*define\s+{name}\s+(\S+)", source):
            values_by_name.update((name, value) for value in values if str(value) == match[1])
    return values_by_name
