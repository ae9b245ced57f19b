"""A call of Kernel Tuner's `tune_kernel` as a value: what of it describes a kernel, and what is refused by name."""

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

Size = int | str  # a number, or arithmetic of parameters
BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
_PARAMETERS = """
kernel_name kernel_source problem_size arguments tune_params grid_div_x grid_div_y grid_div_z restrictions answer atol
verify verbose lang device platform smem_args cmem_args texmem_args compiler compiler_options defines log iterations
block_size_names quiet strategy strategy_options cache metrics simulation_mode parallel observers objective
objective_higher_is_better objectives seed
"""
PARAMETERS = tuple(_PARAMETERS.split())  # of tune_kernel, in order
_MOST_ASKED = 1 << 18  # combinations of which a function is asked
_LANGUAGES = ("CUDA", "CUPY", "NVCUDA")
# How a search goes and what it prints: a folder says nothing of that.
_SEARCHING = """
verbose device platform log iterations quiet strategy strategy_options cache metrics simulation_mode parallel observers
objective objective_higher_is_better objectives seed compiler
"""
SEARCHING = frozenset(_SEARCHING.split())
_REFUSED = {
    "texmem_args": "textures are not served: read the array itself, through __ldg or const __restrict__",
    "verify": "outputs are compared by their RMSE ratio: give answer, with atol where it is to be absolute",
}
_HARMLESS = re.compile(r"-{1,2}(?:std=.*|arch=.*|gpu-architecture=.*|O\d|lineinfo|w|gencode.*)")


@dataclass(frozen=True)
class Argument:
    """What a kernel is called with: an array of one dim, or a scalar."""

    name: str
    value: Array
    constant: bool = False  # a `__constant__` symbol

    @property
    def scalar(self) -> bool:
        return self.value.ndim == 0

    @property
    def dtype(self) -> DType:
        found = DType.of(self.value.dtype)
        assert found is not None, "it was looked at when the call was read"
        return found


@dataclass(frozen=True)
class Call:
    """A kernel, what it is called with, and what may be chosen of it.

    `divisors` has the factors that divide the problem's size along each axis, as arithmetic of the parameters.
    """

    kernel: str
    source: str
    size: tuple[Size, Size, Size]
    arguments: tuple[Argument, ...]
    choices: Mapping[str, tuple[Value, ...]]
    divisors: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    block: tuple[str, str, str] = BLOCK_NAMES  # parameters that say a block's threads; what is none of them is 1
    restrictions: tuple[str, ...] = ()
    allowed: Array | None = None  # by the place of each parameter's value: what functions among the restrictions say
    answers: Mapping[str, Array] = field(default_factory=dict)  # by argument
    atol: float = 1e-6
    smem: Size = 0  # bytes of dynamic shared memory
    defines: Mapping[str, Value] = field(default_factory=dict)  # macros beside the parameters
    macros: bool = True  # whether parameters are macros
    usual: Mapping[str, Value] = field(default_factory=dict)  # what is chosen where nothing was tuned, as far as known
    include: tuple[Path, ...] = ()  # folders of local headers
    origin: str = ""

    @property
    def base(self) -> str:
        """The kernel's name without namespace and template arguments."""
        return self.kernel.partition("<")[0].rpartition("::")[2].strip()


def of_keywords(given: Mapping[str, Any], folder: Path, origin: str) -> Call:
    """The call with these arguments of tune_kernel, which files are looked for in `folder`. Raises UsageError."""
    _refuse(given)
    texts, source_folder = _source(given["kernel_source"], folder)
    if found := TEXTURE.search(texts):
        raise UsageError(f"the kernel reads a texture ({found[0]}): {_REFUSED['texmem_args']}")
    kernel = str(given["kernel_name"])
    choices = {str(name): _values(str(name), values) for name, values in given["tune_params"].items()}
    said = tuple(given.get("block_size_names") or ())
    block = (*said, *BLOCK_NAMES[len(said) :])[:3]
    flags, restrictions = _flags(given.get("compiler_options"), folder), _restrictions(given.get("restrictions"))
    symbols = given.get("cmem_args") or {}
    names = [_other(each, symbols) for each in _parameter_names(texts, kernel, len(given["arguments"]))]
    arguments = [_argument(name, value) for name, value in zip(names, given["arguments"], strict=True)]
    constants = [_constant(str(name), value) for name, value in symbols.items()]
    size = _size(given["problem_size"])
    return Call(
        kernel=kernel,
        source=texts,
        size=size,
        arguments=(*arguments, *constants),
        choices=choices,
        divisors=tuple(  # type: ignore[arg-type]  # three of them
            _divisors(given.get(f"grid_div_{axis}"), name, axis, choices)
            for axis, name in zip("xyz", block, strict=False)
        ),
        block=block,
        restrictions=tuple(each for each in restrictions if isinstance(each, str)),
        allowed=_allowed([each for each in restrictions if not isinstance(each, str)], choices),
        answers=_answers(given.get("answer"), arguments),
        atol=float(given.get("atol", 1e-6) or 1e-6),
        smem=_smem(given.get("smem_args")),
        defines=flags.defines | _defines(given.get("defines")),
        macros=given.get("defines") is None,
        usual=_usual(texts, choices),
        include=tuple(dict.fromkeys((source_folder, *flags.include, folder))),
        origin=origin,
    )


def _refuse(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in PARAMETERS:
            raise UsageError(f"tune_kernel has no option {name!r} here (known: {', '.join(PARAMETERS)})")
    for name, why in _REFUSED.items():
        if given.get(name):
            raise UsageError(f"{name}: {why}")
    language = given.get("lang")
    if language is not None and str(language).upper() not in _LANGUAGES:
        raise UsageError(
            f"lang={language!r}: kernels in CUDA are served. Of host code that launches one, name the kernel, its own "
            "arguments and its __constant__ symbols (--kernel, --source, --arguments, --constant)"
        )


def _source(given: Any, folder: Path) -> tuple[str, Path]:
    if callable(given):
        raise UsageError("kernel_source is a function: write the text that it returns to a file, with #if for choices")
    if isinstance(given, list | tuple):
        if len(given) > 1:
            raise UsageError("kernel_source is a list of files: name the one that has the kernel, others by #include")
        given = given[0]
    text = str(given)
    if "\n" in text or "{" in text:
        return text, folder
    path = folder / text
    if not path.is_file():
        raise UsageError(f"kernel_source {text!r}: no such file in {folder}")
    return path.read_text(encoding="utf-8", errors="replace"), path.parent


def _values(name: str, values: Iterable[Any]) -> tuple[Value, ...]:
    if not name.isidentifier():
        raise UsageError(f"tune_params has {name!r}, which cannot be a macro: give a name of letters, digits and _")
    plain = [each.item() if isinstance(each, np.generic) else each for each in values]
    if not plain or not all(isinstance(each, bool | int | float | str) for each in plain):
        raise UsageError(f"tune_params[{name!r}]: give at least one number or text")
    if len({type(each) for each in plain}) > 1:  # 1 and 0.5
        plain = [float(each) for each in plain]
    return tuple(dict.fromkeys(plain))


def _size(given: Any) -> tuple[Size, Size, Size]:
    if callable(given):
        raise UsageError("problem_size is a function: write it as text, with the parameters by name")
    listed = list(given) if isinstance(given, list | tuple | np.ndarray) else [given]
    if not 1 <= len(listed) <= 3:
        raise UsageError(f"problem_size {given!r}: give one to three sizes")
    sizes = [each if isinstance(each, str) else int(each) for each in listed]
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _divisors(given: Any, name: str, axis: str, choices: Mapping[str, Any]) -> tuple[str, ...]:
    if callable(given):
        raise UsageError(f"grid_div_{axis} is a function: write it as a list of texts, with the parameters by name")
    if given is None:
        return (name,) if name in choices else ()
    return tuple(str(each) for each in ([given] if isinstance(given, str) else given))


def _restrictions(given: Any) -> tuple[Any, ...]:
    listed = tuple(given) if isinstance(given, list | tuple) else () if given is None else (given,)
    for each in listed:
        if not isinstance(each, str) and not callable(each):
            raise UsageError(f"restrictions has {each!r}: give texts, or functions of a dict of the parameters")
    return listed


def _allowed(functions: Sequence[Callable[[dict[str, Value]], Any]], choices: Mapping[str, Sequence[Value]]) -> Any:
    """What functions say of every combination, as a folder can hold it: [values of each]; None without any."""
    if not functions:
        return None
    sizes = tuple(len(values) for values in choices.values())
    if prod(sizes) > _MOST_ASKED:
        raise UsageError(
            f"restrictions has a function, which {prod(sizes):,} combinations are too many for: write text"
        )
    try:
        combinations = (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))
        found = [all(function(dict(each)) for function in functions) for each in combinations]
    except Exception as error:
        raise UsageError(f"a function of restrictions failed on a dict of the parameters: {error!r}") from error
    return np.array(found, np.bool_).reshape(sizes)


def _smem(given: Any) -> Size:
    size = (given or {}).get("size", 0)
    if callable(size):
        raise UsageError("smem_args['size'] is a function: write it as text, with the parameters by name")
    return size if isinstance(size, str) else int(size)


def _defines(given: Any) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in (given or {}).items():
        if callable(value):
            raise UsageError(f"defines[{name!r}] is a function: write it as text, with the parameters by name")
        found[str(name)] = value.item() if isinstance(value, np.generic) else value
    return found


@dataclass(frozen=True)
class _Flags:
    include: tuple[Path, ...]
    defines: dict[str, Value]


def _flags(given: Sequence[str] | None, folder: Path) -> _Flags:
    include, defines = list[Path](), dict[str, Value]()
    for each in (str(each).strip() for each in given or ()):
        if each.startswith("-I"):
            include.append(folder / each[2:].strip())
        elif each.startswith("-D"):
            name, _, value = each[2:].partition("=")
            defines[name] = value or 1
        elif not _HARMLESS.fullmatch(each):
            raise UsageError(f"compiler_options has {each!r}: only -I, -D, -std, -arch and -O are understood")
    return _Flags(tuple(include), defines)


def _argument(name: str, value: Any) -> Argument:
    if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
        value = value.get()  # CuPy's
    if not isinstance(value, np.ndarray | np.generic):
        raise UsageError(f"argument {name} is a {type(value).__name__}: give NumPy arrays, and scalars as np.int32(n)")
    if DType.of(value.dtype) is None:
        known = ", ".join(each.value for each in DType)
        raise UsageError(f"argument {name} holds {value.dtype}, which kernels here do not take (known: {known})")
    flat = value.ravel(order="K") if isinstance(value, np.ndarray) else np.array(value)
    return Argument(name, np.ascontiguousarray(flat) if flat.ndim else flat)


def _constant(name: str, value: Any) -> Argument:
    found = _argument(name, value)
    return Argument(name, found.value.reshape(-1), constant=True)


def _answers(given: Any, arguments: Sequence[Argument]) -> dict[str, Array]:
    listed = list(given) if given is not None else []
    if listed and len(listed) != len(arguments):
        raise UsageError(f"answer has {len(listed)} entries for {len(arguments)} arguments: None where there is none")
    found = {}
    for argument, value in zip(arguments, listed, strict=False):
        if value is not None:
            flat = np.asarray(value).ravel(order="K")
            if flat.shape != argument.value.shape:
                raise UsageError(
                    f"answer for {argument.name} has {flat.size} elements, the argument {argument.value.size}"
                )
            found[argument.name] = flat
    return found


def _parameter_names(source: str, kernel: str, count: int) -> list[str]:
    """What the kernel calls its parameters; arg0 and so on where that cannot be told."""
    code = COMMENT.sub("", source)
    base = kernel.partition("<")[0].rpartition("::")[2].strip()
    for found in re.finditer(rf"\b{re.escape(base)}\s*\(([^()]*)\)\s*\{{", code):
        names = [re.findall(r"[A-Za-z_]\w*", each.partition("[")[0])[-1:] for each in found[1].split(",")]
        plain = [name[0] for name in names if name]
        if len(plain) == count == len(set(plain)):
            return [_safe(name) for name in plain]
    return [f"arg{i}" for i in range(count)]


def _safe(name: str) -> str:
    taken = KEYWORDS | {"in", "is", "lambda", "problem_size", "kind", "from", "pass", "None", "def", "with"}
    plain = name.strip("_") or "arg"
    return f"{plain}_" if plain in taken else plain


def _other(name: str, symbols: Mapping[str, Any]) -> str:
    """A parameter's name where a symbol has it, too."""
    return f"{name}_given" if name in symbols else name


def _usual(source: str, choices: Mapping[str, tuple[Value, ...]]) -> dict[str, Value]:
    """What the source itself defines where nobody does."""
    found: dict[str, Value] = {}
    for name, values in choices.items():
        if said := re.search(rf"#\s*define\s+{name}\s+(\S+)", source):
            found.update((name, value) for value in values if str(value) == said[1])
    return found
